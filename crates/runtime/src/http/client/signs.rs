//! Signs of life of a server: the bytes that arrive from it, over all connections of the clients that share them.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::Instant;

/// Signs of life of one server. Cheap to clone; clones share them.
#[derive(Clone, Debug, Default)]
pub struct LifeSigns(Arc<Signs>);

#[derive(Debug, Default)]
struct Signs {
    /// First write that nothing was read after, over any connection.
    silent_since: Mutex<Option<Instant>>,
    ended: Notify,
}

/// A connection that notes its signs of life.
pub(super) struct Noting<T> {
    pub(super) inner: T,
    signs: Option<LifeSigns>,
    /// True while the peer's window, or the socket's buffer, is full.
    is_full: bool,
}

// === impl LifeSigns ===

impl LifeSigns {
    /// Time for which the server has been silent although something was sent to it; zero if it is not silent.
    #[must_use]
    pub fn silence(&self) -> Duration {
        let since = *self.0.silent_since.lock();
        since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Resolves when a connection has ended, now or since the last call.
    ///
    /// # Cancel safety
    /// Dropping the future loses no end.
    pub async fn connection_ended(&self) {
        self.0.ended.notified().await;
    }

    fn sent(&self) {
        self.0.silent_since.lock().get_or_insert_with(Instant::now);
    }

    fn heard(&self) {
        *self.0.silent_since.lock() = None;
    }
}

// === impl Noting ===

impl<T> Noting<T> {
    pub(super) fn new(inner: T, signs: Option<LifeSigns>) -> Self {
        Self {
            inner,
            signs,
            is_full: false,
        }
    }

    /// Notes a write. Progress of a full connection shows that the peer acknowledged bytes.
    fn note_write(&mut self, written: &Poll<io::Result<usize>>) {
        let Some(signs) = &self.signs else { return };
        match written {
            Poll::Pending => self.is_full = true,
            Poll::Ready(Ok(_)) if std::mem::take(&mut self.is_full) => signs.heard(),
            Poll::Ready(Ok(_)) => signs.sent(),
            Poll::Ready(Err(_)) => {}
        }
    }
}

impl<T> Drop for Noting<T> {
    fn drop(&mut self) {
        if let Some(signs) = &self.signs {
            signs.0.ended.notify_one();
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Noting<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.inner).poll_read(cx, buf);
        if let Some(signs) = self.signs.as_ref().filter(|_| buf.filled().len() > before) {
            signs.heard();
        }
        read
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Noting<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.note_write(&written);
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.note_write(&written);
        written
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn silence_lasts_from_the_first_write_to_the_next_byte() {
        let signs = LifeSigns::default();
        let (near, mut far) = tokio::io::duplex(4);
        let mut near = Noting::new(near, Some(signs.clone()));
        let second = Duration::from_secs(1);
        tokio::time::advance(second).await;
        assert_eq!(signs.silence(), Duration::ZERO, "nothing was sent");
        near.write_all(b"a").await.unwrap();
        tokio::time::advance(second).await;
        near.write_all(b"b").await.unwrap();
        tokio::time::advance(second).await;
        assert_eq!(signs.silence(), 2 * second);
        far.write_all(b"c").await.unwrap();
        near.read_u8().await.unwrap();
        assert_eq!(signs.silence(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn upload_that_advances_is_a_sign_of_life() {
        let signs = LifeSigns::default();
        let (near, mut far) = tokio::io::duplex(1);
        let mut near = Noting::new(near, Some(signs.clone()));
        near.write_all(b"a").await.unwrap();
        let second = Duration::from_secs(1);
        tokio::time::advance(second).await;
        let (written, read) = tokio::join!(near.write_all(b"b"), far.read_u8());
        assert!(written.is_ok() && read.is_ok());
        assert_eq!(signs.silence(), Duration::ZERO);
        drop(near);
        signs.connection_ended().await;
    }
}
