//! Passes requests on to the cloud. Bodies, watches and upgrades stream; nothing is buffered or changed.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use http::header::{CONNECTION, HOST, HeaderName, UPGRADE};
use http::request::Parts;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::BodyStream;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::status::reason;
use yurt_apimachinery::{RequestInfo, Status, Verb};
use yurt_runtime::TaskGroup;
use yurt_runtime::http::client::ClientError;
use yurt_runtime::http::{Body, broken_by, empty, pass, until};

use super::caller::{Caller, Credential};
use super::screen;
use crate::health::CloudReach;
use crate::upstream::hop_by_hop::strip;
use crate::upstream::{Cloud, CloudServer};

/// Size of the copy buffer of each direction of an upgraded connection, bytes.
const COPY_BUFFER: usize = 16 * 1024;

/// Maximum wait for the first judgement about the cloud, after the hub's start.
const JUDGED_WITHIN: Duration = Duration::from_secs(5);

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
}

// === impl PassThrough ===

impl PassThrough {
    /// Sends a request and returns the cloud's answer. While the cloud is known to be away it sends nothing.
    ///
    /// # Errors
    /// 503 when the cloud cannot be reached; 403 for a caller whose credential cannot be passed on. 504 without
    /// Retry-After when the cloud may have acted on a request that must not be repeated.
    pub async fn send(
        &self,
        request: Request<Body>,
        info: &RequestInfo,
        caller: &Caller,
    ) -> Result<Response<Body>, Status> {
        if let Credential::Certificate { user, .. } = &caller.credential {
            return Err(info.forbidden(
                user,
                "a client certificate cannot be passed on to the cloud: use a bearer token",
            ));
        }
        let server = self.server().await?;
        let client = match &caller.credential {
            Credential::Node => &server.node,
            _ => &server.token,
        };
        let upgrade = request.headers().get(UPGRADE).cloned();
        let is_repeatable = request.method().is_idempotent();
        let (mut downstream, request) = split(request, upgrade.as_ref());
        let lost = server.availability.lost();
        let sent = lost.run_until_cancelled(client.send(request)).await;
        let mut response = match sent {
            Some(Ok(response)) => response,
            Some(Err(error)) => return Err(self.unreachable(&error, is_repeatable)),
            None => return Err(silent(is_repeatable)),
        };
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            if upgrade.is_none() {
                return Err(Status::internal("the cloud switched protocols without a request"));
            }
            let upstream = hyper::upgrade::on(&mut response);
            if let Some(downstream) = downstream.take() {
                let lost = lost.clone();
                self.tasks.spawn_isolated("upgraded", async move {
                    lost.run_until_cancelled(tunnel(downstream, upstream)).await;
                });
            }
        }
        Ok(answer(response, info.verb == Verb::Watch, lost))
    }

    /// Returns a server that may answer. Waits for the first judgement if there is none yet.
    async fn server(&self) -> Result<&CloudServer, Status> {
        if self.reach.borrow().failed_probes.is_none() {
            let mut reach = self.reach.clone();
            let judged = reach.wait_for(|reach| reach.failed_probes.is_some());
            // Without one the request tries for itself.
            let _ = tokio::time::timeout(JUDGED_WITHIN, judged).await;
        }
        match self.cloud.candidates().first() {
            Some(place) => Ok(self.cloud.at(*place)),
            None => Err(Status::service_unavailable(
                "the cloud is unreachable: none of its servers answers",
                1,
            )),
        }
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

/// Splits off the request to send, and the handle of its own upgrade if it requests one.
fn split(
    mut request: Request<Body>,
    upgrade: Option<&HeaderValue>,
) -> (Option<hyper::upgrade::OnUpgrade>, Request<Body>) {
    let downstream = upgrade.map(|_| hyper::upgrade::on(&mut request));
    let (head, body) = request.into_parts();
    let mut head = forwardable(head);
    if let Some(upgrade) = upgrade {
        head.headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        head.headers.insert(UPGRADE, upgrade.clone());
    }
    (downstream, Request::from_parts(head, body))
}

/// Removes the headers of the client's connection, and those that only a front proxy may send.
#[must_use]
pub fn forwardable(mut head: Parts) -> Parts {
    strip(&mut head.headers);
    head.headers.remove(HOST);
    head.headers.remove(UPGRADE);
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

fn answer(response: Response<Incoming>, is_watch: bool, lost: CancellationToken) -> Response<Body> {
    let (mut head, body) = response.into_parts();
    let switched = head.status == StatusCode::SWITCHING_PROTOCOLS;
    let upgrade = head.headers.get(UPGRADE).cloned();
    strip(&mut head.headers);
    if switched {
        head.headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        upgrade.map(|upgrade| head.headers.insert(UPGRADE, upgrade));
        return Response::from_parts(head, empty());
    }
    if !is_watch || !head.status.is_success() {
        return Response::from_parts(head, broken_by(pass(body), lost, "the cloud has fallen silent"));
    }
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
    Response::from_parts(head, until(yurt_runtime::http::stream(pieces), lost))
}

/// Copies in both directions until one side ends.
async fn tunnel(downstream: hyper::upgrade::OnUpgrade, upstream: hyper::upgrade::OnUpgrade) {
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
