//! Evidence that this hub holds of the cloud's history: positions, newest objects, last deletions, and its node's
//! lease.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use yurt_apimachinery::meta::dns_subdomain_errors;
use yurt_apimachinery::{Object, ObjectKey, ResourceVersion};
use yurt_collection::Collection;
use yurt_pool_protocol::history::{HeldVersion, KnownHistory, NEWEST, ObjectRef};
use yurt_pool_protocol::members;

use super::HistoryVerifier;
use crate::replicas::{POOL_SCOPE, is_cached};

/// Evidence by its source: what this hub read from the cloud itself, and what may have come from the pool's leader.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Evidence of the selections.
    pub(super) selections: KnownHistory,
    /// Name of the selection with the highest `C`.
    pub(super) highest: Option<String>,
    /// Evidence of the pool data.
    pub(super) pool: KnownHistory,
    /// Generations of all replicas that the proof covers.
    pub(super) generations: BTreeMap<String, u64>,
}

/// Evidence of some replicas, in the course of its collection.
#[derive(Default)]
struct Gathered {
    /// The highest `C`, and the name of the replica.
    highest: Option<(ResourceVersion, String)>,
    newest: BTreeMap<ObjectRef, HeldVersion>,
    deleted: Vec<(String, Object)>,
}

// === impl HistoryVerifier ===

impl HistoryVerifier {
    /// Returns the state of all histories that are not known to be gone, partial lists included.
    pub(super) async fn known(&self) -> Known {
        let mut generations = BTreeMap::new();
        let (mut selections, mut pool) = (Gathered::default(), Gathered::default());
        for replica in self.data.replicas().iter() {
            let (name, kind) = (replica.name(), replica.collection().kind());
            let (generation, at, held, deleted) = replica.collection().read(|c| {
                let held = c.is_complete().then(|| (c.position(), newest_of(c)));
                let deleted: Vec<_> = c.deletions().take(NEWEST).cloned().collect();
                (c.generation(), c.position(), held, deleted)
            });
            let coming = self.data.partial_lists().evidence(name, kind, at, NEWEST).await;
            if self.data.history().is_gone(name, generation) {
                continue;
            }
            let there = self.at_coordinator(name, generation);
            if held.is_some() || coming.is_some() || there.is_some() {
                generations.insert(name.to_owned(), generation);
            }
            let gathered = if is_cached(name) { &mut selections } else { &mut pool };
            if is_numbered(name) {
                let positions = [
                    there,
                    held.as_ref().map(|held| held.0),
                    coming.as_ref().map(|coming| coming.0),
                ];
                gathered.add_position(name, positions.into_iter().flatten().max());
            }
            if name == members::COLLECTION || !is_numbered(name) {
                continue;
            }
            let held = held.map(|(at, newest)| (newest, Some(at)));
            // A partial list is not one state yet: only the existence of its objects is known.
            let coming = coming.map(|(_, newest)| (newest, None));
            for (newest, at) in held.into_iter().chain(coming) {
                gathered.add_newest(name, newest, at);
            }
            if loses_only_what_is_deleted(name) {
                gathered.add_deleted(name, deleted);
            }
        }
        let lease = self.lease.version();
        Known {
            highest: selections.highest.as_ref().map(|(_, name)| name.clone()),
            selections: selections.known(lease),
            pool: pool.known(lease),
            generations,
        }
    }

    /// Position of the coordinator's replica `name`, if it has the same history.
    fn at_coordinator(&self, name: &str, generation: u64) -> Option<ResourceVersion> {
        let reach = self.coordinator.borrow();
        let there = reach.status.as_ref()?.collections.get(name)?;
        let same = there.complete && there.generation == generation;
        ResourceVersion::parse(&there.applied_up_to).ok().filter(|_| same)
    }
}

// === impl Known ===

impl Known {
    /// True if there is nothing that a cloud could contradict.
    pub(super) fn is_nothing(&self) -> bool {
        self.selections.is_nothing() && self.pool.is_nothing()
    }
}

// === impl Gathered ===

impl Gathered {
    fn add_position(&mut self, name: &str, position: Option<ResourceVersion>) {
        let highest = self.highest.as_ref().map(|(highest, _)| *highest);
        if let Some(position) = position.filter(|position| Some(*position) > highest) {
            self.highest = Some((position, name.to_owned()));
        }
    }

    /// Adds objects of replica `name` that were in this state at `at`, and keeps the newest.
    fn add_newest(&mut self, name: &str, newest: Vec<(ObjectKey, ResourceVersion)>, at: Option<ResourceVersion>) {
        for (key, version) in newest.into_iter().filter(|(key, _)| is_name(key)) {
            let at = at.unwrap_or(version);
            let held = self.newest.entry((name.to_owned(), key)).or_default();
            *held = HeldVersion { version, at }.max(*held);
        }
        let mut by_version: Vec<_> = self.newest.values().copied().collect();
        by_version.sort_unstable_by(|a, b| b.cmp(a));
        let least = by_version.get(NEWEST - 1).copied().unwrap_or_default();
        self.newest.retain(|_, held| *held >= least);
    }

    /// Adds last states of deleted objects, and keeps the newest.
    fn add_deleted(&mut self, name: &str, deleted: Vec<Object>) {
        let deleted = deleted.into_iter().filter(|object| is_name(object.key()));
        self.deleted.extend(deleted.map(|object| (name.to_owned(), object)));
        self.deleted
            .sort_by_key(|(_, object)| Reverse(object.resource_version()));
        self.deleted.truncate(NEWEST);
    }

    fn known(self, lease: Option<ResourceVersion>) -> KnownHistory {
        let of_uid = |(name, object): (String, Object)| ((name, object.key().clone()), object.uid().to_owned());
        KnownHistory {
            position: self.highest.map(|(position, _)| position).unwrap_or_default(),
            lease,
            newest: self.newest,
            deleted: self.deleted.into_iter().map(of_uid).collect(),
        }
    }
}

/// True if the key can be part of the path of a request. A leader may have forged others, which would fail every proof.
fn is_name(key: &ObjectKey) -> bool {
    let parts = [Some(key.name()), key.namespace()];
    let is_usable = |part: &str| dns_subdomain_errors(part).is_empty();
    parts.into_iter().flatten().all(is_usable)
}

fn newest_of(held: &Collection) -> Vec<(ObjectKey, ResourceVersion)> {
    held.newest(NEWEST)
        .map(|(key, version)| (key.clone(), version))
        .collect()
}

/// True if the replica's RVs are evidence. Those of pool data have to be of the etcd of the Services. A selection is
/// compared with its own resource, if kube-apiserver itself serves it and the node may read it.
fn is_numbered(name: &str) -> bool {
    match is_cached(name) {
        // The names of all other selections have a part that says so.
        true => !name.contains('#'),
        false => POOL_SCOPE.contains(&name) || name == members::COLLECTION,
    }
}

/// True if an object leaves the replica only by its deletion. Others may leave when a label or a field changes, and
/// return.
fn loses_only_what_is_deleted(name: &str) -> bool {
    let Some((_, query)) = name.split_once('?') else {
        return true;
    };
    let fixed = ["fieldSelector=metadata.name%3D", "fieldSelector=spec.nodeName%3D"];
    let value = fixed.iter().find_map(|fixed| query.strip_prefix(fixed));
    // A pod without a node gets one, and a comma begins another requirement.
    value.is_some_and(|value| !value.is_empty() && !value.contains("%2C"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selections_with_the_numbers_of_other_servers_are_no_evidence() {
        for (name, expected) in [
            ("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1", true),
            ("/api/v1/configmaps#tokens", false),
            (
                "/apis/example.com/v1/widgets#Widget#WidgetList#widget#namespaced",
                false,
            ),
            ("services", true),
            ("widgets.example.com", false),
        ] {
            assert_eq!(is_numbered(name), expected, "{name}");
        }
    }

    #[test]
    fn object_that_may_only_have_left_a_selection_is_not_deleted() {
        for (name, expected) in [
            ("services", true),
            ("/api/v1/nodes", true),
            ("/api/v1/namespaces/shop/secrets?fieldSelector=metadata.name%3Ddb", true),
            ("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1", true),
            ("/api/v1/pods?fieldSelector=spec.nodeName%3D", false),
            ("/api/v1/pods?fieldSelector=spec.nodeName%21%3Dn1", false),
            (
                "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1%2Cstatus.phase%3DRunning",
                false,
            ),
            ("/api/v1/pods?labelSelector=app&fieldSelector=spec.nodeName%3Dn1", false),
        ] {
            assert_eq!(loses_only_what_is_deleted(name), expected, "{name}");
        }
    }

    /// A server answers no path with them, cleans it, or ends the connection.
    #[test]
    fn forged_names_are_no_evidence() {
        let long = format!("shop/{}", "x".repeat(100_000));
        for forged in [
            "shop/a b",
            "shop/..",
            "../web",
            "shop/web?watch=1",
            "shop/%",
            long.as_str(),
        ] {
            assert!(!is_name(&ObjectKey::parse(forged)), "{forged}");
        }
        for usable in ["shop/web", "n1.example.com"] {
            assert!(is_name(&ObjectKey::parse(usable)), "{usable}");
        }
    }

    #[test]
    fn newest_of_all_replicas_are_kept() {
        let mut gathered = Gathered::default();
        for (name, version) in [("/a", 5), ("/b", 9), ("/c", 7), ("/d", 1), ("/e", 8)] {
            let version = ResourceVersion(version);
            gathered.add_position(name, Some(version));
            gathered.add_newest(name, vec![(ObjectKey::parse("x"), version)], Some(version));
        }
        let highest = gathered.highest.clone();
        assert_eq!(highest, Some((ResourceVersion(9), "/b".to_owned())));
        let names: Vec<_> = gathered.newest.keys().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["/b", "/c", "/e"]);
    }
}
