//! Fixtures that the tests of all crates share: certificates of a test cluster, folders, ports, waiting.
//!
//! ```
//! let pki = yurt_test_support::TestPki::new();
//! let server = pki.server_tls();                          // serving 127.0.0.1, trusts the cluster CA
//! let node = pki.client_config(Some(&pki.node("n1")));    // system:node:n1 in system:nodes
//! assert!(server.current().alpn_protocols.len() == 2 && node.client_auth_cert_resolver.has_certs());
//! ```

pub mod etcd;
mod files;
mod pki;
mod waiting;

pub use files::TestDir;
pub use pki::TestPki;
pub use waiting::{PATIENCE, eventually};

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

/// 127.0.0.1 with port 0: the kernel picks a free port. What a test server should bind whenever it can.
pub const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A port that was free a moment ago: only for programs that take a port number and cannot report the one they got.
///
/// # Panics
/// When the machine has no free port.
#[must_use]
pub fn free_port() -> u16 {
    let listener = TcpListener::bind(LOOPBACK).expect("loopback must have a free port");
    listener
        .local_addr()
        .expect("a bound socket must have an address")
        .port()
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
        assert_ne!(free_port(), 0);
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
