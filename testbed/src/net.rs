//! A private network: cloud, coordinator and hubs in network namespaces, joined by virtual links that lose, delay,
//! duplicate, reorder or drop packets below TCP.
//!
//! `link_conditions` and `tcp_reset` decide (pure), `virtual_link` carries, [`namespace`], `tun` and [`port_forward`]
//! use the kernel. The programs see a real network: the kernel's own TCP times out, retransmits and resets their
//! sockets.
//!
//! Addresses are the same in every testbed; they are not reachable from outside its namespaces.

pub mod link_conditions;
pub mod namespace;
pub mod port_forward;
mod tcp_reset;
mod tun;
mod virtual_link;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::{Context, Result};
use yurt_runtime::TaskGroup;

use super::link::Link;
use namespace::Namespace;
use tun::Tun;

/// Address of the cloud's servers.
pub const CLOUD: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
/// Address of the coordinator.
pub const POOL: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 2);

/// The namespaces of a testbed. Each hub gets one of its own from [`Net::hub`].
pub struct Net {
    tasks: TaskGroup,
    seed: u64,
    cloud: Namespace,
    pool: Namespace,
    hubs: AtomicU8,
}

/// Namespace of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramNamespace {
    /// The cloud's servers.
    Cloud,
    /// The coordinator.
    Pool,
}

/// Namespace of a hub, and its virtual links.
pub struct Site {
    /// Namespace of the hub's process.
    pub namespace: Namespace,
    /// Link to the cloud's server.
    pub cloud: Link,
    /// Link to the coordinator.
    pub pool: Link,
}

// === impl Net ===

impl Net {
    /// # Errors
    /// The reason why this machine or user may not have network namespaces and TUN devices.
    pub fn new(tasks: &TaskGroup, seed: u64) -> Result<Self> {
        let this = Self {
            tasks: tasks.clone(),
            seed,
            cloud: Namespace::new()?,
            pool: Namespace::new()?,
            hubs: AtomicU8::new(0),
        };
        // The device is dropped immediately: this detects missing rights now, not in the middle of a run.
        Tun::open(&this.cloud, "probe", CLOUD, POOL)?;
        Ok(this)
    }

    /// Returns the namespace of a server.
    pub fn namespace(&self, place: ProgramNamespace) -> &Namespace {
        match place {
            ProgramNamespace::Cloud => &self.cloud,
            ProgramNamespace::Pool => &self.pool,
        }
    }

    /// A new namespace with a virtual link to the cloud and one to the coordinator, whose servers have these ports.
    pub fn hub(&self, cloud_port: u16, pool_port: u16) -> Result<Site> {
        let number = self.hubs.fetch_add(1, Ordering::Relaxed) + 1;
        let namespace = Namespace::new()?;
        let own = Ipv4Addr::new(10, 99, 1, number);
        let virtual_link = |place: ProgramNamespace, far: Ipv4Addr, name: &str, port: u16| -> Result<Link> {
            let ends = [
                Tun::open(&namespace, name, own, far)?,
                Tun::open(self.namespace(place), &format!("hub{number}"), far, own)?,
            ];
            let (link, mode, counters) = Link::unconnected(SocketAddr::from((far, port)));
            // Every direction of every virtual link has random numbers of its own; `connect` distinguishes the
            // directions by the lowest bit.
            let seed = self.seed.wrapping_mul(1 << 16)
                ^ (u64::from(number) << 2)
                ^ (u64::from(place == ProgramNamespace::Pool) << 1);
            virtual_link::connect(&self.tasks, ends, seed, &mode, &counters);
            Ok(link)
        };
        let to_cloud = virtual_link(ProgramNamespace::Cloud, CLOUD, "cloud", cloud_port)
            .context("the virtual link to the cloud")?;
        let to_pool = virtual_link(ProgramNamespace::Pool, POOL, "pool", pool_port)
            .context("the virtual link to the coordinator")?;
        Ok(Site {
            namespace,
            cloud: to_cloud,
            pool: to_pool,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpSocket, TcpStream};

    use super::*;
    use crate::link::Mode;

    const BOUND: Duration = Duration::from_secs(60);
    const PORT: u16 = 7000;

    /// A server in the cloud that echoes its input, and a hub's site; `None` if that is not permitted.
    async fn echo() -> Option<(TaskGroup, Net, Site)> {
        let tasks = TaskGroup::new();
        let net = match Net::new(&tasks, 1) {
            Ok(net) => net,
            Err(why) => {
                eprintln!("not tested: {why:#}");
                return None;
            }
        };
        let listen = || {
            let listener = std::net::TcpListener::bind((CLOUD, PORT)).expect("a port");
            listener.set_nonblocking(true).expect("a socket");
            Ok(listener)
        };
        let site = net.hub(PORT, PORT).expect("a site");
        let listener = net.cloud.inside(listen).expect("a listener");
        let listener = TcpListener::from_std(listener).expect("a listener");
        let group = tasks.clone();
        tasks.spawn("echo", async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                group.spawn("echo connection", async move {
                    let (mut read, mut write) = stream.split();
                    let _ = tokio::io::copy(&mut read, &mut write).await;
                });
            }
        });
        Some((tasks, net, site))
    }

    async fn connect(site: &Site) -> std::io::Result<TcpStream> {
        let socket = site.namespace.inside(|| Ok(TcpSocket::new_v4()?)).expect("a socket");
        let connected = tokio::time::timeout(BOUND, socket.connect(site.cloud.address())).await;
        connected.expect("no hang")
    }

    /// Sends many bytes and reads them back.
    async fn round_trip(stream: &mut TcpStream) {
        let sent: Vec<u8> = (0..100_000_u32).map(|number| number as u8).collect();
        let (mut read, mut write) = stream.split();
        let mut got = vec![0; sent.len()];
        let both = async { tokio::try_join!(write.write_all(&sent), read.read_exact(&mut got)) };
        tokio::time::timeout(BOUND, both)
            .await
            .expect("no hang")
            .expect("no break");
        assert_eq!(got, sent);
    }

    #[tokio::test]
    async fn tcp_survives_every_weather() {
        let Some((_tasks, _net, site)) = echo().await else {
            return;
        };
        let mut stream = connect(&site).await.expect("a connection");
        for mode in [Mode::Pass, Mode::Reordered, Mode::Doubled, Mode::Damaged, Mode::Lossy] {
            site.cloud.set(mode);
            let before = site.cloud.traffic().bytes_from_cloud;
            round_trip(&mut stream).await;
            let moved = site.cloud.traffic().bytes_from_cloud - before;
            assert!(moved > 100_000, "{mode:?}: {moved} bytes");
        }
        assert_eq!(site.cloud.traffic().connections, 1);
    }

    #[tokio::test]
    async fn half_a_cable_is_silent_and_a_cut_one_resets() {
        let Some((_tasks, _net, site)) = echo().await else {
            return;
        };
        let mut stream = connect(&site).await.expect("a connection");
        site.cloud.set(Mode::AnswersVanish);
        stream.write_all(&[1]).await.expect("the kernel takes it");
        let silent = tokio::time::timeout(Duration::from_millis(300), stream.read_u8()).await;
        assert!(silent.is_err(), "no answer arrives, and no reset");
        site.cloud.set(Mode::Pass);
        let late = tokio::time::timeout(BOUND, stream.read_u8()).await.expect("no hang");
        assert_eq!(late.expect("it was sent again"), 1);
        site.cloud.set(Mode::Cut);
        stream.write_all(&[2]).await.expect("the kernel takes it");
        let reset = tokio::time::timeout(BOUND, stream.read_u8()).await.expect("no hang");
        assert_eq!(reset.expect_err("a reset").kind(), std::io::ErrorKind::ConnectionReset);
        assert!(connect(&site).await.is_err(), "a new one is refused");
    }
}
