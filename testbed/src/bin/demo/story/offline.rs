//! Steps 6 and 7: no hub reaches the cloud, the coordinator is killed too, and then the cloud is back.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use yurt_testbed::api::Listing;
use yurt_testbed::client::Disruptions;
use yurt_testbed::hub::COLLECTIONS;
use yurt_testbed::link::Mode;
use yurt_testbed::pool::TestPool;
use yurt_testbed::wait_for::wait_for;

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
pub(super) async fn alone(pool: &mut TestPool) -> Result<Disruptions> {
    let all: Vec<usize> = (0..pool.hubs.len()).collect();
    pool.clients_catch_up(&all, OFFLINE_LIMIT).await?;
    let cloud = pool.cloud_listings().await?;
    let before = pool.disruptions(&all);
    note("all links go silent: packets vanish without an error");
    for hub in &pool.hubs {
        hub.link.set(Mode::Blackhole);
    }
    for hub in &pool.hubs {
        TestPool::still_serves(OFFLINE_LIMIT, hub.node, &hub.proxy, &cloud).await?;
    }
    holds("every hub still lists everything");
    let (_, took) = wait_for(NOTICE_LIMIT, "the hubs detect the outage", async || {
        nobody_leads(pool).await
    })
    .await?;
    holds(format!(
        "{} later every hub has detected the outage: no hub leads, because a leader needs the cloud",
        millis(took)
    ));
    wait_for(DURABLE_LIMIT, "all is on the coordinator's disk", async || {
        durable(pool, &cloud).await
    })
    .await?;
    note("everything is on the coordinator's disk; it is killed with SIGKILL");
    pool.coordinator.process.kill().await?;
    for hub in &pool.hubs {
        TestPool::still_serves(OFFLINE_LIMIT, hub.node, &hub.proxy, &cloud).await?;
    }
    holds("every hub lists everything, with neither cloud nor coordinator");
    let took = pool.coordinator.start().await?;
    TestPool::still_serves(OFFLINE_LIMIT, "the coordinator", &pool.coordinator.api, &cloud).await?;
    holds(format!(
        "the coordinator serves {} after its start, and lists everything from its disk",
        millis(took)
    ));
    let after = pool.disruptions(&all);
    ensure!(
        after == before,
        "the clients were disturbed: {before:?} before, {after:?} after"
    );
    holds("no client was disturbed: no broken watch, no relist, no DELETED");
    Ok(before)
}

async fn nobody_leads(pool: &TestPool) -> Result<()> {
    for hub in &pool.hubs {
        ensure!(!hub.state().await?.leads(), "{} still leads", hub.node);
    }
    Ok(())
}

/// Checks that the coordinator has written every object that the cloud listed to disk. A position that moved alone is
/// written once a minute: after a kill it costs a longer replay, and no object.
async fn durable(pool: &TestPool, cloud: &[Listing]) -> Result<()> {
    let feed = pool.coordinator.api.get("/yurt/v1/feed").await?;
    let collections = feed["collections"]
        .as_object()
        .context("the coordinator reports no collections")?;
    for (path, listing) in COLLECTIONS.iter().zip(cloud) {
        let plural = path.rsplit('/').next().unwrap_or_default();
        let is_it = |name: &str| name.split('.').next() == Some(plural);
        let found = collections.iter().find(|(name, _)| is_it(name));
        let (_, collection) = found.with_context(|| format!("the coordinator does not report {plural}"))?;
        let written = collection["durableUpTo"].as_str().unwrap_or_default().parse::<u64>();
        let newest = listing.objects.values().max().copied().unwrap_or_default();
        ensure!(
            written.as_ref().is_ok_and(|written| *written >= newest),
            "{plural}: an object has resourceVersion {newest}, written up to {written:?}"
        );
    }
    Ok(())
}

/// Step 7.
pub(super) async fn back(pool: &mut TestPool, before: Disruptions) -> Result<()> {
    let all: Vec<usize> = (0..pool.hubs.len()).collect();
    for hub in &pool.hubs {
        hub.link.set(Mode::Pass);
    }
    let (leader, took) = wait_for(BACK_LIMIT, "one hub leads", async || pool.leader().await).await?;
    holds(format!(
        "{} leads, {} after the links came back",
        pool.hubs[leader].node,
        millis(took)
    ));
    if pool.cloud.writable {
        let took = pool.change_arrives(&all, BACK_LIMIT).await?;
        holds(format!("a change in the cloud reached all clients in {}", millis(took)));
    }
    let after = pool.disruptions(&all);
    ensure!(
        after == before,
        "the clients were disturbed: {before:?} before, {after:?} after"
    );
    holds("since before the outage no client has relisted or lost its watch");
    pool.no_client_complains().await
}
