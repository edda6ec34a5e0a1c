//! Guard of election leases: protects electors that never send a resourceVersion.
//!
//! Pure: its inputs are the stored lease, the author of its last acquisition, the time of its last write, and the
//! attempt. Optimistic locking protects the electors that use it; the guard protects the others. It also covers the
//! time after a restart, when renewals that lived in memory only may have been lost. The election lease of a pool is
//! protected from its members as well (`guard/election.rs`).
//!
//! ```text
//!   holder empty ─────────────────────────────► pass
//!   store opened < duration ago, not renewed
//!   since, other holder ──────────────────────► refuse (with or without resourceVersion)
//!   silent for its duration ──────────────────► pass
//!   no resourceVersion, not the owner ────────► refuse
//!   else ─────────────────────────────────────► pass (optimistic locking decides)
//! ```

mod election;

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use yurt_apimachinery::time::BootTime;

use crate::penalties::Penalties;
pub use election::{Caller, DURATION_SECONDS_MAX, Refusal, is_of_node, node_of};
use election::{Claim, PROTECTED_MAX, Turns};

/// Author of a write: the user, and the field manager where several electors share one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Author {
    /// User of the request.
    pub user: String,
    /// Field manager, if one was sent.
    pub manager: Option<String>,
}

/// Known facts about a lease apart from its object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseFacts {
    /// Author of the acquisition; `None` when that was before a restart.
    pub owner: Option<Author>,
    /// Holder of the acquisition.
    pub holder: String,
    /// True if it was acquired through another coordinator, which knows the owner.
    pub elsewhere: bool,
    /// True if it was acquired or renewed since the store was opened: writes lost in a crash are older than that.
    pub renewed: bool,
    /// Time of the last observed write, on our clock.
    pub last_write: BootTime,
}

/// The present lease.
#[derive(Clone, Copy, Debug)]
pub struct Standing<'a> {
    /// Holder in the stored object; empty when released.
    pub holder: &'a str,
    /// Its lease duration.
    pub duration: Duration,
    /// Last known author and write.
    pub seen: Option<&'a LeaseFacts>,
    /// Time at which the store was opened.
    pub opened: BootTime,
    /// Now.
    pub now: BootTime,
}

/// A requested write.
#[derive(Clone, Copy, Debug)]
pub struct Attempt<'a> {
    /// Author of the write.
    pub author: &'a Author,
    /// True if the write names the resourceVersion it is based on.
    pub has_resource_version: bool,
    /// Holder afterwards; `None` when the lease is deleted.
    pub holder: Option<&'a str>,
}

/// An accepted write of a lease.
#[derive(Clone, Copy, Debug)]
pub struct Written<'a> {
    /// Holder before it; empty for none.
    pub before: &'a str,
    /// Holder after it; empty for none.
    pub after: &'a str,
    /// True if it moved `renewTime`.
    pub renewed: bool,
}

/// Known facts about every guarded lease that has a holder; the number of leases bounds it.
///
/// The caller serializes the writes of each lease: a write is recorded before the next one is judged.
#[derive(Debug)]
pub struct Guard {
    opened: BootTime,
    // Guards only the map; never held across an await.
    seen: Mutex<BTreeMap<String, LeaseFacts>>,
    /// Recent holders of the pool's election lease.
    turns: Turns,
    /// Nodes that may not hold the election lease of the pool. A leaf: no other lock is taken inside.
    pub bars: Mutex<Penalties>,
}

/// A write of the election lease of a pool, in addition to the [`Attempt`].
#[derive(Clone, Copy, Debug)]
pub struct Election<'a> {
    /// Right by which the caller writes.
    pub caller: &'a Caller,
    /// True if the previous holder is a member.
    pub holder_is_member: bool,
}

/// Judges an attempt.
///
/// # Errors
/// The text of the 409.
pub fn judge(standing: Standing<'_>, attempt: Attempt<'_>) -> Result<(), String> {
    let Standing {
        holder,
        duration,
        seen,
        opened,
        now,
    } = standing;
    if holder.is_empty() {
        return Ok(());
    }
    let replaces = attempt.holder.is_some_and(|new| !new.is_empty() && new != holder);
    let may_lack_renewals = !seen.is_some_and(|seen| seen.renewed);
    if replaces && may_lack_renewals && now.since(opened) < duration {
        return Err(format!(
            "the store was opened less than the lease duration ago and renewals of \"{holder}\" may have been lost; try \
             again in {} s",
            (duration - now.since(opened)).as_secs() + 1
        ));
    }
    let last_write = seen.map_or(opened, |seen| seen.last_write);
    if attempt.has_resource_version || now.since(last_write) >= duration {
        return Ok(());
    }
    match seen.and_then(|seen| seen.owner.as_ref()) {
        Some(owner) if !is_owner(owner, &attempt) => Err(format!(
            "the lease is held by \"{holder}\" and was written less than its duration ago; a write by any other than its owner \
             must carry the resourceVersion it is based on"
        )),
        None if seen.is_some_and(|seen| seen.elsewhere) => Err(format!(
            "the lease is held by \"{holder}\" and was acquired through another coordinator; a write through this one must \
             carry the resourceVersion it is based on"
        )),
        _ => Ok(()),
    }
}

/// Judges an attempt on the election lease of a pool, of a caller that is no administrator: as [`judge`], and by the
/// rules of `guard/election.rs`.
///
/// # Errors
/// The text of the 409.
pub fn judge_member(standing: Standing<'_>, attempt: Attempt<'_>, caller: &Caller) -> Result<(), String> {
    let standing = Standing {
        duration: standing.duration.min(PROTECTED_MAX),
        ..standing
    };
    judge(standing, attempt)?;
    let last_write = standing.seen.map_or(standing.opened, |seen| seen.last_write);
    let owner = standing.seen.and_then(|seen| seen.owner.as_ref());
    election::judge(Claim {
        holder: standing.holder,
        is_silent: standing.now.since(last_write) >= standing.duration,
        is_owner: match caller {
            Caller::Node(node) => election::is_of_node(standing.holder, node),
            Caller::Administrator | Caller::Other => owner.is_some_and(|owner| owner.user == attempt.author.user),
        },
        after: attempt.holder,
    })
}

/// True if the attempt is the owner's. The field manager distinguishes electors that share a user; a delete has none.
fn is_owner(owner: &Author, attempt: &Attempt<'_>) -> bool {
    owner.user == attempt.author.user && (attempt.holder.is_none() || owner.manager == attempt.author.manager)
}

// === impl Attempt ===

impl Attempt<'_> {
    /// The same attempt, with an empty holder in the place of `holder`.
    fn without_holder(self, holder: &str) -> Self {
        let after = self.holder.map(|after| if after == holder { "" } else { after });
        Self { holder: after, ..self }
    }
}

// === impl LeaseFacts ===

impl LeaseFacts {
    /// The entry of the lease `key`, which was just written.
    fn entry<'a>(seen: &'a mut BTreeMap<String, Self>, key: &str, now: BootTime) -> &'a mut Self {
        let entry = seen.entry(key.to_owned()).or_insert(Self {
            owner: None,
            holder: String::new(),
            elsewhere: false,
            renewed: false,
            last_write: now,
        });
        entry.last_write = now;
        entry
    }
}

// === impl Guard ===

impl Guard {
    /// A guard without knowledge at `opened`.
    pub fn new(opened: BootTime) -> Self {
        Self {
            opened,
            seen: Mutex::default(),
            turns: Turns::default(),
            bars: Mutex::default(),
        }
    }

    /// Restores the owner of `key` from a durable record.
    pub fn restore(&self, key: &str, holder: &str, owner: Author) {
        let mut seen = self.seen.lock();
        let (last_write, renewed) = seen
            .get(key)
            .map_or((self.opened, false), |seen| (seen.last_write, seen.renewed));
        let entry = LeaseFacts {
            owner: Some(owner),
            holder: holder.to_owned(),
            elsewhere: false,
            renewed,
            last_write,
        };
        seen.insert(key.to_owned(), entry);
    }

    /// Records a published write, of this coordinator or another one. `holder` has the lease after it; empty for none.
    /// A write published to several coordinators is stored, so no earlier renewal is lost.
    pub fn observed(&self, key: &str, holder: &str, now: BootTime) {
        let mut seen = self.seen.lock();
        if holder.is_empty() {
            seen.remove(key);
            return;
        }
        let entry = LeaseFacts::entry(&mut seen, key, now);
        entry.renewed = true;
        if entry.holder != holder {
            // Until the writer, if it is ours, records the author.
            (entry.owner, entry.elsewhere) = (None, true);
            holder.clone_into(&mut entry.holder);
        }
    }

    /// Judges an attempt on the lease `key`, which has `holder` for `duration`.
    ///
    /// # Errors
    /// The text of the 409.
    pub fn judge(
        &self,
        key: &str,
        (holder, duration): (&str, Duration),
        attempt: Attempt<'_>,
        now: BootTime,
    ) -> Result<(), String> {
        let seen = self.seen.lock();
        judge(
            Standing {
                holder,
                duration,
                seen: seen.get(key),
                opened: self.opened,
                now,
            },
            attempt,
        )
    }

    /// Judges an attempt on the election lease `key` of a pool; see `guard/election.rs`.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn judge_election(
        &self,
        key: &str,
        (holder, duration): (&str, Duration),
        attempt: Attempt<'_>,
        election: Election<'_>,
        now: BootTime,
    ) -> Result<(), Refusal> {
        if *election.caller == Caller::Administrator {
            return Ok(());
        }
        if let Some(barred) = attempt.holder.and_then(|after| self.barred(after, now)) {
            return Err(barred);
        }
        let is_held = election.holder_is_member && self.barred(holder, now).is_none();
        let (holder, attempt) = match is_held {
            true => (holder, attempt),
            // A write that keeps such a holder acquires nothing.
            false => ("", attempt.without_holder(holder)),
        };
        {
            let seen = self.seen.lock();
            let standing = Standing {
                holder,
                duration,
                seen: seen.get(key),
                opened: self.opened,
                now,
            };
            judge_member(standing, attempt, election.caller).map_err(Refusal::Conflict)?;
        }
        if attempt.holder.is_some_and(|after| !after.is_empty() && after != holder) {
            self.turns.check(&attempt.author.user, now)?;
        }
        Ok(())
    }

    /// Time of the last write of the lease `key` of `duration`, or of the opening of the store, once another may take
    /// the lease: nothing was written for that duration, or for as long as a holder is protected.
    pub fn silent_since(&self, key: &str, duration: Duration, now: BootTime) -> Option<BootTime> {
        let last_write = self.seen.lock().get(key).map_or(self.opened, |seen| seen.last_write);
        (now.since(last_write) >= duration.min(PROTECTED_MAX)).then_some(last_write)
    }

    /// The refusal for `holder`, if its node may not hold the election lease.
    fn barred(&self, holder: &str, now: BootTime) -> Option<Refusal> {
        let node = election::node_of(holder)?;
        let left = self.bars.lock().left(node, now)?;
        let node = node.to_owned();
        Some(Refusal::Barred { node, left })
    }

    /// Records that `user` acquired the election lease.
    pub fn took_election(&self, user: &str, now: BootTime) {
        self.turns.took(user, now);
    }

    /// Records an accepted write.
    pub fn accepted(&self, key: &str, author: &Author, written: Written<'_>, now: BootTime) {
        let Written { before, after, .. } = written;
        let mut seen = self.seen.lock();
        if after.is_empty() {
            seen.remove(key);
            return;
        }
        let entry = LeaseFacts::entry(&mut seen, key, now);
        entry.renewed |= written.renewed || before != after;
        after.clone_into(&mut entry.holder);
        if before != after || entry.owner.is_none() {
            entry.owner = Some(author.clone());
            entry.elsewhere = false;
        }
    }

    /// Author of the present acquisition, or of the new one if the holder changes from `before` to `after`.
    pub fn owner_after(&self, key: &str, author: &Author, before: &str, after: &str) -> Option<Author> {
        let known = self.seen.lock().get(key).and_then(|seen| seen.owner.clone());
        match (after.is_empty(), before == after) {
            (true, _) => None,
            (false, true) => known.or_else(|| Some(author.clone())),
            (false, false) => Some(author.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DURATION: Duration = Duration::from_secs(15);

    fn written<'a>(before: &'a str, after: &'a str) -> Written<'a> {
        Written {
            before,
            after,
            renewed: true,
        }
    }

    fn at(secs: u64) -> BootTime {
        BootTime::from_boot(Duration::from_secs(secs))
    }

    fn author(user: &str, manager: &str) -> Author {
        Author {
            user: user.into(),
            manager: (!manager.is_empty()).then(|| manager.to_owned()),
        }
    }

    /// Store opened at 0, lease of "a" written by (u, m-a) at 100.
    fn try_at(now: u64, author: &Author, has_resource_version: bool, holder: Option<&str>) -> bool {
        let seen = LeaseFacts {
            owner: Some(self::author("u", "m-a")),
            holder: "a".into(),
            elsewhere: false,
            renewed: true,
            last_write: at(100),
        };
        let standing = Standing {
            holder: "a",
            duration: DURATION,
            seen: Some(&seen),
            opened: at(0),
            now: at(now),
        };
        judge(
            standing,
            Attempt {
                author,
                has_resource_version,
                holder,
            },
        )
        .is_ok()
    }

    #[test]
    fn blind_write_of_another_elector_waits_for_silence() {
        let thief = author("u", "m-b");
        assert!(!try_at(114, &thief, false, Some("b")), "take-over");
        assert!(!try_at(114, &thief, false, Some("a")), "renewTime only");
        assert!(
            !try_at(114, &thief, false, Some("")),
            "a late release erases the new leader"
        );
        assert!(!try_at(114, &author("v", "m-a"), false, Some("b")), "other user");
        assert!(try_at(115, &thief, false, Some("b")), "silent for its duration");
        assert!(try_at(101, &thief, true, Some("b")), "optimistic locking decides");
    }

    #[test]
    fn owner_writes_as_it_likes() {
        let owner = author("u", "m-a");
        assert!(try_at(101, &owner, false, Some("a")) && try_at(101, &owner, false, Some("")));
        assert!(
            try_at(101, &author("u", ""), false, None),
            "a delete has no field manager"
        );
        assert!(!try_at(101, &author("v", ""), false, None));
    }

    #[test]
    fn holder_is_silent_once_another_may_take_its_lease() {
        let guard = Guard::new(at(50));
        let silent = |duration, now| guard.silent_since("x", Duration::from_secs(duration), at(now));
        assert_eq!(
            (silent(15, 64), silent(15, 65)),
            (None, Some(at(50))),
            "not written since the start"
        );
        guard.accepted("x", &author("u", ""), written("a", "a"), at(100));
        assert_eq!((silent(15, 114), silent(15, 115)), (None, Some(at(100))));
        assert_eq!(
            (silent(300, 159), silent(300, 160)),
            (None, Some(at(100))),
            "protected for a minute"
        );
    }

    #[test]
    fn after_a_restart_nobody_replaces_a_holder_for_one_duration() {
        let standing = |holder, now| Standing {
            holder,
            duration: DURATION,
            seen: None,
            opened: at(200),
            now: at(now),
        };
        let other = author("v", "");
        let attempt = |has_resource_version, holder| Attempt {
            author: &other,
            has_resource_version,
            holder,
        };
        assert!(judge(standing("a", 214), attempt(true, Some("b"))).is_err());
        assert!(judge(standing("a", 214), attempt(false, Some("b"))).is_err());
        assert!(judge(standing("a", 214), attempt(true, Some(""))).is_ok(), "release");
        assert!(
            judge(standing("", 201), attempt(false, Some("b"))).is_ok(),
            "acquiring an empty holder"
        );
        assert!(judge(standing("a", 215), attempt(true, Some("b"))).is_ok());
    }

    #[test]
    fn lease_renewed_since_the_start_changes_hands_at_once() {
        let guard = Guard::new(at(200));
        let (a, b) = (author("u", "m-a"), author("u", "m-b"));
        let takes_over = |at_secs| {
            let attempt = Attempt {
                author: &b,
                has_resource_version: true,
                holder: Some("b"),
            };
            guard.judge("k", ("a", DURATION), attempt, at(at_secs)).is_ok()
        };
        guard.restore("k", "a", a.clone());
        let relabelled = Written {
            renewed: false,
            ..written("a", "a")
        };
        guard.accepted("k", &b, relabelled, at(201));
        assert!(!takes_over(202), "renewals before this write may be lost");
        guard.accepted("k", &a, written("a", "a"), at(203));
        guard.restore("k", "a", a.clone());
        assert!(takes_over(204), "renewed since");
        guard.accepted("new", &a, written("", "a"), at(205));
        let attempt = Attempt {
            author: &b,
            has_resource_version: true,
            holder: Some("b"),
        };
        assert!(
            guard.judge("new", ("a", DURATION), attempt, at(206)).is_ok(),
            "created since"
        );
    }

    #[test]
    fn ownership_follows_acquisitions_only() {
        let guard = Guard::new(at(0));
        let (a, b) = (author("u", "m-a"), author("u", "m-b"));
        guard.accepted("k", &a, written("", "a"), at(20));
        guard.accepted("k", &b, written("a", "a"), at(21));
        assert_eq!(
            guard.owner_after("k", &b, "a", "a"),
            Some(a.clone()),
            "a renewal by another does not move it"
        );
        let attempt = Attempt {
            author: &b,
            has_resource_version: false,
            holder: Some("b"),
        };
        assert!(guard.judge("k", ("a", DURATION), attempt, at(30)).is_err());
        guard.accepted("k", &a, written("a", ""), at(31));
        assert_eq!(guard.owner_after("k", &b, "", ""), None);
        assert!(guard.judge("k", ("", DURATION), attempt, at(31)).is_ok());
    }

    #[test]
    fn acquisition_through_another_coordinator_is_protected_here() {
        let guard = Guard::new(at(0));
        let (a, b) = (author("u", "m-a"), author("u", "m-b"));
        let blind = |author, holder| Attempt {
            author,
            has_resource_version: false,
            holder: Some(holder),
        };
        guard.observed("k", "a", at(20));
        guard.observed("k", "a", at(30));
        assert!(guard.judge("k", ("a", DURATION), blind(&b, "b"), at(44)).is_err());
        assert!(
            guard.judge("k", ("a", DURATION), blind(&b, "b"), at(45)).is_ok(),
            "silent"
        );
        let guarded = Attempt {
            has_resource_version: true,
            ..blind(&b, "b")
        };
        assert!(guard.judge("k", ("a", DURATION), guarded, at(31)).is_ok());
        // Published before the writer is answered: the owner is known afterwards.
        guard.observed("k", "b", at(50));
        guard.accepted("k", &b, written("a", "b"), at(50));
        guard.observed("k", "b", at(52));
        assert!(guard.judge("k", ("b", DURATION), blind(&b, "b"), at(53)).is_ok());
        assert!(guard.judge("k", ("b", DURATION), blind(&a, "a"), at(53)).is_err());
        guard.observed("k", "", at(54));
        assert!(guard.judge("k", ("", DURATION), blind(&a, "a"), at(54)).is_ok());
    }

    /// True if a node may write the election lease of "n1_a", last written at 100, opened at 0.
    fn may_elect(caller: &Caller, user: &str, duration: u64, holder: Option<&str>, now: u64) -> bool {
        let guard = Guard::new(at(0));
        guard.accepted("k", &author("system:node:n1", ""), written("", "n1_a"), at(100));
        let author = author(user, "");
        let attempt = Attempt {
            author: &author,
            has_resource_version: true,
            holder,
        };
        let election = Election {
            caller,
            holder_is_member: true,
        };
        let standing = ("n1_a", Duration::from_secs(duration));
        guard.judge_election("k", standing, attempt, election, at(now)).is_ok()
    }

    #[test]
    fn resource_version_replaces_no_leader_that_renews() {
        let node = |name: &str| Caller::Node(name.to_owned());
        let may = |name: &str, holder, now| may_elect(&node(name), &format!("system:node:{name}"), 15, holder, now);
        for holder in [Some("n2_a"), Some(""), Some("n1_a"), None] {
            assert!(!may("n2", holder, 114), "{holder:?}");
            assert!(may("n1", holder, 101), "{holder:?}");
            assert!(
                may_elect(&Caller::Administrator, "admin", 15, holder, 101),
                "{holder:?}"
            );
        }
        assert!(may("n2", Some("n2_a"), 115), "silent for its duration");
        assert!(!may("n2", Some("n1_a"), 115), "only the holder's node renews it");
    }

    #[test]
    fn no_record_protects_its_holder_for_longer_than_a_minute() {
        let thief = Caller::Node("n2".to_owned());
        let may = |now| may_elect(&thief, "system:node:n2", 2_147_483_647, Some("n2_a"), now);
        assert!(!may(159));
        assert!(may(160));
    }

    #[test]
    fn barred_node_gets_no_lease_and_what_it_holds_is_free() {
        let guard = Guard::new(at(0));
        let users = ["system:node:n1", "system:node:n2", "admin"];
        let authors = users.map(|user| author(user, ""));
        guard.accepted("k", &authors[0], written("", "n1_a"), at(100));
        let callers = [
            Caller::Node("n1".to_owned()),
            Caller::Node("n2".to_owned()),
            Caller::Administrator,
        ];
        let may = |who: usize, holder, now| {
            let attempt = Attempt {
                author: &authors[who],
                has_resource_version: true,
                holder: Some(holder),
            };
            let election = Election {
                caller: &callers[who],
                holder_is_member: true,
            };
            guard.judge_election("k", ("n1_a", DURATION), attempt, election, at(now))
        };
        assert!(may(0, "n1_a", 101).is_ok() && may(1, "n2_a", 101).is_err());
        let left = guard.bars.lock().add("n1", at(101));
        let barred = Refusal::Barred {
            node: "n1".to_owned(),
            left,
        };
        for holder in ["n1_a", "n1_b"] {
            assert_eq!(may(0, holder, 101), Err(barred.clone()), "{holder}");
            assert_eq!(may(1, holder, 101), Err(barred.clone()), "{holder}");
            assert_eq!(may(2, holder, 101), Ok(()), "an administrator");
        }
        assert_eq!(may(1, "n2_a", 101), Ok(()), "it need not become silent first");
        assert_eq!(may(0, "n1_b", 101 + left.as_secs()), Ok(()));
    }

    /// Candidates wait while the lease changes, regardless of its holder.
    #[test]
    fn lease_of_a_holder_that_is_no_member_is_acquired_and_not_kept_alive() {
        let guard = Guard::new(at(0));
        let author = author("system:node:n2", "");
        let caller = Caller::Node("n2".to_owned());
        let may = |holder| {
            let attempt = Attempt {
                author: &author,
                has_resource_version: true,
                holder,
            };
            let election = Election {
                caller: &caller,
                holder_is_member: false,
            };
            guard
                .judge_election("k", ("n1_a", DURATION), attempt, election, at(100))
                .is_ok()
        };
        assert!(!may(Some("n1_a")), "kept alive by another");
        assert!(!may(Some("")), "released by another");
        assert!(may(Some("n2_a")) && may(None));
    }

    #[test]
    fn elector_with_a_role_owns_what_it_acquired() {
        assert!(may_elect(&Caller::Other, "system:node:n1", 15, Some("n1_a"), 101));
        assert!(!may_elect(&Caller::Other, "other", 15, Some("n1_a"), 101));
    }

    #[test]
    fn durable_record_brings_the_owner_back() {
        let guard = Guard::new(at(0));
        guard.restore("k", "a", author("u", "m-a"));
        let other = author("u", "m-b");
        let attempt = Attempt {
            author: &other,
            has_resource_version: false,
            holder: Some("a"),
        };
        assert!(
            guard.judge("k", ("a", DURATION), attempt, at(5)).is_err(),
            "also one that touches only renewTime"
        );
    }
}
