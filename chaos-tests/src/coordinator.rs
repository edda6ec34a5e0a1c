//! The coordinator as the simulations see it: the shared rules of an election, and the receiving end of the feed,
//! without a server, a store and a clock.
//!
//! The caller does the work of a transaction. It calls [`Election::judge`] before it, stores the returned epoch record
//! as part of it, and calls [`Election::committed`] after it.

mod pool;

use std::time::Duration;

use yurt_apimachinery::ResourceVersion;
use yurt_apimachinery::time::BootTime;
use yurt_pool_protocol::fence::{Claim, Fence};
use yurt_pool_protocol::guard::{
    Attempt, Author, Caller, Election as Judged, Guard, LeaseFacts, Refusal, Standing, Written, judge_member,
};
use yurt_pool_protocol::names::ELECTION_KEY;

pub use pool::Pool;

/// Guard and fence of one coordinator process.
#[derive(Debug)]
pub struct Election {
    guard: Guard,
    fence: Fence,
}

/// A write of the election lease.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// Node whose certificate the writer has.
    pub node: &'a str,
    /// True if the write names the resourceVersion it is based on.
    pub has_resource_version: bool,
    /// Holder as stored, empty for none, and the duration stored with it.
    pub before: (&'a str, Duration),
    /// Holder afterwards, empty for none; `None` deletes the lease.
    pub after: Option<&'a str>,
}

/// State of the election lease, for [`Write::is_allowed`].
#[derive(Clone, Copy, Debug)]
pub struct LeaseAge {
    /// Time since the coordinator opened the store.
    pub opened: Duration,
    /// Time since the lease was last written, or the store was opened.
    pub written: Duration,
    /// True if it was written since the store was opened.
    pub renewed: bool,
}

// === impl Election ===

impl Election {
    /// A process that opened the store called `store` at `opened` and found this epoch record in it.
    ///
    /// # Panics
    /// When the record cannot be read.
    #[must_use]
    pub fn open(store: &str, opened: BootTime, record: Option<(ResourceVersion, &[u8])>) -> Self {
        let (guard, fence) = (Guard::new(opened), Fence::new(store));
        if let Some((rv, record)) = record {
            fence.published(rv, record).expect("the record was encoded here");
        }
        let election = fence.election();
        if let Some(owner) = election.owner {
            guard.restore(ELECTION_KEY, &election.holder, owner);
        }
        Self { guard, fence }
    }

    /// Judges a write at `now`. If it changes the holder, returns the epoch record that has to be stored with it.
    ///
    /// # Errors
    /// The text of the 409.
    pub fn judge(&self, write: &Write<'_>, now: BootTime) -> Result<Option<Vec<u8>>, String> {
        let author = write.author();
        let attempt = Attempt {
            author: &author,
            has_resource_version: write.has_resource_version,
            holder: write.after,
        };
        let caller = Caller::Node(write.node.to_owned());
        let election = Judged {
            caller: &caller,
            holder_is_member: true,
        };
        let judged = self
            .guard
            .judge_election(ELECTION_KEY, write.before, attempt, election, now);
        judged.map_err(|refusal| match refusal {
            Refusal::Conflict(why) => why,
            Refusal::TooSoon(seconds) => format!("try again in {seconds} s"),
            Refusal::Barred { node, .. } => format!("{node} is barred"),
        })?;
        let (before, after) = write.holders();
        let owner = self.guard.owner_after(ELECTION_KEY, &author, before, after);
        Ok((before != after).then(|| self.fence.election().next(after, owner).encode()))
    }

    /// Records that the write was committed at `rv`, with the record that [`Self::judge`] returned.
    ///
    /// # Panics
    /// When the record cannot be read.
    pub fn committed(&self, write: &Write<'_>, rv: ResourceVersion, record: Option<&[u8]>, now: BootTime) {
        if let Some(record) = record {
            self.fence.published(rv, record).expect("the record was encoded here");
        }
        let (before, after) = write.holders();
        let written = Written {
            before,
            after,
            renewed: true,
        };
        let author = write.author();
        self.guard.accepted(ELECTION_KEY, &author, written, now);
        if before != after && !after.is_empty() {
            self.guard.took_election(&author.user, now);
        }
    }

    /// The last published epoch.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.fence.election().epoch
    }

    /// True if a feed call of `node` with this claim passes the fence.
    #[must_use]
    pub fn permits(&self, node: &str, store: &str, epoch: u64) -> bool {
        let claim = Claim {
            store: store.to_owned(),
            epoch,
        };
        self.fence.enter(&claim, Some(node)).is_ok()
    }
}

// === impl Write ===

impl Write<'_> {
    /// True if the rules of the election allow the write: the pure part of [`Election::judge`], for models. The holder
    /// acquired the lease itself.
    #[must_use]
    pub fn is_allowed(&self, known: LeaseAge) -> bool {
        let now = BootTime::from_boot(known.opened.max(known.written));
        let before = |time: Duration| BootTime::from_boot(known.opened.max(known.written) - time);
        let (holder, duration) = self.before;
        let seen = LeaseFacts {
            owner: None,
            holder: holder.to_owned(),
            elsewhere: false,
            renewed: known.renewed,
            last_write: before(known.written),
        };
        let standing = Standing {
            holder,
            duration,
            seen: Some(&seen),
            opened: before(known.opened),
            now,
        };
        let author = self.author();
        let attempt = Attempt {
            author: &author,
            has_resource_version: self.has_resource_version,
            holder: self.after,
        };
        judge_member(standing, attempt, &Caller::Node(self.node.to_owned())).is_ok()
    }

    fn author(&self) -> Author {
        Author {
            user: format!("system:node:{}", self.node),
            manager: None,
        }
    }

    fn holders(&self) -> (&str, &str) {
        (self.before.0, self.after.unwrap_or_default())
    }
}
