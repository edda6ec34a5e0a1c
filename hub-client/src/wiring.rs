//! Starts the parts of a hub and connects them: probes, replicas, election, heartbeat, proxy, report.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::Verb;
use yurt_pool_protocol::source::CoordinatorState;
use yurt_runtime::admin::AdminRoutes;
use yurt_runtime::{Clock, Readiness, TaskGroup};
use yurt_storage::Replica;

use crate::cache::agents::Agents;
use crate::cache::store::{self, Cache};
use crate::config::Config;
use crate::failures::Failures;
use crate::filter::binding::Table;
use crate::filter::masterservice::MasterService;
use crate::filter::{FILTERS, HubAddress, ObjectFilter as _, PodTrust, masterservice};
use crate::health::{self, CloudReach, CoordinatorReach};
use crate::hub_config::disk::ConfigFile;
use crate::hub_config::{self, HubConfig};
use crate::identity::CertificateKeeper;
use crate::identity::serving::ServingCertificate;
use crate::listeners;
use crate::metrics::Metrics;
use crate::pool::election::driver::ElectionView;
use crate::pool::feed::progress::FeedProgress;
use crate::pool::heartbeat::node_lease::OwnHeartbeat;
use crate::proxy::Proxy;
use crate::proxy::approver::{self, Approval, Approver};
use crate::proxy::authorize::{self, Authorizer, Means};
use crate::proxy::bodies::Bodies;
use crate::proxy::cached::Cached;
use crate::proxy::caller::Callers;
use crate::proxy::caller::token::NodeToken;
use crate::proxy::local::Local;
use crate::proxy::offline::Offline;
use crate::proxy::open_answers::OpenAnswers;
use crate::proxy::pass_through::PassThrough;
use crate::proxy::places::Places;
use crate::proxy::serving::Serving;
use crate::proxy::written::Written;
use crate::replicas::PoolData;
use crate::replicas::alarm::{FINDINGS_MAX, Finding};
use crate::replicas::derived::Derived;
use crate::replicas::derived::inputs::{LiveInputs, NodeFacts};
use crate::replicas::host_network::HostNetworkFollower;
use crate::replicas::pool_flag::PoolFlagCheck;
use crate::replicas::pool_label::{PoolLabel, PoolLabelFollower};
use crate::status::Report;
use crate::upstream::Upstreams;

mod election;
mod heartbeat;
mod offline;
mod replicas;
mod truth;

pub(crate) use offline::KEPT;

/// Collection with Service `default/kubernetes`.
const SERVICES: &str = "services";
/// Failure key: pods do without the hub, because it has no address of the family of Services.
const FAMILY: &str = "IP family of Services";

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
    hub_config: (ConfigFile, watch::Sender<Arc<HubConfig>>),
    approval: watch::Sender<Arc<Approval>>,
    findings: (mpsc::Sender<Finding>, Mutex<Option<mpsc::Receiver<Finding>>>),
    cache: Cache,
    agents: Arc<Agents>,
    /// Name of the node's pool; `None` while it is unknown.
    pool: watch::Sender<Option<String>>,
    /// True if this hub must not lead, because its Node may be of another pool than `--nodepool-name`.
    other_pool: Arc<watch::Sender<bool>>,
    /// Trust of pods in the hub's certificate for them.
    trust: watch::Receiver<PodTrust>,
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
        trust: watch::Receiver<PodTrust>,
    ) -> Self {
        let unknown = CoordinatorReach {
            state: CoordinatorState::Unreachable { since: clock.boot() },
            status: None,
        };
        metrics.registry.register(upstreams.cloud.traffic().collector());
        let config_file = ConfigFile::new(&config.cache_dir, &config.namespace);
        let known = config_file.load();
        let filters = Approval::new(&Table::new(&FILTERS, &config.filters.switches), &known);
        let hub_config = watch::Sender::new(Arc::new(known));
        let agents = Arc::new(Agents::new(hub_config.subscribe(), data.failures().clone()));
        let (findings, found) = mpsc::channel(FINDINGS_MAX);
        let (reach, wake) = (watch::Sender::default(), Arc::<Notify>::default());
        let cache = Cache::new(store::Means {
            data: data.clone(),
            cloud: upstreams.cloud.clone(),
            reach: reach.subscribe(),
            wake: wake.clone(),
            tasks: tasks.clone(),
            node: config.node.clone(),
        });
        Self {
            progress: Arc::new(FeedProgress::new(clock.clone())),
            pool: watch::Sender::new(config.pool.clone()),
            other_pool: Arc::new(watch::Sender::new(config.coordinator.is_some())),
            config,
            clock,
            tasks,
            upstreams,
            data,
            metrics,
            cloud: (reach, wake),
            coordinator: (watch::Sender::new(unknown), Arc::default()),
            election: watch::Sender::default(),
            member_count: watch::Sender::new(1),
            rank: watch::Sender::new(0),
            agents,
            approval: watch::Sender::new(Arc::new(filters)),
            hub_config: (config_file, hub_config),
            findings: (findings, Mutex::new(Some(found))),
            cache,
            trust,
        }
    }

    /// Loads the cached selections, before anything asks for evidence of the cloud's history.
    pub(crate) async fn load_cache(&self) {
        self.cache.load().await;
        let sweeping = self.cache.clone().run(self.tasks.token());
        self.tasks.spawn_critical("sweep-cache", sweeping);
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
        if let Some(coordinator) = self.upstreams.coordinator.clone() {
            let (reach, wake) = &self.coordinator;
            let (clock, reach, wake) = (self.clock.clone(), reach.clone(), wake.clone());
            let probing = health::probe_coordinator(coordinator, clock, reach, wake, failures.clone(), token);
            self.tasks.spawn_critical("probe-coordinator", probing);
        }
    }

    /// Starts following ConfigMap `yurt-hub-cfg`, and the value of the NodePool that a filter may need.
    pub(crate) fn start_hub_config(&self) {
        let (file, state) = self.hub_config.clone();
        let follower = hub_config::Follower {
            cloud: self.upstreams.cloud.clone(),
            reach: self.cloud.0.subscribe(),
            namespace: self.config.namespace.clone(),
            file,
            state,
            failures: self.data.failures().clone(),
        };
        self.tasks
            .spawn_critical("follow-hub-config", follower.run(self.tasks.token()));
        if !self.config.pool_name().is_empty() {
            let follower = HostNetworkFollower {
                cloud: self.upstreams.cloud.clone(),
                reach: self.cloud.0.subscribe(),
                data: self.data.clone(),
            };
            self.tasks
                .spawn_critical("follow-host-network", follower.run(self.tasks.token()));
        }
    }

    /// Starts following the label that names the pool, or comparing it with the flag if this hub could lead its pool.
    pub(crate) fn start_pool_label(&self, label: PoolLabel) {
        let (cloud, reach) = (self.upstreams.cloud.clone(), self.cloud.0.subscribe());
        let (failures, token) = (self.data.failures().clone(), self.tasks.token());
        if self.config.is_pool_of_label {
            let known = self.pool.clone();
            let follower = PoolLabelFollower {
                label,
                known,
                cloud,
                reach,
                failures,
            };
            self.tasks.spawn_critical("follow-pool-label", follower.changed(token));
        } else if self.config.coordinator.is_some() {
            let check = PoolFlagCheck {
                label,
                flag: self.config.pool_name().to_owned(),
                other_pool: self.other_pool.clone(),
                cloud,
                reach,
                failures,
            };
            self.tasks.spawn_critical("check-pool-flag", check.run(token));
        }
    }

    /// Starts the renewal of the node's certificates.
    pub(crate) fn start_certificate(&self, keeper: &Arc<CertificateKeeper>, readiness: &Readiness) {
        let check = readiness.check("certificate");
        check.set(keeper.standing().is_valid());
        let keeping = keeper
            .clone()
            .keep(check, self.data.failures().clone(), self.tasks.token());
        self.tasks.spawn_critical("keep-certificate", keeping);
        if listeners::requests_certificate(&self.config) {
            self.start_serving_certificate();
        }
    }

    /// Starts requesting and renewing the certificate of the HTTPS port for pods.
    fn start_serving_certificate(&self) {
        let services = self.data.replicas().named(SERVICES);
        let kubernetes = masterservice::kubernetes();
        let addresses = move || {
            let services = services.as_ref().filter(|services| services.is_served())?;
            let service = services.collection().read(|held| held.object(&kubernetes).cloned())?;
            let spec = service.to_value()["spec"].take();
            let listed = spec["clusterIPs"].as_array().into_iter().flatten();
            let all = listed.chain([&spec["clusterIP"]]).filter_map(Value::as_str);
            let addresses: BTreeSet<String> = all.map(str::to_owned).collect();
            Some(addresses.into_iter().collect())
        };
        let keeper = ServingCertificate {
            node: self.config.node.clone(),
            address: self.config.hub_host.to_string(),
            cluster: Arc::new(addresses),
            root: self.config.root_dir.clone(),
            cloud: self.upstreams.cloud.clone(),
            clock: self.clock.clone(),
            failures: self.data.failures().clone(),
        };
        self.tasks
            .spawn_critical("keep-serving-certificate", keeper.keep(self.tasks.token()));
    }

    /// Starts a check of Service `default/kubernetes`: without an address of its family the hub gets no pods.
    /// `masterservice` keeps the Service then, and nothing else tells the administrator.
    fn start_family_check(&self) {
        let hub = self.config.hub();
        let services = self.data.replicas().named(SERVICES);
        let Some(services) = services.filter(|_| hub.is_for_pods()) else {
            return;
        };
        let checking = check_family(hub, services, self.approval.subscribe(), self.data.failures().clone());
        let token = self.tasks.token();
        self.tasks.spawn("check-family", async move {
            token.run_until_cancelled(checking).await;
        });
    }

    /// Starts binding the filters as the ConfigMap says.
    fn start_binding(&self) {
        let (state, config) = (self.approval.clone(), self.hub_config.1.subscribe());
        let binding = approver::follow(state, config, self.tasks.token());
        self.tasks.spawn_critical("bind-filters", binding);
    }

    /// Creates the proxy; `token` is the kubelet's, `end_watches` ends its streams.
    pub(crate) fn proxy(
        &self,
        heartbeat: Arc<OwnHeartbeat>,
        token: NodeToken,
        end_watches: CancellationToken,
    ) -> Proxy {
        let config = &self.config;
        let node = NodeFacts {
            node: config.node.clone(),
            pool: self.pool.subscribe(),
            hub: config.hub(),
            trust: self.trust.clone(),
            options: config.filters.options,
        };
        let tokens = self.tokens();
        let means = Means {
            accounts: tokens.accounts(),
            refused: tokens.refused(),
            reviews: Arc::new(self.upstreams.cloud.clone()),
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
        let offline = self.offline(authorizer.clone(), tokens);
        let local = Local {
            data: self.data.clone(),
            authorizer,
            derived: Derived::new(
                LiveInputs::new(node, self.data.clone(), offline.own.pending.local_pods()),
                self.tasks.clone(),
            ),
            mode: config.mode,
            serving: Serving {
                cloud: self.cloud.0.subscribe(),
                min_request_timeout: config.min_request_timeout,
                clock: self.clock.clone(),
                shutdown: end_watches.clone(),
            },
            written: Arc::new(Written::new(self.clock.clone())),
        };
        self.start_binding();
        self.start_family_check();
        let local = Arc::new(local);
        let cached = Cached {
            cache: self.cache.clone(),
            local: local.clone(),
            agents: self.agents.clone(),
        };
        Proxy {
            node: config.node.clone(),
            callers: Callers::new(&config.node, config.identity.clone(), token),
            approver: Approver::new(
                self.approval.subscribe(),
                self.data.clone(),
                self.trust.clone(),
                !config.pool_name().is_empty(),
            ),
            local,
            cached,
            cloud: self.pass_through(end_watches),
            offline,
            heartbeat,
            tasks: self.tasks.clone(),
            metrics: self.metrics.clone(),
            places: Places::new(config.max_in_flight, &self.metrics),
            bodies: Bodies::default(),
            calls: OpenAnswers::calls(),
        }
    }

    fn pass_through(&self, end_watches: CancellationToken) -> PassThrough {
        PassThrough {
            cloud: self.upstreams.cloud.clone(),
            reach: self.cloud.0.subscribe(),
            tasks: self.tasks.clone(),
            wake: self.cloud.1.clone(),
            streams: OpenAnswers::streams(),
            agents: self.agents.clone(),
            end_watches,
        }
    }

    /// Creates the operator's port, and reports its changes to the pool.
    pub(crate) fn admin(
        &self,
        readiness: Readiness,
        heartbeat: Arc<OwnHeartbeat>,
        certificate: Arc<CertificateKeeper>,
        offline: Arc<Offline>,
    ) -> AdminRoutes {
        let report = Report {
            node: self.config.node.clone(),
            pool: self.pool.subscribe(),
            data: self.data.clone(),
            cache: self.cache.clone(),
            cloud: self.cloud.0.subscribe(),
            servers: self.upstreams.cloud.clone(),
            coordinator: self
                .upstreams
                .coordinator
                .as_ref()
                .map(|_| self.coordinator.0.subscribe()),
            election: self.election.subscribe(),
            hub_config: self.hub_config.1.subscribe(),
            approval: self.approval.subscribe(),
            trust: self.trust.clone(),
            heartbeat,
            offline,
            metrics: self.metrics.clone(),
            forwards: self.upstreams.cloud.server().delegate.is_some(),
            progress: self.progress.clone(),
            clock: self.clock.clone(),
            conditions: Mutex::default(),
            certificate,
        };
        let report = Arc::new(report);
        let coordinator = self.upstreams.coordinator.as_ref().map(|pool| pool.shared.clone());
        report.start(&self.config.node, coordinator, &self.tasks);
        report.routes(readiness)
    }
}

/// Reports in `failures` that `masterservice` keeps Service `default/kubernetes` because of its family, while the
/// kubelet has that filter.
async fn check_family(
    hub: HubAddress,
    services: Arc<Replica>,
    mut approval: watch::Receiver<Arc<Approval>>,
    failures: Failures,
) {
    let key = masterservice::kubernetes();
    let mut changes = services.collection().subscribe();
    loop {
        services.served().await;
        changes.borrow_and_update();
        let chain = approval
            .borrow_and_update()
            .table
            .chain("kubelet", "", SERVICES, Verb::List);
        let is_wanted = chain.names().contains(&MasterService.name());
        let service = services.collection().read(|held| held.object(&key).cloned());
        let kept = service.filter(|service| is_wanted && !masterservice::leads_to(hub, service));
        failures.tell(FAMILY, kept.map(|service| masterservice::why_kept(hub, &service)));
        let changed = tokio::select! {
            changed = changes.changed() => changed,
            changed = approval.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
    }
}
