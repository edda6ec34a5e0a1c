//! Service account tokens that the node requested: while the cloud is away the last real answer is returned unchanged,
//! as long as it is valid. A token is never invented, because the kubelet would replace a valid one by it.
//!
//! A token is valid until its own claim `exp`. By default kube-apiserver sets that of a pod's token for its own
//! audience a year ahead, and reports the requested 3607 s in `expirationTimestamp` (its flag
//! `--service-account-extend-token-expiration`). The kubelet uses an answer whose `expirationTimestamp` is past, and
//! asks again when it next needs the token (`pkg/kubelet/token/token_manager.go`).
//!
//! The files have mode 0600. One task writes them, and erases expired ones while the cloud answers. A token that the
//! disk does not take stays in memory. The kept tokens also name the service accounts of callers whose token the cloud
//! was never asked about (`issued`).

pub mod claims;
mod issued;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::time::Time;
use yurt_apimachinery::{RequestInfo, Verb};
use yurt_codec::negotiation::{body_format, body_json};
use yurt_pool_protocol::names::STALE_HEADER;
use yurt_runtime::Clock;
use yurt_runtime::http::{Body, full, respond};

use super::backlog::{self, Backlog, Bounds, Change};
use super::kept_read::{accepted, class_of};
use super::record::{FileName, Record};
use super::shelf::{Limits, Share, Shelf, ShelfError, Totals};
use crate::copied::Copies;
use crate::health::CloudReach;
use issued::Issued;

/// Name of the folder below the cache folder.
pub const FOLDER: &str = "tokens";
/// Maximum bytes of a request or an answer; tokens with many groups have a few KiB.
pub const BYTES_MAX: usize = 64 << 10;
/// Limits of the folder: several tokens for each pod.
const LIMITS: Limits = Limits {
    file: (BYTES_MAX + (8 << 10)) as u64,
    share_of: |_| Share {
        name: "tokens",
        records: 2048,
        bytes: 16 << 20,
    },
};
/// Limits of the tokens that wait for the writer; further ones are not kept.
const BACKLOG: Bounds = Bounds {
    changes: 256,
    bytes: 2 << 20,
};
/// Interval of erasing expired tokens, and of storing those that the disk did not take.
const CHECKED_EVERY: Duration = Duration::from_secs(600);
/// Fact of a record: its content type.
const TYPE: &str = "contentType";
/// Fact of a record: the Unix time at which the token ends, s.
const EXPIRES: &str = "expires";
const API_VERSION: &str = "authentication.k8s.io/v1";
const KIND: &str = "TokenRequest";

/// A request for a token: who it is for, and the media types that the client accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenKey {
    subject: Value,
    accepted: Vec<String>,
}

/// Kept tokens. Cheap to clone; clones share the state.
#[derive(Clone)]
pub struct Tokens {
    shelf: Arc<Shelf>,
    // Leaf lock.
    issued: Arc<Mutex<Issued>>,
    copies: Copies,
    // Leaf lock.
    backlog: Arc<Mutex<Backlog>>,
    news: Arc<Notify>,
    clock: Clock,
}

/// Returns the user name of a token that the cloud issued through this hub.
pub type Accounts = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// Receives a token that the cloud does not accept any more.
pub type RefusedTokens = Arc<dyn Fn(&str) + Send + Sync>;

/// True if the request asks for a token of a service account.
#[must_use]
pub fn is_token_request(info: &RequestInfo) -> bool {
    info.is_resource
        && info.verb == Verb::Create
        && info.group.is_empty()
        && info.resource == "serviceaccounts"
        && info.subresource.as_deref() == Some("token")
        && info.name.is_some()
}

// === impl TokenKey ===

impl TokenKey {
    /// Reads a request; `None` if the body is no TokenRequest.
    #[must_use]
    pub fn of(info: &RequestInfo, headers: &HeaderMap, body: &Bytes) -> Option<Self> {
        let text = |name| {
            headers
                .get(name)
                .map(|value: &HeaderValue| value.to_str().unwrap_or_default())
        };
        let request = decode(text(CONTENT_TYPE), body)?;
        let spec = request["spec"].as_object().map(|_| &request["spec"])?;
        let mut audiences = match &spec["audiences"] {
            Value::Null => Vec::new(), // the apiserver's own audience, as in the token volume of every pod
            Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
            _ => return None,
        };
        audiences.sort_unstable();
        let bound = ["apiVersion", "kind", "name", "uid"].map(|name| &spec["boundObjectRef"][name]);
        Some(Self {
            subject: json!([info.namespace, info.name, audiences, spec["expirationSeconds"], bound]),
            accepted: accepted(text(ACCEPT), false),
        })
    }

    fn key(&self, class: &str) -> String {
        json!([self.subject, class]).to_string()
    }
}

fn decode(content_type: Option<&str>, body: &Bytes) -> Option<Value> {
    let json = body_json(body_format(content_type).ok()?, API_VERSION, KIND, body).ok()?;
    serde_json::from_slice(&json).ok()
}

/// Returns the token in an answer, and the Unix time at which it ends, s: by its own claim, else by the answer.
fn token_of(content_type: &str, body: &Bytes) -> Option<(String, i64)> {
    let answer = decode(Some(content_type), body)?;
    let token = answer["status"]["token"].as_str().filter(|token| !token.is_empty())?;
    let end = answer["status"]["expirationTimestamp"].as_str()?;
    let reported = Time::parse(end).ok()?.unix();
    Some((token.to_owned(), claims::ends_at(token).unwrap_or(reported)))
}

// === impl Tokens ===

impl Tokens {
    /// Opens the folder; [`Self::run`] has to run for tokens to be kept.
    #[must_use]
    pub fn open(cache: &Path, clock: Clock) -> Self {
        let shelf = Shelf::open(cache.join(FOLDER), LIMITS);
        let mut issued = Issued::default();
        for record in shelf.all() {
            let subject = serde_json::from_str::<Value>(&record.key).map(|mut key| key[0].take());
            let token = token_of(record.facts[TYPE].as_str().unwrap_or_default(), &record.body);
            if let (Ok(subject), Some((token, expires))) = (subject, token) {
                issued.learn(&subject, &token, expires);
            }
        }
        Self {
            shelf: Arc::new(shelf),
            issued: Arc::new(Mutex::new(issued)),
            copies: Copies::within(super::COPIES_MAX),
            backlog: Arc::new(Mutex::new(Backlog::within(BACKLOG))),
            news: Arc::default(),
            clock,
        }
    }

    /// Returns a function that names the service account of a token, if the cloud issued it through this hub and it has
    /// not ended.
    #[must_use]
    pub fn accounts(&self) -> Accounts {
        let (issued, clock) = (self.issued.clone(), self.clock.clone());
        Arc::new(move |token| issued.lock().account(token, clock.unix().secs))
    }

    /// Returns a function that forgets the service account of a token: it has no rights of its account any more.
    #[must_use]
    pub fn refused(&self) -> RefusedTokens {
        let issued = self.issued.clone();
        Arc::new(move |token| issued.lock().forget(token))
    }

    /// Records and bytes held.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.shelf.totals()
    }

    /// Returns the cloud's answer, extended to be kept once it has passed.
    #[must_use]
    pub fn keeping(&self, key: &TokenKey, response: Response<Body>) -> Response<Body> {
        let content_type = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let is_token = response.status() == StatusCode::CREATED;
        let (Some(content_type), true) = (content_type.map(str::to_owned), is_token) else {
            return response;
        };
        let class = class_of(&content_type);
        if !key.accepted.contains(&class) {
            return response;
        }
        let (backlog, news, issued) = (self.backlog.clone(), self.news.clone(), self.issued.clone());
        let (subject, key) = (key.subject.clone(), key.key(&class));
        let keep = move |body: Bytes| {
            let Some((token, expires)) = token_of(&content_type, &body) else {
                return;
            };
            issued.lock().learn(&subject, &token, expires);
            let facts = json!({TYPE: content_type, EXPIRES: expires});
            let name = FileName::of(&key);
            let is_kept = backlog.lock().keep(name, Record { key, facts, body });
            if !is_kept {
                not_kept("too many tokens wait for the disk");
            }
            news.notify_one();
        };
        response.map(|body| self.copies.of(body, BYTES_MAX, keep))
    }

    /// Returns the last real answer, if its token is still valid.
    pub async fn answer(&self, key: &TokenKey) -> Option<Response<Body>> {
        let (shelf, backlog, now) = (self.shelf.clone(), self.backlog.clone(), self.clock.unix().secs);
        let keys: Vec<String> = key.accepted.iter().map(|class| key.key(class)).collect();
        let found = tokio::task::spawn_blocking(move || {
            let mut found = keys.iter().filter_map(|key| backlog::find(&backlog, &shelf, key));
            found.find(|record| !is_over(record, now))
        });
        let record = found.await.ok()??;
        let content_type = HeaderValue::try_from(record.facts[TYPE].as_str()?).ok()?;
        let mut response = respond(StatusCode::CREATED, content_type, full(record.body));
        response
            .headers_mut()
            .insert(STALE_HEADER, HeaderValue::from_static("true"));
        Some(response)
    }

    /// Writes tokens until `token` is cancelled, and erases expired ones while the cloud answers: a clock that is ahead
    /// by mistake must not cost the tokens of a node that gets no others. Deletes all of them once `is_foreign` is
    /// cancelled: the cloud is another cluster.
    pub async fn run(
        self,
        reach: watch::Receiver<CloudReach>,
        token: CancellationToken,
        is_foreign: CancellationToken,
    ) {
        let mut check = tokio::time::interval(CHECKED_EVERY);
        loop {
            tokio::select! {
                biased;
                () = token.cancelled() => break,
                () = is_foreign.cancelled() => break,
                _ = check.tick() => {
                    self.write().await;
                    if reach.borrow().is_up() {
                        self.erase().await;
                    }
                }
                () = self.news.notified() => self.write().await,
            }
        }
        if !is_foreign.is_cancelled() {
            self.write().await;
            return;
        }
        self.issued.lock().clear();
        self.backlog.lock().clear();
        let shelf = self.shelf.clone();
        // The stop deletes what is left.
        let _ = tokio::task::spawn_blocking(move || shelf.clear()).await;
        token.cancelled().await;
    }

    async fn write(&self) {
        let (keys, mut failure) = (self.backlog.lock().due(|_| true), None);
        for key in keys {
            let change = self.backlog.lock().get(&key).cloned();
            let Some(Change {
                number,
                record: Some(record),
                ..
            }) = change
            else {
                continue;
            };
            let shelf = self.shelf.clone();
            match tokio::task::spawn_blocking(move || shelf.put(&record)).await {
                Ok(Err(ShelfError::Disk(error))) => {
                    failure = Some(error);
                    continue;
                }
                Ok(Err(error)) => not_kept(&error.to_string()),
                _ => {}
            }
            // Only after the write, so that a reader finds it in one of the two places.
            self.backlog.lock().done(&key, number);
        }
        if let Some(error) = failure {
            tracing::warn!(%error, "Failed to store tokens; they are in memory until the disk takes them");
        }
    }

    async fn erase(&self) {
        let (shelf, now) = (self.shelf.clone(), self.clock.unix().secs);
        self.issued.lock().erase(now);
        self.backlog.lock().drop_those(|record| is_over(record, now));
        let erased = tokio::task::spawn_blocking(move || {
            let mut over = shelf.all().filter(|record| is_over(record, now));
            over.try_for_each(|record| shelf.remove(&record.key))
        });
        if let Ok(Err(error)) = erased.await {
            tracing::warn!(%error, "Failed to erase expired tokens");
        }
    }
}

fn not_kept(error: &str) {
    tracing::warn!(
        error,
        "Failed to keep token; a restart of the kubelet without the cloud lacks it"
    );
}

fn is_over(record: &Record, now: i64) -> bool {
    record.facts[EXPIRES].as_i64().is_none_or(|end| end <= now)
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use http_body_util::BodyExt as _;
    use yurt_runtime::TaskGroup;
    use yurt_test_support::{TestDir, eventually};

    use super::*;

    const UP: CloudReach = CloudReach { failed_probes: Some(0) };

    fn key(spec: &Value) -> TokenKey {
        let info = RequestInfo::parse("POST", "/api/v1/namespaces/shop/serviceaccounts/web/token", None).unwrap();
        assert!(is_token_request(&info));
        TokenKey::of(&info, &HeaderMap::new(), &json!({ "spec": spec }).to_string().into()).unwrap()
    }

    fn spec() -> Value {
        json!({"audiences": ["a", "b"], "expirationSeconds": 3607, "boundObjectRef": {"kind": "Pod", "name": "web-1", "uid": "u1"}})
    }

    /// The cloud's answer with a token that ends so many seconds after the fake clock's first reading.
    fn issued(token: &str, seconds: i64) -> Response<Body> {
        let end = Time::from_unix(Clock::fake().0.unix().secs + seconds);
        let status = json!({"token": token, "expirationTimestamp": end.to_string()});
        yurt_runtime::http::json(StatusCode::CREATED, json!({"kind": KIND, "status": status}).to_string())
    }

    /// Runs the writer until it stops.
    async fn stop(tokens: &Tokens) {
        let stopped = CancellationToken::new();
        stopped.cancel();
        let reach = watch::Sender::new(UP).subscribe();
        tokens.clone().run(reach, stopped, CancellationToken::new()).await;
    }

    #[test]
    fn tokens_differ_by_audience_lifetime_and_bound_object() {
        let first = key(&spec());
        let mut same = spec();
        same["audiences"] = json!(["b", "a"]);
        assert_eq!(key(&same), first);
        let own = [json!({"audiences": []}), json!({"audiences": null}), json!({})];
        assert!(own.iter().all(|spec| key(spec) == key(&own[0])));
        for (name, other) in [
            ("audiences", json!(["a"])),
            ("expirationSeconds", json!(600)),
            ("boundObjectRef", json!({"kind": "Pod", "name": "web-1", "uid": "u2"})),
            ("boundObjectRef", Value::Null),
            ("audiences", Value::Null),
        ] {
            let mut changed = spec();
            changed[name] = other;
            assert_ne!(key(&changed), first, "{name}");
        }
        let info = RequestInfo::parse("POST", "/api/v1/namespaces/shop/serviceaccounts/web/token", None).unwrap();
        for nonsense in ["", "{}", "[]", "{\"spec\":{\"audiences\":\"a\"}}"] {
            assert_eq!(
                TokenKey::of(&info, &HeaderMap::new(), &nonsense.into()),
                None,
                "{nonsense}"
            );
        }
    }

    /// The kubelet names no audience in the tokens of most pods.
    #[tokio::test]
    async fn token_for_the_cluster_is_kept_and_names_its_account_also_after_a_restart() {
        let (folder, (clock, _)) = (TestDir::new(), Clock::fake());
        let open = || Tokens::open(folder.path(), clock.clone());
        let mut spec = spec();
        spec["audiences"] = Value::Null;
        let (tokens, key) = (open(), key(&spec));
        tokens
            .keeping(&key, issued("t1", 3600))
            .into_body()
            .collect()
            .await
            .unwrap();
        stop(&tokens).await;
        for tokens in [tokens, open()] {
            assert_eq!(
                tokens.accounts()("t1").as_deref(),
                Some("system:serviceaccount:shop:web")
            );
            assert_eq!(tokens.accounts()("t2"), None);
        }
    }

    /// The disk is slow: the writer does not run.
    #[tokio::test]
    async fn tokens_that_wait_for_the_disk_are_bounded() {
        let (folder, (clock, _)) = (TestDir::new(), Clock::fake());
        let tokens = Tokens::open(folder.path(), clock);
        for number in 0..600 {
            let mut spec = spec();
            spec["boundObjectRef"]["uid"] = number.into();
            let passed = tokens.keeping(&key(&spec), issued("t", 3600)).into_body();
            passed.collect().await.unwrap();
        }
        stop(&tokens).await;
        assert_eq!(tokens.totals().records, BACKLOG.changes);
    }

    #[tokio::test(start_paused = true)]
    async fn token_that_the_disk_does_not_take_is_in_memory_until_it_does() {
        let (folder, (clock, _)) = (TestDir::new(), Clock::fake());
        let no_folder = folder.write(FOLDER, "a file where the folder would be");
        let (tokens, key) = (Tokens::open(folder.path(), clock.clone()), key(&spec()));
        let response = tokens.keeping(&key, issued("t1", 3600));
        response.into_body().collect().await.unwrap();
        stop(&tokens).await;
        assert!(tokens.answer(&key).await.is_some());
        std::fs::remove_file(no_folder).unwrap();
        let reach = watch::Sender::new(CloudReach::default());
        let running = tokens.run(reach.subscribe(), CancellationToken::new(), CancellationToken::new());
        assert!(tokio::time::timeout(2 * CHECKED_EVERY, running).await.is_err());
        assert!(Tokens::open(folder.path(), clock).answer(&key).await.is_some());
    }

    #[tokio::test]
    async fn newest_token_is_kept_and_a_stop_writes_it() {
        let (folder, (clock, _)) = (TestDir::new(), Clock::fake());
        let (tokens, key) = (Tokens::open(folder.path(), clock.clone()), key(&spec()));
        let mut passed = Bytes::new();
        for token in ["t1", "t2"] {
            let body = tokens.keeping(&key, issued(token, 3600)).into_body();
            passed = body.collect().await.unwrap().to_bytes();
        }
        stop(&tokens).await;
        let answer = Tokens::open(folder.path(), clock).answer(&key).await.unwrap();
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), passed);
    }

    /// kube-apiserver accepts a token of a pod for a year, and asks for another one after an hour.
    #[tokio::test]
    async fn token_that_the_cloud_accepts_for_longer_than_it_says_is_returned_until_then() {
        let (hour, year) = (3607, 365 * 24 * 3600);
        let (folder, (clock, hand)) = (TestDir::new(), Clock::fake());
        let tokens = Tokens::open(folder.path(), clock.clone());
        let mut spec = spec();
        spec["audiences"] = Value::Null;
        let key = key(&spec);
        let claims = json!({"exp": clock.unix().secs + year as i64}).to_string();
        let token = format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims));
        let passed = tokens.keeping(&key, issued(&token, hour)).into_body();
        let passed = passed.collect().await.unwrap().to_bytes();
        let account = || tokens.accounts()(&token).is_some();
        hand.advance(Duration::from_secs(year - 1));
        let answer = tokens.answer(&key).await.expect("it is valid");
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), passed);
        assert!(account());
        hand.advance(Duration::from_secs(1));
        assert!(tokens.answer(&key).await.is_none() && !account());
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_are_not_erased_while_the_cloud_is_away_because_the_clock_may_be_ahead() {
        let (folder, (clock, hand)) = (TestDir::new(), Clock::fake());
        let tokens = Tokens::open(folder.path(), clock);
        let response = tokens.keeping(&key(&spec()), issued("t1", 3600));
        response.into_body().collect().await.unwrap();
        stop(&tokens).await;
        hand.advance(Duration::from_secs(7200));
        let files = || std::fs::read_dir(folder.path().join(FOLDER)).unwrap().count();
        for (reach, expected) in [(CloudReach::default(), 1), (UP, 0)] {
            let reach = watch::Sender::new(reach);
            let running = tokens
                .clone()
                .run(reach.subscribe(), CancellationToken::new(), CancellationToken::new());
            let ended = tokio::time::timeout(2 * CHECKED_EVERY, running).await;
            assert_eq!((ended.is_err(), files()), (true, expected));
        }
    }

    #[tokio::test]
    async fn last_real_answer_is_returned_unchanged_until_it_ends_and_is_erased_then() {
        let (folder, (clock, hand), tasks) = (TestDir::new(), Clock::fake(), TaskGroup::new());
        let tokens = Tokens::open(folder.path(), clock.clone());
        let key = key(&spec());
        let refused = yurt_runtime::http::json(StatusCode::FORBIDDEN, "{}");
        let empty = yurt_runtime::http::json(StatusCode::CREATED, "{\"status\":{\"token\":\"\"}}");
        let pass = async |response| {
            let passed = tokens.keeping(&key, response).into_body().collect().await;
            passed.unwrap().to_bytes()
        };
        for nothing in [refused, empty] {
            pass(nothing).await;
        }
        let passed = pass(issued("t1", 3600)).await;
        assert!(tokens.answer(&key).await.is_some(), "also before it is on the disk");
        stop(&tokens).await;
        let answer = Tokens::open(folder.path(), clock).answer(&key).await.unwrap();
        assert_eq!(answer.status(), StatusCode::CREATED);
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), passed);
        assert_eq!(tokens.shelf.totals().records, 1);
        assert_eq!(tokens.accounts()("t1"), None, "it is for other audiences");
        hand.advance(Duration::from_secs(3599));
        assert!(tokens.answer(&key).await.is_some());
        hand.advance(Duration::from_secs(1));
        assert!(tokens.answer(&key).await.is_none(), "an expired token is not returned");
        let reach = watch::Sender::new(UP).subscribe();
        tasks.spawn(
            "erase",
            tokens.clone().run(reach, tasks.token(), CancellationToken::new()),
        );
        let files = || std::fs::read_dir(folder.path().join(FOLDER)).unwrap().count();
        eventually("the token must be erased", async || (files() == 0).then_some(())).await;
    }
}
