//! The mark: an RV on the disk ahead of everything that a collection serves.
//!
//! A crash returns to the last commit, while readers may have seen later RVs. The mark in that commit is their upper
//! bound, for as long as no reader is given an RV above it. A source that has such an RV waits for a commit with a
//! higher mark. While commits fail, readers keep what they have, and everything above the mark waits.

use yurt_apimachinery::ResourceVersion;

use super::Collection;

/// Minimum distance of a new mark from `C`, in RVs. An etcd with a hundred writes each second needs three hours for
/// them.
const AHEAD_MIN: u64 = 1 << 20;
/// Binary logarithm of the ratio between `C` and the distance of a new mark. RVs that count the µs since 1970 need two
/// hours for a distance of this share.
const AHEAD_SHIFT: u32 = 18;

/// Mark to store with a commit at `position`. Commits are at most a minute apart while they succeed, so a source rarely
/// waits for one.
#[must_use]
pub fn ahead_of(position: ResourceVersion) -> ResourceVersion {
    ResourceVersion(position.0.saturating_add(distance_at(position)))
}

/// Distance of a new mark from a `C` at `position`, in RVs.
pub(super) fn distance_at(position: ResourceVersion) -> u64 {
    AHEAD_MIN.max(position.0 >> AHEAD_SHIFT)
}

// === impl Collection ===

impl Collection {
    /// True if the stored mark covers `to`, so that a change up to there may be applied. Always true without a store,
    /// and before the first data, which readers see only after its commit.
    #[must_use]
    pub fn covers(&self, to: ResourceVersion) -> bool {
        self.dirty.is_none() || !self.complete || to <= self.mark
    }

    /// The mark for a commit of the present state: never below the stored one.
    #[must_use]
    pub fn next_mark(&self) -> ResourceVersion {
        self.mark.max(ahead_of(self.position.max(self.mark_wanted)))
    }

    /// Makes the next commit store a mark above `to`, even if nothing else has changed. Ignored when the collection has
    /// another generation.
    pub fn want_mark(&mut self, generation: u64, to: ResourceVersion) {
        if generation != self.generation {
            return;
        }
        self.mark_wanted = self.mark_wanted.max(to);
        if let Some(dirty) = &mut self.dirty {
            dirty.moved = true;
        }
    }

    /// Records that a commit under `generation` stored `mark`. Ignored when the collection has another generation.
    pub fn mark_stored(&mut self, generation: u64, mark: ResourceVersion) {
        if generation == self.generation {
            self.mark = self.mark.max(mark);
        }
    }

    /// As [`Self::mark_stored`], for a store that other processes serve from: they may have served everything up to
    /// `mark`.
    pub fn mark_shared(&mut self, generation: u64, mark: ResourceVersion) {
        if generation == self.generation {
            self.mark_stored(generation, mark);
            self.served_to = self.served_to.max(mark);
        }
    }

    /// Forgets the mark of a state that is replaced.
    pub(super) fn clear_mark(&mut self) {
        (self.mark, self.mark_wanted) = (ResourceVersion::ZERO, ResourceVersion::ZERO);
    }
}
