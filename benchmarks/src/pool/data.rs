//! Costs of a pool with 1,009 slices of 100 endpoints: memory (row 17), one event (row 18), starts (row 19).

use std::time::Duration;

use anyhow::{Result, ensure};
use yurt_runtime::TaskGroup;
use yurt_testbed::api::Api;
use yurt_testbed::cloud::Choice;
use yurt_testbed::hub::Election;
use yurt_testbed::pool::TestPool;
use yurt_testbed::program::ManagedProcess;
use yurt_workspace::Stopwatch;

use super::fixture::{self, Arrivals, PATIENCE, SLICES};
use crate::load::quantile;
use crate::memory::mib;
use crate::system_under_test::Environment;
use crate::table::{Notes, Unit};

/// Changes of one slice, one after the other.
pub(super) const EVENTS: usize = 300;
/// Time between two changes. The effects of one end before the next: the row is about latency, not throughput.
const BETWEEN: Duration = Duration::from_millis(20);
/// Nothing moves any more.
const SETTLE: Duration = Duration::from_secs(3);
/// Interval at which a starting hub is polled.
const ASK_EVERY: Duration = Duration::from_millis(2);

/// Row 18 on both sides.
pub(super) const EVENT: &str = "event of 25 KB, cloud to a follower's client: added to a direct watch";

/// A client of the cloud, and one of what copies it.
pub(super) struct Clients {
    direct: Arrivals,
    there: Arrivals,
}

pub(super) async fn measure(environment: &Environment, real: bool, notes: &mut Notes<'_>) -> Result<()> {
    let cloud = if real { Choice::Real } else { Choice::Demo };
    let mut pool = fixture::prepare(environment, &cloud, 2, Election::SHORT, SLICES).await?;
    starts(&mut pool, notes).await?;
    let leader = pool.leader().await?;
    let follower = pool.follower(leader)?;
    tokio::time::sleep(SETTLE).await;
    memory(&mut pool, leader, follower, notes)?;
    events(&mut pool, leader, follower, notes).await?;
    fixture::end(pool).await?;
    match real {
        true => undisturbed(environment, notes).await,
        false => Ok(()),
    }
}

/// Events once more, from a cloud that leaves the cores to the pool: kube-apiserver works on after each write.
async fn undisturbed(environment: &Environment, notes: &mut Notes<'_>) -> Result<()> {
    let mut pool = fixture::prepare(environment, &Choice::Demo, 2, Election::SHORT, SLICES).await?;
    fixture::start(&mut pool).await?;
    fixture::at_rest(&pool).await?;
    let leader = pool.leader().await?;
    let follower = pool.follower(leader)?;
    tokio::time::sleep(SETTLE).await;
    let tasks = pool.setup.tasks.child();
    let clients = Clients::watch(&tasks, &pool.cloud.api, &pool.hubs[follower].proxy).await?;
    let added = clients.delays(&pool.cloud.api).await?;
    let what = "event of 25 KB, a coordinator as the cloud, to a follower's client: added to a direct watch";
    tell(&added, what, notes);
    let _ = tasks.shutdown(SETTLE).await;
    fixture::end(pool).await
}

// === impl Clients ===

impl Clients {
    pub(super) async fn watch(tasks: &TaskGroup, cloud: &Api, there: &Api) -> Result<Self> {
        let clock = Stopwatch::start();
        Ok(Self {
            direct: Arrivals::watch(tasks, cloud.clone(), clock).await?,
            there: Arrivals::watch(tasks, there.clone(), clock).await?,
        })
    }

    /// Delays of the second watcher behind the first, one per change, sorted.
    pub(super) async fn delays(&self, cloud: &Api) -> Result<Vec<Duration>> {
        let mut added = Vec::new();
        for turn in 0..EVENTS {
            fixture::touch(cloud, turn).await?;
            let (here, far) = (
                self.direct.of(turn, PATIENCE).await?,
                self.there.of(turn, PATIENCE).await?,
            );
            added.push(far.saturating_sub(here));
            tokio::time::sleep(BETWEEN).await;
        }
        added.sort_unstable();
        Ok(added)
    }
}

pub(super) fn tell(added: &[Duration], what: &str, notes: &mut Notes<'_>) {
    for (share, word) in [(0.5, "p50"), (0.99, "p99")] {
        notes.add("18", &format!("{what}, {word}"), Unit::Millis, quantile(added, share));
    }
}

/// One hub and an empty coordinator; then the second hub.
async fn starts(pool: &mut TestPool, notes: &mut Notes<'_>) -> Result<()> {
    pool.coordinator.start().await?;
    let watch = Stopwatch::start();
    pool.hubs[0].start()?;
    asked(pool, "it leads", async |pool| pool.leader().await.map(drop)).await?;
    notes.add("19", "hub started, empty pool: it leads", Unit::Millis, millis(watch));
    let fed = async |pool: &TestPool| {
        let state = pool.coordinator.api.get("/yurt/v1/feed").await?;
        let collections = state["collections"].as_object();
        let missing = collections
            .into_iter()
            .flatten()
            .find(|(_, one)| one["complete"] != true);
        ensure!(missing.is_none(), "{missing:?} is not complete");
        Ok(())
    };
    asked(pool, "the pool has the data", fed).await?;
    let what = "hub started, empty pool: all pool data with 1,009 slices at the coordinator";
    notes.add("19", what, Unit::Millis, millis(watch));
    let watch = Stopwatch::start();
    pool.hubs[1].start()?;
    let complete = async |pool: &TestPool| {
        let state = pool.hubs[1].state().await?;
        ensure!(state.incomplete().is_empty(), "it lacks {:?}", state.incomplete());
        Ok(())
    };
    asked(pool, "the follower has the data", complete).await?;
    notes.add(
        "19",
        "second hub started: it has all pool data",
        Unit::Millis,
        millis(watch),
    );
    fixture::at_rest(pool).await?;
    // Once more, with what is on its disk.
    pool.hubs[1].process.stop(PATIENCE).await?;
    let watch = Stopwatch::start();
    pool.hubs[1].start()?;
    asked(pool, "the follower has the data", complete).await?;
    notes.add(
        "19",
        "the same hub started again, from its disk",
        Unit::Millis,
        millis(watch),
    );
    fixture::at_rest(pool).await
}

async fn asked(pool: &TestPool, what: &str, holds: impl AsyncFn(&TestPool) -> Result<()>) -> Result<()> {
    let watch = Stopwatch::start();
    while let Err(error) = holds(pool).await {
        ensure!(watch.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}: {error:#}");
        tokio::time::sleep(ASK_EVERY).await;
    }
    Ok(())
}

fn millis(watch: Stopwatch) -> f64 {
    watch.elapsed().as_secs_f64() * 1000.0
}

fn memory(pool: &mut TestPool, leader: usize, follower: usize, notes: &mut Notes<'_>) -> Result<()> {
    let mut add = |who: &str, process: &mut ManagedProcess| -> Result<()> {
        let usage = fixture::usage(process)?;
        notes.add(
            "17",
            &format!("RSS with 1,009 slices: {who}"),
            Unit::Mib,
            mib(usage.rss),
        );
        notes.add(
            "17",
            &format!("PSS with 1,009 slices: {who}"),
            Unit::Mib,
            mib(usage.pss),
        );
        Ok(())
    };
    add("leader's hub", &mut pool.hubs[leader].process)?;
    add("follower's hub", &mut pool.hubs[follower].process)?;
    add("pool's server", &mut pool.coordinator.process)
}

async fn events(pool: &mut TestPool, leader: usize, follower: usize, notes: &mut Notes<'_>) -> Result<()> {
    let tasks = pool.setup.tasks.child();
    let clients = Clients::watch(&tasks, &pool.cloud.api, &pool.hubs[follower].proxy).await?;
    let cpu = |pool: &mut TestPool| -> Result<[f64; 3]> {
        let of = |process: &mut ManagedProcess| Ok::<_, anyhow::Error>(fixture::usage(process)?.cpu.as_secs_f64());
        Ok([
            of(&mut pool.hubs[leader].process)?,
            of(&mut pool.hubs[follower].process)?,
            of(&mut pool.coordinator.process)?,
        ])
    };
    let before = cpu(pool)?;
    let added = clients.delays(&pool.cloud.api).await?;
    let after = cpu(pool)?;
    tell(&added, EVENT, notes);
    for (at, who) in ["leader's hub", "follower's hub", "pool's server"]
        .into_iter()
        .enumerate()
    {
        let each = (after[at] - before[at]) * 1e6 / EVENTS as f64;
        notes.add("18", &format!("CPU per event: {who}"), Unit::Micros, each);
    }
    let _ = tasks.shutdown(SETTLE).await;
    let lists = fixture::lists_to_go_on(&pool.cloud.api, &pool.coordinator.api, EVENTS).await?;
    notes.add("15", fixture::GO_ON, Unit::Count, lists);
    Ok(())
}
