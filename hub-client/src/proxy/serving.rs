//! Responses to get, list and watch from one collection of this node: options, negotiation, headers.
//!
//! [`super::local`] decides which collection answers; this file decides nothing about rights, components or filters.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
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
            Verb::Get => self.get(&source, info, &negotiated).await.map(Some),
            Verb::List => self.list(&source, query, info, &negotiated).await,
            _ => self.watch(&source, query, info, &negotiated).map(Some),
        }
    }

    async fn get(
        &self,
        source: &Source<'_>,
        info: &RequestInfo,
        negotiated: &Negotiated,
    ) -> Result<Response<Body>, Status> {
        let kind = source.collection.kind();
        let name = info.name.as_deref().unwrap_or_default();
        // Waits and refuses exactly like a list.
        serve::reach(source.collection, source.least).await?;
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
        let list = serve::encode(*negotiated, kind, &listed.meta, listed.objects, self.now());
        Ok(Some(respond(
            source,
            negotiated.content_type(Shape::List),
            chunks(list),
        )))
    }

    /// True if the cloud may be able to answer where the replica cannot: our last write has not come back yet, or the
    /// replica does not reach back to the state of a page.
    fn is_for_the_cloud(&self, options: &ListOptions, status: &Status) -> bool {
        let has_token = options.continue_token.is_some();
        match status.code() {
            504 => options.resource_version.is_none() && (!has_token || self.cloud.borrow().is_up()),
            410 => has_token && self.cloud.borrow().is_up(),
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
    headers.insert(
        http::header::CACHE_CONTROL,
        HeaderValue::from_static("no-cache, private"),
    );
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

fn selection(info: &RequestInfo, options: &ListOptions) -> Selection {
    Selection {
        namespace: info.namespace.clone(),
        labels: options.label_selector.clone(),
        fields: options.field_selector.clone(),
    }
}
