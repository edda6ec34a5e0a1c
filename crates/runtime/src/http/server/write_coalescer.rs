//! Coalesces the frames of an HTTP/2 connection into fewer TLS records and system calls.
//!
//! The HTTP/2 library copies frames below 1 KiB one behind the other, if its transport accepts one slice at a time. To
//! a transport that accepts several it passes each frame alone, and each becomes a record and a write. So
//! [`WriteCoalescer`] accepts one at a time.
//!
//! A larger frame then comes in two parts, its beginning and the rest, and the library flushes it before it prepares
//! the next one. [`WriteCoalescer`] delays that flush until the next frame: the library flushes again when it has no
//! more frames.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Holds frames until they have many bytes, or until a flush that is not followed by more frames.
#[derive(Debug)]
pub(super) struct WriteCoalescer<T> {
    inner: T,
    /// If false, everything passes immediately.
    is_on: bool,
    held: Vec<u8>,
    /// True if a part of a large frame came since the last flush.
    is_large: bool,
}

/// Maximum bytes held: as many as the TLS library accepts at a time.
const HELD_MAX: usize = 64 * 1024;
/// Maximum bytes of small frames held. It exceeds the 1 KiB and a frame header that the HTTP/2 library copies of a
/// large frame.
const SMALL_MAX: usize = 2048;
/// A frame of the usual maximum size, with its header.
const FRAME: usize = 16 * 1024 + 9;

// === impl WriteCoalescer ===

impl<T> WriteCoalescer<T> {
    /// A transport for HTTP/2 if `is_on`; otherwise everything passes.
    pub(super) fn new(inner: T, is_on: bool) -> Self {
        Self {
            inner,
            is_on,
            held: Vec::new(),
            is_large: false,
        }
    }
}

impl<T: AsyncWrite + Unpin> WriteCoalescer<T> {
    fn poll_held(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.held.is_empty() {
            let written = ready!(Pin::new(&mut self.inner).poll_write(cx, &self.held))?;
            self.forget(written)?;
        }
        Poll::Ready(Ok(()))
    }

    /// Removes `written` bytes from the held ones.
    fn forget(&mut self, written: usize) -> io::Result<()> {
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        if written >= self.held.len() {
            // Releases the memory, too: most connections are quiet.
            self.held = Vec::new();
        } else {
            self.held.drain(..written);
        }
        Ok(())
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for WriteCoalescer<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, piece: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        // Many small frames come in one piece, without one in front.
        if !this.is_on || (this.held.is_empty() && piece.len() > SMALL_MAX) {
            return Pin::new(&mut this.inner).poll_write(cx, piece);
        }
        this.is_large |= piece.len() > SMALL_MAX;
        let has_large = this.is_large || this.held.len() > SMALL_MAX;
        let limit = if has_large { HELD_MAX } else { SMALL_MAX };
        if this.held.len() + piece.len() <= limit {
            if has_large {
                this.held.reserve_exact(HELD_MAX - this.held.len());
            }
            this.held.extend_from_slice(piece);
            return Poll::Ready(Ok(piece.len()));
        }
        loop {
            let held = this.held.len();
            let both = [IoSlice::new(&this.held), IoSlice::new(piece)];
            let written = ready!(Pin::new(&mut this.inner).poll_write_vectored(cx, &both))?;
            this.forget(written)?;
            if written > held {
                return Poll::Ready(Ok(written - held));
            }
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if !self.is_on {
            return Pin::new(&mut self.inner).poll_write_vectored(cx, pieces);
        }
        let first = pieces.iter().find(|piece| !piece.is_empty());
        self.poll_write(cx, first.map_or(&[], |piece| &**piece))
    }

    fn is_write_vectored(&self) -> bool {
        !self.is_on && self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if std::mem::take(&mut self.is_large) && self.held.len() + FRAME <= HELD_MAX {
            // The wake-up makes the library flush again if it has no more frames.
            cx.waker().wake_by_ref();
            return Poll::Ready(Ok(()));
        }
        ready!(self.poll_held(cx))?;
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_held(cx))?;
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for WriteCoalescer<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, into)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::FutureExt as _;
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    #[derive(Default)]
    struct CountWakes(AtomicUsize);

    impl std::task::Wake for CountWakes {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records every write; accepts at most a given number of bytes at a time.
    struct Recorder {
        writes: Vec<Vec<u8>>,
        takes: usize,
    }

    impl AsyncWrite for Recorder {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, piece: &[u8]) -> Poll<io::Result<usize>> {
            let taken = piece.len().min(self.takes);
            self.writes.push(piece[..taken].to_vec());
            Poll::Ready(Ok(taken))
        }

        fn poll_write_vectored(
            self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            pieces: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            let all: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
            self.poll_write(cx, &all)
        }

        fn is_write_vectored(&self) -> bool {
            true
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    fn coalescer(is_on: bool, takes: usize) -> WriteCoalescer<Recorder> {
        let writes = Vec::new();
        WriteCoalescer::new(Recorder { writes, takes }, is_on)
    }

    /// Writes all pieces, which are ready at the same time.
    fn write(coalescer: &mut WriteCoalescer<Recorder>, pieces: &[&[u8]]) {
        for piece in pieces {
            coalescer.write_all(piece).now_or_never().unwrap().unwrap();
        }
    }

    fn flush(coalescer: &mut WriteCoalescer<Recorder>) {
        coalescer.flush().now_or_never().unwrap().unwrap();
    }

    /// The HTTP/2 library flushes after each large frame, and when it has no more frames.
    #[test]
    fn large_frames_leave_together_when_nothing_more_is_said() {
        let mut coalescer = coalescer(true, usize::MAX);
        assert!(!coalescer.is_write_vectored());
        let rest = vec![7; FRAME - 1033];
        let lens =
            |coalescer: &WriteCoalescer<Recorder>| coalescer.inner.writes.iter().map(Vec::len).collect::<Vec<_>>();
        for frames in [1, 2, 3] {
            coalescer.inner.writes.clear();
            for _ in 0..frames {
                write(&mut coalescer, &[&[1; 1033], &rest]);
                assert!(coalescer.inner.writes.is_empty(), "it waits for more");
                flush(&mut coalescer);
            }
            flush(&mut coalescer);
            assert_eq!(lens(&coalescer), [frames * FRAME]);
            assert_eq!(
                (coalescer.inner.writes[0][1032], coalescer.inner.writes[0][1033]),
                (1, 7)
            );
            assert_eq!(coalescer.held.capacity(), 0, "a quiet connection holds nothing");
        }
        coalescer.inner.writes.clear();
        write(&mut coalescer, &[b"small"]);
        flush(&mut coalescer);
        assert_eq!(lens(&coalescer), [5], "a small frame does not wait");
        write(&mut coalescer, &[&rest]);
        assert_eq!(coalescer.inner.writes.len(), 2, "neither do many");
    }

    /// A delayed flush wakes the task, so that a library which does not flush twice is polled again.
    #[test]
    fn a_flush_that_was_put_off_wakes_the_connection() {
        let woken = std::sync::Arc::new(CountWakes::default());
        let waker = std::task::Waker::from(woken.clone());
        let mut coalescer = coalescer(true, usize::MAX);
        write(&mut coalescer, &[&[1; 1033], &[2; SMALL_MAX + 1]]);
        let mut cx = Context::from_waker(&waker);
        assert!(Pin::new(&mut coalescer).poll_flush(&mut cx).is_ready());
        assert_eq!((coalescer.inner.writes.len(), woken.0.load(Ordering::Relaxed)), (0, 1));
        assert!(Pin::new(&mut coalescer).poll_flush(&mut cx).is_ready());
        assert_eq!((coalescer.inner.writes.len(), woken.0.load(Ordering::Relaxed)), (1, 1));
    }

    #[test]
    fn flush_and_shutdown_send_what_is_held() {
        let mut coalescer = coalescer(true, usize::MAX);
        write(&mut coalescer, &[b"one", b"two"]);
        assert!(coalescer.inner.writes.is_empty());
        coalescer.flush().now_or_never().unwrap().unwrap();
        assert_eq!(coalescer.inner.writes, [b"onetwo"]);
        write(&mut coalescer, &[b"three"]);
        coalescer.shutdown().now_or_never().unwrap().unwrap();
        assert_eq!(coalescer.inner.writes, [b"onetwo".as_slice(), b"three"]);
    }

    #[test]
    fn no_byte_is_lost_or_sent_twice_when_the_transport_takes_little() {
        let sent: Vec<u8> = (0..90_000_u32).map(|at| (at % 251) as u8).collect();
        for takes in [1, 7, 1000, 2048, 2049, 5000, 40_000, usize::MAX] {
            let mut coalescer = coalescer(true, takes);
            write(
                &mut coalescer,
                &[
                    &sent[..500],
                    &sent[500..2548],
                    &sent[2548..2549],
                    &sent[2549..9000],
                    &sent[9000..],
                ],
            );
            flush(&mut coalescer);
            flush(&mut coalescer);
            assert!(coalescer.inner.writes.concat() == sent, "{takes}");
        }
        let mut stuck = coalescer(true, 0);
        stuck.write_all(b"x").now_or_never().unwrap().unwrap();
        let error = stuck.flush().now_or_never().unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WriteZero);
    }

    #[test]
    fn everything_passes_when_it_is_off() {
        let mut coalescer = coalescer(false, usize::MAX);
        assert!(coalescer.is_write_vectored());
        write(&mut coalescer, &[b"one", b"two"]);
        assert_eq!(coalescer.inner.writes, [b"one", b"two"]);
    }
}
