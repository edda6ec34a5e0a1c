//! Every `.rs` file belongs to a target of the workspace through a chain of `mod` declarations, and none is `mod.rs`.
//!
//! A file that no `mod` names is not compiled: it becomes outdated unnoticed, and its tests never run.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use super::{Subject, Violation};
use crate::rust_text;
use crate::tree::Tree;

pub(super) fn check(subject: &Subject) -> Result<Vec<Violation>> {
    let mut roots = target_roots(&subject.metadata)?;
    roots.extend(outside_programs(&subject.tree));
    Ok(violations(&subject.tree, &roots))
}

/// Programs that are a workspace of their own, such as a client in `interop/`.
fn outside_programs(tree: &Tree) -> impl Iterator<Item = String> {
    let manifests = tree.texts().filter(|(_, text)| text.contains("\n[workspace]\n"));
    manifests.filter_map(|(path, _)| Some(format!("{}/src/main.rs", path.strip_suffix("/Cargo.toml")?)))
}

/// The files cargo compiles directly: lib.rs, main.rs, `[[bin]]`, `tests/*.rs`, benches, examples, build scripts.
fn target_roots(metadata: &Value) -> Result<Vec<String>> {
    let workspace = Path::new(
        metadata["workspace_root"]
            .as_str()
            .context("metadata has no workspace_root")?,
    );
    let packages = metadata["packages"].as_array().context("metadata has no packages")?;
    let targets = packages
        .iter()
        .filter_map(|package| package["targets"].as_array())
        .flatten();
    let sources = targets.filter_map(|target| Path::new(target["src_path"].as_str()?).strip_prefix(workspace).ok());
    Ok(sources.map(|path| path.to_string_lossy().into_owned()).collect())
}

fn violations(tree: &Tree, roots: &[String]) -> Vec<Violation> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<(String, bool)> = roots.iter().map(|root| (root.clone(), true)).collect();
    while let Some((path, is_root)) = open.pop() {
        let Some(text) = tree.text(&path) else { continue };
        if reached.insert(path.clone()) {
            open.extend(
                declared_files(&path, is_root, text)
                    .into_iter()
                    .map(|file| (file, false)),
            );
        }
    }
    let mut violations = Vec::new();
    for (path, _) in tree.with_extension("rs") {
        if Path::new(path).file_name().is_some_and(|name| name == "mod.rs") {
            violations.push(Violation::new(
                path,
                "is a mod.rs; call it foo.rs, next to the folder foo/",
            ));
        } else if !reached.contains(path) {
            violations.push(Violation::new(
                path,
                "no `mod` declares this file, so it is never compiled; declare or delete it",
            ));
        }
    }
    violations
}

/// Paths at which the modules that `path` declares may be.
fn declared_files(path: &str, is_root: bool, text: &str) -> Vec<String> {
    let path = Path::new(path);
    let folder = path.parent().unwrap_or(Path::new(""));
    let below = match path.file_stem() {
        Some(stem) if !is_root && stem != "mod" => folder.join(stem),
        _ => folder.to_path_buf(),
    };
    let mut files = Vec::new();
    for declaration in declarations(text) {
        match declaration.path {
            Some(explicit) => files.push(normal(&folder.join(explicit))),
            None => {
                let place = declaration
                    .inside
                    .iter()
                    .fold(below.clone(), |place, name| place.join(name));
                files.push(normal(&place.join(format!("{}.rs", declaration.name))));
                files.push(normal(&place.join(&declaration.name).join("mod.rs")));
            }
        }
    }
    files
}

/// `a/../b` in its normal form `b`, with `/`.
fn normal(path: &Path) -> String {
    let mut out = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                out.pop();
            }
            Component::CurDir => {}
            other => out.push(other),
        }
    }
    out.to_string_lossy().into_owned()
}

/// One `mod name;`.
#[derive(Debug, PartialEq, Eq)]
struct Declaration {
    /// Names of the inline modules around it, outermost first.
    inside: Vec<String>,
    name: String,
    /// From `#[path = "…"]`.
    path: Option<String>,
}

fn declarations(source: &str) -> Vec<Declaration> {
    let code = rust_text::code_only(source);
    let tokens: Vec<(usize, &str)> = tokens(&code);
    let mut found = Vec::new();
    // One entry per open brace: the module's name, or nothing for any other brace.
    let mut inside: Vec<Option<String>> = Vec::new();
    let mut path = None;
    let mut at = 0;
    while at < tokens.len() {
        let word = |ahead: usize| tokens.get(at + ahead).map_or("", |token| token.1);
        match (word(0), word(1), word(2)) {
            ("mod", name, ";") => {
                let inside = inside.iter().flatten().cloned().collect();
                found.push(Declaration {
                    inside,
                    name: name.to_owned(),
                    path: path.take(),
                });
                at += 2;
            }
            ("mod", name, "{") => {
                inside.push(Some(name.to_owned()));
                at += 2;
            }
            ("#", "[", "path") => {
                path = source[tokens[at].0..].split('"').nth(1).map(str::to_owned);
                at += 2;
            }
            ("{", ..) => inside.push(None),
            ("}", ..) => {
                inside.pop();
            }
            _ => {}
        }
        at += 1;
    }
    found
}

/// Words and single punctuation characters with their offsets.
fn tokens(code: &str) -> Vec<(usize, &str)> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut tokens = Vec::new();
    let mut rest = code.char_indices().peekable();
    while let Some((start, c)) = rest.next() {
        let mut end = start + c.len_utf8();
        if c.is_whitespace() {
            continue;
        }
        if is_word(c) {
            while let Some((next, _)) = rest.next_if(|(_, c)| is_word(*c)) {
                end = next + code[next..].chars().next().map_or(1, char::len_utf8);
            }
        }
        tokens.push((start, &code[start..end]));
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    fn orphans(files: &[(&str, &str)], roots: &[&str]) -> Vec<String> {
        let roots: Vec<String> = roots.iter().map(|root| (*root).to_owned()).collect();
        violations(&Tree::of_files(files), &roots)
            .into_iter()
            .map(|violation| violation.place)
            .collect()
    }

    #[test]
    fn a_chain_of_mods_reaches_files_and_a_comment_does_not() {
        let files = [
            (
                "a/src/lib.rs",
                "pub mod one;\n// mod two;\nconst S: &str = \"mod two;\";",
            ),
            ("a/src/one.rs", "#[cfg(test)]\nmod tests;\n"),
            ("a/src/one/tests.rs", ""),
            ("a/src/two.rs", ""),
        ];
        assert_eq!(orphans(&files, &["a/src/lib.rs"]), ["a/src/two.rs"]);
    }

    #[test]
    fn inline_modules_and_path_attributes_are_followed() {
        let files = [
            (
                "a/src/main.rs",
                "mod x { fn f() {} pub(crate) mod deep; }\n#[path = \"../shared/helper.rs\"]\nmod helper;",
            ),
            ("a/src/x/deep.rs", ""),
            ("a/shared/helper.rs", ""),
            ("a/src/deep.rs", ""),
        ];
        assert_eq!(orphans(&files, &["a/src/main.rs"]), ["a/src/deep.rs"]);
    }

    #[test]
    fn mod_rs_is_refused_even_when_declared() {
        let files = [("a/src/lib.rs", "mod x;"), ("a/src/x/mod.rs", "")];
        assert_eq!(orphans(&files, &["a/src/lib.rs"]), ["a/src/x/mod.rs"]);
    }

    #[test]
    fn roots_come_from_every_target() {
        let metadata = serde_json::json!({"workspace_root": "/w", "packages": [{"targets": [
            {"src_path": "/w/a/src/lib.rs"}, {"src_path": "/w/a/tests/it.rs"}]}]});
        assert_eq!(
            target_roots(&metadata).expect("roots"),
            ["a/src/lib.rs", "a/tests/it.rs"]
        );
    }
}
