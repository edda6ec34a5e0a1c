//! Targets of the faults: the pool with its links, disks and certificates, the writers at the cloud and the readers
//! behind hubs.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tokio::process::Command;
use tokio::sync::watch;
use yurt_runtime::Clock;
use yurt_testbed::Setup;
use yurt_testbed::api::{Api, refusal};
use yurt_testbed::cloud::Choice;
use yurt_testbed::disk::Disk;
use yurt_testbed::fault_fs::Health;
use yurt_testbed::hub::COLLECTIONS;
use yurt_testbed::pool::TestPool;
use yurt_testbed::program;
use yurt_testbed::sample::{self, FOREIGN_NODE, NODES, POOL};

use super::faults::{Act, Fault, FaultTarget, Topology};
use super::hostile::{self, Actors};
use super::local_writes::LocalWrites;
use super::memory::Peaks;

/// Storage of the coordinators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Store {
    /// One coordinator, with a file of its own.
    Files,
    /// Two coordinators, over one etcd.
    Etcd,
}

/// The pool, and everything else a fault may affect.
pub(super) struct Environment {
    pub(super) pool: TestPool,
    /// Disks of the coordinator, then of each hub; none where no disk can be mounted.
    disks: Vec<Disk>,
    /// True while one more resource is shared.
    scope: watch::Sender<bool>,
    /// True while there is a huge object.
    huge: watch::Sender<bool>,
    /// True while the clients behind each hub read.
    readers: Vec<watch::Sender<bool>>,
    /// Writes to the coordinators' own data; none before [`Environment::start_local_writes`].
    pub(super) local_writes: Option<LocalWrites>,
    /// Attacking actors; none before [`Environment::start_actors`].
    pub(super) actors: Option<Actors>,
    /// True if the time since boot can be changed.
    can_reboot: bool,
    /// Collections that clients read and the traffic writes.
    collections: Vec<&'static str>,
}

/// Shared only at times. A demo cloud serves it without a definition; nodes may read it there.
const SOMETIMES_SHARED: &str = "/apis/apps.openyurt.io/v1beta2/nodepools";
const SHARED: &str = r#"[{"Group": "apps.openyurt.io", "Version": "v1beta2", "Resource": "nodepools"}]"#;
const CONFIG_MAPS: &str = "/api/v1/namespaces/kube-system/configmaps";
/// ConfigMap with the list of shared resources.
const CONFIG_MAP: &str = "yurt-hub-cfg";
/// A pool that a hub may be moved to; one node more belongs to it.
const OTHER_POOL: &str = "adrift";
/// Pause after a write that the cloud refused.
const AGAIN: Duration = Duration::from_millis(200);
/// Time a program has to end after SIGTERM.
pub(super) const STOP_LIMIT: Duration = Duration::from_secs(10);
/// Limit of open files while a process has few: less than it has open.
const FEW_FILES: &str = "12";
const MANY_FILES: &str = "1024";
const DAY: Duration = Duration::from_secs(86_400);

// === impl Environment ===

impl Environment {
    /// Starts the cloud, and prepares the pool with disks and relays.
    pub(super) async fn new(setup: Setup, choice: &Choice, store: Store) -> Result<Self> {
        let caches = NODES.map(|node| format!("{node}.cache"));
        let places = std::iter::once("coordinator.data".to_owned()).chain(caches);
        let disks = places.map(|place| Disk::mount(&setup.dir.join(place)));
        // All disks or none.
        let disks: Option<Vec<Disk>> = disks.collect::<Result<Option<_>>>()?;
        let pool = match store {
            Store::Files => TestPool::new(setup, choice).await,
            Store::Etcd => TestPool::over_etcd(setup, choice).await,
        };
        let mut pool = pool.context("the cloud did not start")?;
        let dir = pool.setup.dir.clone();
        let hubs = pool.hubs.iter_mut().map(|hub| &mut hub.process);
        hubs.for_each(|process| let_clock_be_set(&dir, process));
        let coordinators = pool.coordinators().map(|coordinator| &mut coordinator.process);
        coordinators.for_each(|process| let_clock_be_set(&dir, process));
        let mut collections = COLLECTIONS.to_vec();
        if matches!(choice, Choice::Demo) {
            collections.push(SOMETIMES_SHARED);
            make_other_pool(&pool.cloud.api).await?;
        }
        let stolen = sample::node(hostile::NODE, POOL);
        pool.cloud.api.create(&stolen.collection, &stolen.object).await?;
        Ok(Self {
            disks: disks.unwrap_or_default(),
            scope: watch::Sender::new(false),
            huge: watch::Sender::new(false),
            local_writes: None,
            actors: None,
            can_reboot: program::can_shift_uptime(),
            readers: pool.hubs.iter().map(|_| watch::Sender::new(true)).collect(),
            collections,
            pool,
        })
    }

    /// Collections that clients read and the traffic writes.
    pub(super) fn collections(&self) -> &[&'static str] {
        &self.collections
    }

    /// True while the clients behind this hub read.
    pub(super) fn reads(&self, hub: usize) -> watch::Receiver<bool> {
        self.readers[hub].subscribe()
    }

    /// True while there shall be a huge object.
    pub(super) fn huge(&self) -> watch::Receiver<bool> {
        self.huge.subscribe()
    }

    /// Starts to write the shared resources to the cloud, with repeats until it succeeds.
    pub(super) fn start_scope(&self) {
        let (cloud, mut wanted) = (self.pool.cloud.api.clone(), self.scope.subscribe());
        let (tasks, token) = (&self.pool.setup.tasks, self.pool.setup.tasks.token());
        let writing = async move {
            loop {
                let is_wide = *wanted.borrow_and_update();
                while write_scope(&cloud, is_wide).await.is_err() {
                    tokio::time::sleep(AGAIN).await;
                }
                if wanted.changed().await.is_err() {
                    return;
                }
            }
        };
        tasks.spawn("scope", async move {
            let _ = token.run_until_cancelled(writing).await;
        });
    }

    /// Starts to write at the coordinators.
    pub(super) fn start_local_writes(&mut self) {
        let apis = self.pool.coordinators().map(|coordinator| coordinator.api.clone());
        let apis = apis.collect();
        self.local_writes = Some(LocalWrites::start(&self.pool.setup.tasks, apis));
    }

    /// Prepares the attacking actors.
    ///
    /// # Errors
    /// As [`Actors::start`].
    pub(super) fn start_actors(&mut self, seed: u64) -> Result<()> {
        self.actors = Some(Actors::start(&self.pool, seed)?);
        Ok(())
    }

    /// Nodes of the pool: those with a hub, and the one whose certificate was stolen.
    pub(super) fn members(&self) -> usize {
        self.pool.hubs.len() + 1
    }

    /// Records the peak memory of coordinators and hubs.
    pub(super) fn look_at_memory(&mut self, peaks: &mut Peaks) {
        for process in self.processes().filter(|process| process.is_alive()) {
            let name = process.name().to_owned();
            if let Some(id) = process.program().ok().and_then(|program| program.id()) {
                peaks.look_at_process(&name, id);
            }
        }
    }

    /// Records the disk usage of coordinators and hubs; only while their disks answer.
    pub(super) fn look_at_disks(&mut self, peaks: &mut Peaks) {
        for coordinator in self.pool.coordinators() {
            peaks.look_at_folder(coordinator.process.name(), &coordinator.data);
        }
        for hub in &self.pool.hubs {
            peaks.look_at_folder(hub.node, &hub.cache);
        }
    }

    /// The present targets, as far as faults need them; `leader` is the hub that leads.
    pub(super) async fn topology(&self, leader: Option<usize>) -> Topology {
        let etcd = self.pool.etcd.as_ref();
        Topology {
            hubs: self.pool.hubs.len(),
            leader,
            coordinators: 1 + self.pool.others.len(),
            fed: leader.map(|leader| self.pool.hubs[leader].pool_link.latest()),
            members: etcd.map_or(0, |etcd| etcd.members.len()),
            member_leader: match etcd {
                Some(etcd) => etcd.leader().await,
                None => None,
            },
            pick: 0,
        }
    }

    /// True if the fault is possible on this machine, with this cloud.
    pub(super) fn has(&self, fault: Fault) -> bool {
        match fault {
            Fault::HubDiskFull | Fault::CoordinatorDiskFull | Fault::AllDisksFull => !self.disks.is_empty(),
            Fault::HubDiskEio | Fault::CoordinatorDiskEio | Fault::AllDisksEio | Fault::FeedCallDropped => {
                !self.disks.is_empty() && self.disks.iter().all(Disk::is_breakable)
            }
            Fault::HubRebooted | Fault::CoordinatorRebooted => self.can_reboot,
            _ => true,
        }
    }

    /// Performs one act.
    ///
    /// # Errors
    /// An operation that the machine refused; never an action of a program of the pool.
    pub(super) async fn perform(&mut self, target: FaultTarget, act: Act) -> Result<()> {
        let (identities, is_bad) = (&self.pool.setup.identities, act == Act::Bad);
        match (target, act) {
            (
                FaultTarget::Hub(_) | FaultTarget::Coordinator(_) | FaultTarget::EtcdMember(_) | FaultTarget::Cloud,
                _,
            ) => {
                return self.on_program(target, act).await;
            }
            (FaultTarget::HubClock(hub), Act::Skew(seconds)) => {
                set_clock(&self.pool.setup.dir, &self.pool.hubs[hub].process, seconds)?
            }
            (FaultTarget::CoordinatorClock(index), Act::Skew(seconds)) => {
                let dir = self.pool.setup.dir.clone();
                let coordinator = self.pool.coordinators().nth(index).context("no such coordinator")?;
                set_clock(&dir, &coordinator.process, seconds)?;
            }
            (FaultTarget::EtcdHistory, Act::Bad) => {
                let etcd = self.pool.etcd.as_ref().context("there is no etcd")?;
                // Without a quorum etcd does not compact, which is no fault of the pool.
                let _ = etcd.compact().await;
            }
            (FaultTarget::CloudLink(hub), Act::Link(mode)) => self.pool.hubs[hub].link.set(mode),
            (FaultTarget::PoolLink(hub), Act::Link(mode)) => self.pool.hubs[hub].pool_link.set(mode),
            (FaultTarget::CoordinatorDisk, _) => on_disk(self.disks.first(), act)?,
            (FaultTarget::HubDisk(hub), _) => on_disk(self.disks.get(1 + hub), act)?,
            (FaultTarget::HubCertificate(hub), Act::Issue(issue)) => self.pool.hubs[hub].issue(identities, issue)?,
            (FaultTarget::CoordinatorCertificate, Act::Issue(issue)) => {
                identities.replace_server("coordinator", issue)?;
            }
            (FaultTarget::Authorities, _) => identities.trust_next(is_bad)?,
            (FaultTarget::Scope, _) => drop(self.scope.send_replace(is_bad)),
            (FaultTarget::Traffic, _) => drop(self.huge.send_replace(is_bad)),
            (FaultTarget::Readers(hub), _) => drop(self.readers[hub].send_replace(!is_bad)),
            (FaultTarget::Actor(actor), _) => self.actors.iter().for_each(|actors| actors.set(actor, is_bad)),
            // Acts that do not apply to such a target.
            (
                FaultTarget::CloudLink(_)
                | FaultTarget::PoolLink(_)
                | FaultTarget::HubCertificate(_)
                | FaultTarget::CoordinatorCertificate
                | FaultTarget::HubClock(_)
                | FaultTarget::CoordinatorClock(_)
                | FaultTarget::EtcdHistory,
                _,
            ) => {}
        }
        Ok(())
    }

    /// Restarts programs of the pool after an allowed end, as a supervisor would; returns its decisions as text.
    ///
    /// # Errors
    /// A program that ended in any other way.
    pub(super) fn supervise(&mut self) -> Result<Vec<String>> {
        let now = Clock::system().boot();
        let mut told = Vec::new();
        for process in self.processes() {
            told.extend(process.supervise(now)?);
        }
        Ok(told)
    }

    /// Number of programs that [`Self::supervise`] restarted.
    pub(super) fn restarts(&mut self) -> u32 {
        self.processes().map(|process| process.restarts()).sum()
    }

    /// Coordinators and hubs.
    fn processes(&mut self) -> impl Iterator<Item = &mut program::ManagedProcess> {
        let TestPool {
            coordinator,
            others,
            hubs,
            ..
        } = &mut self.pool;
        let coordinators = std::iter::once(coordinator).chain(others).map(|one| &mut one.process);
        coordinators.chain(hubs.iter_mut().map(|hub| &mut hub.process))
    }

    async fn on_program(&mut self, target: FaultTarget, act: Act) -> Result<()> {
        let pool = &mut self.pool;
        let (process, disk) = match target {
            FaultTarget::Hub(hub) => {
                let hub = &mut pool.hubs[hub];
                (&mut hub.process, Some(&hub.cache))
            }
            FaultTarget::Coordinator(index) => {
                let coordinator = pool.coordinators().nth(index).context("no such coordinator")?;
                (&mut coordinator.process, Some(&coordinator.data))
            }
            FaultTarget::EtcdMember(index) => {
                let etcd = pool.etcd.as_mut().context("there is no etcd")?;
                (&mut etcd.members[index].process, None)
            }
            _ => (&mut pool.cloud.process, None),
        };
        match act {
            Act::Kill if process.runs() => process.kill().await,
            Act::Stop => process.stop(STOP_LIMIT).await,
            Act::Start if !process.runs() => process.start().map(drop),
            Act::LoseDisk => {
                empty(disk.context("this one has no disk to lose")?)?;
                // The data of an etcd is not on that disk.
                if let (FaultTarget::Coordinator(_), None, Some(local_writes)) =
                    (target, &pool.etcd, &self.local_writes)
                {
                    local_writes.forget();
                }
                Ok(())
            }
            Act::DamageDisk => damage(disk.context("this one has no disk to damage")?),
            Act::Move(is_away) => {
                process.set_flag("nodepool-name", if is_away { OTHER_POOL } else { POOL });
                // That pool has no coordinator.
                process.set_flag("enable-coordinator", !is_away);
                Ok(())
            }
            Act::Reboot(days) => {
                process.set_uptime(DAY * days);
                Ok(())
            }
            // A program that is about to be restarted cannot be paused.
            Act::Pause if process.is_alive() => process.program()?.signal("STOP").await,
            // It may have been killed in the meantime.
            Act::Continue if process.is_alive() => process.program()?.signal("CONT").await,
            Act::FewFiles if process.is_alive() => limit_files(process, FEW_FILES).await,
            Act::ManyFiles if process.is_alive() => limit_files(process, MANY_FILES).await,
            _ => Ok(()),
        }
    }
}

/// Empties a folder and keeps the folder itself: a disk may be mounted there.
pub(super) fn empty(folder: &Path) -> Result<()> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries.with_context(|| format!("cannot read {}", folder.display()))?,
    };
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            std::fs::remove_dir_all(path)?;
        } else {
            std::fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// Flips bits in the middle of every store in `folder`.
fn damage(folder: &Path) -> Result<()> {
    /// The first page of a store has the positions of the others: with it damaged the rest is not read.
    const FIRST_PAGE: usize = 4096;
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "redb") {
            continue;
        }
        let mut bytes = std::fs::read(&path)?;
        let half = bytes.len() / 2;
        let middle = bytes.get_mut(FIRST_PAGE..half).unwrap_or_default();
        middle.iter_mut().for_each(|byte| *byte ^= 0x55);
        std::fs::write(&path, bytes)?;
    }
    Ok(())
}

/// Creates a NodePool that no hub belongs to at first, with the nodes of this one and another node.
async fn make_other_pool(cloud: &Api) -> Result<()> {
    let nodes: Vec<&str> = NODES.into_iter().chain([FOREIGN_NODE]).collect();
    let pool = json!({
        "apiVersion": "apps.openyurt.io/v1beta2", "kind": "NodePool",
        "metadata": {"name": OTHER_POOL},
        "spec": {"type": "Edge"},
    });
    cloud.create(SOMETIMES_SHARED, &pool).await?;
    let status = json!({"status": {"nodes": nodes}});
    cloud
        .merge(&format!("{SOMETIMES_SHARED}/{OTHER_POOL}/status"), &status)
        .await?;
    Ok(())
}

fn on_disk(disk: Option<&Disk>, act: Act) -> Result<()> {
    let disk = disk.context("no disk could be mounted")?;
    disk.set(match act {
        Act::Eio => Health::Fails,
        Act::Stall => Health::Stalls,
        _ => Health::Works,
    });
    if act == Act::Bad { disk.fill() } else { disk.clear() }
}

/// File with the offset of a program's wall clock.
fn clock_file(dir: &Path, process: &program::ManagedProcess) -> PathBuf {
    dir.join(format!("{}.skew", process.name()))
}

fn let_clock_be_set(dir: &Path, process: &mut program::ManagedProcess) {
    let file = clock_file(dir, process);
    process.add_variable("YURT_FAILPOINTS", format!("wall-clock-skew={}", file.display()));
}

fn set_clock(dir: &Path, process: &program::ManagedProcess, seconds: i64) -> Result<()> {
    // Replaced atomically: half of it would be another time.
    let (file, draft) = (clock_file(dir, process), dir.join("skew"));
    std::fs::write(&draft, seconds.to_string()).context("cannot write a clock")?;
    std::fs::rename(&draft, &file).context("cannot set a clock")
}

async fn write_scope(cloud: &Api, is_wide: bool) -> Result<()> {
    let data = json!({"pool_scope_resources": if is_wide { SHARED } else { "[]" }});
    let patch = json!({"data": data});
    match cloud.merge(&format!("{CONFIG_MAPS}/{CONFIG_MAP}"), &patch).await {
        Err(error) if refusal(&error) == Some(404) => {
            let metadata = json!({"name": CONFIG_MAP, "namespace": "kube-system"});
            let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data});
            cloud.create(CONFIG_MAPS, &map).await.map(drop)
        }
        written => written.map(drop),
    }
}

async fn limit_files(process: &mut program::ManagedProcess, count: &str) -> Result<()> {
    let id = process.program()?.id().context("the program has ended")?;
    let arguments = [format!("--pid={id}"), format!("--nofile={count}:")];
    let status = Command::new("prlimit").args(arguments).status().await;
    ensure!(status.context("cannot run prlimit")?.success(), "prlimit failed");
    Ok(())
}
