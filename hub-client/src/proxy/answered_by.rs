//! Origin of an answer, for the metric `requests_total`. It is an extension of the response, so each request counts
//! once.

use http::Response;

/// Origin of an answer. A response without it is the hub's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnsweredBy {
    /// A replica of pool data, or the cache.
    Replica,
    /// The cloud, also with a refusal.
    Cloud,
}

/// Label of refusals by the hub.
pub(super) const REFUSED: &str = "refused";
/// Label of what this node keeps or accepts without the cloud, and of the kubelet's lease.
const HUB: &str = "hub";

// === impl AnsweredBy ===

impl AnsweredBy {
    /// The same response, marked.
    pub(super) fn mark<B>(self, mut response: Response<B>) -> Response<B> {
        response.extensions_mut().insert(self);
        response
    }

    /// Label of a response.
    pub(super) fn label<B>(response: &Response<B>) -> &'static str {
        match response.extensions().get() {
            Some(Self::Replica) => "replica",
            Some(Self::Cloud) => "cloud",
            None => HUB,
        }
    }
}
