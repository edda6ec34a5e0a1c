//! A file has at most 600 lines without its tests; the exceptions are in a list that may only shrink. A comment has at
//! most 120 columns.
//!
//! clippy checks functions (at most 70 lines), see `clippy.toml`.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;

use super::{Subject, Violation};
use crate::rust_text;

/// Most lines of a file that are not tests.
const LINES_MAX: usize = 600;

/// Widest comment, in columns. rustfmt wraps code at this width, and no comments.
const COLUMNS_MAX: usize = 120;

/// Exceptions, one per line: `path lines`. The number is exact, so a file that shrinks reduces its exception.
const RATCHET: &str = "xtask/length-ratchet.txt";

pub(super) fn check(subject: &Subject) -> Result<Vec<Violation>> {
    let mut allowed = exceptions(subject.tree.text(RATCHET).unwrap_or_default());
    let mut found = Vec::new();
    for (path, text) in subject.tree.with_extension("rs") {
        found.extend(wide_comments(path, text));
        let lines = if is_test_file(path) {
            0
        } else {
            lines_without_tests(text)
        };
        match allowed.remove(path) {
            None if lines > LINES_MAX => found.push(Violation::new(
                path,
                format!("{lines} lines without tests, {LINES_MAX} are allowed; split it by noun"),
            )),
            Some(limit) if lines > limit => {
                found.push(Violation::new(
                    path,
                    format!("grew from {limit} to {lines} lines; it may only shrink"),
                ));
            }
            Some(_) if lines <= LINES_MAX => {
                found.push(Violation::new(
                    RATCHET,
                    format!("{path} is short enough now; delete its line"),
                ));
            }
            Some(limit) if lines < limit => {
                found.push(Violation::new(
                    RATCHET,
                    format!("{path} shrank; write {lines} instead of {limit}"),
                ));
            }
            _ => {}
        }
    }
    found.extend(
        allowed
            .into_keys()
            .map(|path| Violation::new(RATCHET, format!("{path} is gone; delete its line"))),
    );
    Ok(found)
}

/// The lines of prose in comments that are wider than [`COLUMNS_MAX`]. Code, drawings, tables and single words, as of a
/// link, cannot be wrapped.
fn wide_comments(path: &str, text: &str) -> Vec<Violation> {
    let mut is_code = false;
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        let Some(comment) = trimmed.strip_prefix("//") else {
            is_code = false;
            continue;
        };
        let prose = comment.trim_start_matches(['/', '!']).trim_start();
        is_code ^= prose.starts_with("```");
        let can_wrap = !is_code && !prose.starts_with('|') && prose.contains(' ');
        if can_wrap && line.chars().count() > COLUMNS_MAX {
            let place = format!("{path}:{}", number + 1);
            found.push(Violation::new(
                place,
                format!("a comment over {COLUMNS_MAX} columns; wrap it"),
            ));
        }
    }
    found
}

/// The ratchet file: blank lines and `#` comments are skipped; a line without a number allows nothing.
fn exceptions(text: &str) -> BTreeMap<String, usize> {
    let lines = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (path, lines) = line.rsplit_once(' ').unwrap_or((line, ""));
            (path.trim().to_owned(), lines.parse().unwrap_or(0))
        })
        .collect()
}

/// True for a file that contains tests only.
pub(super) fn is_test_file(path: &str) -> bool {
    let path = Path::new(path);
    let in_tests_folder = path
        .components()
        .any(|part| matches!(part.as_os_str().to_str(), Some("tests" | "testing")));
    in_tests_folder || path.file_stem().is_some_and(|stem| stem == "tests")
}

fn lines_without_tests(text: &str) -> usize {
    let code = rust_text::code_only(text);
    let total = text.lines().count();
    let line_of = |offset| rust_text::line_of(&code, offset);
    let in_tests = rust_text::test_modules(&code)
        .into_iter()
        .map(|range| line_of(range.end) - line_of(range.start) + 1);
    total.saturating_sub(in_tests.sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(files: &[(&str, &str)]) -> Vec<String> {
        check(&Subject::of_files(files))
            .expect("the check runs")
            .into_iter()
            .map(|v| v.to_string())
            .collect()
    }

    #[test]
    fn the_limit_counts_lines_without_the_tests() {
        let long = "x\n".repeat(LINES_MAX + 1);
        let tested = format!(
            "{}#[cfg(test)]\nmod tests {{\n{}}}\n",
            "x\n".repeat(LINES_MAX),
            "y\n".repeat(300)
        );
        assert_eq!(lines_without_tests(&tested), LINES_MAX);
        let found = problems(&[
            ("a.rs", &long),
            ("b.rs", &tested),
            ("b/tests.rs", &long),
            ("tests/c.rs", &long),
        ]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("a.rs: 601 lines"), "{found:?}");
    }

    #[test]
    fn a_comment_has_a_widest_line() {
        let words = "a ".repeat(COLUMNS_MAX / 2);
        let lines = [
            format!("let a = \"{words}\"; // x"),
            format!("//! {}b", "a ".repeat((COLUMNS_MAX - 5) / 2)),
            format!("/// <https://{}>", "a".repeat(COLUMNS_MAX)),
            format!("/// | {words} |"),
            "/// ```".to_owned(),
            format!("/// {words}"),
            "/// ```".to_owned(),
            format!("/// {words}"),
        ];
        let found = problems(&[("a.rs", &lines.join("\n"))]);
        assert_eq!(found, ["a.rs:8: a comment over 120 columns; wrap it"]);
    }

    #[test]
    fn the_ratchet_lets_a_file_shrink_and_never_grow() {
        let file = |lines: usize| "x\n".repeat(lines);
        assert!(problems(&[("a.rs", &file(700)), (RATCHET, "# why\na.rs 700\n")]).is_empty());
        assert!(problems(&[("a.rs", &file(701)), (RATCHET, "a.rs 700")])[0].contains("may only shrink"));
        assert!(problems(&[("a.rs", &file(650)), (RATCHET, "a.rs 700")])[0].contains("write 650"));
        assert!(problems(&[("a.rs", &file(600)), (RATCHET, "a.rs 700")])[0].contains("delete its line"));
        assert!(problems(&[(RATCHET, "a.rs 700")])[0].contains("is gone"));
    }

    #[test]
    fn a_declared_test_module_hides_nothing() {
        let text = format!("#[cfg(test)]\nmod tests;\nfn a() {{\n{}}}\n", "x\n".repeat(10));
        assert_eq!(lines_without_tests(&text), 14);
    }
}
