//! Cost of filters for kube-proxy's lists and events, by the number of Services whose slices are filtered (row 31).

use anyhow::Result;

use super::access::{self, Access, Running};
use super::events;
use super::reads;
use super::world::{ANNOTATED, KUBE_PROXY, SERVICES, World};
use crate::samples::ALL_SLICES;
use crate::table::{Notes, Unit};

/// Numbers of Services with a topology annotation.
const COUNTS: [usize; 3] = [0, ANNOTATED, SERVICES];
/// Changes of one slice.
const EVENTS: usize = 600;
/// Flag of both hubs that turns all filters off.
const OFF: (&str, &str) = ("disabled-resource-filters", "*");

pub(super) async fn measure(world: &mut World, access: Access, notes: &mut Notes<'_>) -> Result<()> {
    let mut plain = Running::with_flags(world, access, &[OFF]).await?;
    cost(&mut plain, world, "filters off", notes).await?;
    drop(plain);
    let mut filtering = Running::start(world, access).await?;
    for count in COUNTS {
        world.annotate(count).await?;
        cost(
            &mut filtering,
            world,
            &format!("filters on, {count} Services concerned"),
            notes,
        )
        .await?;
    }
    world.annotate(ANNOTATED).await
}

async fn cost(running: &mut Running, world: &mut World, what: &str, notes: &mut Notes<'_>) -> Result<()> {
    let session = world.pod(running.port, KUBE_PROXY)?;
    access::list(&session, ALL_SLICES).await?;
    let (cpu, _) = reads::lists(running, &session).await?;
    notes.add("31", &format!("LIST 1,000 slices, {what}: CPU"), Unit::Millis, cpu);
    let cost = events::cost(running, world, &[session], EVENTS).await?;
    notes.add("31", &format!("event of 11 KB, {what}: CPU"), Unit::Micros, cost.cpu);
    Ok(())
}
