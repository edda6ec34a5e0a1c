//! A lean client: one HTTP/2 connection per session, no decoding of answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::header::{ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE, USER_AGENT};
use http::{HeaderValue, Method, Request};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::sync::Notify;
use yurt_runtime::TaskGroup;
use yurt_runtime::http::client::{HttpClient, Protocol};
use yurt_runtime::http::{empty, full};
use yurt_runtime::tls::{ClientTls, PemIdentity, PemSource};
use yurt_testbed::identities::Identities;
use yurt_workspace::Stopwatch;

pub(super) const JSON: &str = "application/json";
pub(super) const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
pub(super) const MERGE: &str = "application/merge-patch+json";

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
const ANSWER_MAX: usize = 256 * 1024 * 1024;

/// A client with one connection.
#[derive(Clone)]
pub(super) struct Session {
    client: HttpClient,
    user_agent: HeaderValue,
    authorization: Option<HeaderValue>,
}

/// Makes sessions.
#[derive(Clone)]
pub(super) struct Connector {
    port: u16,
    /// `None` for plain HTTP.
    tls: Option<ClientTls>,
    protocol: Protocol,
    /// Service account token; `None` for a client with a certificate, or without credentials.
    token: Option<String>,
    user_agent: &'static str,
}

/// A request.
pub(super) struct Ask<'a> {
    pub(super) method: Method,
    pub(super) path: &'a str,
    pub(super) content_type: &'static str,
    pub(super) accept: &'static str,
    pub(super) gzip: bool,
    pub(super) body: Bytes,
}

/// One request of a series, made for its number.
pub(super) struct Job {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) content_type: &'static str,
    pub(super) body: Bytes,
}

/// Sends requests 0 to `total` over the sessions, `per_session` at a time on each; the time each took, sorted.
pub(super) async fn series(
    sessions: &[Session],
    per_session: usize,
    total: usize,
    make: impl Fn(usize) -> Job,
) -> Result<Vec<Duration>> {
    let next = std::sync::atomic::AtomicUsize::new(0);
    let worker = async |session: &Session| {
        let mut took = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= total {
                return Ok::<_, anyhow::Error>(took);
            }
            let job = make(at);
            let watch = Stopwatch::start();
            let ask = Ask {
                content_type: job.content_type,
                ..Ask::new(job.method, &job.path, job.body)
            };
            session.send(ask).await?;
            took.push(watch.elapsed());
        }
    };
    let workers = sessions
        .iter()
        .flat_map(|session| (0..per_session).map(move |_| session));
    let all = futures_util::future::try_join_all(workers.map(worker)).await?;
    let mut all: Vec<Duration> = all.into_iter().flatten().collect();
    all.sort_unstable();
    Ok(all)
}

/// The value below which this share of the sorted times lies, in milliseconds.
pub(super) fn quantile(sorted: &[Duration], share: f64) -> f64 {
    let at = ((sorted.len() as f64 * share) as usize).min(sorted.len().saturating_sub(1));
    sorted.get(at).map_or(0.0, |time| time.as_secs_f64() * 1000.0)
}

/// Watchers that count what they receive together.
#[derive(Clone)]
pub(super) struct Watchers {
    clock: Stopwatch,
    /// Time of the latest event on `clock`, in nanoseconds.
    latest: Arc<AtomicU64>,
    events: Arc<AtomicU64>,
    bytes: Arc<AtomicU64>,
    ended: Arc<AtomicU64>,
    moved: Arc<Notify>,
}

impl<'a> Ask<'a> {
    pub(super) fn new(method: Method, path: &'a str, body: impl Into<Bytes>) -> Self {
        Self {
            method,
            path,
            content_type: JSON,
            accept: JSON,
            gzip: false,
            body: body.into(),
        }
    }
}

// === impl Connector ===

impl Connector {
    /// An administrator with a client certificate, over HTTP/2.
    pub(super) fn new(port: u16, identities: &Identities) -> Self {
        let admin = PemIdentity::inline("the benchmark's administrator", &identities.admin);
        Self {
            port,
            tls: Some(tls(identities, Some(admin))),
            protocol: Protocol::Http2,
            token: None,
            user_agent: "bench/1",
        }
    }

    /// A pod with a service account token, over the protocol that the server prefers.
    pub(super) fn of_pod(port: u16, identities: &Identities, token: &str, user_agent: &'static str) -> Self {
        Self {
            port,
            tls: Some(tls(identities, None)),
            protocol: Protocol::Auto,
            token: Some(token.to_owned()),
            user_agent,
        }
    }

    /// A component of the node, at a hub's port without TLS.
    pub(super) fn of_node(port: u16, user_agent: &'static str) -> Self {
        Self {
            port,
            tls: None,
            protocol: Protocol::Auto,
            token: None,
            user_agent,
        }
    }

    /// One more, which knows nothing of the TLS sessions of others.
    pub(super) fn session(&self) -> Result<Session> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let base = format!("{scheme}://127.0.0.1:{}", self.port).parse()?;
        let tls = self.tls.as_ref().map(ClientTls::config).transpose()?;
        let client = HttpClient::new(base, tls, self.protocol, CONNECT_TIMEOUT)?;
        let bearer = |token: &String| HeaderValue::try_from(format!("Bearer {token}"));
        Ok(Session {
            client,
            user_agent: HeaderValue::from_static(self.user_agent),
            authorization: self.token.as_ref().map(bearer).transpose()?,
        })
    }
}

fn tls(identities: &Identities, identity: Option<PemIdentity>) -> ClientTls {
    ClientTls {
        ca: PemSource::inline("the benchmark's CA", identities.ca_pem()),
        identity,
    }
}

// === impl Session ===

impl Session {
    /// Sends and reads the whole answer; anything but success is an error.
    pub(super) async fn send(&self, ask: Ask<'_>) -> Result<Bytes> {
        let what = format!("{} {}", ask.method, ask.path);
        let (status, _, body) = self
            .client
            .request_bytes(self.request(ask)?, ANSWER_TIMEOUT, ANSWER_MAX)
            .await
            .with_context(|| what.clone())?;
        ensure!(
            status.is_success(),
            "{what}: {status} {}",
            String::from_utf8_lossy(&body[..body.len().min(300)])
        );
        Ok(body)
    }

    /// Sends and returns the answer once its head is there, with its Content-Type.
    pub(super) async fn open(&self, ask: Ask<'_>) -> Result<(Incoming, String)> {
        let what = format!("{} {}", ask.method, ask.path);
        let response = self
            .client
            .send(self.request(ask)?)
            .await
            .with_context(|| what.clone())?;
        ensure!(response.status().is_success(), "{what}: {}", response.status());
        let content_type = response
            .headers()
            .get(CONTENT_TYPE)
            .and_then(|value| value.to_str().ok());
        let content_type = content_type.unwrap_or_default().to_owned();
        Ok((response.into_body(), content_type))
    }

    /// Sends and counts the bytes of the answer without keeping them; its Content-Type, too.
    pub(super) async fn drain(&self, ask: Ask<'_>) -> Result<(u64, String)> {
        let (mut body, content_type) = self.open(ask).await?;
        let mut bytes = 0;
        while let Some(frame) = body.frame().await {
            bytes += frame?.data_ref().map_or(0, Bytes::len) as u64;
        }
        Ok((bytes, content_type))
    }

    fn request(&self, ask: Ask<'_>) -> Result<Request<yurt_runtime::http::Body>> {
        let has_body = !ask.body.is_empty();
        let mut request = Request::new(if has_body { full(ask.body) } else { empty() });
        *request.method_mut() = ask.method;
        *request.uri_mut() = ask
            .path
            .parse()
            .with_context(|| format!("{} must be a path", ask.path))?;
        let headers = request.headers_mut();
        headers.insert(ACCEPT, HeaderValue::from_static(ask.accept));
        headers.insert(USER_AGENT, self.user_agent.clone());
        headers.extend(self.authorization.clone().map(|value| (AUTHORIZATION, value)));
        if has_body {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(ask.content_type));
        }
        if ask.gzip {
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        }
        Ok(request)
    }
}

// === impl Watchers ===

impl Default for Watchers {
    fn default() -> Self {
        Self {
            clock: Stopwatch::start(),
            latest: Arc::default(),
            events: Arc::default(),
            bytes: Arc::default(),
            ended: Arc::default(),
            moved: Arc::default(),
        }
    }
}

impl Watchers {
    /// Watchers that count for themselves and take their times from the same clock.
    pub(super) fn beside(&self) -> Self {
        Self {
            clock: self.clock,
            ..Self::default()
        }
    }

    /// Opens one more watch on `session`; returns its Content-Type when the headers are there.
    pub(super) async fn open(
        &self,
        tasks: &TaskGroup,
        session: &Session,
        path: &str,
        accept: &'static str,
    ) -> Result<String> {
        let ask = Ask {
            accept,
            ..Ask::new(Method::GET, path, Bytes::new())
        };
        let (mut body, content_type) = session.open(ask).await?;
        let mut counter = Counter::of(&content_type);
        let (watchers, token) = (self.clone(), tasks.token());
        tasks.spawn("watcher", async move {
            loop {
                let frame = tokio::select! {
                    frame = body.frame() => frame,
                    () = token.cancelled() => break,
                };
                let Some(Ok(frame)) = frame else { break };
                let Some(data) = frame.data_ref() else { continue };
                watchers.bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
                let events = counter.events(data);
                if events > 0 {
                    watchers.note_time();
                    watchers.events.fetch_add(events, Ordering::Release);
                    watchers.moved.notify_one();
                }
            }
            watchers.ended.fetch_add(1, Ordering::Relaxed);
        });
        Ok(content_type)
    }

    /// Waits until all together have received this many events; how long that took.
    pub(super) async fn received(&self, events: u64, limit: Duration) -> Result<Duration> {
        let watch = Stopwatch::start();
        let all = async {
            while self.events.load(Ordering::Acquire) < events {
                self.moved.notified().await;
            }
        };
        tokio::time::timeout(limit, all).await.with_context(|| {
            format!(
                "{} of {events} events arrived, {} watches ended",
                self.events(),
                self.ended()
            )
        })?;
        Ok(watch.elapsed())
    }

    /// Time of the latest event, on a clock that [`Self::beside`] shares.
    pub(super) fn latest(&self) -> Duration {
        Duration::from_nanos(self.latest.load(Ordering::Acquire))
    }

    fn note_time(&self) {
        let now = u64::try_from(self.clock.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.latest.fetch_max(now, Ordering::Release);
    }

    pub(super) fn events(&self) -> u64 {
        self.events.load(Ordering::Acquire)
    }

    pub(super) fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }
}

/// Counts the frames in pieces of a stream.
enum Counter {
    Lines,
    /// Four bytes of length, then that many bytes.
    Framed {
        head: Vec<u8>,
        left: usize,
    },
}

impl Counter {
    fn of(content_type: &str) -> Self {
        if content_type.starts_with(PROTOBUF) {
            Self::Framed {
                head: Vec::new(),
                left: 0,
            }
        } else {
            Self::Lines
        }
    }

    fn events(&mut self, mut data: &[u8]) -> u64 {
        match self {
            Self::Lines => data.iter().filter(|byte| **byte == b'\n').count() as u64,
            Self::Framed { head, left } => {
                let mut events = 0;
                while !data.is_empty() {
                    if *left > 0 {
                        let taken = data.len().min(*left);
                        *left -= taken;
                        data = &data[taken..];
                        events += u64::from(*left == 0);
                        continue;
                    }
                    head.push(data[0]);
                    data = &data[1..];
                    if let Ok(length) = <[u8; 4]>::try_from(head.as_slice()) {
                        *left = u32::from_be_bytes(length) as usize;
                        head.clear();
                    }
                }
                events
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_counted_across_pieces() {
        let mut lines = Counter::of("application/json");
        assert_eq!(lines.events(b"{}\n{") + lines.events(b"}\n"), 2);
        let mut framed = Counter::of("application/vnd.kubernetes.protobuf;stream=watch");
        let stream = [0, 0, 0, 2, 7, 7, 0, 0, 0, 1, 9];
        let events: u64 = stream.chunks(3).map(|piece| framed.events(piece)).sum();
        assert_eq!(events, 2);
    }
}
