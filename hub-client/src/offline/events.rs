//! Events that the node writes while the cloud is away: kept within a bound, oldest dropped, and sent later.
//!
//! An event that is kept takes later patches, so its count stays exact. A patch of another event gets 404: client-go
//! then creates the event with its full count.

pub mod queue;
pub mod sender;

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::Notify;
use yurt_apimachinery::kind::find_kind;
use yurt_apimachinery::{RequestInfo, ResourceKind, Status, Verb, meta};
use yurt_codec::negotiation::{body_format, body_json};
use yurt_runtime::Clock;
use yurt_runtime::http::Body;

use super::reply::{patched, reply};
use queue::{EventKey, Queue};

/// Maximum bytes of an event in a request.
pub const EVENT_MAX: usize = 64 << 10;

/// Kept events. Cheap to clone; clones share the state.
#[derive(Clone)]
pub struct Events {
    // Leaf lock.
    queue: Arc<Mutex<Queue>>,
    changed: Arc<Notify>,
    clock: Clock,
}

/// A write of an event.
#[derive(Clone, Debug)]
pub struct EventWrite {
    kind: &'static ResourceKind,
    namespace: String,
    name: Option<String>,
    verb: Verb,
}

// === impl EventWrite ===

impl EventWrite {
    /// Returns the write of a request; `None` if it writes no event.
    #[must_use]
    pub fn of(info: &RequestInfo) -> Option<Self> {
        let is_event = info.is_resource && info.resource == "events" && info.subresource.is_none();
        let is_write = matches!(info.verb, Verb::Create | Verb::Update | Verb::Patch);
        let kind =
            find_kind(&info.group, "events").filter(|kind| is_event && is_write && kind.version == info.version)?;
        Some(Self {
            kind,
            namespace: info.namespace.clone()?,
            name: info.name.clone(),
            verb: info.verb,
        })
    }

    fn key(&self, name: &str) -> Result<EventKey, Status> {
        EventKey::new(&self.kind.group, &self.namespace, name)
            .ok_or_else(|| Status::bad_request(format!("metadata.name {name:?} of an event is not usable")))
    }

    /// Reads a whole event from a body.
    fn parse(&self, request: &Request<Bytes>) -> Result<Value, Status> {
        let format = body_format(content_type(request))?;
        let json = body_json(format, &self.kind.api_version(), &self.kind.kind, request.body())?;
        let mut event: Value = serde_json::from_slice(&json).map_err(|error| Status::bad_request(error.to_string()))?;
        if !event.is_object() || !event["metadata"].is_object() {
            return Err(Status::bad_request("the body must be an event with metadata"));
        }
        let namespace = meta::text(&event, "namespace");
        if !namespace.is_empty() && namespace != self.namespace {
            let why = format!(
                "the namespace of the event ({namespace}) is not that of the request ({})",
                self.namespace
            );
            return Err(Status::bad_request(why));
        }
        event["apiVersion"] = self.kind.api_version().into();
        event["kind"] = self.kind.kind.as_ref().into();
        event["metadata"]["namespace"] = self.namespace.as_str().into();
        Ok(event)
    }
}

fn content_type(request: &Request<Bytes>) -> Option<&str> {
    let value = request.headers().get(header::CONTENT_TYPE)?;
    value.to_str().ok()
}

// === impl Events ===

impl Events {
    /// Creates the events of an earlier run.
    #[must_use]
    pub fn new(queue: Queue, clock: Clock) -> Self {
        Self {
            queue: Arc::new(Mutex::new(queue)),
            changed: Arc::default(),
            clock,
        }
    }

    /// True if a change of a kept event has to be applied here, also while the cloud is there.
    #[must_use]
    pub fn holds(&self, write: &EventWrite) -> bool {
        let key = write.name.as_deref().and_then(|name| write.key(name).ok());
        key.is_some_and(|key| self.queue.lock().get(&key).is_some())
    }

    /// Keeps an event, or a change of a kept one, and answers it.
    ///
    /// # Errors
    /// 400, 413, 415 or 422 for a body that is no event; 404 for a patch of an event that is not kept.
    pub fn accept(&self, write: &EventWrite, request: &Request<Bytes>) -> Result<Response<Body>, Status> {
        let (event, status) = match (write.verb, &write.name) {
            (Verb::Patch, Some(name)) => (self.patch(write, name, request)?, StatusCode::OK),
            (Verb::Update, Some(name)) => {
                let event = write.parse(request)?;
                if meta::text(&event, "name") != *name {
                    return Err(Status::bad_request("the name of the event is not that of the request"));
                }
                self.queue.lock().put(write.key(name)?, &event)?;
                (event, StatusCode::OK)
            }
            _ => (self.create(write, request)?, StatusCode::CREATED),
        };
        self.changed.notify_one();
        reply(write.kind, request, status, event, self.clock.unix().secs)
    }

    fn create(&self, write: &EventWrite, request: &Request<Bytes>) -> Result<Value, Status> {
        let mut event = write.parse(request)?;
        if meta::text(&event, "name").is_empty() {
            let prefix = meta::text(&event, "generateName").to_owned();
            event["metadata"]["name"] = format!("{prefix}{:016x}", fastrand::u64(..)).into();
        }
        let key = write.key(meta::text(&event, "name"))?;
        self.queue.lock().put(key, &event)?;
        Ok(event)
    }

    fn patch(&self, write: &EventWrite, name: &str, request: &Request<Bytes>) -> Result<Value, Status> {
        let key = write.key(name)?;
        let mut queue = self.queue.lock();
        let held = queue.get(&key);
        let held = held.ok_or_else(|| Status::not_found(&write.kind.group_resource(), name))?;
        let mut event = patched(write.kind, &held, content_type(request), request.body())?;
        if !event["metadata"].is_object() {
            return Err(Status::bad_request("the patch removes the metadata of the event"));
        }
        event["metadata"]["name"] = name.into();
        event["metadata"]["namespace"] = write.namespace.as_str().into();
        queue.put(key, &event)?;
        Ok(event)
    }

    /// Number of kept events, their bytes, and the number of dropped ones.
    #[must_use]
    pub fn totals(&self) -> (usize, usize, u64) {
        self.queue.lock().totals()
    }
}

#[cfg(test)]
mod tests {
    use http::Method;
    use serde_json::json;

    use super::*;

    const EVENTS: &str = "/api/v1/namespaces/shop/events";

    fn events() -> Events {
        Events::new(Queue::default(), Clock::fake().0)
    }

    fn send(events: &Events, method: Method, path: &str, content_type: &str, body: &Value) -> u16 {
        let info = RequestInfo::parse(method.as_str(), path, None).unwrap();
        let write = EventWrite::of(&info).unwrap();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", content_type);
        let request = request.body(Bytes::from(body.to_string())).unwrap();
        match events.accept(&write, &request) {
            Ok(response) => response.status().as_u16(),
            Err(status) => status.code(),
        }
    }

    fn event(name: &str) -> Value {
        json!({"metadata": {"name": name}, "involvedObject": {"kind": "Pod", "name": "web"}, "reason": "Started", "count": 1})
    }

    #[test]
    fn kept_event_takes_patches_and_another_gets_404() {
        let events = events();
        let strategic = "application/strategic-merge-patch+json";
        assert_eq!(
            send(&events, Method::POST, EVENTS, "application/json", &event("web.1")),
            201
        );
        let path = format!("{EVENTS}/web.1");
        assert_eq!(
            send(&events, Method::PATCH, &path, strategic, &json!({"count": 7})),
            200
        );
        assert_eq!(
            send(
                &events,
                Method::PATCH,
                &format!("{EVENTS}/web.2"),
                strategic,
                &json!({"count": 7})
            ),
            404
        );
        let key = EventKey::new("", "shop", "web.1").unwrap();
        let held = events.queue.lock().get(&key).unwrap();
        assert_eq!((&held["count"], &held["reason"]), (&json!(7), &json!("Started")));
        assert_eq!(events.totals().0, 1);
    }

    #[test]
    fn names_namespaces_and_bodies_are_checked() {
        let events = events();
        let create = |body: &Value| send(&events, Method::POST, EVENTS, "application/json", body);
        for name in ["..", "../x", "a/b", "%2e", "a\u{0}b"] {
            assert_eq!(create(&event(name)), 400, "{name}");
        }
        let mut elsewhere = event("a");
        elsewhere["metadata"]["namespace"] = "kube-system".into();
        assert_eq!(create(&elsewhere), 400);
        for nonsense in [json!("x"), json!([]), json!({"metadata": "x"})] {
            assert_eq!(create(&nonsense), 400, "{nonsense}");
        }
        let mut long = event("a");
        long["message"] = "x".repeat(EVENT_MAX).into();
        assert_eq!(create(&long), 413);
        assert_eq!(
            send(
                &events,
                Method::PUT,
                &format!("{EVENTS}/b"),
                "application/json",
                &event("a")
            ),
            400
        );
        assert_eq!(events.totals().0, 0);
        assert_eq!(create(&json!({"metadata": {"generateName": "web."}})), 201);
        let newer = "/apis/events.k8s.io/v1/namespaces/shop/events";
        assert_eq!(
            send(
                &events,
                Method::POST,
                newer,
                "application/json",
                &json!({"metadata": {"name": "a"}, "note": "n"})
            ),
            201
        );
        assert_eq!(events.totals().0, 2);
    }
}
