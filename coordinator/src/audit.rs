//! Audit log: user, verb, time and result of each request, as `audit.k8s.io/v1` events of level Metadata, one JSON line
//! each.
//!
//! Events never contain a body, a header or a credential. Requests never wait for the log: a full queue drops the
//! event, counts it, and logs the loss. Health checks are left out. In reading order: this file (one request's events),
//! [`writer`] (the file).

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Response};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use parking_lot::Mutex;
use prometheus::{IntCounter, Registry};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use yurt_apimachinery::time::MicroTime;
use yurt_apimachinery::{RequestInfo, Status, Verb};
use yurt_runtime::Clock;
use yurt_runtime::http::server::Peer;
use yurt_runtime::http::{self as web, Body, BoxError};

use crate::StartError;
use crate::authn::User;
use crate::authz::Decision;
use crate::config::Config;

pub(crate) mod writer;

use writer::AuditWriter;

/// Maximum number of events waiting to be written; further ones are dropped.
const QUEUED_MAX: usize = 8192;
/// Maximum length of a client's text, in bytes; longer texts are truncated.
const TEXT_BYTES_MAX: usize = 1024;

/// Takes events; clones share the queue.
#[derive(Clone)]
pub(crate) struct Audit {
    lines: mpsc::Sender<String>,
    counters: AuditCounters,
    clock: Clock,
}

/// Counters of written and lost events.
#[derive(Clone)]
pub(crate) struct AuditCounters {
    /// Events made.
    pub(crate) events: IntCounter,
    /// Events dropped from a full queue, or lost in a failed write.
    pub(crate) lost: IntCounter,
}

/// The audit log of a server, if enabled.
pub(crate) struct AuditLog {
    /// Queue of the events.
    pub(crate) audit: Audit,
    // Taken once, by the writing task.
    writer: Mutex<Option<AuditWriter>>,
}

/// The events of one request. It ends with the answer; when dropped before, it records that the request was abandoned.
pub(crate) struct AuditRecord {
    audit: Audit,
    event: Map<String, Value>,
    is_open: bool,
}

/// A body at whose end its request ends.
struct Audited {
    inner: Body,
    _record: AuditRecord,
}

// === impl AuditCounters ===

impl AuditCounters {
    /// Registers the counters.
    ///
    /// # Errors
    /// When another metric has one of their names, which is a programming error.
    pub(crate) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let counter = |name: &str, help: &str| {
            let counter = IntCounter::new(name, help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        Ok(Self {
            events: counter("apiserver_audit_event_total", "Audit events made.")?,
            lost: counter("apiserver_audit_error_total", "Audit events that were lost.")?,
        })
    }
}

// === impl AuditLog ===

impl AuditLog {
    /// Opens the log that the flags name, if any.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub(crate) fn open(config: &Config, counters: AuditCounters, clock: Clock) -> Result<Option<Self>, StartError> {
        let Some(path) = &config.audit_log_path else {
            return Ok(None);
        };
        let (lines, queue) = mpsc::channel(QUEUED_MAX);
        let max_bytes = config.audit_log_maxsize.get().saturating_mul(1 << 20);
        let writer = AuditWriter::open(
            path,
            max_bytes,
            config.audit_log_maxbackup,
            queue,
            counters.lost.clone(),
        );
        let failed = |error| StartError::new(format!("--audit-log-path: cannot open {}: {error}", path.display()));
        Ok(Some(Self {
            audit: Audit { lines, counters, clock },
            writer: Mutex::new(Some(writer.map_err(failed)?)),
        }))
    }

    /// The writing end; `None` after the first call.
    pub(crate) fn take_writer(&self) -> Option<AuditWriter> {
        self.writer.lock().take()
    }
}

// === impl Audit ===

impl Audit {
    /// Begins the events of a request; without `user` it was refused before its caller was known.
    pub(crate) fn begin(
        &self,
        info: &RequestInfo,
        uri: &str,
        headers: &HeaderMap,
        peer: &Peer,
        user: Option<&User>,
        audit_id: &str,
    ) -> AuditRecord {
        let agent = headers
            .get(http::header::USER_AGENT)
            .and_then(|agent| agent.to_str().ok());
        let event = json!({
            "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "Metadata",
            "auditID": shortened(audit_id), "requestURI": shortened(uri), "verb": info.verb.as_str(),
            "user": user.map_or_else(|| json!({}), User::info),
            "sourceIPs": [peer.addr.ip().to_string()], "userAgent": shortened(agent.unwrap_or_default()),
            "requestReceivedTimestamp": self.now(),
        });
        let mut record = AuditRecord {
            audit: self.clone(),
            event: event.as_object().cloned().unwrap_or_default(),
            is_open: true,
        };
        if info.is_resource {
            record.set("objectRef", object_ref(info));
        }
        if user.is_some() {
            record.stage("RequestReceived");
        }
        record
    }

    fn now(&self) -> MicroTime {
        let now = self.clock.unix();
        MicroTime::from_unix(now.secs, now.nanos)
    }

    fn send(&self, line: String) {
        self.counters.events.inc();
        if self.lines.try_send(line).is_err() {
            self.counters.lost.inc();
        }
    }
}

// === impl AuditRecord ===

impl AuditRecord {
    /// Records the user on whose behalf the request is answered, and the verb of the constrained mode that permits it.
    pub(crate) fn impersonated(&mut self, user: &User, constraint: Option<&str>) {
        self.set("impersonatedUser", user.info());
        if let Some(verb) = constraint {
            self.set("authenticationMetadata", json!({ "impersonationConstraint": verb }));
        }
    }

    /// Records the decision of the authorizer.
    pub(crate) fn decided(&mut self, decision: &Decision) {
        let (word, why) = match decision {
            Decision::Allowed(why) => ("allow", &**why),
            Decision::Denied(why) => ("forbid", why.as_str()),
        };
        let annotations = json!({ "authorization.k8s.io/decision": word, "authorization.k8s.io/reason": why });
        self.set("annotations", annotations);
    }

    /// Records the answer. A watch has only begun; its last event comes with the end of the body.
    pub(crate) fn answered(mut self, verb: Option<Verb>, response: Response<Body>) -> Response<Body> {
        let code = response.status().as_u16();
        self.set("responseStatus", json!({ "metadata": {}, "code": code }));
        if verb != Some(Verb::Watch) || code != 200 {
            self.complete("ResponseComplete");
            return response;
        }
        self.stage("ResponseStarted");
        response.map(|inner| web::pass(Audited { inner, _record: self }))
    }

    /// Records the answer to a request that was refused before its caller was known.
    pub(crate) fn refused(mut self, answer: &Status) {
        let status = json!({ "metadata": {}, "status": "Failure", "reason": answer.reason(), "code": answer.code(),
                             "message": shortened(answer.message()) });
        self.set("responseStatus", status);
        self.complete("ResponseStarted");
    }

    fn set(&mut self, member: &str, value: Value) {
        self.event.insert(member.to_owned(), value);
    }

    fn complete(&mut self, stage: &str) {
        self.is_open = false;
        self.stage(stage);
    }

    fn stage(&mut self, stage: &str) {
        let now = self.audit.now();
        self.set("stage", json!(stage));
        self.set("stageTimestamp", json!(now));
        if let Ok(line) = serde_json::to_string(&self.event) {
            self.audit.send(line + "\n");
        }
    }
}

impl Drop for AuditRecord {
    fn drop(&mut self) {
        if !self.is_open {
            return;
        }
        if std::thread::panicking() {
            self.set(
                "responseStatus",
                json!({ "metadata": {}, "status": "Failure", "code": 500 }),
            );
            return self.complete("Panic");
        }
        if !self.event.contains_key("responseStatus") {
            let status = json!({ "metadata": {}, "message": "Connection closed early" });
            self.set("responseStatus", status);
        }
        self.complete("ResponseComplete");
    }
}

fn object_ref(info: &RequestInfo) -> Value {
    let mut object = Map::new();
    let members = [
        ("resource", Some(&info.resource)),
        ("namespace", info.namespace.as_ref()),
        ("name", info.name.as_ref()),
        ("apiGroup", Some(&info.group)),
        ("apiVersion", Some(&info.version)),
        ("subresource", info.subresource.as_ref()),
    ];
    for (member, text) in members {
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            object.insert(member.to_owned(), json!(shortened(text)));
        }
    }
    Value::Object(object)
}

/// Truncates a client's text to [`TEXT_BYTES_MAX`].
fn shortened(text: &str) -> String {
    match text.char_indices().find(|(at, c)| at + c.len_utf8() > TEXT_BYTES_MAX) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}...TRUNCATED", &text[..end]),
    }
}

// === impl Audited ===

impl HttpBody for Audited {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_queue_loses_events_and_counts_them_but_never_waits() {
        let counter = |name: &str| IntCounter::new(name, "help").unwrap();
        let counters = AuditCounters {
            events: counter("events"),
            lost: counter("lost"),
        };
        let (lines, mut queue) = mpsc::channel(2);
        let clock = Clock::system();
        let audit = Audit {
            lines,
            counters: counters.clone(),
            clock,
        };
        for (sent, lost) in [(1, 0), (2, 0), (3, 1)] {
            audit.send("line\n".to_owned());
            assert_eq!((counters.events.get(), counters.lost.get()), (sent, lost));
        }
        assert!(queue.try_recv().is_ok());
        audit.send("line\n".to_owned());
        assert_eq!(counters.lost.get(), 1, "room again");
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(shortened(&"a".repeat(TEXT_BYTES_MAX)).len(), TEXT_BYTES_MAX);
        let cut = shortened(&"é".repeat(TEXT_BYTES_MAX));
        assert!(cut.ends_with("é...TRUNCATED") && cut.len() < TEXT_BYTES_MAX + 20);
    }
}
