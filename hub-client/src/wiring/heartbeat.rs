//! Starts this node's heartbeat, its relay, and the check of the cloud's history, which uses the heartbeat as evidence.

use std::sync::Arc;

use tokio::sync::watch;
use yurt_pool_protocol::names::NODE_LEASES;
use yurt_runtime::tls::{ClientTls, PeerTls};

use super::Wiring;
use crate::cache::relayed_node::RelayedNode;
use crate::health::CloudReach;
use crate::pool::heartbeat::node_lease::{self, HeartbeatSettings, OwnHeartbeat};
use crate::pool::heartbeat::relaying::Relaying;
use crate::pool::lease_client::LeaseClient;
use crate::pool::relay::advertise::Advertiser;
use crate::pool::relay::client::{RelayClient, RelaySettings};
use crate::pool::relay::route::ConnectTarget;
use crate::pool::relay::serve::Relay;
use crate::pool::relay::tunnel::Limits;
use crate::replicas::durable_copy::NODE_LEASE;
use crate::replicas::history_check::{AcknowledgedLease, ClusterCheck, HistoryVerifier};

// === impl Wiring ===

impl Wiring {
    /// Starts relaying for other nodes of the pool, and provides this node's own use of them.
    fn relaying(&self) -> Option<Relaying> {
        let (settings, coordinator) = (self.config.relay?, self.config.coordinator.as_ref()?);
        let tls = PeerTls {
            ca: self.upstreams.client_ca.clone(),
            identity: self.upstreams.node.clone(),
        };
        let (offer, offered) = watch::channel(None);
        let offering = Advertiser {
            settings,
            ways_out: std::iter::once(&coordinator.server)
                .chain(&self.config.servers)
                .cloned()
                .collect(),
            tls: tls.clone(),
            relay: Relay {
                targets: self.config.servers.iter().filter_map(ConnectTarget::of).collect(),
                members: self.data.membership().clone(),
                cloud: self.cloud.0.subscribe(),
                rate: settings.bytes_per_second,
                limits: Limits::default(),
                metrics: self.metrics.clone(),
                clock: self.clock.clone(),
            },
            failures: self.data.failures().clone(),
            tasks: self.tasks.clone(),
        };
        self.tasks.spawn_critical("relay", offering.run(offer));
        let client = RelayClient::new(RelaySettings {
            node: self.config.node.clone(),
            servers: self.config.servers.clone(),
            coordinator: self.upstreams.coordinator.as_ref()?.shared.clone(),
            members: self.data.membership().clone(),
            cloud_tls: ClientTls {
                ca: self.upstreams.cluster_ca.clone(),
                identity: Some(tls.identity.clone()),
            },
            peer_tls: tls,
            all_on_loopback: settings.address.is_some_and(|address| address.is_loopback()),
            clock: self.clock.clone(),
        });
        Some(Relaying {
            client: Arc::new(client),
            offer: offered,
            written: Arc::default(),
            reach: self.cloud.0.subscribe(),
            metrics: self.metrics.clone(),
            clock: self.clock.clone(),
        })
    }

    /// Starts this node's heartbeat, and the proofs of the cloud's history, for which it is evidence.
    pub(crate) fn heartbeat(&self) -> Arc<OwnHeartbeat> {
        let pool = self.upstreams.coordinator.as_ref();
        let lease = pool.map(|pool| LeaseClient::new(pool.shared.clone(), NODE_LEASES, &self.config.node));
        let (acknowledged, relaying) = (AcknowledgedLease::default(), self.relaying());
        if let Some(relaying) = &relaying {
            let node = RelayedNode {
                node: self.config.node.clone(),
                relaying: relaying.clone(),
                cache: self.cache.clone(),
                data: self.data.clone(),
            };
            self.tasks
                .spawn_critical("read-relayed-node", node.run(self.tasks.token()));
        }
        let heartbeat = Arc::new(OwnHeartbeat::new(HeartbeatSettings {
            node: self.config.node.clone(),
            cloud: self.upstreams.cloud.clone(),
            pool: lease,
            relaying,
            history: self.data.history().clone(),
            acknowledged: acknowledged.clone(),
            failures: self.data.failures().clone(),
            wake: self.cloud.1.clone(),
            cache: self.config.cache_dir.join(NODE_LEASE),
            tasks: self.tasks.clone(),
            clock: self.clock.clone(),
        }));
        let verifier = HistoryVerifier {
            data: self.data.clone(),
            cloud: self.upstreams.cloud.clone(),
            lease: acknowledged,
            lease_path: node_lease::path_of(&self.config.node),
            reach: self.cloud.0.subscribe(),
            coordinator: self.coordinator.0.subscribe(),
            has_coordinator: self.upstreams.coordinator.is_some(),
            cluster: ClusterCheck::default(),
        };
        self.tasks
            .spawn_critical("prove-timeline", verifier.run(self.tasks.token()));
        let (reach, token, beats) = (self.cloud.0.subscribe(), self.tasks.token(), heartbeat.clone());
        self.tasks.spawn_critical("recover-heartbeat", async move {
            token.run_until_cancelled(recover(&beats, reach)).await;
        });
        heartbeat
    }
}

/// Cleans up the heartbeat each time the cloud is back; a new judgement of the cloud ends an attempt.
async fn recover(beats: &OwnHeartbeat, mut reach: watch::Receiver<CloudReach>) {
    let mut is_watched = true;
    while is_watched {
        is_watched = if reach.borrow_and_update().is_up() {
            tokio::select! {
                () = beats.cloud_is_back() => reach.changed().await.is_ok(),
                changed = reach.changed() => changed.is_ok(),
            }
        } else {
            reach.changed().await.is_ok()
        };
    }
}
