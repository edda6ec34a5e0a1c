//! The tables of the redb file and the translation of redb's errors. No other module names a table.

use redb::TableDefinition;

use crate::backend::StorageError;

/// Own objects: `/<collection>/<key>` → (RV, bytes without resourceVersion).
pub(super) const OWN: TableDefinition<'_, &str, (u64, &[u8])> = TableDefinition::new("own");
/// Own deletions: RV of the deletion and index in its transaction → (key, last bytes).
pub(super) const OWN_TOMBSTONES: TableDefinition<'_, (u64, u32), (&str, &[u8])> =
    TableDefinition::new("own-tombstones");
/// Small facts: format, store id, RV mark, floor.
pub(super) const FACTS: TableDefinition<'_, &str, &str> = TableDefinition::new("facts");
/// Replica objects: (collection, key) → bytes with the cloud's resourceVersion.
pub(super) const REPLICA: TableDefinition<'_, (&str, &str), &[u8]> = TableDefinition::new("replica");
/// Replica tombstones: (collection, RV, key) → last bytes with the deletion's resourceVersion.
pub(super) const REPLICA_TOMBSTONES: TableDefinition<'_, (&str, u64, &str), &[u8]> =
    TableDefinition::new("replica-tombstones");
/// Replica range tombstones: (collection, to, key) → (after, last bytes).
pub(super) const REPLICA_RANGES: TableDefinition<'_, (&str, u64, &str), (u64, &[u8])> =
    TableDefinition::new("replica-ranges");
/// Stretches of replicas that lists jumped over: (collection, to) → from.
pub(super) const REPLICA_GAPS: TableDefinition<'_, (&str, u64), u64> = TableDefinition::new("replica-gaps");
/// Highest RV a replica may have served in an older generation: collection → RV.
pub(super) const REPLICA_HIGH: TableDefinition<'_, &str, u64> = TableDefinition::new("replica-high");
/// Marks of replicas: collection → RV up to which it may have served.
pub(super) const REPLICA_MARK: TableDefinition<'_, &str, u64> = TableDefinition::new("replica-mark");
/// Replica meta data: collection → (C, floor, generation, complete).
pub(super) const REPLICA_META: TableDefinition<'_, &str, (u64, u64, u64, bool)> = TableDefinition::new("replica-meta");

/// Partial lists: collection → their owner's description.
pub(super) const DRAFTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("drafts");
/// Their rows: (collection, key) → bytes.
pub(super) const DRAFT_ROWS: TableDefinition<'_, (&str, &str), &[u8]> = TableDefinition::new("draft-rows");

/// Fact: layout of the tables, see [`super::format`].
pub(super) const FACT_FORMAT: &str = "format";
/// Fact: random id of the store.
pub(super) const FACT_STORE_ID: &str = "store-id";
/// Fact: upper bound of every RV issued.
pub(super) const FACT_MARK: &str = "mark";
/// Fact: own tombstones up to this RV were dropped.
pub(super) const FACT_FLOOR: &str = "floor";

/// Translates any redb error. `Full` is a separate error because reads continue then.
pub(super) fn storage_error(error: impl Into<redb::Error>) -> StorageError {
    match error.into() {
        redb::Error::Io(io) if super::open::is_full(&io) => StorageError::Full(io.to_string()),
        redb::Error::Corrupted(why) => StorageError::Corrupt(why),
        other => StorageError::Unavailable(other.to_string()),
    }
}
