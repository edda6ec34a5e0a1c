//! One run: the pool starts, faults occur while the cloud changes, all faults are repaired, and all clients are
//! checked.

mod leaders;
mod outcome;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::sync::watch;
use yurt_testbed::Setup;
use yurt_testbed::cloud::Choice;
use yurt_testbed::hub::Election;
use yurt_testbed::pool::TestPool;
use yurt_testbed::program;
use yurt_testbed::wait_for::wait_for;
use yurt_workspace::Stopwatch;

use super::clients::{self, Recorded};
use super::environment::{Environment, Store};
use super::faults::{Act, Fault, FaultTarget};
use super::heartbeats::{self, Heartbeats};
use super::hostile::{self, Actors};
use super::local_writes::LocalWrites;
use super::memory::Peaks;
use super::rollback;
use super::schedule::Schedule;
use super::traffic::{Traffic, Written};
use leaders::Leaders;
pub(super) use outcome::RunOutcome;

/// Parameters of a run.
pub(super) struct Plan {
    pub(super) seed: u64,
    /// Duration of the faults.
    pub(super) lasts: Duration,
    pub(super) kinds: Vec<Fault>,
    pub(super) cloud: Choice,
    pub(super) store: Store,
}

/// State that is observed while faults occur.
struct Watched<'a> {
    leaders: &'a mut Leaders,
    peaks: &'a mut Peaks,
}

/// Time until the pool is up, and until it is at rest after the faults.
const PATIENCE: Duration = Duration::from_secs(90);
/// Interval between checks of the schedule.
const TICK: Duration = Duration::from_millis(20);
/// Time a program has to report its state.
const SAVE_LIMIT: Duration = Duration::from_secs(3);
/// Duration of an actor's attack without other faults.
const ALONE: Duration = Duration::from_secs(4);
/// Time for the requests that show a leader, on a busy machine.
const ASKING: Duration = Duration::from_secs(2);
/// Changes after the last fault.
const MORE_CHANGES: u64 = 60;
/// Path at which the coordinator reports the positions of the feed.
const FEED: &str = "/yurt/v1/feed";

/// Executes the run.
///
/// # Errors
/// A pool that does not come up; later failures are in the outcome.
pub(super) async fn run(setup: Setup, plan: &Plan) -> Result<RunOutcome> {
    let (mut environment, heartbeats) = start(setup, plan).await?;
    let reference_clients = clients::reference_clients(&environment, "cloud", environment.collections()).await?;
    let mut clients = clients::behind_hubs(&environment);
    at_rest(&environment, &clients, environment.collections()).await?;
    let lasts = plan.lasts.as_secs();
    println!("the pool is up; faults strike for {lasts} s, seed {}", plan.seed);
    let kinds = possible(&environment, plan);
    let mut schedule = Schedule::new(plan.seed, &kinds);
    let mut written = watch::Sender::new(Written::default()).subscribe();
    let (mut leaders, mut peaks) = (Leaders::default(), Peaks::default());
    let mut watched = Watched {
        leaders: &mut leaders,
        peaks: &mut peaks,
    };
    let mut rest = play(
        &mut environment,
        plan,
        &mut schedule,
        &mut clients,
        &mut written,
        &mut watched,
    )
    .await;
    let mut verdict = clients::verdict(&reference_clients, &clients, environment.pool.cloud.data.is_some());
    // Leases go back with everything else.
    let heartbeats = heartbeats.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let rolls_back = rest.is_ok() && is_rolled_back(&environment, plan);
    if rolls_back {
        let leader = leaders.ask(&environment.pool).await;
        match rollback::play(&mut environment, plan.seed, &reference_clients, &clients, leader).await {
            Ok(found) => verdict.add(found),
            Err(error) => rest = Err(error.context("after the cloud came back from a backup")),
        }
    }
    let forges = forge(&mut environment, plan, &clients, &mut rest).await;
    save(&environment.pool, reference_clients.iter().chain(&clients)).await?;
    let disruptions = clients.iter().map(|client| client.client.disruptions());
    let (lists, streams) = disruptions.fold((0, 0), |(lists, streams), one| {
        (lists + one.lists, streams + one.streams)
    });
    let struck = |kind: &Fault| match kind {
        Fault::CloudRolledBack => (*kind, u32::from(rolls_back)),
        Fault::ForgingLeader => (*kind, u32::from(forges)),
        _ => {
            let alone = u32::from(rest.is_ok() && kind.actor().is_some());
            (*kind, schedule.struck().get(kind).copied().unwrap_or(0) + alone)
        }
    };
    let written = *written.borrow();
    Ok(RunOutcome {
        struck: plan.kinds.iter().map(struck).collect(),
        written,
        clients: clients.len(),
        verdict,
        relists: lists.saturating_sub(u32::try_from(clients.len()).unwrap_or(u32::MAX)),
        streams,
        heartbeats,
        leaders,
        restarts: environment.restarts(),
        panics: program::panics(&environment.pool.setup.dir),
        local_writes: environment
            .local_writes
            .as_ref()
            .map(LocalWrites::totals)
            .unwrap_or_default(),
        hostile: environment.actors.as_ref().map(Actors::totals).unwrap_or_default(),
        peaks,
        rest,
    })
}

/// Starts the pool, and everything that writes or attacks; heartbeats count from before the first hub runs.
async fn start(setup: Setup, plan: &Plan) -> Result<(Environment, Arc<Mutex<Heartbeats>>)> {
    let mut environment = Environment::new(setup, &plan.cloud, plan.store).await?;
    let heartbeats = heartbeats::watch(&environment.pool.setup.tasks, &environment.pool.cloud.api);
    begin(&mut environment.pool).await?;
    environment.start_scope();
    environment.start_local_writes();
    environment.start_actors(plan.seed)?;
    Ok((environment, heartbeats))
}

/// Faults of the plan that this environment can have; prints the others.
fn possible(environment: &Environment, plan: &Plan) -> Vec<Fault> {
    let (kinds, absent): (Vec<Fault>, Vec<Fault>) = plan.kinds.iter().partition(|kind| environment.has(**kind));
    for kind in absent {
        println!("{kind} cannot strike here");
    }
    kinds
}

/// Runs changes and faults, then neither until all clients hold the cloud's state. Returns the time that took.
async fn play(
    environment: &mut Environment,
    plan: &Plan,
    schedule: &mut Schedule,
    clients: &mut [Recorded],
    written: &mut watch::Receiver<Written>,
    watched: &mut Watched<'_>,
) -> Result<Duration> {
    let traffic = Traffic::start(environment, (plan.seed, 1), environment.collections());
    *written = traffic.written();
    strike(environment, plan.lasts, schedule, clients, watched).await?;
    let watch = Stopwatch::start();
    if is_rolled_back(environment, plan) {
        rollback::back_up(&mut environment.pool).await?;
    }
    // Some more changes after all repairs, then silence.
    traffic.end_after(MORE_CHANGES).await?;
    let same = async || {
        environment.supervise()?;
        clients::hold_all(environment, clients, environment.collections()).await
    };
    wait_for(PATIENCE, "all clients hold what the cloud has", same)
        .await
        .context("the pool does not come to rest")?;
    all_run(&mut environment.pool)?;
    know_members(&environment.pool, environment.members()).await?;
    if let Some(local_writes) = &environment.local_writes {
        local_writes.goes_on(PATIENCE).await?;
    }
    let rest = watch.elapsed();
    attack_alone(environment, &plan.kinds).await?;
    at_rest(environment, clients, environment.collections()).await?;
    environment.look_at_memory(watched.peaks);
    environment.look_at_disks(watched.peaks);
    println!("at rest; waiting for the last bookmarks");
    clients::last_bookmarks(clients.iter()).await?;
    Ok(rest)
}

/// Lets a leader forge, if the plan says so and the pool came to rest. Returns true if it did; its failures go to
/// `rest`.
async fn forge(environment: &mut Environment, plan: &Plan, clients: &[Recorded], rest: &mut Result<Duration>) -> bool {
    let forges = rest.is_ok() && plan.kinds.contains(&Fault::ForgingLeader) && plan.store == Store::Files;
    if !forges {
        return false;
    }
    let convicted = match hostile::forge(environment).await {
        Ok(()) => at_rest(environment, clients, environment.collections()).await,
        failed => failed,
    };
    if let Err(error) = convicted {
        *rest = Err(error.context("after a leader has forged"));
    }
    true
}

/// Lets every actor attack a pool without other faults. Afterwards there must be a leader within one lease duration.
async fn attack_alone(environment: &mut Environment, kinds: &[Fault]) -> Result<()> {
    for actor in kinds.iter().filter_map(|kind| kind.actor()) {
        println!("at rest; {actor} attacks alone");
        environment.perform(FaultTarget::Actor(actor), Act::Bad).await?;
        tokio::time::sleep(ALONE).await;
        let what = format!("every hub serves its node while {actor} attacks");
        wait_for(ASKING, &what, async || serve_nodes(&environment.pool).await).await?;
        let what = format!("every kind of attack by {actor} is refused at least once");
        let refused = async || {
            let never = environment.actors.as_ref().map(|actors| actors.never_refused(actor));
            let never = never.unwrap_or_default();
            ensure!(never.is_empty(), "no defence has refused {}", never.join(", "));
            Ok(())
        };
        wait_for(PATIENCE, &what, refused).await?;
        environment.perform(FaultTarget::Actor(actor), Act::Good).await?;
        let what = format!("one hub leads after {actor} has attacked");
        wait_for(Election::SHORT.lease + ASKING, &what, async || {
            environment.pool.leader().await
        })
        .await?;
    }
    Ok(())
}

/// Checks that every hub has a free place for its node's requests to the cloud.
async fn serve_nodes(pool: &TestPool) -> Result<()> {
    for hub in &pool.hubs {
        hub.proxy.get(&format!("/api/v1/nodes/{}", hub.node)).await?;
    }
    Ok(())
}

/// True if the cloud is restored from a backup at the end.
fn is_rolled_back(environment: &Environment, plan: &Plan) -> bool {
    plan.kinds.contains(&Fault::CloudRolledBack) && environment.pool.cloud.data.is_some()
}

async fn begin(pool: &mut TestPool) -> Result<()> {
    for coordinator in pool.coordinators() {
        coordinator.start().await?;
    }
    for hub in &mut pool.hubs {
        hub.start()?;
    }
    for hub in &mut pool.hubs {
        hub.healthy().await?;
    }
    wait_for(PATIENCE, "one hub leads", async || pool.leader().await).await?;
    let TestPool { hubs, setup, .. } = pool;
    for hub in hubs {
        hub.start_kubelet(setup)?;
    }
    Ok(())
}

/// Injects faults, then repairs everything.
async fn strike(
    environment: &mut Environment,
    lasts: Duration,
    schedule: &mut Schedule,
    clients: &mut [Recorded],
    watched: &mut Watched<'_>,
) -> Result<()> {
    let watch = Stopwatch::start();
    while watch.elapsed() < lasts {
        let now = watch.elapsed();
        for told in environment.supervise()? {
            println!("{:>7.1} s  ({told})", now.as_secs_f64());
        }
        while let Some((target, act)) = schedule.due(now) {
            perform(environment, clients, target, act).await?;
        }
        if schedule.strikes(now) {
            let leader = watched.leaders.ask(&environment.pool).await;
            environment.look_at_memory(watched.peaks);
            let topology = environment.topology(leader).await;
            if let Some(fault) = schedule.strike(now, &topology) {
                println!("{:>7.1} s  {fault}", now.as_secs_f64());
            }
        }
        for client in clients.iter_mut() {
            let lists = client.client.disruptions().lists;
            if lists > client.lists {
                println!("{:>7.1} s  ({} lists again)", now.as_secs_f64(), client.name);
                client.lists = lists;
            }
        }
        tokio::time::sleep(TICK).await;
    }
    for (target, act) in schedule.rest() {
        perform(environment, clients, target, act).await?;
    }
    Ok(())
}

/// Performs a step of a fault. Where a hub loses its data, its clients may list once more.
async fn perform(environment: &mut Environment, clients: &mut [Recorded], target: FaultTarget, act: Act) -> Result<()> {
    if let Some(hub) = act.may_relist(target) {
        let behind = clients.iter_mut().filter(|client| client.hub == Some(hub));
        behind.for_each(|client| client.lists_max += 1);
    }
    environment.perform(target, act).await
}

/// Waits until all clients hold the cloud's state, and watch.
pub(super) async fn at_rest(
    environment: &Environment,
    clients: &[Recorded],
    collections: &[&'static str],
) -> Result<()> {
    let same = async || clients::hold_all(environment, clients, collections).await;
    wait_for(PATIENCE, "all clients hold what the cloud has", same)
        .await
        .map(drop)
}

/// Waits until every hub has exactly the nodes of this pool as members.
async fn know_members(pool: &TestPool, members: usize) -> Result<()> {
    let all = async || {
        for hub in &pool.hubs {
            let known = hub.state().await?.members();
            ensure!(
                known == Some(members as u64),
                "{} knows {known:?} members of the pool's {members}",
                hub.node
            );
        }
        Ok(())
    };
    wait_for(PATIENCE, "all hubs know the pool's members", all)
        .await
        .map(drop)
}

/// Checks that no program ended by itself.
fn all_run(pool: &mut TestPool) -> Result<()> {
    for coordinator in pool.coordinators() {
        coordinator.process.program()?.must_run()?;
    }
    if let Some(etcd) = &mut pool.etcd {
        etcd.must_run()?;
    }
    pool.cloud.process.program()?.must_run()?;
    for hub in &mut pool.hubs {
        hub.process.program()?.must_run()?;
    }
    Ok(())
}

/// Writes every history, and the reported state of hubs and coordinator, next to the logs.
async fn save(pool: &TestPool, recorded: impl Iterator<Item = &Recorded>) -> Result<()> {
    let dir = &pool.setup.dir;
    for recorded in recorded {
        recorded.save(dir)?;
    }
    let write = |name: String, told: Result<String>| {
        let path = dir.join(name);
        let told = told.unwrap_or_else(|error| format!("{error:#}"));
        std::fs::write(&path, told).with_context(|| format!("cannot write {}", path.display()))
    };
    for hub in &pool.hubs {
        let state = tokio::time::timeout(SAVE_LIMIT, hub.state()).await;
        let told = state.context("no answer").flatten().map(|state| state.text());
        write(format!("{}.state.json", hub.node), told)?;
    }
    for (index, coordinator) in std::iter::once(&pool.coordinator).chain(&pool.others).enumerate() {
        let feed = tokio::time::timeout(SAVE_LIMIT, coordinator.api.get(FEED)).await;
        let told = feed.context("no answer").flatten().map(|feed| format!("{feed:#}"));
        write(format!("coordinator-{}.feed.json", index + 1), told)?;
    }
    Ok(())
}
