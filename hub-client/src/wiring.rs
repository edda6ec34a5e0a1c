//! Starts the parts of a hub and connects them: probes, replicas, election, heartbeat, proxy, report.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;
use yurt_pool_protocol::cloud_fallback::Wanted;
use yurt_pool_protocol::election::rank;
use yurt_pool_protocol::members;
use yurt_pool_protocol::source::CoordinatorState;
use yurt_runtime::http::server::Handler;
use yurt_runtime::tls::{ClientTls, PeerTls};
use yurt_runtime::{Clock, Readiness, TaskGroup};
use yurt_storage::Replica;

use crate::StartError;
use crate::config::{Config, ELECTION_LEASE, ELECTION_NAMESPACE};
use crate::failpoints;
use crate::health::{self, CloudReach, CoordinatorReach};
use crate::metrics::Metrics;
use crate::pool::election::driver::{Driver, ElectionView, Signals};
use crate::pool::feed::progress::FeedProgress;
use crate::pool::heartbeat::node_lease::{self, HeartbeatSettings, OwnHeartbeat};
use crate::pool::heartbeat::relaying::Relaying;
use crate::pool::leader::Leader;
use crate::pool::lease_client::LeaseClient;
use crate::pool::relay::advertise::Advertiser;
use crate::pool::relay::client::{RelayClient, Settings};
use crate::pool::relay::route::Target;
use crate::pool::relay::serve::Relay;
use crate::pool::relay::tunnel::Limits;
use crate::pool::scope::ScopeTeller;
use crate::pool::scope::agreed::ScopeFollower;
use crate::pool::source_controller::SourceController;
use crate::proxy::Proxy;
use crate::proxy::authorize::{self, Authorizer, Means};
use crate::proxy::caller::Callers;
use crate::proxy::caller::token::NodeToken;
use crate::proxy::local::{Local, NodeFacts};
use crate::proxy::pass_through::PassThrough;
use crate::proxy::places::Places;
use crate::proxy::written::Written;
use crate::replicas::alarm::{FINDINGS_MAX, Finding};
use crate::replicas::durable_copy::NODE_LEASE;
use crate::replicas::follower::Follower;
use crate::replicas::history_check::{AcknowledgedLease, HistoryVerifier};
use crate::replicas::{PoolData, ahead, lag};
use crate::status::Report;
use crate::upstream::{CoordinatorClient, Upstreams};

mod truth;

/// Interval between commits of changed replicas; a crash costs only another fetch of the data since then.
const PERSIST_EVERY: Duration = Duration::from_secs(5);

/// State shared by the parts of a hub.
pub(crate) struct Wiring {
    config: Config,
    clock: Clock,
    tasks: TaskGroup,
    upstreams: Upstreams,
    data: Arc<PoolData>,
    metrics: Arc<Metrics>,
    progress: Arc<FeedProgress>,
    cloud: (watch::Sender<CloudReach>, Arc<Notify>),
    coordinator: (watch::Sender<CoordinatorReach>, Arc<Notify>),
    election: watch::Sender<ElectionView>,
    member_count: watch::Sender<u32>,
    rank: watch::Sender<u32>,
    findings: (mpsc::Sender<Finding>, Mutex<Option<mpsc::Receiver<Finding>>>),
}

// === impl Wiring ===

impl Wiring {
    /// Creates the parts from their inputs, with no shared state yet; nothing runs.
    pub(crate) fn new(
        config: Config,
        clock: Clock,
        tasks: TaskGroup,
        upstreams: Upstreams,
        data: Arc<PoolData>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let unknown = CoordinatorReach {
            state: CoordinatorState::Unreachable { since: clock.boot() },
            status: None,
        };
        let (findings, found) = mpsc::channel(FINDINGS_MAX);
        Self {
            progress: Arc::new(FeedProgress::new(clock.clone())),
            config,
            clock,
            tasks,
            upstreams,
            data,
            metrics,
            cloud: (watch::Sender::default(), Arc::default()),
            coordinator: (watch::Sender::new(unknown), Arc::default()),
            election: watch::Sender::default(),
            member_count: watch::Sender::new(1),
            rank: watch::Sender::new(0),
            findings: (findings, Mutex::new(Some(found))),
        }
    }

    /// Starts the probes of cloud and coordinator.
    pub(crate) fn start_probes(&self) {
        let (token, failures) = (self.tasks.token(), self.data.failures());
        let (reach, wake) = &self.cloud;
        let cloud = self.upstreams.cloud.clone();
        self.tasks.spawn_critical(
            "probe-cloud",
            health::probe_cloud(cloud, reach.clone(), wake.clone(), failures.clone(), token.clone()),
        );
        if let Some(CoordinatorClient { shared, .. }) = self.upstreams.coordinator.clone() {
            let (reach, wake) = &self.coordinator;
            let (clock, reach, wake) = (self.clock.clone(), reach.clone(), wake.clone());
            let probing = health::probe_coordinator(shared, clock, reach, wake, failures.clone(), token);
            self.tasks.spawn_critical("probe-coordinator", probing);
        }
    }

    /// Starts following, steering and storing the replicas.
    pub(crate) fn start_replicas(&self) {
        let wanted = watch::Sender::new(Wanted::default());
        self.start_scope();
        let following = self
            .data
            .clone()
            .each_replica(self.tasks.token(), self.follow(wanted.subscribe()));
        self.tasks.spawn_critical("follow-replicas", following);
        // Without a coordinator there is no status to compare, and the task would end at the hub's start.
        if self.upstreams.coordinator.is_some() {
            let leaving = ahead::compare(
                self.data.clone(),
                self.coordinator.0.subscribe(),
                wanted.subscribe(),
                self.clock.clone(),
                self.tasks.token(),
            );
            self.tasks.spawn_critical("leave-copies-ahead", leaving);
        }
        let steering = SourceController {
            election: self.election.subscribe(),
            cloud: self.cloud.0.subscribe(),
            coordinator: self
                .upstreams
                .coordinator
                .as_ref()
                .map(|_| self.coordinator.0.subscribe()),
            members: self.member_count.subscribe(),
            history: self.data.history().clone(),
            clock: self.clock.clone(),
        };
        self.tasks
            .spawn_critical("steer-replicas", steering.run(wanted, self.tasks.token()));
        self.start_verifying();
        self.tasks
            .spawn_critical("persist-replicas", persist(self.data.clone(), self.tasks.token()));
        let ranking = report_members(
            self.data.clone(),
            self.config.node.clone(),
            self.member_count.clone(),
            self.rank.clone(),
            self.election.subscribe(),
            self.tasks.token(),
        );
        self.tasks.spawn_critical("rank-members", ranking);
    }

    /// Follows a replica until it is gone.
    fn follow(&self, wanted: watch::Receiver<Wanted>) -> impl FnMut(Arc<Replica>) + Send + use<> {
        let (data, upstreams, tasks) = (self.data.clone(), self.upstreams.clone(), self.tasks.clone());
        let (pool, clock) = (self.config.pool.clone(), self.clock.clone());
        move |replica| {
            // Without a pool there is no membership to follow.
            if replica.name() == members::COLLECTION && pool.is_empty() {
                return;
            }
            let gone = replica.gone().clone();
            let follower = Follower {
                replica,
                data: data.clone(),
                upstreams: upstreams.clone(),
                wanted: wanted.clone(),
                pool: pool.clone(),
                tasks: tasks.clone(),
                clock: clock.clone(),
            };
            tasks.spawn("follow-replica", async move {
                gone.run_until_cancelled(follower.run()).await;
            });
        }
    }

    /// Starts reading the additional shared resources from coordinator and cloud, or from the one that is available.
    fn start_scope(&self) {
        let token = self.tasks.token();
        if self.upstreams.coordinator.is_some() {
            let follower = ScopeFollower {
                cloud: self.upstreams.cloud.clone(),
                reach: self.cloud.0.subscribe(),
                coordinator: self.coordinator.0.subscribe(),
                data: self.data.clone(),
            };
            self.tasks.spawn_critical("follow-scope", follower.run(token));
            return;
        }
        let teller = ScopeTeller {
            cloud: self.upstreams.cloud.clone(),
            data: self.data.clone(),
            coordinator: None,
        };
        self.tasks.spawn_critical("follow-scope", teller.run(token));
    }

    /// Starts the election in its own task group, whose shutdown releases the lease.
    ///
    /// # Errors
    /// Invalid settings of the election.
    pub(crate) fn start_election(&self, tasks: &TaskGroup) -> Result<(), StartError> {
        let (Some(settings), Some(coordinator)) = (&self.config.coordinator, &self.upstreams.coordinator) else {
            return Ok(());
        };
        if !settings.candidate {
            return Ok(());
        }
        let identity = format!("{}_{}", self.config.node, uuid::Uuid::new_v4());
        let mut election = settings.election(&identity);
        election.ignore_own_clock = failpoints::is_leader_clock_check_off();
        let leader = Leader {
            identity,
            upstreams: self.upstreams.clone(),
            coordinator: coordinator.clone(),
            data: self.data.clone(),
            metrics: self.metrics.clone(),
            progress: self.progress.clone(),
            clock: self.clock.clone(),
            wake: self.coordinator.1.clone(),
        };
        let lease = LeaseClient::new(coordinator.shared.clone(), ELECTION_NAMESPACE, ELECTION_LEASE);
        let start_leading = Box::new(move |group: &TaskGroup, leadership| leader.start(group, &leadership));
        let driver = Driver::new(
            election,
            self.clock.clone(),
            lease,
            self.election.clone(),
            start_leading,
            self.data.failures().clone(),
            tasks.clone(),
        )
        .map_err(|error| StartError::Internal(error.to_string()))?;
        let signals = Signals {
            cloud: self.cloud.0.subscribe(),
            coordinator: self.coordinator.0.subscribe(),
            rank: self.rank.subscribe(),
            behind: self.start_comparing(),
            wake: self.coordinator.1.clone(),
        };
        tasks.spawn_critical("election", driver.run(signals, tasks.token().cancelled_owned()));
        Ok(())
    }

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
                targets: self.config.servers.iter().filter_map(Target::of).collect(),
                members: self.data.membership().clone(),
                cloud: self.cloud.0.subscribe(),
                rate: settings.bytes_per_second,
                limits: Limits::default(),
                metrics: self.metrics.clone(),
                clock: self.clock.clone(),
            },
            tasks: self.tasks.clone(),
        };
        self.tasks.spawn_critical("relay", offering.run(offer));
        let client = RelayClient::new(Settings {
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
            reach: self.cloud.0.subscribe(),
            metrics: self.metrics.clone(),
        })
    }

    /// Starts comparing this node's replicas with the coordinator's.
    fn start_comparing(&self) -> watch::Receiver<bool> {
        let (behind, is_behind) = watch::channel(false);
        let comparing = lag::compare(
            self.data.clone(),
            self.coordinator.0.subscribe(),
            behind,
            self.tasks.token(),
        );
        self.tasks.spawn_critical("compare-replicas", comparing);
        is_behind
    }

    /// Starts this node's heartbeat, and the proofs of the cloud's history, for which it is evidence.
    pub(crate) fn heartbeat(&self) -> Arc<OwnHeartbeat> {
        let pool = self.upstreams.coordinator.as_ref();
        let lease = pool.map(|pool| LeaseClient::new(pool.shared.clone(), node_lease::NAMESPACE, &self.config.node));
        let acknowledged = AcknowledgedLease::default();
        let heartbeat = Arc::new(OwnHeartbeat::new(HeartbeatSettings {
            node: self.config.node.clone(),
            cloud: self.upstreams.cloud.clone(),
            pool: lease,
            relaying: self.relaying(),
            history: self.data.history().clone(),
            acknowledged: acknowledged.clone(),
            failures: self.data.failures().clone(),
            wake: self.cloud.1.clone(),
            cache: self.config.cache_dir.join(NODE_LEASE),
            tasks: self.tasks.clone(),
            clock: self.clock.clone(),
        }));
        let prover = HistoryVerifier {
            data: self.data.clone(),
            cloud: self.upstreams.cloud.clone(),
            lease: acknowledged,
            lease_path: node_lease::path_of(&self.config.node),
            reach: self.cloud.0.subscribe(),
            coordinator: self.coordinator.0.subscribe(),
            is_other_cluster: false,
        };
        self.tasks
            .spawn_critical("prove-timeline", prover.run(self.tasks.token()));
        let (mut reach, token, beats) = (self.cloud.0.subscribe(), self.tasks.token(), heartbeat.clone());
        self.tasks.spawn_critical("recover-heartbeat", async move {
            while let Some(Ok(())) = token.run_until_cancelled(reach.changed()).await {
                if reach.borrow_and_update().is_up() {
                    beats.cloud_is_back().await;
                }
            }
        });
        heartbeat
    }

    /// Creates the proxy; `token` is the kubelet's, `end_watches` ends its streams.
    pub(crate) fn proxy(
        &self,
        heartbeat: Arc<OwnHeartbeat>,
        token: NodeToken,
        end_watches: CancellationToken,
    ) -> Proxy {
        let config = &self.config;
        let cloud = self.upstreams.cloud.clone();
        let node = NodeFacts {
            node: config.node.clone(),
            pool: config.pool.clone(),
            host: config.hub_host,
            secure_port: config.secure_addr.port(),
        };
        let means = Means {
            reviews: Arc::new(cloud.clone()),
            reach: self.cloud.0.subscribe(),
            wake: self.cloud.1.clone(),
            clock: self.clock.clone(),
            tasks: self.tasks.clone(),
        };
        let authorizer = Authorizer::open(means, config.cache_dir.join(authorize::FILE));
        self.tasks.spawn_critical(
            "keep-authorizations",
            authorizer
                .clone()
                .keep(self.tasks.token(), self.data.copy().is_foreign().clone()),
        );
        let local = Local {
            data: self.data.clone(),
            authorizer,
            node,
            cloud: self.cloud.0.subscribe(),
            min_request_timeout: config.min_request_timeout,
            clock: self.clock.clone(),
            shutdown: end_watches,
            written: Arc::new(Written::new(self.clock.clone())),
        };
        Proxy {
            node: config.node.clone(),
            callers: Callers::new(config.identity.clone(), token),
            local: Arc::new(local),
            cloud: PassThrough {
                cloud,
                tasks: self.tasks.clone(),
                wake: self.cloud.1.clone(),
            },
            heartbeat,
            tasks: self.tasks.clone(),
            metrics: self.metrics.clone(),
            places: Places::new(config.max_in_flight, &self.metrics),
        }
    }

    /// Creates the operator's port, and reports its changes to the pool.
    pub(crate) fn admin(&self, readiness: Readiness, heartbeat: Arc<OwnHeartbeat>) -> Handler {
        let report = Report {
            node: self.config.node.clone(),
            pool: self.config.pool.clone(),
            data: self.data.clone(),
            cloud: self.cloud.0.subscribe(),
            coordinator: self
                .upstreams
                .coordinator
                .as_ref()
                .map(|_| self.coordinator.0.subscribe()),
            election: self.election.subscribe(),
            heartbeat,
            metrics: self.metrics.clone(),
            forwards: self.upstreams.cloud.server().delegate.is_some(),
            progress: self.progress.clone(),
            clock: self.clock.clone(),
            conditions: Mutex::default(),
        };
        let report = Arc::new(report);
        let coordinator = self.upstreams.coordinator.as_ref().map(|pool| pool.shared.clone());
        report.start(&self.config.node, coordinator, &self.tasks);
        report.routes(readiness).handler()
    }
}

async fn persist(data: Arc<PoolData>, token: CancellationToken) {
    while token
        .run_until_cancelled(tokio::time::sleep(PERSIST_EVERY))
        .await
        .is_some()
    {
        if let Err(error) = data.replicas().persist_due(None).await {
            tracing::warn!(%error, "Failed to store the replicas; retrying");
        }
    }
}

/// Sends the election this node's rank among the members, and the steering their number.
async fn report_members(
    data: Arc<PoolData>,
    node: String,
    count: watch::Sender<u32>,
    rank: watch::Sender<u32>,
    mut election: watch::Receiver<ElectionView>,
    token: CancellationToken,
) {
    let Some(members) = data.replicas().named(members::COLLECTION) else {
        return;
    };
    let mut changes = members.collection().subscribe();
    let (mut last_leader, mut told) = (String::new(), None);
    loop {
        // A free lease does not change the last leader.
        let leader = election.borrow_and_update().leader.clone();
        if !leader.is_empty() {
            last_leader = leader;
        }
        let names = members.collection().read(|c| members::names(c.objects()));
        let place = rank::place(&names, &node, &last_leader);
        count.send_replace(u32::try_from(names.len().max(1)).unwrap_or(u32::MAX));
        rank.send_if_modified(|rank| std::mem::replace(rank, place) != place);
        if told.as_ref() != Some(&names) {
            data.membership().notify();
            told = Some(names);
        }
        let leads_another = async {
            // Without an election there is never a leader.
            if election.changed().await.is_err() {
                std::future::pending().await
            }
        };
        let changed = async {
            tokio::select! {
                changed = changes.changed() => changed,
                () = leads_another => Ok(()),
            }
        };
        match token.run_until_cancelled(changed).await {
            Some(Ok(())) => {}
            _ => return,
        }
    }
}
