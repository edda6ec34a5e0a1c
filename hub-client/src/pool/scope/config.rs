//! Follows one key of one ConfigMap in the cloud: a list of that object, then a watch that resumes at its last
//! position.

use std::sync::Arc;
use std::time::Duration;

use http::header::ACCEPT;
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use serde_json::Value;
use tokio::sync::watch;
use yurt_apimachinery::Status;
use yurt_apimachinery::pool_scope::CONFIG_KEY;
use yurt_apimachinery::watch::{EventType, WatchDecoder};
use yurt_runtime::http::client::HttpClient;
use yurt_runtime::http::empty;

use crate::upstream::Cloud;

/// Path of the ConfigMap: the collection with a selector of one name. The right to that one object suffices for it.
const PATH: &str = "/api/v1/namespaces/kube-system/configmaps?fieldSelector=metadata.name%3Dyurt-hub-cfg";
/// Maximum wait for a list, and for the headers of a watch.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Minimum duration of a watch, s; the requested duration is random, up to twice this.
const WATCH_SECONDS: u64 = 1800;
/// First pause after a failure, and the maximum.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// State of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Read {
    /// Not read yet.
    NotYet,
    /// The cloud refused; the text is its message.
    Failed(String),
    /// Text of the list; empty if there is none.
    List(String),
}

/// Failed read of the list.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unread {
    /// The cloud refused; the text is its message.
    #[error("{0}")]
    Refused(String),
    /// No answer, or an unreadable one.
    #[error("{0}")]
    Unanswered(String),
}

/// Keeps `list` up to date; never returns.
pub(super) async fn follow(cloud: Arc<Cloud>, list: watch::Sender<Read>) {
    let (mut pause, mut position) = (PAUSES.0, None);
    loop {
        let client = cloud.server().streams.clone();
        let followed = follow_once(&client, &list, &mut position).await;
        match followed {
            Ok(()) => pause = PAUSES.0,
            Err(why) => {
                tracing::debug!(why, "Failed to follow ConfigMap yurt-hub-cfg");
                position = None;
                pause = (pause * 2).min(PAUSES.1);
            }
        }
        tokio::time::sleep(pause + pause.mul_f64((fastrand::u64(..) % 1000) as f64 / 1000.0)).await;
    }
}

/// Reads the list once. Also returns the position from which a watch resumes.
///
/// # Errors
/// [`Unread`]; a later read may succeed.
pub(super) async fn read(client: &HttpClient) -> Result<(String, Option<String>), Unread> {
    let answer = client.request_json(Method::GET, PATH, None, TIMEOUT).await;
    let (status, _, body) = answer.map_err(|error| Unread::Unanswered(error.to_string()))?;
    if status != StatusCode::OK {
        let said = Status::from_json(&body).map(|status| status.message().to_owned());
        return Err(Unread::Refused(said.unwrap_or_else(|| status.to_string())));
    }
    let body: Value = serde_json::from_slice(&body).map_err(|error| Unread::Unanswered(error.to_string()))?;
    let version = body["metadata"]["resourceVersion"].as_str().map(str::to_owned);
    Ok((list_of(&body["items"][0]), version))
}

/// Lists unless `position` is known, then watches until the watch ends.
async fn follow_once(
    client: &HttpClient,
    list: &watch::Sender<Read>,
    position: &mut Option<String>,
) -> Result<(), String> {
    if position.is_none() {
        match read(client).await {
            Ok((text, version)) => {
                tell(list, text);
                *position = version;
            }
            Err(unread) => {
                if let Unread::Refused(why) = &unread {
                    list.send_replace(Read::Failed(why.clone()));
                }
                return Err(unread.to_string());
            }
        }
    }
    let at = position.clone().unwrap_or_default();
    let seconds = WATCH_SECONDS + fastrand::u64(..) % WATCH_SECONDS;
    let path = format!("{PATH}&watch=1&allowWatchBookmarks=true&resourceVersion={at}&timeoutSeconds={seconds}");
    let mut request = Request::new(empty());
    *request.uri_mut() = path.parse().map_err(|_| format!("{path:?} is not a path"))?;
    request
        .headers_mut()
        .insert(ACCEPT, HeaderValue::from_static("application/json"));
    let sent = tokio::time::timeout(TIMEOUT, client.send(request)).await;
    let response = sent
        .map_err(|_| "no answer in time")?
        .map_err(|error| error.to_string())?;
    if response.status() != StatusCode::OK {
        return Err(response.status().to_string());
    }
    let (mut body, mut decoder) = (response.into_body(), WatchDecoder::new());
    // A cut counts as an end: the next watch starts at the same position.
    while let Some(Ok(frame)) = body.frame().await {
        let Ok(data) = frame.into_data() else { continue };
        decoder.push(&data);
        for event in decoder.by_ref() {
            let event = event.map_err(|error| error.to_string())?;
            let object: Value = serde_json::from_slice(&event.object).map_err(|error| error.to_string())?;
            match event.event_type {
                EventType::Error => return Err(object["message"].to_string()),
                EventType::Bookmark => {}
                EventType::Deleted => tell(list, list_of(&Value::Null)),
                EventType::Added | EventType::Modified => tell(list, list_of(&object)),
            }
            *position = object["metadata"]["resourceVersion"].as_str().map(str::to_owned);
        }
    }
    Ok(())
}

fn list_of(config_map: &Value) -> String {
    config_map["data"][CONFIG_KEY].as_str().unwrap_or_default().to_owned()
}

fn tell(list: &watch::Sender<Read>, text: String) {
    let read = Read::List(text);
    list.send_if_modified(|held| {
        let changed = *held != read;
        *held = read;
        changed
    });
}
