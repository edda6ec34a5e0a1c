//! Tracks the RVs of this node's writes that the hub passed on, so that its reads reflect them.
//!
//! Only the written object itself yields an RV to wait for: the answer must match the kind, namespace and name of the
//! request. It is read while it passes and evaluated at its end; nothing is held back, for any size. Reads wait for an
//! RV only for a limited time: one that the replica never reaches must not delay every later read.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::Response;
use http::header::CONTENT_TYPE;
use parking_lot::Mutex;
use serde::Deserialize;
use yurt_apimachinery::time::BootTime;
use yurt_apimachinery::{RequestInfo, ResourceKind, ResourceVersion, Verb};
use yurt_codec::negotiation::{Format, body_format, body_json};
use yurt_runtime::Clock;
use yurt_runtime::http::{Body, Inflate, inflate_for};
use yurt_storage::Replica;

use crate::copied::Copies;

/// Maximum bytes of an answer that are read for its resourceVersion; a larger answer passes unread.
const ANSWER_MAX: usize = 3 << 20;
/// Maximum bytes of all answers that are being read: ten of the largest. Above it an answer passes unread, too.
const ANSWERS_MAX: usize = 10 * ANSWER_MAX;
/// Time during which reads wait for a write that the replica does not reflect.
const WAITED_FOR: Duration = Duration::from_secs(30);

/// Last write to each collection.
pub struct Written {
    clock: Clock,
    writes: Mutex<BTreeMap<String, Write>>,
    /// Answers on their way to a client.
    copies: Copies,
}

#[derive(Clone, Copy)]
struct Write {
    generation: u64,
    version: ResourceVersion,
    at: BootTime,
}

/// Data needed to read an answer.
struct Note {
    written: Arc<Written>,
    /// Copies of the collection, or of a part of it; at least one. Each with the name of its objects, if it has one.
    replicas: Vec<(Arc<Replica>, Option<String>)>,
    format: Format,
    inflate: Option<Box<Inflate>>,
    namespace: String,
    /// Name of the object; `None` for a create.
    name: Option<String>,
}

/// Fields that every object has.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head {
    api_version: String,
    kind: String,
    metadata: Metadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct Metadata {
    namespace: String,
    name: String,
    resource_version: String,
}

// === impl Written ===

impl Written {
    /// Creates the state without a write.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            writes: Mutex::default(),
            copies: Copies::within(ANSWERS_MAX),
        }
    }

    /// Returns the RV that reads of this collection wait for; zero if there is none.
    #[must_use]
    pub fn least(&self, collection: &str, generation: u64) -> ResourceVersion {
        let last = self.writes.lock().get(collection).copied();
        // A write before a restore of the cloud may be lost, and its RV belongs to another history.
        let last = last.filter(|last| last.generation == generation && self.is_waited_for(last));
        last.map(|last| last.version).unwrap_or_default()
    }

    /// Returns the response, extended to note the RV of its object once it has passed: for each of `replicas`, except
    /// those that hold only objects of another name.
    #[must_use]
    pub fn noting(
        self: &Arc<Self>,
        replicas: Vec<(Arc<Replica>, Option<String>)>,
        info: &RequestInfo,
        response: Response<Body>,
    ) -> Response<Body> {
        let Some(kind) = replicas.first().map(|(replica, _)| replica.collection().kind()) else {
            return response;
        };
        let is_write = matches!(info.verb, Verb::Create | Verb::Update | Verb::Patch | Verb::Delete);
        // Other subresources contain another kind of object, or are answered by another server.
        let is_object = matches!(info.subresource.as_deref(), None | Some("status"));
        let is_known = info.version == kind.version;
        if !is_write || !is_object || !is_known || !response.status().is_success() {
            return response;
        }
        let content_type = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let Some(format) = content_type.and_then(|kind| body_format(Some(kind)).ok()) else {
            return response;
        };
        let Ok(inflate) = inflate_for(response.headers()) else {
            return response;
        };
        let note = Note {
            written: self.clone(),
            replicas,
            format,
            inflate,
            namespace: info.namespace.clone().unwrap_or_default(),
            name: info.name.clone(),
        };
        response.map(|body| self.copies.of(body, ANSWER_MAX, |answer| note.read(answer)))
    }

    fn note(&self, collection: &str, generation: u64, version: ResourceVersion) {
        let at = self.clock.boot();
        let mut writes = self.writes.lock();
        let later = writes
            .get(collection)
            .filter(|last| last.generation == generation && last.version >= version && self.is_waited_for(last));
        if later.is_none() {
            let write = Write {
                generation,
                version,
                at,
            };
            writes.insert(collection.to_owned(), write);
        }
    }

    fn is_waited_for(&self, write: &Write) -> bool {
        self.clock.boot().since(write.at) < WAITED_FOR
    }
}

/// Returns the uncompressed body; `None` if it is not valid gzip, or too large.
fn plain(inflate: Option<Box<Inflate>>, mut body: Bytes) -> Option<Bytes> {
    let Some(mut inflate) = inflate else { return Some(body) };
    let mut plain = BytesMut::new();
    loop {
        let piece = inflate.step(&mut body).ok()?;
        if piece.is_empty() {
            return Some(plain.freeze());
        }
        if plain.len() + piece.len() > ANSWER_MAX {
            return None;
        }
        plain.extend_from_slice(&piece);
    }
}

// === impl Note ===

impl Note {
    /// Notes the RV of the object in `answer`.
    fn read(mut self, answer: Bytes) {
        let Some(answer) = plain(self.inflate.take(), answer) else {
            return;
        };
        for (replica, name) in &self.replicas {
            let collection = replica.collection();
            if let Some(version) = self.version(collection.kind(), name.as_deref(), &answer) {
                let generation = collection.read(|held| held.generation());
                self.written.note(replica.name(), generation, version);
            }
        }
    }

    /// Returns the RV of the object if it is the written one, and of this `name` if there is one.
    fn version(&self, kind: &ResourceKind, name: Option<&str>, body: &Bytes) -> Option<ResourceVersion> {
        let json = body_json(self.format, &kind.api_version(), &kind.kind, body).ok()?;
        let head: Head = serde_json::from_slice(&json).ok()?;
        let is_named = |name: &str| head.metadata.name == name;
        let is_asked_for = head.api_version == kind.api_version()
            && head.kind == *kind.kind
            && head.metadata.namespace == self.namespace
            && self.name.as_deref().is_none_or(is_named)
            && name.is_none_or(is_named);
        let version = ResourceVersion::parse(&head.metadata.resource_version).ok()?;
        is_asked_for.then_some(version)
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use http_body_util::BodyExt as _;
    use serde_json::{Value, json};
    use yurt_apimachinery::kind::find_kind;
    use yurt_runtime::http::full;
    use yurt_storage::Replicas;

    use super::*;

    const ALL: &str = "services";

    #[test]
    fn answer_that_is_decompressed_has_a_limit() {
        let of = |bytes: usize| {
            let zipped = yurt_runtime::http::gzip_bytes(&vec![b' '; bytes]);
            plain(Some(Box::default()), zipped).map(|plain| plain.len())
        };
        assert_eq!((of(ANSWER_MAX), of(ANSWER_MAX + 1)), (Some(ANSWER_MAX), None));
    }

    /// Their clients read all but the last byte.
    #[tokio::test]
    async fn answers_that_clients_do_not_read_to_their_end_are_bounded_together() {
        let written = Written::new(Clock::fake().0);
        let piece = Bytes::from(vec![b' '; ANSWER_MAX - 1]);
        let mut held = Vec::new();
        for _ in 0..ANSWERS_MAX / piece.len() {
            let pieces = [piece.clone(), Bytes::from_static(b" ")].map(Ok::<_, std::convert::Infallible>);
            let body = yurt_runtime::http::stream(futures_util::stream::iter(pieces));
            let mut body = written.copies.of(body, ANSWER_MAX, drop);
            body.frame().await.unwrap().unwrap();
            held.push(body);
        }
        let read = Arc::new(Mutex::new(0));
        let note = |body| {
            let read = read.clone();
            let body = written
                .copies
                .of(body, ANSWER_MAX, move |answer| *read.lock() += answer.len());
            body.collect()
        };
        note(full(piece.clone())).await.unwrap();
        assert_eq!(*read.lock(), 0, "it passes unread");
        held.pop();
        note(full(piece.clone())).await.unwrap();
        assert_eq!(*read.lock(), piece.len());
    }

    #[test]
    fn reads_wait_for_the_latest_write_of_their_history() {
        let written = Written::new(Clock::fake().0);
        assert_eq!(written.least(ALL, 0), ResourceVersion::ZERO);
        written.note(ALL, 0, ResourceVersion(20));
        written.note(ALL, 0, ResourceVersion(10));
        assert_eq!(written.least(ALL, 0), ResourceVersion(20));
        assert_eq!(written.least("endpoints", 0), ResourceVersion::ZERO);
        assert_eq!(
            written.least(ALL, 7),
            ResourceVersion::ZERO,
            "the cloud came back from a backup"
        );
        written.note(ALL, 7, ResourceVersion(5));
        assert_eq!(written.least(ALL, 7), ResourceVersion(5));
    }

    #[tokio::test]
    async fn reads_wait_for_a_deletion_whose_answer_is_the_object() {
        let services = find_kind("", "services").unwrap();
        let replicas = Replicas::open(&[(ALL.to_owned(), services)], None).unwrap();
        let path = "/api/v1/namespaces/shop/services/web";
        let info = RequestInfo::parse("DELETE", path, None).unwrap();
        let web = json!({"name": "web", "namespace": "shop", "resourceVersion": "20"});
        let least = async |answer: Value| {
            let written = Arc::new(Written::new(Clock::fake().0));
            let response = yurt_runtime::http::json(StatusCode::OK, answer.to_string());
            let response = written.noting(vec![(replicas.named(ALL).unwrap(), None)], &info, response);
            response.into_body().collect().await.unwrap();
            written.least(ALL, 0)
        };
        let object = json!({"kind": "Service", "apiVersion": "v1", "metadata": web});
        assert_eq!(least(object).await, ResourceVersion(20));
        let details = json!({"name": "web", "kind": "services", "uid": "u"});
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
            "details": details});
        assert_eq!(least(status).await, ResourceVersion::ZERO);
    }

    #[tokio::test]
    async fn reads_of_one_object_wait_for_no_creation_of_another() {
        const COPIES: [&str; 3] = [ALL, "web", "db"];
        let services = find_kind("", "services").unwrap();
        let replicas = COPIES.map(|name| (name.to_owned(), services));
        let replicas = Replicas::open(&replicas, None).unwrap();
        let info = RequestInfo::parse("POST", "/api/v1/namespaces/shop/services", None).unwrap();
        let web = json!({"name": "web", "namespace": "shop", "resourceVersion": "20"});
        let object = json!({"kind": "Service", "apiVersion": "v1", "metadata": web});
        let written = Arc::new(Written::new(Clock::fake().0));
        let copies = COPIES.map(|name| {
            (
                replicas.named(name).unwrap(),
                Some(name.to_owned()).filter(|name| name != ALL),
            )
        });
        let response = yurt_runtime::http::json(StatusCode::CREATED, object.to_string());
        let response = written.noting(copies.to_vec(), &info, response);
        response.into_body().collect().await.unwrap();
        assert_eq!(COPIES.map(|name| written.least(name, 0).0), [20, 20, 0]);
    }

    #[test]
    fn number_that_never_comes_is_waited_for_only_for_a_while() {
        let (clock, hand) = Clock::fake();
        let written = Written::new(clock);
        written.note(ALL, 0, ResourceVersion(99_999_999));
        hand.advance(WAITED_FOR / 2);
        written.note(ALL, 0, ResourceVersion(10));
        written.note(ALL, 0, ResourceVersion(99_999_999));
        assert_eq!(written.least(ALL, 0), ResourceVersion(99_999_999));
        hand.advance(WAITED_FOR / 2);
        assert_eq!(written.least(ALL, 0), ResourceVersion::ZERO);
        written.note(ALL, 0, ResourceVersion(11));
        assert_eq!(written.least(ALL, 0), ResourceVersion(11));
    }
}
