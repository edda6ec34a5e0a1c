//! Partial lists, kept over a restart. Their rows are opaque here and lie next to the replicas that they will become.

use bytes::Bytes;
use redb::{ReadTransaction, TableError, WriteTransaction};

use super::replicas::ReplicaStore;
use super::tables::{DRAFT_ROWS, DRAFTS, storage_error};
use crate::backend::StorageError;
use yurt_apimachinery::packed;

/// Stored state of one draft.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct StoredDraft {
    /// Its owner's description of it.
    pub about: Vec<u8>,
    /// Its rows by key.
    pub rows: Vec<(String, Bytes)>,
}

// === impl ReplicaStore ===

impl ReplicaStore {
    /// Loads the draft called `name`, if there is one. Blocks.
    ///
    /// # Errors
    /// [`StorageError`] when the file cannot be read.
    pub fn load_draft(&self, name: &str) -> Result<Option<StoredDraft>, StorageError> {
        let draft = self.disk.read(|read| {
            // A file without any draft so far has no table.
            let drafts = match read.open_table(DRAFTS) {
                Err(TableError::TableDoesNotExist(_)) => return Ok(None),
                table => table.map_err(storage_error)?,
            };
            let Some(about) = drafts.get(name).map_err(storage_error)? else {
                return Ok(None);
            };
            let mut draft = StoredDraft {
                about: about.value().to_vec(),
                rows: Vec::new(),
            };
            let rows = read.open_table(DRAFT_ROWS).map_err(storage_error)?;
            for row in rows.range((name, "")..).map_err(storage_error)? {
                let (key, value) = row.map_err(storage_error)?;
                let (of, key) = key.value();
                if of != name {
                    break;
                }
                draft.rows.push((key.to_owned(), Bytes::copy_from_slice(value.value())));
            }
            Ok(Some(draft))
        })?;
        let Some(mut draft) = draft else { return Ok(None) };
        for (key, row) in &mut draft.rows {
            let unpacked = packed::unpack(row);
            *row = unpacked.map_err(|why| self.disk.damaged_row(&format!("list of {name}, object {key}: {why}")))?;
        }
        Ok(Some(draft))
    }

    /// Adds or replaces rows of the draft called `name`, and its description, in one durable transaction; `whole` drops
    /// all other rows. Blocks.
    ///
    /// # Errors
    /// [`StorageError`]; nothing was written.
    pub fn save_draft(
        &self,
        name: &str,
        whole: bool,
        about: &[u8],
        rows: &[(String, Bytes)],
    ) -> Result<(), StorageError> {
        self.disk.write(|txn| {
            let mut bodies = self.bodies(txn);
            let mut table = txn.open_table(DRAFT_ROWS).map_err(storage_error)?;
            if whole {
                table
                    .retain_in((name, "")..(beyond(name).as_str(), ""), |_, _| false)
                    .map_err(storage_error)?;
            }
            for (key, value) in rows {
                let row = bodies.text_row(value)?;
                table
                    .insert((name, key.as_str()), row.as_ref())
                    .map_err(storage_error)?;
            }
            let mut drafts = txn.open_table(DRAFTS).map_err(storage_error)?;
            drafts.insert(name, about).map_err(storage_error)?;
            Ok(())
        })
    }

    /// Deletes the draft called `name`. Blocks.
    ///
    /// # Errors
    /// [`StorageError`]; the draft remains then.
    pub fn drop_draft(&self, name: &str) -> Result<(), StorageError> {
        self.disk.write(|txn| drop_draft(txn, name))
    }
}

/// Deletes the draft called `name`, if there is one.
pub(super) fn drop_draft(txn: &WriteTransaction, name: &str) -> Result<(), StorageError> {
    let mut table = txn.open_table(DRAFT_ROWS).map_err(storage_error)?;
    table
        .retain_in((name, "")..(beyond(name).as_str(), ""), |_, _| false)
        .map_err(storage_error)?;
    txn.open_table(DRAFTS)
        .map_err(storage_error)?
        .remove(name)
        .map_err(storage_error)?;
    Ok(())
}

/// Names of the drafts that begin with `prefix`, in order.
pub(super) fn draft_names(read: &ReadTransaction, prefix: &str) -> Result<Vec<String>, StorageError> {
    let drafts = match read.open_table(DRAFTS) {
        Err(TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
        table => table.map_err(storage_error)?,
    };
    let mut names = Vec::new();
    for row in drafts.range(prefix..).map_err(storage_error)? {
        let (name, _) = row.map_err(storage_error)?;
        if !name.value().starts_with(prefix) {
            break;
        }
        names.push(name.value().to_owned());
    }
    Ok(names)
}

/// Names are Kubernetes resource names: this sorts after the name itself and before any longer one.
fn beyond(name: &str) -> String {
    format!("{name}\u{1}")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use yurt_runtime::Clock;
    use yurt_test_support::TestDir;

    use super::super::Disk;
    use super::*;

    #[test]
    fn rows_are_added_replaced_and_dropped_draft_by_draft() {
        let folder = TestDir::new();
        let disk = Disk::open(&folder.path().join("replicas.redb"), Clock::system()).unwrap();
        let store = ReplicaStore::open(Arc::clone(&disk)).unwrap();
        assert_eq!(store.load_draft("services").unwrap(), None);
        let row = |key: &str, value: &'static str| (key.to_owned(), Bytes::from(value));
        store
            .save_draft("services", true, b"one", &[row("x/a", "1"), row("x/b", "2")])
            .unwrap();
        store
            .save_draft("services.other", true, b"other", &[row("x/a", "9")])
            .unwrap();
        store.save_draft("services", false, b"two", &[row("x/b", "3")]).unwrap();
        let draft = store.load_draft("services").unwrap().unwrap();
        assert_eq!(
            (draft.about.as_slice(), &draft.rows),
            (&b"two"[..], &vec![row("x/a", "1"), row("x/b", "3")])
        );
        store
            .save_draft("services", true, b"three", &[row("x/c", "4")])
            .unwrap();
        assert_eq!(store.load_draft("services").unwrap().unwrap().rows, [row("x/c", "4")]);
        store.drop_draft("services").unwrap();
        assert_eq!(store.load_draft("services").unwrap(), None);
        assert_eq!(store.load_draft("services.other").unwrap().unwrap().rows.len(), 1);
    }
}
