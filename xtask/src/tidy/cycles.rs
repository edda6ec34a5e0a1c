//! Import cycles between the top modules of a crate: each crate has a number of imports inside cycles that it may only
//! lower.
//!
//! Pure. A top module is a `src/name.rs` with its folder. Imports are paths that begin with `crate::`; a name that the
//! root re-exports counts as its module. Tests do not count.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;

use super::length::is_test_file;
use super::{Subject, Violation};
use crate::rust_text;

/// Known cycles, one per line: the crate's folder, the number of imports inside the cycle, and its modules.
const RATCHET: &str = "xtask/cycles-ratchet.txt";

/// Root files of a crate, below its `src`.
const ROOTS: [&str; 2] = ["lib.rs", "main.rs"];

/// Imports between the top modules of one crate.
type Imports = BTreeMap<String, BTreeSet<String>>;

/// Modules that import each other, directly or through others.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Cycle {
    /// Folder of the crate.
    folder: String,
    modules: BTreeSet<String>,
    /// Number of imports among them.
    imports: usize,
}

pub(super) fn check(subject: &Subject) -> Result<Vec<Violation>> {
    let mut known: Vec<Cycle> = subject
        .tree
        .text(RATCHET)
        .unwrap_or_default()
        .lines()
        .filter_map(Cycle::parse)
        .collect();
    let mut found = Vec::new();
    for (folder, imports) in crates(subject) {
        for cycle in cycles(&folder, &imports) {
            let row = known
                .iter()
                .position(|row| row.folder == folder && cycle.modules.is_subset(&row.modules));
            match row.map(|row| known.remove(row)) {
                None => found.push(Violation::new(
                    folder.as_str(),
                    format!("new import cycle: {}; {}", cycle.row(), cycle.list(&imports)),
                )),
                Some(row) if cycle.imports > row.imports => found.push(Violation::new(
                    folder.as_str(),
                    format!(
                        "{} imports inside a cycle, {} allowed; {}",
                        cycle.imports,
                        row.imports,
                        cycle.list(&imports)
                    ),
                )),
                Some(row) if row != cycle => found.push(Violation::new(
                    RATCHET,
                    format!("a cycle shrank; write `{}`", cycle.row()),
                )),
                Some(_) => {}
            }
        }
    }
    found.extend(
        known
            .iter()
            .map(|row| Violation::new(RATCHET, format!("delete `{}`: the cycle is gone", row.row()))),
    );
    Ok(found)
}

// === impl Cycle ===

impl Cycle {
    /// Parses a row; `None` for blank lines and comments.
    fn parse(line: &str) -> Option<Self> {
        let mut parts = line.split_whitespace().map(str::to_owned);
        let folder = parts.next().filter(|part| !part.starts_with('#'))?;
        let imports = parts.next().and_then(|part| part.parse().ok()).unwrap_or(0);
        let modules = parts.collect();
        Some(Self {
            folder,
            modules,
            imports,
        })
    }

    fn row(&self) -> String {
        let modules: Vec<&str> = self.modules.iter().map(String::as_str).collect();
        format!("{} {} {}", self.folder, self.imports, modules.join(" "))
    }

    /// Lists the imports inside the cycle.
    fn list(&self, imports: &Imports) -> String {
        let arrows = inside(&self.modules, imports).map(|(from, to)| format!("{from} → {to}"));
        arrows.collect::<Vec<_>>().join(", ")
    }
}

fn inside<'a>(modules: &'a BTreeSet<String>, imports: &'a Imports) -> impl Iterator<Item = (&'a str, &'a str)> {
    let from_modules = imports.iter().filter(move |(from, _)| modules.contains(*from));
    from_modules.flat_map(move |(from, to)| {
        let to = to.iter().filter(move |to| modules.contains(*to));
        to.map(move |to| (from.as_str(), to.as_str()))
    })
}

/// Imports of every crate, by folder.
fn crates(subject: &Subject) -> BTreeMap<String, Imports> {
    let mut crates = BTreeMap::new();
    for (path, _) in subject.tree.with_extension("rs") {
        let folder = ROOTS
            .iter()
            .find_map(|root| path.strip_suffix(root)?.strip_suffix("/src/"));
        if let Some(folder) = folder.filter(|folder| !crates.contains_key(*folder)) {
            crates.insert(folder.to_owned(), imports_of(subject, folder));
        }
    }
    crates
}

fn imports_of(subject: &Subject, folder: &str) -> Imports {
    let src = format!("{folder}/src/");
    let mut files: Vec<(&str, String)> = subject
        .tree
        .with_extension("rs")
        .filter_map(|(path, text)| Some((path.strip_prefix(&src)?, text)))
        .filter(|(path, _)| !is_test_file(path))
        .map(|(path, text)| (path, rust_text::code_only(text)))
        .collect();
    let tests: BTreeSet<String> = files
        .iter()
        .flat_map(|(path, code)| rust_text::test_files(code).into_iter().map(|name| child(path, name)))
        .collect();
    files.retain(|(path, _)| !tests.contains(path.trim_end_matches(".rs")));
    for (_, code) in &mut files {
        *code = rust_text::without_tests(code);
    }
    let modules: BTreeSet<&str> = files
        .iter()
        .filter(|(path, _)| !ROOTS.contains(path))
        .map(|(path, _)| module_of(path))
        .collect();
    let roots = files.iter().filter(|(path, _)| ROOTS.contains(path));
    let exported: BTreeMap<String, String> = roots
        .flat_map(|(_, code)| exports(code))
        .filter(|(_, module)| modules.contains(module.as_str()))
        .collect();
    let mut imports = Imports::new();
    for (path, code) in files.iter().filter(|(path, _)| !ROOTS.contains(path)) {
        let from = module_of(path);
        for name in heads(code, "crate::") {
            let to = exported.get(&name).cloned().unwrap_or(name);
            if to != from && modules.contains(to.as_str()) {
                imports.entry(from.to_owned()).or_default().insert(to);
            }
        }
    }
    imports
}

/// Path of the module `name` that the file at `path` declares, without extension.
fn child(path: &str, name: &str) -> String {
    match ROOTS.contains(&path) {
        true => name.to_owned(),
        false => format!("{}/{name}", path.trim_end_matches(".rs")),
    }
}

/// Top module of a file, given its path below `src`.
fn module_of(path: &str) -> &str {
    let end = path.find('/').unwrap_or(path.len() - ".rs".len());
    &path[..end]
}

/// Names that the root re-exports, with their modules.
fn exports(code: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for line in code.split(';') {
        let Some((_, path)) = line.split_once("pub use ") else {
            continue;
        };
        let names = words(path);
        let Some(module) = names.first() else { continue };
        found.extend(names.iter().skip(1).map(|name| (name.clone(), module.clone())));
    }
    found
}

/// Names that follow `prefix` in paths, those of a group included: `a` and `b` for `crate::{a::X, b::{Y, Z}}`.
fn heads(code: &str, prefix: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices(prefix) {
        let rest = &code[at + prefix.len()..];
        let Some(group) = rest.strip_prefix('{') else {
            found.extend(words(rest).into_iter().next());
            continue;
        };
        let mut depth = 0_usize;
        let mut is_head = true;
        let mut name = String::new();
        for letter in group.chars() {
            match letter {
                '}' if depth == 0 => break,
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => is_head = true,
                _ if depth == 0 && is_head && (letter.is_alphanumeric() || letter == '_') => name.push(letter),
                _ => {}
            }
            let ends = !(letter.is_alphanumeric() || letter == '_');
            if ends && !name.is_empty() {
                found.push(std::mem::take(&mut name));
                is_head = letter == ',' && depth == 0;
            }
        }
        found.extend(Some(name).filter(|name| !name.is_empty()));
    }
    found
}

fn words(text: &str) -> Vec<String> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

/// Cycles of the graph: sets of two or more modules that all reach each other.
fn cycles(folder: &str, imports: &Imports) -> Vec<Cycle> {
    let reach: BTreeMap<&str, BTreeSet<&str>> = imports
        .keys()
        .map(|from| (from.as_str(), reachable(from, imports)))
        .collect();
    let mut found: BTreeSet<BTreeSet<String>> = BTreeSet::new();
    for (from, to) in &reach {
        let back = to
            .iter()
            .filter(|to| reach.get(**to).is_some_and(|their| their.contains(from)));
        let mut modules: BTreeSet<String> = back.map(|module| (*module).to_owned()).collect();
        modules.insert((*from).to_owned());
        if modules.len() > 1 {
            found.insert(modules);
        }
    }
    let as_cycle = |modules: BTreeSet<String>| Cycle {
        folder: folder.to_owned(),
        imports: inside(&modules, imports).count(),
        modules,
    };
    found.into_iter().map(as_cycle).collect()
}

fn reachable<'a>(from: &'a str, imports: &'a Imports) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from];
    while let Some(module) = open.pop() {
        for to in imports.get(module).into_iter().flatten() {
            if reached.insert(to.as_str()) {
                open.push(to);
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &[(&str, &str)] = &[
        ("x/src/lib.rs", "mod a;\nmod b;\nmod c;\npub use b::{Name};\n"),
        ("x/src/a.rs", "use crate::{c, c::D};\n"),
        ("x/src/a/deep.rs", "fn f() { crate::Name::new(); }\n"),
        ("x/src/b.rs", "use crate::a::Thing;\n"),
        ("x/src/c.rs", "// crate::a\n#[cfg(test)]\nmod tests { use crate::a; }\n"),
        ("x/src/c/tests.rs", "use crate::a;\n"),
        ("x/src/d.rs", "use crate::a;\n#[cfg(test)]\nmod checks;\n"),
        ("x/src/d/checks.rs", "fn f() {}\n"),
        ("x/src/a/more.rs", "#[cfg(test)]\nmod checks;\n"),
        ("x/src/a/more/checks.rs", "use crate::d;\n"),
    ];

    fn problems(rows: Option<&str>) -> Vec<String> {
        let mut files = TWO.to_vec();
        files.extend(rows.map(|rows| (RATCHET, rows)));
        let found = check(&Subject::of_files(&files)).expect("the check runs");
        found.into_iter().map(|violation| violation.to_string()).collect()
    }

    #[test]
    fn cycle_through_a_re_exported_name_is_found_and_tests_do_not_count() {
        assert_eq!(problems(None), ["x: new import cycle: x 2 a b; a → b, b → a"]);
        assert_eq!(problems(Some("# known\nx 2 a b\n")), Vec::<String>::new());
    }

    #[test]
    fn ratchet_lets_a_cycle_shrink_and_never_grow() {
        assert!(problems(Some("x 1 a b\n"))[0].contains("2 imports inside a cycle, 1 allowed"));
        assert!(problems(Some("x 3 a b\n"))[0].contains("write `x 2 a b`"));
        assert!(problems(Some("x 4 a b c\n"))[0].contains("write `x 2 a b`"));
        assert!(problems(Some("x 2 a b\ny 2 a b\n"))[0].contains("delete `y 2 a b`"));
    }

    #[test]
    fn heads_of_groups_are_found_at_their_first_level() {
        let code = "use crate::{a::X, b::{Y, c}, d}; crate::e::f(); use crate::g;";
        assert_eq!(heads(code, "crate::"), ["a", "b", "d", "e", "g"]);
    }
}
