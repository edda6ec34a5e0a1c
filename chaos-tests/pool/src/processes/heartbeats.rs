//! The node leases of the cloud: a heartbeat, from any sender, never moves renewTime back. One exception: a wrong clock
//! had set the previous renewTime, and the node writes the time of its own clock again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use yurt_apimachinery::time::MicroTime;
use yurt_runtime::{Clock, TaskGroup};
use yurt_testbed::api::{Api, key_and_version};
use yurt_testbed::client::{Client, Received, WATCH_SECONDS};

/// Path of the leases.
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

/// Seconds ahead of the present clock. A later renewTime was written by a clock that a fault had set an hour ahead.
const AHEAD: i64 = 600;

/// Observed node leases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Heartbeats {
    /// renewTime of each lease; texts of one length, so that they compare as times do.
    last: BTreeMap<String, String>,
    /// Number of renewals.
    pub(super) count: u64,
    /// Violations found.
    pub(super) violations: Vec<String>,
}

/// Starts to watch the leases of the cloud.
pub(super) fn watch(tasks: &TaskGroup, cloud: &Api) -> Arc<Mutex<Heartbeats>> {
    let heartbeats = Arc::new(Mutex::new(Heartbeats::default()));
    let shared = Arc::clone(&heartbeats);
    // The task lives as long as the group; the client itself is not needed.
    let _ = Client::recording(tasks, cloud.clone(), LEASES, WATCH_SECONDS, move |told| {
        if let Received::Event(event) = told {
            let now = Clock::system().unix();
            let right = MicroTime::from_unix(now.secs + AHEAD, now.nanos).to_string();
            shared.lock().unwrap_or_else(PoisonError::into_inner).see(event, &right);
        }
    });
    heartbeats
}

// === impl Heartbeats ===

impl Heartbeats {
    /// Records an event; a correct clock writes no time after `right`.
    fn see(&mut self, event: &Value, right: &str) {
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
            Some(std::cmp::Ordering::Greater) if self.last[&key].as_str() <= right => {
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
        let mut heartbeats = Heartbeats::default();
        for second in ["10", "12", "12", "11"] {
            let spec = json!({"renewTime": format!("2026-01-01T00:00:{second}.000000Z")});
            let event = json!({"type": "MODIFIED", "object": {"metadata": {"name": "n"}, "spec": spec}});
            heartbeats.see(&event, "2026-01-01T00:10:10.000000Z");
        }
        assert_eq!(
            (heartbeats.count, heartbeats.violations.len()),
            (2, 1),
            "{heartbeats:?}"
        );
    }

    #[test]
    fn node_may_take_back_what_a_wrong_clock_said() {
        let mut heartbeats = Heartbeats::default();
        for time in ["00:00:10", "01:00:12", "00:00:14", "00:00:13"] {
            let spec = json!({"renewTime": format!("2026-01-01T{time}.000000Z")});
            let event = json!({"type": "MODIFIED", "object": {"metadata": {"name": "n"}, "spec": spec}});
            heartbeats.see(&event, "2026-01-01T00:10:14.000000Z");
        }
        assert_eq!(
            (heartbeats.count, heartbeats.violations.len()),
            (3, 1),
            "{heartbeats:?}"
        );
    }
}
