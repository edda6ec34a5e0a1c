//! Lookup of the uid behind a connection of this machine. The kernel finds the client's socket by the connection's
//! four-tuple (`NETLINK_SOCK_DIAG`).
//!
//! An exact lookup costs four system calls, however many sockets there are. `/proc/net/tcp` would have to be read up to
//! the right line for each connection, and is not a consistent snapshot.
//!
//! The kernel reports uid 0 for a socket that no process holds open any more. So only an established one with an inode
//! counts: a client that closes right after its request has no uid.

use std::io;
use std::net::{IpAddr, SocketAddr};

use rustix::fd::OwnedFd;
use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};

// Numbers of the kernel's interface: linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h, net/tcp_states.h.
const NLMSG_ERROR: u16 = 2;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const IPPROTO_TCP: u8 = 6;
const TCP_ESTABLISHED: u8 = 1;
/// Bytes of `struct nlmsghdr`.
const HEADER: usize = 16;
/// Bytes of `struct inet_diag_req_v2`.
const REQUEST: usize = 56;
/// Offsets within `struct inet_diag_msg`, and its length.
const STATE_AT: usize = 1;
const ID_AT: usize = 4;
const UID_AT: usize = 64;
const INODE_AT: usize = 68;
const ANSWER: usize = 72;
/// Bytes of the ports and addresses at the start of `struct inet_diag_sockid`.
const TUPLE: usize = 36;
/// Maximum bytes of an answer that are read; data after the fixed part is not needed.
const ANSWER_MAX: usize = 512;
/// `-ENOENT`: there is no such socket in this network namespace.
const NO_SOCKET: i32 = -2;

/// The uid that made the client's end of a connection, whose own end is at `server`. `None` if that socket is not in
/// this network namespace, or is no longer open.
///
/// # Errors
/// The kernel does not support the lookup, for example because it was built without `CONFIG_INET_DIAG`.
pub(super) fn uid_of(client: SocketAddr, server: SocketAddr) -> io::Result<Option<u32>> {
    let tuple = tuple(client, server);
    let family = if client.ip().to_canonical().is_ipv4() {
        AF_INET
    } else {
        AF_INET6
    };
    let kernel = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(SOCK_DIAG),
    )?;
    let answer = ask(&kernel, &request(family, &tuple))?;
    parse(&answer, &tuple)
}

/// Sends a request for one socket to the kernel. The answer is available when the kernel has taken the request, so
/// there is no wait.
fn ask(kernel: &OwnedFd, request: &[u8]) -> io::Result<Vec<u8>> {
    sendto(kernel, request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut answer = vec![0; ANSWER_MAX];
    let (_, count) = recv(kernel, &mut answer[..], RecvFlags::DONTWAIT)?;
    answer.truncate(count);
    Ok(answer)
}

/// Ports and addresses in the order of the kernel's client socket.
fn tuple(client: SocketAddr, server: SocketAddr) -> [u8; TUPLE] {
    let mut tuple = [0; TUPLE];
    tuple[..2].copy_from_slice(&client.port().to_be_bytes());
    tuple[2..4].copy_from_slice(&server.port().to_be_bytes());
    for (at, address) in [(4, client.ip()), (20, server.ip())] {
        match address.to_canonical() {
            IpAddr::V4(address) => tuple[at..at + 4].copy_from_slice(&address.octets()),
            IpAddr::V6(address) => tuple[at..at + 16].copy_from_slice(&address.octets()),
        }
    }
    tuple
}

/// The tuple in the form of [`tuple()`]. The kernel returns a socket of both families with its IPv4 addresses mapped to
/// IPv6.
fn canonical(mut tuple: [u8; TUPLE]) -> [u8; TUPLE] {
    for address in tuple[4..].as_chunks_mut::<16>().0 {
        if let IpAddr::V4(mapped) = IpAddr::from(*address).to_canonical() {
            *address = [0; 16];
            address[..4].copy_from_slice(&mapped.octets());
        }
    }
    tuple
}

fn request(family: u8, tuple: &[u8; TUPLE]) -> Vec<u8> {
    let mut request = Vec::with_capacity(HEADER + REQUEST);
    request.extend(((HEADER + REQUEST) as u32).to_ne_bytes());
    request.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request.extend(NLM_F_REQUEST.to_ne_bytes());
    // Sequence number and port: one request, one answer.
    request.extend([0; 8]);
    // No extensions; sockets in any state.
    request.extend([family, IPPROTO_TCP, 0, 0]);
    request.extend(u32::MAX.to_ne_bytes());
    request.extend(tuple);
    // Any interface, any cookie.
    request.extend([0; 4]);
    request.extend([u8::MAX; 8]);
    request
}

fn parse(answer: &[u8], tuple: &[u8; TUPLE]) -> io::Result<Option<u32>> {
    let strange = || {
        io::Error::new(
            io::ErrorKind::InvalidData,
            "the kernel's answer about a socket is not one",
        )
    };
    let kind = answer.get(4..6).ok_or_else(strange)?;
    let body = answer.get(HEADER..).ok_or_else(strange)?;
    if kind == NLMSG_ERROR.to_ne_bytes() {
        return match i32::from_ne_bytes(*body.first_chunk().ok_or_else(strange)?) {
            NO_SOCKET => Ok(None),
            code => Err(io::Error::from_raw_os_error(code.saturating_neg())),
        };
    }
    if kind != SOCK_DIAG_BY_FAMILY.to_ne_bytes() || body.len() < ANSWER {
        return Err(strange());
    }
    let number = |at: usize| {
        let bytes = body[at..].first_chunk().ok_or_else(strange)?;
        Ok::<_, io::Error>(u32::from_ne_bytes(*bytes))
    };
    let is_open = body[STATE_AT] == TCP_ESTABLISHED && number(INODE_AT)? != 0;
    let id = body[ID_AT..].first_chunk().ok_or_else(strange)?;
    Ok((is_open && canonical(*id) == *tuple).then_some(number(UID_AT)?))
}

#[cfg(test)]
mod tests {
    use std::net::{Shutdown, TcpListener, TcpStream};

    use super::*;

    /// A connection over this address: both ends, and the listener.
    fn connected(address: &str) -> (TcpStream, TcpStream, TcpListener) {
        let listener = TcpListener::bind((address, 0)).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let server = listener.accept().unwrap().0;
        (client, server, listener)
    }

    fn uid(server: &TcpStream) -> Option<u32> {
        uid_of(server.peer_addr().unwrap(), server.local_addr().unwrap()).unwrap()
    }

    #[test]
    fn both_families_are_found() {
        let own = rustix::process::geteuid().as_raw();
        for address in ["127.0.0.1", "::1"] {
            let (_client, server, _listener) = connected(address);
            assert_eq!(uid(&server), Some(own), "{address}");
        }
        // A client of both families that connects to an address of one.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let _client = TcpStream::connect(("::ffff:127.0.0.1", port)).unwrap();
        let server = listener.accept().unwrap().0;
        assert!(server.peer_addr().unwrap().is_ipv4());
        assert_eq!(uid(&server), Some(own));
        // A listener of both families sees an address of one in the form of the other.
        let listener = TcpListener::bind("[::]:0").unwrap();
        let _client = TcpStream::connect(("127.0.0.1", listener.local_addr().unwrap().port())).unwrap();
        let server = listener.accept().unwrap().0;
        assert!(server.peer_addr().unwrap().is_ipv6());
        assert_eq!(uid(&server), Some(own));
    }

    #[test]
    fn closed_socket_is_nobodys_though_the_kernel_says_root() {
        let (client, server, _listener) = connected("127.0.0.1");
        drop(client);
        assert_eq!(uid(&server), None);
        let (client, server, _listener) = connected("127.0.0.1");
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(uid(&server), None, "half closed is on its way there");
    }

    #[test]
    fn address_without_a_connection_is_nobodys() {
        let (client, server, listener) = connected("127.0.0.1");
        let (there, here) = (client.local_addr().unwrap(), server.local_addr().unwrap());
        let unused = SocketAddr::new(here.ip(), 1);
        assert_eq!(uid_of(unused, here).unwrap(), None);
        // The requested port has a listener, and the kernel returns a listener if there is no connection.
        assert_eq!(uid_of(listener.local_addr().unwrap(), unused).unwrap(), None);
        assert!(uid_of(there, here).unwrap().is_some());
    }

    #[test]
    fn answers_that_are_none_are_errors() {
        let tuple = [7; TUPLE];
        let answer = |kind: u16, body: &[u8]| {
            let mut answer = vec![0; 4];
            answer.extend(kind.to_ne_bytes());
            answer.extend([0; HEADER - 6]);
            answer.extend(body);
            parse(&answer, &tuple)
        };
        let mut open = [0; ANSWER];
        open[STATE_AT] = TCP_ESTABLISHED;
        open[ID_AT..ID_AT + TUPLE].copy_from_slice(&tuple);
        open[INODE_AT] = 1;
        assert_eq!(answer(SOCK_DIAG_BY_FAMILY, &open).unwrap(), Some(0));
        let mut other = open;
        other[ID_AT] = 8;
        assert_eq!(answer(SOCK_DIAG_BY_FAMILY, &other).unwrap(), None, "another connection");
        assert_eq!(answer(NLMSG_ERROR, &NO_SOCKET.to_ne_bytes()).unwrap(), None);
        let denied = answer(NLMSG_ERROR, &(-1_i32).to_ne_bytes()).unwrap_err();
        assert_eq!(denied.kind(), io::ErrorKind::PermissionDenied);
        assert!(answer(SOCK_DIAG_BY_FAMILY, &open[..ANSWER - 1]).is_err());
        assert!(answer(99, &open).is_err() && parse(&[], &tuple).is_err());
    }
}
