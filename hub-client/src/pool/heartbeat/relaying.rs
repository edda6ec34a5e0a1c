//! Sends this node's own beats and its own NodeStatus, and reads its own Node, through a relay while it is cut off.
//! Nothing else of the node takes this way.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use tokio::sync::{Notify, watch};
use yurt_apimachinery::time::BootTime;
use yurt_apimachinery::{RequestInfo, Verb};
use yurt_pool_protocol::heartbeat::UnixMicros;
use yurt_runtime::Clock;
use yurt_runtime::http::full;

use super::LEASE;
use super::renewal::{self, RenewalResult};
use crate::health::CloudReach;
use crate::metrics::Metrics;
use crate::pool::relay::Offer;
use crate::pool::relay::client::{RelayAttempt, RelayClient};

/// Maximum time for a beat or a status, over all peers tried. Together with the 4 s of a direct renewal it stays below
/// the kubelet's 10 s.
const DEADLINE: Duration = Duration::from_secs(4);
/// Maximum number of writes of one beat: the second one follows a conflict.
const WRITES_MAX: u32 = 2;

/// Relay as the heartbeat uses it.
#[derive(Clone)]
pub struct Relaying {
    /// Client that reaches the cloud through peers.
    pub client: Arc<RelayClient>,
    /// Relay offer of this hub to its peers.
    pub offer: watch::Receiver<Option<Offer>>,
    /// Signals a relayed write after which the kubelet needs the cloud's state of its Node.
    pub written: Arc<Notify>,
    /// Reachability of the cloud.
    pub reach: watch::Receiver<CloudReach>,
    /// Metrics of the hub.
    pub metrics: Arc<Metrics>,
    /// Clock.
    pub clock: Clock,
}

/// A beat of this node's kubelet.
#[derive(Clone, Copy, Debug)]
pub struct Beat {
    /// Its renewTime.
    pub at: UnixMicros,
    /// Time of its arrival.
    pub arrived: BootTime,
}

// === impl Beat ===

impl Beat {
    /// True if it is younger than the lease's duration at `now`.
    fn is_fresh(self, now: BootTime) -> bool {
        now.since(self.arrived) < LEASE
    }
}

// === impl Relaying ===

impl Relaying {
    /// True if the relay is tried first: the cloud is known to be away, and waiting for it would exhaust the beat's
    /// time.
    #[must_use]
    pub fn comes_first(&self) -> bool {
        self.reach.borrow().is_failing()
    }

    /// Writes a beat of `node` at the cloud. Returns true if the cloud stored it.
    pub async fn beat(&self, node: &str, beat: Beat) -> bool {
        // The process may be paused between the two requests of a write.
        let may_go = || beat.is_fresh(self.clock.boot());
        for way in self.client.begin(DEADLINE).await {
            match write(&way, node, beat.at, &may_go).await {
                RenewalResult::Done => {
                    self.metrics.heartbeats_relayed.inc();
                    return true;
                }
                RenewalResult::Refused(status) if !is_failure(status) => {
                    tracing::warn!(peer = way.peer, %status, "Cloud refused relayed heartbeat");
                    return false;
                }
                outcome => tracing::debug!(peer = way.peer, ?outcome, "Failed to relay heartbeat"),
            }
        }
        false
    }

    /// Sends a kubelet write to the cloud that [`is_own_status`] permits; `None` if no relay works.
    pub async fn pass(&self, request: &Request<Bytes>, limit: usize) -> Option<(StatusCode, HeaderMap, Bytes)> {
        for way in self.client.begin(DEADLINE).await {
            let copy = request.clone().map(full);
            match way.client.request_bytes(copy, way.timeout, limit).await {
                Ok(answer) if !is_failure(answer.0) => {
                    self.written.notify_one();
                    return Some(answer);
                }
                answer => tracing::debug!(peer = way.peer, failed = answer.is_err(), "Failed to relay NodeStatus"),
            }
        }
        None
    }

    /// Reads an object of the cloud, in JSON; `None` if no relay works, or the cloud does not return the object.
    pub async fn read(&self, path: &str) -> Option<Bytes> {
        for way in self.client.begin(DEADLINE).await {
            match way.client.request_json(Method::GET, path, None, way.timeout).await {
                Ok((status, _, body)) if !is_failure(status) => return (status == StatusCode::OK).then_some(body),
                answer => tracing::debug!(peer = way.peer, failed = answer.is_err(), "Failed to relay a read"),
            }
        }
        None
    }
}

async fn write(way: &RelayAttempt, node: &str, at: UnixMicros, may_go: &(dyn Fn() -> bool + Sync)) -> RenewalResult {
    let writing = async {
        let mut written = RenewalResult::Broken;
        for _ in 0..WRITES_MAX {
            written = renewal::write(&way.client, node, at, way.timeout, may_go).await;
            if written != RenewalResult::Refused(StatusCode::CONFLICT) {
                break;
            }
        }
        written
    };
    tokio::time::timeout(way.timeout, writing)
        .await
        .unwrap_or(RenewalResult::Broken)
}

/// True if another server may succeed where this one failed.
fn is_failure(status: StatusCode) -> bool {
    status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS
}

/// True if the request writes the status of the Node `node`. Relays carry this write, leases, and the hub's own reads
/// of the Node: only the write revives a node that the cloud marked as lost.
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
    fn beat_is_relayed_while_it_is_younger_than_the_lease() {
        let (clock, hand) = Clock::fake();
        let beat = Beat {
            at: UnixMicros(1),
            arrived: clock.boot(),
        };
        hand.advance(LEASE - Duration::from_millis(1));
        assert!(beat.is_fresh(clock.boot()));
        hand.advance(Duration::from_millis(1));
        assert!(!beat.is_fresh(clock.boot()));
    }

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
