//! Simulated hubs: each has one connection to the coordinator and asks what a follower asks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http::header::{ACCEPT, ACCEPT_ENCODING};
use http::{HeaderName, HeaderValue, Method, Request, StatusCode};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::time::MicroTime;
use yurt_apimachinery::watch::{EventType, RawEvent, WatchDecoder};
use yurt_runtime::Clock;
use yurt_runtime::http::client::{HttpClient, Protocol};
use yurt_runtime::http::{Decoded, empty, pass};
use yurt_runtime::tls::{ClientTls, PemIdentity, PemSource};
use yurt_testbed::Setup;

use super::{LEASE, LEASES};

/// Between two looks at what the coordinator says of itself.
const PROBE_EVERY: Duration = Duration::from_secs(5);
/// Between two heartbeats.
const BEAT_EVERY: Duration = Duration::from_secs(10);
const TIMEOUT: Duration = Duration::from_secs(10);
/// Hubs that join, or beat, at the same time.
const AT_ONCE: usize = 32;
const FEED: &str = "/yurt/v1/feed";
/// Data that a follower copies: collections of the pool and its members.
const COPIED: [&str; 4] = [
    "/api/v1/services",
    "/api/v1/endpoints",
    "/apis/discovery.k8s.io/v1/endpointslices",
    "/apis/yurt.openyurt.io/v1/members",
];
const ELECTION: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";

/// Totals of all simulated hubs so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) requests: u64,
    pub(super) refused: u64,
    /// Changes of slices that arrived.
    pub(super) events: u64,
    pub(super) connections: u64,
}

#[derive(Default)]
struct Totals {
    requests: AtomicU64,
    refused: AtomicU64,
    events: AtomicU64,
    moved: Notify,
    last_refusal: Mutex<String>,
}

/// One of them.
struct Member {
    node: String,
    client: HttpClient,
    /// Its node's lease as the coordinator answered last.
    lease: Mutex<Option<Value>>,
    totals: Arc<Totals>,
}

/// All of them.
pub(super) struct Crowd {
    members: Vec<Arc<Member>>,
    totals: Arc<Totals>,
    /// Ends the periodic heartbeats.
    beating: CancellationToken,
}

// === impl Crowd ===

impl Crowd {
    /// Connects hubs of these nodes; returns when every one has listed everything and watches.
    pub(super) async fn join(setup: &Setup, port: u16, names: &[String]) -> Result<Self> {
        let totals = Arc::<Totals>::default();
        let make = |name: &String| Member::new(setup, port, name, &totals).map(Arc::new);
        let members = names.iter().map(make).collect::<Result<Vec<_>>>()?;
        let beating = setup.tasks.token().child_token();
        for some in members.chunks(AT_ONCE) {
            let begin = async |member: &Arc<Member>| member.clone().begin(setup, &beating).await;
            futures_util::future::try_join_all(some.iter().map(begin)).await?;
        }
        Ok(Self {
            members,
            totals,
            beating,
        })
    }

    pub(super) fn len(&self) -> u64 {
        self.members.len() as u64
    }

    pub(super) fn counts(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Acquire);
        Counts {
            requests: read(&self.totals.requests),
            refused: read(&self.totals.refused),
            events: read(&self.totals.events),
            connections: self.members.iter().map(|member| member.client.connections()).sum(),
        }
    }

    pub(super) fn last_refusal(&self) -> String {
        self.totals.last_refusal.lock().clone()
    }

    /// Waits until this many changes have arrived.
    pub(super) async fn received(&self, events: u64, limit: Duration) -> Result<()> {
        let all = async {
            loop {
                let moved = self.totals.moved.notified();
                if self.counts().events >= events {
                    return;
                }
                moved.await;
            }
        };
        let in_time = tokio::time::timeout(limit, all).await;
        in_time.with_context(|| format!("{} of {events} events arrived", self.counts().events))
    }

    /// From now on heartbeats say that the cloud was not reached, and come when [`Self::beat`] says so.
    pub(super) async fn lose_cloud(&self) -> Result<()> {
        self.beating.cancel();
        self.beat().await
    }

    /// One heartbeat of each, for the leader to forward.
    pub(super) async fn beat(&self) -> Result<()> {
        for some in self.members.chunks(AT_ONCE) {
            futures_util::future::try_join_all(some.iter().map(|member| member.renew(true))).await?;
        }
        Ok(())
    }
}

// === impl Totals ===

impl Totals {
    /// Reads a watch until it ends, which is a refusal; counts changes where that is asked for.
    async fn read(&self, mut body: Decoded, counts: bool) {
        let mut decoder = WatchDecoder::new();
        while let Some(Ok(data)) = body.next().await {
            decoder.push(&data);
            let is_change = |event: &RawEvent| event.event_type != EventType::Bookmark;
            let changes = decoder.by_ref().filter_map(Result::ok).filter(is_change).count();
            if counts && changes > 0 {
                self.events.fetch_add(changes as u64, Ordering::Release);
                self.moved.notify_waiters();
            }
        }
        self.refuse("a watch ended before its time".to_owned());
    }

    fn refuse(&self, why: String) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        *self.last_refusal.lock() = why;
    }
}

// === impl Member ===

impl Member {
    fn new(setup: &Setup, port: u16, name: &str, totals: &Arc<Totals>) -> Result<Self> {
        let pair = setup
            .identities
            .client_pair(&format!("system:node:{name}"), &["system:nodes"])?;
        let tls = ClientTls {
            ca: PemSource::inline("the testbed's CA", setup.identities.ca_pem()),
            identity: Some(PemIdentity::inline("a simulated node", &pair)),
        };
        let base = format!("https://127.0.0.1:{port}").parse()?;
        Ok(Self {
            node: name.to_owned(),
            client: HttpClient::new(base, Some(tls.config()?), Protocol::Http2, TIMEOUT)?,
            lease: Mutex::default(),
            totals: totals.clone(),
        })
    }

    /// Lists, opens the watches and begins to beat.
    async fn begin(self: Arc<Self>, setup: &Setup, beating: &CancellationToken) -> Result<()> {
        self.get(FEED).await?;
        for path in COPIED {
            let list: Value = serde_json::from_slice(&self.get(path).await?)?;
            let at = list["metadata"]["resourceVersion"]
                .as_str()
                .context("a list has a resourceVersion")?;
            let query = format!("{path}?watch=1&allowWatchBookmarks=true&timeoutSeconds=3600&resourceVersion={at}");
            self.clone()
                .watch(setup, query, path.ends_with("endpointslices"))
                .await?;
        }
        let election = format!("{ELECTION}?watch=1&fieldSelector=metadata.name%3Dyurthub&timeoutSeconds=3600");
        self.clone().watch(setup, election, false).await?;
        self.renew(false).await?;
        let (beats, token) = (self.clone(), beating.clone());
        setup.tasks.spawn("beats", async move {
            token
                .run_until_cancelled(beats.every(BEAT_EVERY, async |member| member.renew(false).await))
                .await;
        });
        let token = setup.tasks.token();
        setup.tasks.spawn("probes", async move {
            token
                .run_until_cancelled(self.every(PROBE_EVERY, async |member| member.get(FEED).await.map(drop)))
                .await;
        });
        Ok(())
    }

    /// Does it again and again, each hub at moments of its own. A failure is counted where it happens.
    async fn every(&self, pause: Duration, act: impl AsyncFn(&Self) -> Result<()>) {
        tokio::time::sleep(pause.mul_f64(fastrand::f64())).await;
        loop {
            let _ = act(self).await;
            tokio::time::sleep(pause).await;
        }
    }

    async fn get(&self, path: &str) -> Result<Bytes> {
        self.ask(Method::GET, path, None).await
    }

    async fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Bytes> {
        self.totals.requests.fetch_add(1, Ordering::Relaxed);
        let what = format!("{method} {path}");
        let answered = self.client.request_json(method, path, body, TIMEOUT).await;
        let (status, bytes) = match answered {
            Ok((status, _, bytes)) => (status.to_string(), bytes),
            Err(error) => (error.to_string(), Bytes::new()),
        };
        if !status.starts_with('2') {
            let text = String::from_utf8_lossy(&bytes[..bytes.len().min(300)]).into_owned();
            self.totals.refuse(format!("{what}: {status} {text}"));
            bail!("{}: {what}: {status} {text}", self.node);
        }
        Ok(bytes)
    }

    /// Opens a watch as a follower does, and reads it until the end.
    async fn watch(self: Arc<Self>, setup: &Setup, path: String, counts: bool) -> Result<()> {
        self.totals.requests.fetch_add(1, Ordering::Relaxed);
        let mut request = Request::new(empty());
        *request.uri_mut() = path.parse()?;
        let headers = request.headers_mut();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        headers.insert(HeaderName::from_static("yurt-replica"), HeaderValue::from_static("1"));
        let response = self.client.send(request).await?;
        ensure!(response.status() == StatusCode::OK, "{path}: {}", response.status());
        let body = Decoded::of(response.map(pass)).context("an unknown encoding")?;
        let (token, totals) = (setup.tasks.token(), self.totals.clone());
        setup.tasks.spawn("watch", async move {
            let _ = token.run_until_cancelled(totals.read(body, counts)).await;
        });
        Ok(())
    }

    /// A heartbeat. `is_cut_off`: the cloud was not reached.
    async fn renew(&self, is_cut_off: bool) -> Result<()> {
        let held = self.lease.lock().clone();
        let (method, path, mut lease) = match held {
            Some(lease) => (Method::PUT, format!("{LEASES}/{}", self.node), lease),
            None => {
                let metadata = json!({"name": self.node, "namespace": "kube-node-lease"});
                let spec = json!({"holderIdentity": self.node, "leaseDurationSeconds": LEASE.as_secs()});
                let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec});
                (Method::POST, LEASES.to_owned(), lease)
            }
        };
        let now = Clock::system().unix();
        lease["spec"]["renewTime"] = json!(MicroTime::from_unix(now.secs, now.nanos));
        if is_cut_off {
            lease["metadata"]["annotations"]["openyurt.io/delegate-heartbeat"] = "true".into();
        }
        let answer = self.ask(method, &path, Some(&lease)).await?;
        *self.lease.lock() = Some(serde_json::from_slice(&answer)?);
        Ok(())
    }
}
