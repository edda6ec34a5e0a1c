//! Limits of the requests in flight: one fair queue for reads, one for writes.

use std::num::NonZeroUsize;
use std::time::Duration;

use yurt_runtime::fair_queue::FairQueue;
pub(crate) use yurt_runtime::fair_queue::Permit;

use crate::metrics::Metrics;

/// Reads in flight, as in kube-apiserver. Leases, the feed and administrators are exempt; a watch holds a permit only
/// while it opens.
pub(crate) const READS_IN_FLIGHT_MAX: usize = 400;
/// Writes in flight, as in kube-apiserver.
pub(crate) const WRITES_IN_FLIGHT_MAX: usize = 200;
/// Maximum number of requests waiting in one queue.
pub(crate) const QUEUED_MAX: usize = 1000;
/// Longest wait in a queue, in the notation of its flag.
pub(crate) const WAIT_MAX: &str = "15s";

/// Names of the queues in metrics.
const READS: &str = "readOnly";
const WRITES: &str = "mutating";

/// The queues of a server.
pub(crate) struct FairQueues {
    /// Requests that read.
    pub(crate) reads: FairQueue,
    /// Requests that write.
    pub(crate) writes: FairQueue,
}

/// Limits of the queues.
pub(crate) struct FairQueueLimits {
    /// Maximum number of reads in flight.
    pub(crate) reads: NonZeroUsize,
    /// Maximum number of writes in flight.
    pub(crate) writes: NonZeroUsize,
    /// Maximum number of requests waiting in one queue.
    pub(crate) queued_max: usize,
    /// Longest wait.
    pub(crate) wait_max: Duration,
}

// === impl FairQueues ===

impl FairQueues {
    /// Empty queues, whose rejections are counted in `metrics`.
    pub(crate) fn new(limits: &FairQueueLimits, metrics: &Metrics) -> Self {
        let queue = |kind: &str, in_flight: NonZeroUsize| {
            let rejections = metrics.rejections(kind);
            FairQueue::new(in_flight.get(), limits.queued_max, limits.wait_max, Some(rejections))
        };
        Self {
            reads: queue(READS, limits.reads),
            writes: queue(WRITES, limits.writes),
        }
    }

    /// Exports the requests being answered, and those that wait.
    pub(crate) fn export(&self, metrics: &Metrics) {
        metrics.requests_in_flight(READS, self.reads.load());
        metrics.requests_in_flight(WRITES, self.writes.load());
    }
}
