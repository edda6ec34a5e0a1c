//! Responses to get, list and watch from one collection of this node: options, negotiation, headers.
//!
//! [`super::local`] decides which collection answers; this file decides nothing about rights, components or filters.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use http::header::{ACCEPT, WARNING};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::options::ContinueToken;
use yurt_apimachinery::query::Query;
use yurt_apimachinery::time::Time;
use yurt_apimachinery::{ListOptions, Object, ObjectKey, RequestInfo, ResourceKind, ResourceVersion, Status, Verb};
use yurt_codec::negotiation::{Negotiated, Shape, negotiate};
use yurt_codec::protobuf;
use yurt_pool_protocol::names::{GENERATION_HEADER, STALE_HEADER};
use yurt_runtime::Clock;
use yurt_runtime::http::{Body, chunks, full, joined, stream};
use yurt_storage::SharedCollection;
use yurt_storage::serve::{self, Selection, Unfiltered, WatchRequest};

use crate::health::CloudReach;

/// Maximum duration of a watch, regardless of the request; above it timers overflow.
const WATCH_LASTS_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// Server of single collections.
pub struct Serving {
    /// Reachability of the cloud.
    pub cloud: watch::Receiver<CloudReach>,
    /// Minimum duration of a watch without timeoutSeconds.
    pub min_request_timeout: Duration,
    /// Clock for the ages in tables.
    pub clock: Clock,
    /// Ends all watches.
    pub shutdown: CancellationToken,
}

/// Collection that answers a request.
pub struct Source<'a> {
    /// The collection.
    pub collection: &'a Arc<SharedCollection>,
    /// Ends the watches of this collection: it is removed.
    pub gone: &'a CancellationToken,
    /// RV that a read without resourceVersion has to reflect.
    pub least: ResourceVersion,
    /// True if the source of the data is alive.
    pub is_fresh: bool,
    /// True if it has the cloud's objects as they are, so that continue tokens are valid on both sides.
    pub is_clouds: bool,
}

// === impl Serving ===

impl Serving {
    /// Returns the response to a get, list or watch; `None` if the cloud has to answer a list.
    ///
    /// # Errors
    /// Status to return to the client instead of data.
    pub async fn answer<B>(
        &self,
        request: &Request<B>,
        info: &RequestInfo,
        source: Source<'_>,
    ) -> Result<Option<Response<Body>>, Status> {
        // HEAD has the verb of a GET, and a path below /watch/ that of a watch with every method.
        if request.method() != Method::GET {
            return Err(Status::method_not_allowed());
        }
        let kind = source.collection.kind();
        let query = request.uri().query();
        let accept = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok());
        let shape = match info.verb {
            Verb::Get => Shape::Object,
            Verb::List => Shape::List,
            _ => Shape::Watch,
        };
        let negotiated = negotiate(accept, shape, protobuf::supports(kind), query, None)?;
        match info.verb {
            Verb::Get => self.get(&source, query, info, &negotiated).await.map(Some),
            Verb::List => self.list(&source, query, info, &negotiated).await,
            _ => self.watch(&source, query, info, &negotiated).map(Some),
        }
    }

    async fn get(
        &self,
        source: &Source<'_>,
        query: Option<&str>,
        info: &RequestInfo,
        negotiated: &Negotiated,
    ) -> Result<Response<Body>, Status> {
        let kind = source.collection.kind();
        let name = info.name.as_deref().unwrap_or_default();
        // Waits and refuses exactly like a list.
        let least = version_of_get(query)?.unwrap_or(source.least);
        serve::reach(source.collection, least).await?;
        let key = ObjectKey::new(info.namespace.as_deref(), name);
        let found = source.collection.read(|c| c.object(&key).cloned());
        let object = found.ok_or_else(|| Status::not_found(&kind.group_resource(), name))?;
        negotiated.check(kind, Shape::Object)?;
        let body = negotiated.object(kind, &object, self.now());
        Ok(respond(source, negotiated.content_type(Shape::Object), full(body)))
    }

    /// Content type and body of one object, in the form that `request` accepts.
    ///
    /// # Errors
    /// 406 for a form that is not supported.
    pub(super) fn object<B>(
        &self,
        request: &Request<B>,
        kind: &'static ResourceKind,
        object: &Object,
    ) -> Result<(HeaderValue, Bytes), Status> {
        let accept = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok());
        let query = request.uri().query();
        let negotiated = negotiate(accept, Shape::Object, protobuf::supports(kind), query, None)?;
        negotiated.check(kind, Shape::Object)?;
        let content_type = HeaderValue::from_static(negotiated.content_type(Shape::Object));
        Ok((content_type, negotiated.object(kind, object, self.now())))
    }

    /// Returns `None` if the cloud has to answer.
    async fn list(
        &self,
        source: &Source<'_>,
        query: Option<&str>,
        info: &RequestInfo,
        negotiated: &Negotiated,
    ) -> Result<Option<Response<Body>>, Status> {
        let kind = source.collection.kind();
        let options = options(query, false, kind, info)?;
        let selection = selection(info, &options);
        let listed = match serve::list(source.collection, &options, &selection, &Unfiltered, source.least).await {
            Err(status) if source.is_clouds && self.is_for_the_cloud(&options, &status) => return Ok(None),
            listed => listed?,
        };
        negotiated.check(kind, Shape::List)?;
        let list = serve::encode(*negotiated, kind, &listed.meta, listed.objects, self.now()).await;
        Ok(Some(respond(
            source,
            negotiated.content_type(Shape::List),
            chunks(list),
        )))
    }

    /// True if the cloud may be able to answer where the replica cannot: our last write has not come back yet, or the
    /// replica does not have the RV that the list names. No cloud knows an RV that a coordinator issued.
    fn is_for_the_cloud(&self, options: &ListOptions, status: &Status) -> bool {
        let named = named_version(options);
        let is_up = self.cloud.borrow().is_up();
        match status.code() {
            504 => named.is_none() || is_up,
            410 => is_up && !named.is_some_and(ResourceVersion::is_own),
            _ => false,
        }
    }

    fn watch(
        &self,
        source: &Source<'_>,
        query: Option<&str>,
        info: &RequestInfo,
        negotiated: &Negotiated,
    ) -> Result<Response<Body>, Status> {
        let options = options(query, true, source.collection.kind(), info)?;
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
            view: Arc::new(Unfiltered),
            how: *negotiated,
            clock: self.clock.clone(),
            replica: false,
            lasts,
            least: source.least,
            is_fresh: Arc::new(|| true),
            shutdown: self.shutdown.clone(),
            on_initial_end: None,
            lingers: Duration::ZERO,
        };
        let frames = serve::watch(source.collection.clone(), request)?;
        let body = stream(joined(frames.take_until(source.gone.clone().cancelled_owned())));
        Ok(respond(source, negotiated.content_type(Shape::Watch), body))
    }

    fn now(&self) -> Time {
        Time::from_unix(self.clock.unix().secs)
    }
}

fn respond(source: &Source<'_>, content_type: &'static str, body: Body) -> Response<Body> {
    let content_type = HeaderValue::from_static(content_type);
    let mut response = yurt_runtime::http::respond(StatusCode::OK, content_type, body);
    let headers = response.headers_mut();
    if let Some(text) = source.collection.kind().deprecation() {
        headers.extend(HeaderValue::try_from(format!("299 - \"{text}\"")).map(|text| (WARNING, text)));
    }
    let generation = source.collection.read(|c| c.generation());
    if generation > 0 {
        headers.insert(GENERATION_HEADER, generation.into());
    }
    if !source.is_fresh {
        headers.insert(STALE_HEADER, HeaderValue::from_static("true"));
    }
    response
}

/// Parses the options of a list or watch. A path that names one object (legacy watch) is limited to it, like its
/// authorization.
pub(super) fn options(
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

/// Parses the RV that a get has to reflect; `None` if it names none. A get ignores the other options of a list.
///
/// # Errors
/// 400 for text that is no RV.
pub(super) fn version_of_get(query: Option<&str>) -> Result<Option<ResourceVersion>, Status> {
    let query = Query::parse(query);
    let version = query.get("resourceVersion").filter(|version| !version.is_empty());
    let version = version.map(ResourceVersion::parse).transpose();
    version.map_err(|error| Status::bad_request(format!("invalid resource version: {error}")))
}

/// RV that a list names itself or by its continue token; `None` for the latest state.
fn named_version(options: &ListOptions) -> Option<ResourceVersion> {
    match &options.continue_token {
        Some(token) => ContinueToken::decode(token).ok()?.version,
        None => options.resource_version,
    }
}

fn selection(info: &RequestInfo, options: &ListOptions) -> Selection {
    Selection {
        namespace: info.namespace.clone(),
        labels: options.label_selector.clone(),
        fields: options.field_selector.clone(),
    }
}

#[cfg(test)]
mod tests {
    use yurt_apimachinery::Object;
    use yurt_collection::Collection;
    use yurt_storage::OnlyWriter as _;
    use yurt_test_support::TestDir;

    use super::*;
    use crate::replicas::PoolData;

    const SERVICES: &str = "/api/v1/services";
    const WEB: &str = "/api/v1/namespaces/shop/services/web";

    /// Code of the answer to a GET from services at RV 921 with a history of nothing; `None` if the cloud has to
    /// answer.
    async fn code(path: &str, is_clouds: bool, failed_probes: u32) -> Option<u16> {
        match answer("services", path, is_clouds, failed_probes).await {
            Ok(answer) => answer.map(|answer| answer.status().as_u16()),
            Err(status) => Some(status.code()),
        }
    }

    async fn answer(
        name: &str,
        path: &str,
        is_clouds: bool,
        failed_probes: u32,
    ) -> Result<Option<Response<Body>>, Status> {
        let (folder, clock) = (TestDir::new(), Clock::fake().0);
        let data = PoolData::open(folder.path(), "p", usize::MAX, clock.clone()).unwrap();
        let services = data.replicas().named(name).unwrap();
        let web = br#"{"metadata":{"namespace":"shop","name":"web","resourceVersion":"5"}}"#;
        let web = Object::parse(web.as_slice().into(), services.collection().kind()).unwrap();
        let restart = |held: &mut Collection| held.restart(1, vec![web], ResourceVersion(921));
        services.collection().update(restart);
        let reach = CloudReach {
            failed_probes: Some(failed_probes),
        };
        let serving = Serving {
            cloud: watch::channel(reach).1,
            min_request_timeout: Duration::from_secs(1800),
            clock,
            shutdown: CancellationToken::new(),
        };
        let source = Source {
            collection: services.collection(),
            gone: services.gone(),
            least: ResourceVersion::ZERO,
            is_fresh: true,
            is_clouds,
        };
        let request = Request::builder().uri(path).body(()).unwrap();
        let info = RequestInfo::parse("GET", request.uri().path(), request.uri().query()).unwrap();
        serving.answer(&request, &info, source).await
    }

    /// The cloud may have issued the RV for another resource, or may know the older state.
    #[tokio::test(start_paused = true)]
    async fn position_that_the_replica_does_not_have_is_listed_at_the_cloud_while_it_answers() {
        let later = format!("{SERVICES}?resourceVersion=933&limit=1");
        let exact = format!("{SERVICES}?resourceVersion=900&resourceVersionMatch=Exact");
        let paged = format!("{SERVICES}?resourceVersion=900&limit=1");
        for (path, without) in [(later, 504), (exact, 410), (paged, 410)] {
            assert_eq!(code(&path, true, 0).await, None, "{path}");
            assert_eq!(code(&path, true, 2).await, Some(without), "{path} without the cloud");
            assert_eq!(code(&path, false, 0).await, Some(without), "{path} with filters");
        }
        let own = ResourceVersion::OWN_BIT + 1;
        let other = format!("{SERVICES}?limit=1&resourceVersion={own}");
        assert_eq!(code(&other, true, 0).await, Some(410), "no cloud has issued it");
        let next = |version| ContinueToken::after(version, "shop/web").encode();
        let page = |version| format!("{SERVICES}?limit=1&continue={}", next(Some(ResourceVersion(version))));
        assert_eq!(code(&page(900), true, 0).await, None);
        assert_eq!(
            code(&page(own), true, 0).await,
            Some(410),
            "no cloud has issued its token"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn get_reads_the_resource_version_that_it_names() {
        for (query, expected) in [
            ("", 200),
            ("?resourceVersion=", 200),
            ("?resourceVersion=0", 200),
            ("?resourceVersion=900", 200),
            ("?resourceVersion=933", 504),
            ("?resourceVersion=abc", 400),
            ("?limit=abc&labelSelector=,", 200),
        ] {
            assert_eq!(
                code(&format!("{WEB}{query}"), false, 0).await,
                Some(expected),
                "{query}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn readers_of_endpoints_are_warned_as_by_kube_apiserver() {
        let warning = async |name: &str, path: String| {
            let answer = answer(name, &path, false, 0).await.unwrap().unwrap();
            let warning = answer.headers().get(WARNING);
            warning.map(|warning| warning.to_str().unwrap().to_owned())
        };
        let expected = "299 - \"v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice\"";
        for rest in ["", "?watch=1", "/web"] {
            let path = |name: &str| format!("/api/v1/namespaces/shop/{name}{rest}");
            let warned = warning("endpoints", path("endpoints")).await;
            assert_eq!(warned.as_deref(), Some(expected), "{rest}");
            assert_eq!(warning("services", path("services")).await, None, "{rest}");
        }
    }
}
