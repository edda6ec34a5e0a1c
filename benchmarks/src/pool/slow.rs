//! A first sync over 50 kbit/s, once left alone and once cut again and again, with the hub killed in between (row 21).
//!
//! The link is a virtual link between network namespaces, so its bytes are those of packets, headers and
//! retransmissions included. Where that is not permitted it is a proxy on the loopback interface.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use yurt_testbed::cloud::Choice;
use yurt_testbed::hub::Election;
use yurt_testbed::link::Mode;
use yurt_testbed::net::Net;
use yurt_testbed::pool::TestPool;
use yurt_workspace::Stopwatch;

use super::fixture;
use crate::samples;
use crate::system_under_test::Environment;
use crate::table::{Notes, Unit};

/// 50 kbit/s in bytes per second.
const SLOW: u32 = 6_250;
/// With 100 endpoints each, 25 MB of JSON.
const SLICES: usize = 1000;
/// The link is cut so often, and resets everything for so long.
const CUT_EVERY: Duration = Duration::from_secs(25);
const CUT_FOR: Duration = Duration::from_secs(1);
/// The hub is killed when the sync has lasted so long.
const KILL_AFTER: Duration = Duration::from_secs(70);
/// A sync that takes longer has failed: 2 MB, what surrounds them, and the cuts.
const LIMIT: Duration = Duration::from_secs(900);
/// The hub is asked this often; what it has not got it refuses at once.
const ASK_EVERY: Duration = Duration::from_millis(500);
const ASK_LIMIT: Duration = Duration::from_secs(10);
/// Seed of the link; without effect, because no packet is lost.
const SEED: u64 = 1;

/// Duration and bytes of a sync.
struct Sync {
    took: Duration,
    /// From the cloud.
    bytes: f64,
    cuts: u32,
}

/// Measures it against a cloud of ours, and against kube-apiserver.
pub(super) async fn measure(environment: &Environment, real: bool, notes: &mut Notes<'_>) -> Result<()> {
    let clouds = [("yurt-coordinator", Choice::Demo), ("kube-apiserver", Choice::Real)];
    for (name, cloud) in clouds.into_iter().take(if real { 2 } else { 1 }) {
        let alone = sync(environment, &cloud, false).await.context("left alone")?;
        let cut = sync(environment, &cloud, true).await.context("with cuts")?;
        let what = format!("first sync of 1,000 slices of 100 endpoints from {name} at 50 kbit/s");
        let mut add = |more: &str, unit, value| notes.add("21", &format!("{what}{more}"), unit, value);
        add(", left alone: bytes", Unit::Kib, alone.bytes / 1024.0);
        add(", left alone: complete after", Unit::Millis, millis(alone.took));
        let count = format!(", {} cuts and a kill of the hub", cut.cuts);
        add(&format!("{count}: bytes"), Unit::Kib, cut.bytes / 1024.0);
        add(&format!("{count}: complete after"), Unit::Millis, millis(cut.took));
        add(
            ": bytes with cuts, of those without",
            Unit::Percent,
            100.0 * cut.bytes / alone.bytes,
        );
    }
    Ok(())
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

async fn sync(environment: &Environment, cloud: &Choice, cuts: bool) -> Result<Sync> {
    let mut setup = environment.setup()?;
    match Net::new(&setup.tasks, SEED) {
        Ok(net) => setup.net = Some(net.into()),
        Err(why) => println!("   a proxy instead of a virtual link, which needs network namespaces: {why:#}"),
    }
    let mut pool = TestPool::of(setup, cloud, &fixture::nodes(1), Election::SHORT).await?;
    fixture::load(&pool.cloud.api, SLICES).await?;
    pool.coordinator.start().await?;
    pool.hubs[0].link.set(Mode::Slow(SLOW));
    let watch = Stopwatch::start();
    pool.hubs[0].start()?;
    let (mut count, mut next, mut killed) = (0_u32, CUT_EVERY, !cuts);
    while !has_all(&pool).await {
        let now = watch.elapsed();
        ensure!(
            now < LIMIT,
            "{:.0} bytes and not complete after {watch}",
            from_cloud(&pool)
        );
        if cuts && now > next {
            pool.hubs[0].link.set(Mode::Cut);
            tokio::time::sleep(CUT_FOR).await;
            pool.hubs[0].link.set(Mode::Slow(SLOW));
            (count, next) = (count + 1, watch.elapsed() + CUT_EVERY);
        }
        if !killed && now > KILL_AFTER {
            pool.hubs[0].process.kill().await?;
            pool.hubs[0].start()?;
            killed = true;
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
    let (took, bytes) = (watch.elapsed(), from_cloud(&pool));
    println!("   {bytes:.0} bytes, {count} cuts, {watch}");
    fixture::end(pool).await?;
    Ok(Sync {
        took,
        bytes,
        cuts: count,
    })
}

async fn has_all(pool: &TestPool) -> bool {
    let listed = tokio::time::timeout(ASK_LIMIT, pool.hubs[0].proxy.list(samples::ALL_SLICES)).await;
    matches!(listed, Ok(Ok(listing)) if listing.objects.len() >= SLICES)
}

fn from_cloud(pool: &TestPool) -> f64 {
    pool.hubs[0].link.traffic().bytes_from_cloud as f64
}
