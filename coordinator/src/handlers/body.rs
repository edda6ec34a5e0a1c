//! Bodies made of many small pieces: joined into pieces worth sending, without copying large ones.

use std::convert::Infallible;
use std::iter::Peekable;

use bytes::{Bytes, BytesMut};
use yurt_runtime::http::{self, Body};

/// Pieces below this are joined: a frame of its own on HTTP/2 costs more than the copy.
const SMALL: usize = 4 << 10;
/// A joined piece is about this large.
const PIECE: usize = 32 << 10;
/// A body up to this size is sent in one piece, with its length.
const WHOLE: usize = 64 << 10;

/// Takes the next piece to send from the front of `pieces`, joining small ones.
fn merge_front(pieces: &mut Peekable<impl Iterator<Item = Bytes>>) -> Option<Bytes> {
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

/// Frames that are ready at once as one piece; a single one is not copied.
pub(super) fn join(mut frames: Vec<Bytes>) -> Bytes {
    if frames.len() == 1 {
        frames.swap_remove(0)
    } else {
        frames.concat().into()
    }
}

/// A body of all `pieces` in order. A long one is made while it is sent.
pub(super) fn of_pieces(mut pieces: impl Iterator<Item = Bytes> + Send + 'static) -> Body {
    let (mut begin, mut size) = (Vec::new(), 0);
    for piece in pieces.by_ref() {
        size += piece.len();
        begin.push(piece);
        if size > WHOLE {
            break;
        }
    }
    if size <= WHOLE {
        return http::full(begin.concat());
    }
    let pieces = begin.into_iter().chain(pieces).peekable();
    http::stream(futures_util::stream::unfold(pieces, |mut pieces| async move {
        let piece = merge_front(&mut pieces)?;
        Some((Ok::<_, Infallible>(piece), pieces))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_pieces_are_joined_and_large_ones_pass() {
        let large = Bytes::from(vec![b'x'; SMALL]);
        let mut pieces = ["a", "b", "c"].map(Bytes::from).to_vec();
        pieces.extend([large.clone(), "d".into()]);
        let mut pieces = pieces.into_iter().peekable();
        assert_eq!(merge_front(&mut pieces), Some("abc".into()));
        assert_eq!(merge_front(&mut pieces), Some(large));
        assert_eq!(merge_front(&mut pieces), Some("d".into()));
        assert_eq!(merge_front(&mut pieces), None);
    }
}
