//! The durable copy of replicas: data, tombstones and `C` of each collection in one transaction.
//!
//! The frequency of commits affects wear only, not safety. After a crash the replica restarts from its last commit and
//! resumes at its source.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use redb::WriteTransaction;
use yurt_apimachinery::packed::{self, Packer};
use yurt_apimachinery::{Object, ResourceKind, ResourceVersion};
use yurt_collection::{Collection, Dirty, Gap, Recovered};

use super::disk::Disk;
use super::drafts::{draft_names, drop_draft};
use super::format;
use super::tables::{
    REPLICA, REPLICA_GAPS, REPLICA_HIGH, REPLICA_MARK, REPLICA_META, REPLICA_RANGES, REPLICA_TOMBSTONES, storage_error,
};
use crate::backend::StorageError;
use yurt_runtime::memory;

mod stored;

pub use stored::Stored;

use stored::Rows;

/// Meta data that a commit stores of a collection, in addition to its objects.
#[derive(Clone, Debug)]
pub struct Meta {
    position: ResourceVersion,
    floor: ResourceVersion,
    generation: u64,
    complete: bool,
    gaps: Vec<Gap>,
    high: ResourceVersion,
    mark: ResourceVersion,
}

/// One collection's part of a commit.
#[derive(Debug)]
pub struct Part {
    /// Name of the collection.
    pub name: String,
    /// The changes.
    pub dirty: Dirty,
    /// Position and state that belong to exactly these changes.
    pub meta: Meta,
}

/// Replica tables of one disk.
#[derive(Clone)]
pub struct ReplicaStore {
    pub(super) disk: Arc<Disk>,
    /// True if long bodies are deflated.
    packs: bool,
}

/// Bodies that one transaction writes.
pub(super) struct Bodies<'a> {
    txn: &'a WriteTransaction,
    packer: Option<Packer>,
    /// True once the file has the number of a file with deflated bodies.
    is_marked: bool,
    /// Bytes of memory that were freed, as objects are held deflated now.
    freed: usize,
}

// === impl Meta ===

impl Meta {
    /// The meta data of `collection` as it is now.
    #[must_use]
    pub fn of(collection: &Collection) -> Self {
        Self {
            position: collection.position(),
            floor: collection.floor(),
            generation: collection.generation(),
            complete: collection.is_complete(),
            gaps: collection.gaps().to_vec(),
            high: collection.high(),
            mark: collection.next_mark(),
        }
    }

    /// `C` at the commit.
    #[must_use]
    pub fn position(&self) -> ResourceVersion {
        self.position
    }

    /// Oldest position that could resume at the commit.
    #[must_use]
    pub fn floor(&self) -> ResourceVersion {
        self.floor
    }

    /// Generation at the commit.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Stretches that lists jumped over.
    #[must_use]
    pub fn gaps(&self) -> &[Gap] {
        &self.gaps
    }

    /// Highest RV that may have been served in an older generation.
    #[must_use]
    pub fn high(&self) -> ResourceVersion {
        self.high
    }

    /// RV up to which the collection may serve until the next commit.
    #[must_use]
    pub fn mark(&self) -> ResourceVersion {
        self.mark
    }

    /// True if the collection was complete at the commit.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.complete
    }
}

// === impl ReplicaStore ===

impl ReplicaStore {
    /// Opens the replica tables.
    ///
    /// # Errors
    /// [`StorageError`] when the tables cannot be created.
    pub fn open(disk: Arc<Disk>) -> Result<Self, StorageError> {
        let exists = disk.read(|read| {
            let mut tables = read.list_tables().map_err(storage_error)?;
            Ok(tables.any(|table| redb::TableHandle::name(&table) == redb::TableHandle::name(&REPLICA_MARK)))
        })?;
        if !exists {
            disk.write(|txn| {
                txn.open_table(REPLICA).map_err(storage_error)?;
                txn.open_table(REPLICA_TOMBSTONES).map_err(storage_error)?;
                txn.open_table(REPLICA_RANGES).map_err(storage_error)?;
                txn.open_table(REPLICA_META).map_err(storage_error)?;
                txn.open_table(REPLICA_GAPS).map_err(storage_error)?;
                txn.open_table(REPLICA_HIGH).map_err(storage_error)?;
                // The newest table: a file that has it has all of them.
                txn.open_table(REPLICA_MARK).map_err(storage_error)?;
                Ok(())
            })?;
        }
        Ok(Self { disk, packs: false })
    }

    /// Makes later commits deflate long bodies. An older program then sets the file aside.
    #[must_use]
    pub fn packing(self) -> Self {
        Self { packs: true, ..self }
    }

    pub(super) fn bodies<'a>(&self, txn: &'a WriteTransaction) -> Bodies<'a> {
        Bodies {
            txn,
            packer: self.packs.then(Packer::default),
            is_marked: false,
            freed: 0,
        }
    }

    /// State of collection `name` at the last commit; `None` when there was none.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`] naming the row that cannot be read.
    pub fn load(&self, name: &str, kind: &ResourceKind) -> Result<Option<Recovered>, StorageError> {
        Ok(match self.load_within(name, kind, usize::MAX)? {
            Stored::State(recovered, _) => Some(*recovered),
            Stored::Nothing | Stored::TooLarge(_) => None,
        })
    }

    /// As [`Self::load`], if objects and deletions have at most `room` plain bytes. Rows beyond it are counted, not
    /// held.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`] naming the row that cannot be read.
    pub fn load_within(&self, name: &str, kind: &ResourceKind, room: usize) -> Result<Stored, StorageError> {
        let Some(rows) = self.disk.read(|read| Rows::read(read, name, room))? else {
            return Ok(Stored::Nothing);
        };
        let bytes = rows.bytes;
        if bytes > room {
            return Ok(Stored::TooLarge(bytes));
        }
        match rows.parse(kind) {
            Ok(recovered) => Ok(Stored::State(recovered.into(), bytes)),
            Err(why) => Err(self.disk.damaged_row(&format!("replica {name}, {why}"))),
        }
    }

    /// Bytes of the objects and deletions that [`Self::load`] would read of collection `name`.
    ///
    /// # Errors
    /// [`StorageError`] when the tables cannot be read.
    pub fn bytes(&self, name: &str) -> Result<usize, StorageError> {
        let rows = self.disk.read(|read| Rows::read(read, name, 0))?;
        Ok(rows.map_or(0, |rows| rows.bytes))
    }

    /// Names of the collections and drafts that begin with `prefix`, in order.
    ///
    /// # Errors
    /// [`StorageError`] when a table cannot be read.
    pub fn names(&self, prefix: &str) -> Result<BTreeSet<String>, StorageError> {
        self.disk.read(|read| {
            let metas = read.open_table(REPLICA_META).map_err(storage_error)?;
            let mut names = BTreeSet::new();
            for row in metas.range(prefix..).map_err(storage_error)? {
                let (name, _) = row.map_err(storage_error)?;
                if !name.value().starts_with(prefix) {
                    break;
                }
                names.insert(name.value().to_owned());
            }
            names.extend(draft_names(read, prefix)?);
            Ok(names)
        })
    }

    /// Deletes everything of collection `name`, its draft included. Blocks; call it off the async threads.
    ///
    /// # Errors
    /// [`StorageError`]; nothing is deleted then.
    pub fn forget(&self, name: &str) -> Result<(), StorageError> {
        self.disk.write(|txn| forget(txn, name))
    }

    /// Writes all parts in one durable transaction. Blocks; call it off the async threads.
    ///
    /// # Errors
    /// [`StorageError`]; the parts have to be written again then.
    pub fn commit<'a>(&self, mut parts: impl Iterator<Item = &'a Part>) -> Result<(), StorageError> {
        let mut freed = 0;
        self.disk.write(|txn| {
            let mut bodies = self.bodies(txn);
            parts.try_for_each(|part| write_part(txn, part, &mut bodies))?;
            freed = bodies.freed;
            Ok(())
        })?;
        memory::note_freed(freed);
        Ok(())
    }
}

// === impl Bodies ===

impl Bodies<'_> {
    /// The row for `text`.
    pub(super) fn text_row(&mut self, text: &Bytes) -> Result<Bytes, StorageError> {
        match &mut self.packer {
            Some(packer) => {
                let row = packer.row(text);
                self.mark(row)
            }
            None => Ok(text.clone()),
        }
    }

    /// The row for the body of `object`, which is held deflated from now on if its row is.
    pub(super) fn row(&mut self, object: &Object) -> Result<Bytes, StorageError> {
        let Some(packer) = &mut self.packer else {
            return Ok(object.bytes());
        };
        let (row, freed) = object.row(packer);
        self.freed += freed;
        self.mark(row)
    }

    /// Gives the file the number of a file with deflated bodies before it gets the first one.
    fn mark(&mut self, row: Bytes) -> Result<Bytes, StorageError> {
        if packed::is_deflated(&row) && !self.is_marked {
            format::mark_packed(self.txn)?;
            self.is_marked = true;
        }
        Ok(row)
    }
}

fn forget(txn: &WriteTransaction, name: &str) -> Result<(), StorageError> {
    let beyond = beyond(name);
    let all = (name, 0, "")..(beyond.as_str(), 0, "");
    let mut objects = txn.open_table(REPLICA).map_err(storage_error)?;
    objects
        .retain_in((name, "")..(beyond.as_str(), ""), |_, _| false)
        .map_err(storage_error)?;
    let mut tombstones = txn.open_table(REPLICA_TOMBSTONES).map_err(storage_error)?;
    tombstones.retain_in(all.clone(), |_, _| false).map_err(storage_error)?;
    let mut ranges = txn.open_table(REPLICA_RANGES).map_err(storage_error)?;
    ranges.retain_in(all, |_, _| false).map_err(storage_error)?;
    let mut gaps = txn.open_table(REPLICA_GAPS).map_err(storage_error)?;
    gaps.retain_in((name, 0)..(beyond.as_str(), 0), |_, _| false)
        .map_err(storage_error)?;
    let mut metas = txn.open_table(REPLICA_META).map_err(storage_error)?;
    metas.remove(name).map_err(storage_error)?;
    for table in [REPLICA_HIGH, REPLICA_MARK] {
        let mut rows = txn.open_table(table).map_err(storage_error)?;
        rows.remove(name).map_err(storage_error)?;
    }
    drop_draft(txn, name)
}

/// A key that sorts after everything of collection `name` and before any longer name. Names are those of Kubernetes
/// resources.
fn beyond(name: &str) -> String {
    format!("{name}\u{1}")
}

fn write_part(txn: &WriteTransaction, part: &Part, bodies: &mut Bodies<'_>) -> Result<(), StorageError> {
    let Part { name, dirty, meta } = part;
    let name = name.as_str();
    let mut objects = txn.open_table(REPLICA).map_err(storage_error)?;
    let mut tombstones = txn.open_table(REPLICA_TOMBSTONES).map_err(storage_error)?;
    let mut ranges = txn.open_table(REPLICA_RANGES).map_err(storage_error)?;
    let mut metas = txn.open_table(REPLICA_META).map_err(storage_error)?;
    let beyond = beyond(name);
    if dirty.replaces_all() {
        objects
            .retain_in((name, "")..(beyond.as_str(), ""), |_, _| false)
            .map_err(storage_error)?;
    }
    let forgotten = if dirty.replaces_all() { u64::MAX } else { meta.floor.0 };
    tombstones
        .retain_in((name, 0, "")..(name, forgotten, ""), |_, _| false)
        .map_err(storage_error)?;
    ranges
        .retain_in((name, 0, "")..(name, forgotten, ""), |_, _| false)
        .map_err(storage_error)?;
    for (key, state) in &dirty.objects {
        let place = (name, key.as_str());
        match state {
            Some(object) => {
                let row = bodies.row(object)?;
                objects.insert(place, row.as_ref()).map_err(storage_error)?;
            }
            None => drop(objects.remove(place).map_err(storage_error)?),
        }
    }
    for object in &dirty.tombstones {
        let place = (name, object.resource_version().0, object.key().as_str());
        let row = bodies.row(object)?;
        tombstones.insert(place, row.as_ref()).map_err(storage_error)?;
    }
    for range in &dirty.ranges {
        let place = (name, range.to.0, range.object.key().as_str());
        let row = bodies.row(&range.object)?;
        ranges
            .insert(place, (range.after.0, row.as_ref()))
            .map_err(storage_error)?;
    }
    let mut gaps = txn.open_table(REPLICA_GAPS).map_err(storage_error)?;
    gaps.retain_in((name, 0)..(name, forgotten), |_, _| false)
        .map_err(storage_error)?;
    for gap in &meta.gaps {
        gaps.insert((name, gap.to.0), gap.from.0).map_err(storage_error)?;
    }
    let mut highs = txn.open_table(REPLICA_HIGH).map_err(storage_error)?;
    highs.insert(name, meta.high.0).map_err(storage_error)?;
    let mut marks = txn.open_table(REPLICA_MARK).map_err(storage_error)?;
    marks.insert(name, meta.mark.0).map_err(storage_error)?;
    let row = (meta.position.0, meta.floor.0, meta.generation, meta.complete);
    metas.insert(name, row).map_err(storage_error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use yurt_apimachinery::kind::find_kind;
    use yurt_collection::ahead_of;
    use yurt_runtime::Clock;
    use yurt_test_support::TestDir;

    use super::*;

    #[test]
    fn file_of_a_program_without_marks_is_read() {
        let folder = TestDir::new();
        let disk = Disk::open(&folder.path().join("replicas.redb"), Clock::system()).unwrap();
        let store = ReplicaStore::open(disk.clone()).unwrap();
        let mut held = Collection::new(true);
        held.restart(0, Vec::new(), ResourceVersion(100));
        let part = Part {
            name: "services".to_owned(),
            dirty: held.take_dirty().unwrap(),
            meta: Meta::of(&held),
        };
        store.commit(std::iter::once(&part)).unwrap();
        let deleted = disk.write(|txn| txn.delete_table(REPLICA_MARK).map_err(storage_error));
        assert_eq!(deleted, Ok(true));
        let store = ReplicaStore::open(disk).unwrap();
        let services = find_kind("", "services").unwrap();
        let mut next = Collection::new(true);
        next.recover(store.load("services", services).unwrap().unwrap());
        assert!(next.covers(ahead_of(ResourceVersion(100))));
        next.restart(7, Vec::new(), ResourceVersion(90));
        assert_eq!(next.high(), ahead_of(ResourceVersion(100)));
    }

    /// A slice of 100 endpoints, as kube-controller-manager writes it.
    fn slice(number: usize) -> Object {
        let endpoint = |n: usize| {
            format!(
                r#"{{"addresses":["10.{}.{}.{n}"],"conditions":{{"ready":true,"serving":true,"terminating":false}},"nodeName":"node-{}","targetRef":{{"kind":"Pod","name":"app-{number}-{n}","namespace":"shop","uid":"{:032x}"}}}}"#,
                number / 256,
                number % 256,
                (number * 7 + n) % 500,
                (number * 1000 + n).wrapping_mul(0x9e37_79b9_7f4a_7c15),
            )
        };
        let endpoints: Vec<_> = (0..100).map(endpoint).collect();
        let text = format!(
            r#"{{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{{"name":"s{number}","namespace":"shop","uid":"u{number}","resourceVersion":"{}"}},"endpoints":[{}]}}"#,
            number + 1,
            endpoints.join(",")
        );
        let kind = find_kind("discovery.k8s.io", "endpointslices").unwrap();
        Object::parse(text.into(), kind).unwrap()
    }

    const SLICES: &str = "endpointslices.discovery.k8s.io";

    fn commit(store: &ReplicaStore, held: &mut Collection) {
        let part = Part {
            name: SLICES.to_owned(),
            dirty: held.take_dirty().unwrap(),
            meta: Meta::of(held),
        };
        store.commit(std::iter::once(&part)).unwrap();
    }

    fn loaded(store: &ReplicaStore) -> Vec<Object> {
        let kind = find_kind("discovery.k8s.io", "endpointslices").unwrap();
        let mut objects = store.load(SLICES, kind).unwrap().unwrap().objects;
        objects.sort_by_key(Object::resource_version);
        objects
    }

    #[test]
    fn deflated_bodies_take_less_of_the_disk_than_their_bytes() {
        const COUNT: usize = 300;
        let all: Vec<_> = (0..COUNT).map(slice).collect();
        let bytes: usize = all.iter().map(|slice| slice.bytes_len()).sum();
        let folder = TestDir::new();
        let size = |name: &str, packs: bool| {
            let disk = Disk::open(&folder.path().join(name), Clock::system()).unwrap();
            let store = ReplicaStore::open(disk.clone()).unwrap();
            let store = if packs { store.packing() } else { store };
            let mut held = Collection::new(true);
            held.restart(0, all.clone(), ResourceVersion(1000));
            commit(&store, &mut held);
            let held = |objects: &[Object]| objects.iter().filter(|object| object.is_packed()).count();
            let expected = if packs { COUNT } else { 0 };
            assert_eq!(
                (held(&all), held(&loaded(&store))),
                (expected, expected),
                "held as in the file"
            );
            let same = loaded(&store).iter().zip(&all).all(|(a, b)| a.bytes() == b.bytes());
            assert!(same && loaded(&store).len() == COUNT);
            assert_eq!(store.bytes(SLICES), Ok(bytes), "limits count plain bytes");
            usize::try_from(disk.stats().file_bytes).unwrap()
        };
        let (plain, packed) = (size("plain", false), size("packed", true));
        assert!(
            packed * 2 < bytes && bytes < plain,
            "{bytes} bytes: {plain} and {packed} of the disk"
        );
    }

    #[test]
    fn file_of_a_program_that_deflates_nothing_is_read_and_continued() {
        let folder = TestDir::new();
        let path = folder.path().join("replicas.redb");
        let mut held = Collection::new(true);
        held.restart(0, vec![slice(0), slice(1)], ResourceVersion(10));
        let store = ReplicaStore::open(Disk::open(&path, Clock::system()).unwrap()).unwrap();
        commit(&store, &mut held);
        drop(store);
        for number in [2, 3] {
            let disk = Disk::open(&path, Clock::system()).expect("both numbers are read");
            let store = ReplicaStore::open(disk).unwrap().packing();
            assert_eq!(loaded(&store).len(), number);
            let next = slice(10 * number);
            held.replace(
                held.objects().cloned().chain([next]).collect(),
                ResourceVersion(10 * number as u64 + 1),
            )
            .unwrap();
            commit(&store, &mut held);
            assert_eq!(loaded(&store).len(), number + 1);
        }
    }
}
