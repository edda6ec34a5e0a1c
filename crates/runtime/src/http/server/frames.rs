//! Limit on HTTP/2 frames that cost the server work and carry no data: floods of them end the connection.
//!
//! The HTTP/2 library bounds the memory of header blocks, pending resets and small DATA frames. It answers PING and
//! SETTINGS, and opens and resets streams, as fast as a client sends requests. [`FrameMeter`] reads the headers of
//! incoming frames. It grants a client [`BURST`] such frames, and [`PER_SECOND`] after that.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

/// A connection whose reads fail once it is flooded.
#[derive(Debug)]
pub(super) struct Metered<T> {
    inner: T,
    /// Without it everything passes.
    meter: Option<FrameMeter>,
}

/// Reads one connection's frames.
#[derive(Debug)]
pub(super) struct FrameMeter {
    /// Bytes of the preface or of a payload that are still to come.
    skip: usize,
    head: [u8; HEAD],
    /// Number of bytes in `head`.
    filled: usize,
    left: u32,
    refilled: Instant,
}

/// A client exceeded the limit of frames without data.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many HTTP/2 frames without data (type {kind})")]
pub(super) struct Flood {
    /// Type of the last one.
    kind: u8,
}

/// Bytes before every frame's payload: 3 of length, type, flags, 4 of stream.
const HEAD: usize = 9;
/// Bytes of a client's preface.
const PREFACE: usize = 24;
/// Maximum number of frames in a burst. A client may reset all of its 1,000 streams, and open them again.
const BURST: u32 = 4000;
/// Frames per second after the burst. Clients ping every few seconds, and sometimes end a watch.
const PER_SECOND: u32 = 200;

// Types of frames (RFC 9113, 11.2).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;

// === impl Metered ===

impl<T> Metered<T> {
    /// Meters HTTP/2 from its preface on when `is_on`; passes everything on otherwise.
    pub(super) fn new(inner: T, is_on: bool) -> Self {
        let meter = is_on.then(|| FrameMeter::new(Instant::now()));
        Self { inner, meter }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Metered<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, into))?;
        if let Some(meter) = &mut self.meter {
            let read = meter.read(&into.filled()[before..], Instant::now());
            read.map_err(io::Error::other)?;
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Metered<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, piece: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, piece)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

// === impl FrameMeter ===

impl FrameMeter {
    /// A meter for a connection before its preface.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            skip: PREFACE,
            head: [0; HEAD],
            filled: 0,
            left: BURST,
            refilled: now,
        }
    }

    /// Reads the next bytes.
    ///
    /// # Errors
    /// [`Flood`]: the connection has to end.
    pub(super) fn read(&mut self, mut bytes: &[u8], now: Instant) -> Result<(), Flood> {
        while !bytes.is_empty() {
            if self.skip > 0 {
                let skipped = self.skip.min(bytes.len());
                self.skip -= skipped;
                bytes = &bytes[skipped..];
                continue;
            }
            let taken = (HEAD - self.filled).min(bytes.len());
            self.head[self.filled..self.filled + taken].copy_from_slice(&bytes[..taken]);
            self.filled += taken;
            bytes = &bytes[taken..];
            if self.filled == HEAD {
                self.filled = 0;
                self.frame(now)?;
            }
        }
        Ok(())
    }

    /// Counts a frame whose header is complete.
    fn frame(&mut self, now: Instant) -> Result<(), Flood> {
        let [a, b, c, kind, flags, ..] = self.head;
        self.skip = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        let carries = match kind {
            DATA => self.skip > 0 || flags & END_STREAM != 0,
            // Requests are limited elsewhere; window updates depend on the data sent.
            HEADERS | WINDOW_UPDATE => true,
            _ => false,
        };
        if carries {
            return Ok(());
        }
        if self.left == 0 {
            self.refill(now);
        }
        self.left = self.left.checked_sub(1).ok_or(Flood { kind })?;
        Ok(())
    }

    fn refill(&mut self, now: Instant) {
        let millis = now.saturating_duration_since(self.refilled).as_millis();
        let earned = u32::try_from(millis * u128::from(PER_SECOND) / 1000).unwrap_or(BURST);
        if earned > 0 {
            self.left = earned.min(BURST);
            self.refilled = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A frame of a type, with flags and a payload of zeros.
    fn frame(kind: u8, flags: u8, payload: usize) -> Vec<u8> {
        let length = u32::try_from(payload).unwrap().to_be_bytes();
        let mut frame = vec![length[1], length[2], length[3], kind, flags, 0, 0, 0, 1];
        frame.resize(HEAD + payload, 0);
        frame
    }

    fn begun(now: Instant) -> FrameMeter {
        let mut meter = FrameMeter::new(now);
        meter.read(&[b'P'; PREFACE], now).unwrap();
        meter
    }

    /// Number of frames accepted at one moment, of at most 10,000.
    fn taken(meter: &mut FrameMeter, frame: &[u8], now: Instant) -> usize {
        (0..10_000).take_while(|_| meter.read(frame, now).is_ok()).count()
    }

    #[test]
    fn frames_that_carry_nothing_are_counted_and_others_are_not() {
        let now = Instant::now();
        let (ping, settings, reset, priority, continuation) = (6, 4, 3, 2, 9);
        for (kind, payload) in [
            (ping, 8),
            (settings, 6),
            (reset, 4),
            (priority, 5),
            (continuation, 1),
            (DATA, 0),
            (77, 3),
        ] {
            let count = taken(&mut begun(now), &frame(kind, 0, payload), now);
            assert_eq!(count, BURST as usize, "type {kind}");
        }
        for (kind, flags, payload) in [
            (HEADERS, 4, 20),
            (DATA, 0, 1),
            (DATA, END_STREAM, 0),
            (WINDOW_UPDATE, 0, 4),
        ] {
            let count = taken(&mut begun(now), &frame(kind, flags, payload), now);
            assert_eq!(count, 10_000, "type {kind}");
        }
    }

    #[test]
    fn patient_client_is_never_cut() {
        let mut now = Instant::now();
        let mut meter = begun(now);
        for _ in 0..BURST {
            assert_eq!(meter.read(&frame(6, 0, 8), now), Ok(()));
        }
        for _ in 0..1000 {
            now += Duration::from_millis(1000 / u64::from(PER_SECOND));
            assert_eq!(meter.read(&frame(6, 0, 8), now), Ok(()));
        }
        now += Duration::from_secs(3600);
        assert_eq!(taken(&mut meter, &frame(6, 0, 8), now), BURST as usize);
    }

    /// Holds for any division of the bytes into reads, and for any payload.
    #[test]
    fn pieces_make_no_difference() {
        let now = Instant::now();
        let mut bytes = vec![b'P'; PREFACE];
        for turn in 0..200_usize {
            bytes.extend(frame(DATA, 0, turn % 50));
            bytes.extend(frame(6, 0, 8));
        }
        for size in [1, 2, 8, 9, 10, 33, 1000, bytes.len()] {
            let mut meter = FrameMeter::new(now);
            for piece in bytes.chunks(size) {
                meter.read(piece, now).unwrap();
            }
            // Every PING, and the four DATA frames of no bytes.
            assert_eq!(meter.left, BURST - 200 - 4, "{size}");
        }
    }
}
