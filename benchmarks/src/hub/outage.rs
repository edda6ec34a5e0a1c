//! The cloud is killed, or swallows packets (row 29), and comes back (row 30).

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http::Method;
use tokio::sync::watch;
use yurt_runtime::TaskGroup;
use yurt_testbed::api::Api;
use yurt_testbed::client::{Client, Received, WATCH_SECONDS};
use yurt_testbed::link::Mode;
use yurt_workspace::Stopwatch;

use super::access::{self, Running};
use super::world::{ALL_SERVICES, KUBE_PROXY, TURN, UNCOPIED, World};
use crate::load::{Ask, Session};
use crate::table::{Notes, Unit};

/// Length of an outage whose end the benchmark chooses.
const OUTAGE: Duration = Duration::from_secs(25);
/// Everything is as before within this time after an outage.
const PATIENCE: Duration = Duration::from_secs(120);
/// Interval between two requests, and between two changes after an outage.
const EVERY: Duration = Duration::from_millis(100);
/// A new request without an answer for so long is not served.
const PROMPT: Duration = Duration::from_secs(1);
/// Time between opened watch and outage, and between two outages.
const SETTLE: Duration = Duration::from_secs(5);
/// Requests under way when the link falls silent.
const IN_FLIGHT: usize = 5;
/// Time from the silence to those requests: they are sent before anything has noticed.
const UNNOTICED: Duration = Duration::from_millis(50);
/// A list that lacks more is not full.
const FULL: f64 = 0.98;

/// kube-proxy as an informer of Services.
struct Informer {
    client: Client,
    /// The latest change that it received.
    turn: Arc<watch::Sender<usize>>,
}

pub(super) async fn measure(running: &Running, world: &mut World, notes: &mut Notes<'_>) -> Result<()> {
    let tasks = world.setup.tasks.child();
    let measured = outages(running, world, &tasks, notes).await;
    running.link.set(Mode::Pass);
    let _ = tasks.shutdown(SETTLE).await;
    measured
}

async fn outages(running: &Running, world: &mut World, tasks: &TaskGroup, notes: &mut Notes<'_>) -> Result<()> {
    let informer = Informer::start(running, world, tasks).await?;
    let full = access::list(&world.pod(running.port, KUBE_PROXY)?, ALL_SERVICES).await?;
    let full = (full as f64 * FULL) as u64;
    tokio::time::sleep(SETTLE).await;

    let lists = informer.client.view().lists;
    running.link.set(Mode::Cut);
    let unserved = unserved(running, world, full).await?;
    let what = "cloud killed: longest time without a full LIST of Services";
    notes.add("29", what, Unit::Millis, millis(unserved));
    back(running, world, &informer, lists, "cloud back after a kill", notes).await?;
    tokio::time::sleep(SETTLE).await;

    let lists = informer.client.view().lists;
    running.link.set(Mode::Blackhole);
    tokio::time::sleep(UNNOTICED).await;
    let watch = Stopwatch::start();
    let (freed, answered) = tokio::join!(in_flight(running, world, watch), answered(running, world, watch));
    let what = "link swallows packets: the last of 5 GETs under way is answered";
    notes.add("29", what, Unit::Millis, millis(freed?));
    let what = "link swallows packets: new GETs of uncopied data are answered within 1 s";
    notes.add("29", what, Unit::Millis, millis(answered?));
    back(running, world, &informer, lists, "cloud back after silence", notes).await
}

/// The longest time between two full lists during an outage.
async fn unserved(running: &Running, world: &World, full: u64) -> Result<Duration> {
    let watch = Stopwatch::start();
    let (mut last, mut longest) = (Duration::ZERO, Duration::ZERO);
    while watch.elapsed() < OUTAGE {
        let session = world.pod(running.port, KUBE_PROXY)?;
        let listed = tokio::time::timeout(PROMPT, access::list(&session, ALL_SERVICES)).await;
        let now = watch.elapsed();
        longest = longest.max(now - last);
        if matches!(listed, Ok(Ok(bytes)) if bytes >= full) {
            last = now;
        }
        tokio::time::sleep(EVERY).await;
    }
    // Between two answers there is always the pause, too.
    Ok(longest.saturating_sub(EVERY))
}

/// Time until the last of the requests under way has any answer.
async fn in_flight(running: &Running, world: &World, watch: Stopwatch) -> Result<Duration> {
    let sessions: Vec<Session> = (0..IN_FLIGHT)
        .map(|_| world.pod(running.port, "pod-00/v1"))
        .collect::<Result<_>>()?;
    let all = futures_util::future::join_all(sessions.iter().map(get));
    tokio::time::timeout(PATIENCE, all).await.context("never answered")?;
    Ok(watch.elapsed())
}

/// Time until a request that is sent then has any answer within [`PROMPT`].
async fn answered(running: &Running, world: &World, watch: Stopwatch) -> Result<Duration> {
    while watch.elapsed() < PATIENCE {
        let session = world.pod(running.port, "pod-01/v1")?;
        let sent = watch.elapsed();
        if tokio::time::timeout(PROMPT, get(&session)).await.is_ok() {
            return Ok(sent);
        }
    }
    anyhow::bail!("never answered within {PROMPT:?}")
}

/// Any answer, a refusal too.
async fn get(session: &Session) {
    let _ = session.send(Ask::new(Method::GET, UNCOPIED, Vec::new())).await;
}

/// Ends the outage; measures when a change made afterwards arrives, and the lists that the informer needed.
async fn back(
    running: &Running,
    world: &mut World,
    informer: &Informer,
    lists: u32,
    what: &str,
    notes: &mut Notes<'_>,
) -> Result<()> {
    running.link.set(Mode::Pass);
    let watch = Stopwatch::start();
    let first = world.touch_service().await?;
    while *informer.turn.borrow() < first {
        ensure!(watch.elapsed() < PATIENCE, "{what}: changes do not arrive");
        tokio::time::sleep(EVERY).await;
        world.touch_service().await?;
    }
    let live = watch.elapsed();
    notes.add("30", &format!("{what}: changes arrive"), Unit::Millis, millis(live));
    let relists = informer.client.view().lists.saturating_sub(lists);
    notes.add("30", &format!("{what}: relists"), Unit::Count, f64::from(relists));
    Ok(())
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

// === impl Informer ===

impl Informer {
    /// Starts it; returns when its watch is open.
    async fn start(running: &Running, world: &World, tasks: &TaskGroup) -> Result<Self> {
        let ca = world.setup.identities.ca_pem();
        let api = Api::bearer(running.port, ca, &world.token, KUBE_PROXY)?;
        let turn = Arc::new(watch::Sender::new(0));
        let told = Arc::clone(&turn);
        let record = move |what: Received<'_>| {
            let Received::Event(event) = what else { return };
            let text = event["object"]["metadata"]["annotations"][TURN].as_str();
            if let Some(turn) = text.and_then(|text| text.parse().ok()) {
                told.send_replace(turn);
            }
        };
        let client = Client::recording(tasks, api, ALL_SERVICES, WATCH_SECONDS, record);
        tokio::time::timeout(PATIENCE, client.sees(|view| view.watching))
            .await
            .context("no watch of Services")??;
        Ok(Self { client, turn })
    }
}
