//! Judges from the outcomes of this process' writes whether etcd accepts writes. The watch does not show it: it stays
//! open while etcd has no space or no quorum. Pure.

use std::time::Duration;

use tokio::time::Instant;

use crate::backend::{Action, Op, StorageError};

/// Time for which writes fail before etcd counts as unwritable. A change of its leader takes less.
const FAILING_FOR: Duration = Duration::from_secs(5);
/// Time after the last failure from which etcd counts as writable again: without writes nothing shows the recovery.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(30);

/// Failed writes since the last one that etcd answered.
#[derive(Debug, Default)]
pub(super) struct WriteHealth(Option<Failing>);

#[derive(Debug)]
struct Failing {
    since: Instant,
    last: Instant,
    why: StorageError,
}

// === impl WriteHealth ===

impl WriteHealth {
    /// Records the outcome of a transaction at the time `now`.
    pub(super) fn note<T>(&mut self, ops: &[Op], outcome: &Result<T, StorageError>, now: Instant) {
        let fault = match outcome {
            Err(
                why @ (StorageError::Full(_)
                | StorageError::Unavailable(_)
                | StorageError::Corrupt(_)
                | StorageError::Unknown(_)),
            ) => why,
            // It may be refused before etcd sees it.
            Err(StorageError::TooManyBytes(_)) => return,
            // etcd judged the write itself. It judges deletions also while it is full.
            _ => {
                if ops.iter().any(|op| matches!(op.action, Action::Put(..))) {
                    self.0 = None;
                }
                return;
            }
        };
        let before = self.0.take().filter(|failing| failing.is_known(now));
        self.0 = Some(Failing {
            since: before.map_or(now, |failing| failing.since),
            last: now,
            why: fault.clone(),
        });
    }

    /// Checks that writes succeed at the time `now`, as far as is known.
    ///
    /// # Errors
    /// The last failure, if writes have failed for 5 s.
    pub(super) fn check(&self, now: Instant) -> Result<(), StorageError> {
        let failing = self.0.as_ref().filter(|failing| failing.is_known(now));
        let failing = failing.filter(|failing| failing.last - failing.since >= FAILING_FOR);
        failing.map_or(Ok(()), |failing| Err(failing.why.clone()))
    }
}

// === impl Failing ===

impl Failing {
    fn is_known(&self, now: Instant) -> bool {
        now - self.last < FORGOTTEN_AFTER
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::backend::{Durability, Expect};

    fn op(action: Action) -> Op {
        Op {
            key: "/leases/n1".to_owned(),
            expect: Expect::Absent,
            action,
        }
    }

    fn put() -> Op {
        op(Action::Put(Bytes::from_static(b"{}").into(), Durability::Durable))
    }

    fn full() -> Result<(), StorageError> {
        Err(StorageError::Full("etcdserver: mvcc: database space exceeded".into()))
    }

    fn conflict() -> Result<(), StorageError> {
        let key = "/leases/n1".to_owned();
        Err(StorageError::Conflict { key, found: None })
    }

    #[test]
    fn etcd_that_refuses_every_write_is_not_writable_until_it_takes_one() {
        let (began, secs) = (Instant::now(), Duration::from_secs);
        for taken in [Ok(()), conflict()] {
            let mut health = WriteHealth::default();
            health.note(&[put()], &full(), began);
            assert!(health.check(began).is_ok(), "its leader may be changing");
            health.note(&[put()], &full(), began + secs(10));
            health.note::<()>(
                &[put()],
                &Err(StorageError::TooManyBytes("too large".into())),
                began + secs(10),
            );
            assert!(matches!(health.check(began + secs(10)), Err(StorageError::Full(_))));
            health.note(&[put()], &taken, began + secs(20));
            assert!(health.check(began + secs(20)).is_ok(), "{taken:?}");
            health.note(&[put()], &full(), began + secs(21));
            assert!(health.check(began + secs(21)).is_ok(), "the count begins again");
        }
    }

    #[test]
    fn deletions_do_not_show_that_a_full_etcd_is_writable_again() {
        let (began, later) = (Instant::now(), Instant::now() + FAILING_FOR);
        let mut health = WriteHealth::default();
        let last = Bytes::from_static(b"{}").into();
        let deletion = [op(Action::Delete { last }), op(Action::Check)];
        health.note(&deletion, &full(), began);
        health.note(&deletion, &full(), later);
        for judged in [Ok(()), conflict()] {
            health.note(&deletion, &judged, later);
            assert!(matches!(health.check(later), Err(StorageError::Full(_))), "{judged:?}");
        }
        health.note(&[op(Action::Check), put()], &Ok(()), later);
        assert!(health.check(later).is_ok());
    }

    /// Clients may have left a coordinator that is not ready.
    #[test]
    fn failures_are_forgotten_while_there_are_no_writes() {
        let (began, secs) = (Instant::now(), Duration::from_secs);
        let mut health = WriteHealth::default();
        health.note(&[put()], &full(), began);
        health.note(&[put()], &full(), began + secs(10));
        assert!(health.check(began + secs(39)).is_err());
        assert!(health.check(began + secs(40)).is_ok());
        health.note(&[put()], &full(), began + secs(40));
        assert!(health.check(began + secs(40)).is_ok(), "one failure is no state");
    }
}
