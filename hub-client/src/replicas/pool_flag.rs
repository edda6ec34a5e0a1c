//! Comparison of `--nodepool-name` with the label of this node's Node, for a hub that could lead.
//!
//! The leader sends the pool's members, the nodes of its own pool. Under a wrong name it would replace them by those of
//! another pool, so it does not lead then. A Node without the label is of the pool that the flag names.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use yurt_pool_protocol::members::POOL_LABEL;

use super::follower::Backoff;
use super::pool_label::{FAILURE, LOOK_EVERY, PoolLabel, TIMEOUT};
use crate::failures::Failures;
use crate::health::CloudReach;
use crate::hub_config::FollowError;
use crate::upstream::Cloud;

/// Keeps a hub from leading while the label names another pool than the flag.
pub(crate) struct PoolFlagCheck {
    pub(crate) label: PoolLabel,
    /// Value of `--nodepool-name`.
    pub(crate) flag: String,
    /// True until the label was read, and while it names another pool.
    pub(crate) other_pool: Arc<watch::Sender<bool>>,
    pub(crate) cloud: Arc<Cloud>,
    pub(crate) reach: watch::Receiver<CloudReach>,
    pub(crate) failures: Failures,
}

// === impl PoolFlagCheck ===

impl PoolFlagCheck {
    /// Reads the label every five minutes until `token` is cancelled, sooner after an unanswered read.
    pub(crate) async fn run(mut self, token: CancellationToken) {
        let checking = async {
            let mut backoff = Backoff::default();
            loop {
                let _ = self.reach.wait_for(|reach| reach.is_up()).await;
                let read = self.label.read(&self.cloud.server().beats, TIMEOUT).await;
                let pause = match &read {
                    Err(FollowError::Unanswered(_)) => backoff.grow(),
                    _ => LOOK_EVERY,
                };
                self.judge(read);
                tokio::time::sleep(pause).await;
            }
        };
        token.run_until_cancelled(checking).await;
    }

    /// Compares the label, empty if the Node has none. A read that failed leaves a known difference in effect.
    fn judge(&self, read: Result<String, FollowError>) {
        let other = match read {
            Ok(label) => Some(label).filter(|label| !label.is_empty() && *label != self.flag),
            Err(error) => {
                tracing::debug!(%error, "Failed to compare the label of the node's pool with --nodepool-name");
                if self.failures.why(FAILURE).is_some() {
                    return;
                }
                None
            }
        };
        self.other_pool.send_replace(other.is_some());
        let why = other.map(|label| {
            format!(
                "--nodepool-name={} differs from label {POOL_LABEL}={label} of Node {}, so this hub does not lead; \
                 correct the flag and start the hub again, or correct the label",
                self.flag, self.label.node
            )
        });
        self.failures.tell(FAILURE, why);
    }
}
