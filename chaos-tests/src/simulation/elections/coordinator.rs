//! The coordinator of the simulated elections: the real guard and fence over a lease with optimistic locking.
//!
//! Writes that only change renewTime stay in memory, everything else is durable; a restart stamps the lease again.

use std::time::Duration;

use crate::coordinator::{Election, Write};
use yurt_apimachinery::ResourceVersion;
use yurt_apimachinery::time::BootTime;
use yurt_chaos_validate::leadership::{Hold, Referee};
use yurt_pool_protocol::election::{Fence, Lease, LeaseWrite, ReadOutcome, WriteOutcome};

use super::{Mutation, SECOND};

/// RVs that a restart skips: the durable mark is ahead of the last one issued.
const MARK: u64 = 1_000;

/// One coordinator, over its restarts.
pub(super) struct Coordinator {
    pub(super) runs: bool,
    pub(super) clock: super::Drift,
    pub(super) mutation: Option<Mutation>,
    /// Number of the store; and its id.
    store: u32,
    id: String,
    election: Election,
    /// Epoch record as stored.
    record: Option<(ResourceVersion, Vec<u8>)>,
    /// The record before that.
    older: Option<(ResourceVersion, Vec<u8>)>,
    lease: Option<Stored>,
    durable: Option<Stored>,
    version: u64,
}

/// The lease as stored.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) lease: Lease,
    /// Wall clock of the writer, for electors that rely on it.
    pub(super) renewed: u64,
}

/// Sender of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller<'a> {
    pub(super) node: &'a str,
    pub(super) process: u32,
    pub(super) wall: u64,
}

// === impl Coordinator ===

impl Coordinator {
    pub(super) fn new(clock: super::Drift, mutation: Option<Mutation>) -> Self {
        Self {
            runs: true,
            clock,
            mutation,
            store: 0,
            id: "store-0".to_owned(),
            election: Election::open("store-0", boot(clock.local(0)), None),
            record: None,
            older: None,
            lease: None,
            durable: None,
            version: 0,
        }
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn lease(&self) -> Option<&Stored> {
        self.lease.as_ref()
    }

    /// Handles a hub's write. Its holder, if any, is the caller.
    pub(super) fn write(
        &mut self,
        now: u64,
        caller: Caller<'_>,
        write: &LeaseWrite,
        referee: &mut Referee,
    ) -> WriteOutcome {
        let compares = self.mutation != Some(Mutation::NoVersionCompare);
        match (&self.lease, write.resource_version) {
            (None, Some(_)) => return WriteOutcome::Absent,
            (Some(_), None) => return WriteOutcome::Conflict,
            (Some(stored), Some(version)) if compares && stored.lease.resource_version != version => {
                return WriteOutcome::Conflict;
            }
            _ => {}
        }
        let lease = Lease {
            holder_identity: write.holder_identity.clone(),
            lease_duration_seconds: write.lease_duration_seconds,
            lease_transitions: write.lease_transitions,
            ..Lease::default()
        };
        match self.put(now, caller, lease, true, referee) {
            Ok(lease) => WriteOutcome::Stored(self.fenced(lease, &write.holder_identity)),
            Err(_) => WriteOutcome::Conflict,
        }
    }

    /// Handles a write without resourceVersion: by an elector that never sends one, or of a stranger.
    pub(super) fn write_blindly(
        &mut self,
        now: u64,
        caller: Caller<'_>,
        lease: Option<Lease>,
        referee: &mut Referee,
    ) -> Result<(), String> {
        match lease {
            Some(lease) => self.put(now, caller, lease, false, referee).map(drop),
            None => self.delete(now, caller, referee),
        }
    }

    fn delete(&mut self, now: u64, caller: Caller<'_>, referee: &mut Referee) -> Result<(), String> {
        let Some(stored) = self.lease.clone() else {
            return Ok(());
        };
        self.commit(now, caller, &stored.lease, None, false, referee)?;
        (self.lease, self.durable) = (None, None);
        Ok(())
    }

    fn put(
        &mut self,
        now: u64,
        caller: Caller<'_>,
        mut lease: Lease,
        conditional: bool,
        referee: &mut Referee,
    ) -> Result<Lease, String> {
        let before = self.lease.clone().map(|stored| stored.lease).unwrap_or_default();
        self.commit(now, caller, &before, Some(&lease.holder_identity), conditional, referee)?;
        lease.resource_version = ResourceVersion(self.version);
        lease.renew_time = self.version.to_string();
        let stored = Stored {
            lease: lease.clone(),
            renewed: caller.wall,
        };
        let is_renewal = self.lease.is_some()
            && (before.holder_identity == lease.holder_identity)
            && before.lease_duration_seconds == lease.lease_duration_seconds
            && before.lease_transitions == lease.lease_transitions;
        if !is_renewal {
            self.durable = Some(stored.clone());
        }
        self.lease = Some(stored);
        Ok(lease)
    }

    /// Checks a write with the guard, and commits it with the epoch record.
    fn commit(
        &mut self,
        now: u64,
        caller: Caller<'_>,
        before: &Lease,
        after: Option<&str>,
        conditional: bool,
        referee: &mut Referee,
    ) -> Result<(), String> {
        let seconds = u64::try_from(before.lease_duration_seconds).unwrap_or_default();
        let write = Write {
            node: caller.node,
            has_resource_version: conditional,
            before: (&before.holder_identity, Duration::from_secs(seconds)),
            after,
        };
        let now = boot(self.clock.local(now));
        let record = match self.election.judge(&write, now) {
            Ok(record) => record,
            Err(_) if self.mutation == Some(Mutation::NoGuard) => {
                let released = Write {
                    before: ("", Duration::ZERO),
                    ..write
                };
                self.election.judge(&released, now)?
            }
            Err(why) => return Err(why),
        };
        self.version += 1;
        let rv = ResourceVersion(self.version);
        self.election.committed(&write, rv, record.as_deref(), now);
        if let Some(record) = record {
            self.older = self.record.replace((rv, record));
            let holds = after.is_some_and(|holder| !holder.is_empty());
            referee.holder_became(holds.then_some(caller.process));
        }
        Ok(())
    }

    pub(super) fn read(&self, identity: &str) -> ReadOutcome {
        let found = self.lease.as_ref().map(|stored| stored.lease.clone());
        found.map_or(ReadOutcome::Absent, |lease| {
            ReadOutcome::Found(self.fenced(lease, identity))
        })
    }

    fn fenced(&self, lease: Lease, reader: &str) -> Lease {
        let is_holder = lease.holder_identity == reader && !reader.is_empty();
        let fence = is_holder.then(|| Fence {
            epoch: self.election.epoch(),
            store: self.id.clone(),
        });
        Lease { fence, ..lease }
    }

    /// Handles a feed call with `claim`, for the store that its sender calls `store`.
    pub(super) fn fed(&self, node: &str, store: &str, claim: Hold) -> bool {
        let epoch = match self.mutation {
            Some(Mutation::NoEpochCompare) => self.election.epoch(),
            _ => claim.epoch,
        };
        self.election.permits(node, store, epoch)
    }

    /// SIGKILL: data in memory is lost.
    pub(super) fn kill(&mut self) {
        self.runs = false;
    }

    /// Starts again, with an empty disk if `lost`. Returns whether renewals were lost.
    pub(super) fn start(&mut self, now: u64, lost: bool, referee: &mut Referee) -> bool {
        self.runs = true;
        if lost {
            referee.store_lost(now);
            self.store += 1;
            if self.mutation != Some(Mutation::StoreIdKept) {
                self.id = format!("store-{}", self.store);
            }
            (self.lease, self.durable, self.record, self.older) = (None, None, None, None);
        }
        if self.mutation == Some(Mutation::EpochNotDurable) {
            self.record = self.older.clone();
        }
        let version = |stored: &Option<Stored>| stored.as_ref().map(|stored| stored.lease.resource_version);
        let renewals_lost = version(&self.lease) != version(&self.durable);
        self.version += MARK;
        self.lease = self.durable.clone();
        if let Some(stored) = &mut self.lease {
            stored.lease.resource_version = ResourceVersion(self.version);
            self.durable = Some(stored.clone());
        }
        let opened = match self.mutation {
            Some(Mutation::NoQuietTime) => BootTime::ZERO,
            _ => boot(self.clock.local(now)),
        };
        let record = self.record.as_ref().map(|(rv, record)| (*rv, record.as_slice()));
        self.election = Election::open(&self.id, opened, record);
        renewals_lost
    }
}

fn boot(micros: u64) -> BootTime {
    BootTime::from_boot(Duration::from_micros(micros))
}

/// True if an elector that compares renewTime with its own clock considers the lease expired.
pub(super) fn looks_expired(stored: &Stored, wall: u64) -> bool {
    let seconds = u64::try_from(stored.lease.lease_duration_seconds).unwrap_or_default();
    stored.lease.holder_identity.is_empty() || stored.renewed + seconds * SECOND < wall
}
