//! Choice of the etcd member: one that answered last time, the next one after a failure.
//!
//! Every member has connections of its own, one for calls and one for watches, so that a large answer never delays
//! changes. The underlying client detects dead connections by HTTP/2 pings.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use prost::Message;
use tokio::time::Instant;
use yurt_runtime::TaskGroup;
use yurt_runtime::http::client::{HttpClient, Protocol};
use yurt_runtime::tls::{ClientTls, ReloadingClientTls};

use super::OpenError;
use super::grpc::{self, CallError};
use super::wire::{RANGE, RangeRequest, RangeResponse, TXN, TxnRequest, TxnResponse};

/// Time limit for a connection to a member.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Time limit for an answer of a member; etcd itself aborts a proposal after about seven seconds.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Time after which a failed member is used again; earlier if all have failed.
const REST: Duration = Duration::from_secs(5);
/// Maximum number of members.
const MEMBERS_MAX: usize = 32;

/// One member.
pub(super) struct Endpoint {
    /// For calls.
    calls: HttpClient,
    /// For watches.
    pub(super) watches: HttpClient,
    failed_at: Mutex<Option<Instant>>,
}

/// All members, and the preferred one.
pub(super) struct Endpoints {
    members: Vec<Endpoint>,
    preferred: AtomicUsize,
}

// === impl Endpoints ===

impl Endpoints {
    /// Clients of all `servers`; nothing is connected yet. A task reloads changed certificate files.
    ///
    /// # Errors
    /// [`OpenError`] naming the URL or file.
    pub(super) fn new(servers: &[String], tls: Option<ClientTls>, tasks: &TaskGroup) -> Result<Self, OpenError> {
        if servers.is_empty() || servers.len() > MEMBERS_MAX {
            return Err(OpenError::Servers(format!(
                "between 1 and {MEMBERS_MAX} URLs are needed"
            )));
        }
        let reloading = tls.map(ReloadingClientTls::new).transpose()?;
        let config = reloading.as_ref().map(|(_, config)| config.clone());
        let mut members = Vec::with_capacity(servers.len());
        for server in servers {
            let bad = |why: String| OpenError::Servers(format!("{server}: {why}"));
            let client = || {
                let base = server.parse().map_err(|error| bad(format!("not a URL: {error}")))?;
                HttpClient::new(base, config.clone(), Protocol::Http2, CONNECT_TIMEOUT)
                    .map_err(|error| bad(error.to_string()))
            };
            members.push(Endpoint {
                calls: client()?,
                watches: client()?,
                failed_at: Mutex::new(None),
            });
        }
        if let Some((reloading, _)) = reloading {
            let clients: Vec<_> = members
                .iter()
                .flat_map(|each| [each.calls.clone(), each.watches.clone()])
                .collect();
            reloading.watch(tasks, move |tls| {
                clients.iter().for_each(|client| client.set_tls(tls.clone()));
            });
        }
        Ok(Self {
            members,
            preferred: AtomicUsize::new(0),
        })
    }

    /// The member for the next request, with its number.
    pub(super) fn pick(&self) -> (usize, &Endpoint) {
        let first = self.preferred.load(Ordering::Relaxed);
        let count = self.members.len();
        let order = || (0..count).map(|step| (first + step) % count);
        let at = order()
            .find(|at| self.members[*at].is_rested())
            .unwrap_or(first % count);
        (at, &self.members[at])
    }

    /// Records a failure of member `at`: others are preferred for [`REST`].
    pub(super) fn failed(&self, at: usize, error: &dyn std::fmt::Display) {
        let before = self.members[at].failed_at.lock().replace(Instant::now());
        let server = self.members[at].calls.server();
        if before.is_none() {
            tracing::warn!(server, %error, "etcd member failed, using another one");
        } else {
            tracing::debug!(server, %error, "etcd member still fails");
        }
        self.preferred.store((at + 1) % self.members.len(), Ordering::Relaxed);
    }

    /// Reads at the present, or at a past revision; tries each member once before it fails.
    pub(super) async fn range(&self, request: &RangeRequest) -> Result<RangeResponse, CallError> {
        self.call(RANGE, request, true).await
    }

    /// Executes a transaction. Another member is tried only if the first one certainly did nothing.
    pub(super) async fn txn(&self, request: &TxnRequest) -> Result<TxnResponse, CallError> {
        self.call(TXN, request, false).await
    }

    /// Any call; `repeatable` if a repetition has no further effect. An error is [of the client](CallError::is_of_client)
    /// only if every member rejects it.
    pub(super) async fn call<R: Message + Default>(
        &self,
        path: &'static str,
        request: &impl Message,
        repeatable: bool,
    ) -> Result<R, CallError> {
        let (mut asked, mut other) = (1, None);
        loop {
            let (at, member) = self.pick();
            let error = match grpc::unary(&member.calls, path, request, CALL_TIMEOUT).await {
                Ok(answer) => {
                    member.succeeded();
                    return Ok(answer);
                }
                Err(error) => error,
            };
            if !error.is_of_server() {
                return Err(error);
            }
            self.failed(at, &error);
            let is_last = asked >= self.members.len() || !(repeatable || error.never_applied());
            // A member that gives no answer now may accept the client later.
            let error = match other {
                Some(other) if error.is_of_client() => other,
                _ => error,
            };
            if is_last {
                return Err(error);
            }
            other = Some(error).filter(|error| !error.is_of_client());
            asked += 1;
        }
    }
}

// === impl Endpoint ===

impl Endpoint {
    fn is_rested(&self) -> bool {
        self.failed_at.lock().is_none_or(|at| at.elapsed() >= REST)
    }

    /// The member's URL, for logs.
    pub(super) fn server(&self) -> String {
        self.calls.server()
    }

    /// Records an answer: a later failure is logged as a warning again.
    pub(super) fn succeeded(&self) {
        if self.failed_at.lock().take().is_some() {
            tracing::info!(server = self.server(), "etcd member answers again");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use http::{HeaderValue, Response};
    use yurt_runtime::http as web;
    use yurt_runtime::http::server::{Server, handler};

    use super::*;

    const GOOD: HeaderValue = HeaderValue::from_static("0");

    /// URL of a member that answers every call with this status.
    async fn member(status: HeaderValue, tasks: &TaskGroup) -> String {
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = Server::bind(loopback, "test").await.expect("a port");
        let url = format!("http://{}", server.local_addr());
        let answer = handler(move |_, _| {
            // A frame with an empty message.
            let frame = if status == GOOD { &[0; 5][..] } else { &[] };
            let mut response = Response::new(web::full(frame));
            response.headers_mut().insert("grpc-status", status.clone());
            std::future::ready(response)
        });
        let _serving = server.serve(tasks, answer);
        url
    }

    /// Outcomes of calls, more of them than there are members.
    async fn calls(servers: &[String], tasks: &TaskGroup) -> Vec<Result<(), CallError>> {
        let endpoints = Endpoints::new(servers, None, tasks).expect("URLs");
        let mut outcomes = Vec::new();
        for _ in 0..4 {
            outcomes.push(endpoints.range(&RangeRequest::default()).await.map(drop));
            outcomes.push(endpoints.txn(&TxnRequest::default()).await.map(drop));
        }
        outcomes
    }

    #[tokio::test]
    async fn client_is_refused_if_all_members_refuse_it() {
        let tasks = TaskGroup::new();
        let is_refused = |outcome: &Result<(), CallError>| matches!(outcome, Err(error) if error.is_of_client());
        for status in ["7", "16"] {
            let refusing = member(HeaderValue::from_static(status), &tasks).await;
            let good = member(GOOD, &tasks).await;
            let away = format!("http://127.0.0.1:{}", yurt_test_support::free_port());
            for servers in [[refusing.clone(), good.clone()], [good, refusing.clone()]] {
                let outcomes = calls(&servers, &tasks).await;
                assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
            }
            for servers in [[refusing.clone(), away.clone()], [away, refusing.clone()]] {
                let outcomes = calls(&servers, &tasks).await;
                let is_unknown = |outcome| matches!(outcome, &Err(_)) && !is_refused(outcome);
                assert!(outcomes.iter().all(is_unknown), "{outcomes:?}");
            }
            for servers in [vec![refusing.clone()], vec![refusing.clone(), refusing]] {
                let outcomes = calls(&servers, &tasks).await;
                assert!(outcomes.iter().all(is_refused), "{outcomes:?}");
            }
        }
    }
}
