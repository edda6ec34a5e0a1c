//! Costs of a pool with 1,009 slices of 100 endpoints: memory (row 17), one event (row 18), starts (row 19).

use std::time::Duration;

use anyhow::{Result, ensure};
use yurt_runtime::TaskGroup;
use yurt_testbed::api::Api;
use yurt_testbed::cloud::Choice;
use yurt_testbed::hub::Election;
use yurt_testbed::program::Seat;
use yurt_testbed::stage::Stage;
use yurt_workspace::Stopwatch;

use super::field::{self, Arrivals, PATIENCE, SLICES};
use crate::load::quantile;
use crate::memory::mib;
use crate::subject::Lab;
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

pub(super) async fn measure(lab: &Lab, real: bool, notes: &mut Notes<'_>) -> Result<()> {
    let cloud = if real { Choice::Real } else { Choice::Demo };
    let mut stage = field::prepare(lab, &cloud, 2, Election::SHORT, SLICES).await?;
    starts(&mut stage, notes).await?;
    let leader = stage.leader().await?;
    let follower = stage.follower(leader)?;
    tokio::time::sleep(SETTLE).await;
    memory(&mut stage, leader, follower, notes)?;
    events(&mut stage, leader, follower, notes).await?;
    field::end(stage).await?;
    match real {
        true => undisturbed(lab, notes).await,
        false => Ok(()),
    }
}

/// Events once more, from a cloud that leaves the cores to the pool: kube-apiserver works on after each write.
async fn undisturbed(lab: &Lab, notes: &mut Notes<'_>) -> Result<()> {
    let mut stage = field::prepare(lab, &Choice::Demo, 2, Election::SHORT, SLICES).await?;
    field::start(&mut stage).await?;
    field::at_rest(&stage).await?;
    let leader = stage.leader().await?;
    let follower = stage.follower(leader)?;
    tokio::time::sleep(SETTLE).await;
    let tasks = stage.setup.tasks.child();
    let clients = Clients::watch(&tasks, &stage.cloud.api, &stage.hubs[follower].proxy).await?;
    let added = clients.delays(&stage.cloud.api).await?;
    let what = "event of 25 KB, a coordinator as the cloud, to a follower's client: added to a direct watch";
    tell(&added, what, notes);
    let _ = tasks.shutdown(SETTLE).await;
    field::end(stage).await
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
            field::touch(cloud, turn).await?;
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
async fn starts(stage: &mut Stage, notes: &mut Notes<'_>) -> Result<()> {
    stage.coordinator.start().await?;
    let watch = Stopwatch::start();
    stage.hubs[0].start()?;
    asked(stage, "it leads", async |stage| stage.leader().await.map(drop)).await?;
    notes.add("19", "hub started, empty pool: it leads", Unit::Millis, millis(watch));
    let fed = async |stage: &Stage| {
        let state = stage.coordinator.api.get("/yurt/v1/feed").await?;
        let collections = state["collections"].as_object();
        let missing = collections
            .into_iter()
            .flatten()
            .find(|(_, one)| one["complete"] != true);
        ensure!(missing.is_none(), "{missing:?} is not complete");
        Ok(())
    };
    asked(stage, "the pool has the data", fed).await?;
    let what = "hub started, empty pool: all pool data with 1,009 slices at the coordinator";
    notes.add("19", what, Unit::Millis, millis(watch));
    let watch = Stopwatch::start();
    stage.hubs[1].start()?;
    let complete = async |stage: &Stage| {
        let state = stage.hubs[1].state().await?;
        ensure!(state.incomplete().is_empty(), "it lacks {:?}", state.incomplete());
        Ok(())
    };
    asked(stage, "the follower has the data", complete).await?;
    notes.add(
        "19",
        "second hub started: it has all pool data",
        Unit::Millis,
        millis(watch),
    );
    field::at_rest(stage).await?;
    // Once more, with what is on its disk.
    stage.hubs[1].seat.stop(PATIENCE).await?;
    let watch = Stopwatch::start();
    stage.hubs[1].start()?;
    asked(stage, "the follower has the data", complete).await?;
    notes.add(
        "19",
        "the same hub started again, from its disk",
        Unit::Millis,
        millis(watch),
    );
    field::at_rest(stage).await
}

async fn asked(stage: &Stage, what: &str, holds: impl AsyncFn(&Stage) -> Result<()>) -> Result<()> {
    let watch = Stopwatch::start();
    while let Err(error) = holds(stage).await {
        ensure!(watch.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}: {error:#}");
        tokio::time::sleep(ASK_EVERY).await;
    }
    Ok(())
}

fn millis(watch: Stopwatch) -> f64 {
    watch.elapsed().as_secs_f64() * 1000.0
}

fn memory(stage: &mut Stage, leader: usize, follower: usize, notes: &mut Notes<'_>) -> Result<()> {
    let mut add = |who: &str, seat: &mut Seat| -> Result<()> {
        let usage = field::usage(seat)?;
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
    add("leader's hub", &mut stage.hubs[leader].seat)?;
    add("follower's hub", &mut stage.hubs[follower].seat)?;
    add("pool's server", &mut stage.coordinator.seat)
}

async fn events(stage: &mut Stage, leader: usize, follower: usize, notes: &mut Notes<'_>) -> Result<()> {
    let tasks = stage.setup.tasks.child();
    let clients = Clients::watch(&tasks, &stage.cloud.api, &stage.hubs[follower].proxy).await?;
    let cpu = |stage: &mut Stage| -> Result<[f64; 3]> {
        let of = |seat: &mut Seat| Ok::<_, anyhow::Error>(field::usage(seat)?.cpu.as_secs_f64());
        Ok([
            of(&mut stage.hubs[leader].seat)?,
            of(&mut stage.hubs[follower].seat)?,
            of(&mut stage.coordinator.seat)?,
        ])
    };
    let before = cpu(stage)?;
    let added = clients.delays(&stage.cloud.api).await?;
    let after = cpu(stage)?;
    tell(&added, EVENT, notes);
    for (at, who) in ["leader's hub", "follower's hub", "pool's server"]
        .into_iter()
        .enumerate()
    {
        let each = (after[at] - before[at]) * 1e6 / EVENTS as f64;
        notes.add("18", &format!("CPU per event: {who}"), Unit::Micros, each);
    }
    let _ = tasks.shutdown(SETTLE).await;
    let lists = field::lists_to_go_on(&stage.cloud.api, &stage.coordinator.api, EVENTS).await?;
    notes.add("15", field::GO_ON, Unit::Count, lists);
    Ok(())
}
