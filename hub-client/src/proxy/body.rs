//! Request body with a limit on the total time that its sender keeps the hub waiting: a body that never ends would hold
//! a place forever. The place is free once the answer begins, and then the limit ends.
//!
//! A proxied request may last as long as its backend likes, so each part of its body has the whole limit.
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
    /// True if each part has the whole limit.
    renews: bool,
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
    late: Late,
}

/// State of the limit. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Late(Arc<LimitState>);

#[derive(Debug, Default)]
struct LimitState {
    /// True if the body was too slow.
    is_late: AtomicBool,
    /// True if the answer has begun.
    is_answered: AtomicBool,
}

// === impl Late ===

impl Late {
    /// Returns the status for the sender if the body was too slow.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        let is_late = self.0.is_late.load(Ordering::Relaxed);
        is_late.then(|| Status::bad_request(format!("the request body did not come within {WAIT_MAX:?} of waiting")))
    }

    /// Ends the limit: the answer begins.
    pub fn answered(&self) {
        self.0.is_answered.store(true, Ordering::Relaxed);
    }
}

// === impl Timed ===

impl<B> Timed<B> {
    /// Wraps `body`; sets `late` if it is too slow.
    pub fn new(body: B, late: Late) -> Self {
        Self {
            body,
            left: WAIT_MAX,
            renews: false,
            waiting: None,
            late,
        }
    }

    /// Gives each part of the body the whole limit.
    pub fn renew_for_each_part(&mut self) {
        self.renews = true;
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
                self.left = match self.renews {
                    true => WAIT_MAX,
                    false => self.left.saturating_sub(since.elapsed()),
                };
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        if self.late.0.is_answered.load(Ordering::Relaxed) {
            self.waiting = None;
            return Poll::Pending;
        }
        let left = self.left;
        let wait = || (Instant::now(), Box::pin(tokio::time::sleep(left)));
        let (_, over) = self.waiting.get_or_insert_with(wait);
        ready!(over.as_mut().poll(cx));
        self.late.0.is_late.store(true, Ordering::Relaxed);
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
    async fn each_part_of_a_proxied_body_has_the_whole_limit() {
        let late = Late::default();
        for (every, arrives) in [(9 * SECOND, true), (11 * SECOND, false)] {
            let mut body = Timed::new(trickle(every, 20), late.clone());
            body.renew_for_each_part();
            assert_eq!(body.collect().await.is_ok(), arrives, "a part every {every:?}");
            assert_eq!(late.status().is_none(), arrives);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn limit_ends_when_the_answer_begins() {
        let late = Late::default();
        let mut body = Timed::new(trickle(30 * SECOND, 2), late.clone());
        assert!(tokio::time::timeout(9 * SECOND, body.frame()).await.is_err());
        late.answered();
        assert_eq!(body.collect().await.unwrap().to_bytes().len(), 2);
        assert!(late.status().is_none());
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
