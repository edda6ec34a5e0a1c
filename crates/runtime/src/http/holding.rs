//! Body that keeps something until its last bytes are gone.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt as _;

use super::{Body, BoxError};

struct Holding<H> {
    body: Body,
    held: Arc<H>,
}

/// Bytes of a frame, as the owner of a [`Bytes`].
struct HeldBytes<H> {
    bytes: Bytes,
    _held: Arc<H>,
}

/// The same body, which keeps `held` until it is dropped and its bytes, too: the connection drops a body as soon as it
/// has taken the last frame, and may keep that for as long as the client does not read.
#[must_use]
pub fn holding(body: Body, held: impl Send + Sync + 'static) -> Body {
    let held = Arc::new(held);
    Holding { body, held }.boxed_unsync()
}

impl<H: Send + Sync + 'static> HttpBody for Holding<H> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let held = |bytes| {
            let _held = self.held.clone();
            Bytes::from_owner(HeldBytes { bytes, _held })
        };
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(held))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<H> AsRef<[u8]> for HeldBytes<H> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::super::full;
    use super::*;

    #[tokio::test]
    async fn held_is_kept_until_the_last_bytes_are_gone() {
        let held = Arc::new(());
        let mut body = holding(full("four"), held.clone());
        assert_eq!(body.size_hint().exact(), Some(4));
        let bytes = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert!(body.is_end_stream());
        drop(body);
        assert_eq!((&bytes[..], Arc::strong_count(&held)), (&b"four"[..], 2));
        drop(bytes);
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
