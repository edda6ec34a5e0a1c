//! Bounds the bytes of all copies together: what is held stays, what does not fit beside it is not taken.

use super::PoolData;

/// A change or a list that does not fit; the text names sizes and flag.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name} would have {size} bytes, and all other copies have {others}: together more than --max-pool-bytes={max}; what is held stays"
)]
pub struct Oversized {
    name: String,
    size: usize,
    others: usize,
    max: usize,
}

/// What does not work while the copy of `collection` does not take what its source says.
pub(super) fn trouble(collection: &str) -> String {
    format!("size of {collection}")
}

// === impl PoolData ===

impl PoolData {
    /// Whether collection `name` may grow to `size` bytes beside the others.
    ///
    /// # Errors
    /// [`Oversized`].
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
}
