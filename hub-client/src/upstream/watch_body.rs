//! Body of a watch, bounded in time: also a server that is dead behind a load balancer loses the watch.

use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http_body_util::BodyExt as _;
use tokio::time::Instant;
use yurt_runtime::http::Body;
use yurt_runtime::http::client::HttpClient;

/// Maximum silence of a cloud that sends bookmarks; kube-apiserver sends one each minute.
pub(crate) const CLOUD_SILENCE: Duration = Duration::from_secs(150);
/// Time after its regular end at which the hub abandons a watch that its server does not end.
pub(crate) const OVERDUE: Duration = Duration::from_secs(30);

/// The body.
#[derive(Debug)]
pub(crate) struct WatchBody {
    body: Body,
    client: HttpClient,
    connection: u64,
    ends: Instant,
    has_bookmarks: bool,
}

/// The body broke, or its server was silent or did not end it in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BodyBroken;

// === impl WatchBody ===

impl WatchBody {
    /// The body of an answer to `client`; the request asked for a watch of the duration `lasts`.
    pub(crate) fn of(client: &HttpClient, response: Response<Body>, lasts: Duration) -> Self {
        Self {
            client: client.clone(),
            connection: HttpClient::connection_of(&response),
            body: response.into_body(),
            ends: Instant::now() + lasts + OVERDUE,
            has_bookmarks: false,
        }
    }

    /// Notes a bookmark: the server sends them, so its silence has a meaning from now on.
    pub(crate) fn has_bookmark(&mut self) {
        self.has_bookmarks = true;
    }

    /// Returns the next bytes; `None` at the clean end.
    ///
    /// # Errors
    /// [`BodyBroken`]; no bytes follow it.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, BodyBroken> {
        let until = match self.has_bookmarks {
            true => self.ends.min(Instant::now() + CLOUD_SILENCE),
            false => self.ends,
        };
        let data = async {
            loop {
                match self.body.frame().await.transpose().map_err(|_| BodyBroken)? {
                    Some(frame) => match frame.into_data() {
                        Ok(data) => return Ok(Some(data)),
                        Err(_trailers) => {}
                    },
                    None => return Ok(None),
                }
            }
        };
        tokio::time::timeout_at(until, data).await.unwrap_or_else(|_| {
            // A load balancer may answer pings for a dead server.
            self.client.leave(self.connection);
            Err(BodyBroken)
        })
    }
}
