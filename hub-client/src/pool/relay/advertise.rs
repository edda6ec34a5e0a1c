//! Opens the relay's port and publishes it in the pool once the node has an address that others can reach.

use std::net::SocketAddr;
use std::time::Duration;

use http::Uri;
use tokio::sync::watch;
use yurt_runtime::TaskGroup;
use yurt_runtime::http::server::Server;
use yurt_runtime::tls::PeerTls;

use super::Offer;
use super::address;
use super::serve::Relay;
use crate::config;

/// Pause before the next try to find an address and bind the port. Without them the hub only does not relay for others.
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
    /// Owner of listener and tunnels.
    pub tasks: TaskGroup,
}

// === impl Advertiser ===

impl Advertiser {
    /// Serves until the tasks end; sends the content of the pool lease to `offer`.
    pub async fn run(self, offer: watch::Sender<Option<Offer>>) {
        let token = self.tasks.token();
        let mut said = String::new();
        let server = loop {
            match token.run_until_cancelled(self.bind()).await {
                None => return,
                Some(Ok(bound)) => break bound,
                Some(Err(why)) => {
                    if why != said {
                        tracing::info!(why, "Relay for other nodes is not ready");
                        said = why;
                    }
                }
            }
            if token.run_until_cancelled(tokio::time::sleep(AGAIN)).await.is_none() {
                return;
            }
        };
        let tls = match self.tls.server() {
            Ok(tls) => tls,
            Err(error) => {
                tracing::warn!(%error, "Relay for other nodes is disabled");
                return token.cancelled().await;
            }
        };
        let servers: Vec<_> = self.relay.targets.iter().map(ToString::to_string).collect();
        offer.send_replace(Some(Offer {
            address: server.local_addr().to_string(),
            servers: servers.join(","),
        }));
        self.relay.serve(server, tls, &self.tasks);
        token.cancelled().await;
    }

    async fn bind(&self) -> Result<Server, String> {
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
        bound.await.map_err(|error| error.to_string())
    }
}
