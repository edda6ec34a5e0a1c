//! Fixtures that the tests of all crates share: certificates of a test cluster, folders, ports, waiting.
//!
//! ```
//! let pki = yurt_test_support::TestPki::new();
//! let server = pki.server_tls();                          // serving 127.0.0.1, trusts the cluster CA
//! let node = pki.client_config(Some(&pki.node("n1")));    // system:node:n1 in system:nodes
//! assert!(server.current().alpn_protocols.len() == 2 && node.client_auth_cert_resolver.has_certs());
//! ```

pub mod etcd;
pub mod fault_fs;
mod files;
pub mod golden;
mod growth;
mod metrics;
mod pki;
mod waiting;

pub use files::{TestDir, hang, runs_while_reading};
pub use growth::{LINEAR, cpu_seconds, growth};
pub use metrics::misnamed_counters;
pub use pki::TestPki;
pub use waiting::{PATIENCE, eventually};

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::net::{self, AddressFamily, SocketType};

/// 127.0.0.1 with port 0: the kernel picks a free port. Test servers should bind to it where they can.
pub const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Ports given out are below the kernel's ephemeral range (32768 up): no outgoing connection takes one between choosing
/// it and listening on it.
const PORTS: std::ops::Range<u16> = 10_000..20_000;

/// Connections that wait at a listener of [`bind_freely`].
const BACKLOG: i32 = 16;

/// A port without a listener, which this process returns only once. Only for programs that take a port number and
/// cannot report the one they got.
///
/// # Panics
/// When all of 1,000 ports are taken.
#[must_use]
pub fn free_port() -> u16 {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    // Concurrent processes begin far apart: otherwise neighbouring ids would try the same ports.
    let first = std::process::id().wrapping_mul(997);
    let port = (0..1_000).find_map(|_| {
        let step = first.wrapping_add(GIVEN.fetch_add(1, Ordering::Relaxed));
        let port = PORTS.start + u16::try_from(step % u32::from(PORTS.end - PORTS.start)).ok()?;
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok().map(|_| port)
    });
    port.expect("loopback must have a free port")
}

/// Listens at an address that this machine need not have, as a socket of systemd with `FreeBind=true` does.
///
/// # Errors
/// The port is taken, or the system refuses the option.
pub fn bind_freely(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
    net::sockopt::set_ip_freebind(&socket, true)?;
    net::bind(&socket, &addr)?;
    net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_kubeconfig_is_complete() {
        let (pki, folder) = (TestPki::new(), TestDir::new());
        let path = pki.write_kubeconfig(&folder, "node.conf", "https://127.0.0.1:1", &pki.node("n1"));
        let config = yurt_runtime::kubeconfig::Kubeconfig::load(&path).unwrap();
        assert!(
            config
                .client_tls()
                .unwrap()
                .config()
                .unwrap()
                .client_auth_cert_resolver
                .has_certs()
        );
        let (one, other) = (free_port(), free_port());
        assert!(one != other && PORTS.contains(&one) && PORTS.contains(&other));
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_ends_with_the_first_find() {
        let mut looks = 0;
        let found = eventually("the third look", async || {
            looks += 1;
            (looks == 3).then_some("found")
        });
        assert_eq!(found.await, "found");
        assert_eq!(looks, 3);
    }
}
