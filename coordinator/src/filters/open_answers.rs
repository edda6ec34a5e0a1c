//! The answers that a caller receives at a time.

use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING};
use http::{HeaderMap, Response};
use yurt_apimachinery::{RequestInfo, Status, Verb};
use yurt_runtime::http::server::Peer;
use yurt_runtime::http::{Body, accepts_gzip, holding};

use super::authentication;
use crate::app::App;
use crate::authn::{MASTERS, User};
use crate::open_answers::OpenAnswer;

/// The answer to one request.
pub(super) struct Open {
    answer: OpenAnswer,
    /// Set if it may be compressed.
    compressed: Option<OpenAnswer>,
}

/// Counts the answer of a request. `None` for administrators, who have no limit. If too many compressed answers of the
/// caller are open, `headers` no longer accept compression.
///
/// # Errors
/// 429 when the caller has too many open answers.
pub(super) fn enter(
    app: &App,
    user: &User,
    peer: &Peer,
    info: &RequestInfo,
    headers: &mut HeaderMap,
) -> Result<Option<Open>, Status> {
    if user.is_in(MASTERS) {
        return Ok(None);
    }
    let caller = authentication::identity(user, peer);
    let (open, is_watch) = (&app.filters.open_answers, info.verb == Verb::Watch);
    let answer = open.one_more(&caller, is_watch)?;
    let mut compressed = None;
    // A watch takes none of the places of compressed answers.
    if !is_watch && accepts_gzip(headers) {
        compressed = open.one_more_compressed(&caller);
        if compressed.is_none() {
            headers.remove(ACCEPT_ENCODING);
        }
    }
    Ok(Some(Open { answer, compressed }))
}

/// The same response, counted until the connection has sent its last bytes.
pub(super) fn counted(response: Response<Body>, open: Option<Open>) -> Response<Body> {
    let Some(Open { answer, compressed }) = open else {
        return response;
    };
    let compressed = compressed.filter(|_| response.headers().contains_key(CONTENT_ENCODING));
    response.map(|body| holding(body, (answer, compressed)))
}
