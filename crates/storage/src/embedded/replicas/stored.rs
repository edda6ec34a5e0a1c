//! Rows of one collection: read in one transaction, parsed after it.

use bytes::Bytes;
use redb::ReadTransaction;
use yurt_apimachinery::{Object, ResourceKind, ResourceVersion, packed};
use yurt_collection::{Gap, RangeTombstone, Recovered};
use yurt_runtime::parallel;

use crate::backend::StorageError;
use crate::embedded::tables::{
    REPLICA, REPLICA_GAPS, REPLICA_HIGH, REPLICA_MARK, REPLICA_META, REPLICA_RANGES, REPLICA_TOMBSTONES, storage_error,
};

/// Result of [`super::ReplicaStore::load_within`].
#[derive(Debug)]
pub enum Stored {
    /// The file has nothing of the collection.
    Nothing,
    /// State at the last commit, and the plain bytes of its objects and deletions.
    State(Box<Recovered>, usize),
    /// The plain bytes are these, more than there is room for.
    TooLarge(usize),
}

/// Rows of one collection.
#[derive(Default)]
pub(super) struct Rows {
    /// The state, without what has to be parsed.
    recovered: Recovered,
    /// Objects by key.
    objects: Vec<(String, Bytes)>,
    /// Tombstones by key.
    tombstones: Vec<(String, Bytes)>,
    /// Range tombstones: after, to, and the object by key.
    ranges: Vec<(ResourceVersion, ResourceVersion, (String, Bytes))>,
    /// Plain bytes of all of them, also of those beyond the room.
    pub(super) bytes: usize,
    /// Plain bytes up to which rows are held.
    room: usize,
}

// === impl Rows ===

impl Rows {
    /// Reads the rows of collection `name`, and holds them up to `room` plain bytes; `None` if there are none.
    pub(super) fn read(read: &ReadTransaction, name: &str, room: usize) -> Result<Option<Self>, StorageError> {
        let meta = read.open_table(REPLICA_META).map_err(storage_error)?;
        let Some(row) = meta.get(name).map_err(storage_error)? else {
            return Ok(None);
        };
        let (position, floor, generation, complete) = row.value();
        let recovered = Recovered {
            position: ResourceVersion(position),
            floor: ResourceVersion(floor),
            generation,
            complete,
            ..Recovered::default()
        };
        let mut rows = Self {
            recovered,
            room,
            ..Self::default()
        };
        rows.read_objects(read, name)?;
        rows.read_deletions(read, name, floor)?;
        rows.read_marks(read, name, floor)?;
        Ok(Some(rows))
    }

    fn read_objects(&mut self, read: &ReadTransaction, name: &str) -> Result<(), StorageError> {
        let objects = read.open_table(REPLICA).map_err(storage_error)?;
        for row in objects.range((name, "")..).map_err(storage_error)? {
            let (key, value) = row.map_err(storage_error)?;
            let (collection, key) = key.value();
            if collection != name {
                break;
            }
            if let Some(row) = self.held(key, value.value()) {
                self.objects.push(row);
            }
        }
        Ok(())
    }

    fn read_deletions(&mut self, read: &ReadTransaction, name: &str, floor: u64) -> Result<(), StorageError> {
        let tombstones = read.open_table(REPLICA_TOMBSTONES).map_err(storage_error)?;
        for row in tombstones.range((name, floor + 1, "")..).map_err(storage_error)? {
            let (key, value) = row.map_err(storage_error)?;
            let (collection, _, key) = key.value();
            if collection != name {
                break;
            }
            if let Some(row) = self.held(key, value.value()) {
                self.tombstones.push(row);
            }
        }
        let ranges = read.open_table(REPLICA_RANGES).map_err(storage_error)?;
        for row in ranges.range((name, floor + 1, "")..).map_err(storage_error)? {
            let (key, value) = row.map_err(storage_error)?;
            let (collection, to, key) = key.value();
            if collection != name {
                break;
            }
            let (after, bytes) = value.value();
            if let Some(row) = self.held(key, bytes) {
                self.ranges.push((ResourceVersion(after), ResourceVersion(to), row));
            }
        }
        Ok(())
    }

    fn read_marks(&mut self, read: &ReadTransaction, name: &str, floor: u64) -> Result<(), StorageError> {
        let gaps = read.open_table(REPLICA_GAPS).map_err(storage_error)?;
        for row in gaps.range((name, floor + 1)..).map_err(storage_error)? {
            let (key, from) = row.map_err(storage_error)?;
            let (collection, to) = key.value();
            if collection != name {
                break;
            }
            let (from, to) = (ResourceVersion(from.value()), ResourceVersion(to));
            self.recovered.gaps.push(Gap { from, to });
        }
        let highs = read.open_table(REPLICA_HIGH).map_err(storage_error)?;
        let high = highs.get(name).map_err(storage_error)?;
        self.recovered.high = ResourceVersion(high.map_or(0, |high| high.value()));
        let marks = read.open_table(REPLICA_MARK).map_err(storage_error)?;
        let mark = marks.get(name).map_err(storage_error)?;
        self.recovered.mark = ResourceVersion(mark.map_or(0, |mark| mark.value()));
        Ok(())
    }

    /// Counts a row, and returns a copy of it if it is within the room.
    fn held(&mut self, key: &str, row: &[u8]) -> Option<(String, Bytes)> {
        self.bytes = self.bytes.saturating_add(packed::plain_len(row));
        (self.bytes <= self.room).then(|| (key.to_owned(), Bytes::copy_from_slice(row)))
    }

    /// Parses the rows. The error names the object whose row cannot be read.
    pub(super) fn parse(self, kind: &ResourceKind) -> Result<Recovered, String> {
        let parse = |(key, row): &(String, Bytes)| {
            Object::parse_packed(row, kind).map_err(|error| format!("object {key}: {error}"))
        };
        let mut recovered = self.recovered;
        // A start waits for it.
        recovered.objects = parallel::map(&self.objects, parse)
            .into_iter()
            .collect::<Result<_, _>>()?;
        recovered.tombstones = self.tombstones.iter().map(parse).collect::<Result<_, _>>()?;
        for (after, to, row) in &self.ranges {
            let (after, to, object) = (*after, *to, parse(row)?);
            recovered.ranges.push(RangeTombstone { after, to, object });
        }
        Ok(recovered)
    }
}
