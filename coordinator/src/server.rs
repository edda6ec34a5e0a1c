//! One request, from the socket to the answer: request info, the gate, dispatch.
//!
//! The order is kube-apiserver's. Health answers before everything else; leases and the feed bypass the lanes.

use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCEPT, CACHE_CONTROL, USER_AGENT, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use yurt_apimachinery::negotiation::Negotiated;
use yurt_apimachinery::status::reason;
use yurt_apimachinery::{RequestInfo, Status, Verb};
use yurt_runtime::http::server::Peer;
use yurt_runtime::http::{self as web, Body};

use crate::app::App;
use crate::authn::{MASTERS, User};
use crate::authz::Attributes;
use crate::bodies::{NODE_BODY_BYTES_MAX, Received, SMALL_BYTES_MAX, Work};
use crate::config::Profile;
use crate::deadline;
use crate::discovery::Asked;
use crate::gate::{self, Trail};
use crate::handlers::review::Exchange;
use crate::handlers::warnings::Warnings;
use crate::handlers::{self, Call, kubelets, review, token_request};
use crate::health::{self, Health};
use crate::metrics::RequestLabels;
use crate::pool_paths;
use crate::registry::leases;
use crate::registry::strategy::STATUS_VERBS;
use crate::registry::{Authority, Resource};
use crate::status_error;

/// Header that correlates a request with logs; the client's own value is kept.
const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
/// `Cache-Control` of every answer but discovery: it describes a moment.
const NO_CACHE: HeaderValue = HeaderValue::from_static("no-cache, private");

/// A request, parsed from its URL and headers.
struct Question {
    info: RequestInfo,
    query: Option<String>,
    /// `None` for a path that names no served resource.
    resource: Option<Arc<Resource>>,
    /// The format of a failure.
    how: Negotiated,
}

/// Answers one request; never fails.
pub(crate) async fn answer(app: Arc<App>, request: Request<Incoming>, peer: Peer) -> Response<Body> {
    let audit_id = audit_id(request.headers());
    let method = request.method().clone();
    let (path, query) = (
        request.uri().path().to_owned(),
        request.uri().query().map(str::to_owned),
    );
    let mut request = request;
    let response = match answer_health(&app, &mut request, &peer, &path, query.as_deref()) {
        Some(response) => response,
        None => {
            let info = RequestInfo::parse(request.method().as_str(), &path, query.as_deref());
            let resource = info.as_ref().ok().and_then(|info| find_resource(&app, info));
            let begun = app.clock.boot();
            let labels = RequestLabels::of(
                info.as_ref().ok(),
                query.as_deref(),
                request.headers(),
                resource.as_deref(),
            );
            let how = error_format(&request, resource.as_deref());
            let mut trail = Trail::new(&audit_id);
            let verb = info.as_ref().map(|info| info.verb).ok();
            let answer = match info {
                Ok(info) => {
                    let limit = deadline::of(&info, query.as_deref());
                    let question = Question {
                        info,
                        query,
                        resource,
                        how,
                    };
                    // Boxed: this future is moved several times on its way to a task.
                    let answer = Box::pin(identified(&app, request, &peer, question, &mut trail));
                    match limit {
                        Ok(limit) => deadline::within(limit, answer).await,
                        Err(status) => Err(status),
                    }
                }
                Err(status) => Err(status),
            };
            let mut response = answer.unwrap_or_else(|status| status_error::respond(how, &status));
            trail.mark(&mut response);
            app.metrics.answered(labels, &response, app.clock.boot().since(begun));
            match trail.record {
                Some(record) => record.answered(verb, response),
                None => response,
            }
        }
    };
    dressed(response, &method, &audit_id)
}

/// Adds the headers that every answer has.
pub(crate) fn dressed(mut response: Response<Body>, method: &Method, audit_id: &str) -> Response<Body> {
    if method == Method::HEAD {
        // A body would be a protocol error on HTTP/2.
        response = response.map(|_| web::empty());
    }
    let headers = response.headers_mut();
    headers.entry(CACHE_CONTROL).or_insert(NO_CACHE);
    headers.extend(HeaderValue::from_str(audit_id).ok().map(|id| (AUDIT_ID, id)));
    response
}

/// Answers `/healthz`, `/livez` and `/readyz` to every caller, single checks to authorized callers only. Refuses an unknown
/// token, as everywhere. `None` for any other path.
fn answer_health(
    app: &Arc<App>,
    request: &mut Request<Incoming>,
    peer: &Peer,
    path: &str,
    query: Option<&str>,
) -> Option<Response<Body>> {
    let asked = Health::is_meant(path)?;
    let mut trail = Trail::new("");
    let mut judge = |request: &mut Request<Incoming>| {
        let user = gate::identify(app, request.headers_mut(), peer);
        trail.identified(app, peer, user.as_ref().ok());
        let user = user?;
        if asked == health::Asked::One {
            let info = RequestInfo::parse(request.method().as_str(), path, query)?;
            gate::authorize(app, &user, &info, &Attributes::of(&info), &mut Trail::new(""))?;
        }
        Ok(())
    };
    let refused = judge(request).err();
    let how = error_format(request, None);
    let mut response = match refused {
        Some(status) => status_error::respond(how, &status),
        None => {
            app.health.set_has_members(!app.lacks_members());
            app.health.answer(path, query)?
        }
    };
    trail.mark(&mut response);
    Some(response)
}

/// The client's own id, else a new one.
pub(crate) fn audit_id(headers: &HeaderMap) -> String {
    let given = headers.get(AUDIT_ID).and_then(|id| id.to_str().ok());
    given.map_or_else(new_audit_id, str::to_owned)
}

/// Need not be unpredictable, so no system call per request.
fn new_audit_id() -> String {
    let random = fastrand::u128(..).to_ne_bytes();
    uuid::Builder::from_random_bytes(random).into_uuid().to_string()
}

/// Failures come in the format that the request accepts.
fn error_format(request: &Request<Incoming>, resource: Option<&Resource>) -> Negotiated {
    let accept = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok());
    let agent = request.headers().get(USER_AGENT).and_then(|agent| agent.to_str().ok());
    Negotiated::of_status(accept, resource.is_none_or(|resource| resource.kind.has_protobuf()))
        .for_people(request.uri().query(), agent)
}

/// Authenticates the caller before anything else. A connection without a known caller ends with its answer: connections and
/// HTTP/2 streams are too cheap a weapon for strangers.
async fn identified(
    app: &Arc<App>,
    mut request: Request<Incoming>,
    peer: &Peer,
    question: Question,
    trail: &mut Trail<'_>,
) -> Result<Response<Body>, Status> {
    let user = gate::identify(app, request.headers_mut(), peer);
    trail.identified(app, peer, user.as_ref().ok());
    trail.begin(app, &question.info, &request, peer, user.as_ref().ok());
    dispatch(app, request, peer, question, user?, trail).await
}

async fn dispatch(
    app: &Arc<App>,
    mut request: Request<Incoming>,
    peer: &Peer,
    question: Question,
    user: User,
    trail: &mut Trail<'_>,
) -> Result<Response<Body>, Status> {
    let Question {
        info,
        query,
        resource,
        how,
    } = question;
    let attributes = Attributes::of(&info).selecting(&info, query.as_deref());
    let user = gate::impersonate(app, request.headers_mut(), user, &attributes, trail)?;
    if let Some(resource) = &resource {
        refuse_pool_writes(resource, &user, info.verb)?;
    }
    let _place = app.gate.enter(&user, &info).await?;
    gate::authorize(app, &user, &info, &attributes, trail)?;
    if !info.is_resource {
        return answer_path(app, request, peer, &info, &user).await;
    }
    if let Some(kind) = review::find(&info) {
        if info.name.is_some() {
            return Err(Status::unknown_resource());
        }
        if info.verb != Verb::Create {
            return Err(Status::method_not_allowed());
        }
        return exchange(app, &user, request, (how, query.as_deref()), |exchange| {
            review::handle(app, &user, kind, info.namespace.as_deref(), exchange)
        })
        .await;
    }
    let Some(resource) = resource else {
        return not_found(app, &info);
    };
    if token_request::is_meant(app, &resource, &info) {
        return exchange(app, &user, request, (how, query.as_deref()), |exchange| {
            token_request::handle(app, &user, &info, exchange)
        })
        .await;
    }
    if let Some(answer) = kubelets::answer(app, &resource, &info).await? {
        return Ok(answer);
    }
    check_shape(&resource, &info, request.method())?;
    let warnings = Arc::new(Warnings::about(&resource.name));
    let (head, body) = request.into_parts();
    let body = if info.verb.is_read_only() {
        Received::none()
    } else {
        app.gate
            .bodies
            .read(&user.name, body, body_bytes_max(app, &user))
            .await?
    };
    let call = Call {
        app: app.clone(),
        resource,
        user,
        info,
        query,
        headers: head.headers,
        body,
        warnings: warnings.clone(),
        ends: peer.ends.clone(),
    };
    Ok(finished(Box::pin(handle(call)).await, how, &warnings))
}

/// Limit of the body of a write. Nodes write leases and events in a pool.
fn body_bytes_max(app: &App, user: &User) -> usize {
    let most = app.settings.body_bytes_max;
    let is_small = app.settings.profile == Profile::Pool && user.node_name().is_some() && !user.is_in(MASTERS);
    if is_small { most.min(NODE_BODY_BYTES_MAX) } else { most }
}

/// Answers a body with another one of its kind, and stores nothing. Every caller may send one, so its size is limited.
async fn exchange(
    app: &App,
    user: &User,
    request: Request<Incoming>,
    (how, query): (Negotiated, Option<&str>),
    answer: impl FnOnce(&Exchange<'_>) -> Result<Response<Body>, Status>,
) -> Result<Response<Body>, Status> {
    let (head, body) = request.into_parts();
    let limit = app.settings.body_bytes_max.min(SMALL_BYTES_MAX);
    let body = &*app.gate.bodies.read(&user.name, body, limit).await?;
    let (headers, warnings) = (&head.headers, &Warnings::default());
    let answer = answer(&Exchange {
        query,
        headers,
        body,
        warnings,
    });
    Ok(finished(answer, how, warnings))
}

/// The answer or its failure, with the warnings for the client.
fn finished(answer: Result<Response<Body>, Status>, how: Negotiated, warnings: &Warnings) -> Response<Body> {
    let is_unread = answer.as_ref().is_err_and(Status::is_of_router);
    let mut response = answer.unwrap_or_else(|status| status_error::respond(how, &status));
    if !is_unread {
        warnings.add_to(&mut response);
    }
    response
}

/// Passes a request to the handler of its verb. Writes of several steps finish even when the client disconnects; the store
/// finishes a single step by itself.
async fn handle(call: Call) -> Result<Response<Body>, Status> {
    match call.info.verb {
        Verb::Get => Ok(web::gzip(&call.headers, handlers::get::handle(&call).await?)),
        Verb::List => Ok(web::gzip(&call.headers, handlers::list::handle(&call).await?)),
        Verb::Watch => handlers::watch::handle(&call).await,
        _ if call.body.is_large() => {
            let (writes, bodies) = (call.app.writes.clone(), call.app.gate.bodies.clone());
            let write = async move {
                bodies
                    .in_turn(Work::Calls, async move { handle_write(&call).await })
                    .await
            };
            let write = writes.detached("large write", write);
            write.await.map_err(|lost| Status::internal(&lost.to_string()))??
        }
        Verb::Create | Verb::Update | Verb::Patch if is_one_step(&call) => Box::pin(handle_write(&call)).await,
        Verb::Create | Verb::Update | Verb::Patch | Verb::Delete | Verb::DeleteCollection => {
            let writes = call.app.writes.clone();
            let write = writes.detached("write", async move { handle_write(&call).await });
            write.await.map_err(|lost| Status::internal(&lost.to_string()))?
        }
        Verb::Proxy | Verb::Post | Verb::Put | Verb::Head | Verb::Options | Verb::Other => {
            Err(Status::method_not_allowed())
        }
    }
}

/// True if nothing has to follow the commit of a create or change. Two do: the guard of elections receives it, and an evicted
/// pod is deleted after it was marked.
fn is_one_step(call: &Call) -> bool {
    let is_eviction = call.info.subresource.as_deref() == Some("eviction");
    !is_eviction && !leases::may_be_guarded(&call.resource, call.info.namespace.as_deref())
}

async fn handle_write(call: &Call) -> Result<Response<Body>, Status> {
    match call.info.verb {
        Verb::Create => match handlers::pods::handle(call).await {
            Some(answer) => answer,
            None => handlers::create::handle(call).await,
        },
        Verb::Update => handlers::update::handle(call).await,
        Verb::Patch => handlers::patch::handle(call).await,
        Verb::Delete => handlers::delete::handle(call).await,
        _ => handlers::delete::handle_collection(call).await,
    }
}

/// Answers paths that name no resource.
async fn answer_path(
    app: &Arc<App>,
    request: Request<Incoming>,
    peer: &Peer,
    info: &RequestInfo,
    user: &User,
) -> Result<Response<Body>, Status> {
    if pool_paths::is_meant(&info.path) {
        let answer = pool_paths::answer(app, request, info, user).await?;
        return answer.map_or_else(|| no_document(app, info), Ok);
    }
    match (request.method(), info.path.as_str()) {
        (&Method::GET, "/metrics") => {
            app.metrics.lane(gate::READS, app.gate.reads.load());
            app.metrics.lane(gate::WRITES, app.gate.writes.load());
            app.set_barred_metric();
            let text = app.metrics.render(&app.served().registry, &app.feed, app.clock.boot());
            let content_type = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
            Ok(web::respond(StatusCode::OK, content_type, web::full(text)))
        }
        // Discovery of all groups has no methods; it is read-only.
        (&Method::GET, path) | (&Method::HEAD, path @ ("/api" | "/apis")) => {
            let asked = Asked {
                headers: request.headers(),
                query: request.uri().query(),
                now: std::time::UNIX_EPOCH + Duration::from_secs(app.clock.unix().secs.unsigned_abs()),
            };
            let document = app.served().discovery.answer(path, &asked, peer.local_addr);
            document.unwrap_or_else(|| no_document(app, info))
        }
        (_, path) if is_document(app, path) => Err(Status::method_not_allowed()),
        _ => no_document(app, info),
    }
}

/// True for a path that exists for another method.
fn is_document(app: &App, path: &str) -> bool {
    matches!(path, "/" | "/metrics" | "/version") || app.served().discovery.knows(path)
}

/// The 404 below the versions of a known group is the API's, everywhere else the router's.
fn no_document(app: &App, info: &RequestInfo) -> Result<Response<Body>, Status> {
    let parts: Vec<&str> = info.path.trim_matches('/').split('/').collect();
    let is_known = match parts.as_slice() {
        ["api" | "version", _, ..] => true,
        ["apis", group, _, ..] => app
            .served()
            .registry
            .iter()
            .any(|resource| resource.kind.group == *group && !group.is_empty()),
        _ => false,
    };
    if is_known && !info.path.starts_with("//") {
        return Err(Status::unknown_resource());
    }
    Ok(page_not_found())
}

/// The answer of a router for an unknown path.
fn page_not_found() -> Response<Body> {
    let mut response = web::text(StatusCode::NOT_FOUND, "404 page not found\n");
    let nosniff = HeaderValue::from_static("nosniff");
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, nosniff);
    response
}

fn find_resource(app: &App, info: &RequestInfo) -> Option<Arc<Resource>> {
    if !info.is_resource {
        return None;
    }
    let served = app.served();
    served
        .registry
        .find_version(&info.group, &info.version, &info.resource)
        .cloned()
}

/// Refuses writes to pool data, whose only author is the cloud. Runs before authorization, so that the caller gets the reason
/// instead of a bare 403.
fn refuse_pool_writes(resource: &Resource, user: &User, verb: Verb) -> Result<(), Status> {
    if verb.is_read_only() || user.is_anonymous() || matches!(resource.authority, Authority::Own(_)) {
        return Ok(());
    }
    let name = &resource.name;
    let message = format!(
        "{name} cannot be written here: pool data comes from the cloud through the pool's leader; write to the cloud instead"
    );
    Err(Status::failure(405, reason::METHOD_NOT_ALLOWED, message))
}

/// Checks if the path offers the verb at all.
fn check_shape(resource: &Resource, info: &RequestInfo, method: &Method) -> Result<(), Status> {
    let kind = resource.kind;
    let is_own = matches!(resource.authority, Authority::Own(_));
    // The path of a Namespace itself names a namespace, too.
    let in_namespace = info.namespace.is_some() && kind.plural != "namespaces";
    if in_namespace && !kind.namespaced {
        return Err(Status::unknown_resource());
    }
    if let Some(subresource) = info.subresource.as_deref() {
        let verbs = match resource
            .strategy
            .subresources()
            .iter()
            .find(|known| known.name == subresource)
        {
            Some(known) if is_own && info.rest.is_none() => known.verbs,
            None if subresource == "status" && kind.has_status && is_own && info.rest.is_none() => STATUS_VERBS,
            _ => return Err(Status::unknown_resource()),
        };
        if info.verb == Verb::Watch {
            return Err(Status::unknown_resource());
        }
        return if verbs.contains(&info.verb.as_str()) && method != Method::HEAD {
            Ok(())
        } else {
            Err(Status::method_not_allowed())
        };
    }
    let (has_name, has_namespace) = (info.name.is_some(), in_namespace || !kind.namespaced);
    if has_name && !has_namespace && !names_by_selector(info) {
        return Err(Status::unknown_resource());
    }
    let is_offered = match info.verb {
        Verb::Get => has_name && has_namespace && method != Method::HEAD,
        // Paths below /watch/ are watches for every method.
        Verb::List | Verb::Watch => method == Method::GET,
        Verb::Update | Verb::Patch | Verb::Delete => has_name && has_namespace,
        Verb::Create => !has_name && has_namespace,
        Verb::DeleteCollection => !has_name && has_namespace && resource.strategy.deletes_collections(),
        Verb::Proxy | Verb::Post | Verb::Put | Verb::Head | Verb::Options | Verb::Other => false,
    };
    if is_offered {
        Ok(())
    } else {
        Err(Status::method_not_allowed())
    }
}

/// True for the path of a collection, so that the name comes from the field selector.
fn names_by_selector(info: &RequestInfo) -> bool {
    let is_collection = info
        .path
        .trim_end_matches('/')
        .ends_with(&format!("/{}", info.resource));
    matches!(info.verb, Verb::List | Verb::Watch) && is_collection
}

/// An unknown resource of a served group gets another 404 than an unknown path.
fn not_found(app: &App, info: &RequestInfo) -> Result<Response<Body>, Status> {
    if app
        .served()
        .registry
        .iter()
        .any(|resource| resource.kind.group == info.group)
    {
        return Err(Status::unknown_resource());
    }
    Ok(page_not_found())
}
