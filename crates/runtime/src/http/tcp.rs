//! Detection of dead peers: a cut cable must not look like an idle connection.

use std::io;
use std::time::Duration;

use rustix::net::sockopt;
use tokio::net::TcpStream;

/// Idle time before the first TCP keep-alive probe of a client connection.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
/// Time between probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// Number of unanswered probes after which the connection is dead: 25 s in all on the client side.
const KEEPALIVE_PROBES: u32 = 3;
/// Maximum time that sent data may stay unacknowledged (also while the peer's window is closed), in milliseconds.
const USER_TIMEOUT_MILLIS: u32 = 15_000;
/// Servers probe less often: they have many connections, and a dead one costs little for a minute.
const SERVER_KEEPALIVE_IDLE: Duration = Duration::from_secs(30);

/// Settings of an outgoing connection.
pub(super) fn tune_client(stream: &TcpStream) -> io::Result<()> {
    keep_alive(stream, KEEPALIVE_IDLE)
}

/// Ends the connection when sent data stays unacknowledged. Not for one that may carry an upgrade: its receiver may
/// stop reading for a while.
pub(super) fn limit_unacknowledged(stream: &TcpStream) -> io::Result<()> {
    Ok(sockopt::set_tcp_user_timeout(stream, USER_TIMEOUT_MILLIS)?)
}

/// Settings of an accepted connection, which ends if its client takes nothing for `max_stall`. Without it a watcher may
/// stop reading for as long as it likes. The kernel waits as long for the answer to its probes, whatever their number.
pub(super) fn tune_server(stream: &TcpStream, max_stall: Option<Duration>) -> io::Result<()> {
    if let Some(max) = max_stall {
        sockopt::set_tcp_user_timeout(stream, u32::try_from(max.as_millis()).unwrap_or(u32::MAX))?;
    }
    keep_alive(stream, SERVER_KEEPALIVE_IDLE)
}

fn keep_alive(stream: &TcpStream, idle: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, idle)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn accepted_connection_ends_if_its_client_takes_nothing_for_long() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        for (max, millis) in [(None, 0), (Some(Duration::from_secs(60)), 60_000)] {
            tune_server(&stream, max).unwrap();
            assert_eq!(sockopt::tcp_user_timeout(&stream).unwrap(), millis);
        }
    }
}
