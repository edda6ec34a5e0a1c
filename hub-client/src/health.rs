//! Probes the cloud and the coordinator, and reads the coordinator's state of the pool's data.

mod cloud;
pub mod judge;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use yurt_pool_protocol::feed::PoolStatus;
use yurt_pool_protocol::names::FEED_PATH;
use yurt_pool_protocol::source::CoordinatorState;
use yurt_runtime::Clock;
use yurt_runtime::http::client::{ClientError, HttpClient};

use crate::failures::Failures;
use crate::upstream::{CertificateFiles, CoordinatorClient, describe_answer};

pub use cloud::probe_cloud;

/// Time between probes while they succeed.
const EVERY: Duration = Duration::from_secs(5);
/// Time to the next probe after a failure.
const AGAIN: Duration = Duration::from_secs(1);
/// Maximum time of a probe; a longer one counts as failed.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Consecutive failed probes after which the coordinator counts as unreachable.
const FAILURES: u32 = 2;
/// Consecutive failed probes after which the cloud gets no request before what this node holds is returned.
const LOST: u32 = 2;

/// Maximum time of a request that a cloud that is up does not answer. kube-apiserver itself answers within 60 s.
pub(crate) const ANSWERED_WITHIN: Duration = Duration::from_secs(70);

/// Failure key: the cloud does not answer.
pub const CLOUD: &str = "cloud";
/// Failure key: the coordinator does not answer.
pub const COORDINATOR: &str = "coordinator";

/// Failure key: the coordinator speaks another version of the feed.
pub const FEED_VERSION: &str = "feed version";

/// Reachability of the cloud.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CloudReach {
    /// 0 while a server is judged to be up; else the consecutive failed probes of the best one. `None` before the first
    /// judgement.
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

/// Reason why the coordinator's state is unknown.
#[derive(Debug, thiserror::Error)]
pub enum NoStatus {
    /// It answered with an error.
    #[error("{}", describe_answer(*.0, .1))]
    Answer(StatusCode, Bytes),
    /// The request failed.
    #[error(transparent)]
    Request(#[from] ClientError),
    /// Its answer is not the state.
    #[error(transparent)]
    Unreadable(#[from] serde_json::Error),
}

// === impl NoStatus ===

impl NoStatus {
    /// True if the coordinator answers, and refuses this hub.
    fn is_refusal(&self) -> bool {
        matches!(self, Self::Answer(StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, _))
    }

    fn describe(&self, files: &CertificateFiles) -> String {
        match self {
            Self::Answer(status, body) => files.describe_answer(*status, body),
            Self::Request(error) => files.describe(error),
            Self::Unreadable(error) => error.to_string(),
        }
    }
}

// === impl CloudReach ===

impl CloudReach {
    /// True if a server is judged to be up.
    #[must_use]
    pub fn is_up(self) -> bool {
        self.failed_probes == Some(0)
    }

    /// True if the last probe failed at every server; false before the first judgement.
    #[must_use]
    pub fn is_failing(self) -> bool {
        self.failed_probes.is_some_and(|failed| failed > 0)
    }

    /// True after two failed probes in a row: requests to the cloud are futile at present.
    #[must_use]
    pub fn is_lost(self) -> bool {
        self.failed_probes.is_some_and(|failed| failed >= LOST)
    }
}

/// Returns the cloud's answer to a request; `None` if there is none within `limit` and the cloud is not up, or within
/// `max`.
pub(crate) async fn answer_within<T>(
    (limit, max): (Duration, Duration),
    mut reach: watch::Receiver<CloudReach>,
    answer: impl Future<Output = T>,
) -> Option<T> {
    let not_up = async {
        tokio::time::sleep(limit).await;
        // An error is the end of the prober: the hub stops.
        let _ = reach.wait_for(|reach| !reach.is_up()).await;
    };
    tokio::select! {
        biased;
        answer = answer => Some(answer),
        () = not_up => None,
        () = tokio::time::sleep(max) => None,
    }
}

/// Probes the coordinator until `token` is cancelled; `wake` triggers an immediate probe.
pub async fn probe_coordinator(
    coordinator: CoordinatorClient,
    clock: Clock,
    reach: watch::Sender<CoordinatorReach>,
    wake: Arc<Notify>,
    failures: Failures,
    token: CancellationToken,
) {
    let (client, files) = (coordinator.shared, coordinator.files);
    let (mut failed, mut first_failure) = (0_u32, clock.boot());
    loop {
        let probed = token.run_until_cancelled(pool_status(&client, TIMEOUT)).await;
        let Some(status) = probed else { return };
        match &status {
            Ok(status) => {
                failures.works(COORDINATOR);
                match status.other_version() {
                    Some(why) => failures.refused(FEED_VERSION, &why),
                    None => failures.works(FEED_VERSION),
                }
                failed = 0;
            }
            Err(unknown) => {
                let why = unknown.describe(&files);
                let shown = format!("{}: {why}", client.server());
                match unknown.is_refusal() {
                    true => failures.refused(COORDINATOR, &shown),
                    false => failures.unanswered(COORDINATOR, &shown),
                }
                failed = failed.saturating_add(1);
                if failed == 1 {
                    first_failure = clock.boot();
                }
                if failed == FAILURES && !unknown.is_refusal() {
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
/// Reason of the failure.
pub async fn pool_status(client: &HttpClient, timeout: Duration) -> Result<PoolStatus, NoStatus> {
    let (status, _, body) = client.request_json(Method::GET, FEED_PATH, None, timeout).await?;
    match status {
        StatusCode::OK => Ok(serde_json::from_slice(&body)?),
        _ => Err(NoStatus::Answer(status, body)),
    }
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
    use super::*;

    const LIMITS: (Duration, Duration) = (Duration::from_secs(4), ANSWERED_WITHIN);

    /// An answer after so many seconds.
    async fn after(seconds: u64) -> u64 {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        seconds
    }

    #[tokio::test(start_paused = true)]
    async fn request_goes_on_while_the_cloud_is_up_and_ends_at_its_limit_without_it() {
        let up = CloudReach { failed_probes: Some(0) };
        let reach = watch::Sender::new(up);
        let within = |seconds| answer_within(LIMITS, reach.subscribe(), after(seconds));
        assert_eq!(
            [within(3).await, within(69).await, within(71).await],
            [Some(3), Some(69), None]
        );
        let begun = tokio::time::Instant::now();
        let falling = async {
            after(20).await;
            reach.send_replace(CloudReach { failed_probes: Some(1) });
        };
        let (answer, ()) = tokio::join!(within(60), falling);
        assert_eq!((answer, begun.elapsed().as_secs()), (None, 20));
        for failed_probes in [None, Some(1)] {
            reach.send_replace(CloudReach { failed_probes });
            assert_eq!([within(3).await, within(5).await], [Some(3), None], "{failed_probes:?}");
        }
    }
}
