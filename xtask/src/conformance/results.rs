//! Runs the tests that claim cases and collects their results.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use serde_json::Value;
use yurt_workspace::programs;

use super::claims::Claim;
use crate::interop;

/// Result of one test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Passed,
    Failed,
    /// Not run, or skipped by itself.
    NotRun,
}

/// Results of all tests, by the folder of their package and their name.
#[derive(Default)]
pub(super) struct Results {
    by_test: BTreeMap<(String, String), Outcome>,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Passed => "pass",
            Self::Failed => "FAIL",
            Self::NotRun => "not run",
        })
    }
}

// === impl Results ===

impl Results {
    /// Runs every package with a claim.
    pub(super) fn of(claims: &[Claim], skip_interop: bool) -> Result<Self> {
        let mut results = Self::default();
        let mut tests: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
        for claim in claims {
            tests.entry(folder(claim)).or_default().insert(&claim.test);
        }
        for (place, names) in &tests {
            if place != programs::INTEROP {
                results.note_rust(place, &run_rust(place)?);
            } else if !skip_interop {
                results.note_go(place, &output_of(&mut interop::test_events(names)?)?);
            }
        }
        Ok(results)
    }

    /// Result of the test of a claim. If a package has several tests of one name, all have to pass.
    pub(super) fn outcome(&self, claim: &Claim) -> Outcome {
        let key = (folder(claim), claim.test.clone());
        self.by_test.get(&key).copied().unwrap_or(Outcome::NotRun)
    }

    fn note(&mut self, place: &str, name: &str, outcome: Outcome) {
        let key = (place.to_owned(), name.to_owned());
        let entry = self.by_test.entry(key).or_insert(outcome);
        if outcome == Outcome::Failed {
            *entry = outcome;
        }
    }

    /// Reads lines of libtest: `test module::name ... ok`.
    fn note_rust(&mut self, place: &str, output: &str) {
        for line in output.lines() {
            let Some((path, verdict)) = line.strip_prefix("test ").and_then(|rest| rest.rsplit_once(" ... ")) else {
                continue;
            };
            let path = path.strip_suffix(" - should panic").unwrap_or(path);
            let name = path.rsplit("::").next().unwrap_or(path);
            let outcome = match verdict {
                "ok" => Outcome::Passed,
                _ if verdict.starts_with("ignored") => Outcome::NotRun,
                _ => Outcome::Failed,
            };
            self.note(place, name, outcome);
        }
    }

    /// Reads events of `go test -json`.
    fn note_go(&mut self, place: &str, output: &str) {
        for event in output
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        {
            let outcome = match event["Action"].as_str() {
                Some("pass") => Outcome::Passed,
                Some("fail") => Outcome::Failed,
                Some("skip") => Outcome::NotRun,
                _ => continue,
            };
            if let Some(name) = event["Test"].as_str() {
                self.note(place, name, outcome);
            }
        }
    }
}

/// Runs all tests of a package; returns their output.
fn run_rust(place: &str) -> Result<String> {
    println!("   running the tests of {place}");
    let mut command = yurt_workspace::cargo();
    command
        .args(["test", "--no-fail-fast", "--manifest-path"])
        .arg(yurt_workspace::root()?.join(place).join("Cargo.toml"));
    if let Some(etcd) = interop::etcd()? {
        command
            .env(interop::ETCD_VARIABLE, etcd)
            .args(["--", "--include-ignored"]);
    }
    output_of(&mut command)
}

/// Returns the output of a run of tests, successful or not, and prints its progress. Other output stays on the screen.
fn output_of(command: &mut Command) -> Result<String> {
    let mut child = command.stdout(Stdio::piped()).spawn().context("cannot run tests")?;
    let (mut text, mut finished) = (String::new(), 0_usize);
    for line in BufReader::new(child.stdout.take().context("no output")?).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        if is_end_of_test(&line) {
            finished += 1;
            if finished.is_multiple_of(TOLD_EVERY) {
                println!("     {finished} tests");
            }
        }
        if line.ends_with(" ... FAILED") {
            println!("     {line}");
        }
        text.push_str(&line);
        text.push('\n');
    }
    child.wait()?;
    println!("     {finished} tests");
    Ok(text)
}

/// Tests between two progress lines.
const TOLD_EVERY: usize = 50;

/// True if a line, of libtest or of `go test -json`, has the result of a test.
fn is_end_of_test(line: &str) -> bool {
    let go = ["pass", "fail", "skip"].map(|action| format!("\"Action\":\"{action}\""));
    (line.starts_with("test ") && line.contains(" ... ")) || go.iter().any(|action| line.contains(action.as_str()))
}

/// The package a test is in: `crates/storage`, `coordinator`, `interop`.
fn folder(claim: &Claim) -> String {
    let mut parts = claim.file.split('/');
    let first = parts.next().unwrap_or_default();
    match (first, parts.next()) {
        ("crates", Some(name)) => format!("crates/{name}"),
        _ => first.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(file: &str, test: &str) -> Claim {
        Claim {
            file: file.into(),
            test: test.into(),
            ids: Vec::new(),
        }
    }

    #[test]
    fn outcomes_are_read_from_both_test_runners() {
        let mut results = Results::default();
        results.note_rust(
            "crates/x",
            "test a::good ... ok\ntest b::bad ... FAILED\ntest c::late ... ignored, slow\n",
        );
        results.note_go(
            "interop",
            "{\"Action\":\"pass\",\"Test\":\"TestX\"}\n{\"Action\":\"output\"}\nnot json\n",
        );
        let outcome = |file, test| results.outcome(&claim(file, test));
        assert_eq!(outcome("crates/x/src/a.rs", "good"), Outcome::Passed);
        assert_eq!(outcome("crates/x/src/b.rs", "bad"), Outcome::Failed);
        assert_eq!(outcome("crates/x/src/c.rs", "late"), Outcome::NotRun);
        assert_eq!(outcome("interop/tests/x_test.go", "TestX"), Outcome::Passed);
        assert_eq!(outcome("coordinator/src/a.rs", "good"), Outcome::NotRun);
    }
}
