//! Decides who may write the election lease of a pool: a node decides about its own turn alone.
//!
//! Pure. The members of a pool share the lease and do not trust each other, so a resourceVersion gives nobody the right to
//! replace a leader that renews, to release for it, or to renew in its place.
//!
//! ```text
//!   administrator ────────────────────────────► pass
//!   the holder's node ────────────────────────► pass (renews, releases)
//!   takes the lease: holder empty or no
//!   member, or silent for its duration ───────► pass, once per period and user
//!   else ─────────────────────────────────────► refuse (with or without resourceVersion)
//! ```
//!
//! The [`Guard`](super::Guard) judges such a write as any other one, too.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use yurt_runtime::BootTime;

/// Longest `leaseDurationSeconds` that the election lease takes.
pub(crate) const DURATION_SECONDS_MAX: i64 = 300;

/// A holder is protected for this long at the most, whatever its record says: one that renews does so more often.
pub(crate) const PROTECTED_MAX: Duration = Duration::from_secs(60);

/// A user takes the lease once in this time: the default retry period of an elector.
pub(crate) const TURN_PERIOD: Duration = Duration::from_secs(2);

/// By which right somebody writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    /// A member of `system:masters`.
    Administrator,
    /// The node of this name.
    Node(String),
    /// Somebody with a role.
    Other,
}

/// Reason of a refused write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The text of the 409.
    Conflict(String),
    /// The caller has had the lease too short a time ago: it may try again after so many seconds.
    TooSoon(u32),
}

/// The lease as it stands, and what somebody wants to make of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim<'a> {
    /// The holder; empty for none, or for one that is no member.
    pub(crate) holder: &'a str,
    /// Nobody wrote it for as long as it protects its holder.
    pub(crate) is_silent: bool,
    /// The caller's node is that of the holder, or the caller has acquired the lease itself.
    pub(crate) is_owner: bool,
    /// Holder afterwards; `None` when the lease is deleted.
    pub(crate) after: Option<&'a str>,
}

/// When each user took the lease; entries older than [`TURN_PERIOD`] are dropped.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    // Guards only the map.
    taken: Mutex<BTreeMap<String, BootTime>>,
}

/// Judges a write of anybody but an administrator.
///
/// # Errors
/// The text of the 409.
pub(crate) fn judge(claim: Claim<'_>) -> Result<(), String> {
    let Claim {
        holder,
        is_silent,
        is_owner,
        after,
    } = claim;
    if is_owner && !holder.is_empty() {
        return Ok(());
    }
    if !holder.is_empty() && !is_silent {
        return Err(format!(
            "the lease is held by \"{holder}\" and was written less than its duration ago: until it is silent for that long \
             nobody but the holder's node may write it"
        ));
    }
    match after {
        None => Ok(()),
        Some(after) if !after.is_empty() && after != holder => Ok(()),
        Some(_) => Err(match holder {
            "" => "nobody holds the lease: it may be taken, and not be changed otherwise".to_owned(),
            holder => format!("the lease is held by \"{holder}\", who is silent: it may be taken, and not be renewed"),
        }),
    }
}

/// Whether `holder`, `<node>_<process>`, stands for a process on `node`.
pub(crate) fn is_of_node(holder: &str, node: &str) -> bool {
    holder.split_once('_').is_some_and(|(named, _)| named == node)
}

// === impl Turns ===

impl Turns {
    /// Whether `user` may take the lease at `now`.
    ///
    /// # Errors
    /// [`Refusal::TooSoon`].
    pub(crate) fn check(&self, user: &str, now: BootTime) -> Result<(), Refusal> {
        let taken = self.taken.lock();
        let since = taken.get(user).map(|taken| now.since(*taken));
        match since.filter(|since| *since < TURN_PERIOD) {
            Some(since) => {
                let seconds = (TURN_PERIOD - since).as_secs_f64().ceil();
                Err(Refusal::TooSoon(seconds as u32))
            }
            None => Ok(()),
        }
    }

    /// `user` took the lease at `now`.
    pub(crate) fn took(&self, user: &str, now: BootTime) {
        let mut taken = self.taken.lock();
        taken.retain(|_, taken| now.since(*taken) < TURN_PERIOD);
        taken.insert(user.to_owned(), now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn may(holder: &str, is_silent: bool, is_owner: bool, after: Option<&str>) -> bool {
        judge(Claim {
            holder,
            is_silent,
            is_owner,
            after,
        })
        .is_ok()
    }

    #[test]
    fn living_holder_is_written_by_its_node_alone() {
        for after in [Some(""), Some("a_1"), Some("b_1"), None] {
            assert!(may("a_1", false, true, after), "{after:?}");
            assert!(!may("a_1", false, false, after), "{after:?}");
        }
    }

    #[test]
    fn silent_or_absent_holder_is_replaced_and_nothing_else() {
        for holder in ["a_1", ""] {
            assert!(may(holder, true, false, Some("b_1")), "{holder}");
            assert!(!may(holder, true, false, Some("")), "{holder}: released by another");
            assert!(
                !may(holder, true, false, Some(holder)),
                "{holder}: kept alive by another"
            );
            assert!(may(holder, true, false, None), "{holder}");
        }
        assert!(may("", false, false, Some("b_1")));
        assert!(!may("", false, true, Some("")), "who gave it back has no say any more");
    }

    #[test]
    fn user_takes_its_turn_once_per_period() {
        let at = |millis| BootTime::from_boot(Duration::from_millis(millis));
        let turns = Turns::default();
        assert_eq!(turns.check("a", at(0)), Ok(()));
        turns.took("a", at(1_000));
        assert_eq!(turns.check("a", at(1_100)), Err(Refusal::TooSoon(2)));
        assert_eq!(turns.check("a", at(2_999)), Err(Refusal::TooSoon(1)));
        assert_eq!(turns.check("b", at(1_100)), Ok(()));
        assert_eq!(turns.check("a", at(3_000)), Ok(()));
        turns.took("b", at(3_000));
        assert_eq!(turns.taken.lock().len(), 1, "nobody is remembered for longer");
    }

    #[test]
    fn identity_names_its_node() {
        assert!(is_of_node("n1_x_y", "n1"));
        assert!(!is_of_node("n1", "n1") && !is_of_node("n10_x", "n1") && !is_of_node("", ""));
    }
}
