//! The leader's public word that the pool's data is complete and fresh: Lease `kube-system/leader-informer-sync`.
//!
//! Readers take it as stale after 30 s without a renewal. Annotations carry store, epoch and the position of each
//! collection, for operators.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio_util::sync::CancellationToken;
use yurt_runtime::Clock;

use crate::pool::election::driver::Leadership;
use crate::pool::lease_client::{LeaseClient, renew_time, set_annotation};
use crate::replicas::{POOL_SCOPE, PoolData};

/// Namespace and name of the Lease.
pub const LEASE: (&str, &str) = ("kube-system", "leader-informer-sync");
/// Time between renewals, and the Lease's duration, as upstream's.
const EVERY: Duration = Duration::from_secs(10);
/// Time to the next look while the data is not complete and fresh, or after a failed write.
const SOON: Duration = Duration::from_millis(500);
/// Longest wait for one answer.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Renews the Lease while this hub leads and the data is what the Lease says.
pub async fn run(
    lease: LeaseClient,
    identity: String,
    data: Arc<PoolData>,
    leadership: Arc<Leadership>,
    clock: Clock,
    token: CancellationToken,
) {
    loop {
        let holds = leadership.may_act() && POOL_SCOPE.iter().all(|name| data.is_fresh(name));
        let renewed = holds && renew(&lease, &identity, &data, &leadership, &clock).await;
        let pause = if renewed { EVERY } else { SOON };
        if token.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
            return;
        }
    }
}

async fn renew(lease: &LeaseClient, identity: &str, data: &PoolData, leadership: &Leadership, clock: &Clock) -> bool {
    let Ok(read) = lease.read(TIMEOUT).await else {
        return false;
    };
    let exists = read.lease.is_some();
    let mut body = read.lease.unwrap_or_else(|| lease.blank());
    let previous = body["spec"]["renewTime"].as_str().map(str::to_owned);
    body["spec"]["holderIdentity"] = identity.into();
    body["spec"]["leaseDurationSeconds"] = EVERY.as_secs().into();
    body["spec"]["renewTime"] = renew_time(clock, previous.as_deref()).into();
    annotate(&mut body, data, leadership);
    let written = if exists {
        lease.replace(&body, TIMEOUT).await
    } else {
        lease.create(&body, TIMEOUT).await
    };
    written.is_ok_and(|answer| answer.lease.is_some())
}

fn annotate(body: &mut Value, data: &PoolData, leadership: &Leadership) {
    set_annotation(body, "openyurt.io/store", Some(&leadership.fence.store));
    set_annotation(body, "openyurt.io/epoch", Some(&leadership.fence.epoch.to_string()));
    for replica in data.replicas().iter() {
        let position = replica.collection().read(|c| c.position()).to_string();
        set_annotation(body, &format!("openyurt.io/rv-{}", replica.name()), Some(&position));
    }
}
