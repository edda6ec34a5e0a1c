//! Writes a beat into a lease at the cloud on behalf of a node: its renewTime and the delegate annotation.

use std::time::Duration;

use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, Request, StatusCode};
use serde_json::{Value, json};
use yurt_apimachinery::time::MicroTime;
use yurt_pool_protocol::heartbeat::forward::renewal;
use yurt_pool_protocol::heartbeat::{DELEGATE_HEARTBEAT_ANNOTATION, DELEGATE_HEARTBEAT_VALUE, UnixMicros};
use yurt_pool_protocol::names::{LEASE_BYTES_MAX, NODE_LEASES};
use yurt_runtime::http::client::HttpClient;
use yurt_runtime::http::full;

use crate::pool::lease_client::from_micros;

/// Field manager of the writes. The cloud's admission policy reads the apiserver's time from the entry of this manager.
const FIELD_MANAGER: &str = "yurthub";

/// Result of writing a beat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RenewalResult {
    /// The cloud stored the beat.
    Done,
    /// Not written: the permission to write ended.
    Withheld,
    /// The cloud answered with another status. 409: the lease changed in between.
    Refused(StatusCode),
    /// No answer, or an unreadable one.
    Broken,
}

/// Reads the lease of `node`, then writes it once with the resourceVersion just read, all within `timeout`. The new
/// renewTime is `beat`, but never earlier than the present one. `may_go` is checked between the two requests: the read
/// may have taken long, or the process may have been paused.
pub(super) async fn write(
    cloud: &HttpClient,
    node: &str,
    beat: UnixMicros,
    timeout: Duration,
    may_go: &(dyn Fn() -> bool + Sync),
) -> RenewalResult {
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/{NODE_LEASES}/leases/{node}");
    let written = tokio::time::timeout(timeout, round_trip(cloud, &path, beat, timeout, may_go)).await;
    written.ok().flatten().unwrap_or(RenewalResult::Broken)
}

async fn round_trip(
    cloud: &HttpClient,
    path: &str,
    beat: UnixMicros,
    timeout: Duration,
    may_go: &(dyn Fn() -> bool + Sync),
) -> Option<RenewalResult> {
    let (status, _, body) = cloud.request_json(Method::GET, path, None, timeout).await.ok()?;
    if status != StatusCode::OK {
        return Some(RenewalResult::Refused(status));
    }
    let lease: Value = serde_json::from_slice(&body).ok()?;
    let there = lease["spec"]["renewTime"].as_str();
    let there = there.and_then(|text| MicroTime::parse(text).ok());
    let at = renewal(beat, there.map(UnixMicros::from));
    let patch = json!({
        "metadata": {
            "resourceVersion": lease["metadata"]["resourceVersion"],
            "annotations": {DELEGATE_HEARTBEAT_ANNOTATION: DELEGATE_HEARTBEAT_VALUE},
        },
        "spec": {"renewTime": from_micros(at.0).to_string()},
    });
    if !may_go() {
        return Some(RenewalResult::Withheld);
    }
    let mut request = Request::new(full(patch.to_string()));
    *request.method_mut() = Method::PATCH;
    *request.uri_mut() = format!("{path}?fieldManager={FIELD_MANAGER}").parse().ok()?;
    let merge = HeaderValue::from_static("application/merge-patch+json");
    request.headers_mut().insert(CONTENT_TYPE, merge);
    let (status, ..) = cloud.request_bytes(request, timeout, LEASE_BYTES_MAX).await.ok()?;
    Some(match status {
        StatusCode::OK => RenewalResult::Done,
        status => RenewalResult::Refused(status),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use parking_lot::Mutex;
    use yurt_runtime::TaskGroup;
    use yurt_runtime::http::client::Protocol;
    use yurt_runtime::http::server::{Server, handler};
    use yurt_runtime::http::{json as answer_json, read_body};
    use yurt_test_support::LOOPBACK;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    /// A cloud whose lease of n2 changes right after it is read; records the writes it receives.
    struct Cloud {
        client: HttpClient,
        writes: Arc<Mutex<Vec<Value>>>,
        was_read: Arc<AtomicBool>,
        _tasks: TaskGroup,
    }

    async fn cloud() -> Cloud {
        let (writes, was_read, tasks) = (
            Arc::<Mutex<Vec<Value>>>::default(),
            Arc::<AtomicBool>::default(),
            TaskGroup::new(),
        );
        let server = Server::bind(LOOPBACK, "port").await.unwrap();
        let url = format!("http://{}", server.local_addr());
        let (seen, read) = (writes.clone(), was_read.clone());
        let answer = handler(move |request, _| {
            let (seen, read) = (seen.clone(), read.clone());
            async move {
                if request.method() == Method::GET {
                    read.store(true, Ordering::SeqCst);
                    let spec = json!({"renewTime": "2026-01-01T00:00:00.000000Z"});
                    let lease = json!({"metadata": {"name": "n2", "resourceVersion": "7"}, "spec": spec});
                    return answer_json(StatusCode::OK, lease.to_string());
                }
                let body = read_body(request.into_body(), LEASE_BYTES_MAX).await.unwrap();
                let patch: Value = serde_json::from_slice(&body).unwrap();
                // The node itself wrote RV 8 in between; a write without an RV is always accepted.
                let is_taken = patch["metadata"]["resourceVersion"].is_null();
                seen.lock().push(patch);
                answer_json(if is_taken { StatusCode::OK } else { StatusCode::CONFLICT }, "{}")
            }
        });
        server.serve(&tasks, answer);
        let client = HttpClient::new(url.parse().unwrap(), None, Protocol::Http1, TIMEOUT).unwrap();
        Cloud {
            client,
            writes,
            was_read,
            _tasks: tasks,
        }
    }

    #[tokio::test]
    async fn beat_never_overwrites_what_came_after_it_was_read() {
        let cloud = cloud().await;
        let written = write(&cloud.client, "n2", UnixMicros(1), TIMEOUT, &|| true).await;
        assert_eq!(written, RenewalResult::Refused(StatusCode::CONFLICT));
        let writes = cloud.writes.lock().clone();
        assert_eq!(writes.len(), 1, "once");
        assert_eq!(writes[0]["metadata"]["resourceVersion"], "7");
    }

    #[tokio::test]
    async fn right_to_write_is_asked_for_after_the_lease_was_read() {
        let cloud = cloud().await;
        let may_go = || !cloud.was_read.load(Ordering::SeqCst);
        let written = write(&cloud.client, "n2", UnixMicros(1), TIMEOUT, &may_go).await;
        assert_eq!(written, RenewalResult::Withheld);
        assert!(cloud.writes.lock().is_empty());
    }
}
