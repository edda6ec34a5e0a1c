//! Folders of the shared store: filled before a pointer names them, deleted when none does.
//!
//! A coordinator may fail or end while it fills one. Two rules keep the folder of a pointer complete. The pointer flips
//! to a new folder only while the folder's first row is unchanged. A folder is deleted from its first row on, and only
//! while the pointer names another folder.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use yurt_apimachinery::{Object, ResourceVersion};

use super::rows::{check, delete, pointer_key, put, row_key};
use super::{BATCH_BYTES_MAX, BATCH_MAX, SharedStore};
use crate::backend::{Expect, Op, StorageError};

/// Age of the last row after which a folder without a pointer is abandoned: far longer than one transaction takes.
const ABANDONED_AFTER: Duration = Duration::from_secs(60);
/// Maximum number of rows of abandoned folders deleted at a time; a commit waits for them.
const SWEEP_ROWS_MAX: usize = 8 * BATCH_MAX;
/// Time for which a size that the store rejected is rejected here; later its limit may have been raised.
const REFUSED_FOR: Duration = Duration::from_secs(600);

/// The smallest value that the store rejected, and the time.
#[derive(Clone, Copy, Debug)]
pub(super) struct RefusedSize {
    bytes: usize,
    at: Instant,
}

// === impl SharedStore ===

impl SharedStore {
    /// Checks that the store accepts `object`, as far as that is known before the write.
    ///
    /// # Errors
    /// [`StorageError::Oversized`].
    pub(in crate::replica) fn admit(&self, name: &str, object: &Object) -> Result<(), StorageError> {
        let bytes = object.bytes_len();
        let why = match (self.storage.value_bytes_max(), *self.refused.lock()) {
            (Some(limit), _) if bytes > limit => format!("its limit is {limit} bytes"),
            (_, Some(refused)) if bytes >= refused.bytes && refused.at.elapsed() < REFUSED_FOR => {
                format!("it rejected {} bytes", refused.bytes)
            }
            _ => return Ok(()),
        };
        Err(oversized(name, &format!("o/{}", object.key()), bytes, why))
    }

    /// Writes a folder that no pointer names yet, as long as `guards` hold. Returns the comparison that the pointer's
    /// flip to this folder needs.
    ///
    /// # Errors
    /// [`StorageError`]; a part may be left.
    pub(super) async fn fill(
        &self,
        name: &str,
        folder: &str,
        rows: &[(String, Bytes)],
        guards: &[Op],
    ) -> Result<Option<Op>, StorageError> {
        let (mut rest, mut room, mut first) = (rows, BATCH_BYTES_MAX, None);
        while !rest.is_empty() {
            let (batch, after) = rest.split_at(batch_len(rest, room));
            let puts = batch
                .iter()
                .map(|(key, value)| put(row_key(name, folder, key), value.clone(), Expect::Any));
            match self.storage.write(guards.iter().cloned().chain(puts).collect()).await {
                Ok(rv) => {
                    first.get_or_insert(rv);
                    rest = after;
                }
                // The store's limit is below the default, or all keys together are large.
                Err(StorageError::TooManyBytes(_)) if batch.len() > 1 => room = size_of(batch) / 2,
                Err(StorageError::TooManyBytes(why)) => {
                    let (key, value) = &batch[0];
                    self.note_refused(value.len());
                    return Err(oversized(name, key, value.len(), why));
                }
                Err(error) => return Err(error),
            }
        }
        let first = first.zip(rows.first());
        Ok(first.map(|(rv, (key, _))| check(row_key(name, folder, key), Expect::At(rv))))
    }

    /// Deletes a folder that the pointer `stored` does not name, as far as its rows are known here. If the pointer has
    /// moved, nothing is deleted: the commit that moved it cleans up.
    ///
    /// # Errors
    /// [`StorageError`]; a part may be left.
    pub(super) async fn delete_folder(
        &self,
        name: &str,
        folder: &str,
        stored: Option<ResourceVersion>,
        rows_max: usize,
    ) -> Result<(), StorageError> {
        let keys: Vec<String> = {
            let all = self.known.lock();
            let folder_of = |name| all.get(name)?.folders.get(folder);
            let rows = folder_of(name).into_iter().flat_map(|content| content.rows.keys());
            rows.take(rows_max).map(|key| row_key(name, folder, key)).collect()
        };
        for some in keys.chunks(BATCH_MAX) {
            let pointer = check(pointer_key(name), stored.map_or(Expect::Absent, Expect::At));
            let deletions = some.iter().map(|key| delete(key.clone(), Expect::Any));
            match self
                .storage
                .write(std::iter::once(pointer).chain(deletions).collect())
                .await
            {
                Ok(_) => {}
                Err(StorageError::Conflict { .. }) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Deletes all folders but the one of `current`, the present pointer. A folder that another coordinator fills for a
    /// previous pointer can never count.
    ///
    /// # Errors
    /// [`StorageError`]; a part may be left.
    pub(super) async fn clean(&self, name: &str, current: Option<(ResourceVersion, &str)>) -> Result<(), StorageError> {
        let (stored, current) = current.unzip();
        let others: Vec<String> = {
            let all = self.known.lock();
            let folders = all.get(name).into_iter().flat_map(|known| known.folders.keys());
            folders
                .filter(|folder| Some(folder.as_str()) != current)
                .cloned()
                .collect()
        };
        for folder in others {
            self.delete_folder(name, &folder, stored, usize::MAX).await?;
        }
        Ok(())
    }

    /// Deletes folders left by coordinators that failed while they filled them.
    ///
    /// # Errors
    /// [`StorageError`]; the next call continues.
    pub(super) async fn sweep(&self) -> Result<(), StorageError> {
        let abandoned: Vec<(String, String, Option<ResourceVersion>)> = {
            let all = self.known.lock();
            let folders = all.iter().flat_map(|(name, known)| {
                let pointer = known.pointer.as_ref();
                let is_left = move |folder: &str, grown: Instant| {
                    pointer.is_none_or(|(_, pointer)| pointer.folder != folder) && grown.elapsed() >= ABANDONED_AFTER
                };
                let left = known
                    .folders
                    .iter()
                    .filter(move |(folder, content)| is_left(folder, content.grown));
                left.map(move |(folder, _)| (name.clone(), folder.clone(), pointer.map(|(rv, _)| *rv)))
            });
            folders.collect()
        };
        for (name, folder, stored) in abandoned {
            tracing::info!(name, folder, "Deleting incomplete pool data");
            self.delete_folder(&name, &folder, stored, SWEEP_ROWS_MAX).await?;
        }
        Ok(())
    }

    fn note_refused(&self, bytes: usize) {
        let mut refused = self.refused.lock();
        let before = refused.filter(|before| before.at.elapsed() < REFUSED_FOR);
        let bytes = before.map_or(bytes, |before| before.bytes.min(bytes));
        *refused = Some(RefusedSize {
            bytes,
            at: Instant::now(),
        });
    }
}

/// Number of `rows`, at least one, that fit into one transaction.
fn batch_len(rows: &[(String, Bytes)], room: usize) -> usize {
    let mut bytes = 0;
    let fitting = rows.iter().take(BATCH_MAX).take_while(|(_, value)| {
        bytes += value.len();
        bytes <= room
    });
    fitting.count().max(1)
}

fn size_of(rows: &[(String, Bytes)]) -> usize {
    rows.iter().map(|(_, value)| value.len()).sum()
}

fn oversized(name: &str, row: &str, bytes: usize, why: String) -> StorageError {
    StorageError::Oversized {
        collection: name.to_owned(),
        key: row.strip_prefix("o/").unwrap_or(row).to_owned(),
        bytes,
        why,
    }
}
