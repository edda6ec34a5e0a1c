//! No machine paths and no unfinished code get into the repository.
//!
//! Paths are forbidden in every text file; Rust words only in code, so that prose may mention a rule.

use anyhow::Result;

use super::{Subject, Violation};
use crate::rust_text;

/// Paths of the machine something was written on. Spelled in two halves so that this file does not contain them.
const MACHINE_PATHS: &[&str] = &[concat!("/wo", "rk/"), concat!("/tmp/bash", "_jobs")];

/// Prefixes of lines that an unresolved merge leaves behind.
const MARKERS: &[&str] = &[concat!("<<<<", "<<< "), concat!(">>>>", ">>> ")];

/// Code that must not be committed, and the alternative.
const UNFINISHED: &[(&str, &str)] = &[
    (concat!("thread::", "sleep"), "wait for the condition, with a limit"),
    (concat!("#[ig", "nore"), "fix the test or delete it"),
    (
        concat!("unimple", "mented!("),
        "write it, or leave the seam without code",
    ),
    (concat!("to", "do!("), "write it, or leave the seam without code"),
];

/// Allowed attributes of a test that needs more than cargo: the interop step runs those, elsewhere they are ignored.
const NEEDS: [&str; 2] = [
    concat!("#[ig", "nore = \"needs an etcd\"]"),
    concat!("#[ig", "nore = \"needs to mount a file system\"]"),
];

/// Files whose text is not ours.
fn is_exempt(path: &str) -> bool {
    path.ends_with("Cargo.lock") || path.ends_with("go.sum") || path.split('/').any(|part| part == "testdata")
}

pub(super) fn check(subject: &Subject) -> Result<Vec<Violation>> {
    let files = subject.tree.texts().filter(|(path, _)| !is_exempt(path));
    Ok(files.flat_map(|(path, text)| violations(path, text)).collect())
}

fn violations(path: &str, text: &str) -> Vec<Violation> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for word in MACHINE_PATHS.iter().filter(|word| line.contains(**word)) {
            found.push(Violation::new(
                format!("{path}:{}", number + 1),
                format!("`{word}` exists on one machine only"),
            ));
        }
        if MARKERS.iter().any(|marker| line.starts_with(marker)) {
            let place = format!("{path}:{}", number + 1);
            found.push(Violation::new(
                place,
                "an unresolved merge conflict: choose a side".to_owned(),
            ));
        }
    }
    if path.ends_with(".rs") {
        let code = rust_text::code_only(text);
        let lines = code.lines().zip(text.lines()).enumerate();
        for (number, (line, _)) in lines.filter(|(_, (_, whole))| !NEEDS.contains(&whole.trim())) {
            for (word, instead) in UNFINISHED.iter().filter(|(word, _)| line.contains(word)) {
                found.push(Violation::new(
                    format!("{path}:{}", number + 1),
                    format!("`{word}`: {instead}"),
                ));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(files: &[(&str, &str)]) -> Vec<String> {
        check(&Subject::of_files(files))
            .expect("the check runs")
            .into_iter()
            .map(|v| v.place)
            .collect()
    }

    #[test]
    fn what_a_merge_left_behind_is_found() {
        for marker in MARKERS {
            let text = format!("one\n{marker}HEAD\n");
            assert_eq!(places(&[("docs/a.md", &text)]), ["docs/a.md:2"]);
        }
    }

    #[test]
    fn machine_paths_are_found_in_any_file_but_testdata() {
        for word in MACHINE_PATHS {
            let text = format!("first\ncd {word}main\n");
            assert_eq!(
                places(&[("a.md", &text), ("x/testdata/a.md", &text), ("Cargo.lock", &text)]),
                ["a.md:2"],
                "{word}"
            );
        }
    }

    #[test]
    fn only_tests_that_need_more_than_cargo_may_wait_for_another_step() {
        let [etcd, mount] = NEEDS;
        let code = format!("//! Header.\n{etcd}\n{mount}\n{}\n", etcd.replace("an etcd", "time"));
        assert_eq!(places(&[("a.rs", &code)]), ["a.rs:4"]);
    }

    #[test]
    fn unfinished_words_are_found_in_code_and_not_in_prose() {
        for (word, _) in UNFINISHED {
            let code = format!("//! Header.\nfn a() {{ {word} }}\n");
            let prose = format!("//! We do not use {word}.\nconst A: &str = \"{word}\";\n");
            assert_eq!(
                places(&[("a.rs", &code), ("b.rs", &prose), ("c.md", &prose)]),
                ["a.rs:2"],
                "{word}"
            );
        }
    }
}
