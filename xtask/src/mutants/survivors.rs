//! Mutants by their results, and the table of those that may survive. Pure, but for the reading of files.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// A mutant without its line, which moves with every edit: `crates/…/timeline.rs: replace Past::len -> usize with 0`.
pub(super) type Name = String;

/// Results of the mutants of a run.
#[derive(Debug, Default)]
pub(super) struct Names {
    caught: Vec<Name>,
    /// No test failed.
    missed: Vec<Name>,
    /// The tests hung, which counts as caught.
    timeout: Vec<Name>,
    /// They do not compile.
    unviable: Vec<Name>,
}

/// The table of survivors, with a reason each.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Table(BTreeMap<Name, String>);

/// The heading above the table.
const HEADING: &str = "## Survivors, with a reason each";

/// `file:12:5: replace …` without the numbers.
fn name(line: &str) -> Name {
    let mut parts = line.splitn(4, ':');
    let (file, numbers) = (parts.next(), [parts.next(), parts.next()]);
    let is_number = |part: &Option<&str>| part.is_some_and(|part| part.parse::<u32>().is_ok());
    match (file, parts.next()) {
        (Some(file), Some(what)) if numbers.iter().all(is_number) => format!("{file}:{what}"),
        _ => line.to_owned(),
    }
}

// === impl Names ===

impl Names {
    /// Reads the results that cargo-mutants left in its folder, also after an early end.
    pub(super) fn read(folder: &Path) -> Result<Self> {
        let read = |file: &str| {
            let path = folder.join(file);
            let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            Ok::<_, anyhow::Error>(text.lines().map(name).collect())
        };
        Ok(Self {
            caught: read("caught.txt")?,
            missed: read("missed.txt")?,
            timeout: read("timeout.txt")?,
            unviable: read("unviable.txt")?,
        })
    }

    pub(super) fn add(&mut self, more: Self) {
        self.caught.extend(more.caught);
        self.missed.extend(more.missed);
        self.timeout.extend(more.timeout);
        self.unviable.extend(more.unviable);
    }

    /// Number of mutants with a result.
    pub(super) fn count(&self) -> usize {
        self.caught.len() + self.missed.len() + self.timeout.len()
    }

    fn has_caught(&self, name: &Name) -> bool {
        self.caught.contains(name) || self.timeout.contains(name)
    }
}

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} mutants: {} caught, {} timed out, {} survived; {} do not compile",
            self.count(),
            self.caught.len(),
            self.timeout.len(),
            self.missed.len(),
            self.unviable.len()
        )
    }
}

// === impl Table ===

impl Table {
    /// Reads the rows `| file | mutation | reason |` below the heading.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let (_, below) = text
            .split_once(HEADING)
            .with_context(|| format!("no heading {HEADING:?}"))?;
        let mut entries = BTreeMap::new();
        for line in below.lines().skip(1).take_while(|line| !line.starts_with('#')) {
            let Some(cells) = line.strip_prefix('|').and_then(|line| line.strip_suffix('|')) else {
                continue;
            };
            // A mutation may have a bar of its own (`||`), which a table has to escape.
            let cells = cells.replace("\\|", "\u{0}");
            let cells: Vec<String> = cells.split('|').map(|cell| cell.trim().replace('\u{0}', "|")).collect();
            let [file, mutation, reason] = &cells[..] else {
                continue;
            };
            let (Some(file), Some(mutation)) = (code(file), code(mutation)) else {
                // The head of the table.
                continue;
            };
            ensure!(!reason.is_empty(), "{file}: {mutation}: a survivor needs a reason");
            entries.insert(format!("{file}: {mutation}"), reason.clone());
        }
        Ok(Self(entries))
    }

    /// Survivors that the table does not excuse.
    pub(super) fn missing(&self, found: &Names) -> BTreeSet<Name> {
        let survivors = found.missed.iter().filter(|name| !self.0.contains_key(*name));
        survivors.cloned().collect()
    }

    /// Entries whose mutants were all caught.
    pub(super) fn caught_by_now(&self, found: &Names) -> Vec<&Name> {
        let caught = |name: &&Name| found.has_caught(name) && !found.missed.contains(name);
        self.0.keys().filter(caught).collect()
    }

    /// Entries without a mutant, after a run of everything.
    pub(super) fn gone(&self, found: &Names) -> Vec<&Name> {
        let is_gone = |name: &&Name| !found.has_caught(name) && !found.missed.contains(name);
        self.0.keys().filter(is_gone).collect()
    }
}

/// The text between backticks.
fn code(cell: &str) -> Option<&str> {
    cell.strip_prefix('`')?.strip_suffix('`')
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# T\n\n## Survivors, with a reason each\n\nWords.\n\n| file | mutation | reason |\n|---|---|---|\n\
        | `a.rs` | `replace A::b -> bool with true` | only a debug assertion asks |\n\
        | `a.rs` | `replace && with \\|\\| in A::c` | the same by the invariant of `A` |\n\n## Next\n\n| `x.rs` | `y` | z |\n";

    fn names(caught: &[&str], missed: &[&str], timeout: &[&str]) -> Names {
        let all = |lines: &[&str]| lines.iter().map(|line| name(line)).collect();
        Names {
            caught: all(caught),
            missed: all(missed),
            timeout: all(timeout),
            unviable: Vec::new(),
        }
    }

    #[test]
    fn mutants_are_known_without_their_line() {
        assert_eq!(
            name("a/b.rs:12:5: replace A::b -> bool with true"),
            "a/b.rs: replace A::b -> bool with true"
        );
        assert_eq!(name("nothing like it"), "nothing like it");
    }

    #[test]
    fn survivor_without_an_entry_is_missing_from_the_table() {
        let table = Table::parse(TEXT).expect("a table");
        let found = names(
            &["a.rs:9:1: replace A::d with ()"],
            &[
                "a.rs:1:2: replace A::b -> bool with true",
                "a.rs:7:7: replace && with || in A::c",
                "a.rs:3:3: replace A::e with ()",
            ],
            &[],
        );
        assert_eq!(
            table.missing(&found),
            BTreeSet::from(["a.rs: replace A::e with ()".to_owned()])
        );
        assert!(table.caught_by_now(&found).is_empty() && table.gone(&found).is_empty());
        assert_eq!(found.count(), 4);
    }

    #[test]
    fn entry_that_is_caught_by_now_or_gone_is_named() {
        let table = Table::parse(TEXT).expect("a table");
        let found = names(&[], &[], &["a.rs:1:2: replace A::b -> bool with true"]);
        assert_eq!(table.caught_by_now(&found), ["a.rs: replace A::b -> bool with true"]);
        assert_eq!(table.gone(&found), ["a.rs: replace && with || in A::c"]);
        // One of two mutants of the same name survives: the entry is needed.
        let name = "a.rs:1:2: replace A::b -> bool with true";
        assert!(table.caught_by_now(&names(&[name], &[name], &[])).is_empty());
    }

    #[test]
    fn entry_without_a_reason_and_file_without_a_table_are_refused() {
        let unexplained = TEXT.replace("only a debug assertion asks", "");
        assert!(Table::parse(&unexplained).is_err());
        assert!(Table::parse("# Testing\n").is_err());
    }
}
