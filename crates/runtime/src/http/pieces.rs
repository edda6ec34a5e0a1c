//! Bodies of many pieces: small pieces are joined, large ones are not copied.

use std::iter::Peekable;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use futures_util::Stream;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt as _;

use super::gzip::GZIP_ABOVE;
use super::{Body, BoxError, full};

/// Size in bytes below which pieces are joined: a separate HTTP/2 frame costs more than the copy.
const SMALL: usize = 4 << 10;
/// Approximate size of a joined piece in bytes.
const PIECE: usize = 32 << 10;

/// A body of all `pieces` in order. One that is too small for compression is sent as a whole, with its length. A longer
/// one is made while it is sent, and only joined small pieces are copied.
#[must_use]
pub fn pieces(mut pieces: impl Iterator<Item = Bytes> + Send + 'static) -> Body {
    let (mut begin, mut size) = (Vec::new(), 0);
    for piece in pieces.by_ref() {
        size += piece.len() as u64;
        begin.push(piece);
        if size > GZIP_ABOVE {
            break;
        }
    }
    if size <= GZIP_ABOVE {
        return full(begin.concat());
    }
    let pieces = begin.into_iter().chain(pieces).peekable();
    let body = Pieces { pieces, least: size };
    body.map_err(|never| match never {}).boxed_unsync()
}

/// Frames of a stream, as they become ready: small ones that are ready at the same time become one piece.
pub fn joined(
    frames: impl Stream<Item = Bytes> + Send + 'static,
) -> impl Stream<Item = Result<Bytes, BoxError>> + Send {
    Joined {
        frames: Some(Box::pin(frames)),
        held: None,
    }
}

struct Pieces<I: Iterator<Item = Bytes>> {
    pieces: Peekable<I>,
    /// Minimum number of bytes that follow.
    least: u64,
}

struct Joined<S> {
    /// `None` after its end.
    frames: Option<Pin<Box<S>>>,
    /// A large frame that follows small ones sent first.
    held: Option<Bytes>,
}

/// Takes the next piece to send, joining small ones.
fn merge(pieces: &mut Peekable<impl Iterator<Item = Bytes>>) -> Option<Bytes> {
    let first = pieces.next()?;
    let is_small = |piece: &Bytes| piece.len() < SMALL;
    if !is_small(&first) || !pieces.peek().is_some_and(is_small) {
        return Some(first);
    }
    let mut joined = BytesMut::with_capacity(PIECE);
    joined.extend_from_slice(&first);
    while joined.len() < PIECE
        && let Some(next) = pieces.next_if(is_small)
    {
        joined.extend_from_slice(&next);
    }
    Some(joined.freeze())
}

// === impl Pieces ===

// Nothing in it is pinned.
impl<I: Iterator<Item = Bytes>> Unpin for Pieces<I> {}

impl<I: Iterator<Item = Bytes>> http_body::Body for Pieces<I> {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::convert::Infallible>>> {
        let piece = merge(&mut self.pieces);
        let size = piece.as_ref().map_or(0, |piece| piece.len() as u64);
        self.least = self.least.saturating_sub(size);
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = SizeHint::new();
        hint.set_lower(self.least);
        hint
    }
}

// === impl Joined ===

impl<S: Stream<Item = Bytes>> Stream for Joined<S> {
    type Item = Result<Bytes, BoxError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(held) = self.held.take() {
            return Poll::Ready(Some(Ok(held)));
        }
        let (mut first, mut joined) = (Bytes::new(), BytesMut::new());
        while joined.len() < PIECE {
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
        let piece = if joined.is_empty() { first } else { joined.freeze() };
        Poll::Ready((!piece.is_empty()).then_some(Ok(piece)))
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
        assert_eq!(merge(&mut parts).map(|piece| piece.as_ptr()), Some(large.as_ptr()));
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
            let body = pieces(parts.into_iter());
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
        let sizes: Vec<usize> = joined(many).map(|piece| piece.unwrap().len()).collect().await;
        assert!(sizes.iter().all(|size| *size <= PIECE + SMALL), "{sizes:?}");
        assert_eq!(sizes.iter().sum::<usize>(), 100_000);
    }

    /// Conformance: 2.94
    #[tokio::test]
    async fn a_frame_is_not_kept_back_for_the_next_one() {
        let endless = stream::iter([Bytes::from("a")]).chain(stream::pending());
        assert_eq!(joined(endless).next().await.unwrap().unwrap(), "a");
    }
}
