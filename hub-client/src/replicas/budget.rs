//! Bounds the bytes of all replicas of pool data together, and of all replicas of the cache. An update that does not fit is
//! rejected; existing data is kept.

use super::{PoolData, is_cached};

/// Maximum bytes of the replicas, each sort together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Pool data and members.
    pub pool: usize,
    /// The cache.
    pub cache: usize,
}

// === impl Limits ===

impl From<usize> for Limits {
    /// The same limit for each sort.
    fn from(bytes: usize) -> Self {
        Self {
            pool: bytes,
            cache: bytes,
        }
    }
}

impl From<(usize, usize)> for Limits {
    /// The limits of pool data and of the cache.
    fn from((pool, cache): (usize, usize)) -> Self {
        Self { pool, cache }
    }
}

/// A change or list that exceeds the limit; the message names sizes and flag.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name} would have {size} bytes, and all other copies have {others}: together more than --{flag}={max}; existing data is kept"
)]
pub struct Oversized {
    name: String,
    size: usize,
    others: usize,
    flag: &'static str,
    max: usize,
}

/// Name of the failure while the replica of `collection` rejects updates because of their size.
pub(crate) fn failure(collection: &str) -> String {
    format!("size of {collection}")
}

// === impl PoolData ===

impl PoolData {
    /// Checks that collection `name` may grow to `size` bytes in addition to the others.
    ///
    /// # Errors
    /// [`Oversized`] if all collections together would exceed the limit.
    pub fn require_room(&self, name: &str, size: usize) -> Result<(), Oversized> {
        let (flag, max) = match is_cached(name) {
            true => ("max-cache-bytes", self.limits.cache),
            false => ("max-pool-bytes", self.limits.pool),
        };
        let others = self.bytes(is_cached(name), name);
        match others.saturating_add(size) > max {
            true => Err(Oversized {
                name: name.to_owned(),
                size,
                others,
                flag,
                max,
            }),
            false => Ok(()),
        }
    }

    /// Maximum bytes of the replicas.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Bytes of all replicas of the cache, or of all others; `without` is left out.
    #[must_use]
    pub fn bytes(&self, cached: bool, without: &str) -> usize {
        let all = self.replicas().iter();
        all.filter(|replica| is_cached(replica.name()) == cached && replica.name() != without)
            .map(|replica| replica.collection().read(|held| held.size()))
            .sum()
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
