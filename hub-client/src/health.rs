//! Probes the cloud and the coordinator, and reads the coordinator's state of the pool's data.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use http::{Method, StatusCode};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use yurt_pool_protocol::feed::PoolStatus;
use yurt_pool_protocol::names::FEED_PATH;
use yurt_pool_protocol::source::CoordinatorState;
use yurt_runtime::Clock;
use yurt_runtime::http::client::HttpClient;

use crate::failures::Failures;
use crate::upstream::Cloud;

/// Time between probes while they succeed.
const EVERY: Duration = Duration::from_secs(5);
/// Time to the next probe after a failure.
const AGAIN: Duration = Duration::from_secs(1);
/// Maximum time of a probe; a longer one counts as failed.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Time without an answer from the server in use after which the cloud's other servers are probed, too.
const ALONE: Duration = Duration::from_secs(1);
/// Consecutive failed probes after which the coordinator counts as unreachable.
const FAILURES: u32 = 2;

/// Failure key: the cloud does not answer.
pub const CLOUD: &str = "cloud";
/// Failure key: the coordinator does not answer.
pub const COORDINATOR: &str = "coordinator";

/// Failure key: the coordinator speaks another version of the feed.
pub const FEED_VERSION: &str = "feed version";

/// Reachability of the cloud.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CloudReach {
    /// Consecutive failed probes; `None` before the first answer.
    pub failed_probes: Option<u32>,
}

/// Reachability of the coordinator.
#[derive(Clone, Debug)]
pub struct CoordinatorReach {
    /// Result of the probes.
    pub state: CoordinatorState,
    /// The coordinator's last answer.
    pub status: Option<Arc<PoolStatus>>,
}

// === impl CloudReach ===

impl CloudReach {
    /// True if the last probe succeeded.
    #[must_use]
    pub fn is_up(self) -> bool {
        self.failed_probes == Some(0)
    }
}

/// Probes the cloud until `token` is cancelled; `wake` triggers an immediate probe.
pub async fn probe_cloud(
    cloud: Arc<Cloud>,
    reach: watch::Sender<CloudReach>,
    wake: Arc<Notify>,
    failures: Failures,
    token: CancellationToken,
) {
    loop {
        let ask = |place: usize| {
            let (client, failures) = (cloud.at(place).beats.clone(), &failures);
            async move {
                let answer = livez(&client).await;
                if let Err(why) = &answer {
                    failures.unanswered(CLOUD, &format!("{}: {why}", client.server()));
                }
                answer.is_ok()
            }
        };
        let found = first_that_answers(cloud.len(), cloud.current(), ask).await;
        if let Some(found) = found.filter(|found| *found != cloud.current()) {
            cloud.use_server(found);
            tracing::info!(server = cloud.server().beats.server(), "Cloud server changed");
        }
        let up = found.is_some();
        let failed = if up {
            failures.works(CLOUD);
            0
        } else {
            reach.borrow().failed_probes.unwrap_or(0).saturating_add(1)
        };
        if reach.borrow().failed_probes != Some(failed) {
            if failed == 0 || failed == FAILURES {
                let why = failures.why(CLOUD);
                tracing::info!(
                    server = cloud.server().beats.server(),
                    reachable = up,
                    why,
                    "Cloud reachability changed"
                );
            }
            reach.send_replace(CloudReach {
                failed_probes: Some(failed),
            });
        }
        if pause(up, &wake, &token).await.is_none() {
            return;
        }
    }
}

async fn livez(client: &HttpClient) -> Result<(), String> {
    match client.request_json(Method::GET, "/livez", None, TIMEOUT).await {
        Ok((StatusCode::OK, ..)) => Ok(()),
        Ok((status, ..)) => Err(format!("/livez: {status}")),
        Err(error) => Err(error.to_string()),
    }
}

/// Returns the server at index `current` if it answers, else the first other server that does. The servers are probed
/// concurrently, so dead servers add no time each. The total is [`TIMEOUT`], or [`ALONE`] longer.
async fn first_that_answers<Asked>(servers: usize, current: usize, ask: impl Fn(usize) -> Asked) -> Option<usize>
where
    Asked: Future<Output = bool>,
{
    let mut own = pin!(ask(current));
    let early = tokio::time::timeout(ALONE, &mut own).await;
    if early == Ok(true) {
        return Some(current);
    }
    let ask_one = |place: usize| {
        let asked = ask(place);
        async move { asked.await.then_some(place) }
    };
    let asked: FuturesUnordered<_> = (0..servers).filter(|place| *place != current).map(ask_one).collect();
    let other = async { pin!(asked.filter_map(std::future::ready)).next().await };
    if early == Ok(false) {
        return other.await;
    }
    // A slow server in use is preferred to a quicker one.
    let (own, other) = tokio::join!(own, tokio::time::timeout(TIMEOUT - ALONE, other));
    if own { Some(current) } else { other.ok().flatten() }
}

/// Probes the coordinator until `token` is cancelled; `wake` triggers an immediate probe.
pub async fn probe_coordinator(
    client: HttpClient,
    clock: Clock,
    reach: watch::Sender<CoordinatorReach>,
    wake: Arc<Notify>,
    failures: Failures,
    token: CancellationToken,
) {
    let (mut failed, mut first_failure) = (0_u32, clock.boot());
    loop {
        let status = pool_status(&client, TIMEOUT).await;
        match &status {
            Ok(status) => {
                failures.works(COORDINATOR);
                match status.other_version() {
                    Some(why) => failures.refused(FEED_VERSION, &why),
                    None => failures.works(FEED_VERSION),
                }
                failed = 0;
            }
            Err(why) => {
                failures.unanswered(COORDINATOR, &format!("{}: {why}", client.server()));
                failed = failed.saturating_add(1);
                if failed == 1 {
                    first_failure = clock.boot();
                }
                if failed == FAILURES {
                    tracing::warn!(server = client.server(), why, "Coordinator is unreachable");
                }
            }
        }
        let state = if failed >= FAILURES {
            CoordinatorState::Unreachable { since: first_failure }
        } else if status.is_ok() {
            CoordinatorState::Reachable
        } else {
            reach.borrow().state
        };
        let status = status.ok().map(Arc::new).or_else(|| reach.borrow().status.clone());
        reach.send_if_modified(|known| {
            let changed = known.state != state || known.status != status;
            *known = CoordinatorReach { state, status };
            changed
        });
        if pause(failed == 0, &wake, &token).await.is_none() {
            return;
        }
    }
}

/// Requests the coordinator's state of the pool's data.
///
/// # Errors
/// Reason of the failure, for the log.
pub async fn pool_status(client: &HttpClient, timeout: Duration) -> Result<PoolStatus, String> {
    let answer = client.request_json(Method::GET, FEED_PATH, None, timeout).await;
    let (status, _, body) = answer.map_err(|error| error.to_string())?;
    if status != StatusCode::OK {
        return Err(format!("{status}: {}", String::from_utf8_lossy(&body).trim()));
    }
    serde_json::from_slice(&body).map_err(|error| error.to_string())
}

async fn pause(up: bool, wake: &Notify, token: &CancellationToken) -> Option<()> {
    tokio::select! {
        () = token.cancelled() => None,
        () = wake.notified() => Some(()),
        () = tokio::time::sleep(if up { EVERY } else { AGAIN }) => Some(()),
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    /// Probes servers that answer after the given number of milliseconds; those without a number never answer.
    async fn ask(current: usize, servers: &[Option<u64>]) -> (Option<usize>, Duration) {
        let began = Instant::now();
        let ask = |place: usize| async move {
            let after = servers[place].map_or(TIMEOUT, Duration::from_millis);
            tokio::time::sleep(after).await;
            servers[place].is_some()
        };
        (first_that_answers(servers.len(), current, ask).await, began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn silent_servers_cost_one_timeout_together() {
        let (found, took) = ask(1, &[None, None, None, Some(50), Some(20)]).await;
        assert_eq!(found, Some(4));
        assert!(took <= TIMEOUT, "{took:?}");
        let (found, took) = ask(0, &[None, None]).await;
        assert_eq!(found, None);
        assert!(took <= TIMEOUT, "{took:?}");
        assert_eq!(ask(0, &[None]).await.0, None);
    }

    #[tokio::test(start_paused = true)]
    async fn server_in_use_is_left_only_when_it_fails() {
        let slow = ask(0, &[Some(2500), Some(1)]).await;
        assert_eq!(slow.0, Some(0));
        let refuses = |place: usize| std::future::ready(place == 2);
        assert_eq!(first_that_answers(3, 0, refuses).await, Some(2));
        let (found, took) = ask(1, &[Some(1), Some(10)]).await;
        assert_eq!(
            (found, took),
            (Some(1), Duration::from_millis(10)),
            "no other server is waited for"
        );
    }
}
