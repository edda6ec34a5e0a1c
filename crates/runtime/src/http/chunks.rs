//! Bodies of many chunks: small chunks are joined, large ones are not copied.

use std::iter::Peekable;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use futures_util::Stream;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt as _;

use super::gzip::GZIP_ABOVE;
use super::{Body, BoxError, full};

/// Size in bytes below which chunks are joined: a separate HTTP/2 frame costs more than the copy.
const SMALL: usize = 4 << 10;
/// Approximate size of a joined chunk in bytes.
const CHUNK: usize = 32 << 10;

/// A body of all `chunks` in order. One that is too small for compression is sent as a whole, with its length. A longer
/// one is made while it is sent, and only joined small chunks are copied.
#[must_use]
pub fn chunks(mut chunks: impl Iterator<Item = Bytes> + Send + 'static) -> Body {
    let (mut begin, mut size) = (Vec::new(), 0);
    for chunk in chunks.by_ref() {
        size += chunk.len() as u64;
        begin.push(chunk);
        if size > GZIP_ABOVE {
            break;
        }
    }
    if size <= GZIP_ABOVE {
        return full(begin.concat());
    }
    let chunks = begin.into_iter().chain(chunks).peekable();
    let body = Chunks { chunks, least: size };
    body.map_err(|never| match never {}).boxed_unsync()
}

/// Frames of a stream, as they become ready: small ones that are ready at the same time become one chunk.
pub fn joined(
    frames: impl Stream<Item = Bytes> + Send + 'static,
) -> impl Stream<Item = Result<Bytes, BoxError>> + Send {
    JoinedFrames {
        frames: Some(Box::pin(frames)),
        held: None,
    }
}

struct Chunks<I: Iterator<Item = Bytes>> {
    chunks: Peekable<I>,
    /// Minimum number of bytes that follow.
    least: u64,
}

struct JoinedFrames<S> {
    /// `None` after its end.
    frames: Option<Pin<Box<S>>>,
    /// A large frame that follows small ones sent first.
    held: Option<Bytes>,
}

/// Takes the next chunk to send, joining small ones.
fn merge(chunks: &mut Peekable<impl Iterator<Item = Bytes>>) -> Option<Bytes> {
    let first = chunks.next()?;
    let is_small = |chunk: &Bytes| chunk.len() < SMALL;
    if !is_small(&first) || !chunks.peek().is_some_and(is_small) {
        return Some(first);
    }
    let mut joined = BytesMut::with_capacity(CHUNK);
    joined.extend_from_slice(&first);
    while joined.len() < CHUNK
        && let Some(next) = chunks.next_if(is_small)
    {
        joined.extend_from_slice(&next);
    }
    Some(joined.freeze())
}

// === impl Chunks ===

// Nothing in it is pinned.
impl<I: Iterator<Item = Bytes>> Unpin for Chunks<I> {}

impl<I: Iterator<Item = Bytes>> http_body::Body for Chunks<I> {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::convert::Infallible>>> {
        let chunk = merge(&mut self.chunks);
        let size = chunk.as_ref().map_or(0, |chunk| chunk.len() as u64);
        self.least = self.least.saturating_sub(size);
        Poll::Ready(chunk.map(|chunk| Ok(Frame::data(chunk))))
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = SizeHint::new();
        hint.set_lower(self.least);
        hint
    }
}

// === impl JoinedFrames ===

impl<S: Stream<Item = Bytes>> Stream for JoinedFrames<S> {
    type Item = Result<Bytes, BoxError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(held) = self.held.take() {
            return Poll::Ready(Some(Ok(held)));
        }
        let (mut first, mut joined) = (Bytes::new(), BytesMut::new());
        while joined.len() < CHUNK {
            let Some(frames) = &mut self.frames else { break };
            match frames.as_mut().poll_next(cx) {
                Poll::Pending if first.is_empty() => return Poll::Pending,
                Poll::Pending => break,
                Poll::Ready(None) => self.frames = None,
                Poll::Ready(Some(frame)) if frame.len() >= SMALL => {
                    if first.is_empty() {
                        return Poll::Ready(Some(Ok(frame)));
                    }
                    self.held = Some(frame);
                    break;
                }
                Poll::Ready(Some(frame)) if first.is_empty() => first = frame,
                Poll::Ready(Some(frame)) => {
                    if joined.is_empty() {
                        joined.extend_from_slice(&first);
                    }
                    joined.extend_from_slice(&frame);
                }
            }
        }
        let chunk = if joined.is_empty() { first } else { joined.freeze() };
        Poll::Ready((!chunk.is_empty()).then_some(Ok(chunk)))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{StreamExt as _, stream};
    use http_body::Body as _;

    use super::*;

    #[test]
    fn small_pieces_are_joined_and_large_ones_pass() {
        let large = Bytes::from(vec![b'x'; SMALL]);
        let parts = ["a", "b", "c"].map(Bytes::from).into_iter();
        let mut parts = parts.chain([large.clone(), "d".into()]).peekable();
        assert_eq!(merge(&mut parts), Some("abc".into()));
        assert_eq!(merge(&mut parts).map(|chunk| chunk.as_ptr()), Some(large.as_ptr()));
        assert_eq!(merge(&mut parts), Some("d".into()));
        assert_eq!(merge(&mut parts), None);
    }

    #[tokio::test]
    async fn bodies_come_whole_and_small_ones_say_their_length() {
        for count in [0, 10, 3000, 30_000] {
            let parts: Vec<Bytes> = (0..count)
                .map(|i: u32| Bytes::from(vec![b'a'; (i % 50) as usize]))
                .collect();
            let whole = parts.concat();
            let body = chunks(parts.into_iter());
            let hint = body.size_hint();
            if whole.len() as u64 > GZIP_ABOVE {
                assert!(hint.exact().is_none() && hint.lower() > GZIP_ABOVE);
            } else {
                assert_eq!(hint.exact(), Some(whole.len() as u64));
            }
            assert_eq!(body.collect().await.unwrap().to_bytes(), whole);
        }
    }

    #[tokio::test]
    async fn frames_ready_together_are_one_piece_up_to_a_large_one() {
        let large = Bytes::from(vec![b'x'; SMALL]);
        let frames = ["a", "b"]
            .map(Bytes::from)
            .into_iter()
            .chain([large.clone(), "c".into()]);
        let got: Vec<Bytes> = joined(stream::iter(frames)).map(Result::unwrap).collect().await;
        assert_eq!(got, [Bytes::from("ab"), large, "c".into()]);
        let many = stream::iter(vec![Bytes::from(vec![b'y'; 1000]); 100]);
        let sizes: Vec<usize> = joined(many).map(|chunk| chunk.unwrap().len()).collect().await;
        assert!(sizes.iter().all(|size| *size <= CHUNK + SMALL), "{sizes:?}");
        assert_eq!(sizes.iter().sum::<usize>(), 100_000);
    }

    /// Conformance: 2.94
    #[tokio::test]
    async fn a_frame_is_not_kept_back_for_the_next_one() {
        let endless = stream::iter([Bytes::from("a")]).chain(stream::pending());
        assert_eq!(joined(endless).next().await.unwrap().unwrap(), "a");
    }
}
