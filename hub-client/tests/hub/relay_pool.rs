//! A pool for the tests of the relay: a coordinator with node leases, a lease at the cloud, a link that can be cut, and
//! hubs that relay on loopback.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use yurt_runtime::TaskGroup;
use yurt_runtime::http::{Body, json as answer_json, read_body};
use yurt_test_support::{LOOPBACK, eventually, free_port};

use super::cloud::Cloud;
use super::harness::TestHub;

/// Path of all node leases.
pub(crate) const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
/// Name of the pool.
const POOL: &str = "hangzhou";

/// Leases at a server, as far as a hub needs them.
#[derive(Clone, Default)]
pub(crate) struct Leases {
    kept: Arc<Mutex<BTreeMap<String, Value>>>,
    version: Arc<Mutex<u64>>,
    /// Number of the next patches that are refused.
    refused: Arc<AtomicUsize>,
}

/// Forwards TCP to one address until it is cut.
pub(crate) struct Link {
    target: SocketAddr,
    addr: SocketAddr,
    tasks: TaskGroup,
    /// True while nothing passes.
    is_frozen: watch::Sender<bool>,
}

/// A pool of hubs without a leader: no heartbeats are forwarded by a leader.
pub(crate) struct RelayPool {
    pub(crate) cloud: Cloud,
    pub(crate) coordinator: Cloud,
    /// At the cloud.
    pub(crate) leases: Leases,
    /// At the coordinator.
    pub(crate) pool_leases: Leases,
}

// === impl Leases ===

impl Leases {
    /// Serves the leases of these nodes.
    fn at(server: &Cloud, nodes: &[&str]) -> Self {
        let leases = Self::default();
        let all = leases.clone();
        server.on(LEASES, move |request| all.clone().answer(None, request));
        for node in nodes {
            let (one, name) = (leases.clone(), (*node).to_owned());
            server.on(&format!("{LEASES}/{node}"), move |request| {
                one.clone().answer(Some(name.clone()), request)
            });
        }
        leases
    }

    async fn answer(self, name: Option<String>, request: Request<Incoming>) -> Response<Body> {
        let method = request.method().clone();
        let body = read_body(request.into_body(), 1 << 20).await.unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let Some(name) = name.or_else(|| body["metadata"]["name"].as_str().map(str::to_owned)) else {
            let items: Vec<_> = self.kept.lock().values().cloned().collect();
            return answer_json(StatusCode::OK, json!({"kind": "LeaseList", "items": items}).to_string());
        };
        let is_left = |refused: usize| refused.checked_sub(1);
        if method == Method::PATCH && self.refused.fetch_update(Relaxed, Relaxed, is_left).is_ok() {
            return refuse(StatusCode::SERVICE_UNAVAILABLE);
        }
        let known = self.get(&name);
        let sent = &body["metadata"]["resourceVersion"];
        match (method, known) {
            (Method::POST, None) => self.put(&name, body),
            (Method::POST, Some(_)) => refuse(StatusCode::CONFLICT),
            (_, None) => refuse(StatusCode::NOT_FOUND),
            (Method::GET, Some(lease)) => answer_json(StatusCode::OK, lease.to_string()),
            (_, Some(lease)) if !sent.is_null() && *sent != lease["metadata"]["resourceVersion"] => {
                refuse(StatusCode::CONFLICT)
            }
            (Method::PATCH, Some(old)) => {
                let mut lease = old.clone();
                merge(&mut lease, &body);
                if lease == old {
                    // A write without a change does not count.
                    return answer_json(StatusCode::OK, lease.to_string());
                }
                self.put(&name, lease)
            }
            (_, Some(_)) => self.put(&name, body),
        }
    }

    /// Stores a lease under the next version.
    pub(crate) fn put(&self, name: &str, mut lease: Value) -> Response<Body> {
        let mut version = self.version.lock();
        *version += 1;
        lease["metadata"]["resourceVersion"] = version.to_string().into();
        self.kept.lock().insert(name.to_owned(), lease.clone());
        answer_json(StatusCode::OK, lease.to_string())
    }

    /// Answers the next `count` patches with 503.
    pub(crate) fn refuse_patches(&self, count: usize) {
        self.refused.store(count, Relaxed);
    }

    /// Number of patches that are still going to be refused.
    pub(crate) fn patches_to_refuse(&self) -> usize {
        self.refused.load(Relaxed)
    }

    pub(crate) fn get(&self, name: &str) -> Option<Value> {
        self.kept.lock().get(name).cloned()
    }
}

/// RFC 7386.
pub(crate) fn merge(target: &mut Value, patch: &Value) {
    let Some(members) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (name, value) in members {
        if value.is_null() {
            target.as_object_mut().unwrap().remove(name);
        } else {
            merge(&mut target[name], value);
        }
    }
}

fn refuse(status: StatusCode) -> Response<Body> {
    answer_json(status, json!({"kind": "Status", "code": status.as_u16()}).to_string())
}

// === impl Link ===

impl Link {
    pub(crate) async fn to(target: SocketAddr) -> Self {
        let mut link = Self {
            target,
            addr: LOOPBACK,
            tasks: TaskGroup::new(),
            is_frozen: watch::Sender::new(false),
        };
        link.resume().await;
        link
    }

    pub(crate) fn url(&self) -> String {
        format!("https://{}", self.addr)
    }

    /// Ends every connection and refuses new ones.
    pub(crate) async fn cut(&mut self) {
        let _ = self.tasks.shutdown(Duration::ZERO).await;
        let addr = self.addr;
        eventually("the link must be cut", async || TcpStream::connect(addr).await.err()).await;
    }

    /// Ends every connection; new ones are accepted and get no data.
    pub(crate) async fn swallow(&mut self) {
        self.cut().await;
        self.open(true).await;
    }

    pub(crate) async fn resume(&mut self) {
        self.open(false).await;
    }

    /// Stops all bytes without a sign: open connections stay open, and new ones are accepted.
    pub(crate) fn freeze(&self) {
        self.is_frozen.send_replace(true);
    }

    /// Lets bytes pass over new connections again.
    pub(crate) fn thaw(&self) {
        self.is_frozen.send_replace(false);
    }

    async fn open(&mut self, swallows: bool) {
        let addr = self.addr;
        let listener = eventually("the link must get its port", async || {
            TcpListener::bind(addr).await.ok()
        })
        .await;
        self.addr = listener.local_addr().unwrap();
        self.tasks = TaskGroup::new();
        let (target, tasks) = (self.target, self.tasks.clone());
        let is_frozen = self.is_frozen.subscribe();
        self.tasks.spawn("link", async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let mut is_frozen = is_frozen.clone();
                tasks.spawn("link-connection", async move {
                    if swallows || *is_frozen.borrow() {
                        return std::future::pending().await;
                    }
                    let Ok(mut far) = TcpStream::connect(target).await else {
                        return;
                    };
                    let froze = tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => false,
                        frozen = is_frozen.wait_for(|is_frozen| *is_frozen) => frozen.is_ok(),
                    };
                    if froze {
                        std::future::pending().await
                    }
                });
            }
        });
    }
}

// === impl RelayPool ===

impl RelayPool {
    /// Nodes n1 to n4 are members; no hub runs yet.
    pub(crate) async fn start() -> Self {
        let cloud = Cloud::start().await;
        let coordinator = cloud.start_beside().await;
        let nodes = ["n1", "n2", "n3", "n4"];
        for node in nodes {
            let label = json!({"apps.openyurt.io/nodepool": POOL});
            cloud.put("nodes", json!({"metadata": {"name": node, "labels": label}}));
        }
        Self {
            leases: Leases::at(&cloud, &nodes),
            pool_leases: Leases::at(&coordinator, &nodes),
            cloud,
            coordinator,
        }
    }

    /// Starts the hub of `node` with its relay on the returned port; the cloud is at `server`.
    pub(crate) async fn hub(&self, node: &str, server: &str, more: &[&str]) -> (TestHub, SocketAddr) {
        let port = free_port();
        let flags = [
            format!("--nodepool-name={POOL}"),
            "--enable-coordinator".to_owned(),
            "--leader-elect=false".to_owned(),
            format!("--coordinator-server-addr={}", self.coordinator.url()),
            "--relay-address=127.0.0.1".to_owned(),
            format!("--relay-port={port}"),
        ];
        let flags: Vec<_> = flags.iter().map(String::as_str).chain(more.iter().copied()).collect();
        let hub = TestHub::start_node(&self.cloud, node, server, &flags).await;
        hub.wait_until_complete().await;
        let state = hub
            .until("cloud and members must be known", |state| {
                state["cloudReachable"] == true && state["collections"]["members"]["objects"] == 4
            })
            .await;
        assert!(state["collections"]["members"]["complete"] == true, "{state}");
        (hub, SocketAddr::from(([127, 0, 0, 1], port)))
    }

    /// Writes the lease of a peer, which offers a relay at `address` to these servers, to the coordinator.
    pub(crate) fn offer(&self, node: &str, address: SocketAddr, servers: &str) {
        let annotations = json!({
            "openyurt.io/relay-address": address.to_string(),
            "openyurt.io/relay-servers": servers,
        });
        let metadata = json!({"name": node, "namespace": "kube-node-lease", "annotations": annotations});
        let spec = json!({"holderIdentity": node, "renewTime": "2026-01-01T00:00:00.000000Z"});
        self.pool_leases.put(node, json!({"metadata": metadata, "spec": spec}));
    }
}
