//! Disks that fill up or fail: writes are rejected, served state stays stored state, and the store resumes when it can.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use yurt_runtime::Clock;
use yurt_storage::Storage as _;
use yurt_storage::backend::{Durability, StorageError};

use crate::history::{Expected, Life, NAME, config_map, find, node_lease, put};
use crate::medium::{Entry, Fault, Hits, Tape};
use crate::random::{Random, seeds};

/// Number of steps in one life.
const STEPS: u64 = 40;
/// Write points at which the medium begins to fail, per seed.
const FAULTS: u64 = 60;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime")
}

fn expected_by(entries: &[Entry]) -> Expected {
    let mut expected = Expected::default();
    for entry in entries {
        if let Entry::Fact(fact) = entry {
            expected.note(fact);
        }
    }
    expected
}

/// A life in which the medium fails from one write on, is repaired, and is killed afterwards. Returns the number of
/// rejected writes.
async fn fail_and_recover(fault: Fault, random: &mut Random) -> Result<usize, String> {
    let tape = Arc::new(Tape::default());
    let (clock, hand) = Clock::fake();
    let mut life = Life::on(tape.clone(), clock.clone(), hand.clone()).await;
    let from = fault.from + tape.done();
    tape.set_fault(Some(Fault { from, ..fault }));
    for step in 0..STEPS {
        life.step(random).await;
        if step == STEPS * 3 / 4 {
            tape.set_fault(None);
        }
    }
    // The periodic check detects the recovery by itself.
    for _ in 0..5 {
        hand.advance(Duration::from_secs(5));
        let _ = life.store.check().await;
    }
    life.store
        .check()
        .await
        .map_err(|error| format!("does not recover: {error}"))?;
    let refused = std::mem::take(&mut life.refused);
    for error in &refused {
        let is_told = match error {
            StorageError::Full(_) => fault.error == ErrorKind::StorageFull,
            StorageError::Unavailable(_) => true,
            _ => false,
        };
        if !is_told || !error.to_string().contains(NAME) {
            return Err(format!("refused with {error:?}"));
        }
    }
    let is_written = life
        .write(vec![put(&config_map(0), 900_000, Durability::Durable)])
        .await;
    life.feed(random).await;
    if !is_written || !life.refused.is_empty() {
        return Err(format!("still refuses: {:?}", life.refused));
    }
    let image = tape.bytes();
    life.kill();
    let expected = expected_by(&tape.take_entries());
    let (clock, _) = Clock::fake();
    expected.check(&find(Tape::holding(image), &clock).await?)?;
    Ok(refused.len())
}

/// Conformance: 7.42
#[test]
fn failing_writes_are_refused_leave_no_trace_and_end_with_their_cause() {
    let mut refused = 0;
    for seed in seeds(4) {
        let mut random = Random::new(seed);
        for _ in 0..FAULTS {
            let fault = Fault {
                from: random.below(150),
                error: [ErrorKind::StorageFull, ErrorKind::Other][random.index(2)],
                tears: random.one_in(2),
                hits: [Hits::All, Hits::All, Hits::Growth, Hits::Flushes][random.index(4)],
            };
            let outcome = runtime().block_on(fail_and_recover(fault, &mut random));
            refused += outcome.unwrap_or_else(|why| panic!("seed {seed}, {fault:?}: {why}"));
        }
    }
    assert!(refused > 500, "only {refused} writes met a fault");
}

/// A full disk does not stop heartbeats immediately, but only when a restart might not continue above them. Then they
/// are rejected, since an RV that was shown must never come again.
///
/// Conformance: 7.42
#[tokio::test]
async fn renewals_go_on_over_a_full_disk_until_their_rvs_would_not_be_safe() {
    let tape = Arc::new(Tape::default());
    let (clock, hand) = Clock::fake();
    let mut life = Life::on(tape.clone(), clock.clone(), hand.clone()).await;
    let lease = node_lease(1);
    assert!(life.renew(&lease).await, "it is created");
    let full = Fault {
        from: 0,
        error: ErrorKind::StorageFull,
        tears: false,
        hits: Hits::All,
    };
    tape.set_fault(Some(full));
    let is_created = life.write(vec![put(&config_map(1), 7, Durability::Durable)]).await;
    assert!(!is_created);
    assert!(
        matches!(&life.refused[0], StorageError::Full(why) if why.contains(NAME)),
        "{:?}",
        life.refused
    );
    let mut renewals = 0;
    while life.renew(&lease).await {
        hand.advance(Duration::from_secs(5));
        renewals += 1;
        assert!(renewals < 30, "RVs are issued far above the mark");
    }
    assert!(renewals >= 20, "renewals stopped after {renewals}");
    assert!(matches!(life.refused.last(), Some(StorageError::Full(_))));
    assert!(life.store.check().await.is_err());
    let (image, entries) = (tape.bytes(), tape.take_entries());
    tape.set_fault(None);
    hand.advance(Duration::from_secs(1));
    assert!(life.renew(&lease).await, "it goes on when there is space again");
    life.kill();
    // If it had been killed while the disk was full: all RVs that were shown are below.
    let (stepped_back, _) = Clock::fake();
    let found = find(Tape::holding(image), &stepped_back).await.expect("opens");
    expected_by(&entries)
        .check(&found)
        .expect("RVs go on above the renewals");
}

/// A group of creations shares one flush, and so do all writes that wait during another flush.
#[tokio::test]
async fn writers_that_wait_together_share_a_flush() {
    let tape = Arc::new(Tape::default());
    let (clock, hand) = Clock::fake();
    let life = Life::on(tape.clone(), clock, hand).await;
    let disk = life.store.disk();
    let before = disk.stats();
    let writes = (0..200).map(|n| life.store.write(vec![put(&config_map(n), n, Durability::Durable)]));
    let mut all = futures_util::future::join_all(writes);
    let held = tape.hold_flushes();
    assert!((&mut all).now_or_never().is_none(), "nothing is durable yet");
    drop(held);
    assert!(all.await.iter().all(Result::is_ok));
    let syncs = disk.stats().syncs - before.syncs;
    assert!(syncs <= 3, "200 writers needed {syncs} flushes");
    let before = disk.stats();
    life.store
        .write(vec![put(&config_map(1), 1, Durability::Durable)])
        .await
        .expect("written");
    assert_eq!(disk.stats().syncs - before.syncs, 1, "one flush per commit");
}
