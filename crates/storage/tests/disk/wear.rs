//! Cost of heartbeats for the medium, in simulated time: bytes and flushes wear out an SD card.

use std::sync::Arc;
use std::time::Duration;

use yurt_apimachinery::ResourceVersion;
use yurt_apimachinery::watch::EventType;
use yurt_collection::Collection;
use yurt_runtime::Clock;
use yurt_storage::backend::Durability;
use yurt_storage::embedded::DiskStats;
use yurt_storage::replica::POSITIONS_EVERY;
use yurt_storage::{OnlyWriter as _, Storage as _};

use crate::history::{Life, config_map, node_lease, put, service};
use crate::medium::Tape;
use crate::random::Random;

/// Interval of a kubelet's renewals.
const RENEW_EVERY: Duration = Duration::from_secs(10);
/// Interval at which a program checks for data to store.
const PERSIST_EVERY: Duration = Duration::from_secs(5);
const MEGABYTE: u64 = 1_000_000;

/// Bytes and flushes of one hour of `nodes` renewing.
async fn hour(nodes: u64) -> DiskStats {
    let (clock, hand) = Clock::fake();
    let mut life = Life::on(Arc::new(Tape::default()), clock, hand.clone()).await;
    for node in 0..nodes {
        assert!(life.renew(&node_lease(node)).await);
    }
    let before = life.store.disk().stats();
    for _ in 0..3600 / RENEW_EVERY.as_secs() {
        let renewals = (0..nodes).map(|node| life.store.write(vec![put(&node_lease(node), 1, Durability::Volatile)]));
        let all = futures_util::future::join_all(renewals).await;
        assert!(all.iter().all(Result::is_ok));
        hand.advance(RENEW_EVERY);
    }
    since(before, life.store.disk().stats())
}

fn since(before: DiskStats, after: DiskStats) -> DiskStats {
    DiskStats {
        bytes_written: after.bytes_written - before.bytes_written,
        writes: after.writes - before.writes,
        syncs: after.syncs - before.syncs,
        ..after
    }
}

/// Renewals alone move the durable mark and nothing else, however many there are.
///
/// Conformance: 8.29
#[tokio::test]
async fn renewals_cost_the_same_few_bytes_for_any_number_of_nodes() {
    for (nodes, most) in [(100, 5 * MEGABYTE), (1_000, 20 * MEGABYTE)] {
        let cost = hour(nodes).await;
        assert!(cost.bytes_written < most, "{nodes} nodes write {cost:?} in an hour");
        assert!(cost.syncs <= 120, "{nodes} nodes: {cost:?}");
    }
}

/// Many updates of few objects leave a small file.
#[tokio::test]
async fn file_stays_small_under_churn() {
    let (clock, hand) = Clock::fake();
    let life = Life::on(Arc::new(Tape::default()), clock, hand).await;
    for round in 0..1_000 {
        let updates = (0..100).map(|n| life.store.write(vec![put(&config_map(n), round, Durability::Durable)]));
        let all = futures_util::future::join_all(updates).await;
        assert!(all.iter().all(Result::is_ok));
    }
    let size = life.store.disk().stats().file_bytes;
    assert!(
        size <= 8 * MEGABYTE,
        "{size} bytes after 10^5 updates of 100 objects of 1 KB"
    );
}

/// A pool without changes: bookmarks move `C` of every collection all the time.
///
/// Conformance: 7.53
#[tokio::test(start_paused = true)]
async fn position_that_moves_alone_is_stored_now_and_then_and_content_at_once() {
    let (clock, hand) = Clock::fake();
    let mut life = Life::on(Arc::new(Tape::default()), clock, hand).await;
    life.feed(&mut Random::new(1)).await;
    let services = life.replicas.named("services").expect("services");
    let position = || services.collection().read(Collection::position);
    let before = life.store.disk().stats();
    let mut stored = services.durable().position;
    let mut behind = Duration::ZERO;
    for _ in 0..3600 / PERSIST_EVERY.as_secs() {
        let next = ResourceVersion(position().0 + 1);
        services.collection().update(|held| held.advance(next));
        tokio::time::advance(PERSIST_EVERY).await;
        life.replicas.persist_due(None).await.expect("stored");
        behind = match services.durable().position {
            same if same == stored => behind + PERSIST_EVERY,
            _ => Duration::ZERO,
        };
        stored = services.durable().position;
        assert!(behind <= POSITIONS_EVERY, "C on the disk is {behind:?} old");
    }
    let cost = since(before, life.store.disk().stats());
    assert!(cost.syncs <= 61 * 2, "an idle hour is flushed {} times", cost.syncs);
    assert!(cost.bytes_written < 3 * MEGABYTE, "an idle hour writes {cost:?}");

    let next = ResourceVersion(position().0 + 1);
    services
        .collection()
        .update(|held| held.apply(EventType::Modified, service(3, next.0)));
    life.replicas.persist_due(None).await.expect("stored");
    assert_eq!(services.durable().position, next, "content is not waited with");
}
