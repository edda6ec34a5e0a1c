//! Chooses free loopback ports for the programs of the demo.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::{Result, bail};

/// Below the kernel's ephemeral range (32768 up), so that no outgoing connection takes a port between its choice and
/// the listener.
const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

/// Next port to try; starts at a place of its own in every process, so that two demos rarely collide.
static NEXT: AtomicU16 = AtomicU16::new(0);

/// Returns a port without a listener that this process has not returned before.
pub fn free() -> Result<u16> {
    let start = u16::try_from(std::process::id().wrapping_mul(61) % u32::from(COUNT)).unwrap_or(0);
    for _ in 0..COUNT {
        let port = FIRST + (start + NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no free loopback port between {FIRST} and {}", FIRST + COUNT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_never_handed_out_twice() {
        let ports: Vec<u16> = (0..50).map(|_| free().expect("there must be a free port")).collect();
        let distinct: std::collections::BTreeSet<_> = ports.iter().collect();
        assert_eq!(distinct.len(), ports.len());
        assert!(ports.iter().all(|port| (FIRST..FIRST + COUNT).contains(port)));
    }
}
