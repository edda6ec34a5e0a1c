//! The dependencies between our crates are the ones in the table, and every crate has a row.
//!
//! `apimachinery ← codec ← {collection ← pool-protocol, runtime} ← storage ← {coordinator, hub-client}`, with
//! `apiextensions` and `patch` between `codec` and the coordinator. The programs never import each other, they
//! communicate over HTTP only. A new row or arrow is a decision about the architecture: it needs an ADR.

use anyhow::{Context, Result};
use serde_json::Value;

use super::{Subject, Violation};

/// Crates that a crate may use in its code (and so in its tests), and those only in its tests.
struct Row {
    package: &'static str,
    may_use: &'static [&'static str],
    tests_may_use: &'static [&'static str],
}

const CRATES: &[&str] = &[
    "yurt-apiextensions",
    "yurt-apimachinery",
    "yurt-codec",
    "yurt-collection",
    "yurt-patch",
    "yurt-pool-protocol",
    "yurt-runtime",
    "yurt-storage",
];
const FIXTURES: &[&str] = &["yurt-test-support"];

const TABLE: &[Row] = &[
    Row {
        package: "yurt-apimachinery",
        may_use: &[],
        tests_may_use: FIXTURES,
    },
    Row {
        package: "yurt-codec",
        may_use: &["yurt-apimachinery"],
        tests_may_use: FIXTURES,
    },
    Row {
        package: "yurt-apiextensions",
        may_use: &["yurt-apimachinery", "yurt-codec"],
        tests_may_use: FIXTURES,
    },
    Row {
        // Server-side apply merges custom resources by their schemas.
        package: "yurt-patch",
        may_use: &["yurt-apimachinery", "yurt-codec", "yurt-apiextensions"],
        tests_may_use: FIXTURES,
    },
    Row {
        package: "yurt-collection",
        may_use: &["yurt-apimachinery", "yurt-codec"],
        tests_may_use: FIXTURES,
    },
    Row {
        package: "yurt-pool-protocol",
        may_use: &["yurt-apimachinery", "yurt-codec", "yurt-collection"],
        tests_may_use: FIXTURES,
    },
    Row {
        // It compresses answers, and encodes failures in the client's format.
        package: "yurt-runtime",
        may_use: &["yurt-apimachinery", "yurt-codec"],
        tests_may_use: FIXTURES,
    },
    Row {
        package: "yurt-storage",
        may_use: &["yurt-apimachinery", "yurt-codec", "yurt-collection", "yurt-runtime"],
        tests_may_use: &["yurt-apiextensions", "yurt-test-support"],
    },
    Row {
        package: "yurt-coordinator",
        may_use: CRATES,
        tests_may_use: FIXTURES,
    },
    Row {
        package: "yurt-hub-client",
        may_use: CRATES,
        tests_may_use: FIXTURES,
    },
    Row {
        package: "yurt-test-support",
        may_use: CRATES,
        tests_may_use: &[],
    },
    Row {
        // Fuzz targets are tests of everything, in a package of their own.
        package: "yurt-fuzz",
        may_use: &[
            "yurt-apimachinery",
            "yurt-codec",
            "yurt-collection",
            "yurt-patch",
            "yurt-pool-protocol",
            "yurt-runtime",
            "yurt-storage",
            "yurt-coordinator",
            "yurt-hub-client",
        ],
        tests_may_use: &["yurt-apiextensions", "yurt-test-support"],
    },
    Row {
        // Models and simulations drive the rules that the programs share, not the programs; nothing depends on it.
        package: "yurt-chaos-tests",
        may_use: &[
            "yurt-apimachinery",
            "yurt-collection",
            "yurt-pool-protocol",
            "yurt-runtime",
            "yurt-storage",
            "yurt-chaos-validate",
        ],
        tests_may_use: FIXTURES,
    },
    Row {
        // Checkers are independent of the code they check.
        package: "yurt-chaos-validate",
        may_use: &[],
        tests_may_use: &[],
    },
    Row {
        // Location and builds of the workspace, for its commands.
        package: "yurt-workspace",
        may_use: &[],
        tests_may_use: &[],
    },
    Row {
        // A pool of real programs. It starts them and links none of them. Its faulty disk is a fixture of other tests,
        // too.
        package: "yurt-testbed",
        may_use: &[
            "yurt-apimachinery",
            "yurt-runtime",
            "yurt-test-support",
            "yurt-workspace",
        ],
        tests_may_use: &[],
    },
    Row {
        package: "yurt-benchmarks",
        may_use: &["yurt-apimachinery", "yurt-runtime", "yurt-testbed", "yurt-workspace"],
        tests_may_use: FIXTURES,
    },
    Row {
        // Faults against the testbed's pool. It judges what clients saw, without the code of the programs.
        package: "yurt-chaos-pool",
        may_use: &[
            "yurt-apimachinery",
            "yurt-runtime",
            "yurt-chaos-validate",
            "yurt-testbed",
            "yurt-workspace",
        ],
        tests_may_use: FIXTURES,
    },
    Row {
        // `cargo xtask tidy` waits for its build: none of our libraries.
        package: "yurt-xtask",
        may_use: &["yurt-workspace"],
        tests_may_use: &[],
    },
];

pub(super) fn check(subject: &Subject) -> Result<Vec<Violation>> {
    violations(&subject.metadata)
}

fn violations(metadata: &Value) -> Result<Vec<Violation>> {
    let packages = metadata["packages"].as_array().context("metadata has no packages")?;
    let mut found = Vec::new();
    for package in packages {
        let name = package["name"].as_str().context("a package has no name")?;
        let Some(row) = TABLE.iter().find(|row| row.package == name) else {
            found.push(Violation::new(
                name,
                "has no row in the table of arrows (xtask/src/tidy/arrows.rs); see the ADRs",
            ));
            continue;
        };
        let dependencies = package["dependencies"]
            .as_array()
            .context("a package has no dependencies")?;
        for dependency in dependencies.iter().filter(|dependency| is_ours(dependency)) {
            let to = dependency["name"].as_str().unwrap_or_default();
            let in_tests_only = dependency["kind"].as_str() == Some("dev");
            let allowed = row.may_use.contains(&to) || (in_tests_only && row.tests_may_use.contains(&to));
            if !allowed {
                let kind = if in_tests_only { "its tests use" } else { "it uses" };
                found.push(Violation::new(
                    name,
                    format!("{kind} {to}; the table has no such arrow"),
                ));
            }
        }
    }
    Ok(found)
}

/// True for a crate of this workspace: named by path, or by our prefix from any source.
fn is_ours(dependency: &Value) -> bool {
    dependency["path"].is_string()
        || dependency["name"]
            .as_str()
            .is_some_and(|name| name.starts_with("yurt-"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Number of violations when `package` depends on `dependency` in the given way (`None` = in its code).
    fn found(package: &str, dependency: &str, kind: Option<&str>) -> usize {
        let dependencies = json!([{"name": dependency, "kind": kind, "path": "x"}, {"name": "bytes", "kind": null}]);
        let metadata = json!({"packages": [{"name": package, "dependencies": dependencies}]});
        violations(&metadata).expect("the metadata is well-formed").len()
    }

    #[test]
    fn arrows_of_the_table_pass() {
        assert_eq!(found("yurt-storage", "yurt-runtime", None), 0);
        assert_eq!(found("yurt-coordinator", "yurt-storage", None), 0);
        assert_eq!(found("yurt-hub-client", "yurt-test-support", Some("dev")), 0);
    }

    #[test]
    fn arrows_against_the_table_are_reported() {
        assert_eq!(found("yurt-runtime", "yurt-storage", None), 1);
        assert_eq!(found("yurt-apimachinery", "yurt-runtime", Some("dev")), 1);
        assert_eq!(found("yurt-coordinator", "yurt-hub-client", Some("dev")), 1);
        assert_eq!(found("yurt-hub-client", "yurt-coordinator", None), 1);
        assert_eq!(found("yurt-storage", "yurt-test-support", None), 1);
        assert_eq!(found("yurt-storage", "yurt-test-support", Some("build")), 1);
    }

    #[test]
    fn a_crate_without_a_row_is_reported() {
        assert_eq!(found("yurt-utils", "bytes", None), 1);
    }
}
