//! Step 5: the leader is killed.

use std::time::Duration;

use anyhow::{Result, ensure};
use yurt_testbed::hub::Election;
use yurt_testbed::pool::TestPool;
use yurt_testbed::wait_for::wait_for;

use super::{TELLING_BYTES, holds, kilobytes, millis, note};

/// Time of the takeover after the Lease has expired.
const TAKEOVER_GRACE: Duration = Duration::from_secs(2);
const CHANGE_LIMIT: Duration = Duration::from_secs(5);
const RETURN_LIMIT: Duration = Duration::from_secs(20);

/// Step 5.
pub(super) async fn killed(pool: &mut TestPool) -> Result<()> {
    let old = pool.leader().await?;
    let others: Vec<usize> = (0..pool.hubs.len()).filter(|index| *index != old).collect();
    let cloud = pool.cloud_listings().await?;
    pool.clients_catch_up(&others, CHANGE_LIMIT).await?;
    let bytes: u64 = cloud.iter().map(|listing| listing.bytes as u64).sum();
    let before = pool.disruptions(&others);
    let traffic: Vec<u64> = pool
        .hubs
        .iter()
        .map(|hub| hub.link.traffic().bytes_from_cloud)
        .collect();
    note(format!(
        "{} is killed with SIGKILL; the Lease lasts {} s",
        pool.hubs[old].node,
        Election::SHORT.lease.as_secs()
    ));
    pool.hubs[old].process.kill().await?;
    let limit = Election::SHORT.lease + TAKEOVER_GRACE;
    let (new, took) = wait_for(limit, "another hub leads", async || pool.leader().await).await?;
    holds(format!("{} leads after {}", pool.hubs[new].node, millis(took)));
    if pool.cloud.writable {
        let took = pool.change_arrives(&others, CHANGE_LIMIT).await?;
        holds(format!(
            "a change in the cloud reached the other hubs' clients in {}",
            millis(took)
        ));
    }
    let after = pool.disruptions(&others);
    ensure!(
        after == before,
        "the other hubs' clients were disturbed: {before:?} before, {after:?} after"
    );
    holds(format!(
        "their {} watches never broke: no relist, no DELETED",
        after.streams
    ));
    let carried = pool.hubs[new].link.traffic().bytes_from_cloud - traffic[new];
    if bytes >= TELLING_BYTES {
        ensure!(
            carried < bytes / 2,
            "the successor read {} from the cloud",
            kilobytes(carried)
        );
        holds(format!(
            "the successor did not list: {} from the cloud since",
            kilobytes(carried)
        ));
    }
    pool.hubs[old].start()?;
    pool.hubs[old].healthy().await?;
    pool.catches_up(RETURN_LIMIT, pool.hubs[old].node, &pool.hubs[old].proxy)
        .await?;
    pool.clients_catch_up(&[old], RETURN_LIMIT).await?;
    ensure!(pool.leader().await? == new, "the hub that came back took the lead");
    holds(format!("{} is back and follows", pool.hubs[old].node));
    pool.no_client_complains().await
}
