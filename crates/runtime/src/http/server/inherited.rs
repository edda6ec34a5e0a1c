//! Listening sockets that a service manager holds and passes on at the start (systemd's socket activation:
//! `LISTEN_PID`, `LISTEN_FDS`, `LISTEN_FDNAMES`). Their ports are never free, also while a program is restarted.

use std::io;
use std::net::{SocketAddr, TcpListener};

use listenfd::ListenFd;

/// The sockets, until they are taken by their addresses.
#[derive(Debug, Default)]
pub struct Inherited {
    sockets: Vec<(String, SocketAddr, TcpListener)>,
}

// === impl Inherited ===

impl Inherited {
    /// The sockets passed to this process; none if `LISTEN_PID` names another one. Removes the variables from the
    /// environment, so it must be called before there are threads.
    ///
    /// # Errors
    /// One of them is not a listening TCP socket; the message names it.
    pub fn from_env() -> io::Result<Self> {
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let mut names = names.split(':').map(str::to_owned);
        let mut passed = ListenFd::from_env();
        let mut sockets = Vec::new();
        for at in 0..passed.len() {
            let name = names.next().unwrap_or_else(|| "unknown".to_owned());
            let fail = |why: String| io::Error::other(format!("inherited socket {at} ({name}): {why}"));
            let taken = passed.take_tcp_listener(at).map_err(|error| fail(error.to_string()))?;
            let listener = taken.ok_or_else(|| fail("not there".to_owned()))?;
            let addr = listener.local_addr().map_err(|error| fail(error.to_string()))?;
            listener.set_nonblocking(true)?;
            sockets.push((name, addr, listener));
        }
        Ok(Self { sockets })
    }

    /// Takes the socket with exactly this address.
    pub(super) fn take(&mut self, addr: SocketAddr) -> Option<TcpListener> {
        let at = self.sockets.iter().position(|(_, held, _)| *held == addr)?;
        Some(self.sockets.swap_remove(at).2)
    }

    /// Closes the socket with exactly this address, if there is one.
    pub fn close(&mut self, addr: SocketAddr) {
        drop(self.take(addr));
    }

    /// Checks that no socket is left unused.
    ///
    /// # Errors
    /// Their names and addresses.
    pub fn check_all_taken(&self) -> Result<(), String> {
        let left: Vec<_> = self
            .sockets
            .iter()
            .map(|(name, addr, _)| format!("{name} ({addr})"))
            .collect();
        if left.is_empty() {
            return Ok(());
        }
        Err(format!(
            "inherited sockets that no flag names: {}; give a port flag the same address and port, or take the socket out",
            left.join(", ")
        ))
    }
}
