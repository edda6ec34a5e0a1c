//! Files and folders that an operator names in a flag, read again while the server runs.
//!
//! All files are reloaded atomically: if one is invalid, none is applied.

use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use serde_json::Value;

/// Largest file, in bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Maximum number of files in one folder; more is taken for a mistake.
const FILES_MAX: usize = 1000;

/// Files that are read again periodically.
pub(crate) struct ReloadableFiles {
    paths: Vec<PathBuf>,
    /// The contents at the last read, to detect changes.
    seen: Mutex<Vec<Contents>>,
}

/// A file and its text.
pub(crate) type Contents = (PathBuf, String);

// === impl ReloadableFiles ===

impl ReloadableFiles {
    /// Reads `paths` for the first time. Blocks for the reads.
    ///
    /// # Errors
    /// One line: the file and its fault.
    pub(crate) fn open(paths: Vec<PathBuf>) -> Result<(Self, Vec<Contents>), String> {
        let contents = read(&paths)?;
        let seen = Mutex::new(contents.clone());
        Ok((Self { paths, seen }, contents))
    }

    /// True if there are files to read again.
    pub(crate) fn is_reloadable(&self) -> bool {
        !self.paths.is_empty()
    }

    /// Reads the files again; `None` when nothing has changed since the last read. Blocks for the reads.
    ///
    /// # Errors
    /// As [`ReloadableFiles::open`].
    pub(crate) fn changed(&self) -> Result<Option<Vec<Contents>>, String> {
        let contents = read(&self.paths)?;
        let mut seen = self.seen.lock();
        if *seen == contents {
            return Ok(None);
        }
        seen.clone_from(&contents);
        Ok(Some(contents))
    }

    /// Marks the last contents as rejected: the next read treats them as a change and reports them again.
    pub(crate) fn forget(&self) {
        self.seen.lock().clear();
    }
}

/// Passes every document of every file to `take`; JSON is YAML.
///
/// # Errors
/// One line: the file, and the error of `take` or the parser.
pub(crate) fn each_document(
    contents: &[Contents],
    mut take: impl FnMut(&Value) -> Result<(), String>,
) -> Result<(), String> {
    for (path, text) in contents {
        let fail = |why: String| format!("{}: {}", path.display(), why.replace('\n', " "));
        let documents: Vec<Value> =
            serde_saphyr::from_multiple(text).map_err(|error| fail(format!("not YAML: {error}")))?;
        for document in documents.iter().filter(|document| !document.is_null()) {
            take(document).map_err(fail)?;
        }
    }
    Ok(())
}

/// Every file, in the order of the flags and, in a folder, of their names.
fn read(paths: &[PathBuf]) -> Result<Vec<Contents>, String> {
    let mut contents = Vec::new();
    for path in paths {
        if path.is_dir() {
            for file in files_in(path)? {
                contents.push(read_file(file)?);
            }
        } else {
            contents.push(read_file(path.clone())?);
        }
    }
    Ok(contents)
}

/// Regular files named `*.yaml`, `*.yml` or `*.json`. Hidden ones (a mounted ConfigMap has some) are left out.
fn files_in(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let fail = |error: std::io::Error| format!("{}: {error}", folder.display());
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        let is_hidden = path
            .file_name()
            .is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
        let is_policy = path
            .extension()
            .is_some_and(|ending| ["yaml", "yml", "json"].iter().any(|known| ending == *known));
        if !is_hidden && is_policy && path.is_file() {
            files.push(path);
        }
        if files.len() > FILES_MAX {
            return Err(format!("{}: more than {FILES_MAX} files", folder.display()));
        }
    }
    files.sort_unstable();
    Ok(files)
}

fn read_file(path: PathBuf) -> Result<Contents, String> {
    let fail = |why: String| format!("{}: {why}", path.display());
    let size = std::fs::metadata(&path).map_err(|error| fail(error.to_string()))?.len();
    if size > FILE_BYTES_MAX {
        return Err(fail(format!("larger than {FILE_BYTES_MAX} bytes")));
    }
    let text = std::fs::read_to_string(&path).map_err(|error| fail(error.to_string()))?;
    Ok((path, text))
}
