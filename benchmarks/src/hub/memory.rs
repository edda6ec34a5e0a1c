//! Memory of a hub: without clients, and with 20 pods that list and watch Services and EndpointSlices (row 23).

use std::time::Duration;

use anyhow::Result;

use super::access::{self, Access, Running};
use super::world::{ALL_SERVICES, World};
use crate::load::{PROTOBUF, Session, Watchers};
use crate::memory::mib;
use crate::samples::ALL_SLICES;
use crate::table::{Notes, Unit};

/// Pods of a node.
pub(super) const PODS: usize = 20;
/// Time in which a hub reads what it copies without being asked, releases what no list uses, and returns memory.
const SETTLE: Duration = Duration::from_secs(30);

pub(super) async fn measure(running: &mut Running, world: &World, notes: &mut Notes<'_>) -> Result<()> {
    tokio::time::sleep(SETTLE).await;
    read(running, "no client", notes)?;
    let tasks = world.setup.tasks.child();
    let sessions = pods(world, running.port)?;
    let watchers = Watchers::default();
    for session in &sessions {
        for path in [ALL_SERVICES, ALL_SLICES] {
            access::list_patiently(session, path).await?;
            let watch = format!("{path}?watch=1&resourceVersion={}", world.resource_version().await?);
            watchers.open(&tasks, session, &watch, PROTOBUF).await?;
        }
    }
    tokio::time::sleep(SETTLE).await;
    read(running, "20 pods list and watch 1,000 Services and slices", notes)?;
    if running.access != Access::Direct {
        idle(running, notes).await?;
    }
    let _ = tasks.shutdown(SETTLE).await;
    Ok(())
}

/// CPU time of a hub whose data does not change.
async fn idle(running: &mut Running, notes: &mut Notes<'_>) -> Result<()> {
    let before = running.cpu()?;
    tokio::time::sleep(SETTLE).await;
    let idle = running.cpu()?.saturating_sub(before);
    let per_second = idle.as_secs_f64() * 1e6 / SETTLE.as_secs_f64();
    let what = "nothing changes, 20 pods watch: CPU per second";
    notes.add("27", what, Unit::Micros, per_second);
    Ok(())
}

/// A connection for each pod; no hub filters what they read.
pub(super) fn pods(world: &World, port: u16) -> Result<Vec<Session>> {
    let pod = |number| world.pod(port, format!("pod-{number:02}/v1").leak());
    (0..PODS).map(pod).collect()
}

fn read(running: &mut Running, what: &str, notes: &mut Notes<'_>) -> Result<()> {
    if let Some(usage) = running.usage()? {
        notes.add("23", &format!("RSS, {what}"), Unit::Mib, mib(usage.rss));
        notes.add("23", &format!("PSS, {what}"), Unit::Mib, mib(usage.pss));
    }
    Ok(())
}
