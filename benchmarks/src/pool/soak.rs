//! `cargo xtask soak`: does anything grow while the coordinator, then the cloud too, cannot be reached?
//!
//! A pool works under load for the first third of the time (everything grows to its size), without its coordinator for
//! the second, without the cloud as well for the third. Growth is the slope of a straight line through the samples
//! after [`WARM_UP`] of each part, over that part.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use yurt_runtime::TaskGroup;
use yurt_testbed::cloud::Choice;
use yurt_testbed::hub::{Election, Hub};
use yurt_testbed::link::Mode;
use yurt_testbed::pool::TestPool;
use yurt_workspace::Stopwatch;

use super::fixture::{self, PATIENCE};
use crate::options::Programs;
use crate::system_under_test::Environment;
use crate::usage;

/// Arguments of `cargo xtask soak`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Length of the whole run
    #[arg(long, default_value_t = 15)]
    minutes: u32,
    #[command(flatten)]
    programs: Programs,
}

/// Part of each phase that is not looked at: buffers and histories fill.
const WARM_UP: f64 = 0.4;
const SAMPLE_EVERY: Duration = Duration::from_secs(2);
/// Changes in the cloud, while it can be reached.
const WRITE_EVERY: Duration = Duration::from_millis(50);
/// The part that is not judged.
const BEGIN: &str = "everything is there";
/// Slices in the cloud.
const SLICES: usize = 100;
/// Readers of each hub: each lists, and opens and drops a watch.
const READERS: usize = 4;
const READ_EVERY: Duration = Duration::from_millis(100);
/// Growth that is allowed, percent of the first value of the line.
const GROWTH_MAX: f64 = 1.0;
/// Files that are open come and go with connections.
const FILES_MAX: f64 = 2.0;

/// One process at one moment.
#[derive(Clone, Copy)]
struct Sample {
    at: f64,
    rss: f64,
    own: f64,
    files: f64,
    disk: f64,
}

/// Reads a figure of a sample.
type Of = fn(&Sample) -> f64;

/// Runs it and prints what grew.
///
/// # Errors
/// When something grew by more than is allowed.
pub(crate) fn run(args: &Args) -> Result<()> {
    let bin_dir = args.programs.build()?;
    yurt_testbed::runtime()?.block_on(async {
        let dir = yurt_testbed::folder("soak", false)?;
        let environment = Environment::new(dir.path(), bin_dir, TaskGroup::new());
        let mut pool = fixture::prepare(&environment, &Choice::Demo, 3, Election::SHORT, SLICES).await?;
        fixture::start(&mut pool).await?;
        for at in 0..pool.hubs.len() {
            let setup = &pool.setup;
            pool.hubs[at].start_clients(setup);
            pool.hubs[at].start_kubelet(setup)?;
            load(&setup.tasks, &pool.hubs[at]);
        }
        pool.clients_catch_up(&[0, 1, 2], PATIENCE).await?;
        write(&pool);
        let part = Duration::from_secs(u64::from(args.minutes) * 60) / 3;
        let mut grew = Vec::new();
        for name in [BEGIN, "no coordinator", "no coordinator, no cloud"] {
            match name {
                "no coordinator" => pool.coordinator.process.kill().await?,
                "no coordinator, no cloud" => pool.hubs.iter().for_each(|hub| hub.link.set(Mode::Cut)),
                _ => {}
            }
            println!("\n{name}, {} s:", part.as_secs());
            let found = phase(&mut pool, part).await?;
            // At first the histories fill, each to its bound.
            if name != BEGIN {
                grew.extend(found);
            }
        }
        let relists = pool.disruptions(&[0, 1, 2]).lists - u32::try_from(pool.hubs[0].clients().len() * 3)?;
        println!("\nrelists of the clients that stayed: {relists}");
        let _ = pool.setup.tasks.shutdown(Duration::from_secs(2)).await;
        ensure!(grew.is_empty(), "more than allowed: {}", grew.join("; "));
        ensure!(relists == 0, "{relists} relists");
        Ok(())
    })
}

/// Samples for `lasts`; what grew by more than is allowed.
async fn phase(pool: &mut TestPool, lasts: Duration) -> Result<Vec<String>> {
    let watch = Stopwatch::start();
    let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); pool.hubs.len() + 1];
    while watch.elapsed() < lasts {
        let at = watch.elapsed().as_secs_f64();
        for (index, hub) in pool.hubs.iter_mut().enumerate() {
            let pid = hub.process.program()?.id();
            samples[index].extend(pid.map(|pid| sample(pid, &hub.cache, at)).transpose()?);
        }
        if pool.coordinator.process.runs() {
            let pid = pool.coordinator.process.program()?.id();
            let data = &pool.coordinator.data;
            samples[pool.hubs.len()].extend(pid.map(|pid| sample(pid, data, at)).transpose()?);
        }
        tokio::time::sleep(SAMPLE_EVERY).await;
    }
    let names = pool.hubs.iter().map(|hub| hub.node).chain(["coordinator"]);
    let settled = lasts.as_secs_f64() * WARM_UP;
    let mut grew = Vec::new();
    for (name, samples) in names.zip(samples) {
        let steady: Vec<Sample> = samples.into_iter().filter(|sample| sample.at >= settled).collect();
        if steady.len() < 3 {
            continue;
        }
        for (what, of, whole, limit) in [
            // Pages of the program come and go.
            ("memory", (|one| one.own) as Of, (|one| one.rss) as Of, GROWTH_MAX),
            ("files", |one| one.files, |one| one.files, FILES_MAX),
            ("disk", |one| one.disk, |one| one.disk, GROWTH_MAX),
        ] {
            let points = |of: Of| -> Vec<(f64, f64)> { steady.iter().map(|one| (one.at, of(one))).collect() };
            let (first, last) = line(&points(of));
            let growth = 100.0 * (last - first) / line(&points(whole)).0.max(1.0);
            let unit = if what == "files" { "" } else { " KiB" };
            println!("   {name:<12} {what:<6} {first:>9.0} to {last:>9.0}{unit}, {growth:+.2} %");
            if growth > limit {
                grew.push(format!("{what} of {name} by {growth:.2} %"));
            }
        }
    }
    Ok(grew)
}

fn sample(pid: u32, data: &Path, at: f64) -> Result<Sample> {
    let usage = usage::usage(pid)?;
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
    let entries = std::fs::read_dir(data).into_iter().flatten().flatten();
    let disk: u64 = entries.filter_map(|entry| Some(entry.metadata().ok()?.len())).sum();
    Ok(Sample {
        at,
        rss: usage.rss as f64 / 1024.0,
        own: usage.own as f64 / 1024.0,
        files: files as f64,
        disk: disk as f64 / 1024.0,
    })
}

/// Ends of the straight line that fits best (least squares).
fn line(points: &[(f64, f64)]) -> (f64, f64) {
    let count = points.len() as f64;
    let (sum_x, sum_y) = points
        .iter()
        .fold((0.0, 0.0), |sum, point| (sum.0 + point.0, sum.1 + point.1));
    let (mean_x, mean_y) = (sum_x / count, sum_y / count);
    let over: f64 = points.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    let under: f64 = points.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    let slope = if under > 0.0 { over / under } else { 0.0 };
    let at = |x: f64| mean_y + slope * (x - mean_x);
    let ends = points.first().zip(points.last());
    ends.map_or((0.0, 0.0), |(first, last)| (at(first.0), at(last.0)))
}

/// Clients that come and go at a hub.
fn load(tasks: &TaskGroup, hub: &Hub) {
    for _ in 0..READERS {
        let (api, token) = (hub.proxy.clone(), tasks.token());
        let reading = async move {
            loop {
                // What is answered is not the question here.
                let _ = api.list("/api/v1/services?resourceVersion=0").await;
                let watch = "/apis/discovery.k8s.io/v1/endpointslices?watch=1&resourceVersion=0";
                drop(api.stream(watch).await);
                tokio::time::sleep(READ_EVERY).await;
            }
        };
        tasks.spawn("reader", async move {
            token.run_until_cancelled(reading).await;
        });
    }
}

/// Changes one slice after the other in the cloud.
fn write(pool: &TestPool) {
    let (api, token) = (pool.cloud.api.clone(), pool.setup.tasks.token());
    let writing = async move {
        for turn in 0.. {
            let _ = fixture::touch(&api, turn).await;
            tokio::time::sleep(WRITE_EVERY).await;
        }
    };
    pool.setup.tasks.spawn("writer", async move {
        token.run_until_cancelled(writing).await;
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_ignores_what_goes_up_and_down() {
        let steady: Vec<(f64, f64)> = (0..100).map(|at| (f64::from(at), 50.0 + f64::from(at % 2))).collect();
        let (first, last) = line(&steady);
        assert!((last - first).abs() < 0.1, "{first} {last}");
        let rising: Vec<(f64, f64)> = (0..100).map(|at| (f64::from(at), 50.0 + f64::from(at))).collect();
        let (first, last) = line(&rising);
        assert!(
            (first - 50.0).abs() < 0.01 && (last - 149.0).abs() < 0.01,
            "{first} {last}"
        );
    }
}
