//! Lease `kube-system/leader-informer-sync`: states that the pool's data is complete and fresh at the leader and at the
//! coordinator.
//!
//! Readers take the data as stale after 30 s without a renewal. Annotations carry store, epoch and the position of each
//! collection, for operators.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio_util::sync::CancellationToken;
use yurt_pool_protocol::names::{ELECTION_NAMESPACE, INFORMER_SYNC_LEASE};
use yurt_runtime::Clock;

use crate::pool::election::driver::Leadership;
use crate::pool::feed::progress::FeedProgress;
use crate::pool::lease_client::{LeaseClient, renew_time, set_annotation};
use crate::replicas::{POOL_SCOPE, PoolData};

/// Namespace and name of the Lease.
pub const LEASE: (&str, &str) = (ELECTION_NAMESPACE, INFORMER_SYNC_LEASE);
/// Failure key: the coordinator refuses the Lease.
const SYNC: &str = "lease leader-informer-sync";
/// Time between renewals, and the Lease's duration, as upstream's.
const EVERY: Duration = Duration::from_secs(10);
/// Time to the next check while the data is incomplete or stale, or after a failed write.
const SOON: Duration = Duration::from_millis(500);
/// Maximum wait for one answer.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum lag of the feed. Above it the coordinator does not count as synced, and the Lease is not renewed.
const LAG_MAX: Duration = Duration::from_secs(10);

/// Renews the Lease while this hub leads and the data is complete and fresh.
pub struct InformerSync {
    /// Client of the Lease.
    pub lease: LeaseClient,
    /// Value of `holderIdentity`.
    pub identity: String,
    /// Pool data of this hub.
    pub data: Arc<PoolData>,
    /// Progress of the feed to the coordinator.
    pub progress: Arc<FeedProgress>,
    /// Leadership under which the Lease is renewed.
    pub leadership: Arc<Leadership>,
    /// Clock.
    pub clock: Clock,
}

impl Drop for InformerSync {
    fn drop(&mut self) {
        self.data.failures().forget(SYNC);
    }
}

// === impl InformerSync ===

impl InformerSync {
    /// Runs until `token` is cancelled.
    pub async fn run(self, token: CancellationToken) {
        loop {
            let holds = self.leadership.may_act() && POOL_SCOPE.iter().all(|name| self.is_synced(name));
            let pause = if holds && self.renew().await { EVERY } else { SOON };
            if token.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
                return;
            }
        }
    }

    /// True if the collection is fresh from the cloud and the coordinator has it under this leadership.
    fn is_synced(&self, name: &str) -> bool {
        let position = self
            .data
            .replicas()
            .named(name)
            .map(|r| r.collection().read(|c| c.position()));
        let lag = position.and_then(|position| self.progress.lag(name, position));
        self.data.is_fresh_from_cloud(name) && lag.is_some_and(|lag| lag.time <= LAG_MAX)
    }

    async fn renew(&self) -> bool {
        let Ok(read) = self.lease.read(TIMEOUT).await else {
            return false;
        };
        let last = read.lease.as_ref();
        let mut body = last.map_or_else(|| self.lease.blank(), |last| self.lease.blank_over(last));
        let previous = last.and_then(|last| last["spec"]["renewTime"].as_str());
        body["spec"]["holderIdentity"] = self.identity.as_str().into();
        body["spec"]["leaseDurationSeconds"] = EVERY.as_secs().into();
        body["spec"]["renewTime"] = renew_time(&self.clock, previous).into();
        self.annotate(&mut body);
        let written = if last.is_some() {
            self.lease.replace(&body, TIMEOUT).await
        } else {
            self.lease.create(&body, TIMEOUT).await
        };
        let Ok(answer) = written else { return false };
        self.data.failures().tell(SYNC, answer.refusal());
        answer.lease.is_some()
    }

    fn annotate(&self, body: &mut Value) {
        let fence = &self.leadership.fence;
        set_annotation(body, "openyurt.io/store", Some(&fence.store));
        set_annotation(body, "openyurt.io/epoch", Some(&fence.epoch.to_string()));
        for replica in self.data.pool_replicas() {
            let position = replica.collection().read(|c| c.position()).to_string();
            set_annotation(body, &format!("openyurt.io/rv-{}", replica.name()), Some(&position));
        }
    }
}
