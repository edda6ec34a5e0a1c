//! Kinds that are learned while a process runs. The same description always yields the same value, so unchanged kinds
//! cause no new allocation. A new kind is kept for the life of the process, up to a limit.

use std::collections::HashMap;

use parking_lot::Mutex;
use yurt_apimachinery::ResourceKind;
use yurt_apimachinery::kind::CustomKind;
use yurt_apimachinery::kind::find_kind;

/// Maximum number of kinds and versions kept in the life of a process; each edit of one adds one.
pub const KEPT_MAX: usize = 10_000;

/// Share of [`KEPT_MAX`] for kinds named by a pool's leader. Changes of the shared resources must not use up what files
/// may declare.
pub const SHARED_MAX: usize = 1_000;

/// Everything learned so far.
#[derive(Debug, Default)]
pub struct Kinds {
    // Locked inside of `of_leaders`, and inside of no other lock.
    kept: Mutex<HashMap<CustomKind, &'static ResourceKind>>,
    // Number of those named by a leader. Lock order: this first, then `kept`.
    of_leaders: Mutex<usize>,
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

    fn keep_of_leader(&self, kind: &CustomKind) -> Result<&'static ResourceKind, TooManyKinds> {
        let mut of_leaders = self.of_leaders.lock();
        if self.kept.lock().contains_key(kind) {
            return self.keep(kind);
        }
        if *of_leaders == SHARED_MAX {
            return Err(TooManyKinds);
        }
        let kept = self.keep(kind)?;
        *of_leaders += 1;
        Ok(kept)
    }

    /// Returns the kind of a resource that a pool's leader names: the built-in one if there is one.
    ///
    /// # Errors
    /// [`TooManyKinds`] for one that is new, once a leader has named [`SHARED_MAX`].
    pub fn shared(&self, kind: &CustomKind) -> Result<&'static ResourceKind, TooManyKinds> {
        match find_kind(&kind.group, &kind.plural) {
            Some(builtin) => Ok(builtin),
            None => self.keep_of_leader(kind),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn widgets(number: usize) -> CustomKind {
        CustomKind {
            group: "example.com".to_owned(),
            version: "v1".to_owned(),
            plural: format!("widgets{number}"),
            singular: String::new(),
            kind: "Widget".to_owned(),
            list_kind: "WidgetList".to_owned(),
            namespaced: true,
            short_names: Vec::new(),
            categories: Vec::new(),
            fields: Vec::new(),
            columns: Vec::new(),
            has_status: false,
        }
    }

    #[test]
    fn leaders_use_up_no_kinds_of_others_by_changing_what_is_shared() {
        let kinds = Kinds::default();
        for number in 0..SHARED_MAX {
            assert!(kinds.shared(&widgets(number)).is_ok(), "{number}");
        }
        assert_eq!(kinds.shared(&widgets(SHARED_MAX)), Err(TooManyKinds));
        assert!(kinds.shared(&widgets(7)).is_ok(), "known ones come and go");
        assert!(kinds.keep(&widgets(SHARED_MAX)).is_ok(), "files may declare more");
    }
}
