//! Kinds that are learned while a process runs. The same description always yields the same value, so unchanged kinds
//! cause no new allocation. A new kind is kept for the life of the process, up to a limit.

use std::collections::HashMap;

use parking_lot::Mutex;
use yurt_apimachinery::ResourceKind;
use yurt_apimachinery::kind::CustomKind;
use yurt_apimachinery::kind::find_kind;
use yurt_apimachinery::pool_scope::SharedResource;

/// Maximum number of kinds and versions kept in the life of a process; each edit of one adds one.
pub const KEPT_MAX: usize = 10_000;

/// Share of [`KEPT_MAX`] for kinds named by a pool's leader. Changes of the shared resources must not use up what files
/// may declare.
pub const SHARED_MAX: usize = 1_000;

/// Everything learned so far.
#[derive(Debug, Default)]
pub struct Kinds {
    // Locked inside of `told`, and inside of no other lock.
    kept: Mutex<HashMap<CustomKind, &'static ResourceKind>>,
    // Number of those named by a leader. Lock order: this first, then `kept`.
    told: Mutex<usize>,
}

/// The process has learned [`KEPT_MAX`] kinds, or [`SHARED_MAX`] from a leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{KEPT_MAX} kinds and changes of kinds, or {SHARED_MAX} named by the leader, since the start; restart to take more"
)]
pub struct TooManyKinds;

// === impl Kinds ===

impl Kinds {
    /// Returns the one value for `kind`.
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

    fn keep_told(&self, kind: &CustomKind) -> Result<&'static ResourceKind, TooManyKinds> {
        let mut told = self.told.lock();
        if self.kept.lock().contains_key(kind) {
            return self.keep(kind);
        }
        if *told == SHARED_MAX {
            return Err(TooManyKinds);
        }
        let kept = self.keep(kind)?;
        *told += 1;
        Ok(kept)
    }

    /// Returns the kind of a shared resource: the built-in one if there is one.
    ///
    /// # Errors
    /// [`TooManyKinds`] for one that is new, once a leader has named [`SHARED_MAX`].
    pub fn shared(&self, resource: &SharedResource) -> Result<&'static ResourceKind, TooManyKinds> {
        match find_kind(&resource.group, &resource.resource) {
            Some(builtin) => Ok(builtin),
            None => self.keep_told(&resource.custom_kind()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(number: usize) -> SharedResource {
        SharedResource {
            group: "example.com".to_owned(),
            version: "v1".to_owned(),
            resource: format!("widgets{number}"),
            singular: String::new(),
            kind: "Widget".to_owned(),
            list_kind: "WidgetList".to_owned(),
            namespaced: true,
        }
    }

    #[test]
    fn leaders_use_up_no_kinds_of_others_by_changing_what_is_shared() {
        let kinds = Kinds::default();
        for number in 0..SHARED_MAX {
            assert!(kinds.shared(&told(number)).is_ok(), "{number}");
        }
        assert_eq!(kinds.shared(&told(SHARED_MAX)), Err(TooManyKinds));
        assert!(kinds.shared(&told(7)).is_ok(), "known ones come and go");
        assert!(
            kinds.keep(&told(SHARED_MAX).custom_kind()).is_ok(),
            "files may declare more"
        );
    }
}
