//! `Warning` headers of an answer.

use http::header::WARNING;
use http::{HeaderValue, Response};
use parking_lot::Mutex;
use yurt_apimachinery::ResourceKind;
use yurt_runtime::http::Body;

/// Bytes that the warnings of one answer have without being cut, as at kube-apiserver. Once cut, they end with the one
/// that reaches this number.
const WARNINGS_BYTES_MAX: usize = 4096;
/// Most bytes of each warning if all together have more.
const CUT_BYTES_MAX: usize = 256;

/// The warnings of one answer, collected while it is made.
#[derive(Debug, Default)]
pub(crate) struct Warnings(Mutex<CollectedWarnings>);

#[derive(Debug, Default)]
struct CollectedWarnings {
    texts: Vec<String>,
    bytes: usize,
    /// Bytes of the same texts when cut.
    cut_bytes: usize,
}

// === impl Warnings ===

impl Warnings {
    /// The warnings that every request about a kind gets.
    pub(crate) fn about(kind: &ResourceKind) -> Self {
        let warnings = Self::default();
        warnings.extend(kind.deprecation().map(str::to_owned));
        warnings
    }

    /// Adds new texts, as long as they fit into an answer. Texts with control characters cannot be sent.
    pub(crate) fn extend(&self, texts: impl IntoIterator<Item = String>) {
        let mut held = self.0.lock();
        for text in texts {
            if held.cut_bytes >= WARNINGS_BYTES_MAX {
                return;
            }
            if !text.is_empty() && !text.contains(char::is_control) && !held.texts.contains(&text) {
                held.bytes += text.len();
                held.cut_bytes += cut(&text).len();
                held.texts.push(text);
            }
        }
    }

    /// Adds the warnings to the headers.
    pub(crate) fn add_to(&self, response: &mut Response<Body>) {
        let held = self.0.lock();
        let is_cut = held.bytes > WARNINGS_BYTES_MAX;
        for text in &held.texts {
            let text = if is_cut { cut(text) } else { text };
            let quoted = text.replace('\\', "\\\\").replace('"', "\\\"");
            if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{quoted}\"")) {
                response.headers_mut().append(WARNING, value);
            }
        }
    }
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(CUT_BYTES_MAX)]
}

#[cfg(test)]
mod tests {
    use yurt_runtime::http as web;

    use super::*;

    fn sent(texts: &[String]) -> Vec<String> {
        let warnings = Warnings::default();
        warnings.extend(texts.iter().cloned());
        let mut response = Response::new(web::empty());
        warnings.add_to(&mut response);
        let values = response.headers().get_all(WARNING).iter();
        values
            .map(|value| String::from_utf8(value.as_bytes().to_vec()).unwrap())
            .collect()
    }

    #[test]
    fn warnings_are_quoted_and_sent_once() {
        let texts = ["a \"b\" \\", "ä€", "ä€", "", "two\nlines"].map(str::to_owned);
        assert_eq!(sent(&texts), [r#"299 - "a \"b\" \\""#, r#"299 - "ä€""#]);
    }

    #[test]
    fn warnings_that_are_too_long_together_are_all_cut() {
        let long = |n: usize| format!("{n:04}{}", "x".repeat(1020));
        let four: Vec<String> = (0..4).map(long).collect();
        let whole = "299 - \"\"".len() + 1024;
        assert!(sent(&four).iter().all(|value| value.len() == whole));
        let all = sent(&(0..100).map(long).collect::<Vec<_>>());
        assert_eq!(all.len(), WARNINGS_BYTES_MAX / CUT_BYTES_MAX);
        assert!(all.iter().all(|value| value.len() == whole - 1024 + CUT_BYTES_MAX));
        assert_eq!(sent(&["ä".repeat(3000)])[0].chars().count(), "299 - \"\"".len() + 128);
    }
}
