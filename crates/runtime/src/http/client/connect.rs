//! TCP connection to a host with one or more addresses, in the manner of RFC 8305.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

/// Time of an attempt before the next address is tried as well; RFC 8305 §8 recommends 250 ms.
const NEXT_AFTER: Duration = Duration::from_millis(250);
/// Maximum number of addresses of a host that are tried.
const ADDRESSES_MAX: usize = 12;

/// Connects to the first address of a host that accepts. Earlier attempts go on while later addresses are tried.
/// There is no timeout: the caller sets one and drops the future.
///
/// # Errors
/// That of the name lookup, or of the last attempt that failed.
pub async fn connect_tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    connect_first(interleaved(lookup_host((host, port)).await?)).await
}

/// Orders addresses so that the families alternate, the first one first.
fn interleaved(found: impl Iterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let mut families = [0_usize; 2];
    let within_family = found.map(|address| {
        let place = &mut families[usize::from(address.is_ipv6())];
        *place += 1;
        (*place, address)
    });
    let mut places: Vec<_> = within_family.collect();
    places.sort_by_key(|(place, _)| *place);
    let addresses = places.into_iter().map(|(_, address)| address);
    addresses.take(ADDRESSES_MAX).collect()
}

/// Connects to the first of the addresses that accepts.
async fn connect_first(addresses: Vec<SocketAddr>) -> io::Result<TcpStream> {
    let mut attempts = FuturesUnordered::new();
    let mut failed = io::Error::new(ErrorKind::NotFound, "the name has no address");
    let mut left = addresses.into_iter();
    loop {
        attempts.extend(left.next().map(TcpStream::connect));
        let ended = match left.len() {
            0 => attempts.next().await,
            _ => match timeout(NEXT_AFTER, attempts.next()).await {
                Ok(ended) => ended,
                Err(_) => continue,
            },
        };
        match ended {
            Some(Ok(stream)) => return Ok(stream),
            Some(Err(error)) => failed = error,
            None => return Err(failed),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpSocket};

    use super::*;

    /// Enough for any attempt here; the kernel repeats a SYN without an answer for longer.
    const LONG: Duration = Duration::from_secs(30);

    /// A listener that accepts nothing and whose queue is full, so that further attempts get no answer, and the
    /// connections in its queue.
    async fn silent() -> (TcpListener, Vec<TcpStream>) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let listener = socket.listen(1).unwrap();
        let (address, mut queued) = (listener.local_addr().unwrap(), Vec::new());
        while let Ok(stream) = timeout(Duration::from_millis(200), TcpStream::connect(address)).await {
            queued.push(stream.unwrap());
        }
        (listener, queued)
    }

    async fn refusing() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap()
    }

    #[tokio::test]
    async fn address_that_does_not_answer_or_refuses_does_not_keep_the_next_one_from_being_tried() {
        let (silent, _queued) = silent().await;
        let live = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = live.local_addr().unwrap();
        let addresses = vec![silent.local_addr().unwrap(), refusing().await, to];
        let connected = timeout(LONG, connect_first(addresses)).await.expect("an attempt ends");
        assert_eq!(connected.unwrap().peer_addr().unwrap(), to);
    }

    #[tokio::test]
    async fn last_error_is_returned_if_no_address_accepts() {
        let addresses = vec![refusing().await, refusing().await];
        let error = connect_first(addresses).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        let error = connect_first(Vec::new()).await.unwrap_err();
        assert_eq!(error.to_string(), "the name has no address");
    }

    #[test]
    fn families_alternate_and_the_number_is_bounded() {
        let order = |found: &[&str]| -> Vec<String> {
            let found = found.iter().map(|address| format!("{address}:443").parse().unwrap());
            interleaved(found)
                .iter()
                .map(|address| address.ip().to_string())
                .collect()
        };
        let found = ["[fd00::1]", "[fd00::2]", "[fd00::3]", "10.0.0.1", "10.0.0.2"];
        assert_eq!(order(&found), ["fd00::1", "10.0.0.1", "fd00::2", "10.0.0.2", "fd00::3"]);
        assert_eq!(order(&["10.0.0.1", "10.0.0.2"]), ["10.0.0.1", "10.0.0.2"]);
        let many = ["10.0.0.1"; 100];
        assert_eq!(order(&many).len(), ADDRESSES_MAX);
    }
}
