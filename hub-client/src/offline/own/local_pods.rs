//! Addresses and readiness of the pods with a local status, for the filters of endpoints.
//!
//! A pod is published with its first local status, and after a restart with that from the disk. When the cloud has the
//! status, the pod stays for [`KNOWN_FOR`]: the cloud's controllers have not answered it yet, and their old endpoints
//! would bring back the addresses from before. An endpoint object later than the status counts immediately. A status
//! that the kubelet writes at the cloud in that time replaces the former one, and the time begins again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::{ResourceVersion, meta};

use super::write::OwnKey;
use crate::filter::context::{LocalPod, LocalPods};
use crate::health::CloudReach;

/// Time for which a pod is published after the cloud has its status.
pub const KNOWN_FOR: Duration = Duration::from_secs(60);

/// The published pods.
#[derive(Default)]
pub struct Published {
    // Leaf lock.
    pods: Mutex<BTreeMap<OwnKey, Held>>,
    state: watch::Sender<Arc<LocalPods>>,
}

struct Held {
    uid: String,
    pod: LocalPod,
    /// End of the publication, once the cloud has the status.
    until: Option<Instant>,
}

// === impl Published ===

impl Published {
    /// The pods, by uid.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Arc<LocalPods>> {
        self.state.subscribe()
    }

    /// Publishes a pod with this local status; ignores the Node.
    pub fn wrote(&self, key: &OwnKey, object: &Value) {
        if key.namespace.is_none() {
            return;
        }
        let held = Held {
            uid: meta::text(object, "uid").to_owned(),
            pod: read(object),
            until: None,
        };
        self.change(|pods| pods.insert(key.clone(), held));
    }

    /// The cloud has the status since this RV of the pod.
    pub fn sent(&self, key: &OwnKey, known_at: ResourceVersion) {
        self.change(|pods| {
            if let Some(held) = pods.get_mut(key) {
                held.pod.known_at = Some(known_at);
                held.until = Some(Instant::now() + KNOWN_FOR);
            }
        });
    }

    /// True if the cloud's endpoints may not show the last status of this pod, although the cloud has it.
    #[must_use]
    pub fn awaits_answer(&self, key: &OwnKey) -> bool {
        let pods = self.pods.lock();
        pods.get(key).is_some_and(|held| held.until.is_some())
    }

    /// The cloud has a later status of a pod that is still published: `object` is its answer to that write.
    pub fn rewrote(&self, key: &OwnKey, object: &Value) {
        let known_at = meta::text(object, "resourceVersion").parse().map(ResourceVersion);
        let (Ok(known_at), true) = (known_at, object["status"].is_object()) else {
            return;
        };
        self.change(|pods| {
            let is_same = |held: &&mut Held| held.uid == meta::text(object, "uid") && held.until.is_some();
            let held = pods.get_mut(key).filter(is_same);
            if let Some(held) = held.filter(|held| held.pod.known_at <= Some(known_at)) {
                held.pod = LocalPod {
                    known_at: Some(known_at),
                    ..read(object)
                };
                held.until = Some(Instant::now() + KNOWN_FOR);
            }
        });
    }

    /// The cloud will never have the status.
    pub fn dropped(&self, key: &OwnKey) {
        self.change(|pods| pods.remove(key));
    }

    /// Ends the publication of all pods.
    pub fn clear(&self) {
        self.change(BTreeMap::clear);
    }

    /// Ends publications in time, until `token` is cancelled. Without the cloud no publication ends.
    pub async fn expire(&self, mut reach: watch::Receiver<CloudReach>, token: CancellationToken) {
        let mut changes = self.state.subscribe();
        loop {
            changes.borrow_and_update();
            let next = self.pods.lock().values().filter_map(|held| held.until).min();
            let is_due = async {
                match next {
                    Some(next) => tokio::time::sleep_until(next).await,
                    None => std::future::pending().await,
                }
                let was_up = reach.borrow().is_up();
                // The prober lives as long as the hub.
                let _ = reach.wait_for(|reach| reach.is_up()).await;
                was_up
            };
            tokio::select! {
                () = token.cancelled() => return,
                // The sender is a part of this object.
                _ = changes.changed() => {}
                was_up = is_due => self.end_due(was_up),
            }
        }
    }

    /// Ends publications whose time is over; all of them get it once more after a time without the cloud.
    fn end_due(&self, was_up: bool) {
        let now = Instant::now();
        self.change(|pods| {
            pods.retain(|_, held| !was_up || held.until.is_none_or(|until| until > now));
            for held in pods.values_mut().filter(|_| !was_up) {
                held.until = held.until.map(|_| now + KNOWN_FOR);
            }
        });
    }

    fn change<T>(&self, change: impl FnOnce(&mut BTreeMap<OwnKey, Held>) -> T) {
        let mut pods = self.pods.lock();
        change(&mut pods);
        let state: LocalPods = pods.values().map(|held| (held.uid.clone(), held.pod.clone())).collect();
        // In the order of the changes: still under the lock.
        self.state.send_if_modified(|published| {
            let is_news = **published != state;
            if is_news {
                *published = Arc::new(state);
            }
            is_news
        });
    }
}

/// Reads a pod as the controllers of endpoints do.
fn read(object: &Value) -> LocalPod {
    let status = &object["status"];
    let has_ended = matches!(status["phase"].as_str(), Some("Succeeded" | "Failed"));
    let listed = status["podIPs"].as_array().into_iter().flatten().map(|one| &one["ip"]);
    let all = listed.chain([&status["podIP"]]).filter_map(Value::as_str);
    let mut addresses = Vec::new();
    for address in all.filter_map(|text| text.parse().ok()).filter(|_| !has_ended) {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let mut ready = conditions.filter(|condition| condition["type"] == "Ready");
    LocalPod {
        addresses,
        is_ready: ready.any(|condition| condition["status"] == "True"),
        is_terminating: object["metadata"]["deletionTimestamp"].is_string(),
        known_at: None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const UP: CloudReach = CloudReach { failed_probes: Some(0) };

    fn key() -> OwnKey {
        OwnKey::parse("shop/web").unwrap()
    }

    fn pod(uid: &str, status: Value) -> Value {
        json!({"metadata": {"uid": uid}, "status": status})
    }

    fn uids(pods: &watch::Receiver<Arc<LocalPods>>) -> Vec<String> {
        pods.borrow().keys().cloned().collect()
    }

    #[test]
    fn pod_has_the_addresses_and_the_readiness_of_its_status() {
        let of = |status: Value| {
            let LocalPod {
                addresses, is_ready, ..
            } = read(&pod("u1", status));
            let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            (addresses.join(" "), is_ready)
        };
        let ready = json!([{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": "True"}]);
        let (one, two) = (json!({"ip": "10.0.0.1"}), json!({"ip": "fd00::1"}));
        for (status, expected) in [
            (
                json!({"podIP": "10.0.0.1", "podIPs": [one, two], "conditions": ready}),
                ("10.0.0.1 fd00::1", true),
            ),
            (
                json!({"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "Unknown"}]}),
                ("10.0.0.1", false),
            ),
            (json!({"podIP": "10.0.0.1", "phase": "Failed"}), ("", false)),
            (json!({"podIP": "", "podIPs": "x"}), ("", false)),
            (json!(null), ("", false)),
        ] {
            assert_eq!(of(status.clone()), (expected.0.to_owned(), expected.1), "{status}");
        }
        let deleted = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
        assert!(read(&deleted).is_terminating);
    }

    #[test]
    fn only_what_endpoints_show_is_news() {
        let published = Published::default();
        let mut pods = published.subscribe();
        published.wrote(&OwnKey::parse("/n1").unwrap(), &pod("u-n1", json!({})));
        assert!(!pods.has_changed().unwrap(), "a Node is no endpoint");
        published.wrote(&key(), &pod("u1", json!({"podIP": "10.0.0.1"})));
        assert!(pods.has_changed().unwrap());
        pods.mark_unchanged();
        published.wrote(&key(), &pod("u1", json!({"podIP": "10.0.0.1", "message": "m"})));
        assert!(!pods.has_changed().unwrap());
        published.wrote(&key(), &pod("u2", json!({"podIP": "10.0.0.1"})));
        assert_eq!(uids(&pods), ["u2"], "the former pod of that name is gone");
        published.dropped(&key());
        assert_eq!(uids(&pods), [""; 0]);
    }

    #[tokio::test]
    async fn later_status_at_the_cloud_replaces_a_sent_one_of_the_same_pod() {
        let published = Published::default();
        let pods = published.subscribe();
        let answer = |uid: &str, version: &str| {
            let metadata = json!({"uid": uid, "resourceVersion": version});
            json!({"metadata": metadata, "status": {"podIP": "10.0.0.2"}})
        };
        let shown = || {
            let pod = pods.borrow()["u1"].clone();
            (pod.addresses[0].to_string(), pod.known_at.map(|at| at.0))
        };
        let first = |known_at| ("10.0.0.1".to_owned(), known_at);
        published.rewrote(&key(), &answer("u1", "8"));
        assert_eq!(uids(&pods), [""; 0], "nothing is published");
        published.wrote(&key(), &pod("u1", json!({"podIP": "10.0.0.1"})));
        published.rewrote(&key(), &answer("u1", "8"));
        assert_eq!(
            (published.awaits_answer(&key()), shown()),
            (false, first(None)),
            "the cloud has no status yet"
        );
        published.sent(&key(), ResourceVersion(7));
        for (uid, version) in [("u2", "8"), ("u1", "6"), ("u1", "")] {
            published.rewrote(&key(), &answer(uid, version));
        }
        assert_eq!((published.awaits_answer(&key()), shown()), (true, first(Some(7))));
        published.rewrote(&key(), &answer("u1", "8"));
        assert_eq!(shown(), ("10.0.0.2".to_owned(), Some(8)));
    }

    #[tokio::test(start_paused = true)]
    async fn sent_status_is_published_until_the_cloud_had_time_to_answer_it() {
        let published = Arc::new(Published::default());
        let mut pods = published.subscribe();
        let other = OwnKey::parse("shop/db").unwrap();
        let (expiring, token) = (published.clone(), CancellationToken::new());
        let running = token.clone().drop_guard();
        let reach = watch::Sender::new(UP);
        let task = expiring.expire(reach.subscribe(), token);
        let test = async {
            for (key, uid) in [(key(), "u1"), (other.clone(), "u2")] {
                published.wrote(&key, &pod(uid, json!({"podIP": "10.0.0.1"})));
            }
            published.sent(&key(), ResourceVersion(7));
            assert_eq!(pods.borrow_and_update()["u1"].known_at, Some(ResourceVersion(7)));
            reach.send_replace(CloudReach::default());
            tokio::time::sleep(2 * KNOWN_FOR).await;
            assert_eq!(uids(&pods), ["u1", "u2"], "the cloud is away again");
            reach.send_replace(UP);
            let back = Instant::now();
            pods.changed().await.unwrap();
            assert_eq!(uids(&pods), ["u2"]);
            assert!(back.elapsed() >= KNOWN_FOR);
            published.sent(&other, ResourceVersion(8));
            published.wrote(&other, &pod("u2", json!({"podIP": "10.0.0.1"})));
            tokio::time::sleep(2 * KNOWN_FOR).await;
            assert_eq!(uids(&pods), ["u2"], "a later local status has no end");
            drop(running);
        };
        tokio::join!(task, test);
    }
}
