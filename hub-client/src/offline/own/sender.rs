//! Brings local statuses to the cloud when it is back: a few objects at the same time, the Node first, paced. So one
//! that takes long does not delay the others.
//!
//! Every attempt reads the cloud's object, computes what it should have, and patches the difference with its uid and
//! resourceVersion. So a status is written exactly once, also after a crash in between: the second attempt finds no
//! difference.
//!
//! A denied read is not final. A kube-apiserver that starts answers `/livez` before its authorizer knows the pods of
//! this node, and it denies the read of a pod that it has deleted. So the status stays for later attempts, unless the
//! node's own selection of pods shows the deletion.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, StatusCode};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::{ResourceVersion, meta};
use yurt_runtime::Clock;
use yurt_runtime::http::{APPLICATION_JSON, full};

use super::merge::{difference, part, reconciled, with_part, without_old_reports};
use super::pending::{LocalState, Pending};
use super::under_way::UnderWay;
use super::version;
use super::write::OwnKey;
use crate::health::{CloudReach, answer_within};
use crate::metrics::Metrics;
use crate::offline::answers::Answers;
use crate::offline::kept_read::KeptRead;
use crate::offline::{SEND_AWAY_MAX, SEND_UP_MAX};
use crate::upstream::{Cloud, describe_answer};

/// Maximum number of objects that are sent at the same time, and as many for requests that wait for theirs.
const SENDS_MAX: usize = 4;
/// Pause between two objects.
const PACE: Duration = Duration::from_millis(50);
/// Pause after an attempt without a result.
const RETRY: Duration = Duration::from_secs(5);
/// Time between attempts to store entries that the disk did not take, and to delete those that it kept.
const RESAVED_EVERY: Duration = Duration::from_secs(10);
/// Maximum bytes of an answer.
const ANSWER_MAX: usize = 3 << 20;
/// Maximum number of attempts in a row after conflicts.
const ATTEMPTS_MAX: u32 = 5;
/// Maximum number of denied reads of an object in a row, at least [`RETRY`] apart: ten minutes in which the cloud
/// answers.
const DENIALS_MAX: u32 = 120;

/// True if the selection of the node's pods shows that the cloud has deleted this pod.
pub type IsDeleted = Arc<dyn Fn(&OwnKey, &Value) -> bool + Send + Sync>;

/// Request to send the entry of an object now.
#[derive(Debug)]
pub struct Command {
    /// The object.
    pub key: OwnKey,
    /// Signals the end of the attempt.
    pub done: oneshot::Sender<()>,
}

/// The sender.
pub struct Sender {
    /// Name of the Node.
    pub node: String,
    /// The entries.
    pub pending: Arc<Pending>,
    /// The cloud.
    pub cloud: Arc<Cloud>,
    /// Kept answers, which receive the cloud's new state.
    pub answers: Answers,
    /// Knowledge about deleted pods.
    pub is_deleted: IsDeleted,
    /// Metrics of the hub.
    pub metrics: Arc<Metrics>,
    /// Clock of the kubelet's reports.
    pub clock: Clock,
}

/// Result of an attempt.
#[derive(Debug, PartialEq)]
enum StatusOutcome {
    /// The cloud has the status, since this RV of the object at the latest; its object, if the attempt changed it.
    Written(ResourceVersion, Option<Bytes>),
    /// The cloud's object changed in between.
    Conflict,
    /// The cloud no longer has this object.
    Gone,
    /// The cloud will never take it.
    Refused(String),
    /// The cloud denies the read of the object.
    Denied(String),
    /// Nothing is known; later attempts may succeed.
    Later(String),
}

/// Denied reads in a row, by object with an entry: their number, and the time of the last one.
#[derive(Debug, Default)]
struct Denials(BTreeMap<OwnKey, (u32, Instant)>);

// === impl Denials ===

impl Denials {
    /// Decides at `now` about a denied read; returns any other outcome as it is.
    fn judge(
        &mut self,
        key: &OwnKey,
        now: Instant,
        is_deleted: impl FnOnce() -> bool,
        outcome: StatusOutcome,
    ) -> StatusOutcome {
        let before = self.0.remove(key);
        let StatusOutcome::Denied(why) = outcome else {
            return outcome;
        };
        if is_deleted() {
            return StatusOutcome::Gone;
        }
        let denials = match before {
            // Requests for the object cause attempts of their own.
            Some((count, last)) if now < last + RETRY => (count, last),
            before => (before.map_or(1, |(count, _)| count + 1), now),
        };
        if denials.0 >= DENIALS_MAX {
            return StatusOutcome::Refused(why);
        }
        self.0.insert(key.clone(), denials);
        StatusOutcome::Denied(why)
    }

    /// True if the read of this object was denied less than [`RETRY`] ago.
    fn is_recent(&self, key: &OwnKey, now: Instant) -> bool {
        self.0.get(key).is_some_and(|(_, last)| now < *last + RETRY)
    }
}

// === impl Sender ===

impl Sender {
    /// Sends entries whenever the cloud is there, and those that `commands` name, until `token` is cancelled. Deletes
    /// them once `is_foreign` is cancelled: the cloud is another cluster.
    pub async fn run(
        self,
        mut commands: mpsc::Receiver<Command>,
        mut reach: watch::Receiver<CloudReach>,
        token: CancellationToken,
        is_foreign: CancellationToken,
    ) {
        let (mut last, mut not_before): (Option<OwnKey>, _) = (None, Instant::now());
        let (mut resave_at, denials) = (Instant::now(), Mutex::new(Denials::default()));
        let (reaching, is_stopped) = (reach.clone(), &token);
        let send = |key| self.send(key, &denials, reaching.clone(), is_stopped).boxed();
        let mut sends = UnderWay::new(send);
        let mut saves = JoinSet::new();
        loop {
            let count = sends.count();
            let due = async {
                self.pending.more_than(count).await;
                let is_up = reach.wait_for(|reach| reach.is_up()).await.is_ok();
                tokio::time::sleep_until(not_before).await;
                is_up
            };
            let unsaved = async {
                self.pending.any_unsaved().await;
                // A point in time: the other branches end this future more often than it is due.
                tokio::time::sleep_until(resave_at).await;
            };
            tokio::select! {
                biased;
                () = token.cancelled() => {
                    // Their requests are cut, and what is known is stored.
                    while sends.next().await.is_some() {}
                    while saves.join_next().await.is_some() {}
                    return;
                }
                () = is_foreign.cancelled() => break,
                Some(has_result) = sends.next() => if !has_result {
                    not_before = Instant::now() + RETRY;
                },
                command = commands.recv(), if count < 2 * SENDS_MAX => {
                    let Some(Command { key, done }) = command else { break };
                    if !done.is_closed() {
                        sends.command(key, done);
                    }
                }
                // A thread that panicked is logged; the next attempt follows.
                Some(_) = saves.join_next() => resave_at = Instant::now() + RESAVED_EVERY,
                () = unsaved, if saves.is_empty() => {
                    let pending = self.pending.clone();
                    saves.spawn_blocking(move || pending.save_unsaved());
                }
                is_up = due, if count < SENDS_MAX => {
                    if !is_up {
                        break;
                    }
                    not_before = Instant::now() + PACE;
                    let Some(key) = self.pending.next(last.as_ref(), |key| sends.has(key)) else { continue };
                    if !denials.lock().is_recent(&key, Instant::now()) {
                        sends.begin(key.clone());
                    }
                    last = Some(key);
                }
            }
        }
        drop(sends);
        if is_foreign.is_cancelled() {
            let pending = self.pending.clone();
            // The stop deletes what is left.
            let _ = tokio::task::spawn_blocking(move || pending.clear()).await;
        }
        token.cancelled().await;
    }

    /// Sends one entry. Returns false if the cloud gave no result before `token` was cancelled. A denial says nothing
    /// about other objects.
    async fn send(
        &self,
        key: OwnKey,
        denials: &Mutex<Denials>,
        reach: watch::Receiver<CloudReach>,
        token: &CancellationToken,
    ) -> bool {
        let key = &key;
        for _ in 0..ATTEMPTS_MAX {
            let Some((revision, state)) = self.pending.state(key) else {
                return true;
            };
            // Only the requests are cut: a result that is known is stored. Another server may be up.
            let down = self.cloud.server().availability.down();
            let attempt = down.run_until_cancelled(self.attempt(key, &state));
            let attempt = answer_within((SEND_AWAY_MAX, SEND_UP_MAX), reach.clone(), attempt);
            let Some(outcome) = token.run_until_cancelled(attempt).await else {
                return false;
            };
            let outcome = outcome
                .flatten()
                .unwrap_or_else(|| StatusOutcome::Later("the cloud does not answer".to_owned()));
            let read = KeptRead::of_object(super::KUBELET, &key.path());
            let mut known_at = None;
            let is_deleted = || (self.is_deleted)(key, &state.local);
            let outcome = denials.lock().judge(key, Instant::now(), is_deleted, outcome);
            let counted = match outcome {
                StatusOutcome::Conflict => continue,
                StatusOutcome::Denied(why) => {
                    tracing::debug!(object = %key, why, "Cloud denied the read of an object with a local status");
                    return true;
                }
                StatusOutcome::Later(why) => {
                    tracing::debug!(object = %key, why, "Failed to send local status");
                    return false;
                }
                StatusOutcome::Written(at, object) => {
                    known_at = Some(at);
                    object
                        .into_iter()
                        .for_each(|object| self.answers.replace(&read, object));
                    "written"
                }
                StatusOutcome::Gone => {
                    tracing::info!(object = %key, "Local status dropped: the cloud no longer has its object");
                    self.answers.forget(&[read]);
                    "gone"
                }
                StatusOutcome::Refused(why) => {
                    tracing::warn!(object = %key, why, "Cloud refused local status; it is dropped");
                    "refused"
                }
            };
            self.metrics.offline.writes_settled.with_label_values(&[counted]).inc();
            let (pending, key) = (self.pending.clone(), key.clone());
            let settled = tokio::task::spawn_blocking(move || pending.settle(&key, revision, &state, known_at));
            return settled.await.is_ok();
        }
        false
    }

    async fn attempt(&self, key: &OwnKey, state: &LocalState) -> StatusOutcome {
        let client = self.cloud.server().beats.clone();
        let read = client.request_json(Method::GET, &key.path(), None, SEND_UP_MAX).await;
        let object = match read {
            Err(error) => return StatusOutcome::Later(error.to_string()),
            Ok((StatusCode::OK, _, body)) => match serde_json::from_slice::<Value>(&body) {
                Ok(object) => object,
                Err(error) => return StatusOutcome::Later(error.to_string()),
            },
            Ok((StatusCode::FORBIDDEN, _, body)) => {
                return StatusOutcome::Denied(describe_answer(StatusCode::FORBIDDEN, &body));
            }
            Ok((status, _, body)) => return judge(status, &body),
        };
        let now = self.clock.unix().secs;
        let Some(patch) = patch(key, &self.node, state, &object, now) else {
            return StatusOutcome::Gone;
        };
        let Some(patch) = patch else {
            return StatusOutcome::Written(version(&object), None);
        };
        let mut request = Request::new(full(patch.to_string()));
        *request.method_mut() = Method::PATCH;
        match format!("{}/status", key.path()).parse() {
            Ok(uri) => *request.uri_mut() = uri,
            Err(error) => return StatusOutcome::Refused(error.to_string()),
        }
        let merge = HeaderValue::from_static("application/merge-patch+json");
        request.headers_mut().insert(CONTENT_TYPE, merge);
        request.headers_mut().insert(ACCEPT, APPLICATION_JSON);
        match client.request_bytes(request, SEND_UP_MAX, ANSWER_MAX).await {
            Err(error) => StatusOutcome::Later(error.to_string()),
            Ok((status, _, body)) if status.is_success() => {
                let written = serde_json::from_slice(&body).unwrap_or(object);
                StatusOutcome::Written(version(&written), Some(body))
            }
            Ok((status, _, body)) => judge(status, &body),
        }
    }
}

/// Returns the patch that brings the local status to the cloud's object at Unix time `now`, s; `Some(None)` if it has
/// it. `None` if that is another object.
fn patch(key: &OwnKey, node: &str, state: &LocalState, object: &Value, now: i64) -> Option<Option<Value>> {
    let is_same = meta::text(&state.local, "uid") == meta::text(object, "uid");
    if !is_same || key.check_owner(node, Some(object)).is_err() {
        return None;
    }
    let mut local = part(&state.local);
    if key.namespace.is_none() {
        local = without_old_reports(&state.base, &local, now);
    }
    let wanted = reconciled(&state.base, &local, &part(object), key.schema());
    let Some(mut patch) = difference(&part(object), &part(&with_part(object, &wanted))) else {
        return Some(None);
    };
    let metadata = &object["metadata"];
    let same = json!({"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]});
    for (name, value) in same.as_object().into_iter().flatten() {
        patch["metadata"][name] = value.clone();
    }
    Some(Some(patch))
}

/// Decides about an answer other than a success.
fn judge(status: StatusCode, body: &[u8]) -> StatusOutcome {
    let why = describe_answer(status, body);
    match status {
        StatusCode::NOT_FOUND => StatusOutcome::Gone,
        StatusCode::CONFLICT => StatusOutcome::Conflict,
        StatusCode::UNAUTHORIZED | StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => {
            StatusOutcome::Later(why)
        }
        status if status.is_client_error() => StatusOutcome::Refused(why),
        _ => StatusOutcome::Later(why),
    }
}
