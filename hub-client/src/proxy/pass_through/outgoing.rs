//! Request that can be sent again, also with its body: a server that goes away has not processed the last requests on
//! its connections (RFC 9113, 6.8 and 8.7).

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Request;
use http::request::Parts;
use http_body_util::BodyExt as _;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use parking_lot::Mutex;
use yurt_runtime::http::{Body, BoxError, empty, pass};

/// Maximum bytes of a body that are kept for another attempt.
const KEPT_MAX: usize = 64 << 10;

/// A request, and what is needed to send it again.
pub(super) struct Outgoing {
    pub(super) head: Parts,
    source: Arc<Mutex<Source>>,
    is_empty: bool,
}

/// Body of the client, and its frames that were sent.
struct Source {
    body: Body,
    /// `None` once they are too many bytes.
    sent: Option<Vec<Bytes>>,
    bytes: usize,
    /// Number of the attempt that reads.
    attempt: usize,
}

/// Body of one attempt.
struct Attempt {
    source: Arc<Mutex<Source>>,
    number: usize,
    /// Number of frames that this attempt has sent.
    next: usize,
}

// === impl Outgoing ===

impl Outgoing {
    pub(super) fn new(head: Parts, body: Body) -> Self {
        let is_empty = body.is_end_stream();
        let source = Source {
            body: without_trailers(body),
            sent: Some(Vec::new()),
            bytes: 0,
            attempt: 0,
        };
        Self {
            head,
            source: Arc::new(Mutex::new(source)),
            is_empty,
        }
    }

    /// Returns the request of the next attempt, and ends the body of the one before; `None` if that has sent too much.
    pub(super) fn take(&mut self) -> Option<Request<Body>> {
        let body = match self.is_empty {
            true => empty(),
            false => self.attempt()?.boxed_unsync(),
        };
        Some(Request::from_parts(self.head.clone(), body))
    }

    fn attempt(&self) -> Option<Attempt> {
        let mut source = self.source.lock();
        source.sent.as_ref()?;
        source.attempt += 1;
        Some(Attempt {
            source: self.source.clone(),
            number: source.attempt,
            next: 0,
        })
    }

    /// True if there can be another attempt.
    pub(super) fn is_whole(&self) -> bool {
        self.is_empty || self.source.lock().sent.is_some()
    }

    /// True if the hub may repeat the request although the cloud may have acted on it.
    pub(super) fn is_safe(&self) -> bool {
        self.is_empty && self.head.method.is_safe()
    }

    /// True if its sender may.
    pub(super) fn is_idempotent(&self) -> bool {
        self.head.method.is_idempotent()
    }
}

// === impl Source ===

impl Source {
    fn keep(&mut self, data: &Bytes) {
        self.bytes = self.bytes.saturating_add(data.len());
        if self.bytes > KEPT_MAX {
            self.sent = None;
        } else if let Some(sent) = &mut self.sent {
            sent.push(data.clone());
        }
    }

    /// Frames that an attempt has yet to repeat.
    fn left(&self, next: usize) -> &[Bytes] {
        let sent = self.sent.as_deref().unwrap_or_default();
        sent.get(next..).unwrap_or_default()
    }
}

// === impl Attempt ===

impl HttpBody for Attempt {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let shared = self.source.clone();
        let mut source = shared.lock();
        if source.attempt != self.number {
            return Poll::Ready(Some(Err("the request is sent again".into())));
        }
        let kept = source.left(self.next).first().cloned();
        let frame = match kept {
            Some(data) => Some(Ok(Frame::data(data))),
            None => {
                let frame = ready!(Pin::new(&mut source.body).poll_frame(cx));
                if let Some(Ok(frame)) = &frame
                    && let Some(data) = frame.data_ref()
                {
                    source.keep(data);
                }
                frame
            }
        };
        self.next += 1;
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        let source = self.source.lock();
        source.left(self.next).is_empty() && source.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let source = self.source.lock();
        let left: u64 = source.left(self.next).iter().map(|data| data.len() as u64).sum();
        let (mut hint, rest) = (SizeHint::new(), source.body.size_hint());
        hint.set_lower(left.saturating_add(rest.lower()));
        if let Some(upper) = rest.upper() {
            hint.set_upper(left.saturating_add(upper));
        }
        hint
    }
}

/// The same body without trailers, which could hold headers that select another user.
fn without_trailers(body: Body) -> Body {
    let data = body.map_frame(|frame| {
        frame
            .into_data()
            .map_or_else(|_| Frame::data(Bytes::new()), Frame::data)
    });
    pass(data)
}
