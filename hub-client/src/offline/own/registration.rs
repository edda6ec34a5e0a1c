//! The creation of this Node by its kubelet while the cloud is away.
//!
//! A kubelet creates its Node at every start, and goes on only after 201 or 409 AlreadyExists
//! (kubelet `tryRegisterWithAPIServer`); then it reads the Node. A node that was in the cloud gets the 409.

use bytes::Bytes;
use http::{HeaderMap, header};
use serde_json::Value;
use yurt_apimachinery::{RequestInfo, Status, Verb, meta};
use yurt_codec::negotiation::{body_format, body_json};

use super::OwnWrites;
use super::write::OwnKey;

/// Maximum bytes of a Node in a request; etcd takes no larger objects.
pub const NODE_MAX: usize = 3 << 19;

/// True if the request creates a Node.
#[must_use]
pub fn is_registration(info: &RequestInfo) -> bool {
    let is_nodes = info.is_resource && info.group.is_empty() && info.version == "v1" && info.resource == "nodes";
    is_nodes && info.verb == Verb::Create && info.name.is_none() && info.subresource.is_none()
}

// === impl OwnWrites ===

impl OwnWrites {
    /// Returns the refusal of a Node in `body` that exists: it is this node's, and was read from the cloud before.
    pub async fn registered(&self, headers: &HeaderMap, body: &Bytes) -> Option<Status> {
        let key = OwnKey::node(&self.node)?;
        let kind = key.kind()?;
        let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let json = body_json(body_format(content_type).ok()?, &kind.api_version(), &kind.kind, body).ok()?;
        let node: Value = serde_json::from_slice(&json).ok()?;
        let is_known = meta::text(&node, "name") == self.node && self.known(&key).await.latest.is_some();
        is_known.then(|| Status::already_exists(&kind.group_resource(), &self.node))
    }
}
