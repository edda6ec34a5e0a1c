//! Bounds the bytes of all replicas of pool data together, and of all replicas of the cache. Those with the rights of
//! tokens have a part of the cache's limit: the rest is the node's. An update that does not fit is rejected; existing
//! data is kept.

use std::collections::BTreeMap;
use std::sync::Arc;

use yurt_storage::Replica;

use super::{PoolData, is_cached, is_of_tokens};

/// Maximum bytes of the replicas, each sort together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Pool data and members.
    pub pool: usize,
    /// The cache.
    pub cache: usize,
}

// === impl Limits ===

impl Limits {
    /// Maximum bytes of the cache's replicas with the rights of tokens.
    #[must_use]
    pub fn of_tokens(self) -> usize {
        self.cache / 2
    }
}

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
    "{name} would have {size} bytes, and all other copies{whose} have {others}: together more than {bound}; existing data is kept"
)]
pub struct Oversized {
    name: String,
    size: usize,
    others: usize,
    /// Empty, or those that the bound is for.
    whose: &'static str,
    /// Limit, with the name of its flag.
    bound: String,
}

/// Bytes of the cache's replicas that a start has loaded.
#[derive(Debug, Default)]
pub struct Loaded {
    all: usize,
    of_tokens: usize,
}

// === impl Loaded ===

impl Loaded {
    /// True if replica `name` of this size may be loaded, too.
    #[must_use]
    pub fn has_room(&self, limits: Limits, name: &str, bytes: usize) -> bool {
        let is_within = |loaded: usize, max: usize| loaded.saturating_add(bytes) <= max;
        is_within(self.all, limits.cache) && (!is_of_tokens(name) || is_within(self.of_tokens, limits.of_tokens()))
    }

    /// Adds replica `name` of this size.
    pub fn add(&mut self, name: &str, bytes: usize) {
        self.all += bytes;
        if is_of_tokens(name) {
            self.of_tokens += bytes;
        }
    }
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
        self.require(name, size, &BTreeMap::new())
    }

    fn require(&self, name: &str, size: usize, received: &BTreeMap<String, usize>) -> Result<(), Oversized> {
        let Limits { pool, cache } = self.limits;
        let within = |others: usize, max: usize, whose, bound: &dyn Fn() -> String| {
            let is_within = others.saturating_add(size) <= max;
            is_within.then_some(()).ok_or_else(|| Oversized {
                name: name.to_owned(),
                size,
                others,
                whose,
                bound: bound(),
            })
        };
        if !is_cached(name) {
            let others = self.bytes_of(|other| !is_cached(other) && other != name, received);
            return within(others, pool, "", &|| format!("--max-pool-bytes={pool}"));
        }
        if is_of_tokens(name) {
            let (others, max) = (
                self.bytes_of(|other| is_of_tokens(other) && other != name, received),
                self.limits.of_tokens(),
            );
            let bound = || format!("half of --max-cache-bytes={cache}");
            within(others, max, " of callers with tokens", &bound)?;
        }
        let others = self.bytes_of(|other| is_cached(other) && other != name, received);
        within(others, cache, "", &|| format!("--max-cache-bytes={cache}"))
    }

    /// As [`Self::require_room`], for a list of which `size` bytes have arrived. The unfinished lists of the cache's
    /// other replicas count, too, as far as they exceed these replicas.
    ///
    /// # Errors
    /// As [`Self::require_room`].
    pub fn require_room_for_list(&self, name: &str, size: usize) -> Result<(), Oversized> {
        let received = match is_cached(name) {
            true => self.partial_lists().received(),
            false => BTreeMap::new(),
        };
        self.require(name, size, &received)
    }

    /// Maximum bytes of the replicas.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Bytes of all replicas of the cache, or of all others; `without` is left out.
    #[must_use]
    pub fn bytes(&self, cached: bool, without: &str) -> usize {
        self.bytes_of(|name| is_cached(name) == cached && name != without, &BTreeMap::new())
    }

    /// Bytes of all replicas whose names are `counted`. A replica counts with what its list has `received` if that is
    /// more.
    fn bytes_of(&self, counted: impl Fn(&str) -> bool, received: &BTreeMap<String, usize>) -> usize {
        let bytes = |replica: Arc<Replica>| {
            let held = replica.collection().read(|held| held.size());
            received
                .get(replica.name())
                .map_or(held, |received| held.max(*received))
        };
        let all = self.replicas().iter();
        all.filter(|replica| counted(replica.name())).map(bytes).sum()
    }

    /// Records that replica `name` rejected an update because of its size. Returns the number of rejections in a row.
    pub fn does_not_fit(&self, name: &str, why: &Oversized) -> u32 {
        self.failures().refused(&failure(name), &why.to_string());
        self.sources().rejected(name)
    }

    /// Records that a start dropped the stored replica `name` because of its size; a failure until it is made again and
    /// applies an update.
    pub fn dropped(&self, name: &str, why: &str) {
        self.failures().refused(&failure(name), why);
        self.sources().rejected(name);
    }

    /// Records that replica `name` applied an update.
    pub fn fits(&self, name: &str) {
        if self.sources().accepted(name) {
            self.failures().works(&failure(name));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;
    use yurt_apimachinery::kind::find_kind;
    use yurt_apimachinery::{Object, ResourceKind, ResourceVersion};
    use yurt_pool_protocol::partial_list::Page;
    use yurt_pool_protocol::source::Source;
    use yurt_runtime::Clock;
    use yurt_storage::OnlyWriter as _;
    use yurt_test_support::TestDir;

    use super::*;

    const LIMIT: usize = 40_000;

    fn data(folder: &TestDir) -> PoolData {
        PoolData::open(folder.path(), "", (usize::MAX, LIMIT), Clock::system()).unwrap()
    }

    fn maps() -> &'static ResourceKind {
        find_kind("", "configmaps").unwrap()
    }

    /// A ConfigMap of this size.
    fn map(bytes: usize) -> Object {
        let of_length = |length: usize| {
            let metadata = json!({"namespace": "a", "name": "m", "uid": "m", "resourceVersion": "5"});
            Object::from_value(json!({"metadata": metadata, "data": "x".repeat(length)}), maps()).unwrap()
        };
        of_length(bytes - of_length(0).size())
    }

    /// Makes replica `name`, and fills it with this many bytes.
    fn hold(data: &PoolData, name: &str, bytes: usize) {
        let replica = data.replicas().create(name, maps());
        let collection = replica.collection();
        collection.update(|held| held.restart(0, vec![map(bytes)], ResourceVersion(10)));
        assert_eq!(collection.read(|held| held.size()), bytes);
    }

    /// Adds a page of this many bytes to the list of `name`, which goes on.
    fn receive(data: &PoolData, name: &str, bytes: usize) {
        let page = Page {
            items: vec![map(bytes)],
            bytes,
            rest: None,
            at: ResourceVersion(20),
            token: Some("next".to_owned()),
            generation: None,
        };
        let slot = data.partial_lists().slot(name, maps(), Source::Cloud);
        slot.take_page(page, (ResourceVersion::ZERO, 0), Duration::ZERO)
            .unwrap();
    }

    #[test]
    fn selections_of_tokens_leave_half_of_the_cache_to_the_node() {
        const OF_TOKENS: &str = "/api/v1/namespaces/a/pods#tokens";
        const OF_NODE: &str = "/api/v1/namespaces/a/secrets";
        let folder = TestDir::new();
        let data = data(&folder);
        assert!(data.require_room(OF_TOKENS, LIMIT / 2).is_ok());
        let refused = data.require_room(OF_TOKENS, LIMIT / 2 + 1).unwrap_err().to_string();
        assert!(refused.contains(" half of --max-cache-bytes=40000"), "{refused}");
        assert!(data.require_room(OF_NODE, LIMIT).is_ok());
        hold(&data, "/api/v1/configmaps#tokens", 15_000);
        hold(&data, "/api/v1/configmaps", 10_000);
        assert!(data.require_room(OF_TOKENS, 5_000).is_ok());
        assert!(
            data.require_room(OF_TOKENS, 5_001).is_err(),
            "above the part of all tokens"
        );
        assert!(data.require_room(OF_NODE, 15_000).is_ok());
        assert!(data.require_room(OF_NODE, 15_001).is_err(), "above the limit of all");
    }

    #[test]
    fn lists_that_go_on_at_the_same_time_stay_within_the_limit_together() {
        const LISTED: &str = "/api/v1/configmaps";
        const HELD: &str = "/api/v1/secrets";
        let folder = TestDir::new();
        let data = data(&folder);
        let _listed = data.replicas().create(LISTED, maps());
        receive(&data, LISTED, 25_000);
        assert!(data.require_room_for_list(LISTED, LIMIT).is_ok(), "it is the own one");
        assert!(data.require_room_for_list(HELD, 15_000).is_ok());
        assert!(data.require_room_for_list(HELD, 15_001).is_err());
        assert!(
            data.require_room(HELD, 15_001).is_ok(),
            "no list keeps changes from what is complete"
        );
        hold(&data, HELD, 15_000);
        receive(&data, HELD, 15_000);
        assert!(
            data.require_room_for_list(LISTED, 25_000).is_ok(),
            "a list again replaces the copy"
        );
    }

    #[test]
    fn lists_of_tokens_that_go_on_stay_within_their_part_together() {
        const LISTED: &str = "/api/v1/endpoints#tokens";
        let folder = TestDir::new();
        let data = data(&folder);
        let _other = data.replicas().create("/api/v1/pods#tokens", maps());
        receive(&data, "/api/v1/pods#tokens", 4_000);
        assert!(data.require_room_for_list(LISTED, LIMIT / 2 - 4_000).is_ok());
        let refused = data.require_room_for_list(LISTED, LIMIT / 2 - 3_999).unwrap_err();
        assert!(refused.to_string().contains("half of"), "{refused}");
    }
}
