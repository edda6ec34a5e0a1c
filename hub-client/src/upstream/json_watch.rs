//! Watch whose objects are read as JSON: leases, and the NodePool.

use std::time::Duration;

use http::{Request, StatusCode};
use serde_json::Value;
use yurt_apimachinery::watch::{EventType, WatchDecoder};
use yurt_runtime::http::client::HttpClient;
use yurt_runtime::http::{empty, pass};

use super::retry_after;
use super::watch_body::WatchBody;

/// Maximum time until the headers of the answer arrive.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Watch of a few small objects, each decoded as JSON.
#[derive(Debug)]
pub(crate) struct JsonWatch {
    body: WatchBody,
    decoder: WatchDecoder,
}

/// Reason why a watch could not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotOpened {
    /// No answer came in 30 s, or the connection failed.
    Unanswered,
    /// The server answered with another status than 200, and with this Retry-After.
    Refused(Option<Duration>),
}

/// A watch that could not be opened, broke, was silent for too long, or ended with an ERROR event. Events before it may
/// be incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WatchBroken;

// === impl WatchBroken ===

impl From<NotOpened> for WatchBroken {
    fn from(_: NotOpened) -> Self {
        Self
    }
}

// === impl JsonWatch ===

impl JsonWatch {
    /// Opens the watch at `path` (with its query), which asks for the duration `lasts`.
    ///
    /// # Errors
    /// [`NotOpened`]; it tells a server that refuses from one that is away.
    pub(crate) async fn open(client: &HttpClient, path: &str, lasts: Duration) -> Result<Self, NotOpened> {
        let mut request = Request::new(empty());
        *request.uri_mut() = path.parse().map_err(|_| NotOpened::Unanswered)?;
        // A load balancer may accept the request for a dead server.
        let sent = tokio::time::timeout(ANSWER_MAX, client.send(request)).await;
        let response = sent
            .map_err(|_| NotOpened::Unanswered)?
            .map_err(|_| NotOpened::Unanswered)?;
        if response.status() != StatusCode::OK {
            return Err(NotOpened::Refused(retry_after(response.headers())));
        }
        Ok(Self {
            body: WatchBody::of(client, response.map(pass), lasts),
            decoder: WatchDecoder::new(),
        })
    }

    /// Returns the next event, without bookmarks; `None` at the clean end.
    ///
    /// # Errors
    /// [`WatchBroken`]; no event follows it.
    pub(crate) async fn next(&mut self) -> Result<Option<(EventType, Value)>, WatchBroken> {
        loop {
            match self.decoder.next().transpose().map_err(|_| WatchBroken)? {
                Some(event) if event.event_type == EventType::Error => return Err(WatchBroken),
                Some(event) if event.event_type == EventType::Bookmark => self.body.has_bookmark(),
                Some(event) => {
                    let object = serde_json::from_slice(&event.object).map_err(|_| WatchBroken)?;
                    return Ok(Some((event.event_type, object)));
                }
                None => match self.body.next().await.map_err(|_| WatchBroken)? {
                    Some(data) => self.decoder.push(&data),
                    None => return Ok(None),
                },
            }
        }
    }
}
