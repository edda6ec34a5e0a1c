//! Disks that fill up or fail: writes are rejected, served state stays stored state, and the store resumes when it can.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use yurt_runtime::Clock;
use yurt_storage::Storage as _;
use yurt_storage::backend::{Durability, StorageError};

use crate::history::{Expected, Fact, Life, NAME, config_map, find, node_lease, put};
use crate::medium::{Fault, Hits, Tape};
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

/// A life in which the medium fails from one write on, is repaired, and is killed afterwards. Returns the number of
/// rejected writes.
async fn fail_and_recover(fault: Fault, random: &mut Random) -> Result<usize, String> {
    let tape = Arc::new(Tape::default());
    let (clock, hand) = Clock::fake();
    let mut life = Life::on(tape.clone(), clock.clone(), hand.clone()).await;
    let from = fault.from + tape.done();
    tape.set_fault(Some(Fault { from, ..fault }));
    let (mut expected, mut refusals) = (Expected::default(), 0);
    for step in 0..STEPS {
        life.step(random).await;
        expected.note_all(&tape.take_entries());
        if life.refused.len() > refusals {
            refusals = life.refused.len();
            let found = find(Tape::holding(tape.bytes()), &Clock::fake().0).await?;
            let checked = expected.check(&found);
            checked.map_err(|why| format!("killed at step {step}: {why}"))?;
        }
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
    tape.fact(Fact::Reverted);
    let image = tape.bytes();
    life.kill();
    expected.note_all(&tape.take_entries());
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

/// A life with one lease, on a disk that fails from now on.
async fn life_on_a_failing_disk(hits: Hits) -> (Life, String) {
    let (clock, hand) = Clock::fake();
    let mut life = Life::on(Arc::new(Tape::default()), clock, hand).await;
    let lease = node_lease(1);
    assert!(life.renew(&lease).await, "it is created");
    life.tape.set_fault(Some(Fault {
        from: 0,
        error: ErrorKind::StorageFull,
        tears: false,
        hits,
    }));
    (life, lease)
}

/// A full disk does not stop heartbeats: a restart continues above those that it loses.
///
/// Conformance: 7.42
#[tokio::test]
async fn renewals_go_on_over_a_full_disk_and_a_restart_continues_above_them() {
    let (mut life, lease) = life_on_a_failing_disk(Hits::All).await;
    let mut is_refused = false;
    for n in 0..2_000 {
        assert!(life.renew(&lease).await, "renewal {n}: {:?}", life.refused);
        life.hand.advance(Duration::from_secs(5));
        // Each one tries to move the mark.
        is_refused = life.store.check().await.is_err();
    }
    assert!(is_refused && !life.write(vec![put(&config_map(1), 1, Durability::Durable)]).await);
    check_killed(&life).await;
    life.tape.set_fault(None);
    life.hand.advance(Duration::from_secs(10));
    life.store.check().await.expect("there is space again");
    assert!(life.write(vec![put(&config_map(1), 1, Durability::Durable)]).await);
    check_killed(&life).await;
    life.kill();
}

/// The rejected write is on the disk: a restart finds it, at an RV that no reader may have passed.
///
/// Conformance: 7.42
#[tokio::test]
async fn renewals_stay_below_a_rejected_write_until_it_is_reverted() {
    let (mut life, lease) = life_on_a_failing_disk(Hits::Flushes).await;
    for n in 0..20_000 {
        if n % 100 == 0 {
            assert!(!life.write(vec![put(&config_map(1), n, Durability::Durable)]).await);
            life.hand.advance(Duration::from_secs(1));
        }
        assert!(life.renew(&lease).await, "renewal {n}: {:?}", life.refused);
    }
    check_killed(&life).await;
    life.tape.set_fault(None);
    life.hand.advance(Duration::from_secs(1));
    assert!(life.write(vec![put(&config_map(2), 7, Durability::Durable)]).await);
    assert!(life.renew(&lease).await, "it goes on once the write is reverted");
    life.tape.fact(Fact::Reverted);
    check_killed(&life).await;
    life.kill();
}

/// Checks the state that a restart after a kill finds, with the clock stepped back.
async fn check_killed(life: &Life) {
    let mut expected = Expected::default();
    expected.note_all(&life.tape.entries());
    let (stepped_back, _) = Clock::fake();
    let found = find(Tape::holding(life.tape.bytes()), &stepped_back)
        .await
        .expect("opens");
    expected.check(&found).expect("readers miss nothing");
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
