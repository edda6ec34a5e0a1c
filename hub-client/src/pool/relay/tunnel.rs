//! Copies the bytes of one tunnel in both directions at a bounded rate. Stops when an end closes, at the idle timeout
//! or at the end of the lifetime.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use yurt_runtime::Clock;

use super::token_bucket::TokenBucket;

/// Size of the copy buffer of each direction, bytes; a tunnel holds nothing else.
const COPY_BUFFER: usize = 8 * 1024;

/// Limits of one tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Idle time after which a tunnel is closed, at the latest after twice this time. A live client sends a ping every
    /// 10 s.
    pub idle: Duration,
    /// Maximum lifetime of a tunnel; a client that still needs one opens the next.
    pub lifetime: Duration,
    /// Bytes per second of this tunnel, both directions together.
    pub rate: u64,
}

/// Reason for the end of a tunnel.
#[derive(Debug)]
pub enum End {
    /// One of the two ends closed or broke the connection.
    Closed(io::Result<()>),
    /// No byte moved during the idle timeout.
    Idle,
    /// The lifetime was over.
    Old,
}

/// State shared by both directions.
struct TunnelState<'a> {
    clock: &'a Clock,
    own: Mutex<TokenBucket>,
    buckets: [&'a Mutex<TokenBucket>; 2],
    moved: AtomicU64,
}

// === impl Limits ===

impl Default for Limits {
    fn default() -> Self {
        Self {
            idle: Duration::from_secs(45),
            lifetime: Duration::from_secs(600),
            rate: 32 * 1024,
        }
    }
}

/// Copies bytes until the tunnel ends. `member` is the budget of the node that the tunnel serves, `all` the rate limit
/// of all tunnels together.
pub async fn copy(
    near: impl AsyncRead + AsyncWrite,
    far: impl AsyncRead + AsyncWrite,
    limits: Limits,
    member: Arc<Mutex<TokenBucket>>,
    all: Arc<Mutex<TokenBucket>>,
    clock: &Clock,
) -> End {
    let shared = TunnelState {
        clock,
        own: Mutex::new(TokenBucket::new(limits.rate)),
        buckets: [&member, &all],
        moved: AtomicU64::new(0),
    };
    let (near_read, near_write) = tokio::io::split(near);
    let (far_read, far_write) = tokio::io::split(far);
    tokio::select! {
        result = shared.pump(near_read, far_write) => End::Closed(result),
        result = shared.pump(far_read, near_write) => End::Closed(result),
        () = shared.idle(limits.idle) => End::Idle,
        () = tokio::time::sleep(limits.lifetime) => End::Old,
    }
}

// === impl TunnelState ===

impl TunnelState<'_> {
    async fn pump(&self, reader: impl AsyncRead, writer: impl AsyncWrite) -> io::Result<()> {
        let (mut reader, mut writer) = (std::pin::pin!(reader), std::pin::pin!(writer));
        let mut buffer = vec![0; COPY_BUFFER];
        loop {
            let count = reader.read(&mut buffer).await?;
            if count == 0 {
                return writer.shutdown().await;
            }
            let wait = self.spend(count);
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
            writer.write_all(&buffer[..count]).await?;
            writer.flush().await?;
            self.moved.fetch_add(count as u64, Ordering::Relaxed);
        }
    }

    fn spend(&self, bytes: usize) -> Duration {
        let now = self.clock.boot().since_boot();
        let own = self.own.lock().spend(now, bytes);
        let shared = self.buckets.map(|bucket| bucket.lock().spend(now, bytes));
        shared.into_iter().fold(own, Duration::max)
    }

    async fn idle(&self, limit: Duration) {
        let mut seen = self.moved.load(Ordering::Relaxed);
        loop {
            tokio::time::sleep(limit).await;
            let now = self.moved.load(Ordering::Relaxed);
            if std::mem::replace(&mut seen, now) == now {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{DuplexStream, duplex};

    use super::*;

    /// Creates the two far ends of a tunnel, and the tunnel.
    fn tunnel(limits: Limits, all: u64) -> (DuplexStream, DuplexStream, impl Future<Output = End>) {
        tunnel_of(limits, TokenBucket::new(u64::MAX), all)
    }

    fn tunnel_of(
        limits: Limits,
        member: TokenBucket,
        all: u64,
    ) -> (DuplexStream, DuplexStream, impl Future<Output = End>) {
        let (client, near) = duplex(1024);
        let (far, cloud) = duplex(1024);
        let copying = async move {
            let (member, all) = [member, TokenBucket::new(all)]
                .map(|pace| Arc::new(Mutex::new(pace)))
                .into();
            copy(near, far, limits, member, all, &Clock::system()).await
        };
        (client, cloud, copying)
    }

    #[tokio::test]
    async fn bytes_pass_both_ways_until_an_end_closes() {
        let (mut client, mut cloud, copying) = tunnel(Limits::default(), u64::MAX);
        let talking = async {
            client.write_all(b"hello").await.unwrap();
            let mut heard = [0; 5];
            cloud.read_exact(&mut heard).await.unwrap();
            cloud.write_all(&heard.map(|b| b.to_ascii_uppercase())).await.unwrap();
            client.read_exact(&mut heard).await.unwrap();
            drop(client);
            assert_eq!(
                cloud.read(&mut [0; 1]).await.unwrap(),
                0,
                "the other end is closed, too"
            );
            heard
        };
        let (end, heard) = tokio::join!(copying, talking);
        assert!(matches!(end, End::Closed(Ok(()))), "{end:?}");
        assert_eq!(&heard, b"HELLO");
    }

    #[tokio::test]
    async fn silent_and_stuck_tunnels_are_closed() {
        let limits = Limits {
            idle: Duration::from_millis(20),
            ..Limits::default()
        };
        let (_client, _cloud, copying) = tunnel(limits, u64::MAX);
        assert!(matches!(copying.await, End::Idle), "neither end sends");
        let (mut client, _cloud, copying) = tunnel(limits, u64::MAX);
        let flood = async { while client.write_all(&[0; 512]).await.is_ok() {} };
        let (end, ()) = tokio::join!(copying, flood);
        assert!(matches!(end, End::Idle), "the cloud reads nothing: {end:?}");
    }

    #[tokio::test]
    async fn busy_tunnel_is_closed_when_its_time_is_up() {
        let limits = Limits {
            idle: Duration::from_millis(25),
            lifetime: Duration::from_millis(200),
            rate: u64::MAX,
        };
        let (mut client, mut cloud, copying) = tunnel(limits, u64::MAX);
        let talk = async {
            while client.write_all(b"x").await.is_ok() {
                if cloud.read(&mut [0; 16]).await.unwrap_or(0) == 0 {
                    break;
                }
                tokio::task::yield_now().await;
            }
        };
        let (end, ()) = tokio::join!(copying, talk);
        assert!(matches!(end, End::Old), "{end:?}");
    }

    #[tokio::test]
    async fn tunnel_of_a_member_that_spent_its_day_moves_next_to_nothing() {
        let limits = Limits {
            idle: Duration::from_millis(200),
            ..Limits::default()
        };
        let day = 24 * 60 * 60;
        let mut spent = TokenBucket::daily(day);
        let now = Clock::system().boot().since_boot();
        assert_eq!(
            spent.spend(now, 2 * usize::try_from(day).unwrap()),
            Duration::from_secs(day)
        );
        let (mut client, _cloud, copying) = tunnel_of(limits, spent, u64::MAX);
        let flood = async { while client.write_all(&[0; 512]).await.is_ok() {} };
        let (end, ()) = tokio::join!(copying, flood);
        assert!(matches!(end, End::Idle), "{end:?}");
    }

    #[tokio::test]
    async fn pace_of_one_and_of_all_is_kept() {
        for (own, all) in [(10_000, u64::MAX), (u64::MAX, 10_000)] {
            let limits = Limits {
                rate: own,
                ..Limits::default()
            };
            let clock = Clock::system();
            let begin = clock.boot();
            let (mut client, mut cloud, copying) = tunnel(limits, all);
            let sending = async {
                client.write_all(&[7; 15_000]).await.unwrap();
                client
            };
            let taking = async {
                let mut taken = vec![0; 15_000];
                cloud.read_exact(&mut taken).await.unwrap();
                drop(cloud);
            };
            let (_, client, ()) = tokio::join!(copying, sending, taking);
            drop(client);
            // One second's worth passes immediately, the rest takes half a second.
            assert!(clock.boot().since(begin) >= Duration::from_millis(450));
        }
    }
}
