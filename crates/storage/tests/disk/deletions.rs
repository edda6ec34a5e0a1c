//! Deletions on the disk: the number kept, the floor for the others at a start, and no trace of a rejected deletion.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use yurt_apimachinery::ResourceVersion;
use yurt_runtime::Clock;
use yurt_storage::Storage as _;
use yurt_storage::backend::{Action, Durability, Op};

use crate::history::{Found, Life, config_map, delete, find, put};
use crate::medium::{Fault, Hits, Tape};

/// Maximum number of deletions kept on the disk.
const KEPT: usize = 10_000;
/// Maximum bytes of them.
const KEPT_BYTES: usize = 16 << 20;
/// Operations in one transaction.
const TOGETHER: u64 = 100;

async fn begin() -> Life {
    let (clock, hand) = Clock::fake();
    Life::on(Arc::new(Tape::default()), clock, hand).await
}

/// State found by a process that starts after a kill.
async fn restarted(life: &Life) -> Found {
    let (clock, _) = Clock::fake();
    find(Tape::holding(life.tape.bytes()), &clock).await.expect("opens")
}

/// RVs of the deletions that are kept, oldest first.
fn kept(found: &Found) -> Vec<ResourceVersion> {
    found.loaded.tombstones.iter().map(|stored| stored.rv).collect()
}

#[tokio::test]
async fn stored_floor_is_the_last_deletion_that_was_dropped() {
    let life = begin().await;
    let (mut deleted, at_first) = (Vec::new(), restarted(&life).await.loaded.floor);
    for round in 0..=KEPT as u64 / TOGETHER {
        let ops = (0..TOGETHER)
            .map(|n| delete(&config_map(round * TOGETHER + n)))
            .collect();
        let rv = life.store.write(ops).await.expect("deleted");
        deleted.extend((0..TOGETHER).map(|_| rv));
        let found = restarted(&life).await;
        let dropped = deleted.len().saturating_sub(KEPT);
        let floor = deleted[..dropped].last().copied().unwrap_or(at_first);
        assert_eq!(
            (found.loaded.floor, kept(&found).len()),
            (floor, deleted.len() - dropped)
        );
    }
}

#[tokio::test]
async fn stored_floor_follows_large_deletions() {
    let life = begin().await;
    let last = Bytes::from(vec![b'x'; KEPT_BYTES / 4 - 1000]);
    let mut deleted = Vec::new();
    for n in 0..6 {
        let op = Op {
            action: Action::Delete {
                last: last.clone().into(),
            },
            ..delete(&config_map(n))
        };
        deleted.push(life.store.write(vec![op]).await.expect("deleted"));
    }
    let found = restarted(&life).await;
    assert_eq!((found.loaded.floor, kept(&found)), (deleted[1], deleted[2..].to_vec()));
}

/// Its writer got an error: no reader may later receive the deletion, or the object's end.
#[tokio::test]
async fn deletion_that_reached_the_disk_and_was_refused_is_taken_back() {
    let mut life = begin().await;
    let key = config_map(1);
    assert!(life.write(vec![put(&key, 1, Durability::Durable)]).await);
    life.tape.set_fault(Some(Fault {
        from: 0,
        error: ErrorKind::Other,
        tears: false,
        hits: Hits::Flushes,
    }));
    assert!(!life.write(vec![delete(&key)]).await, "the flush fails");
    let found = restarted(&life).await;
    assert_eq!(
        (kept(&found).len(), found.loaded.live.len()),
        (1, 0),
        "it reached the disk"
    );
    life.tape.set_fault(None);
    life.hand.advance(Duration::from_secs(5));
    assert!(life.write(vec![put(&config_map(2), 2, Durability::Durable)]).await);
    let found = restarted(&life).await;
    assert_eq!((kept(&found), found.loaded.live.len()), (Vec::new(), 2));
}
