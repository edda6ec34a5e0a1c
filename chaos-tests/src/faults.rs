//! The catalogue of faults: what can go wrong, and in which part of the tests it is made to.
//!
//! Ids are stable: reports name them, and the tests with real processes print the same ones.

use std::sync::atomic::{AtomicU64, Ordering};

/// Where a fault is injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Exhaustive models.
    Model,
    /// Simulations of the real code.
    Simulation,
    /// Real processes and links.
    Process,
}

macro_rules! faults {
    ($($variant:ident $id:literal [$($part:ident)+] $what:literal;)+) => {
        /// One kind of fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Fault {
            $(#[doc = $what] $variant,)+
        }

        impl Fault {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// Name in reports.
            #[must_use]
            pub fn id(self) -> &'static str {
                match self { $(Self::$variant => $id,)+ }
            }

            /// What happens.
            #[must_use]
            pub fn what(self) -> &'static str {
                match self { $(Self::$variant => $what,)+ }
            }

            /// Where it is injected.
            #[must_use]
            pub fn parts(self) -> &'static [Part] {
                match self { $(Self::$variant => &[$(Part::$part,)+],)+ }
            }
        }
    };
}

faults! {
    // The network.
    MessageLost "message-lost" [Model Simulation Process] "A request never arrives.";
    AnswerLost "answer-lost" [Model Simulation Process] "A request takes effect and its answer never arrives.";
    MessageDelayed "message-delayed" [Model Simulation Process] "A message arrives seconds late.";
    MessageReordered "message-reordered" [Model Simulation Process] "Messages overtake each other.";
    MessageDuplicated "message-duplicated" [Model Simulation Process] "A message arrives twice.";
    RequestTimedOut "request-timed-out" [Model Simulation Process] "A caller stops waiting for an answer that still comes.";
    StreamCut "stream-cut" [Model Simulation Process] "A watch ends in the middle, between any two events.";
    LinkDown "link-down" [Simulation Process] "Nothing passes between two parties for a while.";
    LinkOneWay "link-one-way" [Simulation Process] "Packets pass in one direction only.";
    LinkFlaps "link-flaps" [Simulation Process] "A link comes and goes every few seconds.";
    LinkHalfOpen "link-half-open" [Process] "A connection looks alive and carries nothing.";
    LinkSlow "link-slow" [Process] "A link of 50 kbit/s.";
    LinkLossy "link-lossy" [Process] "A link that drops a share of its packets.";
    LinkJitter "link-jitter" [Process] "A link whose delay varies by hundreds of milliseconds.";
    // Clocks and pauses.
    ClockFast "clock-fast" [Model Simulation] "A clock runs fast, within what the timings allow.";
    ClockSlow "clock-slow" [Model Simulation] "A clock runs slow, within what the timings allow.";
    ClockWild "clock-wild" [Simulation] "Clocks differ by more than the timings allow, up to ±50 %.";
    WallClockJumps "wall-clock-jumps" [Process] "The wall clock is set by hours, forward or back.";
    Paused "paused" [Model Simulation Process] "A process stands still for less than the lease duration.";
    PausedLong "paused-long" [Model Simulation Process] "A process stands still for longer than the lease duration.";
    // Hubs.
    HubKilled "hub-killed" [Simulation Process] "kill -9 of a hub.";
    HubStopped "hub-stopped" [Simulation Process] "SIGTERM of a hub.";
    HubDiskLost "hub-disk-lost" [Model Simulation Process] "A hub starts with an empty disk.";
    LeaderStepsDown "leader-steps-down" [Model Simulation] "A leader stops before its time.";
    LeaderLosesCloud "leader-loses-cloud" [Simulation Process] "The leader loses its cloud link and keeps the coordinator.";
    LeaderLosesCoordinator "leader-loses-coordinator" [Simulation Process] "The leader loses the coordinator and keeps the cloud.";
    LeaderKilledInSnapshot "leader-killed-in-snapshot" [Simulation Process] "A leader ends between the chunks of a snapshot.";
    SourceSwitched "source-switched" [Model Simulation Process] "A replica moves to another source in the middle of a stream.";
    RankChanges "rank-changes" [Simulation] "The order of candidates changes while they wait.";
    // The coordinator.
    CoordinatorKilled "coordinator-killed" [Model Simulation Process] "kill -9 of the coordinator: what was not committed is gone.";
    CoordinatorStopped "coordinator-stopped" [Simulation Process] "SIGTERM of the coordinator.";
    RenewalsLost "renewals-lost" [Model Simulation Process] "Lease renewals that lived in memory are gone after a restart.";
    StoreLost "store-lost" [Model Simulation Process] "The coordinator starts with an empty disk.";
    CommitFails "commit-fails" [Simulation Process] "A commit fails once and is tried again.";
    CommitTorn "commit-torn" [Model Process] "Power is lost at any point of a commit.";
    DiskFull "disk-full" [Process] "No space is left on the device.";
    DiskError "disk-error" [Process] "The device answers with an I/O error.";
    DiskBitFlipped "disk-bit-flipped" [Process] "A stored bit is not what was written.";
    EtcdMemberLost "etcd-member-lost" [Process] "One of three etcd members is gone.";
    EtcdCompacted "etcd-compacted" [Process] "etcd forgets the revisions a coordinator would resume from.";
    // The election.
    ForeignElector "foreign-elector" [Model Simulation Process] "An elector that sends no resourceVersion and trusts its wall clock wants the lease.";
    LeaseDeleted "lease-deleted" [Model Simulation Process] "Somebody deletes the election lease.";
    StaleFeed "stale-feed" [Model Simulation] "A feed call of a former leader arrives.";
    FeedRepeated "feed-repeated" [Model Simulation] "A feed call that was applied arrives again.";
    // The cloud.
    CloudLagging "cloud-lagging" [Model Simulation Process] "A cloud server answers from an older state than another did.";
    CloudCompacted "cloud-compacted" [Model Simulation Process] "The cloud does not remember the position of a watch.";
    CloudRolledBack "cloud-rolled-back" [Model Simulation Process] "The cloud comes back from a backup; numbers are used again.";
    CloudRestarted "cloud-restarted" [Process] "kube-apiserver is killed and started.";
    CloudOverloaded "cloud-overloaded" [Process] "The cloud answers 429 or 5xx for a while.";
    ListInterrupted "list-interrupted" [Model Simulation Process] "A list ends between two pages.";
    HistoryForgotten "history-forgotten" [Model Simulation] "Tombstones are dropped because there are too many.";
    // The rest.
    FilesExhausted "files-exhausted" [Process] "A process has no file descriptor left.";
    CertificateExpired "certificate-expired" [Process] "A certificate expires while streams are open.";
    CertificateRotated "certificate-rotated" [Process] "Certificate and CA are replaced while streams are open.";
}

/// How often each kind struck.
#[derive(Debug)]
pub struct Struck {
    counts: Vec<AtomicU64>,
}

// === impl Struck ===

impl Default for Struck {
    fn default() -> Self {
        Self {
            counts: Fault::ALL.iter().map(|_| AtomicU64::new(0)).collect(),
        }
    }
}

impl Struck {
    /// Once more.
    pub fn count(&self, fault: Fault) {
        self.counts[fault as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// So often.
    #[must_use]
    pub fn of(&self, fault: Fault) -> u64 {
        self.counts[fault as usize].load(Ordering::Relaxed)
    }

    /// What `other` counted too.
    pub fn add(&self, other: &Self) {
        for fault in Fault::ALL {
            self.counts[*fault as usize].fetch_add(other.of(*fault), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ids_are_distinct_and_plain() {
        let ids: BTreeSet<_> = Fault::ALL.iter().map(|fault| fault.id()).collect();
        assert_eq!(ids.len(), Fault::ALL.len());
        assert!(ids.len() >= 45);
        assert!(
            ids.iter()
                .all(|id| id.chars().all(|c| c.is_ascii_lowercase() || c == '-'))
        );
    }
}
