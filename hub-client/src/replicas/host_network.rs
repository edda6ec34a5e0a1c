//! `spec.hostNetwork` of the pool's NodePool, for filter `hostnetworkpropagation`.
//!
//! The filter is off by default. So the NodePool is followed once a filter needs the value, with one watch of that
//! object by each hub. The value does not come from the coordinator: a false leader must not put Pods of other nodes on
//! the host network. The last state is on disk, for a start without the cloud, and while the NodePool is gone.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::watch::EventType;
use yurt_runtime::http::client::HttpClient;

use super::nodepool::{VERSIONS, path_of};
use super::{PoolData, questions};
use crate::health::CloudReach;
use crate::hub_config::disk::ConfigFile;
use crate::upstream::Cloud;
use crate::upstream::json_watch::{JsonWatch, WatchBroken};

/// Name of the file in the folder of the durable copy.
pub const FILE: &str = "host-network";
/// Key of the value in the file.
const KEY: &str = "hostNetwork";
/// Minimum duration of a watch, s; the requested duration is random, up to twice this.
const WATCH_SECONDS: u64 = 1800;
/// First pause after a watch or a failure, and the maximum.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// The value, as far as known.
pub struct HostNetwork {
    state: watch::Sender<Option<bool>>,
    is_wanted: watch::Sender<bool>,
    file: ConfigFile,
}

/// Keeps the value up to date.
pub(crate) struct HostNetworkFollower {
    /// The cloud.
    pub(crate) cloud: Arc<Cloud>,
    /// Reachability of the cloud.
    pub(crate) reach: watch::Receiver<CloudReach>,
    /// Owner of the value.
    pub(crate) data: Arc<PoolData>,
}

// === impl HostNetwork ===

impl HostNetwork {
    /// Loads the last state of `pool` from `folder`.
    pub(super) fn open(folder: &Path, pool: &str) -> Self {
        let file = ConfigFile::named(folder, FILE, pool);
        let known = file.load().data.get(KEY).map(|value| value == "true");
        Self {
            state: watch::Sender::new(known),
            is_wanted: watch::Sender::new(false),
            file,
        }
    }

    /// True if the NodePool has `spec.hostNetwork: true`; `None` while that is not known.
    #[must_use]
    pub fn known(&self) -> Option<bool> {
        *self.state.borrow()
    }

    /// Receiver of the value, which is followed from now on.
    #[must_use]
    pub fn want(&self) -> watch::Receiver<Option<bool>> {
        self.is_wanted.send_replace(true);
        self.state.subscribe()
    }

    /// Publishes the value of a NodePool; null is an absent one. It is stored first. Absence does not change a known
    /// value: the kubelet recreates the sandboxes of all pods when it changes, and a NodePool may be gone by mistake.
    pub(super) async fn take(&self, pool: &Value) {
        let value = pool["spec"]["hostNetwork"] == true;
        let known = self.known();
        if known == Some(value) || known.is_some() && pool.is_null() {
            return;
        }
        self.file
            .store(BTreeMap::from([(KEY.to_owned(), value.to_string())]))
            .await;
        tracing::info!(hostNetwork = value, "NodePool read for hostnetworkpropagation");
        self.state.send_replace(Some(value));
    }
}

// === impl HostNetworkFollower ===

impl HostNetworkFollower {
    /// Runs until `token` is cancelled. Requests nothing before the value is wanted.
    pub(crate) async fn run(mut self, token: CancellationToken) {
        let following = async {
            let mut is_wanted = self.data.host_network().is_wanted.subscribe();
            let _ = is_wanted.wait_for(|is_wanted| *is_wanted).await;
            let mut pause = PAUSES.0;
            loop {
                let _ = self.reach.wait_for(|reach| !reach.is_failing()).await;
                pause = match self.follow_once().await {
                    Ok(()) => PAUSES.0,
                    Err(error) => {
                        tracing::debug!(error, "Failed to follow NodePool");
                        (pause * 2).min(PAUSES.1)
                    }
                };
                // Jitter: the hubs of a pool must not read at the same moment.
                tokio::time::sleep(pause + pause.mul_f64((fastrand::u64(..) % 1000) as f64 / 1000.0)).await;
            }
        };
        token.run_until_cancelled(following).await;
        // A write that lands later would outlive what a stop deletes of another cluster.
        self.data.host_network().file.settled().await;
    }

    /// Reads the NodePool, then watches it until the watch ends.
    async fn follow_once(&self) -> Result<(), String> {
        let server = self.cloud.server();
        for version in VERSIONS {
            let path = path_of(version, &self.data.pool);
            let Some(list) = questions::get(server, &path, "").await? else {
                continue;
            };
            let list: Value = serde_json::from_slice(&list).map_err(|error| error.to_string())?;
            self.data.host_network().take(&list["items"][0]).await;
            let at = list["metadata"]["resourceVersion"].as_str().unwrap_or_default();
            let seconds = WATCH_SECONDS + fastrand::u64(..) % WATCH_SECONDS;
            let path = format!("{path}&watch=1&allowWatchBookmarks=true&resourceVersion={at}&timeoutSeconds={seconds}");
            let down = server.availability.down();
            return down
                .run_until_cancelled(self.watch(&server.streams, &path, Duration::from_secs(seconds)))
                .await
                .unwrap_or(Ok(()));
        }
        // A known value stays: the right to read may be missing for a while, too.
        self.data.host_network().take(&Value::Null).await;
        Err("the cloud serves no NodePools to this node".to_owned())
    }

    async fn watch(&self, client: &HttpClient, path: &str, lasts: Duration) -> Result<(), String> {
        let broken = |_: WatchBroken| "the watch of the NodePool broke".to_owned();
        let opened = JsonWatch::open(client, path, lasts).await;
        let mut events = opened.map_err(|refused| broken(refused.into()))?;
        while let Some((event, pool)) = events.next().await.map_err(broken)? {
            let is_gone = event == EventType::Deleted;
            self.data
                .host_network()
                .take(if is_gone { &Value::Null } else { &pool })
                .await;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use yurt_test_support::TestDir;

    use super::*;

    #[tokio::test]
    async fn last_state_of_the_same_pool_outlives_a_restart() {
        let folder = TestDir::new();
        let open = |pool: &str| HostNetwork::open(folder.path(), pool);
        let value = open("p");
        assert_eq!(value.known(), None);
        value.take(&json!({"spec": {"hostNetwork": true}})).await;
        assert_eq!((value.known(), open("p").known()), (Some(true), Some(true)));
        assert_eq!(open("other").known(), None);
        value.take(&json!({"spec": {}})).await;
        assert_eq!((value.known(), open("p").known()), (Some(false), Some(false)));
    }

    /// Another value makes the kubelet recreate the sandboxes of all pods of the node.
    #[tokio::test]
    async fn nodepool_that_is_gone_does_not_change_a_known_value() {
        let folder = TestDir::new();
        let open = |pool: &str| HostNetwork::open(folder.path(), pool);
        let value = open("p");
        value.take(&json!({"spec": {"hostNetwork": true}})).await;
        value.take(&Value::Null).await;
        assert_eq!((value.known(), open("p").known()), (Some(true), Some(true)));
        let unknown = open("q");
        unknown.take(&Value::Null).await;
        assert_eq!((unknown.known(), open("q").known()), (Some(false), Some(false)));
    }
}
