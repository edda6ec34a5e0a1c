//! Compression of large answers, piece by piece at the client's pace.
//!
//! The rules are kube-apiserver's: above a size, at a fast level, for clients that name exactly `gzip`. Compression is
//! optional in HTTP. So memory is bounded by answering uncompressed when many answers are being compressed.

use std::io::Write as _;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, VARY};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body::{Body as _, Frame};
use http_body_util::BodyExt as _;
use tokio::sync::{Semaphore, SemaphorePermit};
use yurt_codec::deflate::FAST;

use super::{Body, BoxError};

/// Maximum size in bytes of an answer that is not compressed.
pub const GZIP_ABOVE: u64 = 128 << 10;
/// Maximum number of answers compressed at the same time, about 300 KiB each; further ones are sent uncompressed.
pub const GZIPS_AT_ONCE: usize = 16;

/// Maximum bytes compressed in one step; a connection shares its thread with others.
const INPUT: usize = 128 << 10;
/// Minimum bytes of output worth sending.
const OUTPUT: usize = 16 << 10;

static PLACES: Semaphore = Semaphore::const_new(GZIPS_AT_ONCE);

/// A permit to compress an answer.
pub struct GzipPlace {
    _permit: SemaphorePermit<'static>,
}

impl GzipPlace {
    /// A permit for an answer of more than [`GZIP_ABOVE`] bytes, if its client accepts gzip and a permit is free.
    #[must_use]
    pub fn take(request: &HeaderMap) -> Option<Self> {
        if !accepts_gzip(request) {
            return None;
        }
        let permit = PLACES.try_acquire().ok()?;
        Some(Self { _permit: permit })
    }

    /// An answer whose `chunks` are a gzip stream; compressed while it is sent.
    pub fn respond(
        self,
        content_type: HeaderValue,
        mut chunks: impl Iterator<Item = Bytes> + Send + 'static,
    ) -> Response<Body> {
        let held = std::iter::from_fn(move || {
            let _place = &self;
            chunks.next()
        });
        let mut response = super::respond(StatusCode::OK, content_type, super::chunks(held));
        mark(response.headers_mut());
        response
    }
}

/// Compresses `response` if its client and its size permit, and it is not compressed yet.
#[must_use]
pub fn gzip(request: &HeaderMap, response: Response<Body>) -> Response<Body> {
    let is_compressed = response.headers().contains_key(CONTENT_ENCODING);
    if is_compressed || response.body().size_hint().lower() <= GZIP_ABOVE {
        return response;
    }
    let Some(place) = GzipPlace::take(request) else {
        return response;
    };
    let mut response = response.map(|body| {
        let gzip = Gzip {
            body,
            encoder: Some(GzEncoder::new(Vec::new(), Compression::new(FAST))),
            input: Bytes::new(),
            _place: place,
        };
        gzip.boxed_unsync()
    });
    response.headers_mut().remove(CONTENT_LENGTH);
    mark(response.headers_mut());
    response
}

/// Marks the body as compressed.
pub(super) fn mark(headers: &mut HeaderMap) {
    headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    headers.append(VARY, HeaderValue::from_static("Accept-Encoding"));
}

/// True if one of the tokens is exactly `gzip`: with a weight it is another token, as in kube-apiserver.
#[must_use]
pub fn accepts_gzip(request: &HeaderMap) -> bool {
    let accepted = request.get(ACCEPT_ENCODING).and_then(|value| value.to_str().ok());
    accepted.is_some_and(|tokens| tokens.split(',').any(|token| token.trim() == "gzip"))
}

struct Gzip {
    body: Body,
    /// `None` once the end was written.
    encoder: Option<GzEncoder<Vec<u8>>>,
    input: Bytes,
    _place: GzipPlace,
}

// === impl Gzip ===

impl http_body::Body for Gzip {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        let mut taken = 0;
        loop {
            let Some(encoder) = &mut this.encoder else {
                return Poll::Ready(None);
            };
            let (output, is_tired) = (encoder.get_mut(), taken >= INPUT);
            if output.len() >= OUTPUT || (is_tired && !output.is_empty()) {
                let output = std::mem::take(output);
                return Poll::Ready(Some(Ok(Frame::data(output.into()))));
            }
            if this.input.is_empty() {
                match ready!(Pin::new(&mut this.body).poll_frame(cx)) {
                    Some(Ok(frame)) => this.input = frame.into_data().unwrap_or_default(),
                    Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                    None => {
                        let end = this.encoder.take().map(GzEncoder::finish).transpose()?;
                        return Poll::Ready(end.map(|end| Ok(Frame::data(end.into()))));
                    }
                }
            }
            let some = this.input.len().min(INPUT);
            encoder.write_all(&this.input[..some])?;
            this.input.advance(some);
            taken += some;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::super::{APPLICATION_JSON, chunks, respond};
    use super::*;

    fn answer(size: usize) -> Response<Body> {
        let parts = (0..size).map(|i| Bytes::from(vec![b'a' + (i % 23) as u8]));
        respond(StatusCode::OK, APPLICATION_JSON, chunks(parts))
    }

    fn asked(encoding: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static(encoding))])
    }

    /// Conformance: 2.70
    #[tokio::test]
    async fn only_large_answers_for_who_names_gzip_exactly() {
        let large = GZIP_ABOVE as usize + 1;
        let cases = [
            ("gzip", large, true),
            ("deflate, gzip , br", large, true),
            ("gzip", large - 1, false),
            ("gzip;q=1", large, false),
            ("GZIP", large, false),
            ("identity", large, false),
        ];
        for (encoding, size, want) in cases {
            let response = gzip(&asked(encoding), answer(size));
            assert_eq!(
                response.headers().contains_key(CONTENT_ENCODING),
                want,
                "{encoding} {size}"
            );
            assert_eq!(response.headers().contains_key(VARY), want);
            let plain = answer(size).into_body().collect().await.unwrap().to_bytes();
            let mut got = response.into_body().collect().await.unwrap().to_bytes().to_vec();
            if want {
                assert!(got.len() < plain.len() / 2);
                let mut text = Vec::new();
                flate2::read::GzDecoder::new(&got[..]).read_to_end(&mut text).unwrap();
                got = text;
            }
            assert_eq!(got, plain);
        }
        // One test for both, because the permits are those of the process.
        let held: Vec<_> = (0..GZIPS_AT_ONCE)
            .map(|_| gzip(&asked("gzip"), answer(large)))
            .collect();
        let last = gzip(&asked("gzip"), answer(large));
        assert!(!last.headers().contains_key(CONTENT_ENCODING), "beyond the bound");
        drop(held);
        let next = gzip(&asked("gzip"), answer(large));
        assert!(next.headers().contains_key(CONTENT_ENCODING));
    }
}
