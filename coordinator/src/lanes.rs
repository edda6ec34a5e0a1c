//! Bounds the requests that are answered at a time: one lane ([`yurt_runtime::lanes`]) for reads, one for writes.

pub(crate) use yurt_runtime::lanes::{Lane, Place, Refusals};

/// Reads being answered at a time, as in kube-apiserver. Leases, the feed and administrators stand outside; a watch holds a
/// place only while it opens.
pub(crate) const READS_IN_FLIGHT_MAX: usize = 400;
/// Writes being answered at a time, as in kube-apiserver.
pub(crate) const WRITES_IN_FLIGHT_MAX: usize = 200;
/// Requests waiting for a place in one lane.
pub(crate) const QUEUED_MAX: usize = 1000;
/// Longest wait for a place, in the notation of its flag.
pub(crate) const WAIT_MAX: &str = "15s";
