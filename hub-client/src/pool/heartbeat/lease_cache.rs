//! Cache of the cloud's last answer about this node's lease. Serves while the cloud is away, also after a restart.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use yurt_apimachinery::ResourceVersion;
use yurt_codec::negotiation::{body_format, body_json};
use yurt_pool_protocol::heartbeat::DELEGATE_HEARTBEAT_ANNOTATION;
use yurt_runtime::http::{Body, full};

use crate::replicas::history_check::lease_version;

/// Answer of the cloud, cached for the time without the cloud.
#[derive(Clone, Debug)]
pub(super) struct CachedLease {
    content_type: HeaderValue,
    body: Bytes,
}

// === impl CachedLease ===

impl CachedLease {
    pub(super) fn of(headers: &HeaderMap, body: Bytes) -> Option<Self> {
        let content_type = headers.get(CONTENT_TYPE)?.clone();
        (!body.is_empty()).then_some(Self { content_type, body })
    }

    /// Returns the RV of the lease; `None` if the body is not a lease.
    pub(super) fn version(&self) -> Option<ResourceVersion> {
        let format = body_format(self.content_type.to_str().ok()).ok()?;
        let lease = body_json(format, "coordination.k8s.io/v1", "Lease", &self.body).ok()?;
        lease_version(&lease)
    }

    /// True if the lease carries the delegate annotation. Its name is plain text in JSON and in protobuf.
    pub(super) fn is_annotated(&self) -> bool {
        let name = DELEGATE_HEARTBEAT_ANNOTATION.as_bytes();
        self.body.windows(name.len()).any(|window| window == name)
    }

    pub(super) fn answer(&self, status: StatusCode) -> Response<Body> {
        let mut response = Response::new(full(self.body.clone()));
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, self.content_type.clone());
        response
    }

    /// Loads an answer; `None` if it is no lease, as a power cut may leave it. File format: the content type in the first
    /// line, then the body.
    pub(super) fn load(path: &std::path::Path) -> Option<Self> {
        let text = std::fs::read(path).ok()?;
        let end = text.iter().position(|byte| *byte == b'\n')?;
        let content_type = HeaderValue::from_bytes(&text[..end]).ok()?;
        let loaded = Self {
            content_type,
            body: Bytes::copy_from_slice(&text[end + 1..]),
        };
        loaded.version().is_some().then_some(loaded)
    }

    /// Stores the answer, best effort and without a flush: [`Self::load`] finds what a power cut leaves. A failed write only costs a 503 after a restart without the cloud.
    pub(super) fn store(&self, path: &std::path::Path) {
        let mut text = self.content_type.as_bytes().to_vec();
        text.push(b'\n');
        text.extend_from_slice(&self.body);
        let temporary = path.with_extension("tmp");
        if let Err(error) = std::fs::write(&temporary, text).and_then(|()| std::fs::rename(&temporary, path)) {
            tracing::debug!(%error, path = %path.display(), "Failed to store node lease");
        }
    }
}

#[cfg(test)]
mod tests {
    use yurt_test_support::TestDir;

    use super::*;

    #[test]
    fn answer_that_a_power_cut_left_in_part_is_none() {
        let folder = TestDir::new();
        let path = folder.path().join("node-lease");
        let body =
            r#"{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":"n1","resourceVersion":"7"}}"#;
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
        CachedLease::of(&headers, body.into()).unwrap().store(&path);
        assert_eq!(CachedLease::load(&path).unwrap().body, body);
        let whole = std::fs::read(&path).unwrap();
        for length in 0..whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            assert!(CachedLease::load(&path).is_none(), "the first {length} bytes");
            let zeros = [&whole[..length], &vec![0; whole.len() - length]].concat();
            std::fs::write(&path, zeros).unwrap();
            assert!(CachedLease::load(&path).is_none(), "zeros after {length} bytes");
        }
    }
}
