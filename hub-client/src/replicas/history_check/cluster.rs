//! Verifies the identity of the cluster before the hub applies or verifies anything of the cloud.

use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::HistoryVerifier;
use crate::replicas::origin::{IDENTITY_PATH, OriginVerdict};
use crate::replicas::questions::get;
use crate::upstream::CloudServer;

/// Name of the failure while the cloud does not return its identity.
const CLUSTER: &str = "identity of the cluster";
/// First pause after a refusal, and the maximum to which it grows.
const REFUSED: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(300));

/// Result of the last comparison of the cloud's cluster with that of the replicas.
#[derive(Debug, Default)]
pub enum ClusterCheck {
    /// It is the same cluster, or no server has answered.
    #[default]
    Same,
    /// The cloud refused its identity, which is requested again.
    Refused {
        /// Time of the next request.
        due: Instant,
        /// Pause before that request.
        pause: Duration,
    },
    /// It is another cluster and the replicas are dropped: the process has to exit.
    Other,
}

// === impl ClusterCheck ===

impl ClusterCheck {
    /// Records a refusal.
    fn refused(&mut self) {
        if !matches!(self, Self::Refused { .. }) {
            let pause = REFUSED.0;
            let due = Instant::now() + pause;
            *self = Self::Refused { due, pause };
        }
    }

    /// True if the identity is due to be requested again; the request after that then follows a longer pause.
    pub(super) fn take_due(&mut self) -> bool {
        match self {
            Self::Refused { due, pause } if *due <= Instant::now() => {
                *pause = (*pause * 2).min(REFUSED.1);
                *due = Instant::now() + *pause;
                true
            }
            _ => false,
        }
    }
}

// === impl HistoryVerifier ===

impl HistoryVerifier {
    /// Compares the cloud's cluster with the cluster of the replicas. A cloud that does not return its identity counts
    /// as the same cluster; its identity is requested again later.
    ///
    /// # Errors
    /// No server answers, or it is another cluster and the replicas are dropped.
    pub(super) async fn check_cluster(&mut self) -> Result<(), String> {
        let failures = self.data.failures();
        let Some(uid) = self.ask_identity().await? else {
            let why = format!("GET {IDENTITY_PATH} is refused; apply manifests/pool-rbac.yaml in the cloud");
            failures.refused(CLUSTER, &why);
            self.cluster.refused();
            return Ok(());
        };
        let (data, found) = (self.data.clone(), uid.clone());
        // It may write the record.
        let judged = tokio::task::spawn_blocking(move || data.copy().origin().judge(&found)).await;
        if judged.map_err(|error| error.to_string())? == OriginVerdict::Same {
            failures.works(CLUSTER);
            self.cluster = ClusterCheck::Same;
            return Ok(());
        }
        let why = "the copies on this node are of another cluster";
        self.data.copy().remove().inspect_err(|error| {
            failures.refused(CLUSTER, &format!("{why} and cannot be deleted: {error}"));
        })?;
        tracing::error!(
            cluster = uid,
            why,
            "The copies on this node are dropped; the hub restarts without them"
        );
        self.cluster = ClusterCheck::Other;
        Err(why.to_owned())
    }

    /// Returns the uid of the cluster from the first server that answers; `None` if the hub may not read it there.
    async fn ask_identity(&self) -> Result<Option<String>, String> {
        let mut failure = String::new();
        for _ in 0..self.cloud.len() {
            match identity_of(self.cloud.server()).await {
                Ok(uid) => return Ok(uid),
                Err(why) => failure = why,
            }
            self.cloud.try_next();
        }
        Err(failure)
    }
}

async fn identity_of(server: &CloudServer) -> Result<Option<String>, String> {
    let namespace = get(server, IDENTITY_PATH, "PartialObjectMetadata").await?;
    let namespace: Option<Value> = namespace.and_then(|body| serde_json::from_slice(&body).ok());
    Ok(namespace.and_then(|namespace| Some(namespace["metadata"]["uid"].as_str()?.to_owned())))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::watch;
    use yurt_pool_protocol::source::CoordinatorState;
    use yurt_runtime::Clock;
    use yurt_runtime::http::client::{Dial, Duplex, HttpClient, Protocol};
    use yurt_test_support::TestDir;

    use super::*;
    use crate::health::{CloudReach, CoordinatorReach};
    use crate::replicas::PoolData;
    use crate::replicas::history_check::AcknowledgedLease;
    use crate::upstream::Cloud;

    /// A cloud that refuses its identity this many times, and the number of requests so far.
    fn cloud_that_refuses(times: usize) -> (Cloud, Arc<AtomicUsize>) {
        let requests = Arc::<AtomicUsize>::default();
        let counted = requests.clone();
        let dial: Dial = Arc::new(move || {
            let counted = counted.clone();
            let (near, mut far) = tokio::io::duplex(64 << 10);
            let serve = async move {
                let mut request = [0; 4096];
                while far.read(&mut request).await.is_ok_and(|length| length > 0) {
                    let (status, body) = match counted.fetch_add(1, Ordering::SeqCst) < times {
                        true => ("403 Forbidden", "{}"),
                        false => ("200 OK", r#"{"metadata":{"uid":"here"}}"#),
                    };
                    let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
                    far.write_all(answer.as_bytes()).await.unwrap();
                }
            };
            let near: Box<dyn Duplex> = Box::new(near);
            #[allow(clippy::disallowed_methods, reason = "ends with the test's runtime")]
            drop(tokio::spawn(serve));
            Box::pin(async move { Ok(near) })
        });
        let base = "http://cloud".parse().unwrap();
        let client = HttpClient::over(base, None, Protocol::Http1, REFUSED.0, Some(dial)).unwrap();
        (Cloud::of_clients([client]), requests)
    }

    /// Runs a verifier without replicas at `cloud` for up to `time`; true if it ends by itself.
    async fn ends_within(time: Duration, data: &Arc<PoolData>, cloud: Cloud) -> bool {
        let reach = watch::Sender::new(CloudReach { failed_probes: Some(0) });
        let coordinator = watch::Sender::new(CoordinatorReach {
            state: CoordinatorState::Unreachable {
                since: Clock::system().boot(),
            },
            status: None,
        });
        let mut verifier = HistoryVerifier {
            data: data.clone(),
            cloud: Arc::new(cloud),
            lease: AcknowledgedLease::default(),
            lease_path: String::new(),
            reach: reach.subscribe(),
            coordinator: coordinator.subscribe(),
            has_coordinator: false,
            cluster: ClusterCheck::default(),
        };
        tokio::time::timeout(time, verifier.keep_proving()).await.is_ok()
    }

    fn data_in(folder: &TestDir) -> Arc<PoolData> {
        Arc::new(PoolData::open(folder.path(), "hangzhou", usize::MAX, Clock::system()).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn refused_identity_is_requested_again_until_the_cloud_returns_it() {
        let (hour, folders) = (Duration::from_secs(3600), [TestDir::new(), TestDir::new()]);
        let data = data_in(&folders[0]);
        let (cloud, requests) = cloud_that_refuses(usize::MAX);
        assert!(!ends_within(hour, &data, cloud).await);
        assert!(data.failures().why(CLUSTER).is_some());
        let sent = requests.load(Ordering::SeqCst);
        // One that opens a connection is followed by that of a proof.
        assert!((12..35).contains(&sent), "{sent}");

        let data = data_in(&folders[1]);
        let (cloud, requests) = cloud_that_refuses(2);
        assert!(!ends_within(hour, &data, cloud).await);
        assert_eq!(data.failures().why(CLUSTER), None);
        let sent = requests.load(Ordering::SeqCst);
        assert!((3..=5).contains(&sent), "{sent}: none after the answer");
    }

    #[tokio::test(start_paused = true)]
    async fn another_cluster_is_noticed_after_its_identity_was_refused() {
        let folder = TestDir::new();
        let data = data_in(&folder);
        assert_eq!(data.copy().origin().judge("elsewhere"), OriginVerdict::Same);
        let (cloud, _) = cloud_that_refuses(1);
        assert!(ends_within(Duration::from_secs(60), &data, cloud).await);
    }
}
