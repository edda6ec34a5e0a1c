//! Whether the cloud and the coordinator answer, and what the coordinator says of the pool's data.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode};
use serde::Deserialize;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::pool_scope::SharedResource;
use yurt_runtime::Clock;
use yurt_runtime::http::client::HttpClient;

use crate::replicas::source::CoordinatorState;
use crate::upstream::Cloud;

/// Time between probes while the answer is yes.
const EVERY: Duration = Duration::from_secs(5);
/// Time to the next probe after a no.
const AGAIN: Duration = Duration::from_secs(1);
/// A probe that takes longer is a no.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Failed probes in a row after which the coordinator counts as unreachable.
const FAILURES: u32 = 2;

/// What is known of the cloud.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CloudReach {
    /// Failed probes in a row; `None` before the first answer.
    pub failed_probes: Option<u32>,
}

/// What is known of the coordinator.
#[derive(Clone, Debug)]
pub struct CoordinatorReach {
    /// Whether it answers.
    pub state: CoordinatorState,
    /// Its last answer.
    pub status: Option<Arc<PoolStatus>>,
}

/// Answer of `GET /yurt/v1/feed`.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct PoolStatus {
    /// Random id of the coordinator's store.
    pub store: String,
    /// Epoch of the present leader.
    #[serde(default)]
    pub epoch: u64,
    /// Identity of the present leader; empty = nobody.
    #[serde(default)]
    pub holder: String,
    /// How bodies of the feed may be compressed.
    #[serde(default)]
    pub encodings: Vec<String>,
    /// What the coordinator has.
    #[serde(default)]
    pub collections: BTreeMap<String, CollectionStatus>,
    /// Which resources the pool shares; `None` from a coordinator that cannot say.
    #[serde(default)]
    pub scope: Option<ScopeStatus>,
}

/// Which resources the pool shares, as the coordinator says.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct ScopeStatus {
    /// By its command line.
    #[serde(default)]
    pub configured: Vec<SharedResource>,
    /// By a leader; `None` as long as none ever said.
    #[serde(default)]
    pub told: Option<Vec<SharedResource>>,
}

/// One collection at the coordinator.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct CollectionStatus {
    /// Timeline.
    #[serde(default)]
    pub generation: u64,
    /// `C`.
    pub applied_up_to: String,
    /// Whether it is complete.
    #[serde(default)]
    pub complete: bool,
}

// === impl CloudReach ===

impl CloudReach {
    /// Whether the last probe succeeded.
    #[must_use]
    pub fn is_up(self) -> bool {
        self.failed_probes == Some(0)
    }
}

/// Probes the cloud for ever; `nudge` asks for a probe at once.
pub async fn probe_cloud(
    cloud: Arc<Cloud>,
    reach: watch::Sender<CloudReach>,
    nudge: Arc<Notify>,
    token: CancellationToken,
) {
    loop {
        let answer = cloud
            .server()
            .beats
            .request_json(Method::GET, "/livez", None, TIMEOUT)
            .await;
        let up = answer.as_ref().is_ok_and(|(status, ..)| *status == StatusCode::OK);
        let failed = if up {
            0
        } else {
            reach.borrow().failed_probes.unwrap_or(0).saturating_add(1)
        };
        if reach.borrow().failed_probes != Some(failed) {
            if failed == 0 || failed == FAILURES {
                tracing::info!(server = cloud.server().beats.server(), reachable = up, "Cloud");
            }
            reach.send_replace(CloudReach {
                failed_probes: Some(failed),
            });
        }
        if !up {
            cloud.try_next();
        }
        if pause(up, &nudge, &token).await.is_none() {
            return;
        }
    }
}

/// Probes the coordinator for ever; `nudge` asks for a probe at once.
pub async fn probe_coordinator(
    client: HttpClient,
    clock: Clock,
    reach: watch::Sender<CoordinatorReach>,
    nudge: Arc<Notify>,
    token: CancellationToken,
) {
    let (mut failures, mut first_failure) = (0_u32, clock.boot());
    loop {
        let status = pool_status(&client, TIMEOUT).await;
        match &status {
            Ok(_) => failures = 0,
            Err(why) => {
                failures = failures.saturating_add(1);
                if failures == 1 {
                    first_failure = clock.boot();
                }
                if failures == FAILURES {
                    tracing::warn!(server = client.server(), why, "Coordinator does not answer");
                }
            }
        }
        let state = if failures >= FAILURES {
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
        if pause(failures == 0, &nudge, &token).await.is_none() {
            return;
        }
    }
}

/// Asks the coordinator for its view of the pool's data.
///
/// # Errors
/// Why there is none, for the log.
pub async fn pool_status(client: &HttpClient, timeout: Duration) -> Result<PoolStatus, String> {
    let answer = client.request_json(Method::GET, "/yurt/v1/feed", None, timeout).await;
    let (status, _, body) = answer.map_err(|error| error.to_string())?;
    if status != StatusCode::OK {
        return Err(format!("{status}: {}", String::from_utf8_lossy(&body).trim()));
    }
    serde_json::from_slice(&body).map_err(|error| error.to_string())
}

async fn pause(up: bool, nudge: &Notify, token: &CancellationToken) -> Option<()> {
    tokio::select! {
        () = token.cancelled() => None,
        () = nudge.notified() => Some(()),
        () = tokio::time::sleep(if up { EVERY } else { AGAIN }) => Some(()),
    }
}
