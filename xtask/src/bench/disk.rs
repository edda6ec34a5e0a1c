//! Bytes written by the heartbeats of 100 and 1,000 nodes, measured over a minute or two of real time (row 14).

use std::time::Duration;

use anyhow::Result;
use http::Method;

use super::Scale;
use super::load::{Ask, Job, Session, series};
use super::memory::mib;
use super::samples::{NODE_LEASES, lease};
use super::subject::Subject;
use super::table::{Notes, Unit};

/// A kubelet renews its lease every ten seconds.
const BEAT: Duration = Duration::from_secs(10);
/// Rounds of beats that are measured: two minutes, so that whatever happens once a minute is in.
const ROUNDS: usize = 12;

pub(super) async fn measure(subject: Subject, scale: Scale, notes: &mut Notes<'_>) -> Result<()> {
    let sessions: Vec<Session> = (0..2).map(|_| subject.session()).collect::<Result<_>>()?;
    let rounds = scale.of(ROUNDS);
    let mut created = 0;
    for (nodes, what) in [(100, "100"), (1000, "1,000")] {
        for at in created..nodes {
            let object = lease(&name(at), 0, None).to_string();
            sessions[0].send(Ask::new(Method::POST, NODE_LEASES, object)).await?;
        }
        created = nodes;
        let before = subject.usage()?.written;
        let mut round = tokio::time::interval(BEAT);
        for turn in 0..rounds {
            round.tick().await;
            series(&sessions, 2, nodes, |at| Job {
                method: Method::PATCH,
                path: format!("{NODE_LEASES}/{}", name(at)),
                content_type: super::load::MERGE,
                body: beat(turn, at).into(),
            })
            .await?;
        }
        round.tick().await;
        let written = subject.usage()?.written - before;
        let hours = rounds as f64 * BEAT.as_secs_f64() / 3600.0;
        notes.add(
            "14",
            &format!("written per hour by the heartbeats of {what} nodes"),
            Unit::Mib,
            mib(written) / hours,
        );
    }
    Ok(())
}

fn beat(turn: usize, at: usize) -> String {
    let renewed = lease("", (turn * 10_000_000 + at + 1) as u64, None);
    serde_json::json!({ "spec": { "renewTime": renewed["spec"]["renewTime"] } }).to_string()
}

fn name(at: usize) -> String {
    format!("node-{at:04}")
}
