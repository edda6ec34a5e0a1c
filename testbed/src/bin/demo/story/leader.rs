//! Step 5: the leader is killed.

use std::time::Duration;

use anyhow::{Result, ensure};
use yurt_testbed::hub::Election;
use yurt_testbed::stage::Stage;
use yurt_testbed::until::until;

use super::{TELLING_BYTES, holds, kilobytes, millis, note};

/// Time of the takeover after the Lease has expired.
const TAKEOVER_GRACE: Duration = Duration::from_secs(2);
const CHANGE_LIMIT: Duration = Duration::from_secs(5);
const RETURN_LIMIT: Duration = Duration::from_secs(20);

/// Step 5.
pub(super) async fn killed(stage: &mut Stage) -> Result<()> {
    let old = stage.leader().await?;
    let others: Vec<usize> = (0..stage.hubs.len()).filter(|index| *index != old).collect();
    let cloud = stage.cloud_listings().await?;
    stage.clients_catch_up(&others, CHANGE_LIMIT).await?;
    let bytes: u64 = cloud.iter().map(|listing| listing.bytes as u64).sum();
    let before = stage.suffered(&others);
    let traffic: Vec<u64> = stage
        .hubs
        .iter()
        .map(|hub| hub.link.traffic().bytes_from_cloud)
        .collect();
    note(format!(
        "{} is killed with SIGKILL; the Lease lasts {} s",
        stage.hubs[old].node,
        Election::SHORT.lease.as_secs()
    ));
    stage.hubs[old].seat.kill().await?;
    let limit = Election::SHORT.lease + TAKEOVER_GRACE;
    let (new, took) = until(limit, "another hub leads", async || stage.leader().await).await?;
    holds(format!("{} leads after {}", stage.hubs[new].node, millis(took)));
    if stage.cloud.writable {
        let took = stage.change_arrives(&others, CHANGE_LIMIT).await?;
        holds(format!(
            "a change in the cloud reached the other hubs' clients in {}",
            millis(took)
        ));
    }
    let after = stage.suffered(&others);
    ensure!(
        after == before,
        "the other hubs' clients were disturbed: {before:?} before, {after:?} after"
    );
    holds(format!(
        "their {} watches never broke: no relist, no DELETED",
        after.streams
    ));
    let carried = stage.hubs[new].link.traffic().bytes_from_cloud - traffic[new];
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
    stage.hubs[old].start()?;
    stage.hubs[old].healthy().await?;
    stage
        .catches_up(RETURN_LIMIT, stage.hubs[old].node, &stage.hubs[old].proxy)
        .await?;
    stage.clients_catch_up(&[old], RETURN_LIMIT).await?;
    ensure!(stage.leader().await? == new, "the hub that came back took the lead");
    holds(format!("{} is back and follows", stage.hubs[old].node));
    stage.no_client_complains().await
}
