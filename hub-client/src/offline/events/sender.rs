//! Sends kept events to the cloud when it is back, paced, and keeps them on the disk in between: one bounded file,
//! written at most every `SAVED_EVERY`. A power cut costs the events of that time.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, StatusCode};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use yurt_runtime::http::{APPLICATION_JSON, full};

use super::Events;
use super::queue::{BYTES_MAX, EventKey, Queue, QueuedEvent, counted, is_counted_further};
use crate::health::{CloudReach, answer_within};
use crate::offline::record::Record;
use crate::offline::shelf::{Limits, Share, Shelf};
use crate::offline::{SEND_AWAY_MAX, SEND_UP_MAX};
use crate::replicas::history_check::HistoryState;
use crate::upstream::Cloud;

/// Name of the folder below the cache folder.
pub const FOLDER: &str = "events";
/// Key of the one record.
const KEY: &str = "events";
/// Limits of the folder: one file.
const LIMITS: Limits = Limits {
    file: 4 * BYTES_MAX as u64,
    share_of: |_| Share {
        name: "events",
        records: 1,
        bytes: 4 * BYTES_MAX as u64,
    },
};
/// Pause between two events.
const PACE: Duration = Duration::from_millis(100);
/// Pause after an attempt without a result.
const RETRY: Duration = Duration::from_secs(10);
/// Maximum bytes of an answer.
const ANSWER_MAX: usize = 1 << 20;
/// Minimum time between two writes of the file.
const SAVED_EVERY: Duration = Duration::from_secs(60);

/// The sender.
pub struct Sender {
    events: Events,
    cloud: Arc<Cloud>,
    /// A proof begins with the check that the cloud is the cluster of the events.
    history: HistoryState,
    shelf: Arc<Shelf>,
    /// Revision of the queue in the file.
    saved: u64,
}

/// Result of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EventOutcome {
    Written,
    /// The cloud will never take it.
    Refused,
    /// Later attempts may succeed.
    Later,
}

/// Opens the events of an earlier run.
#[must_use]
pub fn open(cache: &Path, cloud: Arc<Cloud>, history: HistoryState, clock: yurt_runtime::Clock) -> (Events, Sender) {
    let shelf = Arc::new(Shelf::open(cache.join(FOLDER), LIMITS));
    let kept = shelf
        .get(KEY)
        .map(|record| Queue::decode(&record.body))
        .unwrap_or_default();
    let saved = kept.revision();
    let events = Events::new(kept, clock);
    let sender = Sender {
        events: events.clone(),
        cloud,
        history,
        shelf,
        saved,
    };
    (events, sender)
}

// === impl Sender ===

impl Sender {
    /// Sends and saves events until `token` is cancelled. Deletes them once `is_foreign` is cancelled: the cloud is
    /// another cluster.
    pub async fn run(
        mut self,
        mut reach: watch::Receiver<CloudReach>,
        token: CancellationToken,
        is_foreign: CancellationToken,
    ) {
        let (mut last, mut not_before, mut save_at) = (None, Instant::now(), None);
        loop {
            if save_at.is_none() && self.is_dirty() {
                save_at = Some(Instant::now() + SAVED_EVERY);
            }
            let (events, history) = (self.events.clone(), self.history.clone());
            let saving = save_at.unwrap_or_else(|| Instant::now() + SAVED_EVERY);
            let due = async {
                if events.queue.lock().is_empty() || reach.wait_for(|reach| reach.is_up()).await.is_err() {
                    std::future::pending::<()>().await;
                }
                tokio::time::sleep_until(not_before).await;
                history.until_proven().await;
            };
            tokio::select! {
                biased;
                () = token.cancelled() => break,
                () = is_foreign.cancelled() => {
                    self.events.queue.lock().clear();
                    break;
                }
                () = tokio::time::sleep_until(saving), if save_at.is_some() => {
                    self.save().await;
                    save_at = None;
                }
                () = due => {
                    let next = self.events.queue.lock().next(last);
                    let Some((place, key, kept)) = next else { continue };
                    last = Some(place);
                    // An event whose request is cut stays in the queue, as one without an answer.
                    let limits = (SEND_AWAY_MAX, SEND_UP_MAX);
                    let sending = answer_within(limits, reach.clone(), self.send(&key, &kept));
                    let sent = token.run_until_cancelled(sending).await.flatten();
                    let pause = if sent == Some(true) { PACE } else { RETRY };
                    not_before = Instant::now() + pause;
                }
                () = events.changed.notified() => {}
            }
        }
        self.save().await;
        token.cancelled().await;
    }

    fn is_dirty(&self) -> bool {
        self.events.queue.lock().revision() != self.saved
    }

    async fn save(&mut self) {
        let (record, revision) = {
            let queue = self.events.queue.lock();
            let body = queue.encode().into();
            let is_empty = queue.totals().0 == 0;
            let record = Record {
                key: KEY.to_owned(),
                facts: Value::Null,
                body,
            };
            ((!is_empty).then_some(record), queue.revision())
        };
        let shelf = self.shelf.clone();
        let saved = tokio::task::spawn_blocking(move || match record {
            Some(record) => shelf.put(&record).map(drop),
            None => shelf.remove(KEY).map_err(Into::into),
        });
        match saved.await {
            Ok(Ok(())) => self.saved = revision,
            Ok(Err(error)) => tracing::warn!(%error, "Failed to store events; a restart loses them"),
            Err(error) => tracing::warn!(%error, "Failed to store events; a restart loses them"),
        }
    }

    /// Sends one event. Returns false if the cloud gave no result.
    async fn send(&self, key: &EventKey, kept: &QueuedEvent) -> bool {
        let created = self
            .request(Method::POST, key.collection_path(), APPLICATION_JSON, kept.body.clone())
            .await;
        let status = match created {
            // Created before the outage, or by an attempt without an answer.
            Ok((StatusCode::CONFLICT, _)) => self.count(key, &kept.body).await,
            created => created.map(|(status, _)| status),
        };
        let outcome = status.map_or(EventOutcome::Later, judge);
        if outcome != EventOutcome::Later {
            let is_lost = outcome == EventOutcome::Refused;
            self.events.queue.lock().settle(key, kept.revision, is_lost);
        }
        outcome != EventOutcome::Later
    }

    /// Brings the cloud's event of the same name up to date, unless the kubelet has counted on there.
    async fn count(&self, key: &EventKey, kept: &Bytes) -> Result<StatusCode, String> {
        let event: Value = serde_json::from_slice(kept).unwrap_or_default();
        // A node may not read events. A patch without a change returns the event and writes nothing.
        let (status, held) = self.patch(key, &json!({})).await?;
        let held: Value = serde_json::from_slice(&held).unwrap_or_default();
        if !status.is_success() || is_counted_further(&held, &event) {
            return Ok(status);
        }
        Ok(self.patch(key, &counted(&event)).await?.0)
    }

    async fn patch(&self, key: &EventKey, patch: &Value) -> Result<(StatusCode, Bytes), String> {
        let merge = HeaderValue::from_static("application/merge-patch+json");
        self.request(Method::PATCH, key.path(), merge, patch.to_string().into())
            .await
    }

    async fn request(
        &self,
        method: Method,
        path: String,
        content_type: HeaderValue,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), String> {
        let mut request = Request::new(full(body));
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().map_err(|error| format!("{path}: {error}"))?;
        request.headers_mut().insert(CONTENT_TYPE, content_type);
        request.headers_mut().insert(ACCEPT, APPLICATION_JSON);
        let client = self.cloud.server().beats.clone();
        let answer = client.request_bytes(request, SEND_UP_MAX, ANSWER_MAX).await;
        answer
            .map(|(status, _, body)| (status, body))
            .map_err(|error| error.to_string())
    }
}

fn judge(status: StatusCode) -> EventOutcome {
    match status {
        status if status.is_success() => EventOutcome::Written,
        StatusCode::UNAUTHORIZED | StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => EventOutcome::Later,
        status if status.is_client_error() => EventOutcome::Refused,
        _ => EventOutcome::Later,
    }
}
