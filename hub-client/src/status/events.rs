//! Kubernetes Events of this hub, written to the coordinator: changes of the leader and of the source of pool data.
//!
//! [`Correlator`] (pure) bounds them as client-go's recorder does: a repeated event raises the count of the existing
//! one, and events per object are rate-limited. [`Recorder`] queues notes that could not be written yet, because the
//! event may be about the coordinator's outage.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, Request, StatusCode};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::time::Time;
use yurt_runtime::http::client::HttpClient;
use yurt_runtime::http::full;
use yurt_runtime::{Clock, UnixTime};

/// Maximum notes that wait for the coordinator; the oldest is dropped first.
const WAITING_MAX: usize = 32;
/// Age after which a note is dropped: events live for an hour.
const WORTH: Duration = Duration::from_secs(3600);
/// Pause after a write that failed.
const AGAIN: Duration = Duration::from_secs(10);
/// Longest wait for one answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum bytes of an answer.
const ANSWER_BYTES: usize = 1 << 20;
/// Maximum events remembered to raise their count.
const REMEMBERED_MAX: usize = 64;
/// Burst of events per object, and the time until the next one may be written: client-go's limits.
const BURST: u32 = 25;
const REFILL: Duration = Duration::from_secs(300);
/// Reporting component.
const COMPONENT: &str = "yurthub";

/// Object of an event.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum About {
    /// The election lease, (namespace, name).
    Lease(String, String),
    /// This node.
    Node(String),
}

/// Event to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    /// Object of the event.
    pub(crate) about: About,
    /// True for `Warning`, false for `Normal`.
    pub(crate) warning: bool,
    /// One word, for machines.
    pub(crate) reason: &'static str,
    /// One sentence, for people.
    pub(crate) message: String,
    /// Time of the event.
    pub(crate) at: UnixTime,
}

/// Write for a note.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Write {
    /// A new event of this name.
    Create(String),
    /// Update of the existing event of this name to this count.
    Repeat(String, u32),
    /// Nothing: the object has reached its rate limit.
    Nothing,
}

type Key = (About, bool, &'static str, String);

/// Decides the writes; uses neither clock nor network.
#[derive(Debug, Default)]
struct Correlator {
    /// Name and count of written events, and a sequence number by which the oldest is evicted.
    written: BTreeMap<Key, (String, u32, u64)>,
    /// Tokens left per object, and the time of the last refill.
    tokens: BTreeMap<About, (u32, i64)>,
    turn: u64,
}

/// Accepts notes immediately and writes them when possible. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Recorder {
    node: String,
    clock: Clock,
    waiting: Arc<Mutex<VecDeque<Note>>>,
    added: Arc<Notify>,
}

// === impl About ===

impl About {
    /// Namespace of its events; `default` for cluster-scoped objects.
    fn namespace(&self) -> &str {
        match self {
            Self::Lease(namespace, _) => namespace,
            Self::Node(_) => "default",
        }
    }

    fn name(&self) -> &str {
        match self {
            Self::Lease(_, name) | Self::Node(name) => name,
        }
    }

    fn reference(&self) -> Value {
        match self {
            Self::Lease(namespace, name) => json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "namespace": namespace, "name": name,
            }),
            // The kubelet refers to its node in the same way, with the name as uid.
            Self::Node(name) => json!({"apiVersion": "v1", "kind": "Node", "name": name, "uid": name}),
        }
    }
}

// === impl Note ===

impl Note {
    fn key(&self) -> Key {
        (self.about.clone(), self.warning, self.reason, self.message.clone())
    }

    fn time(&self) -> String {
        Time::from_unix(self.at.secs).to_string()
    }

    fn to_event(&self, name: &str, node: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Event",
            "metadata": {"namespace": self.about.namespace(), "name": name},
            "involvedObject": self.about.reference(),
            "type": if self.warning { "Warning" } else { "Normal" },
            "reason": self.reason,
            "message": self.message,
            "firstTimestamp": self.time(),
            "lastTimestamp": self.time(),
            "count": 1,
            "source": {"component": COMPONENT, "host": node},
            "reportingComponent": COMPONENT,
            "reportingInstance": node,
        })
    }
}

// === impl Correlator ===

impl Correlator {
    /// Returns the write for `note`; `random` makes a new name unique.
    fn next(&mut self, note: &Note, random: u64) -> Write {
        if !self.take_token(note) {
            return Write::Nothing;
        }
        self.turn += 1;
        if let Some((name, count, turn)) = self.written.get_mut(&note.key()) {
            (*count, *turn) = (*count + 1, self.turn);
            return Write::Repeat(name.clone(), *count);
        }
        if self.written.len() >= REMEMBERED_MAX {
            let oldest = self.written.iter().min_by_key(|(_, (_, _, turn))| *turn);
            if let Some(key) = oldest.map(|(key, _)| key.clone()) {
                self.written.remove(&key);
            }
        }
        let name = format!("{}.{random:016x}", note.about.name());
        self.written.insert(note.key(), (name.clone(), 1, self.turn));
        Write::Create(name)
    }

    /// Reverts `write`, which failed and will be retried.
    fn undo(&mut self, note: &Note, write: &Write) {
        match write {
            Write::Create(_) => self.forget(note),
            Write::Repeat(..) => {
                if let Some((_, count, _)) = self.written.get_mut(&note.key()) {
                    *count -= 1;
                }
            }
            Write::Nothing => return,
        }
        if let Some((left, _)) = self.tokens.get_mut(&note.about) {
            *left += 1;
        }
    }

    /// Forgets the event of `note`, which no longer exists; the next one is new.
    fn forget(&mut self, note: &Note) {
        self.written.remove(&note.key());
    }

    fn take_token(&mut self, note: &Note) -> bool {
        let now = note.at.secs;
        let refill = REFILL.as_secs() as i64;
        let (left, counted) = self.tokens.entry(note.about.clone()).or_insert((BURST, now));
        // A clock that goes back would stop the refill until it is there again.
        *counted = now.min(*counted);
        let grown = now.saturating_sub(*counted) / refill;
        *left = left.saturating_add(u32::try_from(grown).unwrap_or(BURST)).min(BURST);
        *counted += grown * refill;
        let has_token = *left > 0;
        *left = left.saturating_sub(1);
        has_token
    }
}

// === impl Recorder ===

impl Recorder {
    pub(crate) fn new(node: &str, clock: Clock) -> Self {
        Self {
            node: node.to_owned(),
            clock,
            waiting: Arc::default(),
            added: Arc::default(),
        }
    }

    /// Queues a note about an event that happened now. Never waits.
    pub(crate) fn note(&self, about: About, warning: bool, reason: &'static str, message: String) {
        let note = Note {
            about,
            warning,
            reason,
            message,
            at: self.clock.unix(),
        };
        let mut waiting = self.waiting.lock();
        if waiting.len() >= WAITING_MAX {
            waiting.pop_front();
        }
        waiting.push_back(note);
        drop(waiting);
        self.added.notify_one();
    }

    /// Writes notes to the coordinator one by one until `token` is cancelled.
    pub(crate) async fn run(self, coordinator: HttpClient, token: CancellationToken) {
        let mut correlator = Correlator::default();
        token
            .run_until_cancelled(async {
                loop {
                    let next = self.waiting.lock().pop_front();
                    match next {
                        None => self.added.notified().await,
                        Some(note) if self.clock.unix().since(note.at) > WORTH => {}
                        Some(note) => self.write(&mut correlator, &coordinator, note).await,
                    }
                }
            })
            .await;
    }

    async fn write(&self, correlator: &mut Correlator, coordinator: &HttpClient, note: Note) {
        let write = correlator.next(&note, fastrand::u64(..));
        let request = match &write {
            Write::Nothing => return,
            Write::Create(name) => create(&note, name, &self.node),
            Write::Repeat(name, count) => repeat(&note, name, *count),
        };
        let Some(request) = request else { return };
        let answer = coordinator.request_bytes(request, TIMEOUT, ANSWER_BYTES).await;
        match answer.map(|(status, ..)| status) {
            Ok(StatusCode::NOT_FOUND) => {
                // The event has expired. A create never gets this answer, so the loop ends.
                correlator.forget(&note);
                if matches!(write, Write::Repeat(..)) {
                    self.waiting.lock().push_front(note);
                }
            }
            Ok(status) if status.is_success() => {}
            Ok(status) if status.is_client_error() && status != StatusCode::TOO_MANY_REQUESTS => {
                correlator.forget(&note);
                tracing::debug!(%status, reason = note.reason, "Failed to write event");
            }
            _ => {
                correlator.undo(&note, &write);
                self.put_back(note);
                tokio::time::sleep(AGAIN).await;
            }
        }
    }

    fn put_back(&self, note: Note) {
        let mut waiting = self.waiting.lock();
        if waiting.len() < WAITING_MAX {
            waiting.push_front(note);
        }
    }
}

fn create(note: &Note, name: &str, node: &str) -> Option<Request<yurt_runtime::http::Body>> {
    let path = format!("/api/v1/namespaces/{}/events", note.about.namespace());
    request(Method::POST, &path, "application/json", &note.to_event(name, node))
}

fn repeat(note: &Note, name: &str, count: u32) -> Option<Request<yurt_runtime::http::Body>> {
    let path = format!("/api/v1/namespaces/{}/events/{name}", note.about.namespace());
    let patch = json!({"count": count, "lastTimestamp": note.time()});
    request(Method::PATCH, &path, "application/merge-patch+json", &patch)
}

fn request(method: Method, path: &str, kind: &'static str, body: &Value) -> Option<Request<yurt_runtime::http::Body>> {
    let mut request = Request::new(full(body.to_string()));
    *request.method_mut() = method;
    *request.uri_mut() = path.parse().ok()?;
    request
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    Some(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(message: &str, secs: i64) -> Note {
        Note {
            about: About::Node("n1".into()),
            warning: false,
            reason: "PoolDataSource",
            message: message.into(),
            at: UnixTime { secs, nanos: 0 },
        }
    }

    #[test]
    fn the_same_again_raises_the_count() {
        let mut correlator = Correlator::default();
        let first = correlator.next(&note("a", 0), 1);
        assert_eq!(first, Write::Create("n1.0000000000000001".into()));
        assert!(matches!(correlator.next(&note("b", 1), 2), Write::Create(_)));
        let again = correlator.next(&note("a", 2), 3);
        assert_eq!(again, Write::Repeat("n1.0000000000000001".into(), 2));
        correlator.forget(&note("a", 2));
        assert_eq!(
            correlator.next(&note("a", 3), 4),
            Write::Create("n1.0000000000000004".into())
        );
    }

    #[test]
    fn one_object_may_tell_so_much_and_one_more_every_five_minutes() {
        let mut correlator = Correlator::default();
        let mut writes = |secs| correlator.next(&note("flapping", secs), 1) != Write::Nothing;
        let told = (0..100).filter(|_| writes(0)).count();
        assert_eq!(told, 25);
        assert!(!writes(299));
        assert!(writes(300));
        assert!(!writes(301));
    }

    #[test]
    fn clock_that_goes_back_ends_no_objects_events() {
        let mut correlator = Correlator::default();
        let mut writes = |secs| correlator.next(&note("flapping", secs), 1) != Write::Nothing;
        assert_eq!((0..100).filter(|_| writes(1_000_000)).count(), 25);
        assert!(!writes(0));
        assert!(writes(300));
    }

    #[test]
    fn a_write_that_failed_costs_nothing() {
        let mut correlator = Correlator::default();
        for turn in 0..100 {
            let write = correlator.next(&note("a", 0), turn);
            assert_eq!(write, Write::Create(format!("n1.{turn:016x}")));
            correlator.undo(&note("a", 0), &write);
        }
        correlator.next(&note("a", 0), 7);
        for _ in 0..100 {
            let write = correlator.next(&note("a", 0), 8);
            assert_eq!(write, Write::Repeat("n1.0000000000000007".into(), 2));
            correlator.undo(&note("a", 0), &write);
        }
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut correlator = Correlator::default();
        for at in 0..1000_u32 {
            let late = i64::from(at) * 300;
            correlator.next(&note(&at.to_string(), late), u64::from(at));
        }
        assert_eq!(correlator.written.len(), REMEMBERED_MAX);
    }

    #[test]
    fn the_oldest_note_goes_when_too_many_wait() {
        let (clock, _) = Clock::fake();
        let recorder = Recorder::new("n1", clock);
        for at in 0..WAITING_MAX + 2 {
            recorder.note(About::Node("n1".into()), false, "PoolDataSource", at.to_string());
        }
        let waiting = recorder.waiting.lock();
        assert_eq!((waiting.len(), waiting[0].message.as_str()), (WAITING_MAX, "2"));
    }
}
