//! Copies the resources that both the coordinator and the cloud's ConfigMap list.
//!
//! The coordinator repeats the list of some leader, so every hub compares it with the ConfigMap that it follows itself.
//! Without a link it keeps the resources that both listed last, which are those it copies.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::GroupVersionResource;
use yurt_pool_protocol::feed::ScopeStatus;
use yurt_pool_protocol::pool_scope::{self, CONFIG_KEY, SharedResource};

use crate::health::CoordinatorReach;
use crate::hub_config::HubConfig;
use crate::replicas::scope::SHARE_AGAIN;
use crate::replicas::{POOL_SCOPE, PoolData};

/// Failure key: the coordinator lists more than the cloud, or the list is unreadable.
const SCOPE: &str = "scope";

/// Limits the replicas to the resources that coordinator and cloud both list.
pub struct ScopeFollower {
    /// The ConfigMap, which has the list.
    pub config: watch::Receiver<Arc<HubConfig>>,
    /// State of the coordinator.
    pub coordinator: watch::Receiver<CoordinatorReach>,
    /// Replicas of this hub.
    pub data: Arc<PoolData>,
}

/// State of this hub's own list.
#[derive(Debug, Default)]
struct OwnList {
    /// Resources that it lists; `None` before the first read.
    listed: Option<BTreeSet<GroupVersionResource>>,
    /// Error of the last read.
    failed: Option<String>,
}

// === impl ScopeFollower ===

impl ScopeFollower {
    /// Runs until `token` is cancelled.
    pub async fn run(mut self, token: CancellationToken) {
        let following = self.follow();
        token.run_until_cancelled(following).await;
        // A write that lands later would outlive what a stop deletes of another cluster.
        self.data.shared_is_settled().await;
    }

    async fn follow(&mut self) {
        let mut own = OwnList::default();
        loop {
            let mut is_settled = true;
            let status = self.coordinator.borrow_and_update().status.clone();
            own.read(&self.config.borrow_and_update().clone());
            if let Some(scope) = status.as_ref().and_then(|status| status.scope.as_ref()) {
                let said = said(scope, self.data.shared());
                is_settled = self.share(&own, said).await;
            }
            tokio::select! {
                () = tokio::time::sleep(SHARE_AGAIN), if !is_settled => {}
                Ok(()) = self.coordinator.changed() => {}
                Ok(()) = self.config.changed() => {}
                else => return,
            }
        }
    }

    /// Copies the resources that both list, and reports the rest. Returns false if the disk failed.
    async fn share(&self, own: &OwnList, said: Vec<SharedResource>) -> bool {
        let (agreed, unlisted) = agreed(said, own.listed.as_ref(), &self.data.shared());
        let is_settled = self.data.share(&agreed).await.is_empty();
        let read = match (&own.listed, &own.failed) {
            (_, Some(why)) => format!("could not be read: {why}"),
            (None, None) => "has not been read yet".to_owned(),
            (Some(_), None) => "does not list it".to_owned(),
        };
        let refusal = (!unlisted.is_empty()).then(|| {
            let names = unlisted.join(", ");
            format!("the coordinator shares {names}, which is not copied: ConfigMap yurt-hub-cfg {read}")
        });
        self.data.failures().tell(SCOPE, refusal);
        is_settled
    }
}

// === impl OwnList ===

impl OwnList {
    /// Reads a state of the ConfigMap. Without the cloud, and with an unreadable list, the last list stays.
    fn read(&mut self, config: &HubConfig) {
        let parsed = match &config.refused {
            Some(why) => Err(why.clone()),
            None if !config.current => return,
            None => pool_scope::parse(config.value(CONFIG_KEY)),
        };
        match parsed {
            Ok(wanted) => (self.listed, self.failed) = (Some(wanted.resources.into_iter().collect()), None),
            Err(why) => self.failed = Some(why),
        }
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

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

    #[test]
    fn last_list_stays_while_the_cloud_does_not_confirm_another() {
        let config = |text: &str| HubConfig {
            synced: true,
            current: true,
            refused: None,
            data: BTreeMap::from([(CONFIG_KEY.to_owned(), text.to_owned())]),
        };
        let mut own = OwnList::default();
        own.read(&HubConfig {
            current: false,
            ..config("[]")
        });
        assert_eq!(own.listed, None, "a list from the disk may be old");
        own.read(&config(r#"[{"Group":"example.com","Version":"v1","Resource":"as"}]"#));
        let listed = Some(BTreeSet::from([widget("A").gvr()]));
        let refused = HubConfig {
            refused: Some("403".to_owned()),
            ..config("[]")
        };
        for unusable in [config("[{"), refused, HubConfig::default()] {
            own.read(&unusable);
            assert_eq!(own.listed, listed);
        }
        assert!(own.failed.is_some());
        own.read(&config(""));
        assert_eq!((own.listed, own.failed), (Some(BTreeSet::new()), None));
    }
}
