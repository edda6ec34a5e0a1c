//! Frames of a watch as a gzip stream. Each frame is sent as soon as it is available, and a frame of many streams is
//! compressed once for all of them.
//!
//! A frame is compressed with back-references to the frames before it, whose text it mostly repeats. Streams that keep
//! up send the same frames in the same order, so a few results are cached and shared. A stream holds no compressor: its
//! state is a reference to the last large frame and the few small ones after it.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::Stream;
use http::HeaderMap;
use parking_lot::Mutex;
use yurt_codec::deflate::{Compressor, Deflated, HEAD, Sum};

/// Size in bytes below which frames are compared by content. Larger frames are compared by address: they are shared, or
/// never the same.
const SMALL: usize = 1 << 10;
/// Maximum bytes of small frames after the large one. Above it, back-references reach only the last frame.
const SMALLS: usize = 4 << 10;
/// Maximum number of cached results.
const KEPT: usize = 64;
/// Approximate maximum bytes of all cached frames and results.
const KEPT_BYTES: usize = 2 << 20;

static MEMO: Mutex<Memo> = Mutex::new(Memo::new());

/// For whole bodies, one at a time: creating a compressor takes longer than compressing an event with it.
static WHOLE: Mutex<Compressor> = Mutex::new(Compressor::fast());

/// A gzip stream of `frames`.
pub fn gzip_frames(frames: impl Stream<Item = Bytes> + Send + 'static) -> impl Stream<Item = Bytes> + Send {
    GzipFrames {
        frames: Some(Box::pin(frames)),
        before: Before::default(),
        sum: Sum::default(),
        began: false,
    }
}

/// Bytes as a gzip stream.
#[must_use]
pub fn gzip_bytes(plain: &[u8]) -> Bytes {
    let piece = match WHOLE.try_lock() {
        Some(mut compressor) => compressor.deflate(plain),
        None => Compressor::fast().deflate(plain),
    };
    let mut sum = Sum::default();
    sum.add(&piece);
    [&HEAD[..], &piece.blocks, &sum.end()].concat().into()
}

/// Marks the body as one made by [`gzip_frames`] or [`gzip_bytes`].
pub fn mark_gzip(headers: &mut HeaderMap) {
    super::gzip::mark(headers);
}

struct GzipFrames<S> {
    /// `None` once they ended.
    frames: Option<Pin<Box<S>>>,
    before: Before,
    sum: Sum,
    began: bool,
}

/// The text sent last.
#[derive(Clone, Default)]
struct Before {
    large: Bytes,
    /// Small frames after it.
    small: Bytes,
}

/// Results that other streams may use, too.
struct Memo {
    kept: VecDeque<CompressedFrame>,
    bytes: usize,
    compressor: Compressor,
}

struct CompressedFrame {
    before: Before,
    frame: Bytes,
    piece: Arc<Deflated>,
}

fn is_same(one: &Bytes, other: &Bytes) -> bool {
    let same_place = one.len() == other.len() && one.as_ptr() == other.as_ptr();
    same_place || (one.len() < SMALL && one == other)
}

// === impl Before ===

impl Before {
    fn push(&mut self, frame: &Bytes) {
        if frame.len() >= SMALL {
            (self.large, self.small) = (frame.clone(), Bytes::new());
        } else if self.small.len() + frame.len() <= SMALLS {
            self.small = [&self.small[..], frame].concat().into();
        } else {
            (self.large, self.small) = (Bytes::new(), frame.clone());
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        is_same(&self.large, &other.large) && self.small == other.small
    }

    fn text(&self) -> Bytes {
        match (self.large.is_empty(), self.small.is_empty()) {
            (_, true) => self.large.clone(),
            (true, false) => self.small.clone(),
            (false, false) => [&self.large[..], &self.small].concat().into(),
        }
    }
}

// === impl Memo ===

impl Memo {
    const fn new() -> Self {
        Self {
            kept: VecDeque::new(),
            bytes: 0,
            compressor: Compressor::thorough(),
        }
    }

    fn piece(&mut self, before: &Before, frame: &Bytes) -> Arc<Deflated> {
        let mut newest_first = self.kept.iter().rev();
        if let Some(kept) = newest_first.find(|kept| is_same(&kept.frame, frame) && kept.before.is_same(before)) {
            return kept.piece.clone();
        }
        let piece = Arc::new(self.compressor.deflate_after(&before.text(), frame));
        let kept = CompressedFrame {
            before: before.clone(),
            frame: frame.clone(),
            piece: piece.clone(),
        };
        self.bytes += kept.size();
        self.kept.push_back(kept);
        while self.kept.len() > KEPT || self.bytes > KEPT_BYTES {
            let Some(oldest) = self.kept.pop_front() else { break };
            self.bytes -= oldest.size();
        }
        piece
    }
}

// === impl CompressedFrame ===

impl CompressedFrame {
    fn size(&self) -> usize {
        self.frame.len() + self.before.large.len() + self.before.small.len() + self.piece.blocks.len()
    }
}

// === impl GzipFrames ===

impl<S: Stream<Item = Bytes>> Stream for GzipFrames<S> {
    type Item = Bytes;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if !std::mem::replace(&mut self.began, true) {
            return Poll::Ready(Some(Bytes::from_static(&HEAD)));
        }
        let Some(frames) = &mut self.frames else {
            return Poll::Ready(None);
        };
        let Some(frame) = ready!(frames.as_mut().poll_next(cx)) else {
            self.frames = None;
            return Poll::Ready(Some(self.sum.end()));
        };
        let piece = MEMO.lock().piece(&self.before, &frame);
        self.before.push(&frame);
        self.sum.add(&piece);
        Poll::Ready(Some(piece.blocks.clone()))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{StreamExt as _, stream};

    use super::super::Inflate;
    use super::*;

    fn event(seed: u32, len: usize) -> Bytes {
        let text = |i: u32| {
            let id = i.wrapping_add(seed).wrapping_mul(2_654_435_761);
            format!(
                r#"{{"addresses":["10.0.{}.{}"],"ready":true,"uid":"{id:08x}"}},"#,
                i / 256,
                i % 256
            )
        };
        let mut text: String = (0..200).map(text).collect();
        text.truncate(len);
        text.into()
    }

    async fn sent(frames: Vec<Bytes>) -> Vec<Bytes> {
        gzip_frames(stream::iter(frames)).collect().await
    }

    #[tokio::test]
    async fn every_frame_can_be_read_as_soon_as_it_came() {
        let mut frames = vec![
            event(1, 9000),
            event(2, 300),
            event(3, 80),
            event(4, 11_000),
            event(4, 11_000),
        ];
        frames.extend((0..30).map(|i| event(i, 500)));
        frames.extend([event(9, 40), Bytes::from(vec![b'z'; 100_000]), event(10, 9000)]);
        let pieces = sent(frames.clone()).await;
        assert_eq!(pieces.len(), frames.len() + 2);
        let mut inflate = Inflate::default();
        for (piece, frame) in pieces[1..].iter().zip(&frames) {
            let mut input = piece.clone();
            if frame == &frames[0] {
                input = [&pieces[0][..], piece].concat().into();
            }
            let mut plain = Vec::new();
            loop {
                let piece = inflate.step(&mut input).unwrap();
                if piece.is_empty() {
                    break;
                }
                plain.extend_from_slice(&piece);
            }
            assert!(plain == *frame, "a frame of {} bytes", frame.len());
        }
        let whole = Inflate::default()
            .whole(pieces.concat().into(), usize::MAX)
            .unwrap()
            .unwrap();
        assert!(whole == frames.concat(), "with its end");
    }

    #[tokio::test]
    async fn streams_that_keep_up_share_what_was_compressed() {
        let frames = vec![event(20, 9000), event(21, 200), event(22, 9000)];
        let copy_of_small = |frames: &[Bytes]| {
            let small = Bytes::copy_from_slice(&frames[1]);
            vec![frames[0].clone(), small, frames[2].clone()]
        };
        let (one, two) = (sent(frames.clone()).await, sent(copy_of_small(&frames)).await);
        for (one, two) in one[1..4].iter().zip(&two[1..4]) {
            assert_eq!(one.as_ptr(), two.as_ptr());
        }
        // The same large frame after another one refers to other text.
        let other = sent(vec![event(23, 2000), frames[2].clone()]).await;
        assert_ne!(other[2].as_ptr(), one[3].as_ptr());
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut memo = Memo::new();
        for seed in 0..200 {
            memo.piece(&Before::default(), &event(seed, 3000));
        }
        assert_eq!(memo.kept.len(), KEPT);
        memo.piece(&Before::default(), &Bytes::from(vec![b'x'; KEPT_BYTES + 1]));
        assert_eq!((memo.kept.len(), memo.bytes), (0, 0));
    }
}
