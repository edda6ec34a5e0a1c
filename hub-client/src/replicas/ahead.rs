//! Detects a replica that stays ahead of the present leader in the same history. Such a replica has state that the
//! cloud never had, and is listed again.
//!
//! A leader declares that it feeds the cloud's present. A replica that is ahead waits at the coordinator for a position
//! that may never come. Until then its readers see no change.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::ResourceVersion;
use yurt_apimachinery::time::BootTime;
use yurt_pool_protocol::cloud_fallback::Wanted;
use yurt_pool_protocol::feed::CollectionStatus;
use yurt_pool_protocol::history::next_generation;
use yurt_pool_protocol::source::Source;
use yurt_runtime::Clock;

use super::PoolData;
use super::lag::HeldReplica;
use crate::health::CoordinatorReach;

/// Time ahead after which the replica is reported.
const REPORTED_AFTER: Duration = Duration::from_secs(60);
/// Time ahead after which the replica is listed. kube-apiserver sends bookmarks each minute. A replica that followed
/// the cloud may be ahead of the leader's by one of these, and by more if one is missed.
const LISTED_AFTER: Duration = Duration::from_secs(150);
/// Time between comparisons while the coordinator reports nothing new.
const AGAIN: Duration = Duration::from_secs(5);

/// Start times of replicas being ahead, by name, with their generations.
#[derive(Debug, Default)]
pub struct Ahead(BTreeMap<String, (u64, BootTime)>);

// === impl Ahead ===

impl Ahead {
    /// Returns the time that replica `name`, with position `held`, has been ahead of a leader that feeds the cloud's
    /// present.
    pub fn look(&mut self, name: &str, held: HeldReplica, there: &CollectionStatus, now: BootTime) -> Duration {
        let position = ResourceVersion::parse(&there.applied_up_to).unwrap_or_default();
        let is_compared = held.complete && there.complete && there.fresh && held.generation == there.generation;
        if !is_compared || held.position <= position {
            self.0.remove(name);
            return Duration::ZERO;
        }
        let (generation, since) = self.0.entry(name.to_owned()).or_insert((held.generation, now));
        if *generation != held.generation {
            (*generation, *since) = (held.generation, now);
        }
        now.since(*since)
    }
}

/// Compares after each answer of the coordinator until `token` is cancelled.
pub async fn compare(
    data: Arc<PoolData>,
    mut reach: watch::Receiver<CoordinatorReach>,
    wanted: watch::Receiver<Wanted>,
    clock: Clock,
    token: CancellationToken,
) {
    let mut ahead = Ahead::default();
    loop {
        let status = reach.borrow_and_update().status.clone();
        let follows = wanted.borrow().source == Source::Coordinator;
        match status.filter(|_| follows) {
            Some(status) => leave(&data, &mut ahead, &status.collections, clock.boot()),
            None => ahead = Ahead::default(),
        }
        let changed = tokio::time::timeout(AGAIN, reach.changed());
        match token.run_until_cancelled(changed).await {
            Some(Ok(Ok(())) | Err(_)) => {}
            // The hub stops for another reason.
            Some(Ok(Err(_))) => return token.cancelled().await,
            None => return,
        }
    }
}

/// Gives each replica that has been ahead for too long a generation of its own. It then differs from the coordinator's
/// history, so the next stream lists it.
fn leave(data: &PoolData, ahead: &mut Ahead, there: &BTreeMap<String, CollectionStatus>, now: BootTime) {
    for replica in data.pool_replicas() {
        let (name, collection) = (replica.name(), replica.collection());
        let held = collection.read(|c| HeldReplica {
            complete: c.is_complete(),
            position: c.position(),
            generation: c.generation(),
        });
        let what = format!("history of {name}");
        let lasts = there.get(name).map(|there| (there, ahead.look(name, held, there, now)));
        let Some((there, lasts)) = lasts.filter(|(_, lasts)| *lasts >= REPORTED_AFTER) else {
            data.failures().forget(&what);
            continue;
        };
        let why = format!(
            "the copy is at {}, ahead of the leader, which is at {} and feeds the cloud's present; it is listed after {} s",
            held.position,
            there.applied_up_to,
            LISTED_AFTER.as_secs()
        );
        data.failures().refused(&what, &why);
        if lasts >= LISTED_AFTER {
            let other = next_generation(held.generation, fastrand::u64(..));
            if let Err(error) = collection.update_of(held.generation, ResourceVersion::ZERO, |c| c.adopt(other)) {
                tracing::debug!(collection = name, %error, "Skipped a generation change because another one came first");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use yurt_storage::OnlyWriter as _;
    use yurt_test_support::TestDir;

    use super::*;

    fn there(generation: u64, at: u64, fresh: bool) -> CollectionStatus {
        CollectionStatus {
            generation,
            applied_up_to: at.to_string(),
            complete: true,
            fresh,
            ..CollectionStatus::default()
        }
    }

    fn after(seconds: u64) -> BootTime {
        BootTime::from_boot(Duration::from_secs(1_000 + seconds))
    }

    #[test]
    fn only_a_copy_that_stays_ahead_of_a_fresh_leader_counts() {
        let held = |generation, at| HeldReplica {
            complete: true,
            position: ResourceVersion(at),
            generation,
        };
        let mut ahead = Ahead::default();
        let mut look =
            |held, there: CollectionStatus, seconds| ahead.look("services", held, &there, after(seconds)).as_secs();
        assert_eq!(look(held(0, 9), there(0, 5, true), 0), 0);
        assert_eq!(look(held(0, 9), there(0, 6, true), 70), 70);
        assert_eq!(look(held(0, 9), there(0, 9, true), 80), 0, "the leader got there");
        assert_eq!(look(held(0, 10), there(0, 9, true), 90), 0);
        assert_eq!(
            look(held(0, 10), there(0, 9, false), 100),
            0,
            "the leader does not know the present"
        );
        assert_eq!(look(held(0, 10), there(0, 9, true), 110), 0);
        assert_eq!(look(held(7, 10), there(7, 9, true), 120), 0, "another history");
        assert_eq!(look(held(7, 10), there(8, 9, true), 130), 0, "nothing to compare");
    }

    /// A former leader fed a position far above the cloud's, and the coordinator lost its disk.
    #[test]
    fn copy_that_stays_ahead_is_of_another_history() {
        let folder = TestDir::new();
        let data = PoolData::open(folder.path(), "p", usize::MAX, Clock::system()).unwrap();
        let replica = data.replicas().named("services").unwrap();
        replica
            .collection()
            .update(|held| held.restart(0, Vec::new(), ResourceVersion(1 << 52)));
        let told = [("services".to_owned(), there(0, 100, true))].into();
        let mut ahead = Ahead::default();
        let mut held_after = |seconds| {
            leave(&data, &mut ahead, &told, after(seconds));
            let is_reported = data
                .failures()
                .why("history of services")
                .is_some_and(|why| why.contains("at 100"));
            (replica.collection().read(|c| c.generation() > 0), is_reported)
        };
        assert_eq!(held_after(0), (false, false));
        assert_eq!(held_after(REPORTED_AFTER.as_secs()), (false, true));
        assert_eq!(held_after(LISTED_AFTER.as_secs()), (true, true));
        assert_eq!(held_after(LISTED_AFTER.as_secs() + 5), (true, false));
    }
}
