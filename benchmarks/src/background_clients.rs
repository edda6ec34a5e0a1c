//! Cost of other clients for a healthy one (row 13): one watcher of renewed leases, alone, with watches that are never
//! read, and with clients that reconnect all the time.

use std::convert::Infallible;
use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use futures_util::future::{try_join, try_join_all};
use http::Method;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::task::JoinSet;
use yurt_workspace::Stopwatch;

use super::leases::{name, renewal};
use super::load::{Ask, Connector, JSON, Job, MERGE, Session, quantile, series};
use super::options::Scale;
use super::samples::{NODE_LEASES, lease};
use super::system_under_test::SystemUnderTest;
use super::table::{Notes, Unit};

/// All of them are more than the 256 KiB that a client takes without being read.
const LEASES: usize = 1000;
/// Renewals per second.
const RATES: [u32; 2] = [100, 1000];
/// Duration of one measurement.
const SECONDS: usize = 5;
/// Background clients at a time.
const BACKGROUND_CLIENTS: usize = 8;
/// Interval at which a reconnecting client reconnects.
const AGAIN: Duration = Duration::from_millis(500);
/// Connections that renew, and renewals under way on each at the most.
const SESSIONS: usize = 4;
const PER_SESSION: usize = 16;
/// All that is sent arrives within this time.
const PATIENCE: Duration = Duration::from_secs(60);
const SETTLE: Duration = Duration::from_secs(2);
/// Parameters of a watch that begins with all there is, and of one that does not.
const FROM_THE_START: &str = "";
const FROM_NOW: &str = "&resourceVersion=0&sendInitialEvents=false&resourceVersionMatch=NotOlderThan";
/// Text before a renewal's time in a watch event. A day, `T`, and a time with six digits of a second follow.
const RENEWED: &str = r#""renewTime":""#;

/// Other clients that are connected during the measurement.
#[derive(Clone, Copy)]
enum BackgroundClients {
    None,
    /// Watches that are never read.
    Stalled,
    /// Watches of everything that there is, each over a new connection.
    Reconnecting,
}

impl fmt::Display for BackgroundClients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("alone"),
            Self::Stalled => write!(f, "beside {BACKGROUND_CLIENTS} that never read"),
            Self::Reconnecting => write!(
                f,
                "beside {BACKGROUND_CLIENTS} that reconnect every {} ms",
                AGAIN.as_millis()
            ),
        }
    }
}

pub(super) async fn measure(system: SystemUnderTest, scale: Scale, notes: &mut Notes<'_>) -> Result<()> {
    let sessions: Vec<Session> = (0..SESSIONS).map(|_| system.session()).collect::<Result<_>>()?;
    let leases = scale.of(LEASES);
    series(&sessions, PER_SESSION, leases, |at| Job {
        method: Method::POST,
        path: NODE_LEASES.to_owned(),
        content_type: JSON,
        body: lease(&name(at), 0, None).to_string().into(),
    })
    .await?;
    let mut renewals = Renewals {
        sessions,
        leases,
        next: 0,
    };
    for rate in RATES {
        for background_clients in [
            BackgroundClients::None,
            BackgroundClients::Stalled,
            BackgroundClients::Reconnecting,
        ] {
            let count = scale.of(SECONDS * rate as usize);
            let took = beside(background_clients, &system, &mut renewals, rate, count).await?;
            for (share, quantile_name) in [(0.5, "p50"), (0.99, "p99")] {
                let what = format!(
                    "one watcher, {rate} renewals a second, {background_clients}: sent to arrival, {quantile_name}"
                );
                notes.add("13", &what, Unit::Millis, quantile(&took, share));
            }
        }
    }
    Ok(())
}

/// Delays of `count` renewals until the watcher received them, with `background_clients` active; sorted.
async fn beside(
    background_clients: BackgroundClients,
    system: &SystemUnderTest,
    renewals: &mut Renewals,
    rate: u32,
    count: usize,
) -> Result<Vec<Duration>> {
    let (mut unread, mut again) = (Vec::new(), JoinSet::new());
    for _ in 0..BACKGROUND_CLIENTS {
        match background_clients {
            BackgroundClients::None => {}
            BackgroundClients::Stalled => {
                let session = system.session()?;
                unread.push((watch(&session, FROM_THE_START).await?, session));
            }
            BackgroundClients::Reconnecting => {
                again.spawn(begin_again(system.connector()));
            }
        }
    }
    let healthy = system.session()?;
    let told = watch(&healthy, FROM_NOW).await?;
    tokio::time::sleep(SETTLE).await;
    let measured = renewals.until_they_arrive(told, rate, count);
    tokio::select! {
        took = measured => took,
        Some(ended) = again.join_next() => match ended.context("a background client was lost")? {
            Ok(never) => match never {},
            Err(error) => Err(error.context("a background client")),
        },
    }
}

/// Opens a watch of all leases, does not read it.
async fn watch(session: &Session, from: &str) -> Result<Incoming> {
    let path = format!("{NODE_LEASES}?watch=1&timeoutSeconds=3600{from}");
    let (body, _) = session.open(Ask::new(Method::GET, &path, Bytes::new())).await?;
    Ok(body)
}

/// Watches from the start over a new connection, again and again. A server may end such a watch.
async fn begin_again(connector: Connector) -> Result<Infallible> {
    loop {
        let turn = tokio::time::sleep(AGAIN);
        let session = connector.session()?;
        let read = async {
            let mut body = watch(&session, FROM_THE_START).await?;
            while let Some(Ok(_)) = body.frame().await {}
            std::future::pending().await
        };
        tokio::select! {
            failed = read => return failed,
            () = turn => {}
        }
    }
}

/// Renews leases in turn; each renewal has its own number, which is also its time.
struct Renewals {
    sessions: Vec<Session>,
    leases: usize,
    next: usize,
}

// === impl Renewals ===

impl Renewals {
    /// Sends the next `count` at `rate` a second, and takes the time of each from there to its event in `told`.
    async fn until_they_arrive(&mut self, told: Incoming, rate: u32, count: usize) -> Result<Vec<Duration>> {
        let first = self.next;
        self.next += count;
        let clock = Stopwatch::start();
        let workers = SESSIONS * PER_SESSION;
        let work = async |worker: usize| {
            let mut sent = Vec::new();
            for at in (worker..count).step_by(workers) {
                let due = Duration::from_secs(at as u64) / rate;
                tokio::time::sleep(due.saturating_sub(clock.elapsed())).await;
                let path = format!("{NODE_LEASES}/{}", name((first + at) % self.leases));
                let body = renewal((first + at) as u64);
                sent.push((at, clock.elapsed()));
                let ask = Ask {
                    content_type: MERGE,
                    ..Ask::new(Method::PATCH, &path, body)
                };
                self.sessions[worker % SESSIONS].send(ask).await?;
            }
            Ok::<_, anyhow::Error>(sent)
        };
        let arrivals = tokio::time::timeout(PATIENCE, arrivals(told, clock, first, count));
        let (arrived, sent) = try_join(
            async { arrivals.await.context("not all renewals arrived in time")? },
            try_join_all((0..workers).map(work)),
        )
        .await?;
        let mut took: Vec<Duration> = sent
            .into_iter()
            .flatten()
            .map(|(at, sent)| arrived[at].saturating_sub(sent))
            .collect();
        took.sort_unstable();
        Ok(took)
    }
}

/// When each of `count` renewals arrived.
async fn arrivals(mut told: Incoming, clock: Stopwatch, first: usize, count: usize) -> Result<Vec<Duration>> {
    let (mut arrived, mut missing) = (vec![None; count], count);
    let mut text = String::new();
    while missing > 0 {
        let frame = told.frame().await.context("the healthy watch has ended")??;
        text.push_str(&String::from_utf8_lossy(frame.data_ref().map_or(&[], |data| data)));
        let now = clock.elapsed();
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        for line in text[..whole].lines() {
            let renewal = number_of(line).with_context(|| format!("not a renewal: {line}"))?;
            let place = renewal.checked_sub(first).and_then(|at| arrived.get_mut(at));
            let place = place.with_context(|| format!("renewal {renewal} was not sent"))?;
            ensure!(place.replace(now).is_none(), "renewal {renewal} arrived twice");
            missing -= 1;
        }
        text.drain(..whole);
    }
    Ok(arrived.into_iter().flatten().collect())
}

/// The number of the renewal that an event of a watch tells of.
fn number_of(event: &str) -> Option<usize> {
    let time = event.split_once(RENEWED)?.1.split_once('.')?.1;
    time.get(..6)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewal_is_known_by_its_time() {
        let event = format!(
            r#"{{"type":"MODIFIED","object":{{"spec":{}}}}}"#,
            lease("a", 1_000_042, None)["spec"]
        );
        assert_eq!(number_of(&event), Some(42));
    }
}
