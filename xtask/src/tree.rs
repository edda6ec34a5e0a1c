//! The files of the repository as the checks see them: relative path and text.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

/// Folders without files of ours; used only if git is not available.
const NOT_OURS: &[&str] = &[".git", ".cache", "target"];

/// Every file that git tracks or would track.
pub(crate) struct Tree {
    /// Path relative to the root with `/`, and the text; `None` for a file that is not UTF-8.
    files: BTreeMap<String, Option<String>>,
}

// === impl Tree ===

impl Tree {
    /// Reads the repository at `root`. Files that are not committed yet belong to it, ignored ones do not.
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let paths = match paths_of_git(root) {
            Some(paths) => paths,
            // A source archive, or a checkout git refuses to open for this user.
            None => paths_of_folder(root)?,
        };
        let mut files = BTreeMap::new();
        for path in paths {
            let full = root.join(&path);
            // Deleted but still in the index, or a symlink to a folder: nothing to read.
            if full.is_file() {
                let bytes = std::fs::read(&full).with_context(|| format!("cannot read {path}"))?;
                files.insert(path, String::from_utf8(bytes).ok());
            }
        }
        Ok(Self { files })
    }

    /// A tree for tests.
    #[cfg(test)]
    pub(crate) fn of_files(files: &[(&str, &str)]) -> Self {
        Self {
            files: files
                .iter()
                .map(|(path, text)| ((*path).to_owned(), Some((*text).to_owned())))
                .collect(),
        }
    }

    /// All text files.
    pub(crate) fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files
            .iter()
            .filter_map(|(path, text)| Some((path.as_str(), text.as_deref()?)))
    }

    /// The text files whose name ends in `.extension`.
    pub(crate) fn with_extension(&self, extension: &str) -> impl Iterator<Item = (&str, &str)> {
        self.texts()
            .filter(move |(path, _)| Path::new(path).extension().is_some_and(|found| found == extension))
    }

    /// The text of one file.
    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path)?.as_deref()
    }

    /// True if `path` is a file or a folder with files in it. The root is "".
    pub(crate) fn contains(&self, path: &str) -> bool {
        path.is_empty() || self.files.contains_key(path) || {
            let folder = format!("{path}/");
            self.files
                .range(folder.clone()..)
                .next()
                .is_some_and(|(first, _)| first.starts_with(&folder))
        }
    }
}

fn paths_of_git(root: &Path) -> Option<Vec<String>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .ok()?;
    if !output.status.success() {
        return None;
    }
    let text = String::from_utf8(output.stdout).ok()?;
    Some(
        text.split('\0')
            .filter(|path| !path.is_empty())
            .map(str::to_owned)
            .collect(),
    )
}

fn paths_of_folder(root: &Path) -> Result<Vec<String>> {
    let mut paths = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() && !NOT_OURS.iter().any(|name| entry.file_name() == *name) {
                folders.push(entry.path());
            } else if kind.is_file() {
                let path = entry.path();
                let relative = path.strip_prefix(root).context("an entry must be below its folder")?;
                paths.push(relative.to_string_lossy().into_owned());
            }
        }
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_contained_by_their_files() {
        let tree = Tree::of_files(&[("docs/adr/0001.md", ""), ("docs-old.md", "")]);
        assert!(tree.contains("docs") && tree.contains("docs/adr") && tree.contains("docs/adr/0001.md"));
        assert!(!tree.contains("doc") && !tree.contains("docs/adr/0002.md"));
    }

    #[test]
    fn git_and_the_folder_walk_agree_about_this_crate() {
        let root = yurt_workspace::root().expect("the workspace must have a root");
        let walked = paths_of_folder(&root).expect("the root must be readable");
        assert!(walked.iter().any(|path| path == "xtask/src/tree.rs"));
        assert!(!walked.iter().any(|path| path.starts_with(".git/")));
        if let Some(listed) = paths_of_git(&root) {
            assert!(listed.iter().all(|path| !path.starts_with("target/")));
        }
    }
}
