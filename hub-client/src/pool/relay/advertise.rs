//! Opens the relay's port and publishes it in the pool once the node has an address that others can reach.

use std::net::SocketAddr;
use std::time::Duration;

use http::Uri;
use tokio::sync::watch;
use yurt_runtime::TaskGroup;
use yurt_runtime::http::server::Server;
use yurt_runtime::tls::{PeerTls, ReloadingServerTls};

use super::Offer;
use super::address;
use super::serve::Relay;
use crate::config;
use crate::failures::Failures;

/// Failure key: the relay does not listen.
const FAILURE: &str = "relay";
/// Pause before the next try to load the certificates, find an address and bind the port. Without them the hub only
/// does not relay for others.
const AGAIN: Duration = Duration::from_secs(30);

/// Dependencies of the accepting side.
pub struct Advertiser {
    /// Flags of the relay.
    pub settings: config::Relay,
    /// Servers on whose route this node's address is looked up: the coordinator, then the cloud servers.
    pub ways_out: Vec<Uri>,
    /// Certificates.
    pub tls: PeerTls,
    /// Relay to serve.
    pub relay: Relay,
    /// Failures of the hub.
    pub failures: Failures,
    /// Owner of listener and tunnels.
    pub tasks: TaskGroup,
}

// === impl Advertiser ===

impl Advertiser {
    /// Serves until the tasks end; sends the content of the pool lease to `offer`.
    pub async fn run(self, offer: watch::Sender<Option<Offer>>) {
        let token = self.tasks.token();
        let (server, tls) = loop {
            match token.run_until_cancelled(self.open()).await {
                None => return,
                Some(Ok(opened)) => break opened,
                Some(Err(why)) => self.failures.refused(FAILURE, &why),
            }
            if token.run_until_cancelled(tokio::time::sleep(AGAIN)).await.is_none() {
                return;
            }
        };
        self.failures.works(FAILURE);
        let servers: Vec<_> = self.relay.targets.iter().map(ToString::to_string).collect();
        offer.send_replace(Some(Offer {
            address: server.local_addr().to_string(),
            servers: servers.join(","),
        }));
        self.relay.serve(server, tls, &self.tasks);
        token.cancelled().await;
    }

    /// Loads the certificates and binds the port. Both may fail for a time: a file is just replaced, a port is taken.
    async fn open(&self) -> Result<(Server, ReloadingServerTls), String> {
        let tls = self.tls.server().map_err(|error| error.to_string())?;
        let address = match self.settings.address {
            Some(address) => address,
            None => address::towards(&self.ways_out)
                .await
                .ok_or("this node has no address that other nodes can reach; set --relay-address")?,
        };
        let bound = Server::bind(
            SocketAddr::new(address, self.settings.port),
            "--relay-address, --relay-port",
        );
        let server = bound.await.map_err(|error| error.to_string())?;
        Ok((server, tls))
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};
    use std::sync::Arc;

    use yurt_runtime::Clock;
    use yurt_runtime::tls::PemIdentity;
    use yurt_test_support::{LOOPBACK, TestDir, TestPki};

    use super::*;
    use crate::metrics::Metrics;
    use crate::pool::relay::tunnel::Limits;
    use crate::replicas::PoolData;

    #[tokio::test(start_paused = true)]
    async fn missing_certificate_and_taken_port_are_failures_until_they_are_there_and_free() {
        let (folder, pki, tasks) = (TestDir::new(), TestPki::new(), TaskGroup::new());
        let own = folder.path().join("node.pem");
        let identity = PemIdentity {
            cert: own.clone().into(),
            key: own.clone().into(),
        };
        let data = PoolData::open(folder.path(), "hangzhou", usize::MAX, Clock::system()).unwrap();
        let (taken, metrics) = (TcpListener::bind(LOOPBACK).unwrap(), Arc::new(Metrics::new().unwrap()));
        let advertiser = Advertiser {
            settings: config::Relay {
                address: Some(Ipv4Addr::LOCALHOST.into()),
                port: taken.local_addr().unwrap().port(),
                bytes_per_second: 1,
            },
            ways_out: Vec::new(),
            tls: PeerTls {
                identity,
                ..pki.peer_tls(&pki.node("n1"))
            },
            relay: Relay {
                targets: Vec::new(),
                members: data.membership().clone(),
                cloud: watch::Sender::default().subscribe(),
                rate: 1,
                limits: Limits::default(),
                metrics: metrics.clone(),
                clock: Clock::system(),
            },
            failures: data.failures().clone(),
            tasks: tasks.clone(),
        };
        let (offer, mut offered) = watch::channel(None);
        tasks.spawn("relay", advertiser.run(offer));
        tokio::time::sleep(AGAIN / 2).await;
        let why = || data.failures().why(FAILURE).unwrap_or_default();
        assert!(why().contains("node.pem"), "{}", why());
        let pair = pki.node("n1");
        std::fs::write(&own, pair.cert_pem + &pair.key_pem).unwrap();
        tokio::time::sleep(AGAIN).await;
        assert!(why().contains("--relay-port"), "{}", why());
        drop(taken);
        offered.wait_for(Option::is_some).await.unwrap();
        assert_eq!(data.failures().why(FAILURE), None);
        let series = r#"node_yurthub_relay_tunnels_refused_total{reason="cut_off"} 0"#;
        assert!(metrics.registry.render().contains(series), "an increase must be seen");
    }
}
