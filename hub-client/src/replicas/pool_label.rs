//! Name of this node's pool without `--nodepool-name`: the label of its Node, as OpenYurt's hub reads it.
//!
//! The replicas belong to a pool (ADR 0022), so the name is fixed while a hub runs. It is on the disk, for a start without
//! the cloud. When the label changes, the hub stores the new name and ends; its service manager starts it again.

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

use super::questions;
use crate::health::CloudReach;
use crate::hub_config::disk::ConfigFile;
use crate::upstream::Cloud;

/// Name of the file in the root directory.
const FILE: &str = "node-pool";
/// Key of the name in the file.
const KEY: &str = "name";
/// Maximum time for an answer at the first start, and later.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Time between two reads of the label. An answer is a few KB, on a link that may be metered.
const LOOK_EVERY: Duration = Duration::from_secs(300);

/// The pool's name on the disk, and its source.
pub(crate) struct PoolLabel {
    node: String,
    file: ConfigFile,
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

    /// Reads and stores the label at a first start. Returns an empty name if no server answers in time: the hub ends once
    /// it reads another one.
    pub(crate) async fn first(&self, cloud: &Cloud) -> String {
        let mut asked: FuturesUnordered<_> = (0..cloud.len())
            .map(|place| self.read(&cloud.at(place).knocks))
            .collect();
        while let Some(answer) = asked.next().await {
            if let Ok(Some(name)) = answer {
                self.store(&name).await;
                return name;
            }
        }
        String::new()
    }

    /// Returns once the Node is in another pool than `current`, and that is stored.
    pub(crate) async fn changed(
        self,
        current: String,
        cloud: Arc<Cloud>,
        mut reach: watch::Receiver<CloudReach>,
        token: CancellationToken,
    ) {
        let following = async {
            loop {
                let _ = reach.wait_for(|reach| reach.is_up()).await;
                match self.read(&cloud.server().beats).await {
                    Ok(Some(name)) if name != current => {
                        self.store(&name).await;
                        if !self.file.is_behind() {
                            tracing::warn!(
                                from = current,
                                to = name,
                                "Label of the node's pool changed; starting again"
                            );
                            return;
                        }
                    }
                    Ok(Some(name)) if self.stored().await.is_none() => self.store(&name).await,
                    Ok(_) => {}
                    Err(error) => tracing::debug!(error, "Failed to read the label of the node's pool"),
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        token.run_until_cancelled(following).await;
    }

    /// The label, empty if the Node has none; `None` without such a Node, or the right to read it.
    async fn read(&self, client: &HttpClient) -> Result<Option<String>, String> {
        let path = format!("/api/v1/nodes/{}", self.node);
        let (status, _, body) = questions::ask(client, &path, "PartialObjectMetadata", TIMEOUT).await?;
        if status != StatusCode::OK {
            return Ok(None);
        }
        let node: Value = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
        let label = node["metadata"]["labels"][POOL_LABEL].as_str();
        Ok(Some(label.unwrap_or_default().to_owned()))
    }

    async fn store(&self, name: &str) {
        self.file
            .store(BTreeMap::from([(KEY.to_owned(), name.to_owned())]))
            .await;
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
