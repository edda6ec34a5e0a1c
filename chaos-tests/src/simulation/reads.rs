//! Simulated reads: one collection from the cloud to clients, through the real code on every hop.
//!
//! ```text
//!   cloud log ─► hub's Collection ─► feed messages ─► coordinator's Feed and Collection ─► other hubs ─► clients
//! ```
//! In between the seed decides. Streams are cut in the middle, switched, and delayed; servers lag and compact. Feed
//! calls are lost, repeated and late; the leader changes. Hubs and the coordinator return to their last commit, or lose
//! their disks. Clients list once, watch and resume; the deliveries to each are checked against the cloud's history.

mod client;
mod cloud;
mod feeder;
mod hub;
mod proof;
mod rollback;
mod setting;

use crate::coordinator::Pool;
use yurt_apimachinery::ResourceVersion;
use yurt_chaos_validate::history::{Truth, check};
use yurt_collection::Recovered;

use super::Ran;
use crate::faults::{Fault, Struck};
use crate::random::Random;
use client::{Client, ReadServer};
use cloud::{Cloud, SERVERS};
use feeder::{Door, Feeder, Post};
use hub::{Hub, Source, World};
pub use setting::{MUTATIONS, Mutation, Relists, SETTINGS, Setting};

const HUBS: usize = 3;
/// Clients behind each hub.
const CLIENTS: usize = 2;
/// Actions in one run.
const ACTS: u32 = 3_000;
/// Rounds within which the pool must come to rest.
const ROUNDS: u32 = 400;
/// Most former leaders that have not detected their loss of leadership.
const FORMER_MAX: usize = 2;

/// The coordinator, over its restarts.
struct Coordinator {
    /// `None` while it is down.
    pool: Option<Pool>,
    saved: Recovered,
    record: Option<(ResourceVersion, Vec<u8>)>,
    elections: u64,
    stores: u32,
}

struct Simulation {
    setting: Setting,
    mutation: Option<Mutation>,
    random: Random,
    cloud: Cloud,
    hubs: Vec<Hub>,
    coordinator: Coordinator,
    /// The last one leads, the others have not detected yet that they do not.
    feeders: Vec<Feeder>,
    post: Post,
    clients: Vec<Client>,
    /// Hub whose node is off.
    off: Option<usize>,
    struck: Struck,
}

/// One run from `seed`.
#[must_use]
pub fn simulate(setting: Setting, mutation: Option<Mutation>, seed: u64) -> Ran {
    let mut simulation = Simulation::new(setting, mutation, seed);
    if !setting.lists {
        // A pool that has been at rest once needs no list while no history is dropped.
        simulation.come_to_rest();
        simulation.commit();
    }
    simulation.post.is_rough = true;
    let ended = simulation.roll_back();
    for _ in 0..ACTS {
        simulation.act();
    }
    let rests = simulation.come_to_rest();
    simulation.judge(rests, ended)
}

// === impl Simulation ===

impl Simulation {
    fn new(setting: Setting, mutation: Option<Mutation>, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let cloud = Cloud::new(&mut random);
        let behind_hubs = (0..HUBS * CLIENTS).map(|index| Client::new(ReadServer::Hub(index % HUBS)));
        let mut simulation = Self {
            setting,
            mutation,
            cloud,
            hubs: (0..HUBS).map(|_| Hub::new(setting, mutation)).collect(),
            coordinator: Coordinator {
                pool: None,
                saved: Recovered::default(),
                record: None,
                elections: 0,
                stores: 0,
            },
            feeders: Vec::new(),
            post: Post::rough(),
            clients: behind_hubs.chain([Client::new(ReadServer::Coordinator)]).collect(),
            off: None,
            struck: Struck::default(),
            random,
        };
        simulation.start_coordinator(false);
        simulation.elect(0);
        simulation
    }

    fn act(&mut self) {
        match self.random.below(100) {
            0..18 => self.cloud.change(&mut self.random),
            18..21 => self.lag(),
            21..45 => {
                let hub = self.random.index(HUBS);
                let (max, arrive) = (1 + self.random.index(6), self.random.index(8));
                self.pump(hub, max, arrive);
            }
            45..58 => {
                let (feeder, max) = (self.random.index(self.feeders.len()), 1 + self.random.index(8));
                self.feed(feeder, max);
            }
            58..59 => self.deliver_late(),
            59..88 => {
                let client = self.random.index(self.clients.len());
                let (max, cut) = (1 + self.random.index(5), self.random.once_in(8));
                if cut {
                    self.struck.count(Fault::StreamCut);
                }
                self.read(client, max, cut);
            }
            88..91 => {
                let hub = self.random.index(HUBS);
                self.hubs[hub].commit();
            }
            91..92 => self.save_coordinator(),
            92..96 => self.switch(),
            96..97 => {
                let hub = self.random.index(HUBS);
                self.struck.count(Fault::StreamCut);
                self.hubs[hub].cut();
            }
            97..98 => {
                let hub = self.random.index(HUBS);
                self.struck.count(Fault::LeaderStepsDown);
                self.elect(hub);
            }
            _ => self.strike(),
        }
    }

    /// Injects a fault that only some settings have.
    fn strike(&mut self) {
        let hub = self.random.index(HUBS);
        match self.random.below(8) {
            0..3 if self.setting.crashes => {
                self.struck.count(Fault::HubKilled);
                self.kill_hub(hub, false);
            }
            3..5 if self.setting.crashes => {
                self.struck.count(Fault::CoordinatorKilled);
                self.start_coordinator(false);
            }
            5 if self.setting.lists => {
                self.struck.count(Fault::CloudCompacted);
                self.cloud.compact();
            }
            6 if self.setting.lists => {
                self.struck.count(Fault::HubDiskLost);
                self.kill_hub(hub, true);
            }
            7 if self.setting.store_lost && self.random.once_in(3) => {
                self.struck.count(Fault::StoreLost);
                self.start_coordinator(true);
                self.elect(hub);
            }
            _ => {}
        }
    }

    /// Advances a random server by a random number of changes.
    fn lag(&mut self) {
        let server = self.random.index(SERVERS);
        let (from, head) = (self.cloud.seen_by[server], self.cloud.head());
        self.cloud.seen_by[server] = from + self.random.below(head - from + 1);
        if self.cloud.seen_by[server] < head {
            self.struck.count(Fault::CloudLagging);
        }
    }

    fn pump(&mut self, hub: usize, max: usize, arrive: usize) {
        let world = World {
            cloud: &self.cloud,
            coordinator: self.coordinator.pool.as_ref(),
        };
        self.hubs[hub].pump(max, arrive, &world, &mut self.random);
    }

    fn follow(&mut self, hub: usize, source: Source) {
        let world = World {
            cloud: &self.cloud,
            coordinator: self.coordinator.pool.as_ref(),
        };
        self.hubs[hub].follow(source, &world, &mut self.random);
    }

    /// Moves a hub to another source. The leader stays at the cloud, perhaps at another server.
    fn switch(&mut self) {
        let hub = self.random.index(HUBS);
        let leads = self.feeders.last().is_some_and(|feeder| feeder.hub == hub);
        let server = self.random.index(SERVERS);
        let source = match leads || self.random.once_in(3) {
            true => Source::Cloud(server),
            false => Source::Coordinator,
        };
        self.struck.count(Fault::SourceSwitched);
        self.follow(hub, source);
    }

    fn feed(&mut self, feeder: usize, max: usize) {
        let Some(pool) = &self.coordinator.pool else { return };
        let mut door = Door {
            pool,
            post: &mut self.post,
            random: &mut self.random,
            struck: &self.struck,
            mutation: self.mutation,
        };
        let feeder = &mut self.feeders[feeder];
        feeder.feed(&mut self.hubs[feeder.hub], max, &mut door);
        self.keep_durable();
    }

    fn deliver_late(&mut self) {
        let Some(pool) = &self.coordinator.pool else { return };
        let mut door = Door {
            pool,
            post: &mut self.post,
            random: &mut self.random,
            struck: &self.struck,
            mutation: self.mutation,
        };
        door.deliver_late();
        self.keep_durable();
    }

    /// A snapshot is durable before it is answered.
    fn keep_durable(&mut self) {
        if std::mem::take(&mut self.post.is_durable) {
            self.save_coordinator();
        }
    }

    fn save_coordinator(&mut self) {
        let Some(pool) = &self.coordinator.pool else { return };
        self.coordinator.saved = pool.objects().read(|held| hub::recovered(held, self.mutation));
    }

    /// Commits all hubs and the coordinator.
    fn commit(&mut self) {
        self.hubs.iter_mut().for_each(Hub::commit);
        self.save_coordinator();
    }

    fn elect(&mut self, hub: usize) {
        let Some(pool) = &self.coordinator.pool else { return };
        self.coordinator.elections += 1;
        let rv = ResourceVersion(self.coordinator.elections);
        let (epoch, record) = pool.elect(&format!("hub-{hub}_{rv}"), rv);
        self.coordinator.record = Some((rv, record));
        let store = self.store();
        self.post.present = (store.clone(), epoch);
        self.feeders.push(Feeder::new(hub, store, epoch, self.setting.message));
        if self.feeders.len() > 1 + FORMER_MAX {
            self.feeders.remove(0);
        }
        let server = self.random.index(SERVERS);
        self.follow(hub, Source::Cloud(server));
    }

    fn store(&self) -> String {
        format!("store-{}", self.coordinator.stores)
    }

    /// The coordinator is killed and starts from its last commit, or from nothing.
    fn start_coordinator(&mut self, disk_lost: bool) {
        if let Some(pool) = &self.coordinator.pool {
            let position = pool.objects().read(yurt_collection::Collection::position);
            self.cut_clients(ReadServer::Coordinator, position);
        }
        if disk_lost {
            self.coordinator.stores += 1;
            self.coordinator.saved = Recovered::default();
            self.coordinator.record = None;
        }
        let found = std::mem::take(&mut self.coordinator.saved);
        let record = self.coordinator.record.as_ref();
        let record = record.map(|(rv, record)| (*rv, record.as_slice()));
        let pool = Pool::open(&self.store(), cloud::kind(), record, Some(found));
        self.coordinator.pool = Some(pool);
        self.save_coordinator();
        // Connections of the former process are gone.
        self.hubs
            .iter_mut()
            .filter(|hub| hub.follows() == Some(Source::Coordinator))
            .for_each(Hub::cut);
    }

    fn kill_hub(&mut self, hub: usize, disk_lost: bool) {
        self.cut_clients(ReadServer::Hub(hub), self.hubs[hub].held.position());
        self.hubs[hub].kill(disk_lost);
        self.feeders
            .iter_mut()
            .filter(|feeder| feeder.hub == hub)
            .for_each(Feeder::reopen);
    }

    /// Kills the server at `place`, whose position is `position`, and cuts its clients.
    fn cut_clients(&mut self, place: ReadServer, position: ResourceVersion) {
        let there = self.clients.iter_mut().filter(|client| client.place == place);
        there.for_each(|client| client.cut(position));
    }

    fn read(&mut self, client: usize, max: usize, cut: bool) {
        let client = &mut self.clients[client];
        let (random, mutation) = (&mut self.random, self.mutation);
        match client.place {
            ReadServer::Hub(hub) if !self.hubs[hub].is_served() => client.cut(self.hubs[hub].held.position()),
            ReadServer::Hub(hub) => client.read(&self.hubs[hub].held, max, cut, mutation, random),
            ReadServer::Coordinator => match self.coordinator.pool.as_ref().filter(|pool| pool.is_served()) {
                Some(pool) => pool
                    .objects()
                    .read(|held| client.read(held, max, cut, mutation, random)),
                None => client.cut(ResourceVersion::ZERO),
            },
        }
    }

    /// Stops all faults: the first hub leads, the others follow, all clients read to the end.
    fn come_to_rest(&mut self) -> bool {
        self.post.is_rough = false;
        self.cloud.catch_up();
        self.elect(0);
        let leader = self.feeders.len() - 1;
        for _ in 0..ROUNDS {
            let head = ResourceVersion(self.cloud.head());
            let off = self.off;
            for hub in (0..HUBS).filter(|hub| off != Some(*hub)) {
                let source = match hub {
                    0 => Source::Cloud(0),
                    _ => Source::Coordinator,
                };
                self.follow(hub, source);
                self.pump(hub, 16, 32);
                self.hubs[hub].commit();
            }
            self.feed(leader, 16);
            for client in 0..self.clients.len() {
                self.read(client, 16, false);
            }
            let is_there = |(index, hub): (usize, &Hub)| off == Some(index) || hub.held.position() == head;
            let is_off = |client: &Client| off.is_some_and(|off| client.place == ReadServer::Hub(off));
            let rests = |client: &Client| is_off(client) || client.rests_at(head);
            let pool = self.coordinator.pool.as_ref();
            let is_fed = pool.is_some_and(|pool| pool.objects().read(|held| held.position() == head));
            if is_fed && self.hubs.iter().enumerate().all(is_there) && self.clients.iter().all(rests) {
                return true;
            }
        }
        false
    }

    /// Judges the run. `ended`: the histories before the present one; `None` when the pool did not come to rest in one
    /// of them.
    fn judge(self, rests: bool, ended: Option<Vec<Truth>>) -> Ran {
        let rests = rests && ended.is_some();
        let ended = ended.unwrap_or_default();
        let other = self.judge_histories(&ended);
        let mut violation = self.post.violation.or(other);
        let mut operations = 0;
        for client in &self.clients {
            let lists_max = match (self.setting.relists, client.place) {
                (Relists::Anywhere, _) | (Relists::AtCoordinator, ReadServer::Coordinator) => u32::MAX,
                (Relists::AtCoordinator, _) => 1 + client.excused,
                (Relists::Never, _) => 1,
            };
            let former = client.former.iter().map(|(_, told)| told.len());
            operations += (former.sum::<usize>() + client.history.len()) as u64;
            if !ended.is_empty() {
                continue;
            }
            let verdict = check(&client.history, &self.cloud.truth, lists_max);
            if let Some(what) = verdict.violations.first() {
                let told = client.told_of(what);
                violation.get_or_insert(format!("client at {:?}: {what}{told}", client.place));
            }
        }
        if ended.is_empty() && self.hubs.iter().any(|hub| hub.held.generation() > 0) {
            violation.get_or_insert("a new generation began although the cloud never went back".to_owned());
        }
        if !rests {
            violation.get_or_insert("the pool does not come to rest".to_owned());
        }
        let lists: u32 = self.clients.iter().map(|client| client.lists).sum();
        for _ in self.clients.len() as u32..lists {
            self.struck.count(Fault::ClientListedAgain);
        }
        Ran {
            operations,
            checked: self.post.taken + self.post.refused,
            struck: self.struck,
            violation,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first_violation(setting: Setting, mutation: Option<Mutation>, seeds: u64) -> Option<String> {
        (0..seeds).find_map(|seed| simulate(setting, mutation, seed).violation)
    }

    #[test]
    fn clients_are_told_the_truth_whatever_happens_between_them_and_the_cloud() {
        for (name, setting) in SETTINGS {
            assert_eq!(first_violation(setting, None, 4), None, "{name}");
        }
    }

    /// Clients record every event while the sources of the replicas behind them change a thousand times. Every delivery
    /// is the cloud's state at that version, versions never go back, and the last state is the present one.
    ///
    /// Conformance: 7.65, 7.66
    #[test]
    fn a_thousand_changes_of_source_leave_every_client_with_one_history() {
        let struck = Struck::default();
        let mut seed = 100;
        while struck.of(Fault::SourceSwitched) < 1_000 {
            let ran = simulate(SETTINGS[0].1, None, seed);
            assert_eq!(ran.violation, None, "seed {seed}");
            struck.add(&ran.struck);
            seed += 1;
        }
        let is_noticed = |(_, setting)| first_violation(setting, Some(Mutation::Renumber), 20).is_some();
        assert!(SETTINGS.into_iter().any(is_noticed), "numbers of another authority");
    }

    #[test]
    fn seed_decides_what_clients_are_told() {
        let told = |seed| {
            let ran = simulate(SETTINGS[2].1, None, seed);
            (ran.operations, ran.checked, format!("{:?}", ran.struck))
        };
        assert_eq!(told(3), told(3));
        assert_ne!(told(3), told(4));
    }

    #[test]
    fn lost_deletion_is_noticed() {
        assert!(first_violation(SETTINGS[2].1, Some(Mutation::ListWithoutDeletions), 20).is_some());
    }

    #[test]
    fn relists_are_noticed() {
        for mutation in [Mutation::SnapshotWithoutHistory, Mutation::NoFallback] {
            let setting = SETTINGS[mutation.strikes_in()].1;
            assert!(first_violation(setting, Some(mutation), 20).is_some(), "{mutation:?}");
        }
    }
}
