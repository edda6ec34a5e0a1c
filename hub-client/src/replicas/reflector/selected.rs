//! A part of a collection that a replica holds: its path, its selectors, the token that may read it, and its
//! connections.

use http::{HeaderValue, Request, Response};
use yurt_runtime::http::client::ClientError;
use yurt_runtime::http::client::lane::Lane;
use yurt_runtime::http::{Body, empty};

use crate::upstream::attempts::Attempts;

/// Part of a collection at the cloud.
#[derive(Clone, Debug)]
pub struct Selected {
    /// Path of the collection, escaped.
    pub path: String,
    /// Parameters of the selectors, escaped; empty without selectors.
    pub query: String,
    /// `Authorization` header; `None` for the node's own identity.
    pub authorization: Option<HeaderValue>,
    /// Connections of this identity to the server.
    pub lane: Lane,
}

// === impl Selected ===

impl Selected {
    /// Path and query of a request with these further parameters.
    pub(super) fn request(&self, parameters: &str) -> String {
        match self.query.as_str() {
            "" => format!("{}?{parameters}", self.path),
            selectors => format!("{}?{parameters}&{selectors}", self.path),
        }
    }

    /// Sends a GET over a connection of the lane. If the server certainly did not process it, over another.
    pub(super) async fn send(&self, request: Request<()>) -> Result<Response<Body>, ClientError> {
        let mut attempts = Attempts::among(1);
        attempts.begin();
        loop {
            let sent = self.lane.slot().await?.send(request.clone().map(|()| empty())).await;
            let failed = match sent {
                Ok(response) => return Ok(response),
                Err(failed) => failed,
            };
            attempts.note(&failed);
            if !failed.is_unprocessed || attempts.begin().is_none() {
                return Err(failed.error);
            }
        }
    }
}
