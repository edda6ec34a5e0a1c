//! Passes requests on to the cloud. Bodies, watches and upgrades stream unchanged; the first 64 KiB of a body are kept
//! until the answer, for a second attempt.

mod outgoing;

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use http::header::{CONNECTION, CONTENT_TYPE, HOST, HeaderName, TE, TRAILER, UPGRADE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::BodyStream;
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::client::legacy::connect::capture_connection;
use hyper_util::rt::TokioIo;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::status::reason;
use yurt_apimachinery::{RequestInfo, Status, Verb};
use yurt_runtime::TaskGroup;
use yurt_runtime::http::client::ClientError;
use yurt_runtime::http::server::ConnectionPlace;
use yurt_runtime::http::{Body, broken_by, empty, pass, until};

use super::answered_by::AnsweredBy;
use super::caller::{Caller, Credential};
use super::open_answers::{self, OpenAnswers};
use super::precondition::JSON_PATCH;
use super::screen;
use crate::cache::agents::Agents;
use crate::cache::components::EDGE_CACHE;
use crate::health::CloudReach;
use crate::metrics::traffic::{Direction, OTHER};
use crate::upstream::attempts::Attempts;
use crate::upstream::hop_by_hop::strip;
use crate::upstream::{Cloud, CloudServer, Forwarding};
use outgoing::Outgoing;

/// Size of the copy buffer of each direction of an upgraded connection, bytes.
const COPY_BUFFER: usize = 16 * 1024;

/// Maximum wait for the first judgement about the cloud, after the hub's start.
const JUDGED_WITHIN: Duration = Duration::from_secs(5);

/// Addresses that a request has come from. kube-apiserver's audit log names them as `sourceIPs`.
const FORWARDED_FOR: &str = "x-forwarded-for";
/// Address that kube-apiserver's audit log names after those of [`FORWARDED_FOR`].
const REAL_IP: &str = "x-real-ip";

/// Sender of requests to the cloud.
pub struct PassThrough {
    /// The cloud.
    pub cloud: Arc<Cloud>,
    /// Reachability of the cloud.
    pub reach: watch::Receiver<CloudReach>,
    /// Owner of upgraded connections.
    pub tasks: TaskGroup,
    /// Wakes the cloud's prober.
    pub wake: Arc<tokio::sync::Notify>,
    /// Watches and logs that pass to callers with tokens.
    pub streams: OpenAnswers,
    /// Components whose bytes are counted by name, in addition to those that act as the node.
    pub agents: Arc<Agents>,
    /// Ends watches: the hub stops.
    pub end_watches: CancellationToken,
}

// === impl PassThrough ===

impl PassThrough {
    /// Sends a request and returns the cloud's answer. While the cloud is known to be away it sends nothing.
    ///
    /// # Errors
    /// 503 when the cloud cannot be reached; 403 for a caller whose credential cannot be passed on. 504 without
    /// Retry-After when the cloud may have acted on a request that must not be repeated. 429 if the caller has no place
    /// left for an upgraded connection, or has too many watches and logs.
    pub async fn send(
        &self,
        request: Request<Body>,
        info: &RequestInfo,
        caller: &Caller,
    ) -> Result<Response<Body>, Status> {
        self.send_to_servers(request, info, caller, false).await
    }

    /// As [`Self::send`], for a request that may be repeated although the cloud may have acted on it. It also leaves a
    /// server that is down and still answers, once another one is up. A JSON patch is sent as by [`Self::send`].
    ///
    /// # Errors
    /// As [`Self::send`].
    pub async fn send_repeatable(
        &self,
        request: Request<Body>,
        info: &RequestInfo,
        caller: &Caller,
    ) -> Result<Response<Body>, Status> {
        let is_repeatable = may_repeat(request.headers());
        self.send_to_servers(request, info, caller, is_repeatable).await
    }

    async fn send_to_servers(
        &self,
        request: Request<Body>,
        info: &RequestInfo,
        caller: &Caller,
        is_repeatable: bool,
    ) -> Result<Response<Body>, Status> {
        if let Credential::Certificate { user, .. } = &caller.credential {
            return Err(info.forbidden(
                user,
                "a client certificate cannot be passed on to the cloud: use a bearer token",
            ));
        }
        let places = self.candidates().await?;
        if let Some(upgrade) = upgrade_to_pass(request.headers()) {
            return self.upgrade(&places, request, &upgrade, caller).await;
        }
        let part = match open_answers::is_stream(info) {
            true => self.streams.one_more(caller)?,
            false => None,
        };
        let te = accepts_trailers(request.headers()).then(|| HeaderValue::from_static("trailers"));
        let (head, body) = request.into_parts();
        let body = self.counted(Direction::Sent, info, caller, body);
        let mut outgoing = Outgoing::new(forwarded(head, caller), body);
        te.map(|te| outgoing.head.headers.insert(TE, te));
        let (mut failed, mut attempts) = (None, Attempts::among(places.len()));
        while let Some(place) = attempts.begin().filter(|_| outgoing.is_whole()) {
            let server = self.cloud.at(places[place % places.len()]);
            let lane = forwarding(server, caller).lane_for(info);
            let lost = server.availability.lost();
            let left = || self.left(server, is_repeatable);
            let slot = match before(left(), lane.slot()).await {
                Some(Ok(slot)) => slot,
                Some(Err(error)) => {
                    failed = Some(self.unreachable(&error, true));
                    if places.len() == 1 {
                        break;
                    }
                    continue;
                }
                None => {
                    failed = Some(silent(true));
                    continue;
                }
            };
            let Some(request) = outgoing.take() else { break };
            match before(left(), slot.send(request)).await {
                Some(Ok(response)) => {
                    let response = response.map(|body| self.counted(Direction::Received, info, caller, body));
                    let ends = (info.verb == Verb::Watch).then(|| self.end_watches.clone());
                    let response = answer(response, ends, lost);
                    return Ok(open_answers::counted(response, part));
                }
                Some(Err(error)) => {
                    attempts.note(&error);
                    let may_repeat = error.is_unprocessed || outgoing.is_read();
                    failed = Some(self.unreachable(&error.error, may_repeat));
                    if !(error.is_unprocessed || outgoing.is_safe()) {
                        break;
                    }
                }
                None => {
                    failed = Some(silent(outgoing.is_read()));
                    if !(is_repeatable || outgoing.is_safe()) {
                        break;
                    }
                }
            }
        }
        Err(failed.unwrap_or_else(away))
    }

    /// Resolves once a request leaves this server: it is lost, or down while another one is up if the request
    /// `is_repeatable`.
    async fn left(&self, server: &CloudServer, is_repeatable: bool) {
        let is_better_up = |_: &CloudReach| server.availability.is_up() == Some(false) && self.cloud.has_server_up();
        let down = async {
            server.availability.down().cancelled().await;
            if !is_repeatable || self.reach.clone().wait_for(is_better_up).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let lost = server.availability.lost();
        tokio::select! {
            () = lost.cancelled() => {}
            () = down => {}
        }
    }

    /// Returns the same body, counted for the caller.
    fn counted(&self, direction: Direction, info: &RequestInfo, caller: &Caller, body: Body) -> Body {
        let name = caller.cached_as(&self.agents);
        let is_named = caller.credential == Credential::Node || self.agents.names(&name);
        let component = if is_named { &name } else { OTHER };
        let resource = (info.group.as_str(), info.resource.as_str());
        self.cloud.traffic().counted(direction, component, resource, body)
    }

    /// Sends a request that asks for an upgrade, over a connection of its own: to the first server that takes it. The
    /// upgraded connection holds the client's place until it ends.
    async fn upgrade(
        &self,
        places: &[usize],
        mut request: Request<Body>,
        upgrade: &HeaderValue,
        caller: &Caller,
    ) -> Result<Response<Body>, Status> {
        let downstream = hyper::upgrade::on(&mut request);
        let held = request.extensions_mut().remove::<ConnectionPlace>();
        let (head, body) = request.into_parts();
        let mut outgoing = Outgoing::new(forwarded(head, caller), body);
        let headers = &mut outgoing.head.headers;
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, upgrade.clone());
        let mut failed = away();
        for place in places {
            let server = self.cloud.at(*place);
            let Some(mut request) = outgoing.take() else { break };
            let connection = capture_connection(&mut request);
            let lost = server.availability.lost();
            let sending = forwarding(server, caller).single.send(request);
            match lost.run_until_cancelled(sending).await {
                Some(Ok(response)) => return self.upgraded(response, downstream, held, caller, lost),
                Some(Err(error)) => {
                    failed = self.unreachable(&error, false);
                    if !error.never_sent() {
                        break;
                    }
                }
                // Without a connection nothing was sent.
                None if connection.connection_metadata().is_none() => failed = silent(true),
                None => return Err(silent(false)),
            }
        }
        Err(failed)
    }

    /// Returns the answer to a request for an upgrade, and connects both sides if it is granted.
    fn upgraded(
        &self,
        mut response: Response<Incoming>,
        downstream: OnUpgrade,
        place: Option<ConnectionPlace>,
        caller: &Caller,
        lost: CancellationToken,
    ) -> Result<Response<Body>, Status> {
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            // The cloud has verified the caller.
            if let (Some(place), Some(known)) = (&place, caller.known()) {
                place.claim(&known)?;
            }
            let (upstream, lost) = (hyper::upgrade::on(&mut response), lost.clone());
            let stop = self.tasks.token();
            self.tasks.spawn_isolated("upgraded", async move {
                let _place = place;
                let carried = lost.run_until_cancelled(tunnel(downstream, upstream));
                stop.run_until_cancelled(carried).await;
            });
        }
        Ok(answer(response.map(pass), None, lost))
    }

    /// Returns the servers to try, in order. Waits for the first judgement if there is none yet.
    async fn candidates(&self) -> Result<Vec<usize>, Status> {
        if self.reach.borrow().failed_probes.is_none() {
            let mut reach = self.reach.clone();
            let judged = reach.wait_for(|reach| reach.failed_probes.is_some());
            // Without one the request tries for itself.
            let _ = tokio::time::timeout(JUDGED_WITHIN, judged).await;
        }
        let places = self.cloud.candidates();
        if places.is_empty() { Err(away()) } else { Ok(places) }
    }

    fn unreachable(&self, error: &ClientError, is_repeatable: bool) -> Status {
        self.wake.notify_one();
        tracing::debug!(%error, "Failed to send request to cloud");
        if is_repeatable || error.never_sent() {
            return Status::service_unavailable(format!("the cloud is unreachable: {error}"), 1);
        }
        not_repeatable(&error.to_string())
    }
}

/// Returns the result of `attempt`; `None` if `end` comes first.
async fn before<T>(end: impl Future<Output = ()>, attempt: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        () = end => None,
        result = attempt => Some(result),
    }
}

/// False for a JSON patch, which may append a second time.
fn may_repeat(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).map_or(&[][..], HeaderValue::as_bytes);
    !content_type.starts_with(JSON_PATCH.as_bytes())
}

/// Answer while no server answers.
fn away() -> Status {
    Status::service_unavailable("the cloud is unreachable: none of its servers answers", 1)
}

/// Answer to a request whose server fell silent.
fn silent(is_repeatable: bool) -> Status {
    const WHY: &str = "the server has fallen silent";
    match is_repeatable {
        true => Status::service_unavailable(format!("the cloud is unreachable: {WHY}"), 1),
        false => not_repeatable(WHY),
    }
}

/// Answer to a request that the cloud may have acted on. Without Retry-After, clients do not repeat it by themselves.
fn not_repeatable(why: &str) -> Status {
    let message = format!("the cloud may or may not have acted on the request: {why}");
    Status::failure(504, reason::TIMEOUT, message)
}

/// Connections for the caller's identity.
fn forwarding<'a>(server: &'a CloudServer, caller: &Caller) -> &'a Forwarding {
    match &caller.credential {
        Credential::Node => &server.node,
        _ => &server.token,
    }
}

/// True if a request asks for an upgrade that is passed on.
pub(super) fn is_upgrade(headers: &HeaderMap) -> bool {
    upgrade_to_pass(headers).is_some()
}

/// Protocol of an upgrade that is passed on. A request that asks for HTTP or TLS is sent without the upgrade, as RFC
/// 9110 7.8 permits: over such a connection, requests would reach the cloud unchecked.
fn upgrade_to_pass(headers: &HeaderMap) -> Option<HeaderValue> {
    let is_http = |protocol: &str| {
        let name = protocol.split('/').next().unwrap_or_default().trim();
        ["h2c", "http", "tls"]
            .iter()
            .any(|other| name.eq_ignore_ascii_case(other))
    };
    let is_passed = |value: &HeaderValue| value.to_str().is_ok_and(|value| !value.split(',').any(is_http));
    headers
        .get_all(UPGRADE)
        .iter()
        .all(is_passed)
        .then(|| headers.get(UPGRADE).cloned())?
}

/// True if the client reads trailers.
fn accepts_trailers(headers: &HeaderMap) -> bool {
    let values = headers.get_all(TE).iter().filter_map(|value| value.to_str().ok());
    values
        .flat_map(|value| value.split(','))
        .any(|coding| coding.trim().eq_ignore_ascii_case("trailers"))
}

/// Removes the headers of the client's connection, those that are for this hub, and those that only a front proxy may
/// send.
#[must_use]
pub fn forwardable(mut head: Parts) -> Parts {
    strip(&mut head.headers);
    head.headers.remove(HOST);
    head.headers.remove(UPGRADE);
    head.headers.remove(EDGE_CACHE);
    let forged: Vec<HeaderName> = head
        .headers
        .keys()
        .filter(|name| screen::is_named(name, "x-remote-"))
        .cloned()
        .collect();
    forged.iter().for_each(|name| drop(head.headers.remove(name)));
    // The upgrade handle of the client's connection must not reach the cloud's.
    head.extensions.clear();
    head
}

/// As [`forwardable`], with the caller's address at the end of [`FORWARDED_FOR`], and without [`REAL_IP`].
fn forwarded(head: Parts, caller: &Caller) -> Parts {
    let (mut head, own) = (forwardable(head), caller.origin.address.to_string());
    let earlier = head.headers.get_all(FORWARDED_FOR).iter().map(HeaderValue::as_bytes);
    let all: Vec<_> = earlier.chain([own.as_bytes()]).collect();
    // Parts of valid values are a valid one.
    if let Ok(all) = HeaderValue::from_bytes(&all.join(&b", "[..])) {
        head.headers.insert(FORWARDED_FOR, all);
    }
    head.headers.remove(REAL_IP);
    head
}

/// Returns the answer for the client; `ends` ends it cleanly if it is a watch.
fn answer(response: Response<Body>, ends: Option<CancellationToken>, lost: CancellationToken) -> Response<Body> {
    let (mut head, body) = AnsweredBy::Cloud.mark(response).into_parts();
    let switched = head.status == StatusCode::SWITCHING_PROTOCOLS;
    let upgrade = head.headers.get(UPGRADE).cloned();
    let trailers: Vec<HeaderValue> = head.headers.get_all(TRAILER).iter().cloned().collect();
    strip(&mut head.headers);
    // They are of the response, and not of its connection.
    head.headers.extend(trailers.into_iter().map(|names| (TRAILER, names)));
    if switched {
        head.headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        upgrade.map(|upgrade| head.headers.insert(UPGRADE, upgrade));
        return Response::from_parts(head, empty());
    }
    let Some(ends) = ends.filter(|_| head.status.is_success()) else {
        return Response::from_parts(head, broken_by(body, lost, "the cloud has fallen silent"));
    };
    // A stream that breaks at the cloud ends cleanly at the client: it resumes its watch. After an HTTP/2 reset
    // client-go would relist.
    let frames = BodyStream::new(body).take_while(|frame| std::future::ready(frame.is_ok()));
    let pieces = frames.filter_map(|frame| {
        std::future::ready(
            frame
                .ok()
                .and_then(|frame| frame.into_data().ok())
                .map(Ok::<_, std::convert::Infallible>),
        )
    });
    let watch = until(yurt_runtime::http::stream(pieces), lost);
    Response::from_parts(head, until(watch, ends))
}

/// Copies in both directions until one side ends.
async fn tunnel(downstream: OnUpgrade, upstream: OnUpgrade) {
    let (Ok(downstream), Ok(upstream)) = tokio::join!(downstream, upstream) else {
        return;
    };
    let (mut downstream, mut upstream) = (TokioIo::new(downstream), TokioIo::new(upstream));
    let copied =
        tokio::io::copy_bidirectional_with_sizes(&mut downstream, &mut upstream, COPY_BUFFER, COPY_BUFFER).await;
    if let Err(error) = copied {
        tracing::debug!(%error, "Upgraded connection ended");
    }
}

#[cfg(test)]
mod tests;
