//! Copies the resources that both the coordinator and the cloud's ConfigMap list.
//!
//! The coordinator repeats the list of some leader. So every hub reads the ConfigMap itself: whenever the coordinator's
//! list changes, and periodically. Without a link it keeps the resources that both listed last, which are those it
//! copies.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::GroupVersionResource;
use yurt_apimachinery::pool_scope::{self, SharedResource};
use yurt_pool_protocol::feed::ScopeStatus;

use super::config;
use crate::health::{CloudReach, CoordinatorReach};
use crate::replicas::{POOL_SCOPE, PoolData};
use crate::upstream::Cloud;

/// Failure key: the coordinator lists more than the cloud, or the list is unreadable.
const SCOPE: &str = "scope";
/// Pauses before the list is read again after it was unreadable or incomplete: the first one and the maximum. The
/// maximum is also the interval between reads without a problem.
const PAUSES: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(3600));

/// Limits the replicas to the resources that coordinator and cloud both list.
pub struct ScopeFollower {
    /// The cloud, which has the list.
    pub cloud: Arc<Cloud>,
    /// Reachability of the cloud.
    pub reach: watch::Receiver<CloudReach>,
    /// State of the coordinator.
    pub coordinator: watch::Receiver<CoordinatorReach>,
    /// Replicas of this hub.
    pub data: Arc<PoolData>,
}

/// State of this hub's own read of the list.
struct OwnRead {
    /// Resources that it lists; `None` before the first read.
    listed: Option<BTreeSet<GroupVersionResource>>,
    /// Error of the last read.
    failed: Option<String>,
    /// The coordinator's list at that time.
    said: Vec<SharedResource>,
    /// Time of the next read.
    due: Instant,
    /// Pause before the next read.
    pause: Duration,
}

// === impl ScopeFollower ===

impl ScopeFollower {
    /// Runs until `token` is cancelled.
    pub async fn run(mut self, token: CancellationToken) {
        let following = self.follow();
        token.run_until_cancelled(following).await;
    }

    async fn follow(&mut self) {
        let mut own = OwnRead::new();
        loop {
            let status = self.coordinator.borrow_and_update().status.clone();
            let is_up = self.reach.borrow_and_update().is_up();
            let mut due = None;
            if let Some(scope) = status.as_ref().and_then(|status| status.scope.as_ref()) {
                let said = said(scope, self.data.shared());
                if said.is_empty() {
                    own.said.clear();
                } else if is_up && own.is_due(&said) {
                    self.read(&mut own, &said).await;
                }
                self.share(&own, said).await;
                due = Some(own.due).filter(|_| is_up && !own.said.is_empty());
            }
            tokio::select! {
                Ok(()) = self.coordinator.changed() => {}
                Ok(()) = self.reach.changed() => {}
                () = sleep_until(due) => {}
                else => return,
            }
        }
    }

    async fn read(&self, own: &mut OwnRead, said: &[SharedResource]) {
        let read = config::read(&self.cloud.server().streams).await;
        let parsed = read
            .map_err(|error| error.to_string())
            .and_then(|(text, _)| pool_scope::parse(&text));
        match parsed {
            Ok(wanted) => (own.listed, own.failed) = (Some(wanted.resources.into_iter().collect()), None),
            Err(why) => own.failed = Some(why),
        }
        own.read_at(Instant::now(), said);
    }

    /// Copies the resources that both list, and reports the rest.
    async fn share(&self, own: &OwnRead, said: Vec<SharedResource>) {
        let (agreed, unlisted) = agreed(said, own.listed.as_ref(), &self.data.shared());
        self.data.share(&agreed).await;
        let read = match (&own.listed, &own.failed) {
            (_, Some(why)) => format!("could not be read: {why}"),
            (None, None) => "has not been read yet".to_owned(),
            (Some(_), None) => "does not list it".to_owned(),
        };
        let refusal = (!unlisted.is_empty()).then(|| {
            let names = unlisted.join(", ");
            format!("the coordinator shares {names}, which is not copied: ConfigMap kube-system/yurt-hub-cfg {read}")
        });
        self.data.failures().tell(SCOPE, refusal);
    }
}

// === impl OwnRead ===

impl OwnRead {
    /// Creates the state before the first read, which is due immediately.
    fn new() -> Self {
        Self {
            listed: None,
            failed: None,
            said: Vec::new(),
            due: Instant::now(),
            pause: PAUSES.0,
        }
    }

    /// True if the list has to be read now.
    fn is_due(&self, said: &[SharedResource]) -> bool {
        self.said != said || Instant::now() >= self.due
    }

    /// Records the end of a read and sets the time of the next one. It is due soon if the read failed, or did not list
    /// all of `said`.
    fn read_at(&mut self, now: Instant, said: &[SharedResource]) {
        let is_news = self.said != said;
        let explains = |one: &SharedResource| self.listed.as_ref().is_some_and(|listed| listed.contains(&one.gvr()));
        let is_well = self.failed.is_none() && said.iter().all(explains);
        self.pause = match (is_well, is_news) {
            (true, _) => PAUSES.1,
            (false, true) => PAUSES.0,
            (false, false) => (self.pause * 2).min(PAUSES.1),
        };
        self.said = said.to_vec();
        // Jitter: the hubs of a pool must not read at the same moment.
        self.due = now + self.pause + self.pause.mul_f64((fastrand::u64(..) % 1000) as f64 / 1000.0);
    }
}

/// Returns the coordinator's list without the resources that every pool shares. A coordinator with a new store has no
/// list yet; then the present resources stay.
fn said(scope: &ScopeStatus, held: Vec<SharedResource>) -> Vec<SharedResource> {
    let told = scope.told.clone().unwrap_or(held);
    let all = scope.configured.iter().cloned().chain(told);
    all.filter(|one| !POOL_SCOPE.contains(&&*one.name())).collect()
}

/// Splits `said` into the resources to copy and the names of the others. Until the first read, the ConfigMap counts as
/// listing the resources copied already.
fn agreed(
    said: Vec<SharedResource>,
    listed: Option<&BTreeSet<GroupVersionResource>>,
    held: &[SharedResource],
) -> (Vec<SharedResource>, Vec<String>) {
    let is_listed = |one: &SharedResource| match listed {
        Some(listed) => listed.contains(&one.gvr()),
        None => held.contains(one),
    };
    let (agreed, rest): (Vec<_>, Vec<_>) = said.into_iter().partition(is_listed);
    (agreed, rest.iter().map(SharedResource::name).collect())
}

/// Sleeps until `due`; forever if it is `None`.
async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replicas::scope::tests::widget;

    #[test]
    fn coordinator_that_was_not_told_takes_nothing_away() {
        let (a, b, c) = (widget("A"), widget("B"), widget("C"));
        let scope = |told| ScopeStatus {
            configured: vec![a.clone()],
            told,
        };
        assert_eq!(said(&scope(None), vec![b.clone()]), [a.clone(), b.clone()]);
        assert_eq!(said(&scope(Some(vec![c.clone()])), vec![b]), [a.clone(), c.clone()]);
        assert_eq!(said(&scope(Some(Vec::new())), vec![c]), vec![a.clone()]);
    }

    #[test]
    fn what_one_of_both_does_not_say_is_not_copied() {
        let (a, b, c) = (widget("A"), widget("B"), widget("C"));
        let (said, names) = (vec![a.clone(), b.clone()], vec!["as.example.com".to_owned()]);
        let listed = BTreeSet::from([b.gvr(), c.gvr()]);
        assert_eq!(
            agreed(said.clone(), Some(&listed), &[]),
            (vec![b.clone()], names.clone())
        );
        // An own read takes precedence over the resources held before it.
        assert_eq!(
            agreed(said.clone(), Some(&listed), &[a]),
            (vec![b.clone()], names.clone())
        );
        assert_eq!(agreed(said.clone(), None, &[b.clone(), c]), (vec![b], names));
        assert_eq!(agreed(said, None, &[]).0, []);
        let other_version = SharedResource {
            version: "v2".into(),
            ..widget("B")
        };
        assert_eq!(agreed(vec![other_version], Some(&listed), &[]).0, []);
    }

    #[tokio::test(start_paused = true)]
    async fn list_is_read_once_per_change_and_seldom_otherwise() {
        let (a, b) = ([widget("A")], [widget("B")]);
        let mut own = OwnRead::new();
        assert!(own.is_due(&a));
        own.listed = Some(BTreeSet::from([a[0].gvr()]));
        own.read_at(Instant::now(), &a);
        assert!(!own.is_due(&a));
        assert!(own.is_due(&b), "a change");
        let mut pauses = Vec::new();
        for _ in 0..10 {
            own.read_at(Instant::now(), &b);
            assert!(!own.is_due(&b));
            pauses.push(own.pause);
            tokio::time::advance(2 * own.pause).await;
            assert!(own.is_due(&b));
        }
        assert_eq!((pauses[0], pauses[1], pauses[9]), (PAUSES.0, PAUSES.0 * 2, PAUSES.1));
    }
}
