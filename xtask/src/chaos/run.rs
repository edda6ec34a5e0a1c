//! One run: the pool comes up, faults strike while the cloud changes, everything is mended, everybody is asked.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::sync::watch;
use yurt_chaos_validate::history::{self, History, Seen, Truth, Verdict};

use super::agenda::Agenda;
use super::faults::{self, Fault};
use super::history::seen;
use super::traffic::{self, Written};
use crate::lab::Setup;
use crate::lab::api::Api;
use crate::lab::client::{Client, WATCH_SECONDS};
use crate::lab::cloud::Choice;
use crate::lab::hub::COLLECTIONS;
use crate::lab::stage::Stage;
use crate::lab::until::until;
use crate::stopwatch::Stopwatch;

/// What to do.
pub(super) struct Plan {
    pub(super) seed: u64,
    /// How long faults strike.
    pub(super) lasts: Duration,
    pub(super) kinds: Vec<Fault>,
    pub(super) cloud: Choice,
}

/// What came of it.
pub(super) struct Outcome {
    pub(super) struck: BTreeMap<Fault, u32>,
    pub(super) written: Written,
    pub(super) clients: usize,
    /// Of all clients together.
    pub(super) verdict: Verdict,
    /// Lists of clients after their first one.
    pub(super) relists: u32,
    /// Watches that clients opened.
    pub(super) streams: u32,
    /// From the end of the faults until all clients had everything.
    pub(super) rest: Duration,
}

/// A client and all it was told.
struct Recorded {
    /// `shore-1 services`
    name: String,
    client: Client,
    history: Arc<Mutex<History>>,
    /// How often it listed, as far as it was told.
    lists: u32,
    /// How often it may list.
    lists_max: u32,
}

/// The pool is up within this time, and at rest again after the faults.
const PATIENCE: Duration = Duration::from_secs(90);
/// How often the agenda is looked at.
const TICK: Duration = Duration::from_millis(20);
/// A hub that is asked whether it leads may be paused.
const ASK_LIMIT: Duration = Duration::from_millis(300);
/// Lengths of watches, in seconds: one client stays, one resumes all the time. At the end of a watch is a bookmark.
const WATCHES: [u32; 2] = [WATCH_SECONDS, 3];
/// Clients are told bookmarks at least this often.
const BOOKMARKS: Duration = Duration::from_secs(65);

/// Runs it.
///
/// # Errors
/// A pool that does not come up, or does not come to rest; violations are in the outcome.
pub(super) async fn run(setup: Setup, plan: &Plan) -> Result<Outcome> {
    let mut stage = Stage::new(setup, &plan.cloud)
        .await
        .context("the cloud did not start")?;
    begin(&mut stage).await?;
    let witnesses = COLLECTIONS.map(|collection| record(&stage, "cloud", &stage.cloud.api, collection, WATCH_SECONDS));
    for witness in &witnesses {
        witness.client.sees(|view| view.watching).await?;
    }
    let mut clients = Vec::new();
    for hub in &stage.hubs {
        for seconds in WATCHES {
            clients.extend(COLLECTIONS.map(|collection| record(&stage, hub.node, &hub.proxy, collection, seconds)));
        }
    }
    at_rest(&stage, &clients).await?;
    println!(
        "the pool is up; faults strike for {} s, seed {}",
        plan.lasts.as_secs(),
        plan.seed
    );

    let (told, written) = watch::channel(Written::default());
    let (cloud, seed, token) = (
        stage.cloud.api.clone(),
        plan.seed,
        stage.setup.tasks.token().child_token(),
    );
    let writing = token.clone();
    stage.setup.tasks.spawn("traffic", async move {
        let write = traffic::write(cloud, seed, move |total| {
            told.send_replace(total);
        });
        let _ = writing.run_until_cancelled(write).await;
    });
    let agenda = strike(&mut stage, plan, &mut clients).await?;
    let watch = Stopwatch::start();
    // Some more changes, with everything mended, then silence.
    let enough = written.borrow().total() + 20;
    let mut more = written.clone();
    let going = tokio::time::timeout(PATIENCE, more.wait_for(|written| written.total() > enough)).await;
    going.context("the cloud takes no writes after the faults")??;
    token.cancel();
    all_run(&mut stage)?;
    at_rest(&stage, &clients)
        .await
        .context("the pool does not come to rest")?;
    let rest = watch.elapsed();
    all_run(&mut stage)?;
    last_bookmarks(&clients).await?;
    for recorded in witnesses.iter().chain(&clients) {
        recorded.save(&stage.setup.dir)?;
    }
    let written = *written.borrow();
    Ok(judge(&agenda, written, &witnesses, &clients, rest))
}

async fn begin(stage: &mut Stage) -> Result<()> {
    stage.coordinator.start().await?;
    for hub in &mut stage.hubs {
        hub.start()?;
    }
    for hub in &mut stage.hubs {
        hub.healthy().await?;
    }
    until(PATIENCE, "one hub leads", async || stage.leader().await).await?;
    Ok(())
}

/// Starts a client that keeps everything it is told.
fn record(stage: &Stage, who: &str, api: &Api, collection: &'static str, seconds: u32) -> Recorded {
    let history = Arc::new(Mutex::new(History::new()));
    let kept = Arc::clone(&history);
    let client = Client::recording(&stage.setup.tasks, api.clone(), collection, seconds, move |told| {
        kept.lock().unwrap_or_else(PoisonError::into_inner).push(seen(&told));
    });
    let kind = collection.rsplit('/').next().unwrap_or_default();
    Recorded {
        name: format!("{who}, watches of {seconds} s, {kind}"),
        client,
        history,
        lists: 1,
        lists_max: 1,
    }
}

/// Lets faults strike, then mends everything.
async fn strike(stage: &mut Stage, plan: &Plan, clients: &mut [Recorded]) -> Result<Agenda> {
    let mut agenda = Agenda::new(plan.seed, &plan.kinds);
    let watch = Stopwatch::start();
    while watch.elapsed() < plan.lasts {
        let now = watch.elapsed();
        while let Some((target, act)) = agenda.due(now) {
            faults::perform(stage, target, act).await?;
        }
        if agenda.strikes(now) {
            let leader = leader(stage).await;
            if let Some(fault) = agenda.strike(now, stage.hubs.len(), leader) {
                println!("{:>7.1} s  {fault}", now.as_secs_f64());
                if fault.may_relist() {
                    // Which hub lost its disk decides whose clients may list.
                    clients.iter_mut().for_each(|client| client.lists_max += 1);
                }
            }
        }
        for client in clients.iter_mut() {
            let lists = client.client.suffered().lists;
            if lists > client.lists {
                println!("{:>7.1} s  ({} lists again)", now.as_secs_f64(), client.name);
                client.lists = lists;
            }
        }
        tokio::time::sleep(TICK).await;
    }
    for (target, act) in agenda.rest() {
        faults::perform(stage, target, act).await?;
    }
    Ok(agenda)
}

/// The hub that says it leads; the first if there are several.
async fn leader(stage: &Stage) -> Option<usize> {
    for (index, hub) in stage.hubs.iter().enumerate().filter(|(_, hub)| hub.seat.runs()) {
        if let Ok(Ok(state)) = tokio::time::timeout(ASK_LIMIT, hub.state()).await
            && state.leads()
        {
            return Some(index);
        }
    }
    None
}

/// Waits until all clients hold what the cloud has, and watch.
async fn at_rest(stage: &Stage, clients: &[Recorded]) -> Result<()> {
    let same = async || {
        let cloud = stage.cloud_listings().await?;
        for client in clients {
            let view = client.client.view();
            let collection = COLLECTIONS.iter().position(|path| path.ends_with(client.kind()));
            let listing = &cloud[collection.context("a client must have a collection")?];
            ensure!(
                view.objects == listing.objects,
                "{} holds {} objects at {}, the cloud has {} at {}",
                client.name,
                view.objects.len(),
                view.position,
                listing.objects.len(),
                listing.resource_version
            );
            ensure!(view.watching, "{} does not watch", client.name);
        }
        Ok(())
    };
    until(PATIENCE, "all clients hold what the cloud has", same)
        .await
        .map(drop)
}

/// No program ended by itself.
fn all_run(stage: &mut Stage) -> Result<()> {
    stage.coordinator.seat.program()?.must_run()?;
    stage.cloud.seat.program()?.must_run()?;
    for hub in &mut stage.hubs {
        hub.seat.program()?.must_run()?;
    }
    Ok(())
}

/// Waits for a bookmark behind the last change: there whole states are compared.
async fn last_bookmarks(clients: &[Recorded]) -> Result<()> {
    println!("at rest; waiting for the last bookmarks");
    for client in clients {
        let got = async || {
            let history = client.history.lock().unwrap_or_else(PoisonError::into_inner);
            ensure!(matches!(history.last(), Some(Seen::Bookmark(_))), "no bookmark yet");
            Ok(())
        };
        until(BOOKMARKS, &format!("{} is told a bookmark", client.name), got).await?;
    }
    Ok(())
}

fn judge(agenda: &Agenda, written: Written, witnesses: &[Recorded], clients: &[Recorded], rest: Duration) -> Outcome {
    let mut verdict = Verdict::default();
    for client in clients {
        let Some(witness) = witnesses.iter().find(|witness| witness.kind() == client.kind()) else {
            continue;
        };
        let truth = Truth::of(&witness.seen());
        let found = history::check(&client.seen(), &truth, client.lists_max);
        verdict.checked += found.checked;
        verdict.bookmarks += found.bookmarks;
        let named = found
            .violations
            .into_iter()
            .map(|violation| format!("{}: {violation}", client.name));
        verdict.violations.extend(named);
    }
    let suffered = clients.iter().map(|client| client.client.suffered());
    let (lists, streams) = suffered.fold((0, 0), |(lists, streams), one| {
        (lists + one.lists, streams + one.streams)
    });
    Outcome {
        struck: agenda.struck().clone(),
        written,
        clients: clients.len(),
        verdict,
        relists: lists.saturating_sub(u32::try_from(clients.len()).unwrap_or(u32::MAX)),
        streams,
        rest,
    }
}

// === impl Recorded ===

impl Recorded {
    fn kind(&self) -> &str {
        self.name.rsplit(' ').next().unwrap_or_default()
    }

    /// Writes the history beside the logs, a line for each thing told.
    fn save(&self, dir: &Path) -> Result<()> {
        let lines: Vec<String> = self.seen().iter().map(|seen| format!("{seen:?}")).collect();
        let path = dir.join(format!("{}.history", self.name.replace([' ', ','], "-")));
        std::fs::write(&path, lines.join("\n")).with_context(|| format!("cannot write {}", path.display()))
    }

    fn seen(&self) -> History {
        self.history.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
