//! A part of a collection that a replica holds: its path, its selectors, and the token that may read it.

use http::HeaderValue;

/// Part of a collection at the cloud.
#[derive(Clone, Debug)]
pub struct Selected {
    /// Path of the collection, escaped.
    pub path: String,
    /// Parameters of the selectors, escaped; empty without selectors.
    pub query: String,
    /// `Authorization` header; `None` for the node's own identity.
    pub authorization: Option<HeaderValue>,
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
}
