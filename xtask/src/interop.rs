//! Interface to the Go module `interop/`: builds the real Kubernetes programs, runs the tests and takes figures.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::{process, workspace};
use events::Events;

mod events;

/// Interval at which a run of all tests prints the tests in progress.
const PROGRESS_EVERY: Duration = Duration::from_secs(30);

/// Environment variable with the path of the etcd that [`build`] made, for tests written in Rust.
pub(crate) const ETCD_VARIABLE: &str = "YURT_ETCD";
/// Environment variable that switches backend-independent tests from the embedded store to etcd.
const OVER_ETCD_VARIABLE: &str = "YURT_OVER_ETCD";
/// Path of etcd, below [`FOLDER`].
const ETCD: &str = ".cache/bin/etcd";

/// Rust tests that start an etcd, by package and target. They are ignored elsewhere, or run over the embedded store.
const ETCD_TESTS: [(&str, &str); 2] = [("yurt-storage", "etcd3"), ("yurt-coordinator", "api")];

/// Environment variable with the folder of `yurt-coordinator` and `yurthub`, for the Go side.
const BIN_DIR_VARIABLE: &str = "YURT_BIN_DIR";

/// Arguments of `go test`. One package at a time: each starts whole clusters. Parallel tests mostly wait, so there may
/// be more of them than cores. Results are not cached: the cache does not depend on our programs. A run that takes
/// longer than the timeout fails, and `go test` prints all stacks.
const HOW: [&str; 4] = ["-p=1", "-parallel=4", "-count=1", "-timeout=60m"];

/// Arguments of `cargo xtask figures`.
#[derive(clap::Args)]
pub(crate) struct FiguresArgs {
    /// Arguments for the Go program (interop/cmd/figures)
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// The folder of the module.
pub(crate) const FOLDER: &str = "interop";

/// Arguments of `cargo xtask differential`.
#[derive(clap::Args)]
pub(crate) struct DifferentialArgs {
    /// Run only scripts whose id begins with this, and print every difference
    #[arg(long, value_name = "ID")]
    case: Option<String>,
    /// Seed of the sampled scripts
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Arguments for the Go program (interop/cmd/differential; `-- -help` lists them)
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// Failpoints of our programs, which release builds omit.
const FAILPOINTS: [&str; 2] = ["--features", "yurt-hub-client/failpoints"];

/// Build profile of our own programs.
#[derive(Clone, Copy)]
pub(crate) enum Profile {
    /// Optimised and quick to link: demo and figures of comparison.
    Quick,
    /// The same, plus everything else that tests need, in one build. Separate builds of fewer packages would compile
    /// all of it again, with other features of the same libraries.
    Tests,
    /// The shipped profile: figures.
    Release,
}

/// `cargo xtask build-interop`: builds everything the tests start in addition to our own programs. Cheap when nothing
/// changed.
pub(crate) fn build() -> Result<()> {
    process::run(go()?.args(["run", "./cmd/build"]))
}

/// Builds everything that [`test()`] needs: programs, Kubernetes programs, and the tests in Rust and Go.
pub(crate) fn prepare() -> Result<()> {
    build_programs(Profile::Tests)?;
    build()?;
    for (package, target) in ETCD_TESTS {
        let mut command = Command::new(workspace::cargo());
        command.args(["test", "--package", package, "--test", target, "--no-run"]);
        process::run(command.current_dir(workspace::root()?))?;
    }
    // No test has an empty name: this compiles the tests and runs none.
    process::run(go()?.args(["test", "-run", "^$", "./..."]))
}

/// The interop step of `cargo xtask test`: all tests, or those whose name matches `filter`.
pub(crate) fn test(filter: Option<&str>) -> Result<()> {
    let bin_dir = build_programs(Profile::Tests)?;
    build()?;
    test_over_etcd(filter)?;
    process::run(go()?.args(["vet", "./..."]))?;
    let mut command = go()?;
    command.arg("test").args(HOW).env(BIN_DIR_VARIABLE, bin_dir);
    if let Some(filter) = filter {
        return process::run(command.args(["-v", "-run", filter, "./..."]));
    }
    let mut events = Events::default();
    process::run_lines(command.args(["-json", "./..."]), PROGRESS_EVERY, |line| match line {
        Some(line) => print!("{}", events.take(line)),
        None => println!("   {}", events.progress()),
    })
}

/// Path of the etcd that [`build`] made, if it exists.
pub(crate) fn etcd() -> Result<Option<PathBuf>> {
    let etcd = workspace::root()?.join(FOLDER).join(ETCD);
    Ok(etcd.is_file().then_some(etcd))
}

fn test_over_etcd(filter: Option<&str>) -> Result<()> {
    let root = workspace::root()?;
    let etcd = root.join(FOLDER).join(ETCD);
    for (package, target) in ETCD_TESTS {
        let mut command = Command::new(workspace::cargo());
        command.args(["test", "--package", package, "--test", target, "--"]);
        command.arg("--include-ignored").args(filter);
        process::run(
            command
                .current_dir(&root)
                .env(ETCD_VARIABLE, &etcd)
                .env(OVER_ETCD_VARIABLE, "1"),
        )?;
    }
    Ok(())
}

/// Builds the dependencies of the named tests; the command prints the events of `go test -json`.
pub(crate) fn test_events(names: &BTreeSet<&str>) -> Result<Command> {
    let bin_dir = build_programs(Profile::Tests)?;
    build()?;
    let names: Vec<&str> = names.iter().copied().collect();
    println!("   running {} tests of {FOLDER}", names.len());
    let mut command = go()?;
    command
        .args(["test", "-json"])
        .args(HOW)
        .arg("-run")
        .arg(format!("^({})$", names.join("|")))
        .arg("./...")
        .env(BIN_DIR_VARIABLE, bin_dir);
    Ok(command)
}

/// `cargo xtask figures`.
pub(crate) fn figures(args: &FiguresArgs) -> Result<()> {
    let bin_dir = build_programs(Profile::Release)?;
    build()?;
    process::run(
        go()?
            .args(["run", "./cmd/figures"])
            .args(&args.arguments)
            .env(BIN_DIR_VARIABLE, bin_dir),
    )
}

/// `cargo xtask differential`: sends the same requests to kube-apiserver and to the coordinator, and compares the
/// answers.
pub(crate) fn differential(args: &DifferentialArgs) -> Result<()> {
    let bin_dir = build_programs(Profile::Quick)?;
    build()?;
    let mut command = go()?;
    command.args(["run", "./cmd/differential", "-seed", &args.seed.to_string()]);
    if let Some(case) = &args.case {
        command.args(["-case", case]);
    }
    process::run(command.args(&args.arguments).env(BIN_DIR_VARIABLE, bin_dir))
}

/// Builds both programs and returns the folder they are in.
pub(crate) fn build_programs(profile: Profile) -> Result<PathBuf> {
    let root = workspace::root()?;
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
            "yurt-apimachinery",
            "--example",
            "transcode",
            "--package",
            "yurt-chaos-tests",
        ],
        Profile::Quick => &["--package", "yurt-apimachinery", "--example", "transcode"],
        Profile::Release => &[],
    };
    process::run(
        Command::new(workspace::cargo())
            .args(["build", "--profile", name])
            .args(packages)
            .args(failpoints)
            .args(for_tests)
            .current_dir(&root),
    )?;
    Ok(workspace::target_dir(&root)?.join(name))
}

/// A `go` command in the module's folder.
fn go() -> Result<Command> {
    let folder = workspace::root()?.join(FOLDER);
    if !folder.join("go.mod").is_file() {
        bail!("interop/go.mod is missing");
    }
    if !process::succeeds(Command::new("go").arg("version")) {
        bail!("the interop step needs Go (https://go.dev/dl); without it: `cargo xtask test --skip interop`");
    }
    let mut command = Command::new("go");
    command.current_dir(folder);
    Ok(command)
}
