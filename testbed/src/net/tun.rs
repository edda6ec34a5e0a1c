//! A TUN device: packets that the kernel of a namespace sends into a network interface are read here, and the other way
//! round.
#![allow(
    unsafe_code,
    reason = "no safe function makes the request TUNSETIFF, or lets tokio wait for what it made"
)]

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;

use anyhow::{Context, Result};
use rustix::fs::{Mode, OFlags};
use rustix::ioctl::{self, Opcode, Setter};
use tokio::io::unix::AsyncFd;

use super::namespace::Namespace;

/// An interface of a namespace.
pub(super) struct Tun {
    file: AsyncFd<OwnedFd>,
}

/// `struct ifreq` as far as TUNSETIFF reads it.
#[repr(C)]
struct Request {
    name: [u8; 16],
    flags: u16,
    rest: [u8; 22],
}

/// `_IOW('T', 202, int)`: declared with int, but takes a `struct ifreq`.
const TUNSETIFF: Opcode = ioctl::opcode::write::<i32>(b'T', 202);
const IFF_TUN: u16 = 0x0001;
/// Packets without the four bytes of header.
const IFF_NO_PI: u16 = 0x1000;

// === impl Tun ===

impl Tun {
    /// Makes the interface `name` in `namespace`, with the address `own`, and a route through it to `far`.
    pub(super) fn open(namespace: &Namespace, name: &str, own: Ipv4Addr, far: Ipv4Addr) -> Result<Self> {
        let file = namespace.inside(|| attach(name).context("cannot make a TUN device"))?;
        let peer = format!("{far}/32");
        namespace.ip(&["address", "add", &own.to_string(), "peer", &peer, "dev", name])?;
        namespace.ip(&["link", "set", name, "up"])?;
        // SAFETY: the descriptor is owned, so it stays open and the same as long as `AsyncFd` has it.
        let file = unsafe { AsyncFd::register(file) }.context("cannot wait for a TUN device")?;
        Ok(Self { file })
    }

    /// The next packet that was sent into the interface.
    pub(super) async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut ready = self.file.readable().await?;
            if let Ok(outcome) = ready.try_io(|file| Ok(rustix::io::read(file.get_ref(), &mut *buffer)?)) {
                return outcome;
            }
        }
    }

    /// Delivers a packet. One that the kernel refuses now is lost, as on any wire.
    pub(super) fn write(&self, packet: &[u8]) {
        let _ = rustix::io::write(self.file.get_ref(), packet);
    }
}

fn attach(name: &str) -> Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open("/dev/net/tun", flags, Mode::empty())?;
    let mut request = Request {
        name: [0; 16],
        flags: IFF_TUN | IFF_NO_PI,
        rest: [0; 22],
    };
    // The kernel requires a zero at the end.
    let count = name.len().min(request.name.len() - 1);
    request.name[..count].copy_from_slice(&name.as_bytes()[..count]);
    // SAFETY: the opcode is TUNSETIFF, which reads and writes 40 bytes, the size of `Request`; `Setter` owns them.
    unsafe { ioctl::ioctl(&file, Setter::<TUNSETIFF, Request>::new(request)) }?;
    Ok(file)
}

const _: () = assert!(size_of::<Request>() == 40, "struct ifreq has 40 bytes");
