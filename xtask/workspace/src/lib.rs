//! The workspace as its commands use it: location, metadata, builds, outside commands.
//!
//! Shared by `xtask`, `testbed`, `benchmarks` and `chaos-tests/pool`. It compiles in seconds, because
//! `cargo xtask tidy` waits for it.
//!
//! Reading order: [`command`] (runs one outside command), [`programs`] (builds), [`Stopwatch`].
#![allow(clippy::print_stdout, reason = "the commands print what they run")]

pub mod command;
pub mod programs;
mod stopwatch;

pub use stopwatch::Stopwatch;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// File that only the root of the workspace has.
const ROOT_FILE: &str = "Cargo.lock";

/// Beginnings of the variables that cargo sets for the package it runs.
const OF_PACKAGE: [&str; 5] = [
    "CARGO_PKG_",
    "CARGO_MANIFEST_",
    "CARGO_BIN_",
    "CARGO_CRATE_",
    "CARGO_PRIMARY_",
];

/// Returns the root of the repository: the nearest folder with a `Cargo.lock` above the running program's package.
///
/// `CARGO_MANIFEST_DIR` of the running `cargo run` wins over the place of compilation, so that a binary that was copied
/// with its target folder to another checkout uses that checkout.
///
/// # Errors
/// No folder above has a `Cargo.lock`.
pub fn root() -> Result<PathBuf> {
    let manifest_dir = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").to_owned());
    root_above(Path::new(&manifest_dir))
}

fn root_above(package: &Path) -> Result<PathBuf> {
    let root = package.ancestors().find(|folder| folder.join(ROOT_FILE).is_file());
    let root = root.with_context(|| format!("no folder above {} has a {ROOT_FILE}", package.display()))?;
    Ok(root.to_path_buf())
}

/// Returns a command of the `cargo` that runs this program, so that every step uses one toolchain.
///
/// It lacks the variables that `cargo run` sets for one package. Build scripts of some libraries (ring) depend on them:
/// builds that are started by different programs would each compile those libraries, and all that use them, again.
pub fn cargo() -> Command {
    let program = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let mut command = Command::new(program);
    let is_of_package = |name: &str| OF_PACKAGE.iter().any(|prefix| name.starts_with(prefix));
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_of_package(&name.to_string_lossy())) {
        command.env_remove(name);
    }
    command
}

/// Returns the output of `cargo metadata --no-deps`.
///
/// # Errors
/// The command fails, or its output is not JSON.
pub fn metadata(root: &Path) -> Result<Value> {
    let output = cargo()
        .args(["metadata", "--no-deps", "--format-version=1"])
        .current_dir(root)
        .output()
        .context("cannot run cargo metadata")?;
    if !output.status.success() {
        bail!(
            "cargo metadata failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    serde_json::from_slice(&output.stdout).context("cargo metadata is not JSON")
}

/// Returns the folder cargo builds into (honours `CARGO_TARGET_DIR` and the user's configuration).
///
/// # Errors
/// As [`metadata`].
pub fn target_dir(root: &Path) -> Result<PathBuf> {
    let metadata = metadata(root)?;
    let dir = metadata["target_directory"]
        .as_str()
        .context("cargo metadata has no target_directory")?;
    Ok(PathBuf::from(dir))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_the_nearest_folder_above_with_a_lock_file() {
        let root = tempfile::tempdir().expect("a folder");
        let package = root.path().join("chaos-tests/pool");
        std::fs::create_dir_all(&package).expect("a package");
        std::fs::write(root.path().join(ROOT_FILE), "").expect("a lock file");
        assert_eq!(root_above(&package).expect("a root"), root.path());
        assert!(root_above(Path::new("/")).is_err());
    }

    #[test]
    fn builds_do_not_depend_on_the_package_that_starts_them() {
        // `cargo test` sets both.
        let command = cargo();
        for name in ["CARGO_PKG_NAME", "CARGO_MANIFEST_DIR"] {
            assert!(
                command
                    .get_envs()
                    .any(|(removed, value)| removed == name && value.is_none()),
                "{name}"
            );
        }
    }

    #[test]
    fn root_of_this_workspace_has_the_folder_of_its_commands() {
        assert!(root().expect("a root").join("xtask/workspace/Cargo.toml").is_file());
    }
}
