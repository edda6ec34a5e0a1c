//! Limits of the requests in flight: one lane ([`yurt_runtime::fair_queue`]) for reads, one for writes.

pub(crate) use yurt_runtime::fair_queue::{FairQueue as Lane, Permit as Place, Refusals};

/// Reads in flight, as in kube-apiserver. Leases, the feed and administrators are exempt; a watch holds a place only while
/// it opens.
pub(crate) const READS_IN_FLIGHT_MAX: usize = 400;
/// Writes in flight, as in kube-apiserver.
pub(crate) const WRITES_IN_FLIGHT_MAX: usize = 200;
/// Maximum number of requests waiting in one lane.
pub(crate) const QUEUED_MAX: usize = 1000;
/// Longest wait in a lane, in the notation of its flag.
pub(crate) const WAIT_MAX: &str = "15s";
