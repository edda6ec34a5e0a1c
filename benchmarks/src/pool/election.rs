//! A leader that goes: killed (row 15), stopped (row 16), and the heartbeats of a cut-off node during that (row 22).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use yurt_runtime::TaskGroup;
use yurt_testbed::api::Api;
use yurt_testbed::cloud::Choice;
use yurt_testbed::hub::Election;
use yurt_testbed::link::Mode;
use yurt_testbed::pool::TestPool;
use yurt_testbed::wait_for::wait_for;
use yurt_workspace::Stopwatch;

use super::fixture::{self, Holders, PATIENCE};
use crate::load::quantile;
use crate::system_under_test::Environment;
use crate::table::{Notes, Unit};

/// Upstream's defaults.
const USUAL: Election = Election {
    lease: Duration::from_secs(15),
    renew: Duration::from_secs(10),
    retry: Duration::from_secs(2),
};
/// Whole seconds are the smallest a lease can say.
const SHORT: Election = Election {
    lease: Duration::from_secs(2),
    renew: Duration::from_millis(1400),
    retry: Duration::from_millis(200),
};
/// A leader is killed so often.
const KILLS: (usize, usize) = (2, 10);
/// Least number of times that have a median; of fewer, the table has only the worst.
const MEDIAN_OF_MIN: usize = 5;
/// A leader is stopped so often.
const STOPS: usize = 6;
/// Pause between two reads of a client that only asks whether it is served.
const READ_EVERY: Duration = Duration::from_millis(25);
/// Interval at which the cut-off node's lease is read from the cloud.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Times of one leader's end, sorted before use.
#[derive(Default)]
struct Times {
    taken: Vec<Duration>,
    in_use: Vec<Duration>,
    unserved: Vec<Duration>,
}

/// Reads the pool's Services through a hub all the time.
struct Reader(Arc<AtomicU64>);

pub(super) async fn measure(environment: &Environment, notes: &mut Notes<'_>) -> Result<()> {
    killed(environment, notes, "15/10/2 s", USUAL, KILLS.0).await?;
    killed(environment, notes, "2/1.4/0.2 s", SHORT, KILLS.1).await?;
    stopped(environment, notes).await?;
    cut_off(environment, notes, "15/10/2 s", USUAL, true).await?;
    cut_off(environment, notes, "15/10/2 s", USUAL, false).await
}

async fn ready(environment: &Environment, election: Election) -> Result<TestPool> {
    let mut pool = prepared(environment, election).await?;
    at_work(&mut pool).await?;
    Ok(pool)
}

async fn prepared(environment: &Environment, election: Election) -> Result<TestPool> {
    fixture::prepare(environment, &Choice::Demo, 3, election, 0).await
}

async fn at_work(pool: &mut TestPool) -> Result<()> {
    fixture::start(pool).await?;
    for at in 0..pool.hubs.len() {
        let setup = &pool.setup;
        pool.hubs[at].start_clients(setup);
    }
    pool.clients_catch_up(&[0, 1, 2], PATIENCE).await
}

async fn killed(
    environment: &Environment,
    notes: &mut Notes<'_>,
    timing: &str,
    election: Election,
    kills: usize,
) -> Result<()> {
    let mut pool = ready(environment, election).await?;
    let holders = Holders::watch(&pool).await?;
    let (mut times, mut relists, mut deleted) = (Times::default(), 0, 0);
    for _ in 0..kills {
        let leader = pool.leader().await?;
        let others: Vec<usize> = (0..3).filter(|index| *index != leader).collect();
        let before = pool.disruptions(&others);
        let reading = pool.setup.tasks.child();
        let readers: Vec<Reader> = others
            .iter()
            .map(|index| Reader::start(&reading, pool.hubs[*index].proxy.clone()))
            .collect();
        let (from, watch) = (holders.now(), Stopwatch::start());
        pool.hubs[leader].process.kill().await?;
        let gone = pool.hubs[leader].node;
        pool.change_arrives(&others, PATIENCE).await?;
        times.in_use.push(watch.elapsed());
        let taken = holders
            .first(from, PATIENCE, |holder| {
                !holder.is_empty() && !holder.starts_with(&format!("{gone}_"))
            })
            .await?;
        times.taken.push(taken.saturating_sub(from));
        times.unserved.extend(readers.iter().map(Reader::longest));
        let _ = reading.shutdown(Duration::from_secs(1)).await;
        let after = pool.disruptions(&others);
        relists += after.lists - before.lists;
        deleted += after.deleted - before.deleted;
        pool.hubs[leader].start()?;
        fixture::at_rest(&pool).await?;
        pool.clients_catch_up(&[0, 1, 2], PATIENCE).await?;
    }
    pool.no_client_complains().await?;
    times.tell(timing, notes);
    notes.add(
        "15",
        &format!("leader killed, {timing}: relists there"),
        Unit::Count,
        f64::from(relists),
    );
    notes.add(
        "15",
        &format!("leader killed, {timing}: DELETED there"),
        Unit::Count,
        deleted as f64,
    );
    fixture::end(pool).await
}

async fn stopped(environment: &Environment, notes: &mut Notes<'_>) -> Result<()> {
    let mut pool = ready(environment, USUAL).await?;
    let holders = Holders::watch(&pool).await?;
    let (mut after_signal, mut after_release) = (Vec::new(), Vec::new());
    for _ in 0..STOPS {
        let leader = pool.leader().await?;
        let gone = format!("{}_", pool.hubs[leader].node);
        let from = holders.now();
        pool.hubs[leader].process.stop(PATIENCE).await?;
        let released = holders.first(from, PATIENCE, str::is_empty).await?;
        let is_next = |holder: &str| !holder.is_empty() && !holder.starts_with(&gone);
        let taken = holders.first(from, PATIENCE, is_next).await?;
        after_signal.push(taken.saturating_sub(from));
        after_release.push(taken.saturating_sub(released));
        pool.hubs[leader].start()?;
        fixture::at_rest(&pool).await?;
    }
    for (what, times) in [("SIGTERM", &mut after_signal), ("the release", &mut after_release)] {
        times.sort_unstable();
        let what = format!("leader stopped: next leader after {what}, worst of {STOPS}");
        notes.add("16", &what, Unit::Millis, quantile(times, 1.0));
    }
    fixture::end(pool).await
}

/// The largest step between two renewals the cloud sees of a cut-off node, while nothing else happens and when its
/// leader is killed; by a peer's relay, or by the leader alone.
async fn cut_off(
    environment: &Environment,
    notes: &mut Notes<'_>,
    timing: &str,
    election: Election,
    relay: bool,
) -> Result<()> {
    let mut pool = prepared(environment, election).await?;
    for hub in &mut pool.hubs {
        hub.process.add_flag("enable-relay", relay);
    }
    at_work(&mut pool).await?;
    let leader = pool.leader().await?;
    let cut = pool.follower(leader)?;
    // A hub offers its relay with its own node's beats.
    for hub in &mut pool.hubs {
        hub.start_kubelet(&pool.setup)?;
    }
    let node = pool.hubs[cut].node;
    wait_for(PATIENCE, "the first heartbeat", async || pool.node_lease(node).await).await?;
    pool.hubs[cut].link.set(Mode::Cut);
    let quiet = longest_step(&pool, node, Duration::from_secs(20)).await?;
    let by = if relay { "with the relay" } else { "without a relay" };
    let what = format!("cut-off node, beats every 2 s, {by}: longest step between renewals in the cloud");
    notes.add("22", &what, Unit::Millis, quiet);
    pool.hubs[leader].process.kill().await?;
    let limit = election.lease + Duration::from_secs(12);
    let crash = longest_step(&pool, node, limit).await?;
    let what = format!("the same while its leader is killed, {timing}, {by}");
    notes.add("22", &what, Unit::Millis, crash);
    fixture::end(pool).await
}

async fn longest_step(pool: &TestPool, node: &str, lasts: Duration) -> Result<f64> {
    let watch = Stopwatch::start();
    let (mut longest, mut seen, mut at) = (Duration::ZERO, serde_json::Value::Null, watch.elapsed());
    while watch.elapsed() < lasts {
        let lease = pool.node_lease(node).await?;
        let renewed = lease["spec"]["renewTime"].clone();
        if renewed != seen {
            if !seen.is_null() {
                longest = longest.max(watch.elapsed().saturating_sub(at));
            }
            (seen, at) = (renewed, watch.elapsed());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    longest = longest.max(watch.elapsed().saturating_sub(at));
    Ok(longest.as_secs_f64() * 1000.0)
}

// === impl Times ===

impl Times {
    fn tell(mut self, timing: &str, notes: &mut Notes<'_>) {
        let mut add = |what: &str, times: &mut Vec<Duration>, share: f64, word: &str| {
            times.sort_unstable();
            if share < 1.0 && times.len() < MEDIAN_OF_MIN {
                return;
            }
            let what = format!("leader killed, {timing}: {what}, {word} of {}", times.len());
            notes.add("15", &what, Unit::Millis, quantile(times, share));
        };
        add("lease taken", &mut self.taken, 0.5, "p50");
        add("lease taken", &mut self.taken, 1.0, "worst");
        add(
            "a change in the cloud reaches the other nodes",
            &mut self.in_use,
            0.5,
            "p50",
        );
        add(
            "a change in the cloud reaches the other nodes",
            &mut self.in_use,
            1.0,
            "worst",
        );
        add(
            "longest pause between two reads there",
            &mut self.unserved,
            1.0,
            "worst",
        );
    }
}

// === impl Reader ===

impl Reader {
    fn start(tasks: &TaskGroup, hub: Api) -> Self {
        let longest = Arc::new(AtomicU64::new(0));
        let (told, token) = (Arc::clone(&longest), tasks.token());
        let reading = async move {
            let clock = Stopwatch::start();
            let mut last = clock.elapsed();
            loop {
                if hub.list("/api/v1/services?resourceVersion=0").await.is_ok() {
                    let now = clock.elapsed();
                    let pause = u64::try_from((now - last).as_millis()).unwrap_or(u64::MAX);
                    told.fetch_max(pause, Ordering::Relaxed);
                    last = now;
                }
                tokio::time::sleep(READ_EVERY).await;
            }
        };
        tasks.spawn("reader", async move {
            token.run_until_cancelled(reading).await;
        });
        Self(longest)
    }

    fn longest(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }
}
