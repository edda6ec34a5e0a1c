//! `Warning` headers of an answer.

use http::header::WARNING;
use http::{HeaderValue, Response};
use parking_lot::Mutex;
use yurt_runtime::http::Body;

/// Maximum bytes of all warnings of one answer; the rest is dropped.
const WARNINGS_BYTES_MAX: usize = 4096;

/// The warnings of one answer, collected while it is made.
#[derive(Debug, Default)]
pub(crate) struct Warnings(Mutex<CollectedWarnings>);

#[derive(Debug, Default)]
struct CollectedWarnings {
    texts: Vec<String>,
    bytes: usize,
}

// === impl Warnings ===

impl Warnings {
    /// The warnings that every request about a kind gets.
    pub(crate) fn about(resource: &str) -> Self {
        let warnings = Self::default();
        if resource == "endpoints" {
            let deprecated = "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice";
            warnings.extend(Some(deprecated.to_owned()));
        }
        warnings
    }

    /// Adds new texts, as long as they fit into an answer.
    pub(crate) fn extend(&self, texts: impl IntoIterator<Item = String>) {
        let mut held = self.0.lock();
        for text in texts {
            if held.bytes > WARNINGS_BYTES_MAX {
                return;
            }
            if !held.texts.contains(&text) {
                held.bytes += text.len();
                held.texts.push(text);
            }
        }
    }

    /// Adds the warnings to the headers.
    pub(crate) fn add_to(&self, response: &mut Response<Body>) {
        let mut size = 0;
        for text in &self.0.lock().texts {
            size += text.len();
            if size > WARNINGS_BYTES_MAX {
                return;
            }
            let quoted = text.replace('\\', "\\\\").replace('"', "\\\"");
            if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{quoted}\"")) {
                response.headers_mut().append(WARNING, value);
            }
        }
    }
}
