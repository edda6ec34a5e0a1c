//! Every test that a table of the documentation names exists: documentation must not refer to removed tests.
//!
//! The check reads columns headed by one of [`COLUMNS`]. In such a column, every text between backticks that could be
//! the name of a test must be one. Commands and paths are skipped.

use std::collections::BTreeSet;

use anyhow::Result;

use super::{Subject, Tree, Violation};
use crate::conformance::function_name;

/// Heads of columns that name tests.
const COLUMNS: &[&str] = &["test", "can fail", "shown for good by"];

/// Functions of this module are the contract of a store; each store lists the ones it keeps, as tests.
const CONTRACT: &str = "crates/storage/src/contract";

pub(super) fn check(subject: &Subject) -> Result<Vec<Violation>> {
    let tests = tests(&subject.tree);
    let pages = subject.tree.with_extension("md");
    Ok(pages
        .flat_map(|(page, text)| named(text).map(move |(line, name)| (page, line, name)))
        .filter(|(_, _, name)| !tests.contains(name))
        .map(|(page, line, name)| Violation::new(format!("{page}:{line}"), format!("there is no test `{name}`")))
        .collect())
}

/// Line and name of every test that a table names.
fn named(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut column = None;
    text.lines().zip(1..).flat_map(move |(line, number)| {
        let Some(row) = line.strip_prefix('|') else {
            column = None;
            return Vec::new();
        };
        let mut cells = row.split('|').map(str::trim);
        match column {
            Some(index) => {
                let cell = cells.nth(index).unwrap_or_default();
                // Every second piece between backticks is code.
                let code = cell.split('`').skip(1).step_by(2);
                code.filter(|code| is_name(code)).map(|name| (number, name)).collect()
            }
            None => {
                column = cells.position(|head| COLUMNS.contains(&head));
                Vec::new()
            }
        }
    })
}

/// Test functions are called in at least two words, or `Test…`.
fn is_name(code: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    code.chars().all(is_word) && (code.contains('_') || code.starts_with("Test"))
}

fn tests(tree: &Tree) -> BTreeSet<&str> {
    let rust = tree.with_extension("rs").flat_map(|(path, text)| {
        let mut is_test = path.starts_with(CONTRACT);
        text.lines().map(str::trim).filter_map(move |line| {
            is_test |= line == "#[test]" || line.starts_with("#[tokio::test");
            let name = function_name(line, "fn ").filter(|_| is_test)?;
            is_test = path.starts_with(CONTRACT);
            Some(name)
        })
    });
    let go = tree.with_extension("go").flat_map(|(_, text)| {
        let functions = text.lines().filter_map(|line| function_name(line, "func "));
        functions.filter(|name| name.starts_with("Test"))
    });
    rust.chain(go).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_tests_that_do_not_exist_are_found() {
        let page = "| id | test | result |\n|---|---|---|\n| A | `that_passes`, `TestX` | `not_looked_at` |\n\
                    | B | `that_is_gone`, `TestGone`, `cargo xtask chaos`, `a/b_c` | |\n\n| id | what |\n|---|---|\n| `some_thing` | |\n";
        let rust = "#[tokio::test(start_paused = true)]\n/// Why.\nasync fn that_passes() {}\nfn that_is_gone() {}\n";
        let go = "func TestX(t *testing.T) {\n";
        let subject = Subject::of_files(&[("docs/a.md", page), ("a.rs", rust), ("b_test.go", go)]);
        let found: Vec<String> = check(&subject)
            .expect("the check runs")
            .into_iter()
            .map(|violation| violation.to_string())
            .collect();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("docs/a.md:4") && found[0].contains("that_is_gone"));
        assert!(found[1].contains("TestGone"));
    }

    #[test]
    fn functions_of_the_contract_are_tests_of_the_stores() {
        let page = "| test |\n|---|\n| `is_kept` |\n";
        let subject = |path| Subject::of_files(&[("a.md", page), (path, "pub async fn is_kept() {}\n")]);
        assert_eq!(
            check(&subject("crates/storage/src/contract/a.rs")).expect("the check runs"),
            []
        );
        assert_eq!(check(&subject("b.rs")).expect("the check runs").len(), 1);
    }
}
