//! Rules for writes of a pool's election lease: a node decides about its own turn alone.
//!
//! Pure. The members of a pool share the lease and do not trust each other. A resourceVersion therefore gives no right
//! to replace a leader that renews, to release for it, or to renew in its place.
//!
//! ```text
//!   administrator ────────────────────────────► pass
//!   the holder's node ────────────────────────► pass (renews, releases)
//!   takes the lease: holder empty or no
//!   member, or silent for its duration ───────► pass, once per period and user
//!   else ─────────────────────────────────────► refuse (with or without resourceVersion)
//! ```
//!
//! The [`Guard`](super::Guard) also judges such a write, as any other one.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use yurt_apimachinery::time::BootTime;

/// Maximum `leaseDurationSeconds` of the election lease.
pub const DURATION_SECONDS_MAX: i64 = 300;

/// Maximum time without a write for which a holder is protected, even with a longer lease duration: a leader that
/// renews writes more often.
pub(super) const PROTECTED_MAX: Duration = Duration::from_secs(60);

/// Minimum time between two acquisitions by a user: the default retry period of an elector.
pub(super) const TURN_PERIOD: Duration = Duration::from_secs(2);

/// Right by which a caller writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Caller {
    /// A member of `system:masters`.
    Administrator,
    /// The node of this name.
    Node(String),
    /// A user with a role.
    Other,
}

/// Reason of a refused write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The text of the 409.
    Conflict(String),
    /// The caller has acquired the lease too recently: it may try again after so many seconds.
    TooSoon(u32),
    /// The node has forged pool data: it may not hold the lease for this time.
    Barred {
        /// Name of the node.
        node: String,
        /// Time that is left.
        left: Duration,
    },
}

/// The present lease, and the change that a caller wants.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim<'a> {
    /// The holder; empty for none, or for one that is no member.
    pub(super) holder: &'a str,
    /// True if the lease has had no write for as long as it protects its holder.
    pub(super) is_silent: bool,
    /// True if the caller's node is that of the holder, or the caller has acquired the lease itself.
    pub(super) is_owner: bool,
    /// Holder afterwards; `None` when the lease is deleted.
    pub(super) after: Option<&'a str>,
}

/// Time at which each user acquired the lease; entries older than [`TURN_PERIOD`] are dropped.
#[derive(Debug, Default)]
pub(super) struct Turns {
    // Guards only the map.
    taken: Mutex<BTreeMap<String, BootTime>>,
}

/// Judges a write of a caller that is no administrator.
///
/// # Errors
/// The text of the 409.
pub(super) fn judge(claim: Claim<'_>) -> Result<(), String> {
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
            "the lease is held by \"{holder}\" and was written less than its duration ago; until it expires only the \
             holder's node may write it"
        ));
    }
    match after {
        None => Ok(()),
        Some(after) if !after.is_empty() && after != holder => Ok(()),
        Some(_) => Err(match holder {
            "" => "the lease has no holder: it can only be acquired, not changed otherwise".to_owned(),
            holder => format!("the lease of \"{holder}\" has expired: it can only be acquired, not renewed"),
        }),
    }
}

/// True if `holder`, `<node>_<process>`, names a process on `node`.
pub fn is_of_node(holder: &str, node: &str) -> bool {
    node_of(holder) == Some(node)
}

/// Returns the node of a holder `<node>_<process>`.
pub fn node_of(holder: &str) -> Option<&str> {
    holder.split_once('_').map(|(node, _)| node)
}

// === impl Turns ===

impl Turns {
    /// Checks if `user` may acquire the lease at `now`.
    ///
    /// # Errors
    /// [`Refusal::TooSoon`].
    pub(super) fn check(&self, user: &str, now: BootTime) -> Result<(), Refusal> {
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

    /// Records that `user` acquired the lease at `now`.
    pub(super) fn took(&self, user: &str, now: BootTime) {
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
        assert_eq!(turns.taken.lock().len(), 1, "entries are dropped after the period");
    }

    #[test]
    fn identity_names_its_node() {
        assert!(is_of_node("n1_x_y", "n1"));
        assert!(!is_of_node("n1", "n1") && !is_of_node("n10_x", "n1") && !is_of_node("", ""));
    }
}
