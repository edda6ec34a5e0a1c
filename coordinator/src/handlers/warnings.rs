//! What an answer tells its client beside its content, in `Warning` headers.

use http::header::WARNING;
use http::{HeaderValue, Response};
use parking_lot::Mutex;
use yurt_runtime::http::Body;

/// Warnings of one answer in bytes, together; the rest is left out.
const WARNINGS_BYTES_MAX: usize = 4096;

/// The warnings of one answer, collected while it is made.
#[derive(Debug, Default)]
pub(crate) struct Warnings(Mutex<Held>);

#[derive(Debug, Default)]
struct Held {
    texts: Vec<String>,
    bytes: usize,
}

// === impl Warnings ===

impl Warnings {
    /// Those that every request about a kind gets.
    pub(crate) fn about(resource: &str) -> Self {
        let warnings = Self::default();
        if resource == "endpoints" {
            let deprecated = "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice";
            warnings.extend(Some(deprecated.to_owned()));
        }
        warnings
    }

    /// Adds what was not said yet, as long as it fits into an answer.
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

    /// Puts them into the headers.
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
