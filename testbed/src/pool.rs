//! All programs of the story, and the checks the story makes on them.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use yurt_workspace::Stopwatch;

use super::client::Disruptions;
use super::cloud::{Choice, Cloud};
use super::etcd::Etcd;
use super::hub::{COLLECTIONS, Election, Hub};
use super::sample::{self, NAMESPACE};
use crate::api::{Api, Listing};
use crate::net::ProgramNamespace;
use crate::program::ManagedProcess;
use crate::wait_for::wait_for;
use crate::{Setup, coordinator_launch, ready};

/// The cloud, the pool's coordinator and its hubs.
pub struct TestPool {
    /// Parameters of all programs.
    pub setup: Setup,
    /// The cloud.
    pub cloud: Cloud,
    /// The pool's coordinator.
    pub coordinator: Coordinator,
    /// Further coordinators that form one server with it, over etcd.
    pub others: Vec<Coordinator>,
    /// Storage of the coordinators; `None` if each has a file.
    pub etcd: Option<Etcd>,
    /// One hub per node.
    pub hubs: Vec<Hub>,
    /// Number of changes that the story made to its Service.
    touches: u32,
}

/// The pool's coordinator.
pub struct Coordinator {
    /// Port of its API.
    pub port: u16,
    /// Client of the administrator.
    pub api: Api,
    /// Its process.
    pub process: ManagedProcess,
    /// Folder of its persistent data.
    pub data: PathBuf,
}

/// The election's Lease on the coordinator.
pub const ELECTION: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/yurthub";
/// The Service that the story changes to measure how fast a change travels.
const TOUCHED: &str = "app-01";

// === impl TestPool ===

impl TestPool {
    /// Prepares all programs and starts the cloud. The pool does not run yet.
    pub async fn new(setup: Setup, choice: &Choice) -> Result<Self> {
        Self::of(setup, choice, &sample::NODES, Election::SHORT).await
    }

    /// As [`Self::new`], with two coordinators over one etcd, and every hub's link leads to both.
    pub async fn over_etcd(setup: Setup, choice: &Choice) -> Result<Self> {
        let etcd = Etcd::start(&setup).await?;
        Self::with(setup, choice, &sample::NODES, Election::SHORT, Some(etcd)).await
    }

    /// As [`Self::new`], with these nodes, the sample's first, and this election.
    pub async fn of(setup: Setup, choice: &Choice, nodes: &[&'static str], election: Election) -> Result<Self> {
        Self::with(setup, choice, nodes, election, None).await
    }

    async fn with(
        setup: Setup,
        choice: &Choice,
        nodes: &[&'static str],
        election: Election,
        etcd: Option<Etcd>,
    ) -> Result<Self> {
        let cloud = Cloud::start(&setup, choice).await?;
        for node in nodes.iter().filter(|node| !sample::NODES.contains(node)) {
            let more = sample::node(node, sample::POOL);
            cloud.api.create(&more.collection, &more.object).await?;
        }
        let coordinator = Coordinator::new(&setup, "coordinator", etcd.as_ref())?;
        let others = match &etcd {
            Some(etcd) => vec![Coordinator::new(&setup, "coordinator-2", Some(etcd))?],
            None => Vec::new(),
        };
        let ports: Vec<u16> = std::iter::once(&coordinator)
            .chain(&others)
            .map(|one| one.port)
            .collect();
        let mut hubs = Vec::new();
        for node in nodes {
            hubs.push(Hub::new(&setup, &cloud, &ports, node, election).await?);
        }
        Ok(Self {
            setup,
            cloud,
            coordinator,
            others,
            etcd,
            hubs,
            touches: 0,
        })
    }

    /// All coordinators of the pool; the first is [`TestPool::coordinator`].
    pub fn coordinators(&mut self) -> impl Iterator<Item = &mut Coordinator> {
        std::iter::once(&mut self.coordinator).chain(&mut self.others)
    }

    /// The hub that leads: it reports so, no other does, and the Lease names it.
    pub async fn leader(&self) -> Result<usize> {
        let lease = self.coordinator.api.get(ELECTION).await?;
        let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
        let mut leaders = Vec::new();
        for (index, hub) in self.hubs.iter().enumerate().filter(|(_, hub)| hub.process.runs()) {
            if hub.state().await?.leads() {
                leaders.push(index);
            }
        }
        match leaders[..] {
            [leader] if holder.starts_with(&format!("{}_", self.hubs[leader].node)) => Ok(leader),
            [leader] => bail!("{} says it leads, the Lease names {holder:?}", self.hubs[leader].node),
            [] => bail!("no hub leads, the Lease names {holder:?}"),
            _ => bail!("{} hubs say that they lead", leaders.len()),
        }
    }

    /// A running hub that does not lead.
    pub fn follower(&self, leader: usize) -> Result<usize> {
        let running = (0..self.hubs.len()).filter(|index| self.hubs[*index].process.runs());
        running
            .filter(|index| *index != leader)
            .last()
            .context("there must be a follower")
    }

    /// The shared collections as the cloud has them.
    pub async fn cloud_listings(&self) -> Result<Vec<Listing>> {
        listings(&self.cloud.api).await
    }

    /// Waits until `api` serves what the cloud has now.
    pub async fn catches_up(&self, limit: Duration, who: &str, api: &Api) -> Result<Duration> {
        let what = format!("{who} serves what the cloud has");
        let same = async || serves(api, &self.cloud_listings().await?).await;
        Ok(wait_for(limit, &what, same).await?.1)
    }

    /// Waits until `api` serves the given lists of the cloud.
    pub async fn still_serves(limit: Duration, who: &str, api: &Api, cloud: &[Listing]) -> Result<Duration> {
        let what = format!("{who} serves what the cloud had");
        Ok(wait_for(limit, &what, async || serves(api, cloud).await).await?.1)
    }

    /// Changes a Service in the cloud and waits until the clients of these hubs have it; returns the time that took.
    pub async fn change_arrives(&mut self, hubs: &[usize], limit: Duration) -> Result<Duration> {
        self.touches += 1;
        let patch = json!({"metadata": {"annotations": {"demo.openyurt.io/change": self.touches.to_string()}}});
        let path = format!("/api/v1/namespaces/{NAMESPACE}/services/{TOUCHED}");
        let watch = Stopwatch::start();
        let changed = self.cloud.api.merge(&path, &patch).await?;
        let (key, version) = crate::api::key_and_version(&changed);
        self.all_see(hubs, limit, "the change arrives", |view| view.holds(&key, version))
            .await?;
        Ok(watch.elapsed())
    }

    /// Creates a Service in the cloud and deletes it again; the clients of all hubs must see both.
    pub async fn short_life_is_seen(&self, limit: Duration) -> Result<()> {
        let sample = sample::short_lived_service();
        let created = self.cloud.api.create(&sample.collection, &sample.object).await?;
        let (key, version) = crate::api::key_and_version(&created);
        let all: Vec<usize> = (0..self.hubs.len()).collect();
        self.all_see(&all, limit, "the new Service arrives", |view| view.holds(&key, version))
            .await?;
        let name = sample.object["metadata"]["name"]
            .as_str()
            .context("the sample must have a name")?;
        self.cloud.api.delete(&format!("{}/{name}", sample.collection)).await?;
        self.all_see(&all, limit, "its deletion arrives", |view| view.deleted.contains(&key))
            .await
    }

    async fn all_see(
        &self,
        hubs: &[usize],
        limit: Duration,
        what: &str,
        wanted: impl Fn(&super::client::View) -> bool,
    ) -> Result<()> {
        let watch = Stopwatch::start();
        for index in hubs {
            let hub = &self.hubs[*index];
            let left = limit.saturating_sub(watch.elapsed());
            let seen = tokio::time::timeout(left, hub.services()?.sees(&wanted)).await;
            let late = || format!("{what} behind {}: not within {:.0} s", hub.node, limit.as_secs_f64());
            seen.with_context(late)??;
        }
        Ok(())
    }

    /// Waits until the clients behind these hubs hold what the cloud has and watch.
    pub async fn clients_catch_up(&self, hubs: &[usize], limit: Duration) -> Result<()> {
        let what = "the clients hold what the cloud has, and watch";
        let same = async || {
            let cloud = self.cloud_listings().await?;
            for hub in hubs.iter().map(|index| &self.hubs[*index]) {
                for (client, listing) in hub.clients().iter().zip(&cloud) {
                    let view = client.view();
                    let (held, wanted) = (view.objects.len(), listing.objects.len());
                    ensure!(
                        view.objects == listing.objects,
                        "behind {}: {held} of {wanted}",
                        hub.node
                    );
                    ensure!(view.watching, "behind {}: no watch is open", hub.node);
                }
            }
            Ok(())
        };
        wait_for(limit, what, same).await.map(drop)
    }

    /// Disruptions of the clients behind these hubs so far.
    pub fn disruptions(&self, hubs: &[usize]) -> Disruptions {
        hubs.iter()
            .map(|index| self.hubs[*index].disruptions())
            .fold(Disruptions::default(), Disruptions::plus)
    }

    /// Checks that no client has a violation: a resourceVersion that went back, or a DELETED for an object that the
    /// cloud still has.
    pub async fn no_client_complains(&self) -> Result<()> {
        let cloud = self.cloud_listings().await?;
        for hub in &self.hubs {
            for (client, listing) in hub.clients().iter().zip(&cloud) {
                let view = client.view();
                ensure!(
                    view.complaints.is_empty(),
                    "behind {}: {}",
                    hub.node,
                    view.complaints.join("; ")
                );
                let alive: Vec<&String> = view
                    .deleted
                    .iter()
                    .filter(|key| listing.objects.contains_key(*key))
                    .collect();
                ensure!(
                    alive.is_empty(),
                    "behind {}: DELETED for living objects {alive:?}",
                    hub.node
                );
            }
        }
        Ok(())
    }

    /// The Lease of a node as the cloud has it.
    pub async fn node_lease(&self, node: &str) -> Result<Value> {
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{node}");
        self.cloud.api.get(&path).await
    }
}

/// Checks that `api` serves exactly these lists: every object with the cloud's resourceVersion.
async fn serves(api: &Api, cloud: &[Listing]) -> Result<()> {
    for (served, wanted) in listings(api).await?.iter().zip(cloud) {
        ensure!(
            served.objects == wanted.objects,
            "it serves {} objects, the cloud {}; different: {}",
            served.objects.len(),
            wanted.objects.len(),
            differences(served, wanted)
        );
    }
    Ok(())
}

async fn listings(api: &Api) -> Result<Vec<Listing>> {
    let mut listings = Vec::new();
    for collection in COLLECTIONS {
        listings.push(api.list(collection).await?);
    }
    Ok(listings)
}

/// A few of the keys that are missing, extra, or have another resourceVersion.
fn differences(served: &Listing, wanted: &Listing) -> String {
    const SHOWN: usize = 3;
    let in_one = |a: &Listing, b: &Listing| -> Vec<String> {
        let different = a
            .objects
            .iter()
            .filter(|(key, version)| b.objects.get(*key) != Some(version));
        different
            .map(|(key, version)| format!("{key}@{version}"))
            .take(SHOWN)
            .collect()
    };
    format!(
        "served {:?}, cloud {:?}",
        in_one(served, wanted),
        in_one(wanted, served)
    )
}

// === impl Coordinator ===

impl Coordinator {
    fn new(setup: &Setup, name: &str, etcd: Option<&Etcd>) -> Result<Self> {
        let (port, launch) = coordinator_launch(setup, ProgramNamespace::Pool, name)?;
        let launch = launch
            .flag("profile", "pool")
            .flag("nodepool", sample::POOL)
            .flag("trust-first-leader", true);
        let launch = match etcd {
            Some(etcd) => etcd.under(launch),
            None => launch,
        };
        Ok(Self {
            port,
            api: Api::https(port, setup.identities.ca_pem(), &setup.identities.admin)?,
            process: ManagedProcess::new(launch),
            data: setup.dir.join(format!("{name}.data")),
        })
    }

    /// Starts it and waits until it serves.
    pub async fn start(&mut self) -> Result<Duration> {
        let program = self.process.start()?;
        ready(program, &self.api, "the coordinator").await
    }
}
