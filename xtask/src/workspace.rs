//! Location of the workspace and its `cargo metadata`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The root of the repository, from the place this crate was compiled at.
///
/// `CARGO_MANIFEST_DIR` of the running `cargo run` wins, so that a binary that was copied with its target folder to
/// another checkout uses that checkout.
pub(crate) fn root() -> Result<PathBuf> {
    let manifest_dir = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").to_owned());
    let root = Path::new(&manifest_dir)
        .parent()
        .context("the xtask folder must have a parent")?;
    Ok(root.to_path_buf())
}

/// The `cargo` that runs us, so that every step uses one toolchain.
pub(crate) fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned())
}

/// `cargo metadata --no-deps` of the workspace.
pub(crate) fn metadata(root: &Path) -> Result<Value> {
    let output = Command::new(cargo())
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

/// The folder cargo builds into (honours `CARGO_TARGET_DIR` and the user's configuration).
pub(crate) fn target_dir(root: &Path) -> Result<PathBuf> {
    let metadata = metadata(root)?;
    let dir = metadata["target_directory"]
        .as_str()
        .context("cargo metadata has no target_directory")?;
    Ok(PathBuf::from(dir))
}
