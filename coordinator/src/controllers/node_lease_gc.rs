//! Garbage-collects the leases of nodes that left the pool. In a cluster the garbage collector follows the Node's uid;
//! the coordinator has no Nodes. Without this, every leader would read such a lease, which would offer a relay for
//! ever.
//!
//! Age is measured on the coordinator's own clock since the last observed change of the lease, never by the lease's own
//! fields.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::info;
use yurt_apimachinery::time::BootTime;
use yurt_apimachinery::{Object, ObjectKey, ResourceVersion};

use super::elapsed;
use crate::app::App;
use crate::lease_objects;
use crate::registry::own::Intent;

/// Bounds of the interval between checks, which is a quarter of the time to live.
const LOOK_EVERY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Node leases of nodes that are no members, with the version and time of the first observation. At most one entry per
/// such lease.
#[derive(Debug, Default)]
struct Departed(BTreeMap<ObjectKey, (ResourceVersion, BootTime)>);

// === impl Departed ===

impl Departed {
    /// The leases to delete now: of nodes that are not among `members`, unchanged for `ttl`. `leases` has to be
    /// complete.
    fn due<'a>(
        &mut self,
        leases: impl Iterator<Item = &'a Object>,
        members: &BTreeSet<String>,
        now: BootTime,
        ttl: Duration,
    ) -> Vec<Object> {
        let before = std::mem::take(&mut self.0);
        let mut due = Vec::new();
        for lease in leases.filter(|lease| lease_objects::is_of_node(lease) && !members.contains(lease.name())) {
            let version = lease.resource_version();
            let known = before.get(lease.key()).filter(|(seen, _)| *seen == version);
            let since = known.map_or(now, |(_, since)| *since);
            if now.since(since) >= ttl {
                due.push(lease.clone());
            }
            self.0.insert(lease.key().clone(), (version, since));
        }
        due
    }
}

/// Deletes expired leases until `stop`; deletes none until a leader has fed the members.
pub(super) async fn run(app: Arc<App>, intent: Intent, stop: CancellationToken) {
    let (group, resource) = lease_objects::RESOURCE;
    let Some(resource) = app.served().registry.find(group, resource).cloned() else {
        return stop.cancelled().await;
    };
    let ttl = app.settings.departed_lease_ttl;
    let every = (ttl / 4).clamp(LOOK_EVERY.0, LOOK_EVERY.1);
    let mut departed = Departed::default();
    while elapsed(every, &stop).await {
        let Some(members) = app.feed.members().names_from_leader() else {
            continue;
        };
        let now = app.clock.boot();
        let due = resource
            .objects()
            .read(|held| departed.due(held.objects(), &members, now, ttl));
        for lease in due {
            let node = lease.name().to_owned();
            // A lease that changed since the check lives on; a failed deletion is tried again.
            if app.own.delete_unchanged(&resource, lease, &intent).await {
                info!(node, "Lease of a departed node deleted");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use yurt_apimachinery::kind::find_kind;

    use super::*;

    const TTL: Duration = Duration::from_secs(600);

    fn at(secs: u64) -> BootTime {
        BootTime::from_boot(Duration::from_secs(secs))
    }

    fn lease(namespace: &str, name: &str, version: u64) -> Object {
        let lease = json!({"metadata": {"namespace": namespace, "name": name, "resourceVersion": version.to_string()}});
        let (group, resource) = lease_objects::RESOURCE;
        Object::from_value(lease, find_kind(group, resource).unwrap()).unwrap()
    }

    fn due(departed: &mut Departed, leases: &[Object], members: &[&str], now: u64) -> Vec<String> {
        let members = members.iter().map(|name| (*name).to_owned()).collect();
        let due = departed.due(leases.iter(), &members, at(now), TTL);
        due.iter().map(|lease| lease.key().to_string()).collect()
    }

    #[test]
    fn lease_of_a_node_that_left_goes_after_its_time_and_no_other() {
        let mut departed = Departed::default();
        let leases = [
            lease("kube-node-lease", "gone", 5),
            lease("kube-node-lease", "here", 5),
            lease("kube-system", "gone", 5),
        ];
        assert!(due(&mut departed, &leases, &["here"], 1000).is_empty());
        assert!(due(&mut departed, &leases, &["here"], 1599).is_empty());
        assert_eq!(due(&mut departed, &leases, &["here"], 1600), ["kube-node-lease/gone"]);
        assert_eq!(
            due(&mut departed, &leases, &["here"], 1700),
            ["kube-node-lease/gone"],
            "one that could not be deleted"
        );
        assert!(due(&mut departed, &leases[1..], &["here"], 1701).is_empty());
        assert!(departed.0.is_empty(), "nothing is remembered of what is gone");
    }

    #[test]
    fn sign_of_life_or_a_return_to_the_pool_begins_the_time_anew() {
        let mut departed = Departed::default();
        let [before, renewed] = [5, 6].map(|version| [lease("kube-node-lease", "n", version)]);
        assert!(due(&mut departed, &before, &[], 1000).is_empty());
        assert!(due(&mut departed, &renewed, &[], 1600).is_empty(), "it lives");
        assert!(due(&mut departed, &renewed, &["n"], 2199).is_empty(), "a member");
        assert!(due(&mut departed, &renewed, &[], 2200).is_empty());
        assert!(due(&mut departed, &renewed, &[], 2799).is_empty());
        assert_eq!(due(&mut departed, &renewed, &[], 2800), ["kube-node-lease/n"]);
    }
}
