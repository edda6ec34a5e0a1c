//! The embedded backend passes the storage contract, and keeps its additional promises.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use yurt_apimachinery::kind::{builtin_kinds, find_kind};
use yurt_apimachinery::watch::EventType;
use yurt_apimachinery::{Object, ResourceVersion, Space};
use yurt_runtime::Clock;
use yurt_storage::backend::{Action, Durability, Expect, Op};
use yurt_storage::contract::{self, Harness};
use yurt_storage::embedded::replicas::ReplicaStore;
use yurt_storage::{Cacher, Embedded, OnlyWriter as _, Replicas, Storage};

struct OnDisk {
    folder: tempfile::TempDir,
}

impl OnDisk {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().expect("a temporary folder"),
        }
    }

    fn embedded(&self) -> Embedded {
        // The writer thread of a dropped store releases the file a moment later.
        for _ in 0..200_000 {
            match Embedded::open(&self.folder.path().join("store.redb"), Clock::system(), Space::Own) {
                Ok(store) => return store,
                Err(error) if error.to_string().contains("another process") => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        }
        panic!("the store stays locked")
    }
}

impl Harness for OnDisk {
    fn open(&mut self) -> BoxFuture<'_, Arc<dyn Storage>> {
        Box::pin(async { Arc::new(self.embedded()) as Arc<dyn Storage> })
    }
}

macro_rules! passes {
    ($($promise:ident),* $(,)?) => { $(
        #[tokio::test]
        async fn $promise() {
            contract::$promise(&mut OnDisk::new()).await;
        }
    )* };
}

passes!(
    create_conflicts_with_an_existing_key,
    one_of_many_racers_wins,
    transaction_is_all_or_nothing,
    commits_are_published_in_order_before_the_answer,
    acknowledged_writes_survive_a_restart,
    deleted_key_can_be_created_again,
    fresh_store_has_a_position,
    write_is_finished_when_its_caller_is_gone,
    oversized_transaction_is_refused,
    pool_data_is_served_up_to_a_stored_mark,
);

#[tokio::test]
async fn untagged_store_has_a_position_from_the_start() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = Embedded::open(&folder.path().join("store.redb"), Clock::system(), Space::Cloud).expect("open");
    let cacher = Arc::new(Cacher::new(builtin_kinds()));
    store.attach(cacher.clone()).await.expect("attach");
    for (name, collection) in cacher.all() {
        let position = collection.read(yurt_collection::Collection::position);
        assert!(
            position > ResourceVersion::ZERO && !position.is_own(),
            "{name} is at {position}"
        );
    }
}

fn lease(renew: u32, durability: Durability, expect: Expect) -> Op {
    let value = Bytes::from(format!(
        r#"{{"metadata":{{"name":"n","namespace":"kube-node-lease"}},"renew":{renew}}}"#
    ));
    Op {
        key: "/leases.coordination.k8s.io/kube-node-lease/n".into(),
        expect,
        action: Action::Put(value.into(), durability),
    }
}

/// Conformance: 7.42, 7.44
#[tokio::test]
async fn killed_store_restamps_leases_above_every_issued_rv() {
    let disk = OnDisk::new();
    let store = disk.embedded();
    store
        .attach(Arc::new(Cacher::new(builtin_kinds())))
        .await
        .expect("attach");
    store
        .write(vec![lease(0, Durability::Durable, Expect::Absent)])
        .await
        .expect("create");
    let renewed = store
        .write(vec![lease(1, Durability::Volatile, Expect::Any)])
        .await
        .expect("renew");
    drop(store); // no close: the renewal is lost, as with kill -9

    let store = disk.embedded();
    let cacher = Arc::new(Cacher::new(builtin_kinds()));
    store.attach(cacher.clone()).await.expect("attach");
    let leases = cacher
        .collection("leases.coordination.k8s.io")
        .expect("leases are built in");
    let (rv, value) = leases
        .read(|c| c.objects().next().map(|o| (o.resource_version(), o.to_value())))
        .expect("lease");
    assert!(rv > renewed, "a watch from {renewed} must see the lease again");
    assert_eq!(value["renew"], 0, "a renewal is not durable");
    let mut reader = leases.read(|c| c.open(renewed)).expect("an issued RV must resume");
    let told = leases.read(|c| c.read(&mut reader, 10)).expect("read");
    assert_eq!(told.len(), 1 + 2, "the lease, between the ends of a step: {told:?}");
}

#[tokio::test]
async fn clean_stop_stores_renewals() {
    let disk = OnDisk::new();
    let store = disk.embedded();
    store
        .attach(Arc::new(Cacher::new(builtin_kinds())))
        .await
        .expect("attach");
    store
        .write(vec![lease(0, Durability::Durable, Expect::Absent)])
        .await
        .expect("create");
    store
        .write(vec![lease(1, Durability::Volatile, Expect::Any)])
        .await
        .expect("renew");
    store.close().await.expect("close");
    drop(store);
    let store = disk.embedded();
    let cacher = Arc::new(Cacher::new(builtin_kinds()));
    store.attach(cacher.clone()).await.expect("attach");
    let leases = cacher
        .collection("leases.coordination.k8s.io")
        .expect("leases are built in");
    assert_eq!(
        leases
            .read(|c| c.objects().next().map(Object::to_value))
            .expect("lease")["renew"],
        1
    );
}

/// A change of holder that came after a renewal.
#[tokio::test]
async fn clean_stop_keeps_a_change_that_came_after_a_renewal() {
    let disk = OnDisk::new();
    let store = disk.embedded();
    let cacher = Arc::new(Cacher::new(builtin_kinds()));
    store.attach(cacher).await.expect("attach");
    for (renew, durability) in [
        (0, Durability::Durable),
        (1, Durability::Volatile),
        (2, Durability::Durable),
    ] {
        let written = store.write(vec![lease(renew, durability, Expect::Any)]).await;
        written.expect("written");
    }
    store.close().await.expect("close");
    drop(store);
    let store = disk.embedded();
    let cacher = Arc::new(Cacher::new(builtin_kinds()));
    store.attach(cacher.clone()).await.expect("attach");
    let leases = cacher
        .collection("leases.coordination.k8s.io")
        .expect("leases are built in");
    let held = leases.read(|held| held.objects().next().map(Object::to_value));
    assert_eq!(held.expect("lease")["renew"], 2);
}

fn service(name: &str, rv: u64) -> Object {
    let json =
        format!(r#"{{"metadata":{{"namespace":"x","name":"{name}","uid":"u-{name}","resourceVersion":"{rv}"}}}}"#);
    Object::parse(Bytes::from(json), find_kind("", "services").expect("services")).expect("fixture")
}

/// Conformance: 7.53
#[tokio::test]
async fn replica_comes_back_as_it_was_committed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("replicas.redb");
    let kinds = [("services".to_owned(), find_kind("", "services").expect("services"))];
    let open = || {
        let disk = yurt_storage::embedded::Disk::open(&path, Clock::system()).expect("open");
        Replicas::open(&kinds, Some(ReplicaStore::open(disk).expect("tables"))).expect("replicas")
    };
    let replicas = open();
    let services = replicas.named("services").expect("services");
    services
        .collection()
        .update(|c| c.restart(3, vec![service("a", 5), service("b", 6)], ResourceVersion(10)));
    replicas.persist(None).await.expect("commit");
    services
        .collection()
        .update(|c| c.apply(EventType::Deleted, service("a", 12)));
    services
        .collection()
        .update(|c| c.replace(vec![service("c", 19)], ResourceVersion(20)))
        .expect("newer list");
    replicas.persist(None).await.expect("commit");
    services
        .collection()
        .update(|c| c.apply(EventType::Added, service("lost", 21)));
    drop((replicas, services));

    let replicas = open();
    let services = replicas.named("services").expect("services");
    services.collection().read(|c| {
        assert_eq!(
            (c.position(), c.floor(), c.generation()),
            (ResourceVersion(20), ResourceVersion(10), 3)
        );
        assert!(c.is_complete());
        assert_eq!(c.objects().map(|o| o.name().to_owned()).collect::<Vec<_>>(), ["c"]);
        let mut reader = c.open(ResourceVersion(10)).expect("history was stored");
        let told = c.read(&mut reader, 100).expect("read").len();
        assert_eq!(told, 5, "one step: the deletion of a (exact), of b (range) and c");
    });
}

/// So many keys were deleted between two commits that all of it is written again.
#[tokio::test]
async fn replica_is_stored_as_it_is_after_any_number_of_deletions() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("replicas.redb");
    let kinds = [("services".to_owned(), find_kind("", "services").expect("services"))];
    let open = || {
        let disk = yurt_storage::embedded::Disk::open(&path, Clock::system()).expect("open");
        Replicas::open(&kinds, Some(ReplicaStore::open(disk).expect("tables"))).expect("replicas")
    };
    let replicas = open();
    let services = replicas.named("services").expect("services");
    let collection = services.collection().clone();
    collection.update(|c| c.restart(0, vec![service("a", 5), service("b", 6)], ResourceVersion(10)));
    replicas.persist(None).await.expect("commit");
    collection.update(|c| {
        c.apply(EventType::Deleted, service("a", 11));
        for n in 0..12_000 {
            c.apply(EventType::Deleted, service(&format!("s{n}"), 20 + n));
        }
    });
    replicas.persist(None).await.expect("commit");
    let held = |c: &yurt_collection::Collection| {
        let names: Vec<String> = c.objects().map(|object| object.name().to_owned()).collect();
        (names, c.tombstones().count(), c.floor(), c.position())
    };
    let before = collection.read(held);
    assert_eq!(before.0, ["b"]);
    drop((replicas, services, collection));
    let replicas = open();
    let services = replicas.named("services").expect("services");
    assert_eq!(services.collection().read(held), before);
}

#[tokio::test]
async fn replica_that_is_given_up_leaves_nothing_and_can_come_back() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("replicas.redb");
    let kind = find_kind("", "services").expect("services");
    let open = |names: &[&str]| {
        let disk = yurt_storage::embedded::Disk::open(&path, Clock::system()).expect("open");
        let kinds: Vec<_> = names.iter().map(|name| ((*name).to_owned(), kind)).collect();
        Replicas::open(&kinds, Some(ReplicaStore::open(disk).expect("tables"))).expect("replicas")
    };
    let replicas = open(&["services"]);
    // Next to one whose name is a prefix of another's.
    let added = replicas.add("services.x", kind).await.expect("added");
    for replica in replicas.iter() {
        let collection = replica.collection();
        collection.update(|c| c.restart(3, vec![service("a", 5), service("b", 6)], ResourceVersion(10)));
        collection.update(|c| c.apply(EventType::Deleted, service("a", 12)));
        let list = vec![service("c", 19)];
        collection
            .update(|c| c.replace(list, ResourceVersion(20)))
            .expect("newer list");
    }
    replicas.persist(None).await.expect("commit");
    assert_eq!(added.durable().position, ResourceVersion(20));
    replicas.remove("services").await.expect("removed");
    assert!(replicas.named("services").is_none() && !added.gone().is_cancelled());
    replicas.persist(None).await.expect("commit");
    drop((replicas, added));

    let replicas = open(&["services", "services.x"]);
    let held = |name: &str| {
        let replica = replicas.named(name).expect("replica");
        let content = replica
            .collection()
            .read(|c| (c.position(), c.len(), c.floor(), c.gaps().len()));
        (replica.durable().complete, content)
    };
    assert_eq!(
        held("services"),
        (false, (ResourceVersion(0), 0, ResourceVersion(0), 0))
    );
    assert_eq!(held("services.x").1.1, 1);
    let again = replicas.named("services").expect("services");
    again
        .collection()
        .update(|c| c.restart(0, vec![service("d", 30)], ResourceVersion(30)));
    replicas.remove("services").await.expect("removed");
    assert!(again.gone().is_cancelled(), "readers end");
    let fresh = replicas.add("services", kind).await.expect("added");
    assert!(fresh.collection().read(|c| c.is_empty() && !c.is_complete()));
}
