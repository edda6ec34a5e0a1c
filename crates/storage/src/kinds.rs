//! Kinds that are learned while a process runs: the same description is always the same value, so that nothing is made
//! anew for a kind that did not change. What is new is kept for the life of the process, up to a limit.

use std::collections::HashMap;

use parking_lot::Mutex;
use yurt_apimachinery::ResourceKind;
use yurt_apimachinery::definition::CustomKind;
use yurt_apimachinery::kind::find_kind;
use yurt_apimachinery::pool_scope::SharedResource;

/// Kinds and versions kept in the life of a process; each edit of one adds one.
pub const KEPT_MAX: usize = 10_000;

/// Everything learned so far.
#[derive(Debug, Default)]
pub struct Kinds {
    // Never held together with another lock.
    kept: Mutex<HashMap<CustomKind, &'static ResourceKind>>,
}

/// The process has learned [`KEPT_MAX`] kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{KEPT_MAX} kinds and changes of kinds since the start; restart to take more")]
pub struct TooManyKinds;

// === impl Kinds ===

impl Kinds {
    /// The one value for `kind`.
    ///
    /// # Errors
    /// [`TooManyKinds`] for one that is new.
    pub fn keep(&self, kind: &CustomKind) -> Result<&'static ResourceKind, TooManyKinds> {
        let mut kept = self.kept.lock();
        if let Some(known) = kept.get(kind) {
            return Ok(known);
        }
        if kept.len() == KEPT_MAX {
            return Err(TooManyKinds);
        }
        let new = kind.leak();
        kept.insert(kind.clone(), new);
        Ok(new)
    }

    /// The kind of a shared resource: the built-in one where there is one.
    ///
    /// # Errors
    /// As [`Kinds::keep`].
    pub fn shared(&self, resource: &SharedResource) -> Result<&'static ResourceKind, TooManyKinds> {
        match find_kind(&resource.group, &resource.resource) {
            Some(builtin) => Ok(builtin),
            None => self.keep(&resource.custom_kind()),
        }
    }
}
