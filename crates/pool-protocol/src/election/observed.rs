//! The lease as this candidate last observed it, and the time of that observation.
//!
//! Expiry depends on our own clock only. A record is expired if it did not change for its own duration *after we first
//! saw it*. The holder wrote it before we saw it and counts from before the write. So its deadline has passed by then,
//! regardless of both wall clocks. A duration above the configurable maximum counts as that maximum.

use std::time::Duration;

use yurt_apimachinery::ResourceVersion;

use super::types::{BootTime, LEASE_DURATION_MAX, Lease};

/// Last observation of the lease.
#[derive(Clone, Debug)]
pub(super) struct Observed {
    /// The last accepted state.
    pub(super) known: LeaseView,
    /// Time at which that state was first seen, on our clock.
    pub(super) since: BootTime,
}

/// State of the lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LeaseView {
    /// Never read, or read from a store that is gone.
    Unknown,
    /// The lease does not exist.
    Absent,
    /// The lease exists.
    Present(Lease),
}

// === impl Observed ===

impl Observed {
    pub(super) fn unknown() -> Self {
        Observed {
            known: LeaseView::Unknown,
            since: BootTime::ZERO,
        }
    }

    /// Replaces the state by one seen at `now`; returns true if it differs from the previous one.
    ///
    /// Another resourceVersion counts as a change even if the spec is the same: a write happened, and a longer wait is
    /// the safe error.
    pub(super) fn set(&mut self, known: LeaseView, now: BootTime) -> bool {
        let changed = self.known != known;
        if changed {
            self.since = now;
            self.known = known;
        }
        changed
    }

    /// True if a state of version `version`, which may have been delayed, is not older than the observed one.
    pub(super) fn is_not_newer_than(&self, version: ResourceVersion) -> bool {
        self.resource_version().is_none_or(|known| known <= version)
    }

    /// Returns the version that a PUT must carry; `None` if there is no lease to replace.
    pub(super) fn resource_version(&self) -> Option<ResourceVersion> {
        self.lease().map(|lease| lease.resource_version)
    }

    pub(super) fn lease(&self) -> Option<&Lease> {
        match &self.known {
            LeaseView::Present(lease) => Some(lease),
            LeaseView::Unknown | LeaseView::Absent => None,
        }
    }

    pub(super) fn is_held_by(&self, identity: &str) -> bool {
        self.lease().is_some_and(|lease| lease.holder_identity == identity)
    }

    /// Returns the time from which `identity` may try to take the lease; `None` if a read must come first.
    pub(super) fn acquirable_at(&self, identity: &str) -> Option<BootTime> {
        match &self.known {
            LeaseView::Unknown => None,
            LeaseView::Absent => Some(self.since),
            LeaseView::Present(lease) if lease.holder_identity.is_empty() || lease.holder_identity == identity => {
                Some(self.since)
            }
            LeaseView::Present(lease) => {
                let seconds = u64::try_from(lease.lease_duration_seconds).unwrap_or(0);
                let duration = Duration::from_secs(seconds).min(LEASE_DURATION_MAX);
                Some(self.since.saturating_add(duration))
            }
        }
    }
}
