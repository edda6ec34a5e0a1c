//! The node leases of the cloud: a heartbeat, whoever carried it, never takes renewTime back.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

use crate::lab::api::{Api, key_and_version};
use crate::lab::client::{Client, Told, WATCH_SECONDS};
use yurt_runtime::TaskGroup;

/// Where the leases are.
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

/// What was seen of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Beats {
    /// renewTime of each lease; texts of one length, so that they compare as times do.
    last: BTreeMap<String, String>,
    /// Renewals.
    pub(super) count: u64,
    /// What may not be.
    pub(super) violations: Vec<String>,
}

/// Starts to look at the leases of the cloud.
pub(super) fn watch(tasks: &TaskGroup, cloud: &Api) -> Arc<Mutex<Beats>> {
    let beats = Arc::new(Mutex::new(Beats::default()));
    let shared = Arc::clone(&beats);
    // The task lives as long as the group; nobody asks the client itself.
    let _ = Client::recording(tasks, cloud.clone(), LEASES, WATCH_SECONDS, move |told| {
        if let Told::Event(event) = told {
            shared.lock().unwrap_or_else(PoisonError::into_inner).see(event);
        }
    });
    beats
}

// === impl Beats ===

impl Beats {
    fn see(&mut self, event: &Value) {
        let object = &event["object"];
        let Some(renewed) = object["spec"]["renewTime"].as_str() else {
            return;
        };
        let (key, version) = key_and_version(object);
        if event["type"] == "DELETED" {
            self.last.remove(&key);
            return;
        }
        match self.last.get(&key).map(|last| last.as_str().cmp(renewed)) {
            Some(std::cmp::Ordering::Greater) => {
                let last = &self.last[&key];
                let violation = format!("lease {key} went back from {last} to {renewed} at {version}");
                self.violations.push(violation);
            }
            Some(std::cmp::Ordering::Equal) => return,
            _ => self.count += 1,
        }
        self.last.insert(key, renewed.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn beat_that_goes_back_is_a_violation_and_a_repeated_one_is_none() {
        let mut beats = Beats::default();
        for second in ["10", "12", "12", "11"] {
            let spec = json!({"renewTime": format!("2026-01-01T00:00:{second}.000000Z")});
            beats.see(&json!({"type": "MODIFIED", "object": {"metadata": {"name": "n"}, "spec": spec}}));
        }
        assert_eq!((beats.count, beats.violations.len()), (2, 1), "{beats:?}");
    }
}
