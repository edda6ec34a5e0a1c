//! Body that breaks off once its sender is known to be lost.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt as _;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::{Body, BoxError};

struct Breaking {
    body: Body,
    lost: Pin<Box<WaitForCancellationFutureOwned>>,
    why: &'static str,
}

/// The same body, which breaks with `why` once `lost` is cancelled: the client sees that it is incomplete.
#[must_use]
pub fn broken_by(body: Body, lost: CancellationToken, why: &'static str) -> Body {
    let lost = Box::pin(lost.cancelled_owned());
    Breaking { body, lost, why }.boxed_unsync()
}

impl HttpBody for Breaking {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            return Poll::Ready(frame);
        }
        let lost = self.lost.as_mut().poll(cx);
        lost.map(|()| Some(Err(self.why.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
