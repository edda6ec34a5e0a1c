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
    keep_alive(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_user_timeout(stream, USER_TIMEOUT_MILLIS)?;
    Ok(())
}

/// Settings of an accepted connection. No user timeout: a watcher may stop reading for a while.
pub(super) fn tune_server(stream: &TcpStream) -> io::Result<()> {
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
