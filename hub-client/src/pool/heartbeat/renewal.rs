//! Writes a beat into a lease at the cloud in the node's stead: its renewTime and the annotation that says so.

use std::time::Duration;

use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, Request, StatusCode};
use serde_json::{Value, json};
use yurt_apimachinery::time::MicroTime;
use yurt_runtime::http::client::HttpClient;
use yurt_runtime::http::full;

use super::own::NAMESPACE;
use super::plan::forward::renewal;
use super::plan::{DELEGATE_HEARTBEAT_ANNOTATION, DELEGATE_HEARTBEAT_VALUE, UnixMicros};
use crate::pool::lease_client::{from_micros, to_micros};

/// Bytes of a lease at the most.
const LEASE_BYTES_MAX: usize = 1 << 20;

/// What became of the beat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// The cloud has it.
    Done,
    /// The cloud answered with something else; 409: somebody wrote meanwhile.
    Refused(StatusCode),
    /// No answer, or none that can be read.
    Broken,
}

/// Reads the lease of `node`, then writes it once with the resourceVersion just read; all within `timeout`. The new
/// renewTime is `own`, but never before the one that is there.
pub(super) async fn write(cloud: &HttpClient, node: &str, own: UnixMicros, timeout: Duration) -> Written {
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{node}");
    match tokio::time::timeout(timeout, exchange(cloud, &path, own, timeout)).await {
        Ok(Some(StatusCode::OK)) => Written::Done,
        Ok(Some(status)) => Written::Refused(status),
        Ok(None) | Err(_) => Written::Broken,
    }
}

async fn exchange(cloud: &HttpClient, path: &str, own: UnixMicros, timeout: Duration) -> Option<StatusCode> {
    let (status, _, body) = cloud.request_json(Method::GET, path, None, timeout).await.ok()?;
    if status != StatusCode::OK {
        return Some(status);
    }
    let lease: Value = serde_json::from_slice(&body).ok()?;
    let there = lease["spec"]["renewTime"].as_str();
    let there = there.and_then(|text| MicroTime::parse(text).ok());
    let at = renewal(own, there.map(|time| UnixMicros(to_micros(time))));
    let patch = json!({
        "metadata": {
            "resourceVersion": lease["metadata"]["resourceVersion"],
            "annotations": {DELEGATE_HEARTBEAT_ANNOTATION: DELEGATE_HEARTBEAT_VALUE},
        },
        "spec": {"renewTime": from_micros(at.0).to_string()},
    });
    let mut request = Request::new(full(patch.to_string()));
    *request.method_mut() = Method::PATCH;
    *request.uri_mut() = path.parse().ok()?;
    let merge = HeaderValue::from_static("application/merge-patch+json");
    request.headers_mut().insert(CONTENT_TYPE, merge);
    let (status, ..) = cloud.request_bytes(request, timeout, LEASE_BYTES_MAX).await.ok()?;
    Some(status)
}
