//! Compares the coordinator's members with those of the NodePool in the cloud: a leader may have fed others.

use std::collections::BTreeSet;

use serde_json::Value;
use yurt_collection::Collection;
use yurt_pool_protocol::members::{COLLECTION, names};
use yurt_pool_protocol::source::Source;

use super::nodepool::{VERSIONS, nodes_of};
use super::questions::get;
use super::verify::Verifier;

/// Name of the failure while the members differ.
const FAILURE: &str = "truth of members";
/// Maximum names shown of each kind of difference.
const SHOWN_MAX: usize = 5;

// === impl Verifier ===

impl Verifier {
    /// Compares once. A difference is reported if the previous comparison, `before`, found it as well: the leader
    /// updates the coordinator slightly later than the cloud answers the hub. Without a NodePool that names nodes
    /// nothing is compared.
    ///
    /// # Errors
    /// Reason why the cloud did not answer.
    pub(super) async fn compare_members(&self, before: &mut Option<String>) -> Result<(), String> {
        let failures = self.data.failures();
        let copy = self.data.replicas().named(COLLECTION);
        let copy = copy.filter(|_| self.data.sources().of(COLLECTION).source == Source::Coordinator);
        let told = copy.and_then(|copy| {
            let of = |held: &Collection| held.is_complete().then(|| names(held.objects()));
            copy.collection().read(of)
        });
        let (Some(told), Some(real)) = (told, self.ask_members().await?) else {
            *before = None;
            failures.forget(FAILURE);
            return Ok(());
        };
        let now = difference(&told, &real);
        if now.is_none() || now == *before {
            failures.tell(FAILURE, now.clone());
        }
        *before = now;
        Ok(())
    }

    /// Returns the names of the nodes of our NodePool; `None` if it cannot be read or names no nodes.
    async fn ask_members(&self) -> Result<Option<BTreeSet<String>>, String> {
        for version in VERSIONS {
            let path = format!(
                "/apis/apps.openyurt.io/{version}/nodepools?fieldSelector=metadata.name%3D{}",
                self.pool
            );
            let list = get(self.cloud.server(), &path, "").await?;
            let Some(list) = list.and_then(|body| serde_json::from_slice::<Value>(&body).ok()) else {
                continue;
            };
            return Ok(Some(nodes_of(&list["items"][0])).filter(|nodes| !nodes.is_empty()));
        }
        Ok(None)
    }
}

/// Describes the names that `told` has in addition to `real` and those that it lacks; `None` if both are equal.
fn difference(told: &BTreeSet<String>, real: &BTreeSet<String>) -> Option<String> {
    let shown = |names: Vec<&String>| {
        let first: Vec<&str> = names.iter().take(SHOWN_MAX).map(|name| name.as_str()).collect();
        let more = names.len().saturating_sub(SHOWN_MAX);
        match (first.join(", "), more) {
            (first, 0) => format!("[{first}]"),
            (first, more) => format!("[{first} and {more} more]"),
        }
    };
    if told == real {
        return None;
    }
    let (beside, lacks) = (told.difference(real).collect(), real.difference(told).collect());
    Some(format!(
        "the coordinator's members have {} that the NodePool in the cloud does not name, and lack {} that it names; where the \
         leader is not to be trusted, an administrator voids them: DELETE /yurt/v1/members at the coordinator",
        shown(beside),
        shown(lacks)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn difference_names_both_sides_and_not_too_many() {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        assert_eq!(difference(&set(&["a", "b"]), &set(&["b", "a"])), None);
        let why = difference(&set(&["a", "x"]), &set(&["a", "b"])).unwrap_or_default();
        assert!(why.contains("have [x]") && why.contains("lack [b]"), "{why}");
        let many = difference(&set(&["a", "b", "c", "d", "e", "f", "g"]), &set(&["h"])).unwrap_or_default();
        assert!(many.contains("[a, b, c, d, e and 2 more]"), "{many}");
    }
}
