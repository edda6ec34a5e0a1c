//! State of the feed and of every collection, which all members poll.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::VERSION;
use crate::pool_scope::SharedResource;

/// Answer of `GET /yurt/v1/feed`. A hub ignores the fields that are only for operators, so that an answer is equal to
/// the one before unless something changed that the hub acts on.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PoolStatus {
    /// Random id of the coordinator's store.
    pub store: String,
    /// Epoch of the present leader.
    #[serde(default)]
    pub epoch: u64,
    /// Identity of the present leader; empty if there is none.
    #[serde(default)]
    pub holder: String,
    /// Time of the last write of the election lease, in RFC 3339, once the lease of `holder` has expired; absent
    /// before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder_silent_since: Option<String>,
    /// Versions of the feed that the coordinator speaks; empty from a coordinator older than the first version.
    #[serde(default)]
    pub versions: Vec<u64>,
    /// Number of members; `None` while they are unknown. For operators.
    #[serde(skip_deserializing)]
    pub members: Option<usize>,
    /// Origin of the members. For operators.
    #[serde(skip_deserializing)]
    pub members_from: String,
    /// Compressions that the coordinator accepts for bodies of the feed.
    #[serde(default)]
    pub encodings: Vec<String>,
    /// Collections that the coordinator has.
    #[serde(default)]
    pub collections: BTreeMap<String, CollectionStatus>,
    /// Resources that the pool shares; `None` from a coordinator that does not report them.
    #[serde(default)]
    pub scope: Option<ScopeStatus>,
    /// Open reports of forged data.
    #[serde(default)]
    pub reports: Vec<OpenReport>,
    /// Nodes that may not hold the election lease. For operators.
    #[serde(skip_deserializing)]
    pub barred: Vec<Bar>,
}

/// Resources that the pool shares, as the coordinator reports them.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct ScopeStatus {
    /// Resources from the coordinator's command line.
    #[serde(default)]
    pub configured: Vec<SharedResource>,
    /// Resources sent by a leader; `None` until a leader has sent them.
    #[serde(default)]
    pub told: Option<Vec<SharedResource>>,
}

/// State of one collection at the coordinator.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct CollectionStatus {
    /// Generation of the collection's history.
    #[serde(default)]
    pub generation: u64,
    /// Position `C`: everything up to this RV is applied.
    pub applied_up_to: String,
    /// Everything up to this RV survives a crash. For operators.
    #[serde(skip_deserializing)]
    pub durable_up_to: String,
    /// True if the collection is complete.
    #[serde(default)]
    pub complete: bool,
    /// True if the leader reports that the collection is at the cloud's present state.
    #[serde(default)]
    pub fresh: bool,
    /// Seconds since the collection was last fresh; `None` if it never was. For operators.
    #[serde(skip_deserializing)]
    pub staleness_seconds: Option<u64>,
}

/// An open report of forged data.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase", default)]
pub struct OpenReport {
    /// Node that reported.
    pub accuser: String,
    /// Name of the collection.
    pub collection: String,
    /// Generation of the collection.
    pub generation: u64,
    /// Key of the object.
    pub key: String,
    /// RV of the object that was found; `0` if the coordinator lacked it.
    pub resource_version: String,
    /// Kind of the forgery. For operators.
    #[serde(skip_deserializing)]
    pub reason: String,
}

/// A node that may not hold the election lease.
#[derive(Clone, Debug, Default, Serialize, PartialEq, Eq)]
pub struct Bar {
    /// Name of the node.
    pub node: String,
    /// End of the bar, in RFC 3339.
    pub until: String,
    /// Number of bars so far.
    pub count: usize,
}

// === impl PoolStatus ===

impl PoolStatus {
    /// Returns the reason if hub and coordinator speak no common version of the feed. The hub then neither leads nor
    /// feeds; it still reads from the coordinator.
    #[must_use]
    pub fn other_version(&self) -> Option<String> {
        let (ours, theirs) = (VERSION, &self.versions);
        if theirs.contains(&ours) {
            return None;
        }
        let is_newer = theirs.iter().any(|version| *version > ours);
        let older = if is_newer { "this hub" } else { "the coordinator" };
        Some(format!(
            "this hub speaks version {ours} of the feed, the coordinator speaks {theirs:?}; this hub neither leads nor feeds; upgrade {older}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn hub_reads_what_it_acts_on_and_nothing_else() {
        let collection = CollectionStatus {
            generation: 7,
            applied_up_to: "90".to_owned(),
            durable_up_to: "80".to_owned(),
            complete: true,
            fresh: false,
            staleness_seconds: Some(31),
        };
        let status = PoolStatus {
            store: "s".to_owned(),
            epoch: 3,
            holder: "a_1".to_owned(),
            versions: vec![1],
            members: Some(2),
            members_from: "leader".to_owned(),
            collections: [("services".to_owned(), collection)].into(),
            reports: vec![OpenReport {
                accuser: "b".to_owned(),
                reason: "changed".to_owned(),
                ..OpenReport::default()
            }],
            ..PoolStatus::default()
        };
        let written = serde_json::to_value(&status).unwrap();
        assert_eq!(
            written["collections"]["services"],
            json!({"generation": 7, "appliedUpTo": "90", "durableUpTo": "80", "complete": true, "fresh": false,
                "stalenessSeconds": 31})
        );
        assert_eq!(
            (&written["membersFrom"], &written["members"]),
            (&json!("leader"), &json!(2))
        );
        let read: PoolStatus = serde_json::from_value(written).unwrap();
        let mut expected = status;
        (expected.members, expected.members_from) = (None, String::new());
        expected.reports[0].reason.clear();
        let services = expected.collections.get_mut("services").unwrap();
        services.durable_up_to.clear();
        services.staleness_seconds = None;
        assert_eq!(read, expected);
    }

    #[test]
    fn older_coordinator_is_understood() {
        let read: PoolStatus =
            serde_json::from_str(r#"{"store":"s","collections":{"services":{"appliedUpTo":"5"}}}"#).unwrap();
        assert_eq!((read.scope.is_none(), read.versions.len()), (true, 0));
        assert_eq!(read.collections["services"].applied_up_to, "5");
    }
}
