//! What a cut-off node says through a relay: its own beats and its own NodeStatus, nothing else.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use tokio::sync::watch;
use yurt_apimachinery::{RequestInfo, Verb};
use yurt_runtime::http::full;

use super::plan::UnixMicros;
use super::renewal::{self, Written};
use crate::metrics::Metrics;
use crate::pool::probe::CloudReach;
use crate::pool::relay::Offer;
use crate::pool::relay::client::{RelayClient, Way};

/// Longest time for a beat or a status, all peers that are tried included. With the 4 s that a direct renewal may take it
/// stays below the kubelet's 10 s.
const DEADLINE: Duration = Duration::from_secs(4);
/// A write that met another one's is made once more.
const WRITES_MAX: u32 = 2;

/// The relay as the heartbeat uses it.
#[derive(Clone)]
pub struct Relaying {
    /// Reaches the cloud through others.
    pub client: Arc<RelayClient>,
    /// What this hub offers to others.
    pub offer: watch::Receiver<Option<Offer>>,
    /// Whether the cloud answers.
    pub reach: watch::Receiver<CloudReach>,
    /// Counters.
    pub metrics: Arc<Metrics>,
}

// === impl Relaying ===

impl Relaying {
    /// Whether to begin with a relay: the cloud is known to be away, and waiting for it would cost the beat its time.
    #[must_use]
    pub fn comes_first(&self) -> bool {
        self.reach.borrow().failed_probes.is_some_and(|failed| failed > 0)
    }

    /// Writes a beat of `node` at the cloud; `true` when the cloud has it.
    pub async fn beat(&self, node: &str, at: UnixMicros) -> bool {
        for way in self.client.begin(DEADLINE).await {
            match write(&way, node, at).await {
                Written::Done => {
                    self.metrics.heartbeats_relayed.inc();
                    return true;
                }
                Written::Refused(status) if !is_failure(status) => {
                    tracing::warn!(peer = way.peer, %status, "The cloud refused a relayed heartbeat");
                    return false;
                }
                outcome => tracing::debug!(peer = way.peer, ?outcome, "Heartbeat not relayed"),
            }
        }
        false
    }

    /// Sends a write of the kubelet to the cloud, which [`is_own_status`] has let through; `None` when no relay works.
    pub async fn pass(&self, request: &Request<Bytes>, limit: usize) -> Option<(StatusCode, HeaderMap, Bytes)> {
        for way in self.client.begin(DEADLINE).await {
            let copy = request.clone().map(full);
            match way.client.request_bytes(copy, way.timeout, limit).await {
                Ok(answer) if !is_failure(answer.0) => return Some(answer),
                answer => tracing::debug!(peer = way.peer, failed = answer.is_err(), "NodeStatus not relayed"),
            }
        }
        None
    }
}

async fn write(way: &Way, node: &str, at: UnixMicros) -> Written {
    let writing = async {
        let mut written = Written::Broken;
        for _ in 0..WRITES_MAX {
            // This node's own beat, and the kubelet waits for it.
            written = renewal::write(&way.client, node, at, way.timeout, &|| true).await;
            if written != Written::Refused(StatusCode::CONFLICT) {
                break;
            }
        }
        written
    };
    tokio::time::timeout(way.timeout, writing)
        .await
        .unwrap_or(Written::Broken)
}

/// What another server might do better.
fn is_failure(status: StatusCode) -> bool {
    status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS
}

/// Whether this writes the status of the Node `node`. What a relay carries beside leases: it alone brings a node back that
/// was given up.
#[must_use]
pub fn is_own_status(info: &RequestInfo, node: &str) -> bool {
    info.is_resource
        && info.group.is_empty()
        && info.resource == "nodes"
        && info.name.as_deref() == Some(node)
        && info.subresource.as_deref() == Some("status")
        && matches!(info.verb, Verb::Patch | Verb::Update)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_writes_of_the_own_status_are_relayed() {
        let is_own =
            |method: &str, path: &str| is_own_status(&RequestInfo::parse(method, path, None).expect("a request"), "n1");
        assert!(is_own("PATCH", "/api/v1/nodes/n1/status") && is_own("PUT", "/api/v1/nodes/n1/status"));
        for (method, path) in [
            ("GET", "/api/v1/nodes/n1/status"),
            ("PATCH", "/api/v1/nodes/n1"),
            ("PATCH", "/api/v1/nodes/n2/status"),
            ("DELETE", "/api/v1/nodes/n1/status"),
            ("POST", "/api/v1/nodes"),
            ("PATCH", "/api/v1/namespaces/x/pods/n1/status"),
            ("PATCH", "/apis/x/v1/nodes/n1/status"),
            ("GET", "/api/v1/nodes/n1/proxy/status"),
        ] {
            assert!(!is_own(method, path), "{method} {path}");
        }
    }
}
