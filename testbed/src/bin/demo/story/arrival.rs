//! Steps 1 to 3: the pool comes up, its data is copied once, a change travels.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use yurt_testbed::pool::TestPool;
use yurt_testbed::sample::{FOREIGN_NODE, NAMESPACE, POOL, POOL_LOCAL_SERVICE};
use yurt_testbed::wait_for::wait_for;
use yurt_workspace::Stopwatch;

use super::{TELLING_BYTES, holds, kilobytes, millis, note};

const ELECTION_LIMIT: Duration = Duration::from_secs(20);
const COPY_LIMIT: Duration = Duration::from_secs(20);
/// Longest time for a change without any fault.
const CHANGE_LIMIT: Duration = Duration::from_secs(2);

/// Step 1.
pub(super) async fn elect(pool: &mut TestPool) -> Result<()> {
    note(format!("cloud: {} on port {}", pool.cloud.title, pool.cloud.port));
    let took = pool.coordinator.start().await?;
    holds(format!(
        "the coordinator serves on port {} ({} after its start)",
        pool.coordinator.port,
        millis(took)
    ));
    let watch = Stopwatch::start();
    for hub in &mut pool.hubs {
        hub.start()?;
    }
    for hub in &mut pool.hubs {
        hub.healthy().await?;
        hub.start_kubelet(&pool.setup)?;
    }
    holds(format!("{} hubs are healthy", pool.hubs.len()));
    let (leader, _) = wait_for(ELECTION_LIMIT, "one hub leads", async || pool.leader().await).await?;
    let elected = watch.elapsed();
    for (index, hub) in pool.hubs.iter().enumerate() {
        ensure!(
            hub.state().await?.leads() == (index == leader),
            "{} changed its role during the check",
            hub.node
        );
        note(format!("{}: {}", hub.node, hub.state().await?.summary()));
    }
    let node = pool.hubs[leader].node;
    holds(format!(
        "{node} leads, {} after the hubs started; the Lease kube-system/yurthub names it",
        millis(elected)
    ));
    Ok(())
}

/// Step 2.
pub(super) async fn copy(pool: &mut TestPool) -> Result<()> {
    let cloud = pool.cloud_listings().await?;
    let objects: usize = cloud.iter().map(|listing| listing.objects.len()).sum();
    let bytes: u64 = cloud.iter().map(|listing| listing.bytes as u64).sum();
    note(format!(
        "the cloud has {objects} Services and EndpointSlices, {} as JSON",
        kilobytes(bytes)
    ));
    for hub in &pool.hubs {
        pool.catches_up(COPY_LIMIT, hub.node, &hub.proxy).await?;
    }
    holds("every hub serves all of them with the cloud's own resourceVersions");
    for hub in &pool.hubs {
        let complete = async || {
            let state = hub.state().await?;
            ensure!(
                state.incomplete().is_empty(),
                "{:?} are not complete",
                state.incomplete()
            );
            Ok(())
        };
        wait_for(COPY_LIMIT, &format!("{} has every collection", hub.node), complete).await?;
    }
    pool.catches_up(COPY_LIMIT, "the coordinator", &pool.coordinator.api)
        .await?;
    holds("so does the coordinator");
    let leader = pool.leader().await?;
    for (index, hub) in pool.hubs.iter().enumerate() {
        let traffic = hub.link.traffic();
        let (connections, received) = (traffic.connections, kilobytes(traffic.bytes_from_cloud));
        let sources = hub.state().await?.sources();
        note(format!(
            "{}: pool data from the {sources}; {connections} connections, {received} from the cloud",
            hub.node
        ));
        let carries_little = index == leader || bytes < TELLING_BYTES || traffic.bytes_from_cloud < bytes / 2;
        ensure!(
            carries_little,
            "{} follows, but its cloud link carried {received}",
            hub.node
        );
    }
    if bytes >= TELLING_BYTES {
        holds(format!(
            "only the link of {}, the leader, carried the data",
            pool.hubs[leader].node
        ));
    }
    for hub in &mut pool.hubs {
        hub.start_clients(&pool.setup);
    }
    let all: Vec<usize> = (0..pool.hubs.len()).collect();
    pool.clients_catch_up(&all, COPY_LIMIT).await?;
    holds("a client behind each hub has listed, and now watches, Services and EndpointSlices");
    if pool.cloud.writable {
        pool_local(pool).await
    } else {
        Ok(())
    }
}

/// The endpoints of the pool-local Service, as the cloud and as a kube-proxy of the pool see them.
async fn pool_local(pool: &TestPool) -> Result<()> {
    let path = format!("/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices/{POOL_LOCAL_SERVICE}-x2k7p");
    let list = "/apis/discovery.k8s.io/v1/endpointslices";
    let slice = pool.cloud.api.get(&path).await?;
    let in_cloud = slice["endpoints"]
        .as_array()
        .context("the slice must have endpoints")?
        .len();
    for hub in &pool.hubs {
        let answer = hub.kube_proxy.get(list).await?;
        let items = answer["items"].as_array().context("a list must have items")?;
        let filtered = items
            .iter()
            .find(|item| item["metadata"]["name"] == slice["metadata"]["name"]);
        let endpoints = filtered
            .and_then(|item| item["endpoints"].as_array())
            .context("the slice must be listed")?;
        let foreign = endpoints.iter().any(|endpoint| endpoint["nodeName"] == FOREIGN_NODE);
        ensure!(
            !foreign,
            "{} shows its kube-proxy an endpoint on {FOREIGN_NODE}",
            hub.node
        );
        ensure!(
            endpoints.len() == in_cloud - 1,
            "{} shows {} endpoints",
            hub.node,
            endpoints.len()
        );
    }
    holds(format!(
        "the Service {POOL_LOCAL_SERVICE} is kept within its pool: kube-proxy sees {} of its {in_cloud} endpoints, \
         none on {FOREIGN_NODE}, which is not in {POOL}",
        in_cloud - 1
    ));
    Ok(())
}

/// Step 3.
pub(super) async fn change(pool: &mut TestPool) -> Result<()> {
    if !pool.cloud.writable {
        note("skipped: it would change objects in your cluster");
        return Ok(());
    }
    let all: Vec<usize> = (0..pool.hubs.len()).collect();
    let took = pool.change_arrives(&all, CHANGE_LIMIT).await?;
    holds(format!(
        "a Service was changed in the cloud; {} later all clients had the change",
        millis(took)
    ));
    pool.short_life_is_seen(CHANGE_LIMIT).await?;
    holds("a Service was created and deleted again; all clients saw both");
    pool.no_client_complains().await
}
