//! One node of the demo: its hub process, the link to the cloud, and the clients of the hub (a kubelet, two watch
//! clients).

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::client::{Client, Disruptions};
use super::cloud::Cloud;
use super::kubelet::Kubelet;
use super::link::Link;
use super::sample;
use crate::api::Api;
use crate::identities::{Identities, Issue};
use crate::net::port_forward;
use crate::program::{Launch, ManagedProcess};
use crate::wait_for::wait_for;
use crate::{START_LIMIT, Setup, ports};

/// The shared collections, as a client asks for them.
pub const COLLECTIONS: [&str; 2] = ["/api/v1/services", "/apis/discovery.k8s.io/v1/endpointslices"];
/// Index of the collection whose changes the story times.
const SERVICES: usize = 0;

/// Timings of the leader election among the hubs of a pool.
#[derive(Clone, Copy, Debug)]
pub struct Election {
    /// Lease duration, whole seconds.
    pub lease: Duration,
    /// Time a leader tries to renew.
    pub renew: Duration,
    /// Pause between two attempts.
    pub retry: Duration,
}

/// A node with its hub.
pub struct Hub {
    /// Name of the node.
    pub node: &'static str,
    /// Link to the cloud.
    pub link: Link,
    /// Link to the coordinator.
    pub pool_link: Link,
    /// The hub's proxy port, with a client that acts as flanneld: no filter is bound to it, so its objects are the
    /// cloud's.
    pub proxy: Api,
    /// The same port, with a client that acts as kube-proxy, whose view is filtered.
    pub kube_proxy: Api,
    /// Port of the proxy without TLS.
    pub proxy_port: u16,
    /// The hub's health port.
    health: Api,
    /// Port of health, metrics and state.
    pub health_port: u16,
    /// Its process.
    pub process: ManagedProcess,
    /// Folder of its persistent data.
    pub cache: PathBuf,
    /// Sender of the node's heartbeats, once started.
    pub kubelet: Option<Kubelet>,
    /// Kubeconfigs with their users: the node, and the identity that forwards heartbeats.
    users: [User; 2],
    /// One client per collection; none before [`Hub::start_clients`].
    clients: Vec<Client>,
}

/// User of a kubeconfig.
struct User {
    file: String,
    name: String,
    groups: [&'static str; 1],
}

/// Contents of `/debug/state.json`, as far as the story uses them.
pub struct HubState(Value);

// === impl Election ===

impl Election {
    /// Short timings, so that the story is short.
    pub const SHORT: Self = Self {
        lease: Duration::from_secs(3),
        renew: Duration::from_secs(2),
        retry: Duration::from_millis(500),
    };

    /// Defaults of hubs without flags.
    pub const DEFAULT: Self = Self {
        lease: Duration::from_secs(15),
        renew: Duration::from_secs(10),
        retry: Duration::from_secs(2),
    };

    fn flags(self, launch: Launch) -> Launch {
        let millis = |time: Duration| format!("{}ms", time.as_millis());
        launch
            .flag("leader-elect-lease-duration", millis(self.lease))
            .flag("leader-elect-renew-deadline", millis(self.renew))
            .flag("leader-elect-retry-period", millis(self.retry))
    }
}

// === impl Hub ===

impl Hub {
    /// Prepares the hub of `node`; the cloud and the pool's coordinators are behind links of its own. In namespaces
    /// there is one coordinator.
    pub async fn new(
        setup: &Setup,
        cloud: &Cloud,
        coordinators: &[u16],
        node: &'static str,
        election: Election,
    ) -> Result<Self> {
        let cache = setup.dir.join(format!("{node}.cache"));
        let (proxy_port, secure_port, health_port) = (ports::free()?, ports::free()?, ports::free()?);
        let launch = Launch::new(&setup.dir, node, setup.bin_dir.join("yurthub"));
        let (launch, link, pool_link) = match &setup.net {
            None => {
                let link = Link::open(&setup.tasks, cloud.address()).await?;
                let far = coordinators.iter().map(|port| (Ipv4Addr::LOCALHOST, *port).into());
                let pool_link = Link::balanced(&setup.tasks, far.collect()).await?;
                // All on one address: each has a port of its own, and gets the ports of the others, too.
                let launch = launch.flag("relay-address", Ipv4Addr::LOCALHOST);
                (launch.flag("relay-port", ports::free()?), link, pool_link)
            }
            Some(net) => {
                let site = net.hub(cloud.port, *coordinators.first().context("a pool has a coordinator")?)?;
                for port in [proxy_port, health_port] {
                    port_forward::open(&setup.tasks, &site.namespace, port)?;
                }
                (launch.within(&site.namespace), site.cloud, site.pool)
            }
        };
        let users = users_of(node);
        let write = |user: &User| {
            let identities = &setup.identities;
            identities.kubeconfig(&user.file, &user.name, &user.groups, link.address())
        };
        let (kubeconfig, delegate) = (write(&users[0])?, write(&users[1])?);
        let launch = launch
            .flag("node-name", node)
            .flag("nodepool-name", sample::POOL)
            .flag("server-addr", format!("https://{}", link.address()))
            .flag("bootstrap-mode", "kubeletcertificate")
            .flag("kubeconfig", kubeconfig.display())
            .flag("delegate-kubeconfig", delegate.display())
            .flag("bind-address", "127.0.0.1")
            .flag("serve-port", health_port)
            .flag("bind-proxy-address", "127.0.0.1")
            .flag("proxy-port", proxy_port)
            .flag("proxy-secure-port", secure_port)
            .flag("root-dir", setup.dir.join(format!("{node}.root")).display())
            .flag("disk-cache-path", cache.display())
            .flag("enable-dummy-if", false)
            .flag("node-identity-uids", rustix::process::geteuid().as_raw())
            .flag("enable-coordinator", true)
            .flag("coordinator-server-addr", format!("https://{}", pool_link.address()))
            .flag("coordinator-ca-file", setup.identities.ca_file().display());
        Ok(Self {
            node,
            link,
            pool_link,
            cache,
            proxy: Api::plain(proxy_port, "flanneld/demo")?,
            kube_proxy: Api::plain(proxy_port, "kube-proxy/demo")?,
            proxy_port,
            health: Api::plain(health_port, "demo")?,
            health_port,
            process: ManagedProcess::new(election.flags(launch)),
            kubelet: None,
            users,
            clients: Vec::new(),
        })
    }

    /// Starts the process without waiting for it.
    pub fn start(&mut self) -> Result<()> {
        self.process.start().map(drop)
    }

    /// Waits until the hub reports that it is healthy.
    pub async fn healthy(&mut self) -> Result<Duration> {
        let Self {
            process, health, node, ..
        } = self;
        let program = process.program()?;
        let healthz = async || {
            program.must_run()?;
            health.ping("/v1/healthz").await
        };
        Ok(wait_for(START_LIMIT, &format!("hub {node} is healthy"), healthz)
            .await?
            .1)
    }

    /// Starts the sender of heartbeats.
    ///
    /// # Errors
    /// Its client cannot be made.
    pub fn start_kubelet(&mut self, setup: &Setup) -> Result<()> {
        let api = Api::plain(self.proxy_port, "kubelet/demo")?;
        self.kubelet = Some(Kubelet::start(&setup.tasks, api, self.node));
        Ok(())
    }

    /// Starts a watching client per collection.
    pub fn start_clients(&mut self, setup: &Setup) {
        let start = |collection| Client::start(&setup.tasks, self.proxy.clone(), collection);
        self.clients = COLLECTIONS.into_iter().map(start).collect();
    }

    /// Replaces the files with the hub's client certificates.
    pub fn issue(&self, identities: &Identities, issue: Issue) -> Result<()> {
        for user in &self.users {
            identities.replace_client(&user.file, issue, &user.name, &user.groups)?;
        }
        Ok(())
    }

    /// The watching clients, in the order of [`COLLECTIONS`].
    pub fn clients(&self) -> &[Client] {
        &self.clients
    }

    /// The client that watches Services.
    pub fn services(&self) -> Result<&Client> {
        self.clients.get(SERVICES).context("the clients must be started first")
    }

    /// Disruptions of both clients so far.
    pub fn disruptions(&self) -> Disruptions {
        self.clients
            .iter()
            .map(Client::disruptions)
            .fold(Disruptions::default(), Disruptions::plus)
    }

    /// Reads `/debug/state.json`.
    ///
    /// # Errors
    /// The hub does not answer.
    pub async fn state(&self) -> Result<HubState> {
        Ok(HubState(self.health.get("/debug/state.json").await?))
    }
}

/// The node itself, and the identity that forwards the heartbeats of other nodes.
fn users_of(node: &str) -> [User; 2] {
    [
        User {
            file: format!("{node}.kubeconfig"),
            name: format!("system:node:{node}"),
            groups: ["system:nodes"],
        },
        User {
            file: format!("{node}.delegate.kubeconfig"),
            name: "openyurt:yurt-coordinator:demo".to_owned(),
            groups: ["openyurt:yurt-coordinator"],
        },
    ]
}

// === impl HubState ===

impl HubState {
    /// True if the hub leads.
    pub fn leads(&self) -> bool {
        self.0["hubState"] == "LeaderHub"
    }

    /// The whole document as text.
    pub fn text(&self) -> String {
        format!("{:#}", self.0)
    }

    /// `FollowerHub, epoch 3`
    pub fn summary(&self) -> String {
        format!(
            "{}, epoch {}",
            self.0["hubState"].as_str().unwrap_or("?"),
            self.0["epoch"]
        )
    }

    /// True if this node's heartbeats go through another node's hub now.
    pub fn is_relayed(&self) -> bool {
        !self.0["relay"]["through"].is_null()
    }

    /// The epoch of the leader it follows; 0 without one.
    pub fn epoch(&self) -> u64 {
        self.0["epoch"].as_u64().unwrap_or(0)
    }

    /// Number of nodes of the pool that the hub knows.
    pub fn members(&self) -> Option<u64> {
        self.0["collections"]["members"]["objects"].as_u64()
    }

    /// Collections, the pool's members among them, that are not complete on this hub.
    pub fn incomplete(&self) -> Vec<&str> {
        let collections = self.0["collections"].as_object().into_iter().flatten();
        let missing = collections.filter(|(_, state)| state["complete"] != true);
        missing.map(|(name, _)| name.as_str()).collect()
    }

    /// The node through whose hub it reaches the cloud; `None` when it reaches the cloud directly, or not at all.
    pub fn reaches_cloud_through(&self) -> Option<String> {
        let through = self.0["relay"]["through"].as_str().filter(|node| !node.is_empty());
        through.map(str::to_owned)
    }

    /// Sources of the pool data: `coordinator`, `cloud`, `none`; each word once.
    pub fn sources(&self) -> String {
        let collections = self.0["collections"].as_object();
        let sources = collections
            .into_iter()
            .flat_map(|map| map.values())
            .filter_map(|c| c["source"].as_str());
        let distinct: std::collections::BTreeSet<&str> = sources.collect();
        distinct.into_iter().collect::<Vec<_>>().join(" and ")
    }
}
