//! Number of the file's layout: a file with an unknown number is rejected.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use redb::{Database, ReadableDatabase as _, TableError, WriteTransaction};

use super::OpenError;
use super::open;
use super::tables::{FACT_FORMAT, FACTS, storage_error};
use crate::backend::StorageError;

/// Layout of the tables that this program reads and writes. Every change raises it that would make an older program
/// misread the file, or this program misread an older file.
const FORMAT: u64 = 1;
/// As [`FORMAT`], with deflated bodies of replicas (`packed`). This program reads it, and goes on with
/// [`FORMAT_HEADED`].
const FORMAT_PACKED: u64 = 2;
/// As [`FORMAT_PACKED`], with heads. A file gets this number with its first deflated body.
const FORMAT_HEADED: u64 = 3;

/// Writes the number into a new file, and checks that of any other.
///
/// # Errors
/// [`OpenError::Format`] for another number; others when the file cannot be read or written.
pub(super) fn settle(path: &Path, database: &Database) -> Result<(), OpenError> {
    let settled = catch_unwind(AssertUnwindSafe(|| match find(database)? {
        Some(found) => Ok(found),
        None => create(database).map(|()| FORMAT),
    }));
    let settled = settled.unwrap_or_else(|panic| Err(StorageError::Corrupt(open::panic_text(&*panic))));
    match settled.map_err(|error| OpenError::of(path, error))? {
        FORMAT | FORMAT_PACKED | FORMAT_HEADED => Ok(()),
        found => Err(OpenError::Format {
            path: path.to_owned(),
            found,
            supported: FORMAT_HEADED,
        }),
    }
}

/// `None` in a file without any table; 0 in a file written before formats were numbered.
fn find(database: &Database) -> Result<Option<u64>, StorageError> {
    let read = database.begin_read().map_err(storage_error)?;
    let facts = match read.open_table(FACTS) {
        Ok(facts) => facts,
        Err(TableError::TableDoesNotExist(_)) => {
            let mut tables = read.list_tables().map_err(storage_error)?;
            return Ok(tables.next().map(|_| 0));
        }
        Err(error) => return Err(storage_error(error)),
    };
    let Some(text) = facts.get(FACT_FORMAT).map_err(storage_error)? else {
        return Ok(Some(0));
    };
    let number = text.value().parse();
    number
        .map(Some)
        .map_err(|_| StorageError::Corrupt(format!("fact {FACT_FORMAT} is not a number")))
}

fn create(database: &Database) -> Result<(), StorageError> {
    let txn = database.begin_write().map_err(storage_error)?;
    {
        let mut facts = txn.open_table(FACTS).map_err(storage_error)?;
        let text = FORMAT.to_string();
        facts.insert(FACT_FORMAT, text.as_str()).map_err(storage_error)?;
    }
    txn.commit().map_err(storage_error)
}

/// Records in the same transaction that the file has deflated bodies.
pub(super) fn mark_packed(txn: &WriteTransaction) -> Result<(), StorageError> {
    let mut facts = txn.open_table(FACTS).map_err(storage_error)?;
    let text = FORMAT_HEADED.to_string();
    facts.insert(FACT_FORMAT, text.as_str()).map_err(storage_error)?;
    Ok(())
}

/// Advice for a file of format `found`.
pub(super) fn advice(found: u64, supported: u64) -> &'static str {
    if found > supported {
        "a newer version of this program wrote it: start that one, or move the file away (pool data comes back from the \
         cloud, objects of the coordinator's own are lost)"
    } else {
        "an older version of this program wrote it: start that one, or move the file away (pool data comes back from the \
         cloud, objects of the coordinator's own are lost)"
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use yurt_runtime::Clock;
    use yurt_test_support::TestDir;

    use super::super::Disk;
    use super::super::tables::REPLICA_META;
    use super::*;

    fn refusal(change: impl FnOnce(&redb::WriteTransaction)) -> String {
        let folder = TestDir::new();
        let path: PathBuf = folder.path().join("store.redb");
        let database = Database::create(&path).unwrap();
        let txn = database.begin_write().unwrap();
        change(&txn);
        txn.commit().unwrap();
        drop(database);
        let refused = Disk::open(&path, Clock::system()).err().expect("another format");
        let text = refused.to_string();
        assert!(text.contains(&path.display().to_string()), "{text}");
        text
    }

    #[test]
    fn new_file_gets_the_number_and_is_opened_again() {
        let folder = TestDir::new();
        let path = folder.path().join("store.redb");
        for _ in 0..2 {
            Disk::open(&path, Clock::system()).unwrap();
        }
        let database = Database::create(&path).unwrap();
        assert_eq!(find(&database).unwrap(), Some(FORMAT));
    }

    #[test]
    fn files_of_all_formats_so_far_are_opened_and_a_deflated_body_makes_them_the_newest() {
        for format in [FORMAT, FORMAT_PACKED, FORMAT_HEADED] {
            let folder = TestDir::new();
            let path = folder.path().join("store.redb");
            let database = Database::create(&path).unwrap();
            let txn = database.begin_write().unwrap();
            let number = format.to_string();
            txn.open_table(FACTS)
                .unwrap()
                .insert(FACT_FORMAT, number.as_str())
                .unwrap();
            txn.commit().unwrap();
            drop(database);
            let disk = Disk::open(&path, Clock::system()).unwrap();
            disk.write(mark_packed).unwrap();
            drop(disk);
            assert_eq!(find(&Database::create(&path).unwrap()).unwrap(), Some(3), "{format}");
        }
    }

    #[test]
    fn file_of_another_format_is_refused_with_what_to_do() {
        let newer = refusal(|txn| {
            let mut facts = txn.open_table(FACTS).unwrap();
            facts.insert(FACT_FORMAT, "4").unwrap();
        });
        let advised = newer.contains("format is 4") && newer.contains("reads 3") && newer.contains("a newer version");
        assert!(advised, "{newer}");
        let older = refusal(|txn| drop(txn.open_table(REPLICA_META).unwrap()));
        assert!(
            older.contains("format is 0") && older.contains("an older version"),
            "{older}"
        );
        let garbled = refusal(|txn| {
            let mut facts = txn.open_table(FACTS).unwrap();
            facts.insert(FACT_FORMAT, "one").unwrap();
        });
        assert!(garbled.contains("damaged"), "{garbled}");
    }
}
