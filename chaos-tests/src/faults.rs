//! The faults in models, with their names in reports. `cargo xtask chaos --help` lists the faults of real processes.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! faults {
    ($($variant:ident $id:literal $what:literal;)+) => {
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

            /// Description of the fault.
            #[must_use]
            pub fn what(self) -> &'static str {
                match self { $(Self::$variant => $what,)+ }
            }
        }
    };
}

faults! {
    // The network.
    MessageLost "message-lost" "A request never arrives.";
    AnswerLost "answer-lost" "A request takes effect and its answer never arrives.";
    MessageDuplicated "message-duplicated" "A message arrives twice.";
    MessageLate "message-late" "A message takes up to forty seconds, longer than a lease lasts.";
    RequestTimedOut "request-timed-out" "A caller stops waiting for an answer that still comes.";
    StreamCut "stream-cut" "A watch ends in the middle, between any two events.";
    SourceSwitched "source-switched" "A replica resumes at another server.";
    ClientListedAgain "client-listed-again" "A client has to list again (a consequence).";
    // Hubs.
    HubPaused "hub-paused" "A hub is paused and continues, at times after more than a lease duration.";
    HubKilled "hub-killed" "kill -9 of a hub.";
    HubDiskLost "hub-disk-lost" "A hub starts with an empty disk.";
    LeaderStepsDown "leader-steps-down" "A leader stops before its time.";
    // The coordinator.
    CoordinatorKilled "coordinator-killed" "kill -9 of the coordinator: what was not committed is gone.";
    RenewalsLost "renewals-lost" "Lease renewals that lived in memory are gone after a restart.";
    StoreLost "store-lost" "The coordinator starts with an empty disk.";
    // The election.
    LeaseDeleted "lease-deleted" "An administrator deletes the election lease.";
    ForeignElector "foreign-elector" "An elector that never sends a resourceVersion writes the lease.";
    StaleFeed "stale-feed" "A feed call of a former leader arrives.";
    // The cloud.
    CloudUnreachable "cloud-unreachable" "A hub's probes of the cloud fail.";
    CloudLagging "cloud-lagging" "A cloud server answers from an older state than another did.";
    CloudCompacted "cloud-compacted" "The cloud does not remember the position of a watch.";
    CloudRolledBack "cloud-rolled-back" "The cloud is restored from a backup; resourceVersions are reused.";
    HistoryForgotten "history-forgotten" "Tombstones are dropped because there are too many.";
}

/// Number of faults of each kind.
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
    /// Counts one fault.
    pub fn count(&self, fault: Fault) {
        self.counts[fault as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the count of a fault.
    #[must_use]
    pub fn of(&self, fault: Fault) -> u64 {
        self.counts[fault as usize].load(Ordering::Relaxed)
    }

    /// Adds the counts of `other`.
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
        assert!(
            ids.iter()
                .all(|id| id.chars().all(|c| c.is_ascii_lowercase() || c == '-'))
        );
    }
}
