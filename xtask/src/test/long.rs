//! Long runs: checks and measurements that do not fit into the budget of `cargo xtask test`.
//!
//! The same names and commands are the table "Long runs" of `docs/TESTING.md`, which adds the date each last passed.

use std::process::Command;

use anyhow::{Result, bail};
use yurt_workspace::{Stopwatch, command};

/// One long run.
struct LongRun {
    name: &'static str,
    /// Line for a shell, from the root of the repository.
    command: &'static str,
}

/// All long runs, in the order of the table.
const RUNS: [LongRun; 19] = [
    LongRun::new("faults", "cargo xtask chaos --long --hours 3"),
    LongRun::new("faults-etcd", "cargo xtask chaos --only processes --minutes 30 --etcd"),
    LongRun::new(
        "faults-links",
        "cargo xtask chaos --only processes --minutes 30 --links",
    ),
    LongRun::new("faults-real", "cargo xtask chaos --only processes --minutes 30 --real"),
    LongRun::new("links", "cargo xtask links && cargo xtask links --real"),
    LongRun::new("soak", "cargo xtask soak --minutes 12"),
    LongRun::new(
        "hub-writes",
        "YURT_EVERY_WRITE=1 cargo test -p yurt-hub-client --test hub power_cuts",
    ),
    LongRun::new(
        "hub-flaps",
        "YURT_CUTS=3000 cargo test -p yurt-hub-client --test hub -- --nocapture thousands_of_flaps",
    ),
    LongRun::new(
        "nodes",
        "YURT_SOAK_NODES=50 YURT_SOAK_MINUTES=10 cargo xtask test --only interop --run TestNodesSoak",
    ),
    LongRun::new(
        "informers",
        "YURT_FILTER_HISTORIES=1000 cargo xtask test --only interop --run TestFilteredInformers",
    ),
    LongRun::new("differential", "cargo xtask differential"),
    LongRun::new("differential-etcd", "cargo xtask differential -- -etcd"),
    LongRun::new(
        "release",
        "cargo test --release --lib -p yurt-apimachinery -p yurt-codec -p yurt-patch -p yurt-collection \
         --config profile.release.lto=false",
    ),
    LongRun::new("mutants", "cargo xtask mutants"),
    LongRun::new("fuzz", "cargo xtask fuzz --seconds 600"),
    LongRun::new("scale", "cargo xtask scale --hubs 1000"),
    LongRun::new("bench", "cargo xtask bench --update docs/PERFORMANCE.md"),
    LongRun::new("bench-hub", "cargo xtask bench-hub --update docs/PERFORMANCE.md"),
    LongRun::new("bench-pool", "cargo xtask bench-pool --update docs/PERFORMANCE.md"),
];

/// Name that stands for every run.
const ALL: &str = "all";

/// Runs those with the given names, one after the other, up to the first that fails. Without a name it prints the list.
///
/// # Errors
/// A name is unknown, or a run failed.
pub(super) fn run(names: &[String]) -> Result<()> {
    if names.is_empty() {
        for run in &RUNS {
            println!("{:18} {}", run.name, run.command);
        }
        println!("{ALL:18} every run, in this order");
        return Ok(());
    }
    let mut chosen = Vec::new();
    for name in names {
        match RUNS.iter().find(|run| run.name == name) {
            Some(run) => chosen.push(run),
            None if name == ALL => chosen.extend(&RUNS),
            None => bail!("--long {name}: no such run; `cargo xtask test --long` lists them"),
        }
    }
    for run in chosen {
        println!("\n== {} ==\n{}", run.name, run.command);
        let watch = Stopwatch::start();
        let mut shell = Command::new("sh");
        shell.args(["-c", run.command]).current_dir(yurt_workspace::root()?);
        command::run(&mut shell)?;
        println!("== {}: ok ({watch})", run.name);
    }
    Ok(())
}

// === impl LongRun ===

impl LongRun {
    const fn new(name: &'static str, command: &'static str) -> Self {
        Self { name, command }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_of_the_document_has_each_run_with_its_command() {
        let document = std::fs::read_to_string(yurt_workspace::root().unwrap().join("docs/TESTING.md")).unwrap();
        let (_, section) = document.split_once("\n## Long runs\n").unwrap();
        let (section, _) = section.split_once("\n## ").unwrap();
        let rows: Vec<&str> = section.lines().filter(|line| line.starts_with("| `")).collect();
        let listed: Vec<String> = RUNS
            .iter()
            .map(|run| format!("| `{}` | `{}` |", run.name, run.command))
            .collect();
        for (row, run) in rows.iter().zip(&listed) {
            assert!(row.starts_with(run), "row {row}, run {run}");
        }
        assert_eq!(rows.len(), listed.len());
    }

    #[test]
    fn unknown_name_is_an_error_before_anything_runs() {
        let error = run(&["soak".to_owned(), "no-such-run".to_owned()]).unwrap_err();
        assert!(error.to_string().contains("no-such-run"), "{error}");
    }
}
