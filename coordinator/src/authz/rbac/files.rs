//! The operator's roles and bindings: files and folders of `--rbac-path`, read again while the server runs.
//!
//! All or nothing: one file that cannot be read or understood keeps the whole previous policy in use, so that half an
//! edit never allows what the complete one would not.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use serde_json::Value;

use super::{Policy, parse};

/// Largest file that is read.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Files taken from one folder; more is taken for a mistake.
const FILES_MAX: usize = 1000;

/// The policy in use, and where it comes from.
pub(crate) struct Rbac {
    /// What holds whatever the files say.
    base: Policy,
    paths: Vec<PathBuf>,
    // The files' contents at the last attempt, to see changes. Never held together with `current`.
    seen: Mutex<Vec<Contents>>,
    // Guards the pointer only.
    current: RwLock<Arc<Policy>>,
}

/// A file and its text.
type Contents = (PathBuf, String);

// === impl Rbac ===

impl Rbac {
    /// Reads `paths` on top of `base`.
    ///
    /// # Errors
    /// One line: the file, the object, the field, and what is wrong.
    pub(crate) fn open(base: Policy, paths: Vec<PathBuf>) -> Result<Self, String> {
        let contents = read(&paths)?;
        let policy = base.clone().overlaid(parsed(&contents)?);
        Ok(Self {
            base,
            paths,
            seen: Mutex::new(contents),
            current: RwLock::new(Arc::new(policy)),
        })
    }

    /// The policy for the next decision.
    pub(crate) fn current(&self) -> Arc<Policy> {
        self.current.read().clone()
    }

    /// Whether there is anything to read again.
    pub(crate) fn is_reloadable(&self) -> bool {
        !self.paths.is_empty()
    }

    /// Reads the files again; true when something changed and is in use now. Blocks for the reads.
    ///
    /// # Errors
    /// As [`Rbac::open`]; the previous policy stays.
    pub(crate) fn reload(&self) -> Result<bool, String> {
        let contents = read(&self.paths)?;
        {
            let mut seen = self.seen.lock();
            if *seen == contents {
                return Ok(false);
            }
            seen.clone_from(&contents);
        }
        let policy = parsed(&contents).inspect_err(|_| self.seen.lock().clear())?;
        *self.current.write() = Arc::new(self.base.clone().overlaid(policy));
        Ok(true)
    }
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

/// Regular files named `*.yaml`, `*.yml` or `*.json`; hidden ones (a mounted ConfigMap has some) are left out.
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
    files.sort();
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

fn parsed(contents: &[Contents]) -> Result<Policy, String> {
    let mut policy = Policy::default();
    for (path, text) in contents {
        let fail = |why: String| format!("{}: {}", path.display(), why.replace('\n', " "));
        // JSON is YAML.
        let documents: Vec<Value> =
            serde_saphyr::from_multiple(text).map_err(|error| fail(format!("not YAML: {error}")))?;
        for document in documents.iter().filter(|document| !document.is_null()) {
            parse::add(&mut policy, document).map_err(fail)?;
        }
    }
    Ok(policy)
}
