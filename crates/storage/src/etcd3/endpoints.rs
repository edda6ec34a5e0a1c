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
use super::grpc::{self, CallError, Duplex};
use super::version;
use super::wire::{
    RANGE, RangeRequest, RangeResponse, STATUS, StatusRequest, StatusResponse, TXN, TxnRequest, TxnResponse, WATCH,
    WatchAsk, WatchCreateRequest, WatchRequest,
};

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
    watches: HttpClient,
    failed_at: Mutex<Option<Instant>>,
}

/// All members, and the preferred one.
pub(super) struct Endpoints {
    members: Vec<Endpoint>,
    preferred: AtomicUsize,
}

/// Failures of one call.
#[derive(Default)]
struct Attempts {
    failed: usize,
    /// The last one that may pass.
    other: Option<CallError>,
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
            let client = || {
                let base = server
                    .parse()
                    .map_err(|error| OpenError::Servers(format!("{server}: not a URL: {error}")))?;
                HttpClient::new(base, config.clone(), Protocol::Http2, CONNECT_TIMEOUT)
                    .map_err(|error| OpenError::Servers(error.to_string()))
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

    /// Prefers a member whose watches can be used. Others are recorded as failed.
    ///
    /// # Errors
    /// [`CallError`]; it is [lasting](CallError::is_lasting) only if that is so at every member.
    pub(super) async fn require_version(&self) -> Result<(), CallError> {
        let mut attempts = Attempts::default();
        loop {
            let (at, member) = self.pick();
            match member.require_version().await {
                Ok(()) => return Ok(()),
                Err(error) => self.next(&mut attempts, at, error, true)?,
            }
        }
    }

    /// Any call; `repeatable` if a repetition has no further effect. An error is [lasting](CallError::is_lasting) only
    /// if that is so at every member.
    pub(super) async fn call<R: Message + Default>(
        &self,
        path: &'static str,
        request: &impl Message,
        repeatable: bool,
    ) -> Result<R, CallError> {
        let mut attempts = Attempts::default();
        loop {
            let (at, member) = self.pick();
            match grpc::unary(&member.calls, path, request, CALL_TIMEOUT).await {
                Ok(answer) => {
                    member.succeeded();
                    return Ok(answer);
                }
                Err(error) => self.next(&mut attempts, at, error, repeatable)?,
            }
        }
    }

    /// Records the failure of member `at`. Returns an error if no other member is to be tried.
    fn next(&self, attempts: &mut Attempts, at: usize, error: CallError, repeatable: bool) -> Result<(), CallError> {
        if !error.is_of_server() {
            return Err(error);
        }
        self.failed(at, &error);
        attempts.failed += 1;
        let is_last = attempts.failed >= self.members.len() || !(repeatable || error.never_applied());
        // A member that gives no answer now may accept the client later.
        let error = match attempts.other.take() {
            Some(other) if error.is_lasting() => other,
            _ => error,
        };
        if is_last {
            return Err(error);
        }
        attempts.other = Some(error).filter(|error| !error.is_lasting());
        Ok(())
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

    /// Opens a watch, unless the member's version may lose changes.
    ///
    /// # Errors
    /// [`CallError`].
    pub(super) async fn open_watch(&self, create: WatchCreateRequest) -> Result<Duplex, CallError> {
        // Not once only: the member may have been replaced since the last watch.
        self.require_version().await?;
        let create = WatchRequest {
            ask: Some(WatchAsk::Create(create)),
        };
        Duplex::open(&self.watches, WATCH, &create).await
    }

    /// Checks that the member reports progress in order with events.
    async fn require_version(&self) -> Result<(), CallError> {
        let status: Result<StatusResponse, _> =
            grpc::unary(&self.watches, STATUS, &StatusRequest {}, CALL_TIMEOUT).await;
        match status {
            Ok(status) if version::has_ordered_progress(&status.version) => Ok(()),
            Ok(status) => Err(CallError::Outdated(status.version)),
            // With etcd's own authentication, the call may need the role root. A proxy of etcd may lack it.
            Err(error @ CallError::Refused { .. }) if error.is_of_client() || error.is_unimplemented() => {
                let server = self.server();
                tracing::warn!(server, %error, "etcd does not report its version; 3.4.31, 3.5.13 or 3.6 is needed");
                Ok(())
            }
            Err(error) => Err(error),
        }
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
    use http::HeaderValue;

    use super::*;
    use crate::etcd3::fake_member;

    const GOOD: HeaderValue = HeaderValue::from_static("0");

    /// URL of a member that answers every call with this status.
    async fn member(status: HeaderValue, tasks: &TaskGroup) -> String {
        let answer = move |_: &str, _| match &status {
            status if *status == GOOD => fake_member::message(&RangeResponse::default()),
            status => fake_member::refusal(status.clone()),
        };
        fake_member::start(tasks, answer).await
    }

    /// URL of a member of this version.
    async fn of_version(version: &'static str, tasks: &TaskGroup) -> String {
        let version = version.to_owned();
        let answer = move |path: &str, _| {
            assert_eq!(path, STATUS);
            fake_member::message(&StatusResponse {
                version: version.clone(),
            })
        };
        fake_member::start(tasks, answer).await
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

    #[tokio::test]
    async fn members_that_may_lose_changes_are_left() {
        let tasks = TaskGroup::new();
        let (old, new) = (of_version("3.5.0", &tasks).await, of_version("3.5.13", &tasks).await);
        let away = format!("http://127.0.0.1:{}", yurt_test_support::free_port());
        let checked = async |servers: &[&String]| {
            let servers: Vec<String> = servers.iter().map(|server| (*server).clone()).collect();
            let endpoints = Endpoints::new(&servers, None, &tasks).expect("URLs");
            let checked = endpoints.require_version().await;
            (checked, endpoints.pick().1.server())
        };
        for servers in [[&old, &new], [&new, &old]] {
            let (checked, preferred) = checked(&servers).await;
            assert!(checked.is_ok() && new.contains(&preferred), "{checked:?} {preferred}");
        }
        for servers in [vec![&old], vec![&old, &old]] {
            let (checked, _) = checked(&servers).await;
            let error = checked.expect_err("all are too old");
            assert!(error.is_lasting() && error.to_string().contains("3.5.0"), "{error}");
        }
        for servers in [[&old, &away], [&away, &old]] {
            let (checked, _) = checked(&servers).await;
            assert!(checked.is_err_and(|error| !error.is_lasting()), "one may be new enough");
        }
    }

    /// etcd 3.6 answers Status only to the role root.
    #[tokio::test]
    async fn member_that_does_not_report_its_version_is_used() {
        let tasks = TaskGroup::new();
        let denying = member(HeaderValue::from_static("7"), &tasks).await;
        let endpoints = Endpoints::new(&[denying], None, &tasks).expect("a URL");
        assert!(endpoints.require_version().await.is_ok());
    }

    #[tokio::test]
    async fn watch_is_not_opened_at_a_member_that_may_lose_changes() {
        let tasks = TaskGroup::new();
        let old = of_version("3.5.12", &tasks).await;
        let endpoints = Endpoints::new(&[old], None, &tasks).expect("a URL");
        let opened = endpoints.pick().1.open_watch(WatchCreateRequest::default()).await;
        assert!(matches!(opened, Err(CallError::Outdated(version)) if version == "3.5.12"));
    }
}
