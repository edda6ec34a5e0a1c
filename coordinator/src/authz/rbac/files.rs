//! The operator's roles and bindings: files and folders of `--rbac-path`, read again while the server runs.
//!
//! Files are reloaded atomically: if one cannot be read or parsed, the whole previous policy stays in use. An
//! incomplete edit therefore never allows more than the complete one.

use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::RwLock;

use super::{Policy, parse};
use crate::reloadable_files::{Contents, ReloadableFiles, each_document};

/// The policy in use, and its files.
pub(crate) struct Rbac {
    /// Policy that holds regardless of the files.
    base: Policy,
    files: ReloadableFiles,
    // Guards the pointer only.
    current: RwLock<Arc<Policy>>,
}

// === impl Rbac ===

impl Rbac {
    /// Reads `paths` on top of `base`.
    ///
    /// # Errors
    /// One line: the file, the object, the field, and the fault.
    pub(crate) fn open(base: Policy, paths: Vec<PathBuf>) -> Result<Self, String> {
        let (files, contents) = ReloadableFiles::open(paths)?;
        let policy = base.clone().overlaid(parsed(&contents)?).aggregated();
        Ok(Self {
            base,
            files,
            current: RwLock::new(Arc::new(policy)),
        })
    }

    /// The policy for the next decision.
    pub(crate) fn current(&self) -> Arc<Policy> {
        self.current.read().clone()
    }

    /// True if there are files to read again.
    pub(crate) fn is_reloadable(&self) -> bool {
        self.files.is_reloadable()
    }

    /// Reads the files again; true if a change is in use now. Blocks for the reads.
    ///
    /// # Errors
    /// As [`Rbac::open`]; the previous policy stays.
    pub(crate) fn reload(&self) -> Result<bool, String> {
        let Some(contents) = self.files.changed()? else {
            return Ok(false);
        };
        let policy = parsed(&contents).inspect_err(|_| self.files.forget())?;
        *self.current.write() = Arc::new(self.base.clone().overlaid(policy).aggregated());
        Ok(true)
    }
}

fn parsed(contents: &[Contents]) -> Result<Policy, String> {
    let mut policy = Policy::default();
    each_document(contents, |document| parse::add(&mut policy, document))?;
    Ok(policy)
}
