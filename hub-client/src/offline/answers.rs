//! Keeps answers of the cloud on the disk, and returns them while it is away.
//!
//! An answer is copied while it passes. One task writes the files: a new answer immediately, a changed one at most
//! every [`REWRITTEN_EVERY`], because flash wears out; until then the newer answer is in memory. When the cloud goes
//! away, and at a stop, all of them are written. A deletion counts at once, however slow the disk is.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::time::BootTime;
use yurt_apimachinery::{ResourceKind, ResourceVersion, meta};
use yurt_codec::negotiation::{body_format, body_json};
use yurt_pool_protocol::names::STALE_HEADER;
use yurt_runtime::Clock;
use yurt_runtime::http::{APPLICATION_JSON, Body, Inflate, accepts_gzip, full, respond, stream as body_of};

use super::backlog::{self, Backlog, Bounds, Change};
use super::kept_read::{KeptRead, Readers, readers_of};
use super::record::{FileName, Record};
use super::shelf::{Limits, Share, Shelf, Totals};
use crate::copied::Copies;
use crate::failures::Failures;
use crate::health::CloudReach;

/// Name of the folder below the cache folder.
pub const FOLDER: &str = "answers";
/// Maximum bytes of an answer that is kept.
pub const ANSWER_MAX: usize = 2 << 20;
/// Limits of the folder.
const LIMITS: Limits = Limits {
    file: (ANSWER_MAX + (8 << 10)) as u64,
    share_of,
};
/// Answers that were read with the node's identity.
const OF_NODE: Share = Share {
    name: "node",
    records: 1024,
    bytes: 20 << 20,
};
/// Answers that callers with tokens of their own read: pods.
const OF_TOKENS: Share = Share {
    name: "tokens",
    records: 512,
    bytes: 4 << 20,
};
/// Discovery documents, which every caller may read.
const DISCOVERY: Share = Share {
    name: "discovery",
    records: 512,
    bytes: 8 << 20,
};
/// Time between two writes of an answer that changes.
pub const REWRITTEN_EVERY: Duration = Duration::from_secs(300);
/// Maximum bytes of the answers that wait for that time; above it they are written immediately.
const WAITING_MAX: usize = 1 << 20;
/// Limits of the answers that wait for the writer; further ones are not kept this time.
const BACKLOG: Bounds = Bounds {
    changes: 1024,
    bytes: 8 << 20,
};
/// Interval of the check for due writes.
const CHECKED_EVERY: Duration = Duration::from_secs(30);
/// Failure key: the disk does not take an answer.
pub(crate) const DISK: &str = "kept answers";
/// Fact of a record: its content type.
const TYPE: &str = "contentType";
/// Fact of a record: its content encoding.
const ENCODING: &str = "contentEncoding";

/// Kept answers. Cheap to clone; clones share the state.
#[derive(Clone)]
pub struct Answers {
    shelf: Arc<Shelf>,
    copies: Copies,
    // No lock but the shelf's index is taken while this one is held.
    backlog: Arc<Mutex<Backlog>>,
    news: Arc<Notify>,
}

/// The one writer of the folder.
pub struct Writer {
    shelf: Arc<Shelf>,
    backlog: Arc<Mutex<Backlog>>,
    news: Arc<Notify>,
    written: HashMap<FileName, BootTime>,
    clock: Clock,
    failures: Failures,
}

// === impl Answers ===

impl Answers {
    /// Opens the folder; [`Writer::run`] has to run for answers to be kept.
    #[must_use]
    pub fn open(cache: &std::path::Path, clock: Clock, failures: Failures) -> (Self, Writer) {
        let shelf = Arc::new(Shelf::open(cache.join(FOLDER), LIMITS));
        let backlog = Arc::new(Mutex::new(Backlog::within(BACKLOG)));
        let news = Arc::new(Notify::new());
        let writer = Writer {
            shelf: shelf.clone(),
            backlog: backlog.clone(),
            news: news.clone(),
            written: HashMap::new(),
            clock,
            failures,
        };
        let answers = Self {
            shelf,
            copies: Copies::within(super::COPIES_MAX),
            backlog,
            news,
        };
        (answers, writer)
    }

    /// Returns the cloud's answer, extended to be kept once it has passed. An answer that the object is gone, or that
    /// none of its readers may read it, deletes the kept one.
    #[must_use]
    pub fn keeping(&self, read: &KeptRead, response: Response<Body>) -> Response<Body> {
        self.keeping_and(read, response, |_| ())
    }

    /// Like [`Self::keeping`]; `and` gets the record first.
    #[must_use]
    pub fn keeping_and(
        &self,
        read: &KeptRead,
        response: Response<Body>,
        and: impl FnOnce(&Record) + Send + 'static,
    ) -> Response<Body> {
        match response.status() {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND | StatusCode::GONE | StatusCode::FORBIDDEN => {
                self.forget(std::slice::from_ref(read));
                return response;
            }
            _ => return response,
        }
        let text = |name| response.headers().get(name).map(HeaderValue::to_str);
        let (Some(Ok(content_type)), None | Some(Ok("gzip" | "identity"))) =
            (text(CONTENT_TYPE), text(CONTENT_ENCODING))
        else {
            return response;
        };
        let Some(key) = read.key_of(content_type) else {
            return response;
        };
        let is_gzip = matches!(text(CONTENT_ENCODING), Some(Ok("gzip")));
        let facts = json!({TYPE: content_type, ENCODING: if is_gzip { "gzip" } else { "" }});
        let answers = self.clone();
        response.map(|body| {
            self.copies.of(body, ANSWER_MAX, move |body| {
                let record = Record { key, facts, body };
                and(&record);
                answers.keep(record);
            })
        })
    }

    /// Returns the kept record for a GET, in the form that the client prefers.
    pub async fn find(&self, read: &KeptRead) -> Option<Record> {
        self.find_all(read).await.into_iter().next()
    }

    /// Returns all kept records for a GET, in the forms that the client accepts.
    pub async fn find_all(&self, read: &KeptRead) -> Vec<Record> {
        let (shelf, backlog) = (self.shelf.clone(), self.backlog.clone());
        let keys: Vec<String> = read.keys().collect();
        let found = tokio::task::spawn_blocking(move || {
            let find = |key: &String| backlog::find(&backlog, &shelf, key);
            keys.iter().filter_map(find).collect()
        });
        found.await.unwrap_or_default()
    }

    /// Replaces the kept forms of an object by this one, in JSON.
    pub fn replace(&self, read: &KeptRead, body: Bytes) {
        self.forget(std::slice::from_ref(read));
        if let Some(key) = read.key_of("application/json") {
            let facts = json!({TYPE: "application/json", ENCODING: ""});
            self.keep(Record { key, facts, body });
        }
    }

    /// Deletes all kept forms of these objects. Readers find none of them from now on.
    pub fn forget(&self, reads: &[KeptRead]) {
        // The hashes take longer than the rest, and every reader and writer waits for this lock.
        let named = |key: String| (FileName::of(&key), key);
        let keys: Vec<_> = reads.iter().flat_map(KeptRead::keys).map(named).collect();
        let mut is_new = false;
        {
            let mut backlog = self.backlog.lock();
            for (name, key) in keys {
                if backlog.get(&key).is_some() || self.shelf.contains(&name) {
                    backlog.forget(name, key);
                    is_new = true;
                }
            }
        }
        if is_new {
            self.news.notify_one();
        }
    }

    /// Records and bytes held.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.shelf.totals()
    }

    fn keep(&self, record: Record) {
        let name = FileName::of(&record.key);
        let is_kept = self.backlog.lock().keep(name, record);
        if !is_kept {
            tracing::debug!("Writer of kept answers is busy; an answer is not kept");
        }
        self.news.notify_one();
    }
}

fn share_of(key: &str) -> Share {
    match readers_of(key) {
        Readers::Node => OF_NODE,
        Readers::Tokens => OF_TOKENS,
        Readers::All => DISCOVERY,
    }
}

/// The answer of a kept record. A client that does not accept gzip receives plain text.
#[must_use]
pub fn answer(record: &Record, headers: &HeaderMap) -> Response<Body> {
    let fact = |name: &str| record.facts[name].as_str().unwrap_or_default();
    let content_type = HeaderValue::try_from(fact(TYPE)).unwrap_or(APPLICATION_JSON);
    let is_gzip = fact(ENCODING) == "gzip";
    let takes_gzip = accepts_gzip(headers);
    let body = if is_gzip && !takes_gzip {
        plain(record.body.clone())
    } else {
        full(record.body.clone())
    };
    let mut response = respond(StatusCode::OK, content_type, body);
    let headers = response.headers_mut();
    if is_gzip && takes_gzip {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    headers.insert(STALE_HEADER, HeaderValue::from_static("true"));
    response
}

/// Body of a record in plain text; `None` if it is not valid gzip, or longer than `max` bytes.
fn plain_text(record: &Record, max: usize) -> Option<Bytes> {
    if record.facts[ENCODING] != "gzip" {
        return Some(record.body.clone()).filter(|body| body.len() <= max);
    }
    Inflate::default().whole(record.body.clone(), max).ok()?
}

/// Object of a record; `None` if it is not readable as one of `kind`.
#[must_use]
pub fn object(record: &Record, kind: &ResourceKind) -> Option<Value> {
    object_as(record, &kind.api_version(), &kind.kind)
}

/// RV of the object of a record; `None` if it has none. Without a kind it is readable in JSON only.
#[must_use]
pub fn version(record: &Record, kind: Option<&ResourceKind>) -> Option<ResourceVersion> {
    let object = match kind {
        Some(kind) => object(record, kind),
        None => object_as(record, "", ""),
    };
    ResourceVersion::parse(meta::text(&object?, "resourceVersion")).ok()
}

fn object_as(record: &Record, api_version: &str, kind: &str) -> Option<Value> {
    let format = body_format(record.facts[TYPE].as_str()).ok()?;
    let body = plain_text(record, ANSWER_MAX)?;
    let json = body_json(format, api_version, kind, &body).ok()?;
    serde_json::from_slice(&json).ok()
}

/// Decompresses piece by piece, as the client reads.
fn plain(body: Bytes) -> Body {
    let pieces = stream::unfold((Inflate::default(), body), |(mut inflate, mut rest)| async move {
        match inflate.step(&mut rest) {
            Ok(piece) if piece.is_empty() => None,
            Ok(piece) => Some((Ok(piece), (inflate, rest))),
            Err(error) => Some((Err(error), (inflate, Bytes::new()))),
        }
    });
    body_of(pieces)
}

// === impl Writer ===

impl Writer {
    /// Writes answers until `token` is cancelled. Deletes all of them once `is_foreign` is cancelled: the cloud is
    /// another cluster.
    pub async fn run(
        mut self,
        mut reach: watch::Receiver<CloudReach>,
        token: CancellationToken,
        is_foreign: CancellationToken,
    ) {
        let mut check = tokio::time::interval(CHECKED_EVERY);
        loop {
            tokio::select! {
                biased;
                () = token.cancelled() => break,
                () = is_foreign.cancelled() => break,
                () = self.news.notified() => self.write_due(false).await,
                changed = reach.changed() => match changed {
                    Ok(()) if reach.borrow_and_update().is_lost() => self.write_due(true).await,
                    Ok(()) => {}
                    Err(_) => token.cancelled().await,
                },
                _ = check.tick() => self.write_due(false).await,
            }
        }
        if !is_foreign.is_cancelled() {
            self.write_due(true).await;
            return;
        }
        self.backlog.lock().clear();
        let shelf = self.shelf.clone();
        // The stop deletes what is left.
        let _ = tokio::task::spawn_blocking(move || shelf.clear()).await;
        token.cancelled().await;
    }

    /// Makes the changes that are due now, or all of them.
    async fn write_due(&mut self, all: bool) {
        for key in self.due(all) {
            let change = self.backlog.lock().get(&key).cloned();
            let Some(Change { number, record, .. }) = change else {
                continue;
            };
            match record {
                Some(record) => self.write(record).await,
                None => self.delete(key.clone()).await,
            }
            // Only after the write, so that a reader finds it in one of the two places.
            self.backlog.lock().done(&key, number);
        }
        let now = self.clock.boot();
        self.written.retain(|_, at| now.since(*at) < REWRITTEN_EVERY);
    }

    fn due(&self, all: bool) -> Vec<String> {
        let now = self.clock.boot();
        let is_early = |change: &Change| {
            let written = self.written.get(&change.name);
            written.is_some_and(|at| now.since(*at) < REWRITTEN_EVERY)
        };
        let backlog = self.backlog.lock();
        let all = all || backlog.bytes() > WAITING_MAX;
        let is_due = |change: &Change| all || change.record.is_none() || change.replaces_deletion;
        backlog.due(|change| is_due(change) || !is_early(change))
    }

    async fn delete(&mut self, key: String) {
        self.written.remove(&FileName::of(&key));
        let shelf = self.shelf.clone();
        let gone = tokio::task::spawn_blocking(move || shelf.remove(&key));
        if let Ok(Err(error)) = gone.await {
            tracing::debug!(%error, "Failed to delete kept answer");
        }
    }

    async fn write(&mut self, record: Record) {
        let (shelf, name) = (self.shelf.clone(), FileName::of(&record.key));
        let written = tokio::task::spawn_blocking(move || shelf.put(&record)).await;
        match written {
            Ok(Ok(true)) => {
                self.written.insert(name, self.clock.boot());
                self.failures.works(DISK);
            }
            Ok(Ok(false)) => {}
            Ok(Err(error)) => self.failures.refused(DISK, &error.to_string()),
            Err(error) => self.failures.refused(DISK, &error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::Method;
    use http::header::ACCEPT_ENCODING;
    use http_body_util::BodyExt as _;
    use yurt_apimachinery::RequestInfo;
    use yurt_runtime::TaskGroup;
    use yurt_test_support::{TestDir, eventually};

    use super::*;

    struct Fixture {
        answers: Answers,
        reach: watch::Sender<CloudReach>,
        tasks: TaskGroup,
        is_foreign: CancellationToken,
        hand: yurt_runtime::FakeClock,
    }

    fn start(folder: &TestDir) -> Fixture {
        let (clock, hand) = Clock::fake();
        let (answers, writer) = Answers::open(folder.path(), clock.clone(), Failures::new(clock));
        let (reach, tasks, is_foreign) = (watch::Sender::default(), TaskGroup::new(), CancellationToken::new());
        tasks.spawn(
            "write",
            writer.run(reach.subscribe(), tasks.token(), is_foreign.clone()),
        );
        Fixture {
            answers,
            reach,
            tasks,
            is_foreign,
            hand,
        }
    }

    fn version() -> KeptRead {
        let info = RequestInfo::parse("GET", "/version", None).unwrap();
        KeptRead::of(
            &Method::GET,
            &"/version".parse().unwrap(),
            &HeaderMap::new(),
            &info,
            None,
        )
        .unwrap()
    }

    fn json_of(text: &'static str) -> Response<Body> {
        yurt_runtime::http::json(StatusCode::OK, text)
    }

    // === impl Fixture ===

    impl Fixture {
        async fn pass(&self, response: Response<Body>) {
            let passed = self.answers.keeping(&version(), response);
            passed.into_body().collect().await.unwrap();
        }

        async fn held(&self) -> Option<Bytes> {
            self.answers.find(&version()).await.map(|record| record.body)
        }

        async fn until(&self, text: Option<&'static str>) {
            eventually("the kept answer", async || {
                (self.held().await.as_deref() == text.map(str::as_bytes)).then_some(())
            })
            .await;
        }

        async fn until_records(&self, records: usize) {
            eventually("the files", async || {
                (self.answers.totals().records == records).then_some(())
            })
            .await;
        }
    }

    /// Reads the files without opening the folder, whose owner is at work.
    fn on_disk(folder: &TestDir) -> Vec<Bytes> {
        let files = std::fs::read_dir(folder.path().join(FOLDER)).into_iter().flatten();
        let read = |file: std::io::Result<std::fs::DirEntry>| {
            let path = file.ok()?.path();
            FileName::parse(path.file_name()?.to_str()?)?;
            Record::decode(&std::fs::read(path).ok()?.into()).map(|record| record.body)
        };
        files.filter_map(read).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn answer_that_changes_often_is_written_seldom_and_read_fresh() {
        let folder = TestDir::new();
        let kept = start(&folder);
        kept.pass(json_of("1")).await;
        kept.until(Some("1")).await;
        kept.until_records(1).await;
        kept.pass(json_of("2")).await;
        kept.until(Some("2")).await;
        assert_eq!(on_disk(&folder), ["1"]);
        kept.hand.advance(REWRITTEN_EVERY);
        eventually("the write that is due", async || {
            (on_disk(&folder) == ["2"]).then_some(())
        })
        .await;
        kept.pass(json_of("3")).await;
        kept.until(Some("3")).await;
        kept.reach.send_replace(CloudReach { failed_probes: Some(2) });
        eventually("the write before the outage", async || {
            (on_disk(&folder) == ["3"]).then_some(())
        })
        .await;
        kept.pass(json_of("4")).await;
        kept.until(Some("4")).await;
        kept.tasks.shutdown(Duration::from_secs(5)).await.unwrap();
        assert_eq!(on_disk(&folder), ["4"], "a stop writes");
    }

    #[tokio::test(start_paused = true)]
    async fn only_whole_successes_of_the_requested_type_are_kept_and_a_404_forgets() {
        let folder = TestDir::new();
        let kept = start(&folder);
        let unavailable = yurt_runtime::http::status_response(&yurt_apimachinery::Status::service_unavailable("no", 1));
        kept.pass(unavailable).await;
        kept.pass(yurt_runtime::http::text(StatusCode::OK, "text")).await;
        let mut zstd = json_of("z");
        zstd.headers_mut()
            .insert(CONTENT_ENCODING, HeaderValue::from_static("zstd"));
        kept.pass(zstd).await;
        kept.pass(json_of("1")).await;
        kept.until(Some("1")).await;
        kept.until_records(1).await;
        let gone = yurt_runtime::http::status_response(&yurt_apimachinery::Status::failure(404, "NotFound", "gone"));
        kept.pass(gone).await;
        kept.until(None).await;
        kept.until_records(0).await;
        assert_eq!(kept.answers.totals(), Totals::default());
    }

    #[tokio::test(start_paused = true)]
    async fn another_cluster_gets_none_of_them() {
        let folder = TestDir::new();
        let kept = start(&folder);
        kept.pass(json_of("1")).await;
        kept.until(Some("1")).await;
        kept.until_records(1).await;
        kept.is_foreign.cancel();
        kept.until(None).await;
        assert!(on_disk(&folder).is_empty());
    }

    /// The disk is slow: the writer does not run.
    #[tokio::test(start_paused = true)]
    async fn deletion_counts_at_once_and_outlives_a_stop_however_much_waits() {
        let folder = TestDir::new();
        let kept = start(&folder);
        kept.pass(json_of("1")).await;
        kept.until(Some("1")).await;
        kept.tasks.shutdown(Duration::from_secs(5)).await.unwrap();
        let (clock, _) = Clock::fake();
        let (answers, writer) = Answers::open(folder.path(), clock.clone(), Failures::new(clock));
        for number in 0..200 {
            let other = KeptRead::of_object("kubelet", &format!("/api/v1/nodes/n{number}"));
            answers.replace(&other, "{}".into());
        }
        answers.forget(&[version()]);
        assert_eq!(answers.find(&version()).await, None);
        let tasks = TaskGroup::new();
        let running = writer.run(
            watch::Sender::default().subscribe(),
            tasks.token(),
            CancellationToken::new(),
        );
        tasks.spawn("write", running);
        tasks.shutdown(Duration::from_secs(5)).await.unwrap();
        let (again, _) = Answers::open(folder.path(), Clock::fake().0, Failures::new(Clock::fake().0));
        assert_eq!(again.find(&version()).await, None);
        assert_eq!(again.totals().records, 200);
    }

    #[tokio::test]
    async fn gzip_is_returned_as_the_client_accepts_it() {
        let text = Bytes::from("abc".repeat(100_000));
        let zipped = yurt_runtime::http::gzip_bytes(&text);
        let record = Record {
            key: "k".to_owned(),
            facts: json!({TYPE: "application/json", ENCODING: "gzip"}),
            body: zipped.clone(),
        };
        let read = async |headers: &HeaderMap| {
            let response = answer(&record, headers);
            let encoding = response.headers().contains_key(CONTENT_ENCODING);
            assert_eq!(response.headers()[STALE_HEADER], "true");
            (encoding, response.into_body().collect().await.unwrap().to_bytes())
        };
        assert_eq!(read(&HeaderMap::new()).await, (false, text.clone()));
        let gzip = HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static("gzip"))]);
        assert_eq!(read(&gzip).await, (true, zipped));
        assert_eq!(plain_text(&record, text.len()), Some(text.clone()));
        assert_eq!(plain_text(&record, text.len() - 1), None);
    }
}
