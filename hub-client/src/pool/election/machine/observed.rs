//! The lease as this candidate knows it, and since when.
//!
//! Expiry is judged by our own clock alone: a record that did not change for its own duration *since we first saw
//! it* is expired. The holder wrote it before we saw it and counts from before it wrote, so its deadline is over
//! by then, whatever the two wall clocks say. A record that asks for more than any candidate may be configured with is
//! waited for no longer than that.

use std::time::Duration;

use super::types::{BootTime, LEASE_DURATION_MAX, Lease, ResourceVersion};

/// What is known about the lease.
#[derive(Clone, Debug)]
pub(super) struct Observed {
    /// The last accepted state.
    pub(super) known: Known,
    /// When that state was first seen, on our clock.
    pub(super) since: BootTime,
}

/// A state of the lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// Never read, or read from a store that is gone.
    Unknown,
    /// There is no lease.
    Absent,
    /// The record.
    Present(Lease),
}

// === impl Observed ===

impl Observed {
    pub(super) fn unknown() -> Self {
        Observed {
            known: Known::Unknown,
            since: BootTime::ZERO,
        }
    }

    /// Takes over a state seen at `now`; true if it differs from the one known before.
    ///
    /// Another resourceVersion counts as a change even when the spec is the same: somebody wrote, and to wait
    /// longer is the safe mistake.
    pub(super) fn set(&mut self, known: Known, now: BootTime) -> bool {
        let changed = self.known != known;
        if changed {
            self.since = now;
            self.known = known;
        }
        changed
    }

    /// Whether a state of version `version`, which may have travelled, is not older than what is known.
    pub(super) fn is_not_newer_than(&self, version: ResourceVersion) -> bool {
        self.resource_version().is_none_or(|known| known <= version)
    }

    /// The version a PUT must carry; `None` when there is nothing to replace.
    pub(super) fn resource_version(&self) -> Option<ResourceVersion> {
        self.lease().map(|lease| lease.resource_version)
    }

    pub(super) fn lease(&self) -> Option<&Lease> {
        match &self.known {
            Known::Present(lease) => Some(lease),
            Known::Unknown | Known::Absent => None,
        }
    }

    pub(super) fn is_held_by(&self, identity: &str) -> bool {
        self.lease().is_some_and(|lease| lease.holder_identity == identity)
    }

    /// From when on `identity` may try to take the lease; `None` = only after a read.
    pub(super) fn acquirable_at(&self, identity: &str) -> Option<BootTime> {
        match &self.known {
            Known::Unknown => None,
            Known::Absent => Some(self.since),
            Known::Present(lease) if lease.holder_identity.is_empty() || lease.holder_identity == identity => {
                Some(self.since)
            }
            Known::Present(lease) => {
                let seconds = u64::try_from(lease.lease_duration_seconds).unwrap_or(0);
                let duration = Duration::from_secs(seconds).min(LEASE_DURATION_MAX);
                Some(self.since.saturating_add(duration))
            }
        }
    }
}
