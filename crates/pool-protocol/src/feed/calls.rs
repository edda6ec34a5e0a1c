//! Calls of the feed as the coordinator reads them; [`super::encode`] writes them.

use serde::Deserialize;
use serde_json::value::RawValue;
use yurt_apimachinery::{ResourceKind, ResourceVersion, Status};
use yurt_collection::{GAPS_MAX, Gap, History, RangeTombstone, TOMBSTONES_MAX};

use super::Refusal;
use super::events::read_object;
use crate::fence::Claim;

/// `POST …/events`: events of the cloud's log after `after`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EventsCall<'a> {
    /// Id of the store the leader was elected in.
    pub store: String,
    /// Epoch it was elected with.
    pub epoch: u64,
    /// Generation of the collection.
    pub generation: u64,
    /// Must be the collection's `C`.
    pub after: ResourceVersion,
    /// The events, by RV.
    #[serde(borrow)]
    pub events: Vec<EventOnWire<'a>>,
    /// The collection's `C` afterwards: there were no other events up to it.
    pub up_to: ResourceVersion,
    /// True if the collection is at the cloud's present state.
    #[serde(default)]
    pub fresh: bool,
    /// True if the events contain only the last state of each key: they apply together or not at all.
    #[serde(default)]
    pub step: bool,
}

/// One watch event.
#[derive(Debug, Deserialize)]
pub struct EventOnWire<'a> {
    /// `ADDED`, `MODIFIED` or `DELETED`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The object, as the cloud sent it.
    #[serde(borrow)]
    pub object: &'a RawValue,
}

/// `POST …/snapshot`: keys and RVs of all objects at `at`.
#[derive(Debug, Deserialize)]
pub struct SnapshotCall<'a> {
    /// Id of the store the leader was elected in.
    pub store: String,
    /// Epoch it was elected with.
    pub epoch: u64,
    /// Generation of the collection.
    pub generation: u64,
    /// Position of the snapshot.
    pub at: ResourceVersion,
    /// Keys and RVs.
    pub index: Vec<(String, ResourceVersion)>,
    /// Number of keys in earlier parts of the index.
    #[serde(default)]
    pub from: usize,
    /// True if other parts of the index follow.
    #[serde(default)]
    pub more: bool,
    /// For a coordinator that has no data.
    #[serde(default, borrow)]
    pub history: Option<HistoryOnWire<'a>>,
    /// True if the collection is at the cloud's present state.
    #[serde(default)]
    pub fresh: Option<bool>,
}

/// The leader's history before `at`.
#[derive(Debug, Deserialize)]
pub struct HistoryOnWire<'a> {
    floor: ResourceVersion,
    gaps: Vec<Gap>,
    #[serde(borrow)]
    tombstones: Vec<&'a RawValue>,
    #[serde(borrow)]
    ranges: Vec<RangeOnWire<'a>>,
}

#[derive(Debug, Deserialize)]
struct RangeOnWire<'a> {
    after: ResourceVersion,
    to: ResourceVersion,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// `POST …/snapshot/bodies`: some of the objects that were missing.
#[derive(Debug, Deserialize)]
pub struct BodiesCall<'a> {
    /// Id of the store the leader was elected in.
    pub store: String,
    /// Epoch it was elected with.
    pub epoch: u64,
    /// Generation of the collection.
    pub generation: u64,
    /// Position of the snapshot.
    pub at: ResourceVersion,
    /// The objects, as the cloud sent them.
    #[serde(borrow)]
    pub objects: Vec<&'a RawValue>,
    /// True if the collection is at the cloud's present state.
    #[serde(default)]
    pub fresh: Option<bool>,
}

// === impl EventsCall, SnapshotCall, HistoryOnWire, BodiesCall ===

impl EventsCall<'_> {
    /// Claim of the caller.
    #[must_use]
    pub fn claim(&self) -> Claim {
        Claim {
            store: self.store.clone(),
            epoch: self.epoch,
        }
    }
}

impl SnapshotCall<'_> {
    /// Claim of the caller.
    #[must_use]
    pub fn claim(&self) -> Claim {
        Claim {
            store: self.store.clone(),
            epoch: self.epoch,
        }
    }

    /// Checks that a cloud gets to `at`, and that every object of this part was written by then.
    ///
    /// # Errors
    /// [`Refusal::Position`].
    pub fn check_positions(&self) -> Result<(), Refusal> {
        Refusal::check_position("at", self.at)?;
        let ahead = self.index.iter().map(|(_, rv)| *rv).find(|rv| *rv > self.at);
        ahead.map_or(Ok(()), |rv| {
            let message = format!(
                "resourceVersion {rv} of an object is refused: it is above at {}",
                self.at
            );
            Err(Refusal::Position { message })
        })
    }

    /// Parses the history in the call.
    ///
    /// # Errors
    /// 400 when it is not the time before `at`.
    pub fn history(&self, kind: &ResourceKind) -> Result<Option<History>, Status> {
        let history = self.history.as_ref().map(|history| history.read(self.at, kind));
        history
            .transpose()
            .map_err(|why| Status::bad_request(format!("history of a snapshot: {why}")))
    }
}

impl HistoryOnWire<'_> {
    fn read(&self, at: ResourceVersion, kind: &ResourceKind) -> Result<History, String> {
        // The bounds of a collection: no leader remembers more.
        let deletions = self.tombstones.len() + self.ranges.len();
        if deletions > TOMBSTONES_MAX || self.gaps.len() > GAPS_MAX {
            let gaps = self.gaps.len();
            return Err(format!(
                "it has {deletions} deletions and {gaps} gaps; at most {TOMBSTONES_MAX} and {GAPS_MAX} are taken"
            ));
        }
        let floor = self.floor;
        let within = |from: ResourceVersion, to: ResourceVersion| match from < to && floor < to && to <= at {
            true => Ok(()),
            false => Err(format!("({from}, {to}] is not within ({floor}, {at}]")),
        };
        if floor > at {
            return Err(format!("it begins at {floor} and ends at {at}"));
        }
        let mut history = History {
            floor,
            ..History::default()
        };
        for gap in &self.gaps {
            within(gap.from, gap.to)?;
            history.gaps.push(*gap);
        }
        for raw in &self.tombstones {
            let object = read_object(raw.get(), kind)?;
            within(floor, object.resource_version())?;
            history.tombstones.push(object);
        }
        for RangeOnWire { after, to, object } in &self.ranges {
            within(*after, *to)?;
            // Zero means that the entry is left from an earlier generation.
            if after.is_zero() {
                return Err(format!("a range to {to} has no start"));
            }
            history.ranges.push(RangeTombstone {
                after: *after,
                to: *to,
                object: read_object(object.get(), kind)?,
            });
        }
        Ok(history)
    }
}

impl BodiesCall<'_> {
    /// Claim of the caller.
    #[must_use]
    pub fn claim(&self) -> Claim {
        Claim {
            store: self.store.clone(),
            epoch: self.epoch,
        }
    }
}

#[cfg(test)]
mod tests {
    use yurt_apimachinery::kind::find_kind;

    use super::*;

    /// Result of a call with so many gaps, tombstones and ranges.
    fn read(gaps: usize, tombstones: usize, ranges: usize) -> Result<usize, String> {
        let tombstone = r#"{"metadata":{"namespace":"x","name":"a","resourceVersion":"5"}}"#;
        let range = format!(r#"{{"after":"4","to":"6","object":{tombstone}}}"#);
        let list = |one: &str, count: usize| vec![one; count].join(",");
        let text = format!(
            r#"{{"floor":"1","gaps":[{}],"tombstones":[{}],"ranges":[{}]}}"#,
            list(r#"{"from":"2","to":"3"}"#, gaps),
            list(tombstone, tombstones),
            list(&range, ranges)
        );
        let history: HistoryOnWire<'_> = serde_json::from_str(&text).expect("a history");
        let services = find_kind("", "services").expect("services are built in");
        let read = history.read(ResourceVersion(10), services);
        read.map(|read| read.gaps.len() + read.tombstones.len() + read.ranges.len())
    }

    #[test]
    fn history_is_not_longer_than_a_collection_remembers() {
        assert_eq!(read(GAPS_MAX, TOMBSTONES_MAX - 5, 5), Ok(GAPS_MAX + TOMBSTONES_MAX));
        for (gaps, tombstones, ranges) in [
            (GAPS_MAX + 1, 0, 0),
            (0, TOMBSTONES_MAX + 1, 0),
            (0, 0, TOMBSTONES_MAX + 1),
            (0, TOMBSTONES_MAX, 1),
        ] {
            let refused = read(gaps, tombstones, ranges);
            assert!(
                refused.as_ref().is_err_and(|why| why.contains("at most 20000 and 32")),
                "{refused:?}"
            );
        }
    }

    #[test]
    fn names_that_no_cloud_accepts_are_refused_with_their_key() {
        let read = |plural: &str, namespace: &str, name: &str| {
            let kind = find_kind("", plural).expect("a built-in kind");
            let metadata = serde_json::json!({"namespace": namespace, "name": name, "resourceVersion": "5"});
            let text = serde_json::json!({ "metadata": metadata }).to_string();
            read_object(&text, kind).map(|object| object.key().to_string())
        };
        for (namespace, name) in [
            ("shop", "."),
            ("shop", ".."),
            ("shop", "a%2fb"),
            ("Shop", "web"),
            ("shop.x", "web"),
            ("..", "web"),
            ("a%b", "web"),
        ] {
            let why = read("services", namespace, name).unwrap_err();
            assert!(why.contains(&format!("{namespace}/{name}")), "{why}");
        }
        assert!(read("nodes", "", "a%b").unwrap_err().contains("a%b"));
        // Some kinds have such names, and later rules do not concern older objects.
        for (plural, namespace, name) in [
            ("services", "kube-system", "system:controller:Token_cleaner"),
            ("nodes", "", "system:node"),
        ] {
            assert!(read(plural, namespace, name).is_ok(), "{name}");
        }
    }
}
