//! Limit on HTTP/2 frames that cost the server work and carry no data: floods of them end the connection.
//!
//! The HTTP/2 library bounds the memory of header blocks, pending resets and small DATA frames. It answers PING and
//! SETTINGS, and opens and resets streams, as fast as a client sends requests. [`FrameMeter`] reads the headers of
//! incoming frames, on every connection that begins with the preface of HTTP/2. Each such frame has a cost. A client
//! may spend [`BURST`], and [`PER_SECOND`] after that. Window updates are free in proportion to the bytes sent.
//!
//! The last frame to a client that is cut is a GOAWAY with ENHANCE_YOUR_CALM, unless a frame is being written.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

/// A connection whose reads fail once it is flooded.
#[derive(Debug)]
pub(super) struct Metered<T> {
    inner: T,
    meter: FrameMeter,
    /// Frames to the client.
    sent: Frames,
    /// Set by the first flood.
    is_flooded: Arc<AtomicBool>,
}

/// Meters one connection's frames.
#[derive(Debug)]
pub(super) struct FrameMeter {
    protocol: Protocol,
    frames: Frames,
    /// Highest stream that the client opened.
    last_stream: u32,
    left: u32,
    refilled: Instant,
    /// Bytes sent that pay for window updates.
    sent: usize,
}

/// Protocol of a connection, known from its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    /// So many bytes of the preface of HTTP/2 have arrived.
    Unknown(usize),
    Http2,
    Other,
}

/// Finds the headers of frames in a sequence of bytes.
#[derive(Debug, Default)]
struct Frames {
    /// Bytes of a payload that are still to come.
    skip: usize,
    head: [u8; HEAD],
    /// Number of bytes in `head`.
    filled: usize,
}

/// Header of a frame.
#[derive(Clone, Copy, Debug)]
struct Head {
    length: usize,
    kind: u8,
    flags: u8,
    stream: u32,
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
/// First bytes of a client that speaks HTTP/2 (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Maximum cost of a burst. A client may reset all of its 1,000 streams, and open them again.
const BURST: u32 = 4000;
/// Cost per second after the burst. Clients ping every few seconds, and sometimes end a watch.
const PER_SECOND: u32 = 200;
/// Cost of a RST_STREAM.
const RESET_COST: u32 = 1;
/// Cost of a window update, and of a part of a header block that needs several frames.
const PART_COST: u32 = 4;
/// Cost of any other frame without data: PING, SETTINGS, PRIORITY, empty DATA, unknown ones.
const OTHER_COST: u32 = 20;
/// Bytes sent that pay for one window update. Go sends one per 4 KiB at most, cautious clients two per frame.
const BYTES_PER_UPDATE: usize = 128;
/// Maximum bytes that count: what a client may still acknowledge after a pause, in updates for 4 KiB each.
const SENT_MAX: usize = BYTES_PER_UPDATE * 4096;

// Types of frames (RFC 9113, 11.2).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
/// Error code of a GOAWAY for a client that sends too much (RFC 9113, 7).
const ENHANCE_YOUR_CALM: u32 = 11;

// === impl Metered ===

impl<T> Metered<T> {
    /// Meters HTTP/2, recognized by its preface; passes everything else on. Sets `is_flooded` at a flood.
    pub(super) fn new(inner: T, is_flooded: Arc<AtomicBool>) -> Self {
        Self {
            inner,
            meter: FrameMeter::new(Instant::now()),
            sent: Frames::default(),
            is_flooded,
        }
    }

    /// Counts the first `written` bytes of `pieces`, which were sent.
    fn note_sent<'a>(&mut self, pieces: impl Iterator<Item = &'a [u8]>, written: usize) {
        if self.meter.protocol != Protocol::Http2 {
            return;
        }
        self.meter.earn(written);
        let mut left = written;
        for piece in pieces {
            let mut bytes = &piece[..left.min(piece.len())];
            left -= bytes.len();
            while self.sent.next(&mut bytes).is_some() {}
        }
    }
}

impl<T: AsyncWrite + Unpin> Metered<T> {
    /// Sends a GOAWAY if it can be written without a wait, and no other frame is being written.
    fn say_why(&mut self, cx: &mut Context<'_>) {
        if !self.sent.is_between() {
            return;
        }
        let mut frame = [0; HEAD + 8];
        (frame[2], frame[3]) = (8, GOAWAY);
        frame[HEAD..HEAD + 4].copy_from_slice(&self.meter.last_stream.to_be_bytes());
        frame[HEAD + 4..].copy_from_slice(&ENHANCE_YOUR_CALM.to_be_bytes());
        let inner = &mut self.inner;
        let Poll::Ready(Ok(_)) = Pin::new(&mut *inner).poll_write(cx, &frame) else {
            return;
        };
        // Twice: a transport that gathers frames delays the first flush. Failures do not matter: the connection ends.
        for _ in 0..2 {
            let _ = Pin::new(&mut *inner).poll_flush(cx);
        }
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncRead for Metered<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.is_flooded.load(Ordering::Relaxed) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let before = into.filled().len();
        ready!(Pin::new(&mut this.inner).poll_read(cx, into))?;
        let read = this.meter.read(&into.filled()[before..], Instant::now());
        Poll::Ready(read.map_err(|flood| {
            this.is_flooded.store(true, Ordering::Relaxed);
            this.say_why(cx);
            io::Error::other(flood)
        }))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Metered<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, piece: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.inner).poll_write(cx, piece))?;
        self.note_sent(std::iter::once(piece), written);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.inner).poll_write_vectored(cx, pieces))?;
        self.note_sent(pieces.iter().map(|piece| &**piece), written);
        Poll::Ready(Ok(written))
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
    /// A meter for a connection before its first byte.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            protocol: Protocol::Unknown(0),
            frames: Frames::default(),
            last_stream: 0,
            left: BURST,
            refilled: now,
            sent: 0,
        }
    }

    /// Reads the next bytes of the client.
    ///
    /// # Errors
    /// [`Flood`]: the connection has to end. The meter is of no further use.
    pub(super) fn read(&mut self, mut bytes: &[u8], now: Instant) -> Result<(), Flood> {
        while let Protocol::Unknown(arrived) = self.protocol {
            let Some((first, rest)) = bytes.split_first() else {
                return Ok(());
            };
            bytes = rest;
            self.protocol = match arrived + 1 {
                _ if *first != PREFACE[arrived] => Protocol::Other,
                arrived if arrived == PREFACE.len() => Protocol::Http2,
                arrived => Protocol::Unknown(arrived),
            };
        }
        if self.protocol == Protocol::Http2 {
            while let Some(head) = self.frames.next(&mut bytes) {
                self.frame(head, now)?;
            }
        }
        Ok(())
    }

    /// Counts bytes that were sent to the client.
    fn earn(&mut self, bytes: usize) {
        self.sent = self.sent.saturating_add(bytes).min(SENT_MAX);
    }

    /// Counts a frame.
    fn frame(&mut self, head: Head, now: Instant) -> Result<(), Flood> {
        let cost = match head.kind {
            DATA if head.length > 0 || head.flags & END_STREAM != 0 => return Ok(()),
            // Requests are limited elsewhere.
            HEADERS => {
                self.last_stream = self.last_stream.max(head.stream);
                return Ok(());
            }
            WINDOW_UPDATE if self.sent >= BYTES_PER_UPDATE => {
                self.sent -= BYTES_PER_UPDATE;
                return Ok(());
            }
            RST_STREAM => RESET_COST,
            WINDOW_UPDATE | CONTINUATION => PART_COST,
            _ => OTHER_COST,
        };
        if self.left < cost {
            self.refill(now);
        }
        self.left = self.left.checked_sub(cost).ok_or(Flood { kind: head.kind })?;
        Ok(())
    }

    fn refill(&mut self, now: Instant) {
        let millis = now.saturating_duration_since(self.refilled).as_millis();
        let earned = u32::try_from(millis * u128::from(PER_SECOND) / 1000).unwrap_or(BURST);
        if earned > 0 {
            self.left = self.left.saturating_add(earned).min(BURST);
            self.refilled = now;
        }
    }
}

// === impl Frames ===

impl Frames {
    /// Takes bytes up to the end of the next frame's header; `None` if they end before.
    fn next(&mut self, bytes: &mut &[u8]) -> Option<Head> {
        let skipped = self.skip.min(bytes.len());
        self.skip -= skipped;
        *bytes = &bytes[skipped..];
        let taken = (HEAD - self.filled).min(bytes.len());
        self.head[self.filled..self.filled + taken].copy_from_slice(&bytes[..taken]);
        self.filled += taken;
        *bytes = &bytes[taken..];
        if self.filled < HEAD {
            return None;
        }
        self.filled = 0;
        let [a, b, c, kind, flags, stream @ ..] = self.head;
        self.skip = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        Some(Head {
            length: self.skip,
            kind,
            flags,
            stream: u32::from_be_bytes(stream) & (u32::MAX >> 1),
        })
    }

    /// True if no frame is incomplete.
    fn is_between(&self) -> bool {
        self.skip == 0 && self.filled == 0
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    const PRIORITY: u8 = 2;
    const SETTINGS: u8 = 4;
    const PING: u8 = 6;

    /// A frame of a type, with flags and a payload of zeros.
    fn frame(kind: u8, flags: u8, payload: usize) -> Vec<u8> {
        let length = u32::try_from(payload).unwrap().to_be_bytes();
        let mut frame = vec![length[1], length[2], length[3], kind, flags, 0, 0, 0, 1];
        frame.resize(HEAD + payload, 0);
        frame
    }

    fn begun(now: Instant) -> FrameMeter {
        let mut meter = FrameMeter::new(now);
        meter.read(PREFACE, now).unwrap();
        meter
    }

    /// Number of frames accepted at one moment, of at most 10,000.
    fn taken(meter: &mut FrameMeter, frame: &[u8], now: Instant) -> usize {
        (0..10_000).take_while(|_| meter.read(frame, now).is_ok()).count()
    }

    #[test]
    fn frames_that_carry_nothing_are_counted_and_others_are_not() {
        let now = Instant::now();
        for (kind, payload, expected) in [
            (RST_STREAM, 4, 4000),
            (WINDOW_UPDATE, 4, 1000),
            (CONTINUATION, 1, 1000),
            (PING, 8, 200),
            (SETTINGS, 6, 200),
            (PRIORITY, 5, 200),
            (DATA, 0, 200),
            (77, 3, 200),
        ] {
            let count = taken(&mut begun(now), &frame(kind, 0, payload), now);
            assert_eq!(count, expected, "type {kind}");
        }
        for (kind, flags, payload) in [(HEADERS, 4, 20), (DATA, 0, 1), (DATA, END_STREAM, 0)] {
            let count = taken(&mut begun(now), &frame(kind, flags, payload), now);
            assert_eq!(count, 10_000, "type {kind}");
        }
    }

    #[test]
    fn patient_client_is_never_cut() {
        let mut now = Instant::now();
        let mut meter = begun(now);
        let ping = frame(PING, 0, 8);
        let burst = (BURST / OTHER_COST) as usize;
        meter.read(&ping.repeat(burst), now).unwrap();
        for _ in 0..1000 {
            now += Duration::from_millis(1000 * u64::from(OTHER_COST) / u64::from(PER_SECOND));
            assert_eq!(meter.read(&ping, now), Ok(()));
        }
        now += Duration::from_secs(3600);
        assert_eq!(taken(&mut meter, &ping, now), burst);
    }

    /// A client that reads much acknowledges much, and one that reads nothing has nothing to acknowledge.
    #[test]
    fn window_updates_are_paid_for_by_what_was_sent() {
        let now = Instant::now();
        let (mut meter, update) = (begun(now), frame(WINDOW_UPDATE, 0, 4));
        for _ in 0..100_000 {
            meter.earn(4096);
            assert_eq!(meter.read(&update.repeat(2), now), Ok(()));
        }
        assert_eq!(meter.left, BURST);
        meter.earn(4096);
        let unpaid = (BURST / PART_COST) as usize;
        assert_eq!(taken(&mut meter, &update, now), SENT_MAX / BYTES_PER_UPDATE + unpaid);
    }

    /// Bodies of other protocols may contain anything.
    #[test]
    fn other_protocols_are_not_metered() {
        let now = Instant::now();
        for begin in [&b"P"[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r", b"GET / HTTP/1.1\r\n\r\n"] {
            let mut meter = FrameMeter::new(now);
            meter.read(begin, now).unwrap();
            meter.read(b"?", now).unwrap();
            assert_eq!(taken(&mut meter, &frame(PING, 0, 8), now), 10_000, "{begin:?}");
        }
    }

    /// Holds for any division of the bytes into reads, and for any payload.
    #[test]
    fn pieces_make_no_difference() {
        let now = Instant::now();
        let mut bytes = PREFACE.to_vec();
        for turn in 0..200_usize {
            bytes.extend(frame(DATA, 0, 1 + turn % 50));
            bytes.extend(frame(RST_STREAM, 0, 4));
            bytes.extend(if turn % 50 == 0 { frame(DATA, 0, 0) } else { Vec::new() });
        }
        for size in [1, 2, 8, 9, 10, 33, 1000, bytes.len()] {
            let mut meter = FrameMeter::new(now);
            for piece in bytes.chunks(size) {
                meter.read(piece, now).unwrap();
            }
            assert_eq!(meter.left, BURST - 200 * RESET_COST - 4 * OTHER_COST, "{size}");
        }
    }

    /// Sends pings after `sent` went the other way, until the reads fail; returns what the client received after it.
    async fn last_words(sent: &[u8]) -> Vec<u8> {
        let (mut client, server) = tokio::io::duplex(64 << 10);
        let is_flooded = Arc::<AtomicBool>::default();
        let mut server = Metered::new(server, is_flooded.clone());
        client.write_all(PREFACE).await.unwrap();
        server.read_exact(&mut [0; 24]).await.unwrap();
        server.write_all(sent).await.unwrap();
        let mut request = frame(HEADERS, 4, 3);
        request[8] = 9;
        client.write_all(&request).await.unwrap();
        client.write_all(&frame(PING, 0, 8).repeat(1000)).await.unwrap();
        let mut read = [0; 1000];
        while server.read(&mut read).await.is_ok() {}
        assert!(is_flooded.load(Ordering::Relaxed));
        assert!(server.read(&mut read).await.is_err(), "it stays cut");
        drop(server);
        let mut said = Vec::new();
        client.read_to_end(&mut said).await.unwrap();
        said.split_off(sent.len())
    }

    #[tokio::test]
    async fn client_that_is_cut_gets_a_goaway_between_frames() {
        let goaway = [0, 0, 8, GOAWAY, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 11];
        assert_eq!(last_words(&[]).await, goaway);
        assert_eq!(last_words(&frame(SETTINGS, 0, 6)).await, goaway);
        for cut in [1, HEAD - 1, HEAD, HEAD + 5] {
            let incomplete = &frame(DATA, 0, 6)[..cut];
            assert!(last_words(incomplete).await.is_empty(), "{cut}");
        }
    }
}
