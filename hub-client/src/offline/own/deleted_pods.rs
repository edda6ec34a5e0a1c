//! Knows which pods of this node the cloud has deleted, and deletes the kept answers about them.
//!
//! Most deletions are no requests of the kubelet: the cloud deletes a pod that has ended at once. Without this, each
//! pod that ever ran here would leave a record, and the records of what still exists would give way to them. After the
//! cloud came back from a backup, the record of a later pod of a name would precede the pod that exists.

use std::collections::BTreeMap;

use serde_json::Value;
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::{ObjectKey, ResourceVersion, meta};
use yurt_collection::Collection;
use yurt_storage::SharedCollection;

use super::KUBELET;
use super::write::OwnKey;
use crate::cache::key::Key;
use crate::cache::store::Cache;
use crate::offline::answers::Answers;
use crate::offline::kept_read::KeptRead;

/// Deletes the answers about each pod of `node` that leaves the node's selection, or gives way to another one of its
/// name, until `token` is cancelled.
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

/// True if the selection of the pods of `node` has passed the RV of `pod`, and does not have it any more. False for
/// any other object.
#[must_use]
pub fn is_deleted(cache: &Cache, node: &str, key: &OwnKey, pod: &Value) -> bool {
    let version = meta::text(pod, "resourceVersion").parse().map(ResourceVersion);
    let Some((namespace, version)) = key.namespace.as_deref().zip(version.ok()) else {
        return false;
    };
    cache.get(&Key::pods_of(node)).is_some_and(|entry| {
        entry.replica().collection().read(|held| {
            let found = held.object(&ObjectKey::new(Some(namespace), &key.name));
            let is_held = found.is_some_and(|found| found.uid() == meta::text(pod, "uid"));
            held.is_complete() && held.position() >= version && !is_held
        })
    })
}

async fn follow(pods: &SharedCollection, answers: &Answers) {
    let mut changes = pods.subscribe();
    let mut known = BTreeMap::new();
    loop {
        changes.borrow_and_update();
        let uids = |held: &Collection| {
            let uids = held.objects().map(|pod| (pod.key().clone(), pod.uid().to_owned()));
            held.is_complete().then(|| uids.collect::<BTreeMap<_, _>>())
        };
        if let Some(now) = pods.read(uids) {
            let is_gone = |(key, uid): &(&ObjectKey, &String)| now.get(*key) != Some(*uid);
            let deleted: Vec<KeptRead> = known
                .iter()
                .filter(is_gone)
                .filter_map(|(key, _)| read_of(key))
                .collect();
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

#[cfg(test)]
mod tests {
    use serde_json::json;
    use yurt_apimachinery::Object;
    use yurt_apimachinery::kind::find_kind;
    use yurt_runtime::Clock;
    use yurt_storage::OnlyWriter as _;
    use yurt_test_support::{TestDir, eventually};

    use super::*;
    use crate::failures::Failures;
    use crate::replicas::PoolData;

    fn pod(name: &str, uid: &str, version: u64) -> Object {
        let metadata = json!({"namespace": "shop", "name": name, "uid": uid, "resourceVersion": version.to_string()});
        Object::from_value(json!({"metadata": metadata}), find_kind("", "pods").unwrap()).unwrap()
    }

    /// The cloud comes back from a backup: RVs are lower.
    #[tokio::test]
    async fn answer_about_a_pod_is_deleted_once_another_one_has_its_name() {
        let (folder, clock) = (TestDir::new(), Clock::system());
        let data = PoolData::open(folder.path(), "", usize::MAX, clock.clone()).unwrap();
        let pods = data.replicas().create("/api/v1/pods", find_kind("", "pods").unwrap());
        let (answers, _writer) = Answers::open(folder.path(), clock.clone(), Failures::new(clock));
        let read = |name| read_of(&ObjectKey::new(Some("shop"), name)).unwrap();
        for name in ["web", "db"] {
            answers.replace(&read(name), "{}".into());
        }
        let list = |generation, web| {
            let listed = vec![web, pod("db", "u9", 7)];
            let restart = |held: &mut Collection| held.restart(generation, listed, ResourceVersion(10));
            pods.collection().update(restart);
        };
        list(0, pod("web", "u2", 9));
        let replaced = async {
            tokio::task::yield_now().await;
            list(1, pod("web", "u1", 8));
            eventually("the answer must be deleted", async || {
                answers.find(&read("web")).await.is_none().then_some(())
            })
            .await;
        };
        tokio::select! {
            biased;
            () = follow(pods.collection(), &answers) => {}
            () = replaced => {}
        }
        assert!(answers.find(&read("db")).await.is_some());
    }
}
