//! Evidence that this hub holds of the cloud's history: positions, newest objects, last deletions, and its node's lease.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use yurt_apimachinery::{Object, ResourceVersion};
use yurt_pool_protocol::history::{HeldVersion, KnownHistory, NEWEST};
use yurt_pool_protocol::members;

use super::HistoryVerifier;
use crate::replicas::POOL_SCOPE;
use crate::replicas::partial_list_store::Evidence;

// === impl HistoryVerifier ===

impl HistoryVerifier {
    /// Returns the state of all histories that are not known to be gone, partial lists included, and their generations.
    pub(super) async fn known(&self) -> (KnownHistory, BTreeMap<String, u64>) {
        let mut known = KnownHistory {
            lease: self.lease.version(),
            ..KnownHistory::default()
        };
        let (mut generations, mut last_deleted) = (BTreeMap::new(), Vec::new());
        for replica in self.data.replicas().iter() {
            let (name, kind) = (replica.name(), replica.collection().kind());
            let (generation, at, held, deleted) = replica.collection().read(|c| {
                let newest = c.newest(NEWEST).map(|(key, rv)| (key.clone(), rv));
                let held: Option<Evidence> = c.is_complete().then(|| (c.position(), newest.collect()));
                let deleted: Vec<_> = c.deletions().take(NEWEST).cloned().collect();
                (c.generation(), c.position(), held, deleted)
            });
            let coming = self.data.partial_lists().evidence(name, kind, at, NEWEST).await;
            if self.data.history().is_gone(name, generation) {
                continue;
            }
            // The position is compared with the head of Services. Other resources may have RVs of another etcd.
            let numbered = POOL_SCOPE.contains(&name) || name == members::COLLECTION;
            if let Some(there) = self.at_coordinator(name, generation) {
                if numbered {
                    known.position = known.position.max(there);
                }
                generations.insert(name.to_owned(), generation);
            }
            let held = held.map(|(at, newest)| (at, newest, Some(at)));
            // A partial list is not one state yet: only the existence of its objects is known.
            let coming = coming.map(|(at, newest)| (at, newest, None));
            for (position, newest, at) in held.into_iter().chain(coming) {
                if numbered {
                    known.position = known.position.max(position);
                }
                generations.insert(name.to_owned(), generation);
                for (key, version) in newest.into_iter().filter(|_| POOL_SCOPE.contains(&name)) {
                    let at = at.unwrap_or(version);
                    let held = known.newest.entry((name.to_owned(), key)).or_default();
                    *held = HeldVersion { version, at }.max(*held);
                }
            }
            if POOL_SCOPE.contains(&name) {
                last_deleted.extend(deleted.into_iter().map(|object| (name.to_owned(), object)));
            }
        }
        let mut by_version: Vec<_> = known.newest.values().copied().collect();
        by_version.sort_unstable_by(|a, b| b.cmp(a));
        let least = by_version.get(NEWEST - 1).copied().unwrap_or_default();
        known.newest.retain(|_, held| *held >= least);
        last_deleted.sort_unstable_by_key(|(_, object)| Reverse(object.resource_version()));
        let of_uid = |(name, object): (String, Object)| ((name, object.key().clone()), object.uid().to_owned());
        known.deleted = last_deleted.into_iter().take(NEWEST).map(of_uid).collect();
        (known, generations)
    }

    /// Position of the coordinator's replica `name`, if it has the same history.
    fn at_coordinator(&self, name: &str, generation: u64) -> Option<ResourceVersion> {
        let reach = self.coordinator.borrow();
        let there = reach.status.as_ref()?.collections.get(name)?;
        let same = there.complete && there.generation == generation;
        ResourceVersion::parse(&there.applied_up_to).ok().filter(|_| same)
    }
}
