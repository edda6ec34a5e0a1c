//! Plans the two renewals that each kubelet beat causes: one at the cloud, one at the coordinator, in parallel.
//!
//! No beat, no renewal. The pool lease carries the delegate annotation from a failed cloud renewal until one succeeds.
//! Such a change is written immediately with the renewTime of its beat, before the next beat.
//!
//! The pool lease also names the last beat that reached the cloud through a relay. That mark goes when a relay fails;
//! then the leader forwards. A failed write is not repeated here: the next beat is the retry.

use super::UnixMicros;

/// Renewal plan of this node's lease.
#[derive(Debug, Default)]
pub struct OwnLease {
    /// The renewTime of the last kubelet beat.
    beat: Option<UnixMicros>,
    /// True if the last cloud renewal failed or took a relay.
    is_cut_off: bool,
    /// The last beat that reached the cloud through a relay, while relaying continues.
    relayed: Option<UnixMicros>,
    cloud: Destination<UnixMicros>,
    pool: Destination<PoolRenewal>,
}

/// Destination of lease writes; at most one write is in flight.
#[derive(Debug)]
struct Destination<T> {
    /// The write in flight or written last, regardless of its result.
    last: Option<T>,
    is_writing: bool,
}

/// Content of a renewal of the pool lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolRenewal {
    /// `spec.renewTime`: the kubelet's.
    pub renew_time: UnixMicros,
    /// True to set the annotation `openyurt.io/delegate-heartbeat: "true"`, false to remove it.
    pub is_delegated: bool,
    /// The last beat that a relay delivered. Without one the leader forwards this node's beats.
    pub relayed: Option<UnixMicros>,
}

/// Result of a cloud renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewalOutcome {
    /// The cloud answered this node.
    Heard,
    /// A relay delivered the renewal.
    Relayed,
    /// Both failed or exceeded the deadline.
    Lost,
}

/// Input of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnInput {
    /// The kubelet renewed its lease through this hub.
    Beat(UnixMicros),
    /// The cloud renewal ended.
    CloudDone(RenewalOutcome),
    /// The last requested cloud renewal is not sent: only a beat can carry one.
    CloudSkipped,
    /// The coordinator renewal ended, with any result.
    PoolDone,
}

/// A write to start now, in parallel to those in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnAction {
    /// Renew at the cloud. The delegate annotation is never part of the renewal; it is removed if present.
    RenewCloud(UnixMicros),
    /// Renew at the coordinator.
    RenewPool(PoolRenewal),
}

// === impl OwnLease ===

impl OwnLease {
    /// Creates an empty plan: nothing is sent before the first beat.
    pub fn new() -> Self {
        Self::default()
    }

    /// True if the node counts as cut off from the cloud.
    pub fn is_cut_off(&self) -> bool {
        self.is_cut_off
    }

    /// Handles one input and returns the writes that follow from it.
    #[must_use]
    pub fn handle(&mut self, input: OwnInput) -> Vec<OwnAction> {
        match input {
            OwnInput::Beat(renew_time) => self.beat = Some(renew_time),
            OwnInput::CloudDone(outcome) => {
                self.cloud.is_writing = false;
                self.is_cut_off = outcome != RenewalOutcome::Heard;
                self.relayed = self.cloud.last.filter(|_| outcome == RenewalOutcome::Relayed);
            }
            OwnInput::CloudSkipped => self.cloud.is_writing = false,
            OwnInput::PoolDone => self.pool.is_writing = false,
        }
        let Some(renew_time) = self.beat else { return Vec::new() };
        let cloud = self.cloud.start(renew_time).map(OwnAction::RenewCloud);
        let pool = self.pool.start(PoolRenewal {
            renew_time,
            is_delegated: self.is_cut_off,
            relayed: self.relayed,
        });
        cloud.into_iter().chain(pool.map(OwnAction::RenewPool)).collect()
    }
}

// === impl Destination ===

impl<T> Default for Destination<T> {
    fn default() -> Self {
        Destination {
            last: None,
            is_writing: false,
        }
    }
}

impl<T: Copy + PartialEq> Destination<T> {
    /// Returns the write to start if it differs from the last one and none is in flight.
    fn start(&mut self, wanted: T) -> Option<T> {
        if self.is_writing || self.last == Some(wanted) {
            return None;
        }
        self.is_writing = true;
        self.last = Some(wanted);
        Some(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::OwnAction::{RenewCloud, RenewPool};
    use super::OwnInput::{Beat, CloudDone, CloudSkipped, PoolDone};
    use super::RenewalOutcome::{Heard, Lost, Relayed};
    use super::*;

    const T1: UnixMicros = UnixMicros(1_000_000);
    const T2: UnixMicros = UnixMicros(11_000_000);
    const T3: UnixMicros = UnixMicros(21_000_000);

    fn pool(renew_time: UnixMicros, is_delegated: bool) -> OwnAction {
        RenewPool(PoolRenewal {
            renew_time,
            is_delegated,
            relayed: None,
        })
    }

    #[test]
    fn beat_renews_at_both_places_side_by_side() {
        let mut lease = OwnLease::new();
        assert_eq!(lease.handle(Beat(T1)), [RenewCloud(T1), pool(T1, false)]);
        assert_eq!(lease.handle(CloudDone(Heard)), []);
        assert_eq!(lease.handle(PoolDone), []);
        assert_eq!(lease.handle(Beat(T2)), [RenewCloud(T2), pool(T2, false)]);
    }

    #[test]
    fn no_beat_no_renewal() {
        let mut lease = OwnLease::new();
        assert_eq!(lease.handle(CloudDone(Lost)), []);
        assert_eq!(lease.handle(PoolDone), []);
        let _ = lease.handle(Beat(T1));
        let _ = lease.handle(PoolDone);
        let _ = lease.handle(CloudDone(Heard));
        assert_eq!(lease.handle(CloudDone(Heard)), [], "an answer is not a beat");
    }

    #[test]
    fn failed_cloud_renewal_is_annotated_at_once_with_the_same_beat() {
        let mut lease = OwnLease::new();
        let _ = lease.handle(Beat(T1));
        assert_eq!(lease.handle(PoolDone), []);
        assert_eq!(lease.handle(CloudDone(Lost)), [pool(T1, true)]);
        assert!(lease.is_cut_off());
        assert_eq!(lease.handle(PoolDone), []);
        assert_eq!(
            lease.handle(Beat(T2)),
            [RenewCloud(T2), pool(T2, true)],
            "not a tick later"
        );
    }

    #[test]
    fn failure_during_the_pool_write_is_written_right_after_it() {
        let mut lease = OwnLease::new();
        let _ = lease.handle(Beat(T1));
        assert_eq!(lease.handle(CloudDone(Lost)), [], "one write at a time");
        assert_eq!(lease.handle(PoolDone), [pool(T1, true)]);
    }

    #[test]
    fn success_removes_the_annotation_at_once() {
        let mut lease = OwnLease::new();
        let _ = lease.handle(Beat(T1));
        let _ = lease.handle(CloudDone(Lost));
        let _ = lease.handle(PoolDone);
        let _ = lease.handle(PoolDone);
        let _ = lease.handle(Beat(T2));
        let _ = lease.handle(PoolDone);
        assert_eq!(lease.handle(CloudDone(Heard)), [pool(T2, false)]);
    }

    #[test]
    fn slow_cloud_does_not_delay_the_pool_and_is_tried_with_the_newest_beat() {
        let mut lease = OwnLease::new();
        let _ = lease.handle(Beat(T1));
        let _ = lease.handle(PoolDone);
        assert_eq!(lease.handle(Beat(T2)), [pool(T2, false)]);
        let _ = lease.handle(PoolDone);
        assert_eq!(lease.handle(Beat(T3)), [pool(T3, false)]);
        assert_eq!(lease.handle(CloudDone(Lost)), [RenewCloud(T3)], "T2 was overtaken");
        assert_eq!(lease.handle(PoolDone), [pool(T3, true)]);
    }

    fn relayed(renew_time: UnixMicros, beat: UnixMicros) -> OwnAction {
        RenewPool(PoolRenewal {
            renew_time,
            is_delegated: true,
            relayed: Some(beat),
        })
    }

    #[test]
    fn relayed_beat_is_marked_and_the_mark_stays_until_one_is_lost() {
        let mut lease = OwnLease::new();
        let _ = lease.handle(Beat(T1));
        let _ = lease.handle(PoolDone);
        assert_eq!(lease.handle(CloudDone(Relayed)), [relayed(T1, T1)]);
        assert!(lease.is_cut_off(), "the node itself is not heard");
        let _ = lease.handle(PoolDone);
        assert_eq!(lease.handle(Beat(T2)), [RenewCloud(T2), relayed(T2, T1)]);
        let _ = lease.handle(PoolDone);
        assert_eq!(lease.handle(CloudDone(Relayed)), [relayed(T2, T2)]);
        let _ = lease.handle(PoolDone);
        let _ = lease.handle(Beat(T3));
        let _ = lease.handle(PoolDone);
        assert_eq!(
            lease.handle(CloudDone(Lost)),
            [pool(T3, true)],
            "the leader has to speak for the same beat"
        );
    }

    #[test]
    fn direct_success_removes_annotation_and_mark_together() {
        let mut lease = OwnLease::new();
        for input in [Beat(T1), PoolDone, CloudDone(Relayed), PoolDone, Beat(T2), PoolDone] {
            let _ = lease.handle(input);
        }
        assert_eq!(lease.handle(CloudDone(Heard)), [pool(T2, false)]);
        assert!(!lease.is_cut_off());
    }

    #[test]
    fn skipped_renewal_changes_nothing_and_frees_the_line() {
        let mut lease = OwnLease::new();
        for input in [Beat(T1), PoolDone, Beat(T2), PoolDone] {
            let _ = lease.handle(input);
        }
        assert_eq!(lease.handle(CloudDone(Relayed)), [RenewCloud(T2), relayed(T2, T1)]);
        let _ = lease.handle(PoolDone);
        assert_eq!(
            lease.handle(CloudSkipped),
            [],
            "T2 was not relayed and must not be marked so"
        );
        assert!(lease.is_cut_off());
        assert_eq!(lease.handle(Beat(T3)), [RenewCloud(T3), relayed(T3, T1)]);
    }
}
