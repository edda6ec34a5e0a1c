//! Admission control for tunnels: limits of peers, targets and concurrency. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Uri, Version};
use parking_lot::Mutex;

use super::route::ConnectTarget;
use super::token_bucket::TokenBucket;

/// Maximum number of tunnels of one peer: one in use, and one that its successor has already replaced.
pub const PER_PEER: usize = 2;
/// Maximum number of tunnels in total.
pub const TOTAL: usize = 128;
/// Bytes of one peer's tunnels in 24 h, because the link may be metered. A kubelet's heartbeats take 20 MB. A peer that
/// has spent its budget continues at 776 bytes per second.
pub const DAILY_BYTES: u64 = 64 * 1024 * 1024;

/// Reason of a refused tunnel. Its name is the label of the metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Another method, or `CONNECT` over another version than HTTP/1.1.
    NotConnect,
    /// Not a node of this pool, or the pool's members are not known yet.
    NotMember,
    /// The target is not one of the configured cloud servers.
    OtherTarget,
    /// This node itself is cut off.
    CutOff,
    /// The peer has its maximum of tunnels, or all tunnels are taken.
    TooMany,
}

/// Admission rules and the open tunnels.
#[derive(Debug)]
pub struct Admission {
    targets: Vec<ConnectTarget>,
    open: BTreeMap<String, usize>,
    total: usize,
    /// Bytes that peers may still send today; a peer with a full budget has no entry.
    budgets: BTreeMap<String, Arc<Mutex<TokenBucket>>>,
}

/// Request for a tunnel.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// Node named by the presented certificate, if it is a member of this pool.
    pub member: Option<&'a str>,
    /// Method of the request line.
    pub method: &'a Method,
    /// URI of the request line.
    pub uri: &'a Uri,
    /// Version of the request line.
    pub version: Version,
    /// True if this node reaches the cloud, according to its probes.
    pub has_cloud: bool,
}

// === impl Refusal ===

impl Refusal {
    /// All refusals.
    pub const ALL: [Self; 5] = [
        Self::NotConnect,
        Self::NotMember,
        Self::OtherTarget,
        Self::CutOff,
        Self::TooMany,
    ];

    /// Returns the label of the metric.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NotConnect => "not_connect",
            Self::NotMember => "not_member",
            Self::OtherTarget => "other_target",
            Self::CutOff => "cut_off",
            Self::TooMany => "too_many",
        }
    }
}

// === impl Admission ===

impl Admission {
    /// Creates an admission of tunnels to `targets` only.
    #[must_use]
    pub fn new(targets: Vec<ConnectTarget>) -> Self {
        Self {
            targets,
            open: BTreeMap::new(),
            total: 0,
            budgets: BTreeMap::new(),
        }
    }

    /// Admits a tunnel and returns its target. [`Self::leave`] must end it.
    ///
    /// # Errors
    /// The reason of the refusal. Membership is checked first: strangers learn nothing about the other rules.
    pub fn enter(&mut self, ask: Ask<'_>) -> Result<ConnectTarget, Refusal> {
        let member = ask.member.ok_or(Refusal::NotMember)?;
        if ask.method != Method::CONNECT || ask.version != Version::HTTP_11 {
            return Err(Refusal::NotConnect);
        }
        let target = asked_for(ask.uri).filter(|target| self.targets.contains(target));
        let target = target.ok_or(Refusal::OtherTarget)?;
        if !ask.has_cloud {
            return Err(Refusal::CutOff);
        }
        let own = self.open.get(member).copied().unwrap_or(0);
        if own >= PER_PEER || self.total >= TOTAL {
            return Err(Refusal::TooMany);
        }
        self.open.insert(member.to_owned(), own + 1);
        self.total += 1;
        Ok(target)
    }

    /// Ends a tunnel of `member`.
    pub fn leave(&mut self, member: &str) {
        let Some(own) = self.open.get_mut(member) else { return };
        *own -= 1;
        if *own == 0 {
            self.open.remove(member);
        }
        self.total -= 1;
    }

    /// Returns the budget shared by all tunnels of `member`, at `now` since boot.
    pub fn budget(&mut self, member: &str, now: Duration) -> Arc<Mutex<TokenBucket>> {
        self.budgets
            .retain(|_, budget| Arc::strong_count(budget) > 1 || !budget.lock().is_full(now));
        let budget = self.budgets.entry(member.to_owned());
        budget
            .or_insert_with(|| Arc::new(Mutex::new(TokenBucket::daily(DAILY_BYTES))))
            .clone()
    }

    /// Returns the number of open tunnels.
    #[must_use]
    pub fn total(&self) -> usize {
        self.total
    }
}

/// Returns the target of a `CONNECT`, which names an authority and nothing else.
fn asked_for(uri: &Uri) -> Option<ConnectTarget> {
    let bare = uri.scheme().is_none() && uri.path_and_query().is_none();
    ConnectTarget::parse(uri.authority().filter(|_| bare)?.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission() -> Admission {
        Admission::new(ConnectTarget::list("cloud.example:6443,10.0.0.1:443"))
    }

    fn enter(admission: &mut Admission, member: &str, uri: &str) -> Result<String, Refusal> {
        let uri: Uri = uri.parse().expect("a URI");
        let ask = Ask {
            member: Some(member),
            method: &Method::CONNECT,
            uri: &uri,
            version: Version::HTTP_11,
            has_cloud: true,
        };
        admission.enter(ask).map(|target| target.to_string())
    }

    #[test]
    fn tunnels_lead_to_the_configured_servers_only() {
        let mut admission = admission();
        assert_eq!(
            enter(&mut admission, "n1", "cloud.example:6443"),
            Ok("cloud.example:6443".to_owned())
        );
        assert_eq!(
            enter(&mut admission, "n1", "10.0.0.1:443"),
            Ok("10.0.0.1:443".to_owned())
        );
        for other in [
            "cloud.example:443",
            "cloud.example.:6443",
            "cloud.example",
            "10.0.0.1:6443",
            "10.0.0.01:443",
            "127.0.0.1:6443",
            "localhost:6443",
            "[::1]:443",
            "169.254.169.254:80",
            "user@10.0.0.1:443",
            "http://10.0.0.1:443/",
            "/",
            "*",
            "[::ffff:10.0.0.1]:443",
        ] {
            assert_eq!(enter(&mut admission, "n2", other), Err(Refusal::OtherTarget), "{other}");
        }
    }

    #[test]
    fn strangers_learn_nothing_but_that() {
        let mut admission = admission();
        let uri = Uri::from_static("cloud.example:6443");
        let ask = Ask {
            member: None,
            method: &Method::CONNECT,
            uri: &uri,
            version: Version::HTTP_11,
            has_cloud: true,
        };
        assert_eq!(admission.enter(ask), Err(Refusal::NotMember));
        assert_eq!(
            admission.enter(Ask {
                has_cloud: false,
                ..ask
            }),
            Err(Refusal::NotMember)
        );
        let get = Ask {
            method: &Method::GET,
            ..ask
        };
        assert_eq!(admission.enter(get), Err(Refusal::NotMember));
        let member = Ask {
            member: Some("n1"),
            ..ask
        };
        assert_eq!(
            admission.enter(Ask {
                has_cloud: false,
                ..member
            }),
            Err(Refusal::CutOff)
        );
        for wrong in [
            Ask {
                method: &Method::GET,
                ..member
            },
            Ask {
                version: Version::HTTP_2,
                ..member
            },
            Ask {
                version: Version::HTTP_10,
                ..member
            },
        ] {
            assert_eq!(admission.enter(wrong), Err(Refusal::NotConnect));
        }
        assert_eq!(admission.total(), 0, "refusals take no place");
    }

    #[test]
    fn budget_outlives_its_tunnels_until_it_is_full_again() {
        let mut admission = admission();
        let day = Duration::from_secs(24 * 60 * 60);
        let spend = |budget: &Mutex<TokenBucket>, now| {
            budget
                .lock()
                .spend(now, usize::try_from(DAILY_BYTES).unwrap() * 99 / 100)
        };
        assert_eq!(spend(&admission.budget("n1", day), day), Duration::ZERO);
        assert!(
            !spend(&admission.budget("n1", day), day).is_zero(),
            "another tunnel of the same peer"
        );
        assert_eq!(spend(&admission.budget("n2", day), day), Duration::ZERO, "another peer");
        admission.budget("n3", day * 9);
        assert_eq!(admission.budgets.len(), 1, "budgets that are full again are not kept");
    }

    #[test]
    fn tunnels_are_counted_per_peer_and_in_all() {
        let mut admission = admission();
        let uri = "cloud.example:6443";
        for _ in 0..PER_PEER {
            assert!(enter(&mut admission, "n1", uri).is_ok());
        }
        assert_eq!(enter(&mut admission, "n1", uri), Err(Refusal::TooMany));
        assert!(enter(&mut admission, "n2", uri).is_ok(), "others have theirs");
        admission.leave("n1");
        assert!(enter(&mut admission, "n1", uri).is_ok());
        admission.leave("nobody");
        let before = admission.total();
        let entered = (before..TOTAL + 5).filter(|index| enter(&mut admission, &format!("m{index}"), uri).is_ok());
        assert_eq!(before + entered.count(), TOTAL);
        admission.leave("n2");
        assert!(enter(&mut admission, "late", uri).is_ok());
        assert_eq!(admission.total(), TOTAL);
    }
}
