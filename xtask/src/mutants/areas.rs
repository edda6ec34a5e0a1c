//! The parts of the core that are mutated, and the tests that must catch the mutants.

/// Files of one package that belong together.
pub(super) struct Area {
    pub(super) name: &'static str,
    pub(super) package: &'static str,
    /// Packages with tests of these files.
    pub(super) tested_by: &'static [&'static str],
    /// Paths and globs from the root of the repository.
    pub(super) files: &'static [&'static str],
    /// Arguments of `cargo test`.
    pub(super) tests: &'static [&'static str],
    pub(super) needs_etcd: bool,
}

/// Unit, contract and component tests; no doc tests.
const TESTS: &[&str] = &["--lib", "--tests"];

/// Areas in the order of a run; those that fail fastest come first.
pub(super) const AREAS: [Area; 9] = [
    Area {
        name: "collection",
        package: "yurt-collection",
        tested_by: &["yurt-collection", "yurt-storage"],
        files: &["crates/collection/src/**/*.rs"],
        // Tests of the disk take a minute, and test the layer below.
        tests: &["--lib", "--test", "lists", "--test", "watches", "--test", "serve"],
        needs_etcd: false,
    },
    Area {
        name: "replica",
        package: "yurt-storage",
        tested_by: &["yurt-storage"],
        files: &["crates/storage/src/replica.rs", "crates/storage/src/replica/**/*.rs"],
        tests: TESTS,
        needs_etcd: false,
    },
    Area {
        name: "embedded",
        package: "yurt-storage",
        tested_by: &["yurt-storage"],
        files: &["crates/storage/src/embedded.rs", "crates/storage/src/embedded/**/*.rs"],
        tests: TESTS,
        needs_etcd: false,
    },
    Area {
        name: "etcd3",
        package: "yurt-storage",
        tested_by: &["yurt-storage"],
        files: &["crates/storage/src/etcd3.rs", "crates/storage/src/etcd3/**/*.rs"],
        tests: &[
            "--lib",
            "--test",
            "etcd3",
            "--test",
            "shared_store",
            "--",
            "--include-ignored",
        ],
        needs_etcd: true,
    },
    Area {
        name: "protocol",
        package: "yurt-pool-protocol",
        tested_by: &["yurt-pool-protocol"],
        files: &["crates/pool-protocol/src/**/*.rs"],
        tests: &["--lib"],
        needs_etcd: false,
    },
    Area {
        name: "feed",
        package: "yurt-coordinator",
        tested_by: &["yurt-coordinator"],
        files: &["coordinator/src/feed.rs", "coordinator/src/feed/**/*.rs"],
        tests: TESTS,
        needs_etcd: false,
    },
    Area {
        name: "leases",
        package: "yurt-coordinator",
        tested_by: &["yurt-coordinator"],
        files: &["coordinator/src/registry/leases.rs"],
        tests: TESTS,
        needs_etcd: false,
    },
    Area {
        name: "pool",
        package: "yurt-hub-client",
        tested_by: &["yurt-hub-client"],
        files: &["hub-client/src/health.rs", "hub-client/src/pool/**/*.rs"],
        tests: TESTS,
        needs_etcd: false,
    },
    Area {
        name: "replicas",
        package: "yurt-hub-client",
        tested_by: &["yurt-hub-client"],
        files: &["hub-client/src/replicas.rs", "hub-client/src/replicas/**/*.rs"],
        tests: TESTS,
        needs_etcd: false,
    },
];

/// End of a glob for everything in a folder.
const ALL: &str = "/**/*.rs";

// === impl Area ===

impl Area {
    /// True if a file is part of it.
    pub(super) fn has(&self, file: &str) -> bool {
        self.files.iter().any(|one| match one.strip_suffix(ALL) {
            Some(folder) => file.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/')),
            None => *one == file,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_have_names_of_their_own_and_files_that_exist() {
        let root = yurt_workspace::root().expect("the root");
        for (index, area) in AREAS.iter().enumerate() {
            assert!(
                AREAS[..index].iter().all(|other| other.name != area.name),
                "{}",
                area.name
            );
            for file in area.files {
                let place = file.strip_suffix(ALL).unwrap_or(file);
                assert!(root.join(place).exists(), "{}: {file}", area.name);
            }
        }
    }
    #[test]
    fn files_are_found_in_their_area_alone() {
        let of = |file: &str| {
            let areas = AREAS.iter().filter(|area| area.has(file));
            areas.map(|area| area.name).collect::<Vec<_>>()
        };
        assert_eq!(of("crates/collection/src/lib.rs"), ["collection"]);
        assert_eq!(of("crates/storage/src/replica/shared_store.rs"), ["replica"]);
        assert_eq!(of("hub-client/src/replicas/follower.rs"), ["replicas"]);
        assert!(of("crates/collections/src/lib.rs").is_empty());
    }
}
