//! Lists (row 25), reads by name (row 28), and a restart on the data of the disk (row 24).

use std::time::Duration;

use anyhow::Result;
use http::Method;
use yurt_workspace::Stopwatch;

use super::access::{self, Access, Running};
use super::world::{KUBE_PROXY, SERVICE_PATH, World, name};
use crate::load::{Ask, PROTOBUF, Session, quantile};
use crate::memory::mib;
use crate::samples::ALL_SLICES;
use crate::table::{Notes, Unit};

/// Lists whose CPU time is measured, after one that fills caches.
const LISTS: usize = 20;
/// Reads by name.
const READS: usize = 1_000;
/// Time for writes to the disk before the kill.
const SETTLE: Duration = Duration::from_secs(6);
/// A list that lacks more is not full: the content of objects varies a little.
const FULL: f64 = 0.98;

pub(super) async fn measure(running: &mut Running, world: &World, notes: &mut Notes<'_>) -> Result<()> {
    let session = world.pod(running.port, KUBE_PROXY)?;
    access::list(&session, ALL_SLICES).await?;
    let (cpu, bytes) = lists(running, &session).await?;
    if running.access != Access::Direct {
        let what = "LIST 1,000 slices, kube-proxy, filtered, protobuf: CPU";
        notes.add("25", what, Unit::Millis, cpu);
    }
    notes.add("25", "bytes of that answer", Unit::Mib, mib(bytes));
    reads(&session, notes).await?;
    drop(session);
    if running.access.is_hub() {
        tokio::time::sleep(SETTLE).await;
        let (healthy, listed) = running.restart(world, (bytes as f64 * FULL) as u64).await?;
        let millis = |time: Duration| time.as_secs_f64() * 1000.0;
        notes.add(
            "24",
            "killed and started: /v1/healthz answers",
            Unit::Millis,
            millis(healthy),
        );
        notes.add(
            "24",
            "killed and started: first full LIST of slices",
            Unit::Millis,
            millis(listed),
        );
    }
    Ok(())
}

/// CPU time of the process per list in milliseconds, and the bytes of one.
pub(super) async fn lists(running: &mut Running, session: &Session) -> Result<(f64, u64)> {
    let before = running.cpu()?;
    let mut bytes = 0;
    for _ in 0..LISTS {
        bytes = access::list(session, ALL_SLICES).await?;
    }
    let cpu = running.cpu()?.saturating_sub(before);
    Ok((cpu.as_secs_f64() * 1000.0 / LISTS as f64, bytes))
}

async fn reads(session: &Session, notes: &mut Notes<'_>) -> Result<()> {
    let path = format!("{SERVICE_PATH}/{}", name(1));
    let mut took = Vec::new();
    for _ in 0..READS {
        let ask = Ask {
            accept: PROTOBUF,
            ..Ask::new(Method::GET, &path, Vec::new())
        };
        let watch = Stopwatch::start();
        session.send(ask).await?;
        took.push(watch.elapsed());
    }
    took.sort_unstable();
    for (share, word) in [(0.5, "p50"), (0.99, "p99")] {
        let what = format!("GET of a Service, one at a time, {word}");
        notes.add("28", &what, Unit::Micros, quantile(&took, share) * 1000.0);
    }
    Ok(())
}
