//! The cloud of the simulated reads: a log of changes, the part of it that is not compacted, and servers that lag.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use yurt_apimachinery::watch::EventType;
use yurt_apimachinery::{Object, ObjectKey, ResourceKind, ResourceVersion, kind};
use yurt_chaos_validate::history::Truth;

use crate::random::Random;

/// Number of possible objects.
const KEYS: u64 = 10;
/// Servers in front of one store.
pub(super) const SERVERS: usize = 2;

pub(super) struct Cloud {
    /// Every change, oldest first.
    log: Vec<(u64, EventType, Object)>,
    live: BTreeMap<u64, (u64, Object)>,
    uids: u64,
    /// RV of the last change, in this collection or in another one.
    head: u64,
    /// A watch from before this is answered 410.
    forgotten: u64,
    /// Position of each server.
    pub(super) seen_by: [u64; SERVERS],
    pub(super) truth: Truth,
    /// Number of histories that ended because the cloud was restored from a backup.
    era: u32,
    /// RV of each object where the log begins.
    base: BTreeMap<String, u64>,
    /// States of histories that ended: key and RV. The same RV of the same object would have two contents, which are
    /// indistinguishable. In a real cloud that takes two histories that write the same objects in step.
    ended: BTreeSet<(u64, u64)>,
}

/// The state of the cloud at some moment, for a later restore.
#[derive(Clone)]
pub(super) struct Backup {
    live: BTreeMap<u64, (u64, Object)>,
    head: u64,
}

pub(super) fn kind() -> &'static ResourceKind {
    kind::find_kind("", "services").expect("services are built in")
}

/// Identity of a state: FNV-1a of its bytes.
pub(super) fn mark(object: &Object) -> String {
    let start = 0xcbf2_9ce4_8422_2325_u64;
    let hash = object.bytes().iter().fold(start, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("{hash:016x}")
}

fn service(key: u64, uid: u64, rv: u64, era: u32) -> Object {
    // The unknown field must be copied, too.
    let json = format!(
        r#"{{"apiVersion":"v1","kind":"Service","metadata":{{"namespace":"shop","name":"s{key}","uid":"u{uid}","resourceVersion":"{rv}"}},"spec":{{"later":"{era}-{rv}"}}}}"#
    );
    Object::parse(Bytes::from(json), kind()).expect("a service of the simulation must parse")
}

fn key_of(object: &Object) -> Option<u64> {
    object.name().strip_prefix('s')?.parse().ok()
}

// === impl Cloud ===

impl Cloud {
    pub(super) fn new(random: &mut Random) -> Self {
        let mut cloud = Self {
            log: Vec::new(),
            live: BTreeMap::new(),
            uids: 0,
            head: 100,
            forgotten: 100,
            seen_by: [100; SERVERS],
            truth: Truth::default(),
            era: 0,
            base: BTreeMap::new(),
            ended: BTreeSet::new(),
        };
        for _ in 0..KEYS {
            cloud.change(random);
        }
        cloud.catch_up();
        cloud
    }

    pub(super) fn head(&self) -> u64 {
        self.head
    }

    /// Creates, changes or deletes an object, or deletes and creates it again.
    pub(super) fn change(&mut self, random: &mut Random) {
        // Other collections use numbers of the same space.
        self.head += random.below(3);
        let key = random.below(KEYS);
        match (self.live.contains_key(&key), random.below(8)) {
            (true, 0..2) => self.delete(key),
            (true, 2) => {
                self.delete(key);
                self.put(key);
            }
            _ => self.put(key),
        }
    }

    fn put(&mut self, key: u64) {
        self.head += 1;
        while self.ended.contains(&(key, self.head)) {
            self.head += 1;
        }
        let known = self.live.get(&key).map(|(uid, _)| *uid);
        let uid = known.unwrap_or_else(|| {
            self.uids += 1;
            self.uids
        });
        let object = service(key, uid, self.head, self.era);
        let event = if known.is_some() {
            EventType::Modified
        } else {
            EventType::Added
        };
        self.truth.add(object.key().as_str(), self.head, Some(mark(&object)));
        self.live.insert(key, (uid, object.clone()));
        self.log.push((self.head, event, object));
    }

    fn delete(&mut self, key: u64) {
        let Some((_, object)) = self.live.remove(&key) else {
            return;
        };
        self.head += 1;
        self.truth.add(object.key().as_str(), self.head, None);
        let last = object.with_resource_version(ResourceVersion(self.head));
        self.log.push((self.head, EventType::Deleted, last));
    }

    pub(super) fn list(&self) -> (Vec<Object>, ResourceVersion) {
        let objects = self.live.values().map(|(_, object)| object.clone());
        (objects.collect(), ResourceVersion(self.head))
    }

    /// At most `max` events after `position` at a server; `None` if they are compacted.
    pub(super) fn after(&self, position: u64, server: usize, max: usize) -> Option<&[(u64, EventType, Object)]> {
        if position < self.forgotten {
            return None;
        }
        let from = self.log.partition_point(|(rv, ..)| *rv <= position);
        let to = self
            .log
            .partition_point(|(rv, ..)| *rv <= self.seen_by[server])
            .max(from);
        Some(&self.log[from..to.min(from + max)])
    }

    /// Compacts all changes up to now, for watches.
    pub(super) fn compact(&mut self) {
        self.forgotten = self.head;
        self.base = self.versions();
    }

    pub(super) fn backup(&self) -> Backup {
        Backup {
            live: self.live.clone(),
            head: self.head,
        }
    }

    /// True if an object exists in a state that the backup does not have.
    pub(super) fn has_changed_since(&self, backup: &Backup) -> bool {
        let mut objects = self.live.values().map(|(_, object)| object);
        objects.any(|object| object.resource_version().0 > backup.head)
    }

    /// Restores the backup: later changes are lost, and their numbers are issued again.
    pub(super) fn restore(&mut self, backup: Backup) {
        let lost = self.log.iter().filter(|(_, event, _)| *event != EventType::Deleted);
        let lost = lost.filter_map(|(rv, _, object)| Some((key_of(object)?, *rv)));
        self.ended.extend(lost);
        self.era += 1;
        (self.live, self.head) = (backup.live, backup.head);
        self.log.clear();
        self.forgotten = self.head;
        self.base = self.versions();
        self.catch_up();
        self.truth = Truth::default();
        for (_, object) in self.live.values() {
            let version = object.resource_version().0;
            self.truth.add(object.key().as_str(), version, Some(mark(object)));
        }
    }

    /// RV and uid of an object now.
    pub(super) fn now(&self, key: &ObjectKey) -> Option<(u64, &str)> {
        let objects = self.live.values().map(|(_, object)| object);
        let found = objects.filter(|object| object.key() == key);
        found.map(|object| (object.resource_version().0, object.uid())).next()
    }

    /// RV of an object as it was at `at`, the inner `None` if there was none; outer `None` if that is compacted.
    pub(super) fn then(&self, key: &ObjectKey, at: u64) -> Option<Option<u64>> {
        if !(self.forgotten..=self.head).contains(&at) {
            return None;
        }
        let mut then = self.base.get(key.as_str()).copied();
        for (rv, event, object) in self.log.iter().take_while(|(rv, ..)| *rv <= at) {
            if object.key() == key {
                then = (*event != EventType::Deleted).then_some(*rv);
            }
        }
        Some(then)
    }

    fn versions(&self) -> BTreeMap<String, u64> {
        let version = |object: &Object| (object.key().to_string(), object.resource_version().0);
        self.live.values().map(|(_, object)| version(object)).collect()
    }

    /// Advances every server to the last change.
    pub(super) fn catch_up(&mut self) {
        self.seen_by = [self.head; SERVERS];
    }
}
