//! `cargo xtask links`: a pool in network namespaces, whose packets are lost, duplicated, reordered, delayed or dropped
//! in one direction.
//!
//! Checks below TCP: a bad link changes neither leadership nor sources. A half-open link, which no socket reports as
//! broken, is detected within the bounds of the election. Clients behind the hubs are unaffected in both cases. Needs
//! the right to make network namespaces and TUN devices; without it, a line says so and nothing is checked.

mod histories;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use yurt_runtime::TaskGroup;
use yurt_testbed::cloud::Choice;
use yurt_testbed::hub::Election;
use yurt_testbed::identities::Identities;
use yurt_testbed::link::{Link, Mode};
use yurt_testbed::net::Net;
use yurt_testbed::pool::TestPool;
use yurt_testbed::wait_for::wait_for;
use yurt_testbed::{self as testbed, Setup, program, sample};
use yurt_workspace::Stopwatch;
use yurt_workspace::programs::{self, Profile};

use histories::Histories;

/// Arguments of `cargo xtask links`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Seed of the affected packets; the same seed repeats them
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Duration of each impairment, in seconds
    #[arg(long, value_name = "N", default_value_t = 40)]
    seconds: u64,
    /// Use kube-apiserver and etcd as the cloud (`cargo xtask build-interop`, needs Go)
    #[arg(long)]
    real: bool,
    /// Use the programs in this folder instead of building them
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
    /// Keep the folder with certificates, data and logs
    #[arg(long)]
    keep: bool,
}

/// One end of the hub that leads.
#[derive(Clone, Copy, Debug)]
enum End {
    Cloud,
    Coordinator,
}

/// State that an impairment must not change.
#[derive(Debug, PartialEq, Eq)]
struct Order {
    leader: usize,
    /// Status of the leader, its epoch included. Followers learn of a new epoch later.
    summary: String,
    /// Sources of every hub.
    sources: Vec<String>,
    /// Lists of all clients, and objects that were reported as deleted.
    told: (u32, usize),
}

/// Election timings of a pool with default configuration.
const ELECTION: Election = Election {
    lease: Duration::from_secs(15),
    renew: Duration::from_secs(10),
    retry: Duration::from_secs(2),
};
const IMPAIRMENTS: [Mode; 5] = [Mode::Lossy, Mode::Reordered, Mode::Doubled, Mode::Jittery, Mode::Radio];
const HALVES: [(End, Mode); 4] = [
    (End::Cloud, Mode::RequestsVanish),
    (End::Cloud, Mode::AnswersVanish),
    (End::Coordinator, Mode::RequestsVanish),
    (End::Coordinator, Mode::AnswersVanish),
];
/// Time until the pool is up, and until it is in order again.
const PATIENCE: Duration = Duration::from_secs(90);
/// Longest time for a change to reach every client, under any impairment: a few retransmissions in a row.
const ARRIVES: Duration = Duration::from_secs(15);
/// Two probes that fail in a row (5 s until the first begins, 3 s each, 1 s between), 1 s of draining, the successor,
/// and the delay of a busy machine.
const CLOUD_BOUND: Duration = Duration::from_secs(5 + 3 + 1 + 3 + 1 + 4);
/// The lease expires on the followers' clocks, then their next check, and the delay of a busy machine.
const COORDINATOR_BOUND: Duration = Duration::from_secs(15 + 2 + 4);
/// Lines of each log that are shown when a check fails.
const LOG_TAIL_LINES: usize = 40;
/// Time virtual links and clients have to end.
const STOP_LIMIT: Duration = Duration::from_secs(2);

/// Runs all checks.
///
/// # Errors
/// The check that failed.
pub(crate) fn run(args: &Args) -> Result<()> {
    let bin_dir = match &args.bin_dir {
        Some(dir) => dir.clone(),
        None => programs::build(Profile::Quick)?,
    };
    let dir = testbed::folder("links", args.keep)?;
    let runtime = testbed::runtime()?;
    let tasks = TaskGroup::new();
    let told = runtime.block_on(async {
        let net = match Net::new(&tasks, args.seed) {
            Ok(net) => net,
            Err(why) => {
                println!("nothing was checked: this needs network namespaces and TUN devices ({why:#})");
                return Ok(());
            }
        };
        let setup = Setup {
            dir: dir.path().to_path_buf(),
            bin_dir,
            identities: Identities::new(dir.path())?,
            tasks: tasks.clone(),
            net: Some(net.into()),
        };
        let told = check(args, setup).await;
        let _ = tasks.shutdown(STOP_LIMIT).await;
        told
    });
    if told.is_err() {
        eprintln!("\n{}", program::log_tails(dir.path(), LOG_TAIL_LINES));
    }
    told
}

async fn check(args: &Args, setup: Setup) -> Result<()> {
    let cloud = if args.real { Choice::Real } else { Choice::Demo };
    let mut pool = TestPool::of(setup, &cloud, &sample::NODES, ELECTION).await?;
    let watch = Stopwatch::start();
    begin(&mut pool).await?;
    println!("✓ {:<44} after {watch}", "the pool is up");
    let histories = Histories::begin(&pool, args.seed).await?;
    for mode in IMPAIRMENTS {
        impaired(&mut pool, mode, Duration::from_secs(args.seconds))
            .await
            .with_context(|| format!("{mode:?} on every virtual link"))?;
    }
    for (end, mode) in HALVES {
        half_open(&mut pool, end, mode)
            .await
            .with_context(|| format!("{mode:?} between the leader and the {end:?}"))?;
    }
    pool.no_client_complains().await?;
    let verdict = histories.check().await?;
    println!(
        "{} statements checked, {} whole states compared, {} violations",
        verdict.checked,
        verdict.bookmarks,
        verdict.violations.len()
    );
    ensure!(verdict.violations.is_empty(), "{}", verdict.violations.join("\n"));
    ensure!(verdict.bookmarks > 0, "void: no whole state was compared");
    Ok(())
}

async fn begin(pool: &mut TestPool) -> Result<()> {
    pool.coordinator.start().await?;
    for hub in &mut pool.hubs {
        hub.start()?;
    }
    for hub in &mut pool.hubs {
        hub.healthy().await?;
    }
    wait_for(PATIENCE, "one hub leads", async || pool.leader().await).await?;
    let TestPool { setup, hubs, .. } = pool;
    hubs.iter_mut().for_each(|hub| hub.start_clients(setup));
    in_order(pool).await.map(drop)
}

/// Waits until one hub leads and follows the cloud, the others follow the coordinator, and all clients have everything.
async fn in_order(pool: &TestPool) -> Result<Order> {
    let all: Vec<usize> = (0..pool.hubs.len()).collect();
    let settled = async || {
        let order = Order::of(pool).await?;
        for (hub, sources) in order.sources.iter().enumerate() {
            let wanted = if hub == order.leader { "cloud" } else { "coordinator" };
            ensure!(sources == wanted, "{} follows {sources:?}", pool.hubs[hub].node);
        }
        Ok(())
    };
    wait_for(PATIENCE, "the pool is in order", settled).await?;
    pool.clients_catch_up(&all, PATIENCE).await?;
    Order::of(pool).await
}

/// Applies a bad link to every virtual link for a while: changes arrive, and nothing else changes.
async fn impaired(pool: &mut TestPool, mode: Mode, lasts: Duration) -> Result<()> {
    let before = in_order(pool).await?;
    let all: Vec<usize> = (0..pool.hubs.len()).collect();
    let streams = pool.disruptions(&all).streams;
    set_all(pool, mode);
    let watch = Stopwatch::start();
    let (mut changes, mut longest) = (0_u32, Duration::ZERO);
    while watch.elapsed() < lasts {
        longest = longest.max(pool.change_arrives(&all, ARRIVES).await?);
        changes += 1;
        let now = Order::of(pool).await?;
        ensure!(now == before, "it was {before:?}, after {watch} it is {now:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    set_all(pool, Mode::Pass);
    let broken = pool.disruptions(&all).streams - streams;
    println!(
        "✓ {:<44} {changes} changes, the slowest in {:.2} s; same leader, same sources, no relist, {broken} watches broke",
        format!("{mode:?} on every virtual link for {} s", lasts.as_secs()),
        longest.as_secs_f64(),
    );
    Ok(())
}

/// Drops everything in one direction of a virtual link of the leader: another hub leads soon, and the clients are
/// unaffected.
async fn half_open(pool: &mut TestPool, end: End, mode: Mode) -> Result<()> {
    let before = in_order(pool).await?;
    let old = before.leader;
    let others: Vec<usize> = (0..pool.hubs.len()).filter(|hub| *hub != old).collect();
    end.of(pool, old).set(mode);
    let other_leads = async || {
        let leader = pool.leader().await?;
        ensure!(leader != old, "{} still leads", pool.hubs[old].node);
        Ok(())
    };
    let ((), took) = wait_for(end.bound(), "another hub leads", other_leads).await?;
    let arrived = pool.change_arrives(&others, ARRIVES).await?;
    end.of(pool, old).set(Mode::Pass);
    let after = in_order(pool).await?;
    ensure!(
        after.told == before.told,
        "lists and deletions: {:?} before, {:?} after",
        before.told,
        after.told
    );
    println!(
        "✓ {:<44} another hub leads after {:.1} s, the next change arrives in {:.2} s; no relist",
        format!("{mode:?}, leader and {end:?}"),
        took.as_secs_f64(),
        arrived.as_secs_f64(),
    );
    Ok(())
}

fn set_all(pool: &TestPool, mode: Mode) {
    for hub in &pool.hubs {
        hub.link.set(mode);
        hub.pool_link.set(mode);
    }
}

// === impl End ===

impl End {
    fn of(self, pool: &TestPool, hub: usize) -> &Link {
        match self {
            Self::Cloud => &pool.hubs[hub].link,
            Self::Coordinator => &pool.hubs[hub].pool_link,
        }
    }

    fn bound(self) -> Duration {
        match self {
            Self::Cloud => CLOUD_BOUND,
            Self::Coordinator => COORDINATOR_BOUND,
        }
    }
}

// === impl Order ===

impl Order {
    async fn of(pool: &TestPool) -> Result<Self> {
        let leader = pool.leader().await?;
        let summary = pool.hubs[leader].state().await?.summary();
        let mut sources = Vec::new();
        for hub in &pool.hubs {
            sources.push(hub.state().await?.sources());
        }
        let all: Vec<usize> = (0..pool.hubs.len()).collect();
        let disruptions = pool.disruptions(&all);
        Ok(Self {
            leader,
            summary,
            sources,
            told: (disruptions.lists, disruptions.deleted),
        })
    }
}
