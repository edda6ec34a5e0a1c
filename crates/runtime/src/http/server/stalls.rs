//! End of HTTP/2 answers that their client does not take.
//!
//! A client can answer pings and grant no window. Its answers, and all that they hold, would stay as long as it likes.
//! So a stream is reset once its client takes nothing of an answer that waits.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::Either;
use futures_util::task::AtomicWaker;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Body as _;
use tokio::time::{Instant, Sleep};

use crate::http::{Body, BoxError};

/// Bytes of an answer that are taken together: the least limit of an HTTP/2 frame.
const PIECE: usize = 16 << 10;

tokio::task_local! {
    /// Set in the task of a stream that ends when it stalls.
    static ANSWER: Arc<Untaken>;
}

/// Pieces of one answer that the connection holds.
#[derive(Default)]
struct Untaken {
    present: AtomicUsize,
    /// Number of pieces that were taken.
    taken: AtomicUsize,
    /// The body that waits until all are taken.
    waiting: AtomicWaker,
}

/// An answer in pieces. It ends once all are taken: before that its task must not end.
struct Pieces {
    body: Body,
    untaken: Arc<Untaken>,
    /// The rest of a frame.
    rest: Bytes,
    has_ended: bool,
}

/// A piece, as the owner of a [`Bytes`].
struct Piece {
    bytes: Bytes,
    untaken: Arc<Untaken>,
}

/// Runs the task of a stream. It ends early if the client takes no waiting piece for `max`, at the latest after twice
/// as long.
pub(super) fn until_stalled(stream: impl Future<Output = ()>, max: Option<Duration>) -> impl Future<Output = ()> {
    let Some(max) = max else {
        return Either::Left(stream);
    };
    let untaken = Arc::new(Untaken::default());
    // Boxed: a watch may take hours, and an async function would reserve room for the stream twice.
    let mut stream = Box::pin(ANSWER.scope(untaken.clone(), stream));
    // With the number of pieces that had been taken when it began.
    let mut timer: Option<(Pin<Box<Sleep>>, usize)> = None;
    Either::Right(poll_fn(move |cx| {
        if stream.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        while untaken.present.load(Ordering::Acquire) > 0 {
            let taken = untaken.taken.load(Ordering::Relaxed);
            let (sleep, before) = timer.get_or_insert_with(|| (Box::pin(tokio::time::sleep(max)), taken));
            ready!(sleep.as_mut().poll(cx));
            if *before == taken {
                tracing::debug!("Ending an answer of which its client takes nothing");
                return Poll::Ready(());
            }
            *before = taken;
            sleep.as_mut().reset(Instant::now() + max);
        }
        timer = None;
        Poll::Pending
    }))
}

/// The same answer, in pieces that [`until_stalled`] counts. A short one stays as it is, and so do all elsewhere.
pub(super) fn in_pieces(body: Body) -> Body {
    let is_short = body.size_hint().upper().is_some_and(|bytes| bytes <= PIECE as u64);
    let Some(untaken) = ANSWER.try_with(Arc::clone).ok().filter(|_| !is_short) else {
        return body;
    };
    let pieces = Pieces {
        body,
        untaken,
        rest: Bytes::new(),
        has_ended: false,
    };
    pieces.boxed_unsync()
}

// === impl Pieces ===

impl Pieces {
    fn is_taken(&self) -> bool {
        self.untaken.present.load(Ordering::Acquire) == 0
    }
}

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        while self.rest.is_empty() {
            if self.has_ended {
                self.untaken.waiting.register(cx.waker());
                return match self.is_taken() {
                    true => Poll::Ready(None),
                    false => Poll::Pending,
                };
            }
            match ready!(Pin::new(&mut self.body).poll_frame(cx)?) {
                None => self.has_ended = true,
                Some(frame) => match frame.into_data() {
                    Ok(bytes) => self.rest = bytes,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
            }
        }
        let length = self.rest.len().min(PIECE);
        let (bytes, untaken) = (self.rest.split_to(length), self.untaken.clone());
        untaken.present.fetch_add(1, Ordering::Relaxed);
        let piece = Bytes::from_owner(Piece { bytes, untaken });
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        let is_over = self.rest.is_empty() && (self.has_ended || self.body.is_end_stream());
        is_over && self.is_taken()
    }

    fn size_hint(&self) -> SizeHint {
        let (hint, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut whole = SizeHint::new();
        whole.set_lower(hint.lower() + rest);
        hint.upper().iter().for_each(|upper| whole.set_upper(upper + rest));
        whole
    }
}

// === impl Piece ===

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.untaken.taken.fetch_add(1, Ordering::Relaxed);
        if self.untaken.present.fetch_sub(1, Ordering::Release) == 1 {
            self.untaken.waiting.wake();
        }
    }
}

#[cfg(test)]
mod tests;
