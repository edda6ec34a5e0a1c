//! Bytes written by the heartbeats of 100 and 1,000 nodes, measured over two minutes of real time each (row 14).
//!
//! Kubelets do not beat in step: renewals and node statuses are spread evenly, second by second.

use std::time::Duration;

use anyhow::{Context, Result};
use http::Method;
use serde_json::json;

use super::load::{Ask, Job, MERGE, Session, series};
use super::options::Scale;
use super::samples::{NODE_LEASES, NODES, heartbeat, lease, node};
use super::system_under_test::{Environment, Side, SystemUnderTest};
use super::table::{Table, Unit};

/// A kubelet renews its lease this often, seconds.
const RENEW_EVERY: usize = 10;
/// A kubelet repeats a status that did not change this often, seconds.
const STATUS_EVERY: usize = 300;
/// Seconds that are measured: whatever happens once a minute is in twice.
const SECONDS: usize = 120;
/// Bytes of a node beside its status, roughly as kubelets and controllers make them.
const NODE_BYTES: usize = 3000;

/// Heartbeats whose writes are measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beats {
    Leases,
    LeasesAndStatus,
}

/// Pools that are measured, each on a server of its own.
const POOLS: [(usize, &str); 2] = [(100, "100"), (1000, "1,000")];

/// All at the same time, as two minutes are long: what a process writes does not depend on its neighbours.
pub(super) async fn measure(environment: &Environment, sides: &[Side], scale: Scale, table: &mut Table) -> Result<()> {
    let pools = sides.iter().flat_map(|side| POOLS.map(|pool| (*side, pool)));
    let pool = async |(side, (nodes, text)): (Side, (usize, &'static str))| {
        let system = SystemUnderTest::start(environment, side).await?;
        let written = beat(&system, nodes, scale).await;
        Ok::<_, anyhow::Error>((side, text, written.with_context(|| format!("{text} nodes of {side}"))?))
    };
    let measured = futures_util::future::try_join_all(pools.map(pool)).await?;
    for (side, text, written) in measured {
        for (what, bytes) in written {
            table.of(side).add(
                "14",
                &format!("written by the heartbeats of {text} nodes: {what}"),
                Unit::MegabytesPerHour,
                bytes,
            );
        }
    }
    Ok(())
}

/// Megabytes per hour for each kind of beats.
async fn beat(system: &SystemUnderTest, nodes: usize, scale: Scale) -> Result<Vec<(&'static str, f64)>> {
    let sessions: Vec<Session> = (0..2).map(|_| system.session()).collect::<Result<_>>()?;
    let seconds = scale.of(SECONDS);
    for at in 0..nodes {
        create(&sessions[0], at).await?;
    }
    let mut began = 0;
    let mut measured = Vec::new();
    for (beats, what) in [
        (Beats::Leases, "leases"),
        (Beats::LeasesAndStatus, "leases and node status"),
    ] {
        let before = system.usage()?.written;
        let mut second = tokio::time::interval(Duration::from_secs(1));
        for now in began..began + seconds {
            second.tick().await;
            let jobs = due(beats, nodes, now);
            series(&sessions, 2, jobs.len(), |at| jobs[at].job(now)).await?;
        }
        second.tick().await;
        began += seconds;
        let written = system.usage()?.written - before;
        measured.push((what, written as f64 / 1e6 * 3600.0 / seconds as f64));
    }
    Ok(measured)
}

async fn create(session: &Session, at: usize) -> Result<()> {
    let name = name(at);
    let object = lease(&name, 0, None).to_string();
    session.send(Ask::new(Method::POST, NODE_LEASES, object)).await?;
    let object = node(&name, NODE_BYTES).to_string();
    session.send(Ask::new(Method::POST, NODES, object)).await?;
    let status = Beat::Status(at).job(0);
    let ask = Ask {
        content_type: status.content_type,
        ..Ask::new(status.method, &status.path, status.body)
    };
    session.send(ask).await?;
    Ok(())
}

/// One write of one node.
#[derive(Clone, Copy)]
enum Beat {
    Lease(usize),
    Status(usize),
}

/// The beats of this second.
fn due(beats: Beats, nodes: usize, now: usize) -> Vec<Beat> {
    let every = |period: usize| (0..nodes).filter(move |at| at * period / nodes == now % period);
    let leases = every(RENEW_EVERY).map(Beat::Lease);
    let statuses = every(STATUS_EVERY).filter(|_| beats == Beats::LeasesAndStatus);
    leases.chain(statuses.map(Beat::Status)).collect()
}

// === impl Beat ===

impl Beat {
    fn job(self, now: usize) -> Job {
        let (path, body) = match self {
            Self::Lease(at) => {
                let renewed = lease("", (now * 1_000_000 + at + 1) as u64, None);
                let body = json!({ "spec": { "renewTime": renewed["spec"]["renewTime"] } });
                (format!("{NODE_LEASES}/{}", name(at)), body)
            }
            Self::Status(at) => (format!("{NODES}/{}/status", name(at)), heartbeat(now)),
        };
        Job {
            method: Method::PATCH,
            path,
            content_type: MERGE,
            body: body.to_string().into(),
        }
    }
}

fn name(at: usize) -> String {
    format!("node-{at:04}")
}
