//! The pure crates build without a runtime, network stack or TLS: the check covers their whole dependency trees.
//!
//! The check of [`super::pure_paths`] covers our own code; a dependency that pulls in tokio would pass it.

use anyhow::{Context, Result, bail};

use super::{Subject, Violation};

const PACKAGES: [&str; 6] = [
    "yurt-apiextensions",
    "yurt-apimachinery",
    "yurt-codec",
    "yurt-collection",
    "yurt-patch",
    "yurt-pool-protocol",
];

/// Crates that a pure crate must not depend on.
const IMPURE: &[&str] = &[
    "tokio",
    "hyper",
    "hyper-util",
    "h2",
    "tonic",
    "rustls",
    "ring",
    "mio",
    "getrandom",
    "rand",
];

pub(super) fn check(_: &Subject) -> Result<Vec<Violation>> {
    let mut found = Vec::new();
    for package in PACKAGES {
        found.extend(violations(package, &tree(package)?));
    }
    Ok(found)
}

/// The dependencies of a package, one `name vX.Y.Z …` per line.
fn tree(package: &str) -> Result<String> {
    let output = yurt_workspace::cargo()
        .args(["tree", "--package", package, "--edges", "normal", "--prefix", "none"])
        .current_dir(yurt_workspace::root()?)
        .output()
        .context("cannot run cargo tree")?;
    if !output.status.success() {
        bail!("cargo tree failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn violations(package: &str, tree: &str) -> Vec<Violation> {
    let names: std::collections::BTreeSet<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    let impure = IMPURE.iter().filter(|name| names.contains(**name));
    impure
        .map(|name| {
            Violation::new(
                package,
                format!("depends on {name}; `cargo tree -p {package} -i {name}` says how"),
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_anywhere_in_the_tree_is_reported() {
        assert_eq!(
            violations(
                "yurt-apimachinery",
                "yurt-apimachinery v0.1.0\nbytes v1.12.1\ntokio-like v1.0.0\n"
            ),
            []
        );
        assert_eq!(
            violations(
                "yurt-apimachinery",
                "yurt-apimachinery v0.1.0\ntokio v1.54.1\nbytes v1.12.1 (*)\n"
            )
            .len(),
            1
        );
    }
}
