//! The kubelet's own writes without the cloud: the status of its Node and of the pods on it.
//!
//! ```text
//!   PATCH, PUT …/status ──► the cloud ──► passed on
//!                            │ away
//!                            ▼
//!                   held object + write ([`write`]) ──► entry, on the disk ([`pending`]) ──► 200
//!                                                          │ the cloud is back
//!                                                          ▼
//!                   base, local and the cloud's object ([`merge`]) ──► patch to the cloud ([`sender`])
//! ```
//!
//! A request about an object with an entry waits until the entry is at the cloud, if the cloud is back: an older local
//! status must not follow a newer one.

pub mod deleted_pods;
pub mod local_pods;
pub mod merge;
pub mod pending;
pub mod registration;
pub mod sender;
pub mod write;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot, watch};
use yurt_apimachinery::{Status, meta};
use yurt_codec::negotiation::{body_format, body_json};
use yurt_pool_protocol::names::STALE_HEADER;
use yurt_runtime::Clock;
use yurt_runtime::http::Body;

use super::answers::{self, ANSWER_MAX, Answers};
use super::kept_read::KeptRead;
use super::reply::reply;
use super::{is_away, is_of_gateway};
use crate::health::CloudReach;
use pending::Pending;
use sender::Command;
use write::{OwnKey, Write};

/// The component whose reads are the held objects.
const KUBELET: &str = "kubelet";
/// Maximum wait of a request for an earlier local write; the kubelet waits for 10 s.
const SETTLED_WITHIN: Duration = Duration::from_secs(3);

/// Returns an object from the replicas of this node.
pub type Cached = Arc<dyn Fn(&OwnKey) -> Option<Value> + Send + Sync>;

/// Writes of this node's kubelet.
pub struct OwnWrites {
    /// True if writes are accepted without the cloud.
    pub accepts: bool,
    /// Name of the Node.
    pub node: String,
    /// Writes that the cloud does not have yet.
    pub pending: Arc<Pending>,
    /// To the sender.
    pub commands: mpsc::Sender<Command>,
    /// Kept answers: objects that the kubelet read by name.
    pub answers: Answers,
    /// Objects that the kubelet lists or watches.
    pub cached: Cached,
    /// Reachability of the cloud.
    pub reach: watch::Receiver<CloudReach>,
    /// Clock for the ages in tables.
    pub clock: Clock,
}

// === impl OwnWrites ===

impl OwnWrites {
    /// True if requests to the cloud are futile at present.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.reach.borrow().is_lost()
    }

    /// Waits until the cloud has the local write to this object, if there is one and the cloud is not known to be away.
    pub async fn settle(&self, key: &OwnKey) {
        if !self.pending.contains(key) || self.is_lost() {
            return;
        }
        let (done, is_done) = oneshot::channel();
        let key = key.clone();
        let settled = async {
            let command = Command { key, done };
            if self.commands.send(command).await.is_ok() {
                let _ = is_done.await;
            }
        };
        // Without an answer the caller's request merges into the entry.
        let _ = tokio::time::timeout(SETTLED_WITHIN, settled).await;
    }

    /// Answers a GET from the local write, if the cloud does not have it yet.
    ///
    /// # Errors
    /// 406 for a format that is not supported.
    pub async fn read<B>(&self, key: &OwnKey, request: &Request<B>) -> Result<Option<Response<Body>>, Status> {
        self.settle(key).await;
        let Some(local) = self.pending.local(key) else {
            return Ok(None);
        };
        let object = write::shown(key, local, self.held(key).await.as_ref());
        let mut response = self.respond(key, request, object)?;
        let stale = HeaderValue::from_static("true");
        response.headers_mut().insert(STALE_HEADER, stale);
        Ok(Some(response))
    }

    /// Completes a write that was sent to the cloud, or could not be: accepts it here if the cloud is away.
    ///
    /// # Errors
    /// The cloud's, if it answered; else as [`Pending::accept`].
    pub async fn written(
        &self,
        key: &OwnKey,
        request: Request<Bytes>,
        sent: Result<Response<Body>, Status>,
    ) -> Result<Response<Body>, Status> {
        if !self.accepts {
            return sent;
        }
        match sent {
            Ok(response) if is_of_gateway(response.status()) && !self.reach.borrow().is_up() => {}
            Ok(response) => {
                if response.status().is_success() && self.pending.contains(key) {
                    // The entry must not overwrite this later write; a refusal means that it cannot.
                    let _ = self.accept(key, &request).await;
                }
                return Ok(self
                    .answers
                    .keeping(&KeptRead::of_object(KUBELET, &key.path()), response));
            }
            Err(status) if !is_away(&status) => return Err(status),
            Err(_) => {}
        }
        let object = self.accept(key, &request).await?;
        self.respond(key, &request, object)
    }

    async fn accept(&self, key: &OwnKey, request: &Request<Bytes>) -> Result<Value, Status> {
        let held = self.held(key).await;
        let (pending, key, node, request) = (self.pending.clone(), key.clone(), self.node.clone(), request.clone());
        let accepted = tokio::task::spawn_blocking(move || {
            let write = Write {
                method: request.method(),
                headers: request.headers(),
                body: request.body(),
            };
            pending.accept(&key, &node, held, write)
        });
        accepted.await.map_err(|lost| Status::internal(&lost.to_string()))?
    }

    /// Returns the object as the kubelet last received it from the cloud.
    async fn held(&self, key: &OwnKey) -> Option<Value> {
        let kind = key.kind()?;
        let records = self.answers.find_all(&KeptRead::of_object(KUBELET, &key.path())).await;
        let object = |record| {
            let format = body_format(Some(answers::content_type(record))).ok()?;
            let body = answers::plain_text(record, ANSWER_MAX)?;
            let json = body_json(format, &kind.api_version(), &kind.kind, &body).ok()?;
            serde_json::from_slice(&json).ok()
        };
        let is_whole = |object: &Value| {
            let namespace = key.namespace.as_deref().unwrap_or_default();
            meta::text(object, "name") == key.name && meta::text(object, "namespace") == namespace
        };
        let version = |object: &Value| meta::text(object, "resourceVersion").parse::<u64>().unwrap_or(0);
        let read = records.iter().filter_map(object);
        let held = read.chain((self.cached)(key)).filter(is_whole);
        held.max_by_key(version)
    }

    fn respond<B>(&self, key: &OwnKey, request: &Request<B>, object: Value) -> Result<Response<Body>, Status> {
        let kind = key.kind().ok_or_else(Status::unknown_resource)?;
        reply(kind, request, StatusCode::OK, object, self.clock.unix().secs)
    }
}
