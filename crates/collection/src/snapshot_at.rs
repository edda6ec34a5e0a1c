//! State of a collection at an earlier RV, read in key order from any key on.
//!
//! No copy is kept for it: the reader undoes the log's newer steps for the keys of the request. So a page of a list
//! costs its own objects and the steps since, and holds nothing between two pages.

use std::collections::{BTreeMap, btree_map};
use std::iter::Peekable;
use std::ops::Bound;

use yurt_apimachinery::{Object, ObjectKey, ResourceVersion};

use super::{Collection, Expired, Live, Reader, Step};

/// A contiguous part of the keys of a collection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyRange {
    prefix: Box<str>,
    one: bool,
}

/// Objects of a collection at one RV, in key order (bytewise, as kube-apiserver's storage keys).
#[derive(Debug)]
pub struct SnapshotAt<'a> {
    keys: &'a KeyRange,
    present: Peekable<btree_map::Range<'a, ObjectKey, Live>>,
    /// Replacements of the present state; `None` where no object existed then.
    undone: Peekable<btree_map::IntoIter<&'a str, Option<&'a Object>>>,
}

// === impl KeyRange ===

impl KeyRange {
    /// Every key.
    #[must_use]
    pub fn all() -> Self {
        Self::default()
    }

    /// The keys of one namespace.
    #[must_use]
    pub fn namespace(namespace: &str) -> Self {
        Self {
            prefix: format!("{namespace}/").into(),
            one: false,
        }
    }

    /// One key.
    #[must_use]
    pub fn one(key: &ObjectKey) -> Self {
        Self {
            prefix: key.as_str().into(),
            one: true,
        }
    }

    /// The key, if there is only one.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        self.one.then_some(&*self.prefix)
    }

    /// True if `key` is in the range.
    #[must_use]
    pub fn contains(&self, key: &str) -> bool {
        if self.one {
            key == &*self.prefix
        } else {
            key.starts_with(&*self.prefix)
        }
    }
}

// === impl Collection ===

impl Collection {
    /// The objects of `keys` at `rv`, from the key `from` on (the empty string begins at the first one). `rv` is at or
    /// below `C`.
    ///
    /// # Errors
    /// [`Expired`] when the log does not reach back to `rv`, or a later difference was found by comparing lists.
    pub fn snapshot_at<'a>(
        &'a self,
        rv: ResourceVersion,
        keys: &'a KeyRange,
        from: &str,
    ) -> Result<SnapshotAt<'a>, Expired> {
        let Some(seq) = self.seq_of_state(rv) else {
            return Err(Expired {
                position: rv,
                floor: self.log_from.max(self.gap_to),
            });
        };
        let start = from.max(&*keys.prefix);
        let newer = usize::try_from(self.next_seq() - seq).unwrap_or(usize::MAX);
        let mut undone = BTreeMap::new();
        for step in self.log.iter().rev().take(newer) {
            let (Step::Change(change) | Step::Unwatched(change)) = step else {
                continue;
            };
            let key = change.object.key().as_str();
            if key >= start && keys.contains(key) {
                undone.insert(key, change.previous.as_ref());
            }
        }
        let present = self.objects.range::<str, _>((Bound::Included(start), Bound::Unbounded));
        Ok(SnapshotAt {
            keys,
            present: present.peekable(),
            undone: undone.into_iter().peekable(),
        })
    }

    /// True if the state at `rv` is known: [`Self::snapshot_at`] returns it.
    #[must_use]
    pub fn has_state_at(&self, rv: ResourceVersion) -> bool {
        self.seq_of_state(rv).is_some()
    }

    /// Sequence number of the first step after the state at `rv`, if the log has every step since.
    fn seq_of_state(&self, rv: ResourceVersion) -> Option<u64> {
        self.seq_after(rv).filter(|_| rv >= self.gap_to)
    }

    /// The initial objects of a watch that began at `reader`, from the key `from` on: the state at its position.
    ///
    /// If the log no longer reaches back, because the client was slow, the present objects are returned. The reader
    /// then delivers every change since its position: the client sees some of them twice and ends with the present
    /// state.
    ///
    /// # Errors
    /// [`Expired`] when the generation changed.
    pub fn initial<'a>(&'a self, reader: &Reader, keys: &'a KeyRange, from: &str) -> Result<SnapshotAt<'a>, Expired> {
        self.check(reader)?;
        let then = self.snapshot_at(reader.position(), keys, from);
        then.or_else(|_| self.snapshot_at(self.position, keys, from))
    }
}

// === impl SnapshotAt ===

impl<'a> Iterator for SnapshotAt<'a> {
    type Item = &'a Object;

    fn next(&mut self) -> Option<&'a Object> {
        loop {
            let present = self.present.peek().map(|(key, _)| key.as_str());
            let present = present.filter(|key| self.keys.contains(key));
            let undone = self.undone.peek().map(|(key, _)| *key);
            match (present, undone) {
                (None, None) => return None,
                (Some(key), at) if at.is_none_or(|at| key < at) => {
                    return self.present.next().map(|(_, live)| &live.object);
                }
                (key, at) => {
                    if key == at {
                        self.present.next();
                    }
                    if let Some((_, Some(object))) = self.undone.next() {
                        return Some(object);
                    }
                }
            }
        }
    }
}
