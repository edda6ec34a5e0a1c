//! Probes of the cloud's servers, each on its own, and the judgement of their results.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use http::{Method, StatusCode};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use yurt_runtime::http::client::{ClientError, HttpClient};

use super::judge::{self, Judge, Probe, SUSPECT};
use super::{CLOUD, CloudReach, TIMEOUT};
use crate::failures::Failures;
use crate::upstream::{CertificateFiles, Cloud, CloudServer};

/// Head start of each server before the next one in the order of the flag, at the hub's start.
const HEAD_START: Duration = Duration::from_millis(250);
/// Time between attempts of one probe of a server that is not known to be up.
const PACE: Duration = Duration::from_millis(500);
/// Time between two looks at a server's silence during a probe.
const LOOK_CLOSELY: Duration = Duration::from_millis(250);
/// Minimum time between probes that are triggered by other events.
const SPACING: Duration = Duration::from_millis(200);
/// Maximum attempts of one probe. Each but the first uses a connection of its own: lost packets of one do not delay
/// the others.
const ATTEMPTS: usize = 8;

/// Judges of all servers, and everything that follows from their judgement.
struct Panel {
    cloud: Arc<Cloud>,
    judges: Mutex<Vec<Judge>>,
    reach: watch::Sender<CloudReach>,
    failures: Failures,
    began: Instant,
}

/// Cause of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// It was due, or a connection has ended.
    Due,
    /// A request failed.
    Failure,
    /// Nothing arrives from the server.
    Silence,
}

/// Probes the cloud until `token` is cancelled; `wake` triggers an immediate probe.
pub async fn probe_cloud(
    cloud: Arc<Cloud>,
    reach: watch::Sender<CloudReach>,
    wake: Arc<Notify>,
    failures: Failures,
    token: CancellationToken,
) {
    let places = 0..cloud.len();
    let panel = Panel {
        judges: Mutex::new(vec![Judge::default(); places.len()]),
        cloud,
        reach,
        failures,
        began: Instant::now(),
    };
    let wakes: Vec<_> = places.clone().map(|_| Notify::new()).collect();
    let waking = async {
        loop {
            wake.notified().await;
            wakes.iter().for_each(Notify::notify_one);
        }
    };
    let probing = join_all(places.map(|place| panel.probe(place, &wakes[place])));
    let all = async { tokio::join!(probing, waking) };
    token.run_until_cancelled(all).await;
}

// === impl Panel ===

impl Panel {
    /// Probes the server at this index forever.
    async fn probe(&self, place: usize, wake: &Notify) {
        tokio::time::sleep(HEAD_START * u32::try_from(place).unwrap_or(u32::MAX)).await;
        let server = self.cloud.at(place);
        let mut cause = Cause::Due;
        loop {
            let (began, judge) = (Instant::now(), self.judges.lock()[place].clone());
            let pace = match judge.is_up() {
                Some(true) if cause != Cause::Silence => SUSPECT,
                Some(true) => LOOK_CLOSELY,
                _ => PACE,
            };
            let mut attempts = pin!(attempts(server, self.cloud.files(), pace));
            let answer = loop {
                tokio::select! {
                    answer = &mut attempts => break answer,
                    () = tokio::time::sleep(LOOK_CLOSELY) => {
                        self.judge(place, None, |judge, now| judge.silent(now, server.signs.silence()));
                    }
                }
            };
            let (probe, why) = match answer {
                Ok(()) => (Probe::Answered, None),
                Err((probe, why)) => (probe, Some(format!("{}: {why}", server.beats.server()))),
            };
            let pause = self.judge(place, why, |judge, now| {
                judge.probed(now, probe);
                judge.pause(began.elapsed())
            });
            if probe == Probe::Answered && cause == Cause::Failure {
                // The failure was a short break. What it cost is made good now.
                self.reach.send_modify(|_| ());
            }
            let next = Instant::now() + pause;
            tokio::time::sleep_until(next.min(began + SPACING)).await;
            cause = self.wait(place, next, wake).await;
        }
    }

    /// Waits until the next probe of a server is due.
    async fn wait(&self, place: usize, next: Instant, wake: &Notify) -> Cause {
        let signs = &self.cloud.at(place).signs;
        loop {
            let is_up = self.judges.lock()[place].is_up() == Some(true);
            tokio::select! {
                () = wake.notified() => return Cause::Failure,
                () = signs.connection_ended(), if is_up => return Cause::Due,
                () = tokio::time::sleep_until(next) => return Cause::Due,
                () = tokio::time::sleep(judge::next_look(signs.silence())), if is_up => {
                    if self.judge(place, None, |judge, now| judge.silent(now, signs.silence())) {
                        return Cause::Silence;
                    }
                }
            }
        }
    }

    /// Calls `change` with the judge of a server and the present time, and applies the new judgement. `why` is the
    /// reason of a failed probe.
    fn judge<T>(&self, place: usize, why: Option<String>, change: impl FnOnce(&mut Judge, Duration) -> T) -> T {
        let mut judges = self.judges.lock();
        let (now, before) = (self.began.elapsed(), judges[place].is_up());
        let result = change(&mut judges[place], now);
        let server = self.cloud.at(place);
        server
            .availability
            .set(judges[place].is_up(), judges[place].may_answer());
        let after = judges[place].is_up();
        if after == Some(false) && before == Some(true) {
            // Their connections may be dead without a sign.
            server.reconnect();
        }
        let failed = failed_probes(&judges);
        self.report(server, failed, why, (before != after).then_some(after));
        let current = self.cloud.current();
        let chosen = judge::choose(self.cloud.mode(), &judges, current, now);
        if chosen != current {
            self.cloud.use_server(chosen);
            tracing::info!(server = self.cloud.server().beats.server(), "Cloud server changed");
        }
        drop(judges);
        self.reach.send_if_modified(|reach| {
            let is_news = reach.failed_probes != failed;
            reach.failed_probes = failed;
            is_news
        });
        result
    }

    /// Records why the cloud is away, and logs the new judgement about a server.
    fn report(&self, server: &CloudServer, failed: Option<u32>, why: Option<String>, changed: Option<Option<bool>>) {
        match (failed, why) {
            (Some(0), _) => self.failures.works(CLOUD),
            (_, Some(why)) => self.failures.unanswered(CLOUD, &why),
            (_, None) if changed == Some(Some(false)) => {
                let why = format!("{}: nothing arrives", server.beats.server());
                self.failures.unanswered(CLOUD, &why);
            }
            _ => {}
        }
        if let Some(is_up) = changed {
            let (server, why) = (server.beats.server(), self.failures.why(CLOUD));
            // A server that refuses this hub is down for it, and reachable.
            tracing::info!(server, is_up, why, "Cloud server's state changed");
        }
    }
}

/// Returns the failed probes of the best server; `None` if no server is up and one is not judged yet.
fn failed_probes(judges: &[Judge]) -> Option<u32> {
    let each = || judges.iter().map(Judge::failed_probes);
    if each().any(|failed| failed == Some(0)) {
        return Some(0);
    }
    each().collect::<Option<Vec<_>>>()?.into_iter().min()
}

/// Requests the server's health over its open connection, and every `pace` over a new one. Ends when one attempt
/// succeeds, when all have failed, or after [`TIMEOUT`].
async fn attempts(server: &CloudServer, files: &CertificateFiles, pace: Duration) -> Result<(), (Probe, String)> {
    let mut running = FuturesUnordered::from_iter([livez(&server.beats, files)]);
    let mut begun = 1;
    let end = Instant::now() + TIMEOUT;
    loop {
        tokio::select! {
            answer = running.next() => match answer {
                Some(Err(_)) if !running.is_empty() => {}
                Some(answer) => return answer,
                None => return Err((Probe::Failed, "no attempt".to_owned())),
            },
            () = tokio::time::sleep(pace), if begun < ATTEMPTS => {
                begun += 1;
                running.push(livez(&server.knocks, files));
            }
            () = tokio::time::sleep_until(end) => {
                return Err((Probe::Failed, format!("no answer within {TIMEOUT:?}")));
            }
        }
    }
}

async fn livez(client: &HttpClient, files: &CertificateFiles) -> Result<(), (Probe, String)> {
    match client.request_json(Method::GET, "/livez", None, TIMEOUT).await {
        Ok((StatusCode::OK, ..)) => Ok(()),
        Ok((status, _, body)) => {
            let why = files.describe_answer(status, &body);
            Err((Probe::Unhealthy, format!("/livez: {why}")))
        }
        // The certificates do not fit, but the server is there.
        Err(error @ ClientError::Tls { .. }) => Err((Probe::Unhealthy, files.describe(&error))),
        Err(error) => Err((Probe::Failed, error.to_string())),
    }
}
