//! Kinds that are not built in, as the cloud's discovery describes them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCEPT, AUTHORIZATION};
use http::{Request, StatusCode};
use tokio::sync::Mutex;
use yurt_apimachinery::{GroupVersionResource, ResourceKind};
use yurt_pool_protocol::pool_scope::SharedResource;
use yurt_runtime::http::{APPLICATION_JSON, empty};
use yurt_storage::kinds::Kinds;

use super::entry::{Entry, Reader};
use super::key::Key;
use crate::pool::scope::discover::{discovered, group_path};
use crate::upstream::{Cloud, describe_answer};

/// Maximum time of a discovery request.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum bytes of a discovery document.
const DOCUMENT_MAX: usize = 4 << 20;

/// Kinds of the cached selections.
pub(super) struct Described {
    cloud: Arc<Cloud>,
    kinds: Kinds,
    /// Descriptions of the kinds of cached selections. Held during a request, so that each is requested once.
    known: Mutex<HashMap<GroupVersionResource, SharedResource>>,
}

// === impl Described ===

impl Described {
    pub(super) fn new(cloud: Arc<Cloud>) -> Self {
        Self {
            cloud,
            kinds: Kinds::default(),
            known: Mutex::default(),
        }
    }

    /// The kind of `key`; `about` describes one that is not built in.
    ///
    /// # Errors
    /// Reason why there is none.
    pub(super) fn kind(&self, key: &Key, about: Option<&SharedResource>) -> Result<&'static ResourceKind, String> {
        match (key.built_in(), about) {
            (Some(kind), _) => Ok(kind),
            (None, Some(about)) => {
                let kind = self.kinds.keep(&about.custom_kind());
                kind.map_err(|error| error.to_string())
            }
            (None, None) => Err("its kind is unknown".to_owned()),
        }
    }

    /// Describes a kind that is not built in, with the rights of `reader`.
    ///
    /// # Errors
    /// Reason why it cannot be cached.
    pub(super) async fn of(&self, key: &Key, reader: &Reader) -> Result<Option<SharedResource>, String> {
        if key.built_in().is_some() {
            return Ok(None);
        }
        let mut known = self.known.lock().await;
        if let Some(about) = known.get(key.gvr()) {
            return Ok(Some(about.clone()));
        }
        let found = self.request(key.gvr(), reader).await?;
        known.insert(key.gvr().clone(), found.clone());
        Ok(Some(found))
    }

    /// True if the cloud now describes the kind of a selection in another way: it was deleted and made again.
    ///
    /// # Errors
    /// Reason why the cloud does not describe it.
    pub(super) async fn has_changed(&self, entry: &Entry, reader: &Reader) -> Result<bool, String> {
        let gvr = entry.key().gvr();
        let found = self.request(gvr, reader).await?;
        self.know(gvr, found).await;
        Ok(self.is_of_another(entry).await)
    }

    /// True if a selection has another kind than the last description says.
    pub(super) async fn is_of_another(&self, entry: &Entry) -> bool {
        let about = self.known.lock().await.get(entry.key().gvr()).cloned();
        let kind = about.and_then(|about| self.kind(entry.key(), Some(&about)).ok());
        kind.is_some_and(|kind| kind != entry.replica().collection().kind())
    }

    /// Records the description of a kind.
    pub(super) async fn know(&self, gvr: &GroupVersionResource, about: SharedResource) {
        self.known.lock().await.insert(gvr.clone(), about);
    }

    /// Makes the next selection of this kind request its description.
    pub(super) async fn forget(&self, gvr: &GroupVersionResource) {
        self.known.lock().await.remove(gvr);
    }

    async fn request(&self, gvr: &GroupVersionResource, reader: &Reader) -> Result<SharedResource, String> {
        let path = group_path(gvr);
        let mut request = Request::new(empty());
        *request.uri_mut() = path.parse().map_err(|_| format!("{path:?} is not a path"))?;
        request.headers_mut().insert(ACCEPT, APPLICATION_JSON);
        let server = self.cloud.server();
        let client = match reader {
            Reader::Node => &server.streams,
            Reader::Token(token) => {
                request.headers_mut().insert(AUTHORIZATION, token.clone());
                &server.token.single
            }
        };
        let answer = client.request_bytes(request, DISCOVERY_TIMEOUT, DOCUMENT_MAX).await;
        let (status, _, body) = answer.map_err(|error| error.to_string())?;
        if status != StatusCode::OK {
            return Err(format!("GET {path}: {}", describe_answer(status, &body)));
        }
        let document = serde_json::from_slice(&body).map_err(|error| format!("GET {path}: {error}"))?;
        discovered(&document, gvr)
    }
}
