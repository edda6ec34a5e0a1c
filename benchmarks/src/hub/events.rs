//! Changes of one slice that 1 and 20 clients watch: bytes on the link (row 26), CPU (row 27), added latency (row 28).

use std::time::Duration;

use anyhow::Result;
use yurt_runtime::TaskGroup;

use super::access::{Access, Running};
use super::memory::{PODS, pods};
use super::world::{KUBE_PROXY, World};
use crate::load::{PROTOBUF, Session, Watchers, quantile};
use crate::samples::ALL_SLICES;
use crate::table::{Notes, Unit};

/// Changes of one slice, one after the other.
const EVENTS: usize = 500;
/// Pause after an event: its work ends before the next one. The rows are about cost and latency, not about rates.
const BETWEEN: Duration = Duration::from_millis(10);
/// Time after the watches are opened.
const SETTLE: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(60);

/// Cost of one event.
pub(super) struct Cost {
    /// CPU time in microseconds.
    pub(super) cpu: f64,
    /// Bytes from the cloud.
    pub(super) bytes: f64,
    /// Arrival at the last client after that at a direct watch, sorted.
    pub(super) added: Vec<Duration>,
}

pub(super) async fn measure(running: &mut Running, world: &mut World, notes: &mut Notes<'_>) -> Result<()> {
    let one = cost(running, world, &[world.pod(running.port, KUBE_PROXY)?], EVENTS).await?;
    tell(&one, "1 kube-proxy", notes);
    let mut sessions = pods(world, running.port)?;
    sessions[0] = world.pod(running.port, KUBE_PROXY)?;
    let many = cost(running, world, &sessions, EVENTS).await?;
    tell(&many, "1 kube-proxy and 19 pods", notes);
    if running.access != Access::Direct {
        notes.add("27", "event of 11 KB, 1 kube-proxy: CPU", Unit::Micros, one.cpu);
        let more = (many.cpu - one.cpu) / (PODS - 1) as f64;
        notes.add("27", "event of 11 KB, each further pod: CPU", Unit::Micros, more);
    }
    Ok(())
}

fn tell(cost: &Cost, clients: &str, notes: &mut Notes<'_>) {
    let what = format!("event of 11 KB, {clients}: bytes from the cloud");
    notes.add("26", &what, Unit::Kib, cost.bytes / 1024.0);
    for (share, word) in [(0.5, "p50"), (0.99, "p99")] {
        let what = format!("event of 11 KB, {clients}: arrival at the last, after a direct watch, {word}");
        notes.add("28", &what, Unit::Millis, quantile(&cost.added, share));
    }
}

/// Changes a slice that each of the sessions watches.
pub(super) async fn cost(
    running: &mut Running,
    world: &mut World,
    sessions: &[Session],
    events: usize,
) -> Result<Cost> {
    let tasks = world.setup.tasks.child();
    let path = format!(
        "{ALL_SLICES}?watch=1&resourceVersion={}",
        world.resource_version().await?
    );
    let direct = Watchers::default();
    let there = direct.beside();
    let session = world.pod(world.cloud.port, KUBE_PROXY)?;
    direct.open(&tasks, &session, &path, PROTOBUF).await?;
    for session in sessions {
        there.open(&tasks, session, &path, PROTOBUF).await?;
    }
    // The first one pays for encodings and connections.
    world.touch_slice().await?;
    tokio::time::sleep(SETTLE).await;
    let cost = changes(running, world, (&direct, &there), (sessions.len(), events)).await;
    end(&tasks).await;
    cost
}

async fn changes(
    running: &mut Running,
    world: &mut World,
    (direct, there): (&Watchers, &Watchers),
    (clients, events): (usize, usize),
) -> Result<Cost> {
    let (started, started_there) = (direct.events(), there.events());
    let (cpu, traffic) = (running.cpu()?, running.link.traffic());
    let mut added = Vec::new();
    for turn in 1..=events {
        world.touch_slice().await?;
        direct.received(started + turn as u64, PATIENCE).await?;
        there
            .received(started_there + (turn * clients) as u64, PATIENCE)
            .await?;
        added.push(there.latest().saturating_sub(direct.latest()));
        tokio::time::sleep(BETWEEN).await;
    }
    added.sort_unstable();
    let cpu = running.cpu()?.saturating_sub(cpu);
    let bytes = running.link.traffic().bytes_from_cloud - traffic.bytes_from_cloud;
    Ok(Cost {
        cpu: cpu.as_secs_f64() * 1e6 / events as f64,
        bytes: bytes as f64 / events as f64,
        added,
    })
}

async fn end(tasks: &TaskGroup) {
    let _ = tasks.shutdown(SETTLE).await;
}
