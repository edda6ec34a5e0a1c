//! Summary of `go test -json`: a line for each test that ended, and the complete output of a failed one. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// Running tests, and their output so far.
#[derive(Default)]
pub(super) struct Events {
    /// By package and test, subtests with their test; a package's own output under no test.
    said: BTreeMap<(String, String), String>,
    running: BTreeSet<String>,
    ended: usize,
}

/// Bytes of output that are kept for one test; the rest is left out.
const SAID_MAX: usize = 1 << 20;

// === impl Events ===

impl Events {
    /// Takes one line; returns the text to print for it, with line ends.
    pub(super) fn take(&mut self, line: &str) -> String {
        let Ok(event) = serde_json::from_str::<Value>(line) else {
            // The compiler's output is no event.
            return format!("{line}\n");
        };
        let text = |name: &str| event[name].as_str().unwrap_or_default();
        let (action, package, path) = (text("Action"), text("Package"), text("Test"));
        let (test, is_part) = match path.split_once('/') {
            Some((test, _)) => (test, true),
            None => (path, false),
        };
        let key = (package.to_owned(), test.to_owned());
        match action {
            "build-output" => return text("Output").to_owned(),
            "output" => {
                let said = self.said.entry(key).or_default();
                if said.len() < SAID_MAX {
                    said.push_str(text("Output"));
                }
                return String::new();
            }
            _ if is_part => return String::new(),
            "run" | "cont" => drop(self.running.insert(test.to_owned())),
            "pause" => drop(self.running.remove(test)),
            "pass" | "skip" | "fail" => return self.end(&key, action, event["Elapsed"].as_f64().unwrap_or(0.0)),
            _ => {}
        }
        String::new()
    }

    /// Progress of the tests.
    pub(super) fn progress(&self) -> String {
        let running: Vec<&str> = self.running.iter().map(String::as_str).collect();
        let running = if running.is_empty() {
            "being built".to_owned()
        } else {
            running.join(", ")
        };
        format!("{} tests ended; now: {running}", self.ended)
    }

    fn end(&mut self, key: &(String, String), action: &str, seconds: f64) -> String {
        let said = self.said.remove(key).unwrap_or_default();
        let (package, test) = key;
        if test.is_empty() {
            // Output of the package, which says whether all of it passed.
            return said;
        }
        self.running.remove(test);
        self.ended += 1;
        let said = if action == "fail" { said } else { String::new() };
        format!("{said}   {action} {test} ({seconds:.1} s, {package})\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(action: &str, test: &str, output: &str) -> String {
        serde_json::json!({"Action": action, "Package": "p", "Test": test, "Output": output, "Elapsed": 1.25})
            .to_string()
    }

    #[test]
    fn only_failed_tests_are_told_with_their_words() {
        let mut events = Events::default();
        let mut told = String::new();
        for line in [
            event("run", "TestGood", ""),
            event("output", "TestGood", "fine\n"),
            event("run", "TestBad", ""),
            event("run", "TestBad/part", ""),
            event("output", "TestBad/part", "want 1, got 2\n"),
            event("fail", "TestBad/part", ""),
            event("pass", "TestGood", ""),
            event("fail", "TestBad", ""),
            "p/x.go:1: undefined: y".to_owned(),
        ] {
            told.push_str(&events.take(&line));
        }
        assert_eq!(
            told,
            "   pass TestGood (1.2 s, p)\nwant 1, got 2\n   fail TestBad (1.2 s, p)\np/x.go:1: undefined: y\n"
        );
    }

    #[test]
    fn progress_names_what_runs_and_not_what_waits_for_its_turn() {
        let mut events = Events::default();
        assert_eq!(events.progress(), "0 tests ended; now: being built");
        for (action, test) in [
            ("run", "TestA"),
            ("pause", "TestA"),
            ("run", "TestB"),
            ("run", "TestC"),
            ("skip", "TestC"),
        ] {
            events.take(&event(action, test, ""));
        }
        assert_eq!(events.progress(), "1 tests ended; now: TestB");
        events.take(&event("cont", "TestA", ""));
        assert_eq!(events.progress(), "1 tests ended; now: TestA, TestB");
    }

    #[test]
    fn words_of_a_package_are_told_at_its_end() {
        let mut events = Events::default();
        assert_eq!(events.take(&event("output", "", "panic: test timed out\n")), "");
        assert_eq!(events.take(&event("fail", "", "")), "panic: test timed out\n");
    }
}
