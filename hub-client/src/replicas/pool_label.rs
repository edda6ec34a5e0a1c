//! Name of this node's pool without `--nodepool-name`: the label of its Node, as OpenYurt's hub reads it.
//!
//! The replicas belong to a pool (ADR 0022), so the name is fixed while a hub runs. It is on the disk, for a start
//! without the cloud. When the label changes, the hub stores the new name and ends; its service manager starts it
//! again.
//!
//! Until the Node has been read, the name is unknown. That differs from a Node without the label, which is in no pool.
//! The hub then reads the Node every few seconds. A hub that learns that its node is in no pool goes on: it has no
//! replica that depends on the name.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use http::StatusCode;
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use yurt_pool_protocol::members::POOL_LABEL;
use yurt_runtime::files;
use yurt_runtime::http::client::HttpClient;

use super::follower::Backoff;
use super::questions;
use crate::failures::Failures;
use crate::health::CloudReach;
use crate::hub_config::FollowError;
use crate::hub_config::disk::ConfigFile;
use crate::upstream::{Cloud, describe_answer};

/// Name of the file in the root directory.
const FILE: &str = "node-pool";
/// Key of the name in the file.
const KEY: &str = "name";
/// Failure key: the pool of the node is unknown, or another one than `--nodepool-name`.
pub(super) const FAILURE: &str = "pool of the node";
/// Maximum time for an answer over an open connection.
pub(super) const TIMEOUT: Duration = Duration::from_secs(2);
/// The same at a start, over a new connection: some four round trips. A later answer must not be the first one in time,
/// or a hub whose disk does not take the name starts again and again.
const FIRST_TIMEOUT: Duration = Duration::from_secs(6);
/// Time between two reads of the label. An answer is a few KB, on a link that may be metered.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(300);

/// The pool's name on the disk, and its source.
pub(crate) struct PoolLabel {
    pub(super) node: String,
    file: ConfigFile,
}

/// Ends the hub when the label names another pool than the present one.
pub(crate) struct PoolLabelFollower {
    pub(crate) label: PoolLabel,
    /// Name in effect; `None` while it is unknown.
    pub(crate) known: watch::Sender<Option<String>>,
    pub(crate) cloud: Arc<Cloud>,
    pub(crate) reach: watch::Receiver<CloudReach>,
    pub(crate) failures: Failures,
}

// === impl PoolLabel ===

impl PoolLabel {
    /// The label of Node `node`, stored in `root`.
    pub(crate) fn of(node: &str, root: &Path) -> Self {
        Self {
            node: node.to_owned(),
            file: ConfigFile::named(root, FILE, node),
        }
    }

    /// The stored name, empty for a node without a pool; `None` if the label was never read.
    pub(crate) async fn stored(&self) -> Option<String> {
        let file = self.file.clone();
        files::access(move || file.load().data.remove(KEY)).await
    }

    /// Reads and stores the label at a start; `None` if no server returns the Node in time.
    pub(crate) async fn first(&self, cloud: &Cloud) -> Option<String> {
        let mut asked: FuturesUnordered<_> = (0..cloud.len())
            .map(|place| self.read(&cloud.at(place).knocks, FIRST_TIMEOUT))
            .collect();
        while let Some(answer) = asked.next().await {
            if let Ok(name) = answer {
                self.store(&name).await;
                return Some(name);
            }
        }
        None
    }

    /// The label, empty if the Node has none.
    ///
    /// # Errors
    /// The Node cannot be read. The kubelet registers it after the hub's first start.
    pub(super) async fn read(&self, client: &HttpClient, max: Duration) -> Result<String, FollowError> {
        let path = format!("/api/v1/nodes/{}", self.node);
        let asked = questions::ask(client, &path, "PartialObjectMetadata", max).await;
        let (status, _, body) = asked.map_err(FollowError::Unanswered)?;
        match status {
            StatusCode::OK => {}
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                return Err(FollowError::Refused(describe_answer(status, &body)));
            }
            other => return Err(FollowError::Unanswered(describe_answer(other, &body))),
        }
        let node: Value = serde_json::from_slice(&body).map_err(|error| FollowError::Unanswered(error.to_string()))?;
        let label = node["metadata"]["labels"][POOL_LABEL].as_str();
        Ok(label.unwrap_or_default().to_owned())
    }

    async fn store(&self, name: &str) {
        self.file
            .store(BTreeMap::from([(KEY.to_owned(), name.to_owned())]))
            .await;
    }
}

// === impl PoolLabelFollower ===

impl PoolLabelFollower {
    /// Returns once the name of the pool is another one than the hub began with, and a restart finds it.
    pub(crate) async fn changed(mut self, token: CancellationToken) {
        let following = async {
            if self.current().is_none() {
                tracing::info!("Pool of the node is unknown; filters hide what depends on it");
            }
            let mut backoff = Backoff::default();
            loop {
                let _ = self.reach.wait_for(|reach| reach.is_up()).await;
                if self.look().await {
                    return;
                }
                let pause = match self.current() {
                    None => backoff.grow(),
                    Some(_) => LOOK_EVERY,
                };
                tokio::time::sleep(pause).await;
            }
        };
        token.run_until_cancelled(following).await;
    }

    fn current(&self) -> Option<String> {
        self.known.borrow().clone()
    }

    /// Reads and stores the label. True if the hub has to start again with it.
    async fn look(&self) -> bool {
        let (label, current) = (&self.label, self.current());
        let name = match label.read(&self.cloud.server().beats, TIMEOUT).await {
            Ok(name) => name,
            Err(error) => {
                self.note(&error);
                return false;
            }
        };
        if current.as_ref() != Some(&name) || label.stored().await.is_none() {
            label.store(&name).await;
        }
        match current {
            Some(current) if current == name => false,
            // A restart would find the former name.
            Some(_) if label.file.is_behind() => false,
            None if name.is_empty() => {
                tracing::info!("Node is in no pool");
                self.known.send_replace(Some(name));
                self.failures.works(FAILURE);
                false
            }
            // Without a stored name the start reads it at the cloud.
            None => {
                tracing::info!(pool = name, "Pool of the node is known; starting again");
                true
            }
            Some(current) => {
                tracing::warn!(
                    from = current,
                    to = name,
                    "Label of the node's pool changed; starting again"
                );
                true
            }
        }
    }

    /// Reports why the pool is still unknown. A known one stays in effect.
    fn note(&self, error: &FollowError) {
        tracing::debug!(%error, "Failed to read the label of the node's pool");
        match error {
            _ if self.current().is_some() => {}
            FollowError::Refused(why) => self.failures.refused(FAILURE, why),
            FollowError::Unanswered(why) => self.failures.unanswered(FAILURE, why),
        }
    }
}

#[cfg(test)]
mod tests {
    use yurt_runtime::TaskGroup;
    use yurt_test_support::{TestDir, hang, runs_while_reading};

    use super::*;

    #[tokio::test]
    async fn name_is_that_of_the_same_node_and_empty_is_not_unknown() {
        let folder = TestDir::new();
        let label = PoolLabel::of("n1", folder.path());
        assert_eq!(label.stored().await, None);
        for name in ["east", ""] {
            label.store(name).await;
            let again = PoolLabel::of("n1", folder.path());
            assert_eq!(again.stored().await.as_deref(), Some(name));
        }
        assert_eq!(PoolLabel::of("n2", folder.path()).stored().await, None);
    }

    #[test]
    fn name_on_a_disk_that_hangs_holds_no_thread_of_the_runtime() {
        let folder = TestDir::new();
        let (label, path) = (PoolLabel::of("n1", folder.path()), folder.path().join(FILE));
        hang(&path);
        runs_while_reading(&path, async move || {
            let tasks = TaskGroup::new();
            tasks.spawn("read", async move { drop(label.stored().await) });
            tasks
        });
    }
}
