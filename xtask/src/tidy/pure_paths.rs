//! Modules that are declared pure stay pure: they take the time, randomness and bytes as arguments.
//!
//! A decision that reads no clock and does no I/O can be tested by a plain `#[test]` and explored by a model checker.

use anyhow::Result;

use super::{Subject, Violation};
use crate::rust_text;

/// Path prefixes of the pure modules. `…/name` covers `name.rs` and everything below `name/`.
const PURE: &[&str] = &[
    "crates/apiextensions/src/",
    "crates/apimachinery/src/",
    "crates/codec/src/",
    "crates/collection/src/",
    "crates/patch/src/",
    "crates/pool-protocol/src/",
    "coordinator/src/forgery/reports",
    "hub-client/src/cache/limits",
    "hub-client/src/cache/references",
    "hub-client/src/filter",
    "hub-client/src/identity/csr",
    "hub-client/src/identity/plan",
    "hub-client/src/offline/events/queue",
    "hub-client/src/offline/kept_read",
    "hub-client/src/offline/own/merge",
    "hub-client/src/offline/own/write",
    "hub-client/src/offline/record",
    "hub-client/src/offline/tokens/claims",
    "hub-client/src/replicas/warnings",
];

/// Names that a pure module must not use, and the alternative.
const IMPURE: &[(&str, &str)] = &[
    (".await", "return a decision, let the driver wait"),
    ("tokio::", "return a decision, let the driver do the I/O"),
    ("Instant::now", "take the time as an argument"),
    ("SystemTime::now", "take the time as an argument"),
    ("std::fs", "take the bytes as an argument"),
    ("std::net", "take the bytes as an argument"),
    ("rand::", "take the randomness as an argument"),
    ("getrandom", "take the randomness as an argument"),
];

pub(super) fn check(subject: &Subject) -> Result<Vec<Violation>> {
    let pure = subject.tree.with_extension("rs").filter(|(path, _)| is_pure(path));
    Ok(pure.flat_map(|(path, text)| violations(path, text)).collect())
}

fn is_pure(path: &str) -> bool {
    PURE.iter().any(|prefix| {
        path.strip_prefix(prefix)
            .is_some_and(|rest| prefix.ends_with('/') || rest.starts_with('/') || rest == ".rs")
    })
}

fn violations(path: &str, text: &str) -> Vec<Violation> {
    let code = rust_text::code_only(text);
    let mut found = Vec::new();
    for (number, line) in code.lines().enumerate() {
        for (word, instead) in IMPURE.iter().filter(|(word, _)| names(line, word)) {
            found.push(Violation::new(
                format!("{path}:{}", number + 1),
                format!("`{word}` in a pure module; {instead}"),
            ));
        }
    }
    found
}

/// True if `line` contains `word` as a whole path segment: `operand::x` does not name `rand::`.
fn names(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        word.starts_with('.') || !before.is_some_and(|c| c.is_alphanumeric() || c == '_')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_impure_word_is_found_in_every_pure_place() {
        for place in [
            "crates/apimachinery/src/a/b.rs",
            "crates/collection/src/reader.rs",
            "hub-client/src/filter/x.rs",
        ] {
            for (word, _) in IMPURE {
                let text = format!("//! Header.\nuse x;\nlet a = {word}();\n");
                let found = check(&Subject::of_files(&[(place, &text)])).expect("the check runs");
                assert_eq!(
                    found.first().map(|v| v.place.clone()),
                    Some(format!("{place}:3")),
                    "{word}"
                );
            }
        }
    }

    #[test]
    fn comments_neighbours_and_other_modules_are_left_alone() {
        let files = [
            (
                "crates/apimachinery/src/a.rs",
                "//! Never calls std::fs.\nuse operand::x; // no .await\n",
            ),
            ("crates/collections/src/lib.rs", "use std::fs;"),
            ("hub-client/src/pool/election/driver.rs", "use tokio::time;"),
        ];
        assert_eq!(check(&Subject::of_files(&files)).expect("the check runs"), []);
    }
}
