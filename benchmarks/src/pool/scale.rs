//! `cargo xtask scale`: one coordinator under as many hubs as a large pool has.
//!
//! Three hubs are real: they elect a leader, feed the coordinator and show what a follower asks. All others are
//! simulated ([`crowd`]): one TLS connection each, with the requests that the real follower sends. The last part lets
//! all of them lose the cloud, and times how long the leader needs to forward their heartbeats over a link with a round
//! trip of 300 ms.

mod crowd;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use yurt_runtime::TaskGroup;
use yurt_testbed::cloud::Choice;
use yurt_testbed::hub::Election;
use yurt_testbed::link::Mode;
use yurt_testbed::pool::TestPool;
use yurt_testbed::sample;
use yurt_testbed::wait_for::wait_for;
use yurt_workspace::Stopwatch;

use super::fixture::{self, PATIENCE};
use crate::options::Programs;
use crate::system_under_test::Environment;
use crate::usage;
use crowd::{Counts, Crowd};

/// Arguments of `cargo xtask scale`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Hubs of the pool, three of them real; needs an open file for each
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(4..=10_000))]
    hubs: u32,
    /// Length of each measurement
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(10..=600))]
    window: u64,
    /// Time between two changes of a slice of 25 KB, which each hub receives
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=60))]
    change_every: u64,
    #[command(flatten)]
    programs: Programs,
}

/// Times of a measurement.
#[derive(Clone, Copy)]
struct Times {
    window: Duration,
    change_every: Duration,
}

/// Slices in the cloud, of 100 endpoints each.
const SLICES: usize = 100;
/// Connections that the coordinator accepts in addition to those of the hubs.
const SPARE_CONNECTIONS: u32 = 2000;
/// Largest pool whose forwarding is measured: that of one leader over its link.
const FORWARDED_MAX: usize = 1000;
/// One way; a round trip takes twice as long.
const LATE: Duration = Duration::from_millis(150);
/// Duration of node leases: a heartbeat that is forwarded later is too late.
const LEASE: Duration = Duration::from_secs(40);
/// Nodes created at a time.
const CREATES: usize = 16;
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

/// Runs it and prints what was measured.
///
/// # Errors
/// When something could not be measured, a simulated hub was refused, or heartbeats were forwarded too late.
pub(crate) fn run(args: &Args) -> Result<()> {
    // One connection per simulated hub, in this process and in the coordinator; the rest is for the real hubs.
    raise_open_files(u64::from(args.hubs) + 4096)?;
    let bin_dir = args.programs.build()?;
    yurt_testbed::runtime()?.block_on(async {
        let dir = yurt_testbed::folder("scale", false)?;
        let environment = Environment::new(dir.path(), bin_dir, TaskGroup::new());
        let mut pool = fixture::prepare(
            &environment,
            &Choice::Demo,
            sample::NODES.len(),
            Election::DEFAULT,
            SLICES,
        )
        .await?;
        let names: Vec<String> = (sample::NODES.len()..args.hubs as usize)
            .map(|number| format!("edge-{number:05}"))
            .collect();
        register(&pool, &names).await?;
        let audit = pool.setup.dir.join("audit.log");
        let process = &mut pool.coordinator.process;
        process.add_flag("audit-log-path", audit.display());
        process.add_flag("max-connections", args.hubs + SPARE_CONNECTIONS);
        fixture::start(&mut pool).await?;
        let times = Times {
            window: Duration::from_secs(args.window),
            change_every: Duration::from_secs(args.change_every),
        };
        let measured = measure(&mut pool, &names, &audit, times).await;
        let _ = pool.setup.tasks.shutdown(Duration::from_secs(2)).await;
        measured
    })
}

async fn measure(pool: &mut TestPool, names: &[String], audit: &Path, times: Times) -> Result<()> {
    one_follower(pool, audit, times.window).await?;
    println!(
        "\n{} hubs, {} of them simulated: connecting",
        names.len() + 3,
        names.len()
    );
    let watch = Stopwatch::start();
    let crowd = Crowd::join(&pool.setup, pool.coordinator.port, names).await?;
    println!("   all hold the pool's data and watch after {watch}");
    whole_pool(pool, &crowd, times).await?;
    if names.len() > FORWARDED_MAX {
        println!("\nforwarding of heartbeats is measured up to {FORWARDED_MAX} hubs");
        return Ok(());
    }
    forwarding(pool, &crowd, names).await
}

/// Requests of one real follower, and the number of its connections.
async fn one_follower(pool: &TestPool, audit: &Path, window: Duration) -> Result<()> {
    let hub = &pool.hubs[pool.follower(pool.leader().await?)?];
    let before = (requests(audit, hub.node)?, hub.pool_link.traffic());
    tokio::time::sleep(window).await;
    let after = (requests(audit, hub.node)?, hub.pool_link.traffic());
    let minutes = window.as_secs_f64() / 60.0;
    println!("\none real follower, nothing changes, per minute:");
    for (what, count) in &after.0 {
        let count = count - before.0.get(what).unwrap_or(&0);
        if count > 0 {
            println!("   {:6.1}  {what}", count as f64 / minutes);
        }
    }
    let bytes = after.1.bytes_from_cloud - before.1.bytes_from_cloud;
    println!(
        "   {:6.1}  KiB from the coordinator, TLS included",
        bytes as f64 / 1024.0 / minutes
    );
    let opened = after.1.connections;
    println!("   connections opened to the coordinator since its start: {opened}");
    Ok(())
}

/// The coordinator under all hubs, while one slice changes at intervals.
async fn whole_pool(pool: &mut TestPool, crowd: &Crowd, times: Times) -> Result<()> {
    let pid = pool
        .coordinator
        .process
        .program()?
        .id()
        .context("the coordinator has ended")?;
    let (before, counts, carried) = (usage::usage(pid)?, crowd.counts(), loopback_bytes()?);
    let watch = Stopwatch::start();
    let (mut turn, mut slowest) = (0, Duration::ZERO);
    while watch.elapsed() < times.window {
        let change = Stopwatch::start();
        let events = crowd.counts().events + crowd.len();
        fixture::touch(&pool.cloud.api, turn).await?;
        crowd.received(events, PATIENCE).await?;
        slowest = slowest.max(change.elapsed());
        turn += 1;
        tokio::time::sleep(times.change_every.saturating_sub(change.elapsed())).await;
    }
    let (took, after) = (watch.elapsed().as_secs_f64(), usage::usage(pid)?);
    let now = crowd.counts();
    let per_second = |of: fn(&Counts) -> u64| (of(&now) - of(&counts)) as f64 / took;
    let cpu = (after.cpu - before.cpu).as_secs_f64() / took;
    println!("\nthe coordinator under all hubs, {turn} changes of a slice of 25 KB:");
    println!("   {:8.1} % of a core", 100.0 * cpu);
    println!("   {:8.1} MiB RSS", after.rss as f64 / (1 << 20) as f64);
    println!(
        "   {:8}   connections of simulated hubs, opened since they joined",
        now.connections
    );
    println!("   {:8.1} requests per second", per_second(|counts| counts.requests));
    println!("   {:8.1} events per second", per_second(|counts| counts.events));
    let carried = (loopback_bytes()? - carried) as f64 / 1024.0 / took;
    println!(
        "   {carried:8.1} KiB per second over the loopback interface: TCP and TLS, the real hubs and the cloud included"
    );
    println!(
        "   {:8.1} ms from a change in the cloud to the last hub, at worst",
        slowest.as_secs_f64() * 1000.0
    );
    let refused = now.refused - counts.refused;
    println!("   {refused:8}   requests refused or unanswered");
    ensure!(
        refused == 0,
        "{refused} requests of hubs were refused: {}",
        crowd.last_refusal()
    );
    Ok(())
}

/// Every simulated node loses the cloud; the leader forwards a heartbeat of each.
async fn forwarding(pool: &mut TestPool, crowd: &Crowd, names: &[String]) -> Result<()> {
    let leader = pool.leader().await?;
    pool.hubs[leader].link.set(Mode::Late(LATE));
    // A state that the leader sees first is no heartbeat.
    crowd.lose_cloud().await?;
    let begin = renewed(pool, names).await?;
    ensure!(
        begin.values().all(|renewed| !*renewed),
        "heartbeats were forwarded before there were any"
    );
    let watch = Stopwatch::start();
    crowd.beat().await?;
    let sent = watch.elapsed();
    let all = async || {
        let missing = renewed(pool, names)
            .await?
            .values()
            .filter(|renewed| !**renewed)
            .count();
        ensure!(missing == 0, "{missing} of {} heartbeats are missing", names.len());
        Ok(())
    };
    let forwarded = wait_for(LEASE * 2, "all heartbeats are in the cloud", all).await;
    println!(
        "\n{} nodes without the cloud, the leader {} ms away from it:",
        names.len(),
        2 * LATE.as_millis()
    );
    println!(
        "   {:8.1} s to write all heartbeats at the coordinator",
        sent.as_secs_f64()
    );
    let took = forwarded.map(|_| watch.elapsed())?;
    println!(
        "   {:8.1} s until all were in the cloud; their leases last {} s",
        took.as_secs_f64(),
        LEASE.as_secs()
    );
    ensure!(took < LEASE, "heartbeats were forwarded after {took:?}");
    Ok(())
}

/// Creates the nodes in the cloud, with leases that were never renewed.
async fn register(pool: &TestPool, names: &[String]) -> Result<()> {
    let api = &pool.cloud.api;
    for some in names.chunks(CREATES) {
        let create = async |name: &String| {
            let node = sample::node(name, sample::POOL);
            api.create(&node.collection, &node.object).await?;
            let spec = json!({"holderIdentity": name, "leaseDurationSeconds": LEASE.as_secs(), "renewTime": NEVER});
            let metadata = json!({"name": name, "namespace": "kube-node-lease"});
            let lease =
                json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec});
            api.create(LEASES, &lease).await
        };
        futures_util::future::try_join_all(some.iter().map(create)).await?;
    }
    Ok(())
}

/// The renewTime of a lease in the cloud before its first heartbeat.
const NEVER: &str = "2020-01-01T00:00:00.000000Z";

/// Nodes that have had a heartbeat in the cloud.
async fn renewed(pool: &TestPool, names: &[String]) -> Result<BTreeMap<String, bool>> {
    let list = pool.cloud.api.get(LEASES).await?;
    let leases = list["items"].as_array().context("a list of leases")?.iter();
    let mut renewed: BTreeMap<String, bool> = names.iter().map(|name| (name.clone(), false)).collect();
    for lease in leases {
        let name = lease["metadata"]["name"].as_str().unwrap_or_default();
        if let Some(is_renewed) = renewed.get_mut(name) {
            *is_renewed = lease["spec"]["renewTime"] != NEVER;
        }
    }
    Ok(renewed)
}

/// Requests of a node so far, from the audit log: verb and path.
fn requests(audit: &Path, node: &str) -> Result<BTreeMap<String, u64>> {
    let text = std::fs::read_to_string(audit).with_context(|| format!("cannot read {}", audit.display()))?;
    let user = format!("system:node:{node}");
    let mut counts = BTreeMap::new();
    for line in text.lines() {
        let Ok(event) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        if event["stage"] != "RequestReceived" || event["user"]["username"] != *user {
            continue;
        }
        let path = event["requestURI"].as_str().unwrap_or_default();
        let path = path.split('?').next().unwrap_or_default();
        let what = format!("{} {path}", event["verb"].as_str().unwrap_or_default());
        *counts.entry(what).or_default() += 1;
    }
    Ok(counts)
}

/// Bytes that the loopback interface has carried. Source: proc(5), `/proc/net/dev`.
fn loopback_bytes() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/net/dev").context("cannot read /proc/net/dev")?;
    let line = text.lines().find_map(|line| line.trim().strip_prefix("lo:"));
    let bytes = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    bytes.context("no loopback interface")
}

/// Raises the limit of open files of this process, which its children inherit.
fn raise_open_files(wanted: u64) -> Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    let maximum = Some(limit.maximum.map_or(wanted, |maximum| maximum.max(wanted)));
    let raised = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(wanted),
            maximum,
        },
    );
    raised.with_context(|| format!("cannot open {wanted} files; `ulimit -n {wanted}` first, or fewer --hubs"))
}
