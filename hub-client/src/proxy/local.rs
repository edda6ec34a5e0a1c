//! Answers get, list and watch of pool data from this node's replicas, filtered for the calling component.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use http::header::ACCEPT;
use http::{HeaderValue, Request, Response, StatusCode};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::time::Time;
use yurt_apimachinery::{ListOptions, Object, ObjectKey, RequestInfo, ResourceKind, ResourceVersion, Status, Verb};
use yurt_codec::negotiation::{Negotiated, Shape, negotiate};
use yurt_codec::protobuf;
use yurt_pool_protocol::names::{GENERATION_HEADER, STALE_HEADER};
use yurt_runtime::Clock;
use yurt_runtime::http::{Body, chunks, full, joined, stream};
use yurt_storage::serve::{self, Selection, Unfiltered, View, WatchRequest};
use yurt_storage::{Replica, SharedCollection};

use super::authorize::Authorizer;
use super::caller::Caller;
use super::screen::is_impersonating;
use super::written::Written;
use crate::filter::{Chain, FilterContext, HubAddress, Pool, ServiceLookup, TopologyKeys, binding};
use crate::health::CloudReach;
use crate::replicas::{POOL_SCOPE, PoolData};

/// Annotation of a Service that requests a topology.
const TOPOLOGY_KEYS: &str = "openyurt.io/topologyKeys";
/// Maximum duration of a watch, regardless of the request; above it timers overflow.
const WATCH_LASTS_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
/// The component that runs pods; see [`may_be_told`] for its only collection.
const KUBELET: &str = "kubelet";
const KUBELET_READS: &str = "services";

/// Server of pool data.
pub struct Local {
    /// The replicas.
    pub data: Arc<PoolData>,
    /// Authorizer of reads.
    pub authorizer: Authorizer,
    /// Facts about this node for the filters.
    pub node: NodeFacts,
    /// Reachability of the cloud.
    pub cloud: watch::Receiver<CloudReach>,
    /// Minimum duration of a watch without timeoutSeconds.
    pub min_request_timeout: Duration,
    /// Clock for the ages in tables.
    pub clock: Clock,
    /// Ends all watches.
    pub shutdown: CancellationToken,
    /// Writes that this hub passed on: reads reflect them.
    pub written: Arc<Written>,
}

/// Facts about this node that filters need; fixed for the life of the process.
#[derive(Clone, Debug)]
pub struct NodeFacts {
    /// Name of the Node.
    pub node: String,
    /// Name of its pool; empty if it is in none.
    pub pool: String,
    /// Address of the hub for pods.
    pub host: IpAddr,
    /// Port of the HTTPS proxy.
    pub secure_port: u16,
}

/// View of one component: a filter chain over live inputs.
struct Filtered {
    chain: Chain,
    kind: &'static ResourceKind,
    node: NodeFacts,
    host: String,
    services: Arc<SharedCollection>,
    data: Arc<PoolData>,
}

struct Services<'a>(&'a SharedCollection);

// === impl Local ===

impl Local {
    /// Returns the response; `None` if the request is not for pool data or has to go to the cloud.
    ///
    /// # Errors
    /// Status to return to the client instead of data.
    pub async fn answer<B>(
        &self,
        request: &Request<B>,
        info: &RequestInfo,
        caller: &Caller,
    ) -> Result<Option<Response<Body>>, Status> {
        let Some(replica) = self
            .data
            .serving(&info.group, &info.resource)
            .filter(|replica| info.is_resource && is_object(info) && may_be_told(caller, replica))
        else {
            return Ok(None);
        };
        let kind = replica.collection().kind();
        let chain = binding::chain(&caller.component, &info.resource, info.verb);
        let impersonates = is_impersonating(request.headers());
        if !chain.is_empty() {
            require_filterable(info, kind, caller, impersonates)?;
        }
        // Only the cloud knows the rights of the user that this caller impersonates.
        if info.version != kind.version || info.subresource.is_some() || impersonates {
            return Ok(None);
        }
        // A collection added recently is read at the cloud until the replica is complete. A watch at an RV before the
        // replica's history goes there, too.
        let is_new = !POOL_SCOPE.contains(&replica.name()) && !holds(replica.collection(), request.uri().query(), info);
        // An unfiltered GET by name also goes to the cloud while it answers: the cloud always has the latest state.
        let prefers_cloud = chain.is_empty() && (is_new || info.verb == Verb::Get);
        if prefers_cloud && self.cloud.borrow().is_up() {
            return Ok(None);
        }
        self.authorizer.check(caller, info).await?;
        if !replica.is_served() {
            let why = format!("{} is not complete on this node yet, please try again", replica.name());
            return Err(Status::too_many_requests(&why, 1));
        }
        let view = self.view(chain, kind)?;
        let accept = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok());
        let shape = match info.verb {
            Verb::Get => Shape::Object,
            Verb::List => Shape::List,
            _ => Shape::Watch,
        };
        let negotiated = negotiate(accept, shape, protobuf::supports(kind), request.uri().query(), None)?;
        let response = match info.verb {
            Verb::Get => self.get(&replica, info, &*view, &negotiated).await?,
            Verb::List => match self
                .list(&replica, request.uri().query(), info, &*view, &negotiated)
                .await?
            {
                Some(response) => response,
                None => return Ok(None),
            },
            _ => self.watch(&replica, request.uri().query(), info, view, &negotiated)?,
        };
        Ok(Some(response))
    }

    /// Notes the RV of a write in the response, so that this node's reads reflect it.
    pub fn note_write(&self, info: &RequestInfo, response: Response<Body>) -> Response<Body> {
        match self.data.serving(&info.group, &info.resource) {
            Some(replica) => self.written.noting(replica, info, response),
            None => response,
        }
    }

    fn view(&self, chain: Chain, kind: &'static ResourceKind) -> Result<Arc<dyn View>, Status> {
        if chain.is_empty() {
            return Ok(Arc::new(Unfiltered));
        }
        let input = |name: &str| {
            let replica = self.data.replicas().named(name);
            let ready = replica.filter(|replica| replica.is_served());
            ready.map(|replica| replica.collection().clone()).ok_or_else(|| {
                let why = format!(
                    "filters {:?} require a complete replica of {name} on this node",
                    chain.names()
                );
                Status::service_unavailable(&why, 1)
            })
        };
        let services = input("services")?;
        let (host, data) = (self.node.host.to_string(), self.data.clone());
        Ok(Arc::new(Filtered {
            chain,
            kind,
            node: self.node.clone(),
            host,
            services,
            data,
        }))
    }

    async fn get(
        &self,
        replica: &Replica,
        info: &RequestInfo,
        view: &dyn View,
        negotiated: &Negotiated,
    ) -> Result<Response<Body>, Status> {
        let kind = replica.collection().kind();
        let name = info.name.as_deref().unwrap_or_default();
        // Waits and refuses exactly like a list.
        serve::reach(replica.collection(), self.least(replica)).await?;
        let key = ObjectKey::new(info.namespace.as_deref(), name);
        let found = replica
            .collection()
            .read(|c| c.object(&key).cloned())
            .and_then(|object| view.show(&object));
        let object = found.ok_or_else(|| Status::not_found(&kind.group_resource(), name))?;
        negotiated.check(kind, Shape::Object)?;
        let body = negotiated.object(kind, &object, self.now());
        Ok(self.respond(replica, negotiated.content_type(Shape::Object), full(body)))
    }

    /// Returns `None` if the cloud has to answer.
    async fn list(
        &self,
        replica: &Replica,
        query: Option<&str>,
        info: &RequestInfo,
        view: &dyn View,
        negotiated: &Negotiated,
    ) -> Result<Option<Response<Body>>, Status> {
        let kind = replica.collection().kind();
        let options = options(query, false, kind, info)?;
        let selection = selection(info, &options);
        let least = self.least(replica);
        let listed = match serve::list(replica.collection(), &options, &selection, view, least).await {
            Err(status) if self.is_for_the_cloud(&options, view, &status) => return Ok(None),
            listed => listed?,
        };
        negotiated.check(kind, Shape::List)?;
        let list = negotiated.list(kind, &listed.meta, listed.objects, self.now());
        Ok(Some(self.respond(
            replica,
            negotiated.content_type(Shape::List),
            chunks(list),
        )))
    }

    /// True if the cloud may be able to answer where the replica cannot: our last write has not come back yet, or the
    /// replica does not reach back to the state of a page. Continue tokens are valid on both sides, unless a filter is
    /// between them.
    fn is_for_the_cloud(&self, options: &ListOptions, view: &dyn View, status: &Status) -> bool {
        let has_token = options.continue_token.is_some();
        view.is_identity()
            && match status.code() {
                504 => options.resource_version.is_none() && (!has_token || self.cloud.borrow().is_up()),
                410 => has_token && self.cloud.borrow().is_up(),
                _ => false,
            }
    }

    fn watch(
        &self,
        replica: &Arc<Replica>,
        query: Option<&str>,
        info: &RequestInfo,
        view: Arc<dyn View>,
        negotiated: &Negotiated,
    ) -> Result<Response<Body>, Status> {
        let options = options(query, true, replica.collection().kind(), info)?;
        let least = self.min_request_timeout;
        let random_life = least + least.mul_f64((fastrand::u64(..) % 1000) as f64 / 1000.0);
        let wanted = options
            .timeout_seconds
            .filter(|seconds| *seconds > 0)
            .map(Duration::from_secs);
        let lasts = wanted.unwrap_or(random_life).min(WATCH_LASTS_MAX);
        let request = WatchRequest {
            selection: selection(info, &options),
            options,
            view,
            how: *negotiated,
            clock: self.clock.clone(),
            replica: false,
            lasts,
            least: self.least(replica),
            is_fresh: Arc::new(|| true),
            shutdown: self.shutdown.clone(),
            on_initial_end: None,
            lingers: Duration::ZERO,
        };
        let frames = serve::watch(replica.collection().clone(), request)?;
        let body = stream(joined(frames.take_until(replica.gone().clone().cancelled_owned())));
        Ok(self.respond(replica, negotiated.content_type(Shape::Watch), body))
    }

    fn least(&self, replica: &Replica) -> ResourceVersion {
        // Without the cloud no newer RV can come: waiting would only delay the answer.
        if !self.cloud.borrow().is_up() {
            return ResourceVersion::ZERO;
        }
        let generation = replica.collection().read(|c| c.generation());
        self.written.least(replica.name(), generation)
    }

    fn now(&self) -> Time {
        Time::from_unix(self.clock.unix().secs)
    }

    fn respond(&self, replica: &Replica, content_type: &'static str, body: Body) -> Response<Body> {
        let content_type = HeaderValue::from_static(content_type);
        let mut response = yurt_runtime::http::respond(StatusCode::OK, content_type, body);
        let headers = response.headers_mut();
        headers.insert(
            http::header::CACHE_CONTROL,
            HeaderValue::from_static("no-cache, private"),
        );
        let generation = replica.collection().read(|c| c.generation());
        if generation > 0 {
            headers.insert(GENERATION_HEADER, generation.into());
        }
        if !self.data.is_fresh(replica.name()) {
            headers.insert(STALE_HEADER, HeaderValue::from_static("true"));
        }
        response
    }
}

/// True if the component may read this replica. A kubelet acts on everything that it reads. From the replica it gets
/// only services, which become environment variables of containers; everything else comes from the cloud.
fn may_be_told(caller: &Caller, replica: &Replica) -> bool {
    caller.component != KUBELET || replica.name() == KUBELET_READS
}

/// True if the replica is complete. For a watch its history must also reach back to the requested RV.
fn holds(copy: &SharedCollection, query: Option<&str>, info: &RequestInfo) -> bool {
    let from = (info.verb == Verb::Watch)
        .then(|| options(query, true, copy.kind(), info).ok()?.resource_version)
        .flatten();
    copy.read(|held| {
        let is_before = |from: ResourceVersion| from > ResourceVersion::ZERO && from < held.position();
        held.is_complete() && from.is_none_or(|from| !is_before(from) || held.open(from).is_ok())
    })
}

/// True if the request reads objects: the objects themselves, or their `status`, which returns the whole object.
fn is_object(info: &RequestInfo) -> bool {
    matches!(info.verb, Verb::Get | Verb::List | Verb::Watch)
        && matches!(info.subresource.as_deref(), None | Some("status"))
}

/// Refuses a request that the cloud would answer unfiltered, for a component whose view is filtered.
fn require_filterable(
    info: &RequestInfo,
    kind: &ResourceKind,
    caller: &Caller,
    impersonates: bool,
) -> Result<(), Status> {
    if info.version != kind.version || info.subresource.is_some() {
        return Err(Status::unknown_resource());
    }
    if impersonates {
        let why = format!(
            "the view of {} is filtered and does not support impersonation",
            caller.component
        );
        return Err(Status::forbidden_because(
            &info.group_resource(),
            info.name.as_deref().unwrap_or_default(),
            &why,
        ));
    }
    Ok(())
}

/// Parses the options of a list or watch. A path that names one object (legacy watch) is limited to it, like its
/// authorization.
fn options(
    query: Option<&str>,
    watch: bool,
    kind: &'static ResourceKind,
    info: &RequestInfo,
) -> Result<ListOptions, Status> {
    let mut options = ListOptions::parse(query, watch, kind)?;
    if let Some(name) = &info.name {
        options.require_name(name)?;
    }
    Ok(options)
}

fn selection(info: &RequestInfo, options: &ListOptions) -> Selection {
    Selection {
        namespace: info.namespace.clone(),
        labels: options.label_selector.clone(),
        fields: options.field_selector.clone(),
    }
}

// === impl Filtered ===

impl View for Filtered {
    fn inputs(&self) -> Vec<watch::Receiver<u64>> {
        vec![self.services.subscribe(), self.data.membership().changes()]
    }

    fn show(&self, object: &Object) -> Option<Object> {
        let members = self.data.membership().names();
        let pool = match &members {
            _ if self.node.pool.is_empty() => Pool::NoPool,
            Some(members) => Pool::Members(members),
            None => Pool::Unknown,
        };
        let context = FilterContext {
            hub: HubAddress {
                host: &self.host,
                secure_port: self.node.secure_port,
            },
            node_name: &self.node.node,
            pool,
            services: &Services(&self.services),
        };
        self.chain.view_of(self.kind, object, &context)
    }
}

impl ServiceLookup for Services<'_> {
    fn topology_keys(&self, namespace: &str, name: &str) -> TopologyKeys {
        let key = ObjectKey::new(Some(namespace), name);
        match self
            .0
            .read(|c| c.object(&key).map(|service| service.annotation(TOPOLOGY_KEYS)))
        {
            None => TopologyKeys::UnknownService,
            Some(None) => TopologyKeys::Unset,
            Some(Some(value)) => TopologyKeys::Value(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use futures_util::future::BoxFuture;
    use serde_json::Value;
    use yurt_runtime::TaskGroup;
    use yurt_storage::OnlyWriter as _;
    use yurt_test_support::TestDir;

    use super::*;
    use crate::proxy::authorize::decision::AccessVerdict;
    use crate::proxy::authorize::review::Reviews;
    use crate::proxy::authorize::{FILE, Means};
    use crate::proxy::caller::Credential;

    struct Nobody;

    impl Reviews for Nobody {
        fn ask(&self, _: Credential, _: Value) -> BoxFuture<'static, Result<AccessVerdict, String>> {
            async { Err("this test has no reviews".to_owned()) }.boxed()
        }
    }

    /// Pool data of a hub that has just started; `reach` is the state of its cloud.
    fn local(folder: &TestDir, reach: &watch::Sender<CloudReach>) -> Local {
        let (clock, _) = Clock::fake();
        let means = Means {
            reviews: Arc::new(Nobody),
            reach: reach.subscribe(),
            wake: Arc::default(),
            clock: clock.clone(),
            tasks: TaskGroup::new(),
        };
        Local {
            data: Arc::new(PoolData::open(folder.path(), "p", usize::MAX, clock.clone()).unwrap()),
            authorizer: Authorizer::open(means, folder.path().join(FILE)),
            node: NodeFacts {
                node: "n1".to_owned(),
                pool: String::new(),
                host: IpAddr::from([127, 0, 0, 1]),
                secure_port: 10268,
            },
            cloud: reach.subscribe(),
            min_request_timeout: Duration::from_secs(1800),
            clock: clock.clone(),
            shutdown: CancellationToken::new(),
            written: Arc::new(Written::new(clock)),
        }
    }

    #[tokio::test]
    async fn generation_that_no_commit_knows_is_not_served() {
        let (folder, reach) = (TestDir::new(), watch::Sender::default());
        let local = local(&folder, &reach);
        let services = local.data.replicas().named("services").unwrap();
        let kind = services.collection().kind();
        let web = br#"{"metadata":{"namespace":"shop","name":"web","resourceVersion":"5"}}"#;
        let kubelet = Caller {
            component: "kubelet".to_owned(),
            credential: Credential::Node,
            origin: crate::proxy::caller::Origin {
                address: IpAddr::from([127, 0, 0, 1]),
                uid: None,
            },
        };
        let code = async |path: &str| {
            let request = Request::builder().uri(path).body(()).unwrap();
            let info = RequestInfo::parse("GET", request.uri().path(), request.uri().query()).unwrap();
            match local.answer(&request, &info, &kubelet).await {
                Ok(answer) => answer.map(|answer| answer.status().as_u16()),
                Err(status) => Some(status.code()),
            }
        };
        for generation in [0, 7] {
            let object = Object::parse(web.as_slice().into(), kind).unwrap();
            let began = ResourceVersion(10 + generation);
            let restart = |held: &mut yurt_collection::Collection| held.restart(generation, vec![object], began);
            services.collection().update(restart);
            for expected in [429, 200] {
                for path in [
                    "/api/v1/services",
                    "/api/v1/services?watch=1",
                    "/api/v1/namespaces/shop/services/web",
                ] {
                    assert_eq!(code(path).await, Some(expected), "generation {generation}: {path}");
                }
                local.data.replicas().persist(None).await.unwrap();
            }
        }
    }
}
