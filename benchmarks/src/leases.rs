//! Renewals and reads of node leases (rows 7, 8). Renewals are not durable here: by design they live in memory until a
//! clean stop, at the baseline each is an etcd write.

use anyhow::Result;
use http::Method;
use serde_json::Value;
use yurt_workspace::Stopwatch;

use super::load::{Ask, JSON, Job, Session, quantile, series};
use super::options::Scale;
use super::samples::{NODE_LEASES, lease};
use super::system_under_test::SystemUnderTest;
use super::table::{Notes, Unit};

const LEASES: usize = 100;
const SERIAL: usize = 2000;
const PARALLEL: usize = 20_000;

pub(super) async fn measure(system: SystemUnderTest, scale: Scale, notes: &mut Notes<'_>) -> Result<()> {
    let sessions: Vec<Session> = (0..4).map(|_| system.session()).collect::<Result<_>>()?;
    for at in 0..LEASES {
        let object = lease(&name(at), 0, None).to_string();
        sessions[0].send(Ask::new(Method::POST, NODE_LEASES, object)).await?;
    }
    serial(&system, &sessions[0], scale.of(SERIAL), notes).await?;
    // Patches need no resourceVersion, so that requests can overlap.
    let total = scale.of(PARALLEL);
    let (before, watch) = (system.usage()?.cpu, Stopwatch::start());
    series(&sessions, 8, total, |at| Job {
        method: Method::PATCH,
        path: format!("{NODE_LEASES}/{}", name(at % LEASES)),
        content_type: super::load::MERGE,
        body: renewal(at as u64).into(),
    })
    .await?;
    let took = watch.elapsed().as_secs_f64();
    per_operation(notes, "7", "lease renewal, 32 at a time, CPU", &system, before, total)?;
    notes.add(
        "7",
        "lease renewals per second, client on the same cores",
        Unit::PerSecond,
        total as f64 / took,
    );
    let before = system.usage()?.cpu;
    let watch = Stopwatch::start();
    series(&sessions, 8, total, |at| Job {
        method: Method::GET,
        path: format!("{NODE_LEASES}/{}", name(at % LEASES)),
        content_type: JSON,
        body: Vec::new().into(),
    })
    .await?;
    let took = watch.elapsed().as_secs_f64();
    per_operation(notes, "8", "GET of a lease, CPU", &system, before, total)?;
    notes.add("8", "GETs of a lease per second", Unit::PerSecond, total as f64 / took);
    Ok(())
}

/// One after the other with the last resourceVersion, as a kubelet does.
async fn serial(system: &SystemUnderTest, session: &Session, total: usize, notes: &mut Notes<'_>) -> Result<()> {
    let path = format!("{NODE_LEASES}/{}", name(0));
    let mut held: Value = serde_json::from_slice(&session.send(Ask::new(Method::GET, &path, Vec::new())).await?)?;
    let before = system.usage()?.cpu;
    let mut took = Vec::new();
    for at in 0..total {
        let rv = held["metadata"]["resourceVersion"].as_str();
        let object = lease(&name(0), at as u64 + 1, rv).to_string();
        let watch = Stopwatch::start();
        let answer = session.send(Ask::new(Method::PUT, &path, object)).await?;
        took.push(watch.elapsed());
        held = serde_json::from_slice(&answer)?;
    }
    took.sort_unstable();
    per_operation(notes, "7", "lease renewal, one at a time, CPU", system, before, total)?;
    notes.add(
        "7",
        "lease renewal, one at a time, p50",
        Unit::Millis,
        quantile(&took, 0.5),
    );
    Ok(())
}

/// A merge patch that renews a lease at this microsecond of a day, a second late.
pub(super) fn renewal(micros: u64) -> String {
    let renewed = lease("", micros + 1_000_000, None);
    serde_json::json!({ "spec": { "renewTime": renewed["spec"]["renewTime"] } }).to_string()
}

/// Name of a lease.
pub(super) fn name(at: usize) -> String {
    format!("node-{at:04}")
}

/// Notes CPU time of the server per operation since `before`.
pub(super) fn per_operation(
    notes: &mut Notes<'_>,
    row: &'static str,
    what: &str,
    system: &SystemUnderTest,
    before: std::time::Duration,
    operations: usize,
) -> Result<()> {
    let cpu = system.usage()?.cpu.saturating_sub(before);
    notes.add(row, what, Unit::Micros, cpu.as_secs_f64() * 1e6 / operations as f64);
    Ok(())
}
