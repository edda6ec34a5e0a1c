//! Body that passes unchanged while a bounded copy is taken. The copy is handed over at the clean end only.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use hyper::body::{Frame, SizeHint};
use yurt_runtime::http::{Body, BoxError};

/// Bytes of all copies that are being taken together, and their maximum.
#[derive(Clone, Debug)]
pub(crate) struct Copies {
    bytes: Arc<AtomicUsize>,
    max: usize,
}

/// The body.
struct Copied {
    body: Body,
    copy: Option<Copy>,
}

/// A copy; gives its bytes back to [`Copies`] when it is dropped.
struct Copy {
    bytes: BytesMut,
    max: usize,
    all: Copies,
    at_end: Box<dyn FnOnce(Bytes) + Send>,
}

// === impl Copies ===

impl Copies {
    /// Creates the count of copies that have at most `max` bytes together.
    pub(crate) fn within(max: usize) -> Self {
        Self {
            bytes: Arc::default(),
            max,
        }
    }

    /// Returns `body`, extended to call `at_end` with all its bytes. A body of more than `max` bytes, or that would
    /// exceed the bytes of all copies, or that breaks off, passes without a call.
    pub(crate) fn of(&self, body: Body, max: usize, at_end: impl FnOnce(Bytes) + Send + 'static) -> Body {
        let copy = Copy {
            bytes: BytesMut::new(),
            max,
            all: self.clone(),
            at_end: Box::new(at_end),
        };
        let copy = Some(copy);
        http_body_util::BodyExt::boxed_unsync(Copied { body, copy })
    }
}

// === impl Copied ===

impl hyper::body::Body for Copied {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(piece) = frame.data_ref() {
                    self.copy = self.copy.take().and_then(|copy| copy.with(piece));
                }
                // A server that knows the length does not poll the end, which HTTP/2 may send in a frame of its own.
                if self.body.is_end_stream() || self.body.size_hint().exact() == Some(0) {
                    self.end();
                }
            }
            Some(Err(_)) => self.copy = None,
            None => self.end(),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Copied {
    fn end(&mut self) {
        if let Some(copy) = self.copy.take() {
            copy.end();
        }
    }
}

// === impl Copy ===

impl Copy {
    fn with(mut self, piece: &Bytes) -> Option<Self> {
        if self.bytes.len() + piece.len() > self.max {
            return None;
        }
        let all = self.all.bytes.fetch_add(piece.len(), Ordering::Relaxed) + piece.len();
        // From here on the drop gives them back.
        self.bytes.extend_from_slice(piece);
        (all <= self.all.max).then_some(self)
    }

    fn end(mut self) {
        let bytes = self.bytes.split().freeze();
        self.all.bytes.fetch_sub(bytes.len(), Ordering::Relaxed);
        let at_end = std::mem::replace(&mut self.at_end, Box::new(|_| ()));
        at_end(bytes);
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        self.all.bytes.fetch_sub(self.bytes.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use http_body_util::BodyExt as _;
    use parking_lot::Mutex;
    use yurt_runtime::http::{full, stream as body_of};

    use super::*;

    /// Maximum bytes of all copies in these tests.
    const MAX: usize = 8 << 20;

    type Got = Arc<Mutex<Option<Bytes>>>;

    /// A body of a declared length whose end is a frame of its own, as HTTP/2 may send it.
    struct Declared {
        pieces: Vec<&'static str>,
        left: u64,
    }

    impl hyper::body::Body for Declared {
        type Data = Bytes;
        type Error = BoxError;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            let piece = self.pieces.pop().map(Bytes::from);
            self.left -= piece.as_ref().map_or(0, |piece| piece.len() as u64);
            Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
        }

        fn size_hint(&self) -> SizeHint {
            SizeHint::with_exact(self.left)
        }
    }

    fn pieces(pieces: Vec<Result<&'static str, &'static str>>) -> Body {
        let pieces = pieces
            .into_iter()
            .map(|piece| piece.map(Bytes::from).map_err(BoxError::from));
        body_of(stream::iter(pieces))
    }

    fn copied(copies: &Copies, body: Body, max: usize) -> (Body, Got) {
        let got = Got::default();
        let copy = got.clone();
        (copies.of(body, max, move |bytes| *copy.lock() = Some(bytes)), got)
    }

    #[tokio::test]
    async fn whole_body_is_copied_at_its_end() {
        let copies = Copies::within(MAX);
        for body in [pieces(vec![Ok("ab"), Ok("c")]), full("abc")] {
            let (body, got) = copied(&copies, body, 3);
            assert_eq!(body.collect().await.unwrap().to_bytes(), "abc");
            assert_eq!(got.lock().take().unwrap(), "abc");
        }
        assert_eq!(copies.bytes.load(Ordering::Relaxed), 0);
    }

    /// An HTTP/1.1 server does not poll a body after the bytes of its `Content-Length`.
    #[tokio::test]
    async fn body_is_copied_once_its_declared_bytes_have_passed() {
        let declared = Declared {
            pieces: vec!["c", "ab"],
            left: 3,
        };
        let (mut body, got) = copied(&Copies::within(MAX), declared.boxed_unsync(), 3);
        body.frame().await.unwrap().unwrap();
        assert_eq!(*got.lock(), None, "a byte is missing");
        body.frame().await.unwrap().unwrap();
        assert_eq!(got.lock().take().unwrap(), "abc");
    }

    #[tokio::test]
    async fn broken_dropped_and_long_bodies_leave_no_copy() {
        let copies = Copies::within(MAX);
        let (body, long) = copied(&copies, pieces(vec![Ok("ab"), Ok("cd")]), 3);
        assert_eq!(body.collect().await.unwrap().to_bytes(), "abcd");
        let (body, broken) = copied(&copies, pieces(vec![Ok("ab"), Err("cut")]), 3);
        assert!(body.collect().await.is_err());
        let (mut body, dropped) = copied(&copies, pieces(vec![Ok("ab"), Ok("c")]), 3);
        body.frame().await.unwrap().unwrap();
        drop(body);
        for got in [long, broken, dropped] {
            assert_eq!(*got.lock(), None);
        }
        assert_eq!(copies.bytes.load(Ordering::Relaxed), 0, "no copy keeps its bytes");
    }

    #[tokio::test]
    async fn copies_are_bounded_together() {
        let copies = Copies::within(MAX);
        copies.bytes.store(MAX - 2, Ordering::Relaxed);
        let (body, got) = copied(&copies, pieces(vec![Ok("abc")]), 10);
        assert_eq!(body.collect().await.unwrap().to_bytes(), "abc");
        assert_eq!(*got.lock(), None);
        assert_eq!(copies.bytes.load(Ordering::Relaxed), MAX - 2);
    }
}
