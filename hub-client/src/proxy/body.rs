//! Request body with a limit on the total time that its sender keeps the hub waiting: a body that never ends would hold
//! a place forever.
//!
//! Time in which the reader does not poll is not counted: a slow link to the cloud is not the sender's fault.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep};
use yurt_apimachinery::Status;
use yurt_runtime::http::BoxError;

/// Maximum wait for the body of a sender on this node.
pub const WAIT_MAX: Duration = Duration::from_secs(10);

/// Body that ends with an error if its sender is too slow.
pub struct Timed<B> {
    body: B,
    left: Duration,
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
    late: Late,
}

/// Flag: the body was too slow. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Late(Arc<AtomicBool>);

// === impl Late ===

impl Late {
    /// Returns the status for the sender if the body was too slow.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        let is_late = self.0.load(Ordering::Relaxed);
        is_late.then(|| Status::bad_request(format!("the request body did not come within {WAIT_MAX:?} of waiting")))
    }
}

// === impl Timed ===

impl<B> Timed<B> {
    /// Wraps `body`; sets `late` if it is too slow.
    pub fn new(body: B, late: Late) -> Self {
        Self {
            body,
            left: WAIT_MAX,
            waiting: None,
            late,
        }
    }
}

impl<B> Body for Timed<B>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            if let Some((since, _)) = self.waiting.take() {
                self.left = self.left.saturating_sub(since.elapsed());
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let left = self.left;
        let wait = || (Instant::now(), Box::pin(tokio::time::sleep(left)));
        let (_, over) = self.waiting.get_or_insert_with(wait);
        ready!(over.as_mut().poll(cx));
        self.late.0.store(true, Ordering::Relaxed);
        Poll::Ready(Some(Err("the request body did not come in time".into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt as _;
    use futures_util::stream;
    use http_body_util::{BodyExt as _, Full, StreamBody};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Returns a body of one byte each `every`.
    fn trickle(every: Duration, count: usize) -> impl Body<Data = Bytes, Error = BoxError> + Unpin {
        let pieces = stream::iter(0..count).then(move |_| async move {
            tokio::time::sleep(every).await;
            Ok(Frame::data(Bytes::from_static(b"x")))
        });
        StreamBody::new(pieces.boxed())
    }

    #[tokio::test(start_paused = true)]
    async fn all_waits_count_together() {
        let late = Late::default();
        let body = Timed::new(trickle(SECOND, 9), late.clone());
        assert_eq!(body.collect().await.unwrap().to_bytes().len(), 9);
        assert!(late.status().is_none());
        let began = Instant::now();
        let body = Timed::new(trickle(SECOND, 1000), late.clone());
        assert!(body.collect().await.is_err());
        assert_eq!(began.elapsed(), WAIT_MAX);
        assert_eq!(late.status().unwrap().code(), 400);
    }

    #[tokio::test(start_paused = true)]
    async fn reader_that_is_slow_is_not_the_senders_fault() {
        let late = Late::default();
        let pieces = stream::iter((0..20).map(|_| Ok::<_, BoxError>(Frame::data(Bytes::from_static(b"x")))));
        let mut body = Timed::new(StreamBody::new(pieces), late.clone());
        while let Some(frame) = body.frame().await {
            frame.unwrap();
            tokio::time::sleep(SECOND).await;
        }
        assert!(late.status().is_none());
    }

    #[test]
    fn length_is_still_known() {
        let body = Timed::new(Full::new(Bytes::from_static(b"four")), Late::default());
        assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(4), false));
    }
}
