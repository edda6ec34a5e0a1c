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
pub mod under_way;
pub mod write;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot, watch};
use yurt_apimachinery::{ResourceVersion, Status, meta};
use yurt_pool_protocol::names::STALE_HEADER;
use yurt_runtime::Clock;
use yurt_runtime::http::Body;

use super::answers::{self, Answers};
use super::kept_read::KeptRead;
use super::record::Record;
use super::reply::reply;
use super::{is_away, is_of_gateway};
use crate::health::CloudReach;
use pending::Pending;
use sender::Command;
use write::{KnownObject, OwnKey, Write};

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
        let object = write::shown(key, local, self.known(key).await.listed.as_ref());
        self.respond_stale(key, request, object).map(Some)
    }

    /// Answers a GET of the kubelet without the cloud from the cloud's last answer, if the selection has an older state
    /// of the same object: the link may have been there for too short a time for it to go on. The kubelet computes its
    /// next patch from this answer, and the hub applies it to the same object.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub async fn read_later_than_listed<B>(
        &self,
        key: &OwnKey,
        request: &Request<B>,
    ) -> Result<Option<Response<Body>>, Status> {
        match self.known(key).await {
            KnownObject {
                latest: Some(latest),
                listed: Some(listed),
            } if version(&latest) > version(&listed) && meta::text(&latest, "uid") == meta::text(&listed, "uid") => {
                let object = write::shown(key, latest, Some(&listed));
                self.respond_stale(key, request, object).map(Some)
            }
            _ => Ok(None),
        }
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
                let read = KeptRead::of_object(KUBELET, &key.path());
                if !self.pending.awaits_answer(key) {
                    return Ok(self.answers.keeping(&read, response));
                }
                let (pending, key) = (self.pending.clone(), key.clone());
                return Ok(self.answers.keeping_and(&read, response, move |record| {
                    if let Some(object) = object_of(&key, record) {
                        pending.rewrote(&key, &object);
                    }
                }));
            }
            Err(status) if !is_away(&status) => return Err(status),
            Err(_) => {}
        }
        let object = self.accept(key, &request).await?;
        self.respond(key, &request, object)
    }

    async fn accept(&self, key: &OwnKey, request: &Request<Bytes>) -> Result<Value, Status> {
        let known = self.known(key).await;
        let (pending, key, node, request) = (self.pending.clone(), key.clone(), self.node.clone(), request.clone());
        let accepted = tokio::task::spawn_blocking(move || {
            let write = Write {
                method: request.method(),
                headers: request.headers(),
                body: request.body(),
            };
            pending.accept(&key, &node, known, write)
        });
        accepted.await.map_err(|lost| Status::internal(&lost.to_string()))?
    }

    /// Returns the object as the cloud last gave it to the kubelet.
    async fn known(&self, key: &OwnKey) -> KnownObject {
        let records = self.answers.find_all(&KeptRead::of_object(KUBELET, &key.path())).await;
        let listed = (self.cached)(key).filter(|object| is_whole(key, object));
        let read = records.iter().filter_map(|record| object_of(key, record));
        let latest = read.chain(listed.clone()).max_by_key(version);
        // A kubelet that does not list the object through this hub knows what it read.
        let listed = listed.or_else(|| latest.clone());
        KnownObject { latest, listed }
    }

    fn respond<B>(&self, key: &OwnKey, request: &Request<B>, object: Value) -> Result<Response<Body>, Status> {
        let kind = key.kind().ok_or_else(Status::unknown_resource)?;
        reply(kind, request, StatusCode::OK, object, self.clock.unix().secs)
    }

    fn respond_stale<B>(&self, key: &OwnKey, request: &Request<B>, object: Value) -> Result<Response<Body>, Status> {
        let mut response = self.respond(key, request, object)?;
        let stale = HeaderValue::from_static("true");
        response.headers_mut().insert(STALE_HEADER, stale);
        Ok(response)
    }
}

/// Returns the object of a kept answer; `None` if it is another one, or not readable.
fn object_of(key: &OwnKey, record: &Record) -> Option<Value> {
    answers::object(record, key.kind()?).filter(|object| is_whole(key, object))
}

/// True if the object has the name and namespace of `key`.
fn is_whole(key: &OwnKey, object: &Value) -> bool {
    let namespace = key.namespace.as_deref().unwrap_or_default();
    meta::text(object, "name") == key.name && meta::text(object, "namespace") == namespace
}

/// RV of an object; 0 if it has none.
fn version(object: &Value) -> ResourceVersion {
    ResourceVersion(meta::text(object, "resourceVersion").parse().unwrap_or(0))
}
