//! A pool to measure: cloud, coordinator, hubs, all at rest before anything is timed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio::sync::watch;
use yurt_testbed::api::Api;
use yurt_testbed::client::{Client, Received, WATCH_SECONDS};
use yurt_testbed::cloud::Choice;
use yurt_testbed::hub::Election;
use yurt_testbed::pool::TestPool;
use yurt_testbed::program::ManagedProcess;
use yurt_testbed::sample::NODES;
use yurt_testbed::wait_for::wait_for;
use yurt_workspace::Stopwatch;

use crate::samples;
use crate::system_under_test::Environment;
use crate::usage::{self, Usage};

/// Everything is up within this time, even on a busy machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);
/// Slices of the data rows, as the baseline was measured with.
pub(super) const SLICES: usize = 1009;
/// Endpoints of each.
pub(super) const ENDPOINTS: usize = 100;
/// Slices created at a time.
const CREATES: usize = 8;
/// A watch that hears nothing for so long hears nothing.
const SILENCE: Duration = Duration::from_secs(10);
/// The row of [`lists_to_go_on`].
pub(super) const GO_ON: &str = "lists of a client that was at the cloud and goes on at the pool's server";
/// The annotation that tells one change from the next.
const TURN: &str = "bench/turn";

/// When each turn of a changed slice arrived at a client.
pub(super) struct Arrivals {
    seen: Arc<watch::Sender<BTreeMap<usize, Duration>>>,
    _client: Client,
}

/// Changes of the election lease, with their times.
pub(super) struct Holders {
    seen: Arc<watch::Sender<Vec<(Duration, String)>>>,
    clock: Stopwatch,
    _client: Client,
}

/// Names of `count` nodes of the pool; they live as long as the program.
pub(super) fn nodes(count: usize) -> Vec<&'static str> {
    let more = (NODES.len() + 1..).map(|number| &*format!("shore-{number}").leak());
    NODES.into_iter().chain(more).take(count).collect()
}

/// A cloud with `slices` large slices, and a pool that does not run yet.
pub(super) async fn prepare(
    environment: &Environment,
    cloud: &Choice,
    hubs: usize,
    election: Election,
    slices: usize,
) -> Result<TestPool> {
    let pool = TestPool::of(environment.setup()?, cloud, &nodes(hubs), election).await?;
    load(&pool.cloud.api, slices).await?;
    Ok(pool)
}

/// Creates the slices `slice-0000` and so on.
pub(super) async fn load(api: &Api, slices: usize) -> Result<()> {
    let names: Vec<String> = (0..slices).map(slice_name).collect();
    if slices > 0 {
        // A slice without its Service is hidden from kube-proxy.
        let spec = json!({"clusterIP": "None", "ports": [{"name": "http", "port": 8080}]});
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "bench"}, "spec": spec});
        api.create("/api/v1/namespaces/default/services", &service).await?;
    }
    for some in names.chunks(CREATES) {
        let create = async |name: &String| api.create(samples::SLICES, &samples::slice(name, ENDPOINTS)).await;
        futures_util::future::try_join_all(some.iter().map(create)).await?;
    }
    Ok(())
}

pub(super) fn slice_name(number: usize) -> String {
    format!("slice-{number:04}")
}

/// Starts coordinator and hubs and waits until one leads, the others follow, and all have everything.
pub(super) async fn start(pool: &mut TestPool) -> Result<()> {
    pool.coordinator.start().await?;
    for hub in &mut pool.hubs {
        hub.start()?;
    }
    at_rest(pool).await
}

/// Waits until the pool is as [`start`] leaves it.
pub(super) async fn at_rest(pool: &TestPool) -> Result<()> {
    let settled = async || {
        let leader = pool.leader().await?;
        for (index, hub) in pool.hubs.iter().enumerate() {
            let state = hub.state().await?;
            ensure!(
                state.incomplete().is_empty(),
                "{} lacks {:?}",
                hub.node,
                state.incomplete()
            );
            let wanted = if index == leader { "cloud" } else { "coordinator" };
            ensure!(state.sources() == wanted, "{} follows {}", hub.node, state.sources());
        }
        Ok(())
    };
    wait_for(PATIENCE, "the pool is at rest", settled).await.map(drop)
}

/// Ends everything that the pool started, hubs first.
pub(super) async fn end(mut pool: TestPool) -> Result<()> {
    for hub in &mut pool.hubs {
        if hub.process.runs() {
            hub.process.kill().await?;
        }
    }
    pool.coordinator.process.kill().await?;
    let _ = pool.setup.tasks.shutdown(Duration::from_secs(2)).await;
    Ok(())
}

/// Resources that the process has used.
pub(super) fn usage(process: &mut ManagedProcess) -> Result<Usage> {
    usage::usage(process.program()?.id().context("the process has ended")?)
}

/// Changes the slice for this turn.
pub(super) async fn touch(api: &Api, turn: usize) -> Result<()> {
    let path = format!("{}/{}", samples::SLICES, slice_name(0));
    let patch = json!({"metadata": {"annotations": {TURN: turn.to_string()}}});
    api.merge(&path, &patch).await.map(drop)
}

/// Number of lists of a client that listed slices at the cloud and resumes from there at the pool's server: none if its
/// watch there delivers the change `turn`, else one.
pub(super) async fn lists_to_go_on(cloud: &Api, pool: &Api, turn: usize) -> Result<f64> {
    let at = cloud.list(samples::ALL_SLICES).await?.resource_version;
    let path = format!("{}?watch=1&resourceVersion={at}&timeoutSeconds=60", samples::ALL_SLICES);
    let goes_on = async {
        let response = pool.stream(&path).await?;
        touch(cloud, turn).await?;
        let (mut body, mut text) = (response.into_body(), String::new());
        let wanted = format!(r#""{TURN}":"{turn}""#);
        while !text.contains(&wanted) {
            let frame = body.frame().await.context("the watch has ended")??;
            text.push_str(&String::from_utf8_lossy(frame.data_ref().map_or(&[], |data| data)));
        }
        Ok::<_, anyhow::Error>(())
    };
    let heard = tokio::time::timeout(SILENCE, goes_on).await;
    Ok(if matches!(heard, Ok(Ok(()))) { 0.0 } else { 1.0 })
}

// === impl Arrivals ===

impl Arrivals {
    /// A client of slices; times are on `clock`. Returns when its watch is open.
    pub(super) async fn watch(tasks: &yurt_runtime::TaskGroup, api: Api, clock: Stopwatch) -> Result<Self> {
        let seen = Arc::new(watch::Sender::new(BTreeMap::new()));
        let told = Arc::clone(&seen);
        let record = move |what: Received<'_>| {
            if let Received::Event(event) = what
                && let Some(turn) = turn(event)
            {
                told.send_modify(|seen| {
                    seen.entry(turn).or_insert(clock.elapsed());
                });
            }
        };
        let client = Client::recording(tasks, api, samples::ALL_SLICES, WATCH_SECONDS, record);
        tokio::time::timeout(PATIENCE, client.sees(|view| view.watching))
            .await
            .context("no watch of slices")??;
        Ok(Self { seen, _client: client })
    }

    /// When `turn` arrived; waits for it.
    pub(super) async fn of(&self, turn: usize, limit: Duration) -> Result<Duration> {
        let mut seen = self.seen.subscribe();
        let arrived = seen.wait_for(|seen| seen.contains_key(&turn));
        let seen = tokio::time::timeout(limit, arrived)
            .await
            .with_context(|| format!("change {turn} did not arrive"))??;
        Ok(seen[&turn])
    }
}

fn turn(event: &Value) -> Option<usize> {
    event["object"]["metadata"]["annotations"][TURN].as_str()?.parse().ok()
}

// === impl Holders ===

impl Holders {
    /// Watches the election lease at the coordinator.
    pub(super) async fn watch(pool: &TestPool) -> Result<Self> {
        let (clock, seen) = (Stopwatch::start(), Arc::new(watch::Sender::new(Vec::new())));
        let told = Arc::clone(&seen);
        let record = move |what: Received<'_>| {
            let Received::Event(event) = what else { return };
            let object = &event["object"];
            if object["metadata"]["name"] != "yurthub" {
                return;
            }
            let holder = object["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned();
            told.send_modify(|seen: &mut Vec<(Duration, String)>| {
                if seen.last().is_none_or(|(_, last)| *last != holder) {
                    seen.push((clock.elapsed(), holder));
                }
            });
        };
        let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
        let client = Client::recording(
            &pool.setup.tasks,
            pool.coordinator.api.clone(),
            leases,
            WATCH_SECONDS,
            record,
        );
        client.sees(|view| view.watching).await?;
        Ok(Self {
            seen,
            clock,
            _client: client,
        })
    }

    /// Now, on the clock of the answers.
    pub(super) fn now(&self) -> Duration {
        self.clock.elapsed()
    }

    /// The first time after `from` at which the holder was as `wanted` says.
    pub(super) async fn first(
        &self,
        from: Duration,
        limit: Duration,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<Duration> {
        let mut seen = self.seen.subscribe();
        let found = |seen: &Vec<(Duration, String)>| {
            let after = seen.iter().find(|(at, holder)| *at >= from && wanted(holder));
            after.map(|(at, _)| *at)
        };
        let changed = seen.wait_for(|seen| found(seen).is_some());
        let seen = tokio::time::timeout(limit, changed)
            .await
            .context("the lease was not taken")??;
        found(&seen).context("just seen")
    }
}
