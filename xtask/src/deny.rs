//! Checks licences, banned crates, sources and advisories of the dependency tree, with a pinned version of cargo-deny.
//!
//! The tool is installed once for a user, below the home of cargo: its build takes minutes. Advisories need their
//! database. If it can neither be fetched nor is cached, they are skipped, and a line says so. The other checks need no
//! network.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use yurt_workspace::command;

/// The version that is installed and used.
const VERSION: &str = "0.20.2";
/// Folder of the tool below the home of cargo.
const TOOL: &str = "yurt-cargo-deny";
/// Folder in which cargo-deny keeps databases of advisories, below the home of cargo.
const DATABASES: &str = "advisory-dbs";

/// Installs the tool if it is missing.
///
/// # Errors
/// The tool cannot be installed.
pub(crate) fn install() -> Result<()> {
    tool(&yurt_workspace::root()?).map(|_| ())
}

/// Checks the tree.
///
/// # Errors
/// The tool cannot be installed, or found a problem.
pub(crate) fn run() -> Result<()> {
    let root = yurt_workspace::root()?;
    let tool = tool(&root)?;
    let command = |arguments: &[&str]| {
        let mut command = Command::new(&tool);
        command.args(arguments).current_dir(&root);
        command
    };
    command::run(&mut command(&["check", "bans", "licenses", "sources"]))?;
    let is_fresh = command::succeeds(&mut command(&["fetch", "db"]));
    if !is_fresh && !has_database() {
        println!("   advisories: not checked, their database is not here and cannot be fetched");
        return Ok(());
    }
    if !is_fresh {
        println!("   advisories: their database cannot be fetched, the one that is here may be old");
    }
    command::run(&mut command(&["--offline", "check", "advisories"]))
}

/// Path of the tool of [`VERSION`], installed if it is missing.
fn tool(root: &Path) -> Result<PathBuf> {
    let target = yurt_workspace::target_dir(root)?.join("tools");
    let folder = cargo_home().map_or_else(|| target.clone(), |home| home.join(TOOL));
    let tool = folder.join("bin/cargo-deny");
    if is_wanted(&tool) {
        return Ok(tool);
    }
    let build = target.join("build");
    let mut install = yurt_workspace::cargo();
    install
        .args([
            "install",
            "--locked",
            "--force",
            "--version",
            VERSION,
            "cargo-deny",
            "--root",
        ])
        .arg(&folder)
        .arg("--target-dir")
        .arg(&build)
        // It runs for seconds; its own profile optimises the whole program for many minutes.
        .envs([
            ("CARGO_PROFILE_RELEASE_LTO", "off"),
            ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
            ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1"),
        ])
        .current_dir(root);
    command::run(&mut install).context("cargo-deny cannot be installed; this takes the network once")?;
    // Its build folder takes much disk space.
    let _ = std::fs::remove_dir_all(build);
    Ok(tool)
}

fn is_wanted(tool: &Path) -> bool {
    let said = Command::new(tool).arg("--version").output();
    said.is_ok_and(|said| is_version(&String::from_utf8_lossy(&said.stdout)))
}

/// True if the tool reports the wanted version.
fn is_version(said: &str) -> bool {
    said.split_whitespace().eq(["cargo-deny", VERSION])
}

fn has_database() -> bool {
    let entries = cargo_home().and_then(|home| std::fs::read_dir(home.join(DATABASES)).ok());
    // A fetch that failed leaves a lock file.
    entries.is_some_and(|entries| entries.flatten().any(|entry| entry.path().is_dir()))
}

fn cargo_home() -> Option<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_versions_are_not_used() {
        assert!(is_version(&format!("cargo-deny {VERSION}\n")));
        assert!(!is_version("cargo-deny 0.1.0") && !is_version(""));
        assert!(!is_wanted(Path::new("/nowhere/cargo-deny")));
    }
}
