//! Life of a store, recorded together with the operations on its medium, and the required state after a crash in it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use parking_lot::Mutex;
use yurt_apimachinery::kind::find_kind;
use yurt_apimachinery::watch::EventType;
use yurt_apimachinery::{Object, ResourceVersion, Space};
use yurt_collection::Collection;
use yurt_runtime::{Clock, FakeClock, UnixTime};
use yurt_storage::backend::{Action, Committed, Durability, Expect, Loaded, Op, Sink, Stored};
use yurt_storage::embedded::replicas::ReplicaStore;
use yurt_storage::embedded::{Disk, FileBackend};
use yurt_storage::{Embedded, OnlyWriter as _, Replicas, Storage, StorageError};

use crate::medium::{Entry, Lent, Tape};
use crate::random::Random;

/// The election lease and the epoch record, always written together.
pub(crate) const PAIR: [&str; 2] = [
    "/leases.coordination.k8s.io/kube-system/hub",
    "/~epochs/kube-system/hub",
];
/// Name of the store in messages.
pub(crate) const NAME: &str = "/data/store.redb";

/// A promise of the store, or the begin of an operation.
#[derive(Clone, Debug)]
pub(crate) enum Fact {
    Opened {
        id: String,
        at: ResourceVersion,
    },
    /// Durable changes were requested: key and the number of its new value, `None` for a deletion.
    Doing(Vec<(String, Option<u64>)>),
    /// They were acknowledged.
    Done {
        rv: ResourceVersion,
    },
    /// These of them were rejected. A crash before the next [`Fact::Reverted`] may leave them.
    Refused(Vec<String>),
    /// A later commit succeeded: rejected changes are not on the medium.
    Reverted,
    Renewed {
        key: String,
        n: u64,
        rv: ResourceVersion,
    },
    Closing,
    Closed,
    Persisting(Copy),
    Persisted,
}

/// A replica in comparable form: C, floor, generation, completeness; then objects, tombstones and ranges as (RV, key).
pub(crate) type Copy = ((u64, u64, u64, bool), [BTreeSet<(u64, String)>; 3]);

/// State that must hold now.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expected {
    pub(crate) id: Option<String>,
    /// Highest RV shown to any reader.
    pub(crate) issued: ResourceVersion,
    /// Number of the last acknowledged value; `None` for a deletion.
    pub(crate) certain: BTreeMap<String, Option<u64>>,
    deletions: BTreeMap<String, ResourceVersion>,
    doing: Vec<(String, Option<u64>)>,
    refused: Vec<(String, Option<u64>)>,
    renewed: BTreeMap<String, u64>,
    closing: bool,
    copy: Option<Copy>,
    /// Those since `copy`; commits that failed may have reached the medium.
    persisting: Vec<Copy>,
}

/// State of a store after it was opened.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) id: String,
    pub(crate) loaded: Loaded,
    pub(crate) copy: Option<Copy>,
}

/// A sink that keeps everything it receives.
#[derive(Default)]
pub(crate) struct Memory {
    pub(crate) loaded: Mutex<Option<Loaded>>,
    /// Value and RV per live key, as readers see them.
    pub(crate) live: Mutex<BTreeMap<String, (ResourceVersion, Bytes)>>,
    /// RV of its last call.
    position: Mutex<ResourceVersion>,
}

/// A running store over a tape.
pub(crate) struct Life {
    pub(crate) tape: Arc<Tape>,
    lent: Weak<Lent>,
    pub(crate) store: Embedded,
    pub(crate) memory: Arc<Memory>,
    pub(crate) replicas: Replicas,
    pub(crate) clock: Clock,
    pub(crate) hand: FakeClock,
    /// Errors received.
    pub(crate) refused: Vec<StorageError>,
    /// Number of renewals done while a commit was in flight.
    pub(crate) beside: usize,
    n: u64,
    cloud: u64,
}

// === impl Memory ===

impl Sink for Memory {
    fn load(&self, loaded: Loaded) -> Result<(), StorageError> {
        let mut live = self.live.lock();
        for stored in &loaded.live {
            live.insert(stored.key.clone(), (stored.rv, stored.value.clone()));
        }
        *self.position.lock() = loaded.at;
        *self.loaded.lock() = Some(loaded);
        Ok(())
    }

    fn committed(&self, rv: ResourceVersion, changes: &[Committed]) {
        let before = std::mem::replace(&mut *self.position.lock(), rv);
        assert!(rv > before, "{rv} is published after {before}");
        let mut live = self.live.lock();
        for change in changes {
            if change.deleted {
                live.remove(&change.key);
            } else {
                live.insert(change.key.clone(), (rv, change.value.bytes().clone()));
            }
        }
    }

    fn reloaded(&self, _loaded: Loaded) {
        panic!("the embedded store sees every commit");
    }
}

/// Value `n` of `key`: its length depends on both, so that pages split and merge.
pub(crate) fn value(key: &str, n: u64) -> Bytes {
    let (namespace, name) = key.rsplit_once('/').expect("a key");
    let pad = "x".repeat(usize::try_from((n * 7919 + key.len() as u64 * 31) % 2300).expect("small"));
    Bytes::from(format!(
        r#"{{"metadata":{{"name":"{name}","namespace":"{}"}},"n":{n},"pad":"{pad}"}}"#,
        namespace.rsplit('/').next().unwrap_or_default()
    ))
}

fn number(value: &Bytes) -> u64 {
    let value: serde_json::Value = serde_json::from_slice(value).expect("values are JSON");
    value["n"].as_u64().expect("a number")
}

pub(crate) fn put(key: &str, n: u64, durability: Durability) -> Op {
    Op {
        key: key.to_owned(),
        expect: Expect::Any,
        action: Action::Put(value(key, n).into(), durability),
    }
}

pub(crate) fn delete(key: &str) -> Op {
    Op {
        key: key.to_owned(),
        expect: Expect::Any,
        action: Action::Delete {
            last: value(key, 0).into(),
        },
    }
}

pub(crate) fn config_map(n: u64) -> String {
    format!("/configmaps/x/c{n}")
}

pub(crate) fn node_lease(n: u64) -> String {
    format!("/leases.coordination.k8s.io/kube-node-lease/n{n}")
}

pub(crate) fn service(name: u64, rv: u64) -> Object {
    let pad = "y".repeat(usize::try_from(rv * 131 % 900).expect("small"));
    let json = format!(
        r#"{{"metadata":{{"namespace":"x","name":"s{name}","uid":"u{name}","resourceVersion":"{rv}"}},"pad":"{pad}"}}"#
    );
    Object::parse(Bytes::from(json), find_kind("", "services").expect("services")).expect("fixture")
}

fn place(object: &Object) -> (u64, String) {
    (object.resource_version().0, object.key().to_string())
}

fn copy_of(held: &Collection) -> Copy {
    let meta = (held.position().0, held.floor().0, held.generation(), held.is_complete());
    let ranges = held.range_tombstones().into_iter();
    let ranges = ranges.map(|range| (range.to.0, range.object.key().to_string()));
    (
        meta,
        [
            held.objects().map(place).collect(),
            held.tombstones().map(place).collect(),
            ranges.collect(),
        ],
    )
}

/// Opens what `medium` holds.
pub(crate) async fn open(
    medium: Arc<dyn FileBackend>,
    clock: &Clock,
) -> Result<(Embedded, Arc<Memory>, Replicas), String> {
    let disk = Disk::open_on(Path::new(NAME), medium, clock.clone()).map_err(|error| error.to_string())?;
    let describe_error = |error: StorageError| error.to_string();
    let store = Embedded::on(disk.clone(), clock.clone(), Space::Own).map_err(describe_error)?;
    let kinds = [("services".to_owned(), find_kind("", "services").expect("services"))];
    let replica_store = ReplicaStore::open(disk).map_err(describe_error)?;
    let replicas = Replicas::open(&kinds, Some(replica_store)).map_err(describe_error)?;
    let memory = Arc::new(Memory::default());
    store.attach(memory.clone()).await.map_err(describe_error)?;
    Ok((store, memory, replicas))
}

/// State found on `medium` by a process that starts on it at the time of `clock`.
pub(crate) async fn find(medium: Arc<dyn FileBackend>, clock: &Clock) -> Result<Found, String> {
    let (store, memory, replicas) = open(medium, clock).await?;
    let services = replicas.named("services").expect("services").collection().clone();
    let copy = services.read(|held| (held.position().0 > 0).then(|| copy_of(held)));
    let id = store.id().to_owned();
    let loaded = memory.loaded.lock().take().expect("attached");
    Ok(Found { id, loaded, copy })
}

// === impl Life ===

impl Life {
    /// A store that begins, or continues, on `tape`.
    pub(crate) async fn on(tape: Arc<Tape>, clock: Clock, hand: FakeClock) -> Self {
        let medium = Arc::new(Lent(tape.clone()));
        let lent = Arc::downgrade(&medium);
        let (store, memory, replicas) = open(medium, &clock).await.expect("opens");
        let loaded = memory.loaded.lock().clone().expect("attached");
        let position = replicas
            .named("services")
            .expect("services")
            .collection()
            .read(Collection::position);
        tape.fact(Fact::Opened {
            id: store.id().to_owned(),
            at: loaded.at,
        });
        let highest = loaded
            .live
            .iter()
            .map(|stored| number(&stored.value))
            .max()
            .unwrap_or(0);
        Self {
            tape,
            lent,
            store,
            memory,
            replicas,
            clock,
            hand,
            refused: Vec::new(),
            beside: 0,
            n: highest,
            cloud: position.0,
        }
    }

    /// State that it found when it was opened.
    pub(crate) fn found(&self) -> Found {
        let services = self.replicas.named("services").expect("services").collection().clone();
        Found {
            id: self.store.id().to_owned(),
            loaded: self.memory.loaded.lock().clone().expect("attached"),
            copy: services.read(|held| (held.position().0 > 0).then(|| copy_of(held))),
        }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.n += 1;
        self.n
    }

    /// Performs one random step.
    pub(crate) async fn step(&mut self, random: &mut Random) {
        match random.below(14) {
            0..3 => {
                let (key, n) = (config_map(random.below(14)), self.next());
                self.write(vec![put(&key, n, Durability::Durable)]).await;
            }
            3 => {
                self.write(vec![delete(&config_map(random.below(14)))]).await;
            }
            4 => self.write_at_once(random).await,
            5..7 => {
                self.renew(&node_lease(random.below(5))).await;
            }
            7 => {
                let n = self.next();
                self.write(PAIR.iter().map(|key| put(key, n, Durability::Durable)).collect())
                    .await;
            }
            8..10 => self.feed(random).await,
            10..12 => self.renew_beside_commits(random).await,
            12 => self.hand.advance(Duration::from_secs(random.below(50))),
            _ => {
                let now = self.clock.unix();
                let secs = now.secs - i64::try_from(random.below(5_000)).expect("small");
                self.hand.set_unix(UnixTime { secs, ..now });
            }
        }
    }

    /// One durable transaction; returns true if it was acknowledged.
    pub(crate) async fn write(&mut self, ops: Vec<Op>) -> bool {
        let keys: Vec<String> = ops.iter().map(|op| op.key.clone()).collect();
        self.tape.fact(Fact::Doing(changes(&ops)));
        let before = self.seen(&keys);
        match self.store.write(ops).await {
            Ok(rv) => self.tape.fact(Fact::Done { rv }),
            Err(error) => {
                assert_eq!(self.seen(&keys), before, "readers see a write that was refused");
                self.tape.fact(Fact::Refused(keys));
                self.refused.push(error);
                return false;
            }
        }
        true
    }

    fn seen(&self, keys: &[String]) -> Vec<Option<(ResourceVersion, Bytes)>> {
        let live = self.memory.live.lock();
        keys.iter().map(|key| live.get(key).cloned()).collect()
    }

    async fn write_at_once(&mut self, random: &mut Random) {
        let first = random.below(9);
        let ops: Vec<Op> = (first..first + 5)
            .map(|k| put(&config_map(k), self.next(), Durability::Durable))
            .collect();
        self.tape.fact(Fact::Doing(changes(&ops)));
        let keys: Vec<String> = ops.iter().map(|op| op.key.clone()).collect();
        let all = futures_util::future::join_all(ops.into_iter().map(|op| self.store.write(vec![op]))).await;
        let (mut refused, mut last) = (Vec::new(), None);
        for (key, outcome) in keys.into_iter().zip(all) {
            match outcome {
                Ok(rv) => last = last.max(Some(rv)),
                Err(error) => {
                    refused.push(key);
                    self.refused.push(error);
                }
            }
        }
        self.tape.fact(Fact::Refused(refused));
        if let Some(rv) = last {
            self.tape.fact(Fact::Done { rv });
        }
    }

    /// Renews a lease, or creates it; returns true if it was acknowledged.
    pub(crate) async fn renew(&mut self, key: &str) -> bool {
        let n = self.next();
        let keys = [key.to_owned()];
        let before = self.seen(&keys);
        if before == [None] {
            return self.write(vec![put(key, n, Durability::Durable)]).await;
        }
        match self.store.write(vec![put(key, n, Durability::Volatile)]).await {
            Ok(rv) => {
                let key = key.to_owned();
                self.tape.fact(Fact::Renewed { key, n, rv });
                true
            }
            Err(error) => {
                assert_eq!(self.seen(&keys), before, "readers see a renewal that was refused");
                self.refused.push(error);
                false
            }
        }
    }

    /// Renews leases while the medium is at work, for an own object and for pool data on the same medium.
    async fn renew_beside_commits(&mut self, random: &mut Random) {
        self.hand.advance(Duration::from_millis(5));
        let (key, n, with_pool) = (config_map(random.below(14)), self.next(), random.one_in(2));
        if with_pool {
            self.change_services(random);
        }
        let leases: Vec<String> = (0..5).map(node_lease).collect();
        let leases = leases.into_iter().zip(self.n + 1..);
        let leases: Vec<_> = leases
            .filter(|(key, _)| self.seen(std::slice::from_ref(key)) != [None])
            .collect();
        self.n += 5;
        let ops = vec![put(&key, n, Durability::Durable)];
        self.tape.fact(Fact::Doing(changes(&ops)));
        let (tape, mut waiting) = (self.tape.clone(), Vec::new());
        let mut writing = self.store.write(ops).shared();
        let mut persisting = self.replicas.persist(None).boxed_local().shared();
        {
            let _held = tape.hold_flushes();
            if with_pool && random.one_in(2) {
                persisting.clone().now_or_never();
            }
            // A failing write may not reach that point.
            while writing.clone().now_or_never().is_none() && tape.flushes() == 0 {
                std::thread::yield_now();
            }
            if with_pool {
                persisting.clone().now_or_never();
            }
            for (key, n) in leases {
                let mut renewing = self.store.write(vec![put(&key, n, Durability::Volatile)]);
                match (&mut renewing).now_or_never() {
                    // It needs a mark first.
                    None => waiting.push((key, n, renewing)),
                    Some(Err(error)) => self.refused.push(error),
                    Some(Ok(rv)) => {
                        self.beside += usize::from(tape.flushes() > 0);
                        tape.fact(Fact::Renewed { key, n, rv });
                    }
                }
            }
        }
        for (key, n, renewing) in waiting {
            match renewing.await {
                Ok(rv) => tape.fact(Fact::Renewed { key, n, rv }),
                Err(error) => self.refused.push(error),
            }
        }
        match (&mut writing).await {
            Ok(rv) => tape.fact(Fact::Done { rv }),
            Err(error) => {
                tape.fact(Fact::Refused(vec![key]));
                self.refused.push(error);
            }
        }
        if with_pool {
            match (&mut persisting).await {
                Ok(()) => tape.fact(Fact::Persisted),
                Err(error) => self.refused.push(error),
            }
        }
    }

    /// Pool data changes, and is made durable.
    pub(crate) async fn feed(&mut self, random: &mut Random) {
        self.change_services(random);
        match self.replicas.persist(None).await {
            Ok(()) => self.tape.fact(Fact::Persisted),
            Err(error) => self.refused.push(error),
        }
    }

    fn change_services(&mut self, random: &mut Random) {
        let services = self.replicas.named("services").expect("services").collection().clone();
        services.update(|held| {
            self.cloud += 1 + random.below(5);
            if !held.is_complete() || random.one_in(8) {
                let list = (0..random.below(12))
                    .map(|name| service(name, self.cloud - 1))
                    .collect();
                let generation = held.generation() + random.below(2);
                held.restart(generation, list, ResourceVersion(self.cloud));
            } else if random.one_in(4) {
                let kept: Vec<Object> = held.objects().filter(|_| !random.one_in(3)).cloned().collect();
                held.replace(kept, ResourceVersion(self.cloud)).expect("newer");
            }
            for _ in 0..random.below(6) {
                self.cloud += 1;
                let event = [EventType::Modified, EventType::Deleted][random.index(2)];
                held.apply(event, service(random.below(12), self.cloud));
            }
        });
        self.tape.fact(Fact::Persisting(services.read(copy_of)));
    }

    /// A clean stop.
    pub(crate) async fn close(self) {
        self.tape.fact(Fact::Closing);
        self.store.close().await.expect("closed");
        self.tape.fact(Fact::Closed);
        self.kill();
    }

    /// Releases the medium. The tape decides which of its contents a crash sees.
    pub(crate) fn kill(self) {
        drop((self.store, self.replicas));
        // The writer thread ends when it has no senders left. At its end it writes once more and releases the medium.
        while self.lent.strong_count() > 0 {
            std::thread::yield_now();
        }
    }
}

fn changes(ops: &[Op]) -> Vec<(String, Option<u64>)> {
    let change = |op: &Op| match &op.action {
        Action::Put(bytes, _) => (op.key.clone(), Some(number(bytes.bytes()))),
        Action::Delete { .. } | Action::Check => (op.key.clone(), None),
    };
    ops.iter().map(change).collect()
}

// === impl Expected ===

impl Expected {
    /// Records the events among `entries`.
    pub(crate) fn note_all(&mut self, entries: &[Entry]) {
        for entry in entries {
            if let Entry::Fact(fact) = entry {
                self.note(fact);
            }
        }
    }

    /// Records the next event.
    pub(crate) fn note(&mut self, fact: &Fact) {
        match fact {
            Fact::Opened { id, at } => {
                self.id = Some(id.clone());
                self.issued = self.issued.max(*at);
                self.closing = false;
            }
            Fact::Doing(changes) => self.doing.clone_from(changes),
            Fact::Done { rv } => {
                self.issued = self.issued.max(*rv);
                for (key, n) in self.doing.drain(..) {
                    let before = self.certain.insert(key.clone(), n);
                    self.renewed.remove(&key);
                    if n.is_none() && before.flatten().is_some() {
                        self.deletions.insert(key, *rv);
                    }
                }
            }
            Fact::Refused(keys) => {
                let refused = self.doing.extract_if(.., |(key, _)| keys.contains(key));
                self.refused.extend(refused);
            }
            Fact::Reverted => self.refused.clear(),
            Fact::Renewed { key, n, rv } => {
                self.issued = self.issued.max(*rv);
                self.renewed.insert(key.clone(), *n);
            }
            Fact::Closing => self.closing = true,
            Fact::Closed => {
                for (key, n) in std::mem::take(&mut self.renewed) {
                    self.certain.insert(key, Some(n));
                }
            }
            Fact::Persisting(copy) => self.persisting.push(copy.clone()),
            Fact::Persisted => {
                self.copy = self.persisting.pop();
                self.persisting.clear();
            }
        }
    }

    /// State that a store recovered as `found` must keep from now on.
    pub(crate) fn from_found(found: &Found) -> Self {
        let number = |stored: &Stored| (stored.key.clone(), Some(number(&stored.value)));
        let deletions = found.loaded.tombstones.iter();
        Self {
            id: Some(found.id.clone()),
            issued: found.loaded.at,
            certain: found.loaded.live.iter().map(number).collect(),
            deletions: deletions.map(|stored| (stored.key.clone(), stored.rv)).collect(),
            copy: found.copy.clone(),
            ..Self::default()
        }
    }

    /// Compares; the error names the loss.
    pub(crate) fn check(&self, found: &Found) -> Result<(), String> {
        if self.id.as_ref().is_some_and(|id| *id != found.id) {
            return Err("another store id".into());
        }
        if found.loaded.at <= self.issued {
            return Err(format!("RVs went back: {} after {}", found.loaded.at, self.issued));
        }
        let live: BTreeMap<&str, (ResourceVersion, u64)> = found
            .loaded
            .live
            .iter()
            .map(|stored| {
                let n = number(&stored.value);
                if stored.value != value(&stored.key, n) {
                    return Err(format!("{} is garbled", stored.key));
                }
                Ok((stored.key.as_str(), (stored.rv, n)))
            })
            .collect::<Result<_, _>>()?;
        self.check_values(&live, &found.loaded.tombstones)?;
        for (key, (rv, _)) in &live {
            if key.starts_with("/leases") && *rv <= self.issued {
                return Err(format!("{key} kept {rv}: a watch from {} misses it", self.issued));
            }
        }
        let pair = PAIR.map(|key| live.get(key).map(|(_, n)| *n));
        if pair[0] != pair[1] {
            return Err(format!("lease and epoch fell apart: {pair:?}"));
        }
        for (key, rv) in &self.deletions {
            let is_there = |stored: &Stored| stored.key == *key && stored.rv == *rv;
            if found.loaded.floor < *rv && !found.loaded.tombstones.iter().any(is_there) {
                return Err(format!("the deletion of {key} at {rv} is forgotten"));
            }
        }
        let is_tried = found.copy.as_ref().is_some_and(|copy| self.persisting.contains(copy));
        if found.copy != self.copy && !is_tried {
            return Err(format!("replica is none of the committed ones: {:?}", found.copy));
        }
        Ok(())
    }

    fn check_values(&self, live: &BTreeMap<&str, (ResourceVersion, u64)>, tombstones: &[Stored]) -> Result<(), String> {
        let keys = self.certain.keys().chain(self.doing.iter().map(|(key, _)| key));
        let keys: BTreeSet<&str> = keys.map(String::as_str).chain(live.keys().copied()).collect();
        for key in keys {
            let has = live.get(key).map(|(_, n)| *n);
            let certain = self.certain.get(key).copied().flatten();
            let doing = self.doing.iter().any(|(of, n)| of == key && *n == has);
            let flushed = self.closing && has.is_some() && self.renewed.get(key).copied() == has;
            if has != certain && self.refused.contains(&(key.to_owned(), has)) {
                let deletions = tombstones.iter().filter(|stored| stored.key == key);
                let at = live.get(key).map(|(rv, _)| *rv);
                let at = at.or_else(|| deletions.map(|stored| stored.rv).max());
                if at <= Some(self.issued) {
                    let issued = self.issued;
                    return Err(format!("{key} is {has:?} at {at:?}: a watch from {issued} misses it"));
                }
                continue;
            }
            if has != certain && !doing && !flushed {
                return Err(format!("{key} is {has:?}, was acknowledged as {certain:?}"));
            }
        }
        Ok(())
    }
}
