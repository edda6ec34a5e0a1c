//! Builds of the programs that tests, demo and benchmarks start: ours with cargo, the Kubernetes programs with Go.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, bail};

use crate::{cargo, command, root, target_dir};

/// Folder of the Go module that builds and starts the Kubernetes programs, below the root of the workspace.
pub const INTEROP: &str = "interop";

/// Failpoints of our programs, which release builds omit.
const FAILPOINTS: [&str; 2] = ["--features", "yurt-hub-client/failpoints"];

/// Build profile of our own programs.
#[derive(Clone, Copy, Debug)]
pub enum Profile {
    /// Optimised and quick to link: demo and comparisons.
    Quick,
    /// The same, plus everything else that tests need, in one build. Separate builds of fewer packages would compile
    /// all of it again, with other features of the same libraries.
    Tests,
    /// The shipped profile: measurements.
    Release,
}

/// Builds both programs and returns their folder.
///
/// # Errors
/// The build failed; cargo has printed why.
pub fn build(profile: Profile) -> Result<PathBuf> {
    let root = root()?;
    let name = match profile {
        Profile::Quick | Profile::Tests => "quick",
        Profile::Release => "release",
    };
    let packages = [
        "--package",
        "yurt-coordinator",
        "--package",
        "yurt-hub-client",
        "--bins",
    ];
    let failpoints: &[&str] = match profile {
        Profile::Quick | Profile::Tests => &FAILPOINTS,
        Profile::Release => &[],
    };
    // The transcoder example, for the test that compares it with Go's; models and simulations.
    let for_tests: &[&str] = match profile {
        Profile::Tests => &[
            "--package",
            "yurt-codec",
            "--example",
            "transcode",
            "--package",
            "yurt-chaos-tests",
        ],
        Profile::Quick => &["--package", "yurt-codec", "--example", "transcode"],
        Profile::Release => &[],
    };
    command::run(
        cargo()
            .args(["build", "--profile", name])
            .args(packages)
            .args(failpoints)
            .args(for_tests)
            .current_dir(&root),
    )?;
    Ok(target_dir(&root)?.join(name))
}

/// Builds kube-apiserver, etcd and the other Kubernetes programs into `interop/.cache`. Cheap if nothing changed.
///
/// # Errors
/// Go is missing, or the build failed.
pub fn build_kubernetes() -> Result<()> {
    command::run(go()?.args(["run", "./cmd/build"]))
}

/// Builds the programs that a hub is compared with, as [`build_kubernetes`] does: a reverse proxy and OpenYurt's hubs.
///
/// # Errors
/// Go is missing, or the build failed.
pub fn build_peers() -> Result<()> {
    command::run(go()?.args(["run", "./cmd/build", "-peers"]))
}

/// Returns a `go` command in the folder of the module [`INTEROP`].
///
/// # Errors
/// The module or Go is missing.
pub fn go() -> Result<Command> {
    let folder = root()?.join(INTEROP);
    if !folder.join("go.mod").is_file() {
        bail!("interop/go.mod is missing");
    }
    if !command::succeeds(Command::new("go").arg("version")) {
        bail!("the interop step needs Go (https://go.dev/dl); without it: `cargo xtask test --skip interop`");
    }
    let mut command = Command::new("go");
    command.current_dir(folder);
    Ok(command)
}
