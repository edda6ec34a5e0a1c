//! The etcd backend over a real etcd: the storage contract, several coordinators, and faults of etcd.
//!
//! Ignored without an etcd; the interop step of `cargo xtask test` runs them.

mod refused;
mod restored;
mod shared_store;
mod support;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use yurt_apimachinery::{ObjectKey, ResourceVersion, Space};
use yurt_storage::backend::{Action, Expect, Op};
use yurt_storage::contract::{self, Harness, put};
use yurt_storage::{Storage, StorageError};
use yurt_test_support::etcd::{EtcdMember, EtcdTls};

use support::{Coordinator, config, eventually};

/// One etcd with TLS, and the coordinators that used it.
struct OverTls {
    tls: EtcdTls,
    etcd: EtcdMember,
    opened: Vec<Coordinator>,
}

impl Harness for OverTls {
    fn open(&mut self) -> BoxFuture<'_, Arc<dyn Storage>> {
        Box::pin(async {
            let mut config = config(&[&self.etcd], Space::Own);
            config.tls = Some(self.tls.client());
            let coordinator = Coordinator::connect(config).await;
            let storage = coordinator.storage.clone();
            self.opened.push(coordinator);
            storage as Arc<dyn Storage>
        })
    }
}

macro_rules! passes {
    ($($promise:ident),* $(,)?) => { $(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        #[ignore = "needs an etcd"]
        async fn $promise() {
            let tls = EtcdTls::new();
            let etcd = EtcdMember::single(Some(&tls), &[]);
            contract::$promise(&mut OverTls { tls, etcd, opened: Vec::new() }).await;
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

fn delete(name: &str, expect: Expect) -> Op {
    let Op { key, .. } = put(name, expect, "");
    let last = bytes::Bytes::from_static(b"{}");
    Op {
        key,
        expect,
        action: Action::Delete { last: last.into() },
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an etcd"]
async fn writes_at_one_coordinator_are_seen_at_the_other_in_order() {
    let etcd = EtcdMember::single(None, &[]);
    let (one, other) = (Coordinator::start(&[&etcd]).await, Coordinator::start(&[&etcd]).await);
    assert_eq!(one.storage.id(), other.storage.id(), "they share one store");
    let mut reader = other.collection().read(|held| held.snapshot(None).reader);
    let mut written = Vec::new();
    for n in 0..200 {
        let ops = vec![put(&format!("k{}", n % 7), Expect::Any, &n.to_string())];
        written.push(one.storage.write(ops).await.expect("write"));
    }
    let reached = other.storage.caught_up().expect("it is shared").await.expect("reached");
    assert!(reached >= written[199], "a read after the write must reflect it");
    let mut told = Vec::new();
    loop {
        let read = other
            .collection()
            .read(|held| held.read(&mut reader, 1000))
            .expect("read");
        if read.is_empty() {
            break;
        }
        told.extend(read.iter().map(support::version_of));
    }
    assert_eq!(told, written);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an etcd"]
async fn races_between_coordinators_have_one_winner() {
    let etcd = EtcdMember::single(None, &[]);
    let (one, other) = (Coordinator::start(&[&etcd]).await, Coordinator::start(&[&etcd]).await);
    let mut rv = one
        .storage
        .write(vec![put("a", Expect::Absent, "0")])
        .await
        .expect("create");
    for round in 0..50 {
        let bid = |who: &str| vec![put("a", Expect::At(rv), &format!("{who}{round}"))];
        let (left, right) = tokio::join!(one.storage.write(bid("one")), other.storage.write(bid("other")));
        let (won, lost) = match (left, right) {
            (Ok(won), Err(lost)) | (Err(lost), Ok(won)) => (won, lost),
            both => panic!("one must win: {both:?}"),
        };
        assert!(
            matches!(lost, StorageError::Conflict { found, .. } if found == Some(won)),
            "{lost:?}"
        );
        rv = won;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an etcd"]
async fn revisions_of_others_in_the_same_etcd_do_not_hold_a_read_up() {
    let etcd = EtcdMember::single(None, &[]);
    let mut neighbour = config(&[&etcd], Space::Cloud);
    neighbour.prefix = "/yurt-neighbour".into();
    let (one, neighbour) = (
        Coordinator::start(&[&etcd]).await,
        Coordinator::connect(neighbour).await,
    );
    neighbour.attach().await;
    assert_ne!(one.storage.id(), neighbour.storage.id());
    let before = one.collection().read(|held| held.position());
    let foreign = neighbour
        .storage
        .write(vec![put("a", Expect::Absent, "0")])
        .await
        .expect("write");
    assert!(!foreign.is_own());
    let reached = one
        .storage
        .caught_up()
        .expect("it is shared")
        .await
        .expect("progress is reported");
    assert!(reached > before, "revisions of other writers count, too");
    assert!(
        one.collection().read(|held| held.is_empty()),
        "keys of another prefix are not ours"
    );
}

/// etcd is killed, started elsewhere, and written by another coordinator with more than one message of a watch can
/// hold. When it comes back, the first coordinator resumes at its position.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an etcd"]
async fn killed_etcd_is_resumed_without_a_reload() {
    let mut etcd = EtcdMember::single(None, &[]);
    let one = Coordinator::start(&[&etcd]).await;
    one.storage
        .write(vec![put("before", Expect::Absent, "1")])
        .await
        .expect("write");
    etcd.kill();
    let down = one.storage.write(vec![put("never", Expect::Absent, "1")]).await;
    assert!(
        matches!(down, Err(StorageError::Unavailable(_) | StorageError::Unknown(_))),
        "{down:?}"
    );
    let refused = one.storage.caught_up().expect("it is shared").await;
    assert!(matches!(refused, Err(StorageError::Unavailable(_))), "{refused:?}");
    eventually("trouble is reported", || one.is_in_trouble()).await;
    let home = etcd.move_away();
    etcd.start();
    let other = Coordinator::start(&[&etcd]).await;
    let large = "x".repeat(20_000);
    let mut last = ResourceVersion::ZERO;
    for n in 0..400 {
        last = other
            .storage
            .write(vec![put(&format!("k{n}"), Expect::Absent, &large)])
            .await
            .expect("write");
    }
    etcd.kill();
    etcd.move_to(home);
    etcd.start();
    eventually("everything arrives", || {
        one.collection().read(|held| held.position()) >= last
    })
    .await;
    assert_eq!(one.collection().read(|held| held.len()), 401);
    assert_eq!(one.reloads(), 0, "the watch must resume");
    assert!(!one.is_in_trouble());
    one.storage
        .write(vec![put("after", Expect::Absent, "1")])
        .await
        .expect("write");
}

/// An etcd with a raised limit sends all that a watch has missed in one message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an etcd"]
async fn watch_that_has_missed_more_than_one_message_holds_is_reloaded_once() {
    let mut etcd = EtcdMember::single(None, &["--max-request-bytes=67108864"]);
    let one = Coordinator::start(&[&etcd]).await;
    etcd.kill();
    eventually("trouble is reported", || one.is_in_trouble()).await;
    let home = etcd.move_away();
    etcd.start();
    let other = Coordinator::start(&[&etcd]).await;
    let large = "x".repeat(200_000);
    let mut last = ResourceVersion::ZERO;
    for n in 0..100 {
        let ops = vec![put(&format!("k{n}"), Expect::Absent, &large)];
        last = other.storage.write(ops).await.expect("write");
    }
    etcd.kill();
    etcd.move_to(home);
    etcd.start();
    eventually("everything arrives", || {
        one.collection().read(|held| held.position()) >= last
    })
    .await;
    assert_eq!(one.collection().read(|held| held.len()), 100);
    let written = one.storage.write(vec![put("after", Expect::Absent, "1")]).await;
    written.expect("write");
    assert_eq!(one.reloads(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an etcd"]
async fn compaction_ends_in_a_reload_that_tells_differences_only() {
    let mut etcd = EtcdMember::single(None, &[]);
    let one = Coordinator::start(&[&etcd]).await;
    for name in ["stays", "changes", "goes"] {
        one.storage
            .write(vec![put(name, Expect::Absent, "1")])
            .await
            .expect("write");
    }
    let mut reader = one.collection().read(|held| held.snapshot(None).reader);
    etcd.kill();
    let home = etcd.move_away();
    etcd.start();
    let mut config = config(&[&etcd], Space::Own);
    config.compaction_interval = Some(Duration::from_millis(200));
    let other = Coordinator::connect(config).await;
    other.attach().await;
    other
        .storage
        .write(vec![put("changes", Expect::Any, "2")])
        .await
        .expect("write");
    other
        .storage
        .write(vec![delete("goes", Expect::Any)])
        .await
        .expect("write");
    // Compacted once a fresh start no longer receives the deletion.
    for _ in 0..100 {
        let fresh = Coordinator::start(&[&etcd]).await;
        if fresh
            .collection()
            .read(|held| held.open(held.floor()).is_ok_and(|_| held.floor() > reader.position()))
        {
            break;
        }
        other
            .storage
            .write(vec![put("ticks", Expect::Any, "")])
            .await
            .expect("write");
    }
    drop(other);
    etcd.kill();
    etcd.move_to(home);
    etcd.start();
    eventually("the reload", || one.reloads() == 1).await;
    let told = one
        .collection()
        .read(|held| held.read(&mut reader, 100))
        .expect("readers go on");
    let told: Vec<String> = told.iter().filter_map(support::told).collect();
    assert!(
        told.contains(&"Deleted goes".to_owned()) && told.contains(&"Updated changes".to_owned()),
        "{told:?}"
    );
    assert!(!told.iter().any(|line| line.contains("stays")), "{told:?}");
    one.storage
        .write(vec![put("after", Expect::Absent, "1")])
        .await
        .expect("write");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an etcd"]
async fn writes_go_on_when_one_of_three_members_dies() {
    let mut members = EtcdMember::cluster(3);
    let one = Coordinator::start(&members.iter().collect::<Vec<_>>()).await;
    one.storage
        .write(vec![put("a", Expect::Absent, "0")])
        .await
        .expect("write");
    // The first member given is used first.
    members[0].kill();
    let started = tokio::time::Instant::now();
    let rv = loop {
        match one.storage.write(vec![put("b", Expect::Any, "1")]).await {
            Ok(rv) => break rv,
            Err(StorageError::Unavailable(_) | StorageError::Unknown(_)) => {}
            Err(error) => panic!("{error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    eventually("the watch goes on at another member", || {
        one.collection().read(|held| held.position()) >= rv
    })
    .await;
    assert_eq!(one.reloads(), 0);
    for n in 0..20 {
        one.storage
            .write(vec![put("b", Expect::Any, &n.to_string())])
            .await
            .expect("steady again");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an etcd"]
async fn an_etcd_that_went_back_in_time_ends_the_process() {
    let mut etcd = EtcdMember::single(None, &[]);
    let one = Coordinator::start(&[&etcd]).await;
    one.storage
        .write(vec![put("a", Expect::Absent, "0")])
        .await
        .expect("write");
    let backup = support::back_up(&mut etcd, &one).await;
    let lost = support::write(&one, "lost", "0").await;
    support::put_back(&mut etcd, &backup);
    let failed = tokio::time::timeout(Duration::from_secs(20), one.tasks.failed()).await;
    assert_eq!(failed, Ok("etcd-watch"));
    assert!(
        one.collection().read(|held| held.position()) >= lost,
        "nothing is reverted in the meantime"
    );
}

/// A pool whose power came back waits for its etcd without limit. Another coordinator's restart in the meantime does
/// not matter.
#[tokio::test(start_paused = true)]
#[ignore = "needs an etcd"]
async fn start_waits_as_long_as_it_takes() {
    let mut etcd = EtcdMember::single(None, &[]);
    etcd.kill();
    let mut connecting = Box::pin(Coordinator::connect(config(&[&etcd], Space::Own)));
    let hour = tokio::time::timeout(Duration::from_secs(3600), &mut connecting).await;
    assert!(hour.is_err(), "there is no etcd");
    tokio::time::resume();
    etcd.start();
    let found = tokio::time::timeout(yurt_test_support::PATIENCE, connecting).await;
    found.expect("it is found once it is there").attach().await;
}

/// An RV that was shown never names another state: numbers continue above it, and readers below start over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an etcd"]
async fn etcd_that_went_back_while_nobody_looked_begins_a_new_timeline() {
    let mut etcd = EtcdMember::single(None, &[]);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let start = async |etcd: &EtcdMember| {
        let mut config = config(&[etcd], Space::Own);
        config.mark = Some(folder.path().join("mark"));
        let coordinator = Coordinator::connect(config).await;
        coordinator.attach().await;
        coordinator
    };
    let write = async |coordinator: &Coordinator, name: &str| {
        let written = coordinator.storage.write(vec![put(name, Expect::Any, "0")]).await;
        written.expect("write")
    };
    let one = start(&etcd).await;
    write(&one, "kept").await;
    let backup = support::back_up(&mut etcd, &one).await;
    let lost = support::write(&one, "lost", "0").await;
    let id = one.storage.id().to_owned();
    one.storage.close().await.expect("closed");
    drop(one);
    support::put_back(&mut etcd, &backup);

    let two = start(&etcd).await;
    assert_ne!(two.storage.id(), id);
    let held = two
        .collection()
        .read(|held| (held.len(), held.position(), held.open(lost).is_err()));
    assert!(held.0 == 1 && held.1 > lost && held.2, "{held:?}");
    assert!(write(&two, "lost").await > lost);
    // A coordinator that was absent uses the same numbers, and none begins another timeline.
    let [three, four] = [Coordinator::start(&[&etcd]).await, start(&etcd).await];
    for other in [&three, &four] {
        assert_eq!(other.storage.id(), two.storage.id());
        let positions = [&two, other].map(|each| {
            each.collection()
                .read(|held| held.object(&ObjectKey::parse("x/lost")).cloned())
        });
        let [seen, others] = positions.map(|object| object.expect("it was written again").resource_version());
        assert_eq!(seen, others);
    }
    let rv = write(&three, "kept").await;
    let update = put("kept", Expect::At(rv), "1");
    two.storage
        .write(vec![update])
        .await
        .expect("numbers mean the same to all");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an etcd"]
async fn limits_of_etcd_are_told_apart() {
    let etcd = EtcdMember::single(None, &["--quota-backend-bytes=16777216"]);
    let one = Coordinator::start(&[&etcd]).await;
    let huge = "x".repeat(2 << 20);
    let refused = one.storage.write(vec![put("huge", Expect::Absent, &huge)]).await;
    assert!(matches!(refused, Err(StorageError::TooManyBytes(_))), "{refused:?}");
    let large = "x".repeat(1 << 20);
    let full = loop {
        match one.storage.write(vec![put("a", Expect::Any, &large)]).await {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(full, StorageError::Full(_)), "{full:?}");
    let reached = one.storage.caught_up().expect("it is shared").await;
    assert!(reached.is_ok(), "reads go on: {reached:?}");
}

/// etcd compacts then, and refuses only the record of whose turn it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an etcd"]
async fn history_is_compacted_while_etcd_has_no_space() {
    let etcd = EtcdMember::single(None, &["--quota-backend-bytes=16777216"]);
    let one = Coordinator::start(&[&etcd]).await;
    let large = "x".repeat(1 << 20);
    let created = one.storage.write(vec![put("goes", Expect::Absent, "1")]).await;
    created.expect("write");
    while one.storage.write(vec![put("a", Expect::Any, &large)]).await.is_ok() {}
    let deleted = one.storage.write(vec![delete("goes", Expect::Any)]).await;
    let deleted = deleted.expect("etcd deletes without space");
    let mut config = config(&[&etcd], Space::Own);
    config.compaction_interval = Some(Duration::from_millis(200));
    let other = Coordinator::connect(config).await;
    other.attach().await;
    yurt_test_support::eventually("a compaction", async || {
        let fresh = Coordinator::start(&[&etcd]).await;
        let floor = fresh.collection().read(|held| held.floor());
        (floor >= deleted).then_some(())
    })
    .await;
}
