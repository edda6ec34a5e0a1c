//! A scripted cloud apiserver: real TLS, client certificates, lists and watches of a few kinds, and a script for every
//! other path.

pub(crate) mod leases;
pub(crate) mod requests;
pub(crate) mod resources;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use parking_lot::Mutex;
use serde_json::{Value, json};
use yurt_apimachinery::{RequestInfo, Status, Verb};
use yurt_runtime::TaskGroup;
use yurt_runtime::http::server::{Peer, Server, handler};
use yurt_runtime::http::{self as our_http, Body, read_body, status_response};
use yurt_test_support::{LOOPBACK, TestPki, eventually};

use requests::{CSRS, Requests};
pub(crate) use resources::Backup;
use resources::Resources;

/// Path at which callers review their own rights.
pub(crate) const SELF_REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
/// Path at which the hub reviews the rights of others.
pub(crate) const REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
/// Path of the Namespace whose uid identifies the cluster.
pub(crate) const IDENTITY: &str = "/api/v1/namespaces/kube-system";
/// Time of an answer above the limits for requests to a cloud that is not up.
pub(crate) const LONGER_THAN_WITHOUT_THE_CLOUD: Duration = Duration::from_millis(5_500);
/// Maximum bytes of a request body.
const BODY_MAX: usize = 1 << 20;

/// The cloud. It answers until [`Cloud::go_away`], and again after [`Cloud::come_back`].
pub(crate) struct Cloud {
    shared: Arc<CloudState>,
    addr: SocketAddr,
    /// Address that clients connect to instead of the server's own.
    front: Option<SocketAddr>,
    /// Tasks that run while the server is up.
    tasks: TaskGroup,
}

/// Answer of a script to a request.
type Script = Arc<dyn Fn(Request<Incoming>) -> BoxFuture<'static, Response<Body>> + Send + Sync>;

struct CloudState {
    pki: Arc<TestPki>,
    resources: Resources,
    requests: Requests,
    scripts: Mutex<BTreeMap<String, Script>>,
    /// Rights of the bearer of a token, or of a user; all others are unknown.
    verdicts: Mutex<BTreeMap<String, bool>>,
    /// Tokens that the cloud no longer knows, whatever their rights are.
    refused_tokens: Mutex<BTreeSet<String>>,
    /// Received reviews, by path.
    reviews: Mutex<Vec<(String, Value)>>,
    seen: Mutex<Vec<SeenRequest>>,
    /// Users without any rights, and `user path` for users without one right.
    forbidden: Mutex<BTreeSet<String>>,
    /// Holder of the election lease, and the number of its changes.
    epoch: Mutex<(String, u64)>,
    /// Name of its store, if it is a coordinator.
    store: Mutex<String>,
    /// uid of its Namespace kube-system.
    cluster: Mutex<String>,
}

/// A request as it arrived.
#[derive(Clone, Debug)]
pub(crate) struct SeenRequest {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) query: Option<String>,
    pub(crate) headers: HeaderMap,
    /// CN of the client certificate.
    pub(crate) user: Option<String>,
    /// Address of the client.
    pub(crate) peer: SocketAddr,
    /// Address of the server that received it.
    pub(crate) at: SocketAddr,
}

// === impl SeenRequest ===

impl SeenRequest {
    /// True if it requests objects without their content: for a proof or a comparison, not for a replica.
    pub(crate) fn is_of_metadata(&self) -> bool {
        let accept = self
            .headers
            .get(http::header::ACCEPT)
            .map(|accept| accept.as_bytes().to_vec());
        accept.is_some_and(|accept| String::from_utf8_lossy(&accept).contains("as=PartialObjectMetadata"))
    }
}

// === impl Cloud ===

impl Cloud {
    /// Starts on a free port, with empty collections.
    pub(crate) async fn start() -> Self {
        Self::start_in(Arc::new(TestPki::new())).await
    }

    /// A server of the same cluster with objects of its own.
    pub(crate) async fn start_beside(&self) -> Self {
        Self::start_in(self.shared.pki.clone()).await
    }

    async fn start_in(pki: Arc<TestPki>) -> Self {
        let shared = CloudState {
            pki,
            resources: Resources::new(),
            requests: Requests::default(),
            scripts: Mutex::default(),
            verdicts: Mutex::default(),
            refused_tokens: Mutex::default(),
            reviews: Mutex::default(),
            seen: Mutex::default(),
            forbidden: Mutex::default(),
            epoch: Mutex::default(),
            store: Mutex::default(),
            cluster: Mutex::new("uid-of-the-cluster".to_owned()),
        };
        Self::serve(Arc::new(shared)).await
    }

    /// Another server of the same cloud: it has the same objects.
    pub(crate) async fn another_server(&self) -> Self {
        Self::serve(self.shared.clone()).await
    }

    async fn serve(shared: Arc<CloudState>) -> Self {
        let mut cloud = Self {
            shared,
            addr: LOOPBACK,
            front: None,
            tasks: TaskGroup::new(),
        };
        cloud.come_back().await;
        cloud
    }

    pub(crate) fn pki(&self) -> &TestPki {
        &self.shared.pki
    }

    /// Certificate requests and join tokens.
    pub(crate) fn requests(&self) -> &Requests {
        &self.shared.requests
    }

    pub(crate) fn url(&self) -> String {
        format!("https://{}", self.front.unwrap_or(self.addr))
    }

    /// Makes hubs that start from now on connect to `front`, which has to forward everything.
    pub(crate) fn put_behind(&mut self, front: SocketAddr) {
        self.front = Some(front);
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns a group for tasks that a script leaves running; it ends when the cloud goes away.
    pub(crate) fn tasks(&self) -> TaskGroup {
        self.tasks.clone()
    }

    /// Cuts every connection and refuses new ones.
    pub(crate) async fn go_away(&mut self) {
        // Running tasks are dropped at any point, which is intended.
        let _ = self.tasks.shutdown(Duration::ZERO).await;
        let addr = self.addr;
        eventually("the cloud must be gone", async || {
            tokio::net::TcpStream::connect(addr).await.err()
        })
        .await;
    }

    /// Serves on the same port, or on a free one at the start.
    pub(crate) async fn come_back(&mut self) {
        let addr = self.addr;
        let server = eventually("the cloud must get its port", async || {
            Server::bind(addr, "port").await.ok()
        })
        .await;
        self.addr = server.local_addr();
        self.tasks = TaskGroup::new();
        let (shared, token) = (self.shared.clone(), self.tasks.token());
        let answer = handler(move |request, peer| {
            let (shared, token) = (shared.clone(), token.clone());
            async move { shared.answer(request, &peer, token).await }
        });
        server.with_tls(self.shared.pki.server_tls()).serve(&self.tasks, answer);
    }

    /// Makes `script` answer every request for `path` from now on, with any method and query.
    pub(crate) fn on<F, Answer>(&self, path: &str, script: F)
    where
        F: Fn(Request<Incoming>) -> Answer + Send + Sync + 'static,
        Answer: Future<Output = Response<Body>> + Send + 'static,
    {
        let script: Script = Arc::new(move |request| script(request).boxed());
        self.shared.scripts.lock().insert(path.to_owned(), script);
    }

    /// Makes the script of `path` answer after this time from now on.
    pub(crate) fn delay(&self, path: &str, by: Duration) {
        let script = self.shared.scripts.lock()[path].clone();
        self.on(path, move |request| {
            let answer = script(request);
            async move {
                tokio::time::sleep(by).await;
                answer.await
            }
        });
    }

    /// Removes the script of `path`.
    pub(crate) fn off(&self, path: &str) {
        self.shared.scripts.lock().remove(path);
    }

    /// Sets the rights of the bearer of this token, or of this user: reading everything or nothing. All others are
    /// unknown.
    pub(crate) fn allow(&self, who: &str, allowed: bool) {
        self.shared.verdicts.lock().insert(who.to_owned(), allowed);
    }

    /// Makes this token unknown from now on.
    pub(crate) fn refuse_token(&self, token: &str) {
        self.shared.refused_tokens.lock().insert(token.to_owned());
    }

    /// Forbids this user everything but liveness checks from now on.
    pub(crate) fn forbid(&self, user: &str) {
        self.shared.forbidden.lock().insert(user.to_owned());
    }

    /// Forbids this user one path from now on.
    pub(crate) fn forbid_path(&self, user: &str, path: &str) {
        self.shared.forbidden.lock().insert(format!("{user} {path}"));
    }

    /// Sets the cluster's identity from now on.
    pub(crate) fn set_cluster(&self, uid: &str) {
        uid.clone_into(&mut self.shared.cluster.lock());
    }

    /// Makes it answer as a coordinator with this store from now on.
    pub(crate) fn set_store(&self, store: &str) {
        store.clone_into(&mut self.shared.store.lock());
    }

    /// Returns an object of `resource`.
    pub(crate) fn get(&self, resource: &str, namespace: Option<&str>, name: &str) -> Option<Value> {
        self.shared.resources.get(resource, namespace, name)
    }

    /// Creates or updates a lease, as [`Self::put`]; leases have a separate sequence of resourceVersions.
    pub(crate) fn put_lease(&self, lease: Value) -> Value {
        self.shared.put_lease(lease)
    }

    /// Creates or updates an object of `resource`; returns it with its new resourceVersion.
    pub(crate) fn put(&self, resource: &str, object: Value) -> Value {
        self.shared.resources.put(resource, object)
    }

    /// Deletes an object of `resource`.
    pub(crate) fn delete(&self, resource: &str, namespace: &str, name: &str) {
        self.shared.resources.delete(resource, namespace, name);
    }

    /// Shows the objects of `resource` in another form under their resourceVersions. Watches have to start over.
    pub(crate) fn change_form(&self, resource: &str, change: impl Fn(&mut Value)) {
        self.shared.resources.change_form(resource, change);
    }

    /// Returns a backup of the present state.
    pub(crate) fn backup(&self) -> Backup {
        self.shared.resources.backup()
    }

    /// Restores the state of `backup`; no watch may be open.
    pub(crate) fn restore(&self, backup: Backup) {
        self.shared.resources.restore(backup);
    }

    /// Returns the resourceVersion of the last change.
    pub(crate) fn version(&self) -> String {
        self.shared.resources.version()
    }

    /// Returns the requests for `path` so far.
    pub(crate) fn seen(&self, path: &str) -> Vec<SeenRequest> {
        self.shared
            .seen
            .lock()
            .iter()
            .filter(|seen| seen.path == path)
            .cloned()
            .collect()
    }

    /// Returns all requests so far.
    pub(crate) fn all_seen(&self) -> Vec<SeenRequest> {
        self.shared.seen.lock().clone()
    }

    /// Returns the bodies of the reviews at `path` so far.
    pub(crate) fn reviews(&self, path: &str) -> Vec<Value> {
        let reviews = self.shared.reviews.lock();
        reviews
            .iter()
            .filter(|(at, _)| at == path)
            .map(|(_, review)| review.clone())
            .collect()
    }
}

// === impl CloudState ===

impl CloudState {
    async fn answer(
        &self,
        request: Request<Incoming>,
        peer: &Peer,
        shutdown: tokio_util::sync::CancellationToken,
    ) -> Response<Body> {
        let path = request.uri().path().to_owned();
        let mut headers = request.headers().clone();
        if let Some(authority) = request.uri().authority() {
            // HTTP/2 has it in place of the header.
            let host = authority.as_str().parse().unwrap();
            headers.entry(http::header::HOST).or_insert(host);
        }
        let seen = SeenRequest {
            method: request.method().clone(),
            path: path.clone(),
            query: request.uri().query().map(str::to_owned),
            headers,
            user: peer.identity.as_ref().map(|identity| identity.common_name.clone()),
            peer: peer.addr,
            at: peer.local_addr,
        };
        let reads_label = path.starts_with("/api/v1/nodes/") && seen.is_of_metadata();
        self.seen.lock().push(seen);
        let user = peer.identity.as_ref().map(|identity| identity.common_name.as_str());
        let is_forbidden = |user: &str| {
            let forbidden = self.forbidden.lock();
            forbidden.contains(user) || forbidden.contains(&format!("{user} {path}"))
        };
        if path != "/livez" && user.is_some_and(is_forbidden) {
            return status_response(&Status::failure(403, "Forbidden", "not you"));
        }
        if let Some(refused) = self.refusal(request.headers(), &path) {
            return status_response(&refused);
        }
        let script = self.scripts.lock().get(&path).cloned();
        if let Some(script) = script {
            return script(request).await;
        }
        match path.as_str() {
            "/livez" => our_http::text(StatusCode::OK, "ok"),
            IDENTITY => {
                let metadata = json!({"name": "kube-system", "uid": *self.cluster.lock()});
                our_http::json(StatusCode::OK, json!({"metadata": metadata}).to_string())
            }
            SELF_REVIEWS | REVIEWS => self.review(path, user, request).await,
            csr if csr.starts_with(CSRS) => {
                let (head, body) = request.into_parts();
                let body = read_body(body, BODY_MAX).await.unwrap();
                self.requests.answer(&self.pki, &head, user, &body)
            }
            _ => {
                let uri = request.uri();
                let answered = match RequestInfo::parse(request.method().as_str(), &path, uri.query()) {
                    Ok(info) if info.resource == "leases" && is_write(info.verb) => {
                        self.write_lease(&info, request).await
                    }
                    Ok(info) => {
                        self.resources
                            .answer(&info, uri.query(), request.headers(), shutdown)
                            .await
                    }
                    Err(status) => Err(status),
                };
                answered.unwrap_or_else(|status| match reads_label {
                    // The Node of a test without Nodes is in no pool.
                    true => our_http::json(StatusCode::OK, json!({"metadata": {}}).to_string()),
                    false => status_response(&status),
                })
            }
        }
    }

    /// The refusal of a token, if it is unknown or has no rights.
    fn refusal(&self, headers: &HeaderMap, path: &str) -> Option<Status> {
        let token = headers.get("authorization")?.to_str().ok()?.strip_prefix("Bearer ")?;
        if self.refused_tokens.lock().contains(token) {
            return Some(Status::unauthorized());
        }
        let has_rights = self.verdicts.lock().get(token).copied();
        (path != SELF_REVIEWS && has_rights == Some(false)).then(|| Status::failure(403, "Forbidden", "not your token"))
    }

    async fn review(&self, path: String, user: Option<&str>, request: Request<Incoming>) -> Response<Body> {
        let token = request
            .headers()
            .get("authorization")
            .and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        let token = token.map(str::to_owned);
        let body = read_body(request.into_body(), BODY_MAX).await.unwrap();
        let mut review: Value = serde_json::from_slice(&body).unwrap();
        self.reviews.lock().push((path, review.clone()));
        let who = token
            .or_else(|| review["spec"]["user"].as_str().map(str::to_owned))
            .or_else(|| user.map(str::to_owned))
            .unwrap_or_default();
        match self.verdicts.lock().get(&who) {
            None => status_response(&Status::unauthorized()),
            Some(allowed) => {
                review["status"] = json!({"allowed": allowed});
                our_http::json(StatusCode::CREATED, review.to_string())
            }
        }
    }
}

fn is_write(verb: Verb) -> bool {
    matches!(verb, Verb::Create | Verb::Update | Verb::Patch)
}
