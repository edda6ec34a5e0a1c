//! Configuration of the hub in the cloud: ConfigMap `yurt-hub-cfg`.
//!
//! `Follower` lists and watches this one object with the node's identity, for all parts of the hub. The last state is
//! kept on disk (`disk`), so that a start without the cloud uses it. Users read [`HubConfig`] from a
//! `tokio::sync::watch` channel: the scope of the pool (`pool/scope.rs`) and the filters.

pub(crate) mod disk;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::header::ACCEPT;
use http::{HeaderValue, Method, Request, StatusCode};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::watch::{EventType, WatchDecoder};
use yurt_runtime::http::client::HttpClient;
use yurt_runtime::http::{empty, pass};

use crate::failures::Failures;
use crate::health::CloudReach;
use crate::upstream::watch_body::WatchBody;
use crate::upstream::{Cloud, describe_answer};
use disk::ConfigFile;

/// Name of the ConfigMap.
pub const NAME: &str = "yurt-hub-cfg";
/// Failure key: the cloud refuses the ConfigMap, or it is too large.
pub const FAILURE: &str = "hub config";
/// Maximum bytes of the keys and values of the ConfigMap: the apiserver's own limit.
const DATA_BYTES_MAX: usize = 1 << 20;
/// Maximum bytes of a list: a character of the data takes up to six, and metadata is added.
const LIST_BYTES_MAX: usize = 8 << 20;
/// Maximum wait for a list, and for the headers of a watch.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Minimum duration of a watch, s; the requested duration is random, up to twice this.
const WATCH_SECONDS: u64 = 1800;
/// First pause after a watch or a failure, and the maximum.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// State of the ConfigMap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HubConfig {
    /// True if `data` is a state of the cloud: read in this run, or by an earlier one and kept on disk.
    pub synced: bool,
    /// True while the cloud confirms `data`: from a list until the end of the watch that follows it.
    pub current: bool,
    /// The cloud's last refusal in words; `None` after an answer.
    pub refused: Option<String>,
    /// Data of the ConfigMap; empty if there is no such object.
    pub data: BTreeMap<String, String>,
}

/// Keeps the state up to date.
pub(crate) struct Follower {
    /// The cloud.
    pub(crate) cloud: Arc<Cloud>,
    /// Reachability of the cloud: its return ends a pause.
    pub(crate) reach: watch::Receiver<CloudReach>,
    /// Namespace of the ConfigMap.
    pub(crate) namespace: String,
    /// Copy on disk.
    pub(crate) file: ConfigFile,
    /// The state.
    pub(crate) state: watch::Sender<Arc<HubConfig>>,
    /// Current failures of the hub.
    pub(crate) failures: Failures,
}

/// Failed read of an object that the hub follows.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FollowError {
    /// The cloud refused, or its answer is not usable until an operator changes something.
    #[error("{0}")]
    Refused(String),
    /// No answer, or a broken one.
    #[error("{0}")]
    Unanswered(String),
}

// === impl HubConfig ===

impl HubConfig {
    /// Returns the value of a key; empty if it is absent.
    #[must_use]
    pub fn value(&self, key: &str) -> &str {
        self.data.get(key).map_or("", String::as_str)
    }

    /// The `hubConfig` part of `/debug/state.json`.
    #[must_use]
    pub fn describe(&self) -> Value {
        let keys: Vec<&String> = self.data.keys().collect();
        json!({ "synced": self.synced, "current": self.current, "refused": self.refused, "keys": keys })
    }
}

// === impl Follower ===

impl Follower {
    /// Runs until `token` is cancelled.
    pub(crate) async fn run(mut self, token: CancellationToken) {
        let following = async {
            let mut pause = PAUSES.0;
            loop {
                let _ = self.reach.wait_for(|reach| !reach.is_failing()).await;
                let ended = self.follow_once().await;
                self.change(|state| state.current = false);
                match ended {
                    Ok(()) => pause = PAUSES.0,
                    Err(error) => {
                        tracing::debug!(%error, name = NAME, "Failed to follow ConfigMap");
                        if let FollowError::Refused(why) = error {
                            self.failures.refused(FAILURE, &why);
                            self.change(|state| state.refused = Some(why));
                        }
                        pause = (pause * 2).min(PAUSES.1);
                    }
                }
                // Jitter: the hubs of a pool must not read at the same moment.
                let pause = pause + pause.mul_f64((fastrand::u64(..) % 1000) as f64 / 1000.0);
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = self.cloud_is_back() => {}
                }
            }
        };
        token.run_until_cancelled(following).await;
        // A write that lands later would outlive what a stop deletes of another cluster.
        self.file.settled().await;
    }

    /// Lists, then watches until the watch ends.
    async fn follow_once(&mut self) -> Result<(), FollowError> {
        let server = self.cloud.server();
        let (client, down) = (server.streams.clone(), server.availability.down());
        let path = format!(
            "/api/v1/namespaces/{}/configmaps?fieldSelector=metadata.name%3D{NAME}",
            self.namespace
        );
        let (data, version) = list(&client, &path).await?;
        self.take(data).await;
        let seconds = WATCH_SECONDS + fastrand::u64(..) % WATCH_SECONDS;
        let path =
            format!("{path}&watch=1&allowWatchBookmarks=true&resourceVersion={version}&timeoutSeconds={seconds}");
        // A stream that stays open would delay the stop of its apiserver.
        down.run_until_cancelled(self.watch(&client, &path, Duration::from_secs(seconds)))
            .await
            .unwrap_or(Ok(()))
    }

    async fn watch(&mut self, client: &HttpClient, path: &str, lasts: Duration) -> Result<(), FollowError> {
        let request = get(path)?;
        let sent = tokio::time::timeout(TIMEOUT, client.send(request)).await;
        let response = sent.map_err(|_| unanswered("no answer in time"))?.map_err(unanswered)?;
        match response.status() {
            StatusCode::OK => {}
            status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
                return Err(FollowError::Refused(format!("watch: {status}")));
            }
            status => return Err(unanswered(status)),
        }
        let (mut body, mut decoder) = (WatchBody::of(client, response.map(pass), lasts), WatchDecoder::new());
        // A cut counts as an end: the list that follows reads the present state.
        while let Ok(Some(data)) = body.next().await {
            decoder.push(&data);
            for event in decoder.by_ref() {
                let event = event.map_err(unanswered)?;
                let object: Value = serde_json::from_slice(&event.object).map_err(unanswered)?;
                match event.event_type {
                    EventType::Error => return Err(unanswered(&object["message"])),
                    EventType::Bookmark => body.has_bookmark(),
                    EventType::Deleted => self.take(BTreeMap::new()).await,
                    EventType::Added | EventType::Modified => self.take(data_of(&object)?).await,
                }
            }
        }
        Ok(())
    }

    /// Publishes a state of the cloud. It is stored first: a restart must not go back behind what was in effect.
    async fn take(&self, data: BTreeMap<String, String>) {
        let is_known = {
            let state = self.state.borrow();
            state.synced && state.data == data
        };
        if !is_known || self.file.is_behind() {
            self.file.store(data.clone()).await;
        }
        if !is_known {
            tracing::info!(keys = ?data.keys().collect::<Vec<_>>(), name = NAME, "ConfigMap read");
        }
        self.failures.works(FAILURE);
        self.change(|state| {
            *state = HubConfig {
                synced: true,
                current: true,
                refused: None,
                data,
            };
        });
    }

    /// Changes the state; users are notified only of a difference.
    fn change(&self, change: impl FnOnce(&mut HubConfig)) {
        self.state.send_if_modified(|state| {
            let mut next = HubConfig::clone(state);
            change(&mut next);
            let is_changed = **state != next;
            if is_changed {
                *state = Arc::new(next);
            }
            is_changed
        });
    }

    /// Resolves when the cloud answers again after it did not.
    async fn cloud_is_back(&mut self) {
        let mut was_up = self.reach.borrow_and_update().is_up();
        while self.reach.changed().await.is_ok() {
            let is_up = self.reach.borrow_and_update().is_up();
            if is_up && !was_up {
                return;
            }
            was_up = is_up;
        }
        std::future::pending().await
    }
}

/// Reads the ConfigMap: its data, and the version from which a watch continues.
async fn list(client: &HttpClient, path: &str) -> Result<(BTreeMap<String, String>, String), FollowError> {
    let answer = client.request_bytes(get(path)?, TIMEOUT, LIST_BYTES_MAX).await;
    let (status, _, body) = answer.map_err(unanswered)?;
    match status {
        StatusCode::OK => {}
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            return Err(FollowError::Refused(describe_answer(status, &body)));
        }
        other => return Err(unanswered(describe_answer(other, &body))),
    }
    let list: Value = serde_json::from_slice(&body).map_err(unanswered)?;
    let version = list["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    Ok((data_of(&list["items"][0])?, version.to_owned()))
}

/// Returns the data of a ConfigMap.
pub(crate) fn data_of(config_map: &Value) -> Result<BTreeMap<String, String>, FollowError> {
    let entries = config_map["data"].as_object().into_iter().flatten();
    let texts = entries.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
    let data: BTreeMap<String, String> = texts.collect();
    let bytes: usize = data.iter().map(|(key, value)| key.len() + value.len()).sum();
    if bytes > DATA_BYTES_MAX {
        let why = format!("ConfigMap {NAME} has {bytes} bytes of data; make it smaller than {DATA_BYTES_MAX}");
        return Err(FollowError::Refused(why));
    }
    Ok(data)
}

fn get(path: &str) -> Result<Request<yurt_runtime::http::Body>, FollowError> {
    let mut request = Request::new(empty());
    *request.method_mut() = Method::GET;
    *request.uri_mut() = path.parse().map_err(unanswered)?;
    request
        .headers_mut()
        .insert(ACCEPT, HeaderValue::from_static("application/json"));
    Ok(request)
}

fn unanswered(error: impl std::fmt::Display) -> FollowError {
    FollowError::Unanswered(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_object_has_no_data_and_a_large_one_is_refused() {
        assert!(data_of(&Value::Null).unwrap().is_empty());
        let some = json!({"data": {"a": "b", "number": 1}, "binaryData": {"c": "ZA=="}});
        assert_eq!(
            data_of(&some).unwrap(),
            BTreeMap::from([("a".to_owned(), "b".to_owned())])
        );
        let fits = json!({"data": {"a": "x".repeat(DATA_BYTES_MAX - 1)}});
        assert!(data_of(&fits).is_ok());
        let large = json!({"data": {"a": "x".repeat(DATA_BYTES_MAX)}});
        let error = data_of(&large).unwrap_err();
        assert!(
            matches!(error, FollowError::Refused(_)) && error.to_string().contains("1048576"),
            "{error}"
        );
    }
}
