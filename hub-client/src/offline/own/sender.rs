//! Brings local statuses to the cloud when it is back: one object at a time, the Node first, paced.
//!
//! Every attempt reads the cloud's object, computes what it should have, and patches the difference with its uid and
//! resourceVersion. So a status is written exactly once, also after a crash in between: the second attempt finds no
//! difference.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, StatusCode};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::{ResourceVersion, meta};
use yurt_runtime::Clock;
use yurt_runtime::http::{APPLICATION_JSON, full};

use super::merge::{difference, part, reconciled, with_part, without_old_reports};
use super::pending::{LocalState, Pending};
use super::write::OwnKey;
use crate::health::CloudReach;
use crate::metrics::Metrics;
use crate::offline::answers::Answers;
use crate::offline::kept_read::KeptRead;
use crate::upstream::{Cloud, describe_answer};

/// Pause between two objects.
const PACE: Duration = Duration::from_millis(50);
/// Pause after an attempt without a result.
const RETRY: Duration = Duration::from_secs(5);
/// Time between attempts to store entries that the disk did not take, and to delete those that it kept.
const RESAVED_EVERY: Duration = Duration::from_secs(10);
/// Maximum time of a request.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum bytes of an answer.
const ANSWER_MAX: usize = 3 << 20;
/// Maximum number of attempts in a row after conflicts.
const ATTEMPTS_MAX: u32 = 5;

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
    /// Metrics of the hub.
    pub metrics: Arc<Metrics>,
    /// Clock of the kubelet's reports.
    pub clock: Clock,
    /// Attempts that requests wait for.
    pub commands: mpsc::Receiver<Command>,
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
    /// Nothing is known; later attempts may succeed.
    Later(String),
}

// === impl Sender ===

impl Sender {
    /// Sends entries whenever the cloud is there, until `token` is cancelled. Deletes them once `is_foreign` is
    /// cancelled: the cloud is another cluster.
    pub async fn run(
        mut self,
        mut reach: watch::Receiver<CloudReach>,
        token: CancellationToken,
        is_foreign: CancellationToken,
    ) {
        let (mut last, mut not_before): (Option<OwnKey>, _) = (None, Instant::now());
        let mut resave_at = Instant::now();
        loop {
            let due = async {
                self.pending.any().await;
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
                () = token.cancelled() => return,
                () = is_foreign.cancelled() => break,
                command = self.commands.recv() => {
                    let Some(Command { key, done }) = command else { break };
                    self.send(&key, &token).await;
                    // The request may be gone.
                    let _ = done.send(());
                }
                () = unsaved => {
                    let pending = self.pending.clone();
                    // A thread that panicked is logged; the next attempt follows.
                    let _ = tokio::task::spawn_blocking(move || pending.save_unsaved()).await;
                    resave_at = Instant::now() + RESAVED_EVERY;
                }
                is_up = due => {
                    if !is_up {
                        break;
                    }
                    let Some(key) = self.pending.next(last.as_ref()) else { continue };
                    let pause = if self.send(&key, &token).await { PACE } else { RETRY };
                    (last, not_before) = (Some(key), Instant::now() + pause);
                }
            }
        }
        if is_foreign.is_cancelled() {
            let pending = self.pending.clone();
            // The stop deletes what is left.
            let _ = tokio::task::spawn_blocking(move || pending.clear()).await;
        }
        token.cancelled().await;
    }

    /// Sends one entry. Returns false if the cloud gave no result before `token` was cancelled.
    async fn send(&self, key: &OwnKey, token: &CancellationToken) -> bool {
        for _ in 0..ATTEMPTS_MAX {
            let Some((revision, state)) = self.pending.state(key) else {
                return true;
            };
            // Only the requests are cut: a result that is known is stored.
            let Some(outcome) = token.run_until_cancelled(self.attempt(key, &state)).await else {
                return false;
            };
            let read = KeptRead::of_object(super::KUBELET, &key.path());
            let mut known_at = None;
            let counted = match outcome {
                StatusOutcome::Conflict => continue,
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
        let read = client.request_json(Method::GET, &key.path(), None, TIMEOUT).await;
        let object = match read {
            Err(error) => return StatusOutcome::Later(error.to_string()),
            Ok((StatusCode::OK, _, body)) => match serde_json::from_slice::<Value>(&body) {
                Ok(object) => object,
                Err(error) => return StatusOutcome::Later(error.to_string()),
            },
            Ok((status, _, body)) => return judge(status, &body),
        };
        let now = self.clock.unix().secs;
        let Some(patch) = patch(key, &self.node, state, &object, now) else {
            return StatusOutcome::Gone;
        };
        let Some(patch) = patch else {
            return StatusOutcome::Written(version_of(&object), None);
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
        match client.request_bytes(request, TIMEOUT, ANSWER_MAX).await {
            Err(error) => StatusOutcome::Later(error.to_string()),
            Ok((status, _, body)) if status.is_success() => {
                let written = serde_json::from_slice(&body).unwrap_or(object);
                StatusOutcome::Written(version_of(&written), Some(body))
            }
            Ok((status, _, body)) => judge(status, &body),
        }
    }
}

/// RV of an object; 0 if it has none.
fn version_of(object: &Value) -> ResourceVersion {
    ResourceVersion(meta::text(object, "resourceVersion").parse().unwrap_or(0))
}

/// Returns the patch that brings the local status to the cloud's object at Unix time `now`, s; `Some(None)` if it has it.
/// `None` if that is another object.
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

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use yurt_test_support::TestDir;

    use super::*;
    use crate::failures::Failures;
    use crate::offline::own::pending;
    use crate::offline::own::write::Write;

    fn pod(uid: &str, version: &str, status: Value) -> Value {
        json!({"metadata": {"name": "web", "uid": uid, "resourceVersion": version}, "spec": {"nodeName": "n1"}, "status": status})
    }

    fn patched(object: &Value) -> Option<Option<Value>> {
        let state = LocalState {
            base: part(&pod("u1", "7", json!({"phase": "Pending"}))),
            local: pod("u1", "7", json!({"phase": "Running"})),
        };
        patch(&OwnKey::parse("shop/web").unwrap(), "n1", &state, object, 0)
    }

    #[test]
    fn patch_names_the_object_that_it_was_computed_for() {
        let expected = json!({"metadata": {"uid": "u1", "resourceVersion": "9"}, "status": {"phase": "Running"}});
        assert_eq!(
            patched(&pod("u1", "9", json!({"phase": "Pending", "message": "m"}))),
            Some(Some(expected))
        );
        assert_eq!(
            patched(&pod("u1", "9", json!({"phase": "Running"}))),
            Some(None),
            "sent before a crash"
        );
    }

    #[test]
    fn another_object_receives_nothing() {
        assert_eq!(patched(&pod("u2", "9", json!({}))), None);
        let mut moved = pod("u1", "9", json!({}));
        moved["spec"]["nodeName"] = "n2".into();
        assert_eq!(patched(&moved), None);
    }

    #[tokio::test(start_paused = true)]
    async fn disk_that_works_again_gets_the_entries_while_every_attempt_at_the_cloud_fails() {
        let folder = TestDir::new();
        let no_folder = folder.path().join(pending::FOLDER);
        std::fs::write(&no_folder, "a file where the folder would be").unwrap();
        let clock = Clock::fake().0;
        let failures = Failures::new(clock.clone());
        let pending = Arc::new(Pending::open(folder.path(), failures.clone()));
        let write = Write {
            method: &Method::PATCH,
            headers: &HeaderMap::from_iter([(CONTENT_TYPE, "application/merge-patch+json".parse().unwrap())]),
            body: &Bytes::from_static(b"{\"status\": {\"phase\": \"Running\"}}"),
        };
        let held = pod("u1", "7", json!({"phase": "Pending"}));
        let key = OwnKey::parse("shop/web").unwrap();
        pending.accept(&key, "n1", Some(held), write).unwrap();
        assert!(failures.why(pending::DISK).is_some());
        std::fs::remove_file(&no_folder).unwrap();
        let (_commands, commands) = mpsc::channel(1);
        let sender = Sender {
            node: "n1".to_owned(),
            pending,
            cloud: Arc::new(Cloud::of_servers(&["http://127.0.0.1:1"])),
            answers: Answers::open(folder.path(), clock.clone(), failures.clone()).0,
            metrics: Arc::new(Metrics::new().unwrap()),
            clock,
            commands,
        };
        let reach = watch::Sender::new(CloudReach { failed_probes: Some(0) });
        let running = sender.run(reach.subscribe(), CancellationToken::new(), CancellationToken::new());
        let ended = tokio::time::timeout(3 * RESAVED_EVERY, running).await;
        assert!(ended.is_err(), "it runs until the stop");
        assert_eq!(failures.why(pending::DISK), None);
    }

    #[test]
    fn only_final_refusals_drop_a_status() {
        let is_kept = |code: u16| {
            let outcome = judge(StatusCode::from_u16(code).unwrap(), b"");
            matches!(outcome, StatusOutcome::Later(_) | StatusOutcome::Conflict)
        };
        for code in [401, 408, 409, 429, 500, 502, 503, 504] {
            assert!(is_kept(code), "{code}");
        }
        for code in [400, 403, 404, 413, 422] {
            assert!(!is_kept(code), "{code}");
        }
    }
}
