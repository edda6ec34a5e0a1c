//! Steps 6 and 7: no hub reaches the cloud, the coordinator is killed too, and then the cloud is back.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use yurt_testbed::client::Suffered;
use yurt_testbed::link::Mode;
use yurt_testbed::stage::Stage;
use yurt_testbed::until::until;

use super::{holds, millis, note};

/// Reads of held data must not wait for a cloud that does not answer.
const OFFLINE_LIMIT: Duration = Duration::from_secs(10);
/// Events are applied immediately and written to disk together a few seconds later.
const DURABLE_LIMIT: Duration = Duration::from_secs(10);
/// Probes without an answer distinguish a silent link from a slow one.
const NOTICE_LIMIT: Duration = Duration::from_secs(40);
/// Probes detect that silent links work again.
const BACK_LIMIT: Duration = Duration::from_secs(30);

/// Step 6. Returns the disruptions of the clients before it.
pub(super) async fn alone(stage: &mut Stage) -> Result<Suffered> {
    let all: Vec<usize> = (0..stage.hubs.len()).collect();
    stage.clients_catch_up(&all, OFFLINE_LIMIT).await?;
    let cloud = stage.cloud_listings().await?;
    let before = stage.suffered(&all);
    note("all links go silent: packets vanish without an error");
    for hub in &stage.hubs {
        hub.link.set(Mode::Blackhole);
    }
    for hub in &stage.hubs {
        Stage::still_serves(OFFLINE_LIMIT, hub.node, &hub.proxy, &cloud).await?;
    }
    holds("every hub still lists everything");
    let (_, took) = until(NOTICE_LIMIT, "the hubs detect the outage", async || {
        nobody_leads(stage).await
    })
    .await?;
    holds(format!(
        "{} later every hub has detected the outage: no hub leads, because a leader needs the cloud",
        millis(took)
    ));
    until(DURABLE_LIMIT, "all is on the coordinator's disk", async || {
        durable(stage).await
    })
    .await?;
    note("everything is on the coordinator's disk; it is killed with SIGKILL");
    stage.coordinator.seat.kill().await?;
    for hub in &stage.hubs {
        Stage::still_serves(OFFLINE_LIMIT, hub.node, &hub.proxy, &cloud).await?;
    }
    holds("every hub lists everything, with neither cloud nor coordinator");
    let took = stage.coordinator.start().await?;
    Stage::still_serves(OFFLINE_LIMIT, "the coordinator", &stage.coordinator.api, &cloud).await?;
    holds(format!(
        "the coordinator serves {} after its start, and lists everything from its disk",
        millis(took)
    ));
    let after = stage.suffered(&all);
    ensure!(
        after == before,
        "the clients were disturbed: {before:?} before, {after:?} after"
    );
    holds("no client was disturbed: no broken watch, no relist, no DELETED");
    Ok(before)
}

async fn nobody_leads(stage: &Stage) -> Result<()> {
    for hub in &stage.hubs {
        ensure!(!hub.state().await?.leads(), "{} still leads", hub.node);
    }
    Ok(())
}

/// Waits until the coordinator has written all its pool data to disk.
async fn durable(stage: &Stage) -> Result<()> {
    let feed = stage.coordinator.api.get("/yurt/v1/feed").await?;
    let collections = feed["collections"]
        .as_object()
        .context("the coordinator reports no collections")?;
    for (name, collection) in collections {
        let (applied, written) = (&collection["appliedUpTo"], &collection["durableUpTo"]);
        ensure!(
            applied == written,
            "{name}: applied up to {applied}, written up to {written}"
        );
    }
    Ok(())
}

/// Step 7.
pub(super) async fn back(stage: &mut Stage, before: Suffered) -> Result<()> {
    let all: Vec<usize> = (0..stage.hubs.len()).collect();
    for hub in &stage.hubs {
        hub.link.set(Mode::Pass);
    }
    let (leader, took) = until(BACK_LIMIT, "one hub leads", async || stage.leader().await).await?;
    holds(format!(
        "{} leads, {} after the links came back",
        stage.hubs[leader].node,
        millis(took)
    ));
    if stage.cloud.writable {
        let took = stage.change_arrives(&all, BACK_LIMIT).await?;
        holds(format!("a change in the cloud reached all clients in {}", millis(took)));
    }
    let after = stage.suffered(&all);
    ensure!(
        after == before,
        "the clients were disturbed: {before:?} before, {after:?} after"
    );
    holds("since before the outage no client has relisted or lost its watch");
    stage.no_client_complains().await
}
