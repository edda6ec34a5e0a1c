//! Shows the kubelet the cloud's state of its Node while the node is cut off.
//!
//! A kubelet patches what differs from the Node that it lists, and nothing else of a condition but the heartbeat. So if
//! the cloud marks the node as lost, or a relayed status changes a condition, a list from before the cut would keep the
//! kubelet from correcting the cloud. Therefore the hub reads the Node through the relay, after each relayed status and
//! after the first relayed beat, and applies it to the selection that the kubelet lists.
//!
//! The selection has one object, so a later state of the same object is its next step. It counts for the generation
//! that the selection had before the read. If the cloud has another history, the proof after the cut begins another
//! one.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::Object;
use yurt_apimachinery::watch::EventType;
use yurt_collection::Collection;
use yurt_storage::Replica;

use super::key::Key;
use super::store::Cache;
use crate::pool::heartbeat::relaying::Relaying;
use crate::replicas::PoolData;
use crate::replicas::listing::escaped;

/// Time after a failed read until the next one: the kubelet itself may write the next status in five minutes.
const RETRY: Duration = Duration::from_secs(5);

/// Reads the own Node through the relay.
pub struct RelayedNode {
    /// Name of the Node.
    pub node: String,
    /// The relay.
    pub relaying: Relaying,
    /// Selections of the node's components.
    pub cache: Cache,
    /// Owner of their replicas.
    pub data: Arc<PoolData>,
}

// === impl RelayedNode ===

impl RelayedNode {
    /// Follows the relayed writes, until `token` is cancelled.
    pub async fn run(self, token: CancellationToken) {
        let following = follow(&self.relaying.written, || self.refresh());
        token.run_until_cancelled(following).await;
    }

    /// Reads the Node if the node is cut off and the kubelet lists it, and applies it.
    async fn refresh(&self) -> Result<(), String> {
        if self.relaying.reach.borrow().is_up() {
            // The selection has a stream of its own.
            return Ok(());
        }
        let key = Key::node(&self.node);
        let Some(entry) = self.cache.get(&key).filter(|entry| entry.is_of_node()) else {
            return Ok(());
        };
        let replica = entry.replica();
        // A generation that begins during the read is not changed.
        let generation = replica.collection().read(Collection::generation);
        let path = format!("{}/{}", key.path(), escaped(&self.node));
        let read = self.relaying.read(&path).await;
        if self.relaying.reach.borrow().is_up() {
            // The link came back in between, and nothing else would close the tunnel.
            self.relaying.client.close();
        }
        let read = read.ok_or("no relay works")?;
        self.apply(replica, generation, read).await
    }

    async fn apply(&self, replica: &Replica, generation: u64, read: Bytes) -> Result<(), String> {
        let (name, held) = (replica.name(), replica.collection());
        let node = Object::parse(read, held.kind()).map_err(|error| error.to_string())?;
        let at = node.resource_version();
        let is_next = |held: &Collection| is_next(held, &node);
        if self.data.history().is_gone(name, generation) || !held.read(is_next) {
            return Ok(());
        }
        // The recent history holds the object, too.
        let room = held.read(Collection::size) + 2 * node.size();
        self.data.require_room(name, room).map_err(|error| error.to_string())?;
        let covered = self.data.replicas().cover(replica, generation, at, None).await;
        covered.map_err(|error| error.to_string())?;
        let applied = held.update_of(generation, at, |held| {
            if is_next(held) {
                held.apply(EventType::Modified, node.clone());
            }
        });
        applied.map_err(|error| error.to_string())
    }
}

/// Calls `refresh` after each signal of `written`, and again after a failure.
async fn follow<R: Future<Output = Result<(), String>>>(written: &Notify, refresh: impl Fn() -> R) {
    loop {
        written.notified().await;
        if let Err(why) = refresh().await {
            tracing::debug!(why, "Failed to show the relayed Node");
            tokio::time::sleep(RETRY).await;
            written.notify_one();
        }
    }
}

/// True if `node` is a later state of the object that the complete selection holds.
fn is_next(held: &Collection, node: &Object) -> bool {
    let is_same = |known: &Object| known.uid() == node.uid() && !node.uid().is_empty();
    held.is_complete() && held.position() < node.resource_version() && held.object(node.key()).is_some_and(is_same)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::json;
    use yurt_apimachinery::ResourceVersion;
    use yurt_apimachinery::kind::find_kind;

    use super::*;

    fn node(uid: &str, version: u64) -> Object {
        let metadata = json!({"name": "n1", "uid": uid, "resourceVersion": version.to_string()});
        Object::from_value(json!({"metadata": metadata}), find_kind("", "nodes").unwrap()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn failed_read_is_repeated_without_another_write() {
        let (written, reads) = (Notify::new(), AtomicUsize::new(0));
        let fails_twice = async || match reads.fetch_add(1, Ordering::Relaxed) {
            0 | 1 => Err("no relay works".to_owned()),
            _ => Ok(()),
        };
        written.notify_one();
        let following = follow(&written, fails_twice);
        let ended = tokio::time::timeout(10 * RETRY, following).await;
        assert_eq!((ended.is_err(), reads.load(Ordering::Relaxed)), (true, 3));
    }

    #[test]
    fn only_a_later_state_of_the_held_node_is_its_next() {
        let mut held = Collection::new(false);
        assert!(!is_next(&held, &node("u1", 9)), "nothing is listed");
        held.restart(0, vec![node("u1", 5)], ResourceVersion(7));
        for (uid, version, expected) in [("u1", 8, true), ("u1", 7, false), ("u1", 6, false), ("u2", 8, false)] {
            assert_eq!(is_next(&held, &node(uid, version)), expected, "{uid} at {version}");
        }
        held.restart(0, Vec::new(), ResourceVersion(9));
        assert!(!is_next(&held, &node("u1", 10)), "the Node was deleted");
    }
}
