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

/// A request, and what is needed to send it again. It is dropped with the answer, and nothing more is kept then.
pub(super) struct Outgoing {
    pub(super) head: Parts,
    source: Arc<Mutex<Source>>,
    is_empty: bool,
}

/// Body of the client, and its bytes that were sent.
struct Source {
    body: Body,
    /// A copy, because a slice would hold the whole read buffer of the client's connection. `None` once it is too long,
    /// or there is no further attempt.
    sent: Option<Vec<u8>>,
    /// Number of the attempt that reads.
    attempt: usize,
}

/// Body of one attempt.
struct Attempt {
    source: Arc<Mutex<Source>>,
    number: usize,
    /// Bytes of the attempts before that this one has yet to repeat.
    again: Bytes,
}

// === impl Outgoing ===

impl Outgoing {
    pub(super) fn new(head: Parts, body: Body) -> Self {
        let is_empty = body.is_end_stream();
        let source = Source {
            body: without_trailers(body),
            sent: Some(Vec::new()),
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
        let again = Bytes::copy_from_slice(source.sent.as_ref()?);
        source.attempt += 1;
        Some(Attempt {
            source: self.source.clone(),
            number: source.attempt,
            again,
        })
    }

    /// True if there can be another attempt.
    pub(super) fn is_whole(&self) -> bool {
        self.is_empty || self.source.lock().sent.is_some()
    }

    /// True if the hub may repeat the request although the cloud may have acted on it.
    pub(super) fn is_safe(&self) -> bool {
        self.is_empty && self.is_read()
    }

    /// True if its sender may. A repeated DELETE or PUT would be answered with 404 or 409 if the first one succeeded.
    pub(super) fn is_read(&self) -> bool {
        self.head.method.is_safe()
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        self.source.lock().sent = None;
    }
}

// === impl Source ===

impl Source {
    fn keep(&mut self, data: &[u8]) {
        let Some(sent) = &mut self.sent else { return };
        match sent.len().saturating_add(data.len()) > KEPT_MAX {
            true => self.sent = None,
            false => sent.extend_from_slice(data),
        }
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
        if !self.again.is_empty() {
            let again = std::mem::take(&mut self.again);
            return Poll::Ready(Some(Ok(Frame::data(again))));
        }
        let frame = ready!(Pin::new(&mut source.body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            source.keep(data);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.again.is_empty() && self.source.lock().body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (mut hint, rest) = (SizeHint::new(), self.source.lock().body.size_hint());
        let again = self.again.len() as u64;
        hint.set_lower(again.saturating_add(rest.lower()));
        if let Some(upper) = rest.upper() {
            hint.set_upper(again.saturating_add(upper));
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::FutureExt as _;

    use super::*;

    /// Read buffer of a connection that counts its release.
    struct ReadBuffer {
        content: Vec<u8>,
        freed: Arc<AtomicUsize>,
    }

    impl AsRef<[u8]> for ReadBuffer {
        fn as_ref(&self) -> &[u8] {
            &self.content
        }
    }

    impl Drop for ReadBuffer {
        fn drop(&mut self) {
            self.freed.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn outgoing(frames: Vec<Bytes>) -> Outgoing {
        let (head, ()) = Request::new(()).into_parts();
        let frames = frames.into_iter().map(Ok::<_, std::convert::Infallible>);
        Outgoing::new(head, yurt_runtime::http::stream(futures_util::stream::iter(frames)))
    }

    fn next(request: &mut Request<Body>) -> Option<Bytes> {
        let frame = request.body_mut().frame().now_or_never().unwrap()?;
        frame.unwrap().into_data().ok()
    }

    #[test]
    fn kept_body_holds_no_buffers_of_the_clients_connection() {
        let (freed, count) = (Arc::new(AtomicUsize::new(0)), 100);
        let slice = |_| {
            let (content, freed) = (vec![b'x'; 8192], freed.clone());
            Bytes::from_owner(ReadBuffer { content, freed }).slice(..1)
        };
        let mut outgoing = outgoing((0..count).map(slice).collect());
        let mut first = outgoing.take().unwrap();
        while next(&mut first).is_some() {}
        assert_eq!(freed.load(Ordering::Relaxed), count);
        let mut second = outgoing.take().unwrap();
        assert_eq!(next(&mut second).unwrap().len(), count, "the bytes are sent again");
    }

    #[test]
    fn nothing_is_kept_after_the_answer_and_the_attempt_goes_on_to_the_end_of_its_body() {
        for attempts in [1, 2] {
            let mut outgoing = outgoing(["one", "two", "three"].map(Bytes::from).to_vec());
            let mut request = outgoing.take().unwrap();
            assert_eq!(next(&mut request).unwrap(), "one");
            let mut expected = vec!["two", "three"];
            if attempts == 2 {
                request = outgoing.take().unwrap();
                expected.insert(0, "one");
            }
            let source = outgoing.source.clone();
            drop(outgoing);
            let rest: Vec<Bytes> = std::iter::from_fn(|| next(&mut request)).collect();
            assert_eq!(rest, expected, "{attempts}");
            assert!(source.lock().sent.is_none(), "{attempts}");
        }
    }

    #[test]
    fn body_is_kept_up_to_its_limit() {
        for (length, is_kept) in [(KEPT_MAX, true), (KEPT_MAX + 1, false)] {
            let mut outgoing = outgoing(vec![Bytes::from(vec![b'x'; length - 1]), Bytes::from("x")]);
            let mut request = outgoing.take().unwrap();
            while next(&mut request).is_some() {}
            assert_eq!(outgoing.is_whole(), is_kept, "{length}");
        }
    }
}
