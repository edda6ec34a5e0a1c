//! Both ends of HTTP: the [`server`], the [`client`], and their common body type.
//!
//! Bodies are streams of [`Bytes`]. The helpers here make them from bytes, from a `Status`, or from a stream, and read
//! one into memory with a limit.

use std::convert::Infallible;
use std::error::Error;

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt as _, TryStreamExt as _};
use http::header::{CONTENT_TYPE, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, Response, StatusCode};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, BodyStream, Empty, Full, StreamBody};
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::Status;
use yurt_codec::negotiation::Negotiated;

mod breaking;
mod chunks;
pub mod client;
mod gzip;
mod gzip_frames;
mod holding;
mod inflate;
pub mod server;
mod tcp;
#[cfg(test)]
mod tests;

pub use breaking::broken_by;
pub use chunks::{chunks, joined};
pub use gzip::{GZIP_ABOVE, GZIPS_AT_ONCE, GzipPlace, accepts_gzip, gzip};
pub use gzip_frames::{gzip_bytes, gzip_frames, mark_gzip};
pub use holding::holding;
pub use inflate::{ACCEPT_GZIP, Decoded, Inflate, UnknownEncoding, decoded, inflate_for};

/// Any error of a body.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// Body of every request sent and every response given.
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

/// Media type of everything in JSON.
pub const APPLICATION_JSON: HeaderValue = HeaderValue::from_static("application/json");
/// Media type of health answers.
const TEXT_PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
/// `X-Content-Type-Options` of answers that kube-apiserver sends with it.
pub const NOSNIFF: HeaderValue = HeaderValue::from_static("nosniff");

/// A body of known bytes.
#[must_use]
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// An empty body.
#[must_use]
pub fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// A body that is sent piece by piece, each as soon as the stream yields it. An error ends the response abruptly, so
/// the client sees that it is incomplete.
pub fn stream<E: Into<BoxError> + 'static>(chunks: impl Stream<Item = Result<Bytes, E>> + Send + 'static) -> Body {
    StreamBody::new(chunks.map_ok(Frame::data).map_err(Into::into)).boxed_unsync()
}

/// A body that passes on another one, for example [`hyper::body::Incoming`].
pub fn pass<B>(body: B) -> Body
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    body.map_err(Into::into).boxed_unsync()
}

/// The same body, which ends at a frame boundary once `ends` is cancelled: for endless answers only.
#[must_use]
pub fn until(body: Body, ends: CancellationToken) -> Body {
    let frames = BodyStream::new(body).take_until(ends.cancelled_owned());
    StreamBody::new(frames).boxed_unsync()
}

/// A response of content type `application/json`.
#[must_use]
pub fn json(status: StatusCode, bytes: impl Into<Bytes>) -> Response<Body> {
    respond(status, APPLICATION_JSON, full(bytes))
}

/// A response of content type `text/plain`, whose type must not be guessed if it is an error: as Go's `http.Error`.
#[must_use]
pub fn text(status: StatusCode, text: impl Into<Bytes>) -> Response<Body> {
    let mut response = respond(status, TEXT_PLAIN, full(text));
    if status.is_client_error() || status.is_server_error() {
        response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, NOSNIFF);
    }
    response
}

/// A response of any content type.
#[must_use]
pub fn respond(status: StatusCode, content_type: HeaderValue, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

/// A `Status` in kube-apiserver's form: JSON, its code, and Retry-After if it has one. Denials and answers to an
/// overload also say that their type must not be guessed.
#[must_use]
pub fn status_response(status: &Status) -> Response<Body> {
    status_response_as(Negotiated::default(), status)
}

/// As [`status_response`], in the format that the client requested.
#[must_use]
pub fn status_response_as(how: Negotiated, status: &Status) -> Response<Body> {
    let code = StatusCode::from_u16(status.code()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let content_type = HeaderValue::from_static(how.format.content_type());
    let mut response = respond(code, content_type, full(how.status(status)));
    if let Some(seconds) = status.retry_after() {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    if status.is_denial() || code == StatusCode::TOO_MANY_REQUESTS {
        response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, NOSNIFF);
    }
    response
}

/// Reads a request body of at most `limit` bytes into memory.
///
/// # Errors
/// The `Status` to answer with: 413 above the limit, 400 when the client broke off.
pub async fn read_body<B>(body: B, limit: usize) -> Result<Bytes, Status>
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>>,
{
    collect(body, limit, &mut Unbounded).await.map_err(|error| match error {
        CollectError::TooLarge => Status::too_large_body(limit),
        CollectError::Broken(error) => unreadable(&error),
        CollectError::NoRoom(never) => match never {},
    })
}

/// Memory for a body that is being read.
pub trait Room {
    /// Reason why there is none.
    type Error;

    /// Reserves memory so that the body may have `bytes` bytes in all; called before they are kept.
    fn grow(&mut self, bytes: usize) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

/// As [`read_body`], with memory accounted by `room`.
///
/// # Errors
/// As [`read_body`], and the errors of `room`.
pub async fn read_body_into<B>(body: B, limit: usize, room: &mut impl Room<Error = Status>) -> Result<Bytes, Status>
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>>,
{
    collect(body, limit, room).await.map_err(|error| match error {
        CollectError::TooLarge => Status::too_large_body(limit),
        CollectError::Broken(error) => unreadable(&error),
        CollectError::NoRoom(status) => status,
    })
}

fn unreadable(error: &BoxError) -> Status {
    Status::bad_request(format!("cannot read the request body: {error}"))
}

/// Room for a body that only its limit bounds.
struct Unbounded;

impl Room for Unbounded {
    type Error = Infallible;

    async fn grow(&mut self, _bytes: usize) -> Result<(), Infallible> {
        Ok(())
    }
}

/// Reason why [`collect`] failed.
enum CollectError<E> {
    TooLarge,
    Broken(BoxError),
    NoRoom(E),
}

/// Reads a body of at most `limit` bytes; a body in one piece is not copied.
async fn collect<B, R: Room>(body: B, limit: usize, room: &mut R) -> Result<Bytes, CollectError<R::Error>>
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>>,
{
    let mut body = std::pin::pin!(body);
    if body.size_hint().lower() > limit as u64 {
        return Err(CollectError::TooLarge);
    }
    let declared = usize::try_from(body.size_hint().lower()).map_or(limit, |declared| declared.min(limit));
    let (mut first, mut whole) = (Bytes::new(), BytesMut::new());
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|error| CollectError::Broken(error.into()))?.into_data() else {
            continue;
        };
        let bytes = first.len() + whole.len() + data.len();
        if bytes > limit {
            return Err(CollectError::TooLarge);
        }
        room.grow(bytes).await.map_err(CollectError::NoRoom)?;
        if bytes == data.len() {
            first = data;
            continue;
        }
        if whole.is_empty() {
            // Of the declared length at once: growing would take twice the bytes.
            whole.reserve(declared.max(bytes));
            whole.extend_from_slice(&std::mem::take(&mut first));
        }
        whole.extend_from_slice(&data);
    }
    Ok(if whole.is_empty() { first } else { whole.freeze() })
}
