//! Golden rows of the embedded store: everything that is written into its tables. Files of other versions have such
//! rows; see `yurt_test_support::golden` for a wanted change.

use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use redb::{Key, ReadableDatabase as _, ReadableTable as _, TableDefinition, TableHandle as _, Value};
use yurt_apimachinery::kind::{builtin_kinds, find_kind};
use yurt_apimachinery::watch::EventType;
use yurt_apimachinery::{Object, ResourceVersion, Space};
use yurt_runtime::{Clock, UnixTime};
use yurt_storage::backend::{Action, Durability, Expect, Op};
use yurt_storage::embedded::replicas::ReplicaStore;
use yurt_storage::{Cacher, Embedded, OnlyWriter as _, Replicas, Storage};
use yurt_test_support::golden::Recording;

const REPLICA: &str = "services";

fn service(name: &str, version: u64) -> Object {
    let json = format!(
        r#"{{"metadata":{{"namespace":"x","name":"{name}","uid":"{name}","resourceVersion":"{version}"}},"later":1.0}}"#
    );
    let kind = find_kind("", "services").expect("services are built in");
    Object::parse(Bytes::from(json), kind).expect("a fixture")
}

fn op(key: &str, expect: Expect, action: Action) -> Op {
    Op {
        key: format!("/configmaps/x/{key}"),
        expect,
        action,
    }
}

/// Writes own objects, one of which is deleted again.
async fn write_own_objects(store: &Embedded) {
    let value = |data: &str| {
        Bytes::from(format!(
            r#"{{"metadata":{{"name":"a","namespace":"x"}},"data":{data}}}"#
        ))
    };
    let put = |data: &str| Action::Put(value(data).into(), Durability::Durable);
    let write = async |ops| store.write(ops).await.expect("written");
    write(vec![
        op("a", Expect::Absent, put(r#"{"k":"1"}"#)),
        op("b", Expect::Absent, put("{}")),
    ])
    .await;
    write(vec![op("a", Expect::Any, put(r#"{"k":"2"}"#))]).await;
    let last = value("{}").into();
    write(vec![op("b", Expect::Any, Action::Delete { last })]).await;
}

/// Writes a replica of two generations with a tombstone, a list that jumped, and a partial list.
async fn write_replica(store: &ReplicaStore) {
    let kind = find_kind("", "services").expect("services are built in");
    let replicas = Replicas::open(&[(REPLICA.to_owned(), kind)], Some(store.clone())).expect("opened");
    let replica = replicas.named(REPLICA).expect("it is there");
    let rv = ResourceVersion;
    let collection = replica.collection();
    let first = ["a", "b", "c", "d"].map(|name| service(name, 40)).to_vec();
    collection.update(|held| held.restart(0, first, rv(50)));
    replicas.persist(None).await.expect("stored");
    let second = ["a", "b", "c"].map(|name| service(name, 20)).to_vec();
    collection.update(|held| held.restart(1_000_007, second, rv(30)));
    replicas.persist(None).await.expect("stored");
    collection.update(|held| held.apply(EventType::Deleted, service("b", 60)));
    let replaced = collection.update(|held| held.replace(vec![service("a", 70)], rv(80)));
    replaced.expect("a later list");
    replicas.persist(None).await.expect("stored");
    let rows = [("x/a".to_owned(), Bytes::from_static(b"row"))];
    store.save_draft("endpoints", true, b"about", &rows).expect("stored");
}

/// The rows of every table, without the random id of the store.
fn rows(path: &Path) -> Recording {
    let database = redb::Database::open(path).expect("the file is closed");
    let mut rows = Recording::default();
    let mut names: Vec<String> = {
        let read = database.begin_read().expect("readable");
        let tables = read.list_tables().expect("readable");
        tables.map(|table| table.name().to_owned()).collect()
    };
    names.sort();
    for name in names {
        let text = match name.as_str() {
            "facts" => table::<&str, &str>(&database, &name),
            "own" => table::<&str, (u64, &[u8])>(&database, &name),
            "own-tombstones" => table::<(u64, u32), (&str, &[u8])>(&database, &name),
            "replica" | "draft-rows" => table::<(&str, &str), &[u8]>(&database, &name),
            "replica-tombstones" => table::<(&str, u64, &str), &[u8]>(&database, &name),
            "replica-ranges" => table::<(&str, u64, &str), (u64, &[u8])>(&database, &name),
            "replica-gaps" => table::<(&str, u64), u64>(&database, &name),
            "replica-high" | "replica-mark" => table::<&str, u64>(&database, &name),
            "replica-meta" => table::<&str, (u64, u64, u64, bool)>(&database, &name),
            "drafts" => table::<&str, &[u8]>(&database, &name),
            other => panic!("{other} is a new table: it has to be recorded"),
        };
        let kept = text.lines().filter(|line| !line.starts_with("\"store-id\""));
        rows.add(name, kept.map(|line| format!("{line}\n")).collect::<String>());
    }
    rows
}

/// One line per row: the key, and the bytes of the value.
fn table<K: Key + 'static, V: Value + 'static>(database: &redb::Database, name: &str) -> String
where
    for<'a> K::SelfType<'a>: Debug,
    for<'a> V::SelfType<'a>: Debug,
{
    let read = database.begin_read().expect("readable");
    let table = read
        .open_table(TableDefinition::<K, V>::new(name))
        .expect("these types");
    let rows = table.iter().expect("readable").map(|row| row.expect("readable"));
    let line = |(key, value): (redb::AccessGuard<'_, K>, redb::AccessGuard<'_, V>)| {
        let value = value.value();
        format!("{:?} = {}\n", key.value(), V::as_bytes(&value).as_ref().escape_ascii())
    };
    rows.map(line).collect()
}

#[tokio::test]
async fn golden_rows_are_written() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("store.redb");
    let (clock, hand) = Clock::fake();
    hand.set_unix(UnixTime {
        secs: 1_767_323_045,
        nanos: 0,
    });
    let store = Embedded::open(&path, clock, Space::Own).expect("opened");
    let cacher = Arc::new(Cacher::new(builtin_kinds()));
    store.attach(cacher).await.expect("attached");
    write_own_objects(&store).await;
    write_replica(&ReplicaStore::open(store.disk()).expect("opened")).await;
    store.close().await.expect("closed");
    drop(store);
    // The writer thread closes the file a moment later.
    std::fs::File::open(&path)
        .and_then(|file| file.lock())
        .expect("no other process keeps it");
    rows(&path).check("disk/rows.txt");
}
