//! Deletes the kept answers about pods of this node that the cloud has deleted.
//!
//! Most deletions are no requests of the kubelet: the cloud deletes a pod that has ended at once. Without this, each pod
//! that ever ran here would leave a record, and the records of what still exists would give way to them.

use std::collections::BTreeSet;

use tokio_util::sync::CancellationToken;
use yurt_apimachinery::ObjectKey;
use yurt_collection::Collection;
use yurt_storage::SharedCollection;

use super::KUBELET;
use super::write::OwnKey;
use crate::cache::key::Key;
use crate::cache::store::Cache;
use crate::offline::answers::Answers;
use crate::offline::kept_read::KeptRead;

/// Deletes the answers about each pod of `node` that leaves the node's selection, until `token` is cancelled.
pub async fn forget_deleted(cache: Cache, node: String, answers: Answers, token: CancellationToken) {
    let own_pods = Key::pods_of(&node);
    let following = async {
        loop {
            let entry = cache.wait_for(&own_pods).await;
            let replica = entry.replica();
            let forgetting = follow(replica.collection(), &answers);
            replica.gone().run_until_cancelled(forgetting).await;
        }
    };
    token.run_until_cancelled(following).await;
}

async fn follow(pods: &SharedCollection, answers: &Answers) {
    let mut changes = pods.subscribe();
    let mut known = BTreeSet::new();
    loop {
        changes.borrow_and_update();
        let names = |held: &Collection| {
            let names = held.objects().map(|pod| pod.key().clone());
            held.is_complete().then(|| names.collect::<BTreeSet<_>>())
        };
        if let Some(now) = pods.read(names) {
            let deleted: Vec<KeptRead> = known.difference(&now).filter_map(read_of).collect();
            if !deleted.is_empty() {
                answers.forget(&deleted);
            }
            known = now;
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}

fn read_of(pod: &ObjectKey) -> Option<KeptRead> {
    let key = OwnKey::parse(pod.as_str())?;
    Some(KeptRead::of_object(KUBELET, &key.path()))
}
