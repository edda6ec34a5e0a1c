//! The cloud as its readers see it: one log of changes. It is compacted from the front and read through servers that
//! may lag. From some RV on it is replaced when the cloud is restored from a backup.

use super::copy::Change;

/// Number of keys.
pub const KEYS: usize = 2;

/// An object in one of its states. Two objects with the same numbers have the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Object {
    /// resourceVersion.
    pub rv: u8,
    /// uid: the RV of its creation, and the timeline.
    pub uid: (u8, u8),
    /// Timeline it was written in.
    pub origin: u8,
}

/// The objects by key.
pub type Objects = [Option<Object>; KEYS];

/// One change; its RV is its position in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Key of the object.
    pub key: usize,
    /// Its state afterwards.
    pub object: Option<Object>,
    /// uid of the object that was changed or deleted.
    pub uid: (u8, u8),
}

/// The cloud.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cloud {
    /// The log of each timeline; the last one is the present.
    pub logs: Vec<Vec<Entry>>,
    /// Watches from below this RV get 410.
    pub forgotten: u8,
    /// Position of the slower of the two servers.
    pub lagging: u8,
}

// === impl Entry ===

impl Entry {
    /// The change as a watch reports it.
    pub fn change(&self) -> Change {
        self.object.map_or(Change::Gone(self.uid), Change::Is)
    }
}

// === impl Cloud ===

impl Cloud {
    /// A cloud with one object, so that no list is empty.
    pub fn new() -> Self {
        let mut cloud = Self {
            logs: vec![Vec::new()],
            forgotten: 0,
            lagging: 1,
        };
        cloud.put(0);
        cloud
    }

    /// The present timeline.
    pub fn timeline(&self) -> u8 {
        self.logs.len() as u8 - 1
    }

    /// RV of the last change.
    pub fn head(&self) -> u8 {
        self.log(self.timeline()).len() as u8
    }

    /// The log of `timeline`.
    pub fn log(&self, timeline: u8) -> &[Entry] {
        &self.logs[usize::from(timeline)]
    }

    /// The change at `rv`.
    pub fn entry(&self, timeline: u8, rv: u8) -> Option<&Entry> {
        self.log(timeline).get(usize::from(rv).checked_sub(1)?)
    }

    /// The objects at `rv`.
    pub fn at(&self, timeline: u8, rv: u8) -> Objects {
        let mut objects = Objects::default();
        let log = self.log(timeline);
        for entry in &log[..usize::from(rv).min(log.len())] {
            objects[entry.key] = entry.object;
        }
        objects
    }

    /// True if `key` changes after `rv`.
    pub fn changes_after(&self, timeline: u8, rv: u8, key: usize) -> bool {
        let log = self.log(timeline);
        let newer = &log[usize::from(rv).min(log.len())..];
        newer.iter().any(|entry| entry.key == key)
    }

    /// Creates or changes the object at `key`.
    pub fn put(&mut self, key: usize) {
        let (rv, origin) = (self.head() + 1, self.timeline());
        let before = self.at(origin, self.head())[key];
        let uid = before.map_or((rv, origin), |object| object.uid);
        self.push(Entry {
            key,
            object: Some(Object { rv, uid, origin }),
            uid,
        });
    }

    /// Deletes the object at `key`.
    pub fn delete(&mut self, key: usize) {
        let before = self.at(self.timeline(), self.head())[key];
        let uid = before.map_or((0, 0), |object| object.uid);
        self.push(Entry { key, object: None, uid });
    }

    fn push(&mut self, entry: Entry) {
        let timeline = usize::from(self.timeline());
        self.logs[timeline].push(entry);
    }

    /// Restores the state at `rv`; later changes belong to another timeline.
    pub fn roll_back(&mut self, rv: u8) {
        let log = self.log(self.timeline())[..usize::from(rv)].to_vec();
        self.logs.push(log);
        self.lagging = rv;
        self.forgotten = self.forgotten.min(rv);
    }
}

impl Default for Cloud {
    fn default() -> Self {
        Self::new()
    }
}
