//! Life of cached encodings, in a process of its own: their bytes are counted per process.

use std::time::Duration;

use bytes::Bytes;
use yurt_apimachinery::kind::find_kind;
use yurt_apimachinery::list::ListMeta;
use yurt_apimachinery::time::Time;
use yurt_apimachinery::watch::EventType;
use yurt_apimachinery::{Object, ResourceKind, ResourceVersion};
use yurt_codec::encoding_cache::release_unused;
use yurt_codec::negotiation::{Format, Negotiated};
use yurt_collection::Collection;
use yurt_runtime::TaskGroup;
use yurt_storage::serve::{encode, release_encodings};

fn services() -> &'static ResourceKind {
    find_kind("", "services").expect("a built-in kind")
}

fn service(name: &str, version: u64) -> Object {
    let text = format!(r#"{{"metadata":{{"name":"{name}","namespace":"n","resourceVersion":"{version}"}}}}"#);
    Object::parse(text.into(), services()).expect("a Service")
}

/// Lists `held` in protobuf.
async fn list(held: &Collection) -> Vec<Bytes> {
    let how = Negotiated {
        format: Format::Protobuf,
        ..Negotiated::default()
    };
    let objects = held.objects().cloned().collect();
    let meta = ListMeta::at(held.position());
    encode(how, services(), &meta, objects, Time::from_unix(0))
        .await
        .collect()
}

/// Bytes of the encodings that are cached now; releases them.
fn cached() -> usize {
    release_unused() + release_unused()
}

#[tokio::test(start_paused = true)]
async fn encodings_live_as_long_as_lists_use_them() {
    let mut held = Collection::new(false);
    held.restart(0, vec![service("a", 1), service("b", 2)], ResourceVersion(2));
    list(&held).await;
    let both = cached();
    assert!(both > 0 && cached() == 0);

    // The encoding of an object that was replaced or deleted is of no use.
    list(&held).await;
    held.apply_all(ResourceVersion(3), vec![(EventType::Modified, service("a", 3))]);
    let one = cached();
    assert!(0 < one && one < both, "{one} of {both}");
    list(&held).await;
    held.apply_all(ResourceVersion(4), vec![(EventType::Deleted, service("a", 4))]);
    assert_eq!(cached(), both - one);

    let (tasks, first) = (TaskGroup::new(), list(&held).await);
    tasks.spawn("release-encodings", release_encodings(tasks.token()));
    let wait = async |seconds| tokio::time::sleep(Duration::from_secs(seconds)).await;
    for _ in 0..6 {
        wait(9).await;
        assert_eq!(list(&held).await, first);
    }
    assert_eq!(release_unused(), 0, "the lists used it");
    list(&held).await;
    wait(25).await;
    assert_eq!(cached(), 0, "no list has used it for a while");
    tasks.shutdown(Duration::from_secs(1)).await.expect("it ends");
}
