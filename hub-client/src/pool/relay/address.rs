//! Finds the address at which the other nodes of the pool reach this one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use http::Uri;
use tokio::net::lookup_host;

use super::route::{ConnectTarget, may_dial};

/// Returns this node's source address on the route to the first of `servers` that is outside the node; `None` if there
/// is no such route. Sends nothing.
pub async fn towards(servers: &[Uri]) -> Option<IpAddr> {
    for target in servers.iter().filter_map(ConnectTarget::of) {
        let Ok(addresses) = lookup_host(target.to_dial()).await else {
            continue;
        };
        let found = addresses.into_iter().find_map(source_towards);
        if found.is_some() {
            return found;
        }
    }
    None
}

/// Returns the source address that the kernel would choose. Connecting a UDP socket selects it without sending a
/// packet.
fn source_towards(server: SocketAddr) -> Option<IpAddr> {
    let any = match server {
        SocketAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(server).ok()?;
    let source = socket.local_addr().ok()?;
    may_dial(source, false).then(|| source.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn loopback_leads_nowhere() {
        let servers = ["https://127.0.0.1:1", "https://[::1]:1"].map(Uri::from_static);
        assert_eq!(towards(&servers).await, None);
    }
}
