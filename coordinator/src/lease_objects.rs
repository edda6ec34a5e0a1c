//! Facts read from Lease objects, and the names of their collection. Pure.

use std::time::Duration;

use yurt_apimachinery::lease::LeaseSpec;
use yurt_apimachinery::time::MicroTime;
use yurt_apimachinery::{Object, json_text};
use yurt_pool_protocol::heartbeat::forward::is_relayed;
use yurt_pool_protocol::heartbeat::{DELEGATE_HEARTBEAT_ANNOTATION, DELEGATE_HEARTBEAT_VALUE, RELAYED_ANNOTATION};
use yurt_pool_protocol::names::{INFORMER_SYNC_KEY, NODE_LEASES};

/// Name of the collection.
pub(crate) const COLLECTION: &str = "leases.coordination.k8s.io";
/// Its group and plural name.
pub(crate) const RESOURCE: (&str, &str) = ("coordination.k8s.io", "leases");

/// True if this is a node's heartbeat.
pub(crate) fn is_of_node(lease: &Object) -> bool {
    lease.namespace() == Some(NODE_LEASES)
}

/// True if the leader has to forward this node's heartbeats to the cloud.
pub(crate) fn is_delegated(lease: &Object) -> bool {
    let is_delegated = || lease.annotation(DELEGATE_HEARTBEAT_ANNOTATION).as_deref() == Some(DELEGATE_HEARTBEAT_VALUE);
    let relayed = || MicroTime::parse(&lease.annotation(RELAYED_ANNOTATION)?).ok();
    let is_relayed = || is_relayed(renew_time(Some(lease)).map(Into::into), relayed().map(Into::into));
    is_of_node(lease) && is_delegated() && !is_relayed()
}

/// Key of the object below the storage key `key`, if it is a lease that the guard covers.
pub(crate) fn guarded(key: &str) -> Option<&str> {
    let lease = key.strip_prefix('/')?.strip_prefix(COLLECTION)?.strip_prefix('/')?;
    let namespace = lease.split_once('/').map(|(namespace, _)| namespace);
    (namespace != Some(NODE_LEASES) && lease != INFORMER_SYNC_KEY).then_some(lease)
}

/// Holder of a stored lease; empty when there is none, or the lease cannot be parsed.
pub(crate) fn holder(value: &[u8]) -> String {
    let lease = json_text::parse(value).unwrap_or_default();
    let spec = LeaseSpec::from_value(&lease).unwrap_or_default();
    spec.holder().unwrap_or_default().to_owned()
}

/// Holder and duration of a stored lease; no holder when there is no lease, or one that cannot be parsed.
pub(crate) fn standing(lease: Option<&Object>) -> (String, Duration) {
    let spec = lease
        .and_then(|lease| LeaseSpec::from_object(lease).ok())
        .unwrap_or_default();
    let seconds = spec
        .lease_duration_seconds
        .and_then(|seconds| u64::try_from(seconds).ok())
        .unwrap_or_default();
    (
        spec.holder().unwrap_or_default().to_owned(),
        Duration::from_secs(seconds),
    )
}

/// `renewTime` of a stored lease.
pub(crate) fn renew_time(lease: Option<&Object>) -> Option<MicroTime> {
    LeaseSpec::from_object(lease?).ok()?.renew_time
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use yurt_apimachinery::kind::find_kind;

    use super::*;

    fn beat(relayed: Option<&str>) -> Object {
        let annotations = json!({"openyurt.io/delegate-heartbeat": "true", "openyurt.io/relayed": relayed});
        let lease = json!({
            "metadata": {"namespace": NODE_LEASES, "name": "n1", "annotations": annotations},
            "spec": {"holderIdentity": "n1", "renewTime": "2026-11-20T10:01:00.000000Z"},
        });
        Object::from_value(lease, find_kind(RESOURCE.0, RESOURCE.1).expect("leases are built in")).expect("a lease")
    }

    #[test]
    fn leader_does_not_forward_what_a_relay_delivers() {
        assert!(is_delegated(&beat(None)));
        assert!(!is_delegated(&beat(Some("2026-11-20T10:01:00.000000Z"))));
        assert!(
            is_delegated(&beat(Some("2026-11-20T10:00:00.000000Z"))),
            "the relay has ended"
        );
    }
}
