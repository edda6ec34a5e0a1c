//! Bounds the bytes of all replicas together. An update that does not fit is rejected; existing data is
//! kept.

use super::PoolData;

/// A change or list that exceeds the limit; the message names sizes and flag.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name} would have {size} bytes, and all other copies have {others}: together more than --max-pool-bytes={max}; existing data is kept"
)]
pub struct Oversized {
    name: String,
    size: usize,
    others: usize,
    max: usize,
}

/// Name of the failure while the replica of `collection` rejects updates because of their size.
pub(super) fn failure(collection: &str) -> String {
    format!("size of {collection}")
}

// === impl PoolData ===

impl PoolData {
    /// Checks that collection `name` may grow to `size` bytes in addition to the others.
    ///
    /// # Errors
    /// [`Oversized`] if all collections together would exceed the limit.
    pub fn require_room(&self, name: &str, size: usize) -> Result<(), Oversized> {
        let all = self.replicas().iter();
        let others = all.filter(|replica| replica.name() != name);
        let others: usize = others
            .map(|replica| replica.collection().read(|held| held.size()))
            .sum();
        let max = self.max_bytes;
        match others.saturating_add(size) > max {
            true => Err(Oversized {
                name: name.to_owned(),
                size,
                others,
                max,
            }),
            false => Ok(()),
        }
    }

    /// Records that replica `name` rejected an update because of its size. Returns the number of rejections in a row.
    pub fn does_not_fit(&self, name: &str, why: &Oversized) -> u32 {
        self.failures().refused(&failure(name), &why.to_string());
        self.sources().rejected(name)
    }

    /// Records that replica `name` applied an update.
    pub fn fits(&self, name: &str) {
        if self.sources().accepted(name) {
            self.failures().works(&failure(name));
        }
    }
}
