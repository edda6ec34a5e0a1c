//! The folder of records, also on disks that fail.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use serde_json::json;
use yurt_test_support::TestDir;
use yurt_test_support::fault_fs::FaultFs;

use super::*;

const ALL: Share = Share {
    name: "all",
    records: 4,
    bytes: 4096,
};
const OF_PODS: Share = Share {
    name: "pods",
    records: 2,
    bytes: 1024,
};
const ROOM: Limits = Limits {
    file: 2048,
    share_of: |key| if key.starts_with("pod") { OF_PODS } else { ALL },
};

fn record(key: &str, body: &str) -> Record {
    Record {
        key: key.to_owned(),
        facts: json!({}),
        body: body.to_owned().into(),
    }
}

fn open(folder: &TestDir) -> Shelf {
    Shelf::open(folder.path().join("kept"), ROOM)
}

fn files(folder: &TestDir) -> Vec<PathBuf> {
    let files = fs::read_dir(folder.path().join("kept")).unwrap();
    files.map(|file| file.unwrap().path()).collect()
}

#[test]
fn records_outlive_the_process_and_are_the_owners_alone() {
    let folder = TestDir::new();
    open(&folder).put(&record("a", "one")).unwrap();
    assert_eq!(open(&folder).get("a"), Some(record("a", "one")));
    assert_eq!(open(&folder).get("b"), None);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(
        (mode(&folder.path().join("kept")), mode(&files(&folder)[0])),
        (0o700, 0o600)
    );
}

#[test]
fn file_that_cannot_be_looked_at_costs_itself_alone() {
    let (folder, behind) = (TestDir::new(), TestDir::new());
    open(&folder).put(&record("a", "one")).unwrap();
    let damaged = folder.path().join("kept").join(FileName::of("b").to_string());
    fs::create_dir(&damaged).unwrap();
    let Some(_disk) = FaultFs::mount_or_skip(&damaged, behind.path()) else {
        return;
    };
    fs::remove_dir(behind.path()).unwrap();
    assert!(fs::symlink_metadata(&damaged).is_err());
    assert_eq!(open(&folder).get("a"), Some(record("a", "one")));
}

#[test]
fn equal_record_is_not_written_again() {
    let folder = TestDir::new();
    let shelf = open(&folder);
    assert!(shelf.put(&record("a", "one")).unwrap());
    let inode = fs::metadata(&files(&folder)[0]).unwrap().ino();
    assert!(!shelf.put(&record("a", "one")).unwrap());
    assert!(!open(&folder).put(&record("a", "one")).unwrap(), "nor after a restart");
    assert_eq!(fs::metadata(&files(&folder)[0]).unwrap().ino(), inode);
    assert!(shelf.put(&record("a", "two")).unwrap());
    assert_eq!(open(&folder).get("a"), Some(record("a", "two")));
}

#[test]
fn file_cut_at_any_byte_counts_as_none_and_is_deleted() {
    let folder = TestDir::new();
    open(&folder).put(&record("a", "one")).unwrap();
    let path = files(&folder).remove(0);
    let whole = fs::read(&path).unwrap();
    for length in 0..whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        assert_eq!(open(&folder).get("a"), None, "{length}");
        assert!(files(&folder).is_empty(), "{length}");
        fs::write(&path, &whole[..length]).unwrap();
        let shelf = open(&folder);
        assert!(shelf.put(&record("a", "one")).unwrap(), "{length}");
        assert_eq!(shelf.get("a"), Some(record("a", "one")), "{length}");
    }
}

#[test]
fn file_that_cannot_be_read_now_stays_for_later() {
    let folder = TestDir::new();
    let shelf = open(&folder);
    shelf.put(&record("a", "one")).unwrap();
    let (path, aside) = (files(&folder).remove(0), folder.path().join("aside"));
    fs::rename(&path, &aside).unwrap();
    // Opening it fails, as without a free file descriptor.
    std::os::unix::fs::symlink(&path, &path).unwrap();
    assert_eq!((shelf.get("a"), shelf.all().count()), (None, 0));
    assert!(fs::symlink_metadata(&path).is_ok(), "it is not deleted");
    fs::rename(&aside, &path).unwrap();
    assert_eq!(shelf.get("a"), Some(record("a", "one")));
}

#[test]
fn half_written_files_of_a_power_cut_are_deleted_and_the_old_record_stays() {
    let folder = TestDir::new();
    open(&folder).put(&record("a", "one")).unwrap();
    let cut = folder.path().join("kept/.0123.77.tmp");
    fs::write(&cut, b"yurtrec1").unwrap();
    assert_eq!(open(&folder).get("a"), Some(record("a", "one")));
    assert!(!cut.exists());
}

#[test]
fn least_recently_used_records_give_way() {
    let folder = TestDir::new();
    let shelf = open(&folder);
    for key in ["a", "b", "c", "d"] {
        shelf.put(&record(key, key)).unwrap();
    }
    shelf.get("a").unwrap();
    shelf.put(&record("e", "e")).unwrap();
    let held = ["a", "b", "c", "d", "e"].map(|key| shelf.get(key).is_some());
    assert_eq!(held, [true, false, true, true, true]);
    let large = "x".repeat(1900);
    shelf.put(&record("a", &large)).unwrap();
    shelf.put(&record("f", &large)).unwrap();
    let totals = shelf.totals();
    assert!(
        totals.bytes <= ALL.bytes && totals.records == files(&folder).len(),
        "{totals:?}"
    );
    assert_eq!(open(&folder).totals(), totals);
}

#[test]
fn records_of_a_share_evict_only_each_other() {
    let folder = TestDir::new();
    let shelf = open(&folder);
    for key in ["a", "b", "c", "d", "pod-1", "pod-2", "pod-3"] {
        shelf.put(&record(key, key)).unwrap();
    }
    let held = |shelf: &Shelf, keys: &[&str]| keys.iter().filter(|key| shelf.get(key).is_some()).count();
    let node = ["a", "b", "c", "d"];
    assert_eq!((held(&shelf, &node), held(&shelf, &["pod-2", "pod-3"])), (4, 2));
    shelf.put(&record("pod-4", &"x".repeat(900))).unwrap();
    assert_eq!(
        (held(&shelf, &node), shelf.totals().records),
        (4, 5),
        "nor by their bytes"
    );
    let large = shelf.put(&record("pod-5", &"x".repeat(1024)));
    assert!(matches!(large, Err(ShelfError::TooLarge { max: 1024, .. })));
    let again = open(&folder);
    for key in ["pod-6", "pod-7", "pod-8"] {
        again.put(&record(key, key)).unwrap();
    }
    assert_eq!(
        (held(&again, &node), again.totals().records),
        (4, 6),
        "nor after a restart"
    );
    again.put(&record("e", "e")).unwrap();
    assert_eq!(held(&again, &["pod-7", "pod-8"]), 2);
}

#[test]
fn record_that_is_too_large_evicts_nothing() {
    let folder = TestDir::new();
    let shelf = open(&folder);
    shelf.put(&record("a", "one")).unwrap();
    let refused = shelf.put(&record("a", &"x".repeat(3000)));
    assert!(matches!(refused, Err(ShelfError::TooLarge { max: 2048, .. })));
    assert_eq!(shelf.get("a"), Some(record("a", "one")));
}

/// Puts a directory at the place of the temporary file: creating it fails, as on a full disk.
fn block(folder: &TestDir, key: &str) -> PathBuf {
    let name = FileName::of(key);
    let blocked = folder.path().join(format!("kept/.{name}.{}.tmp", std::process::id()));
    fs::create_dir_all(&blocked).unwrap();
    blocked
}

#[test]
fn file_of_a_write_that_failed_after_its_rename_is_known() {
    let folder = TestDir::new();
    let shelf = open(&folder);
    let path = shelf.path(&FileName::of("a"));
    let fail_late = |body: &str| {
        let blocked = block(&folder, "a");
        // As the rename leaves it, before the failure.
        fs::write(&path, record("a", body).encode()).unwrap();
        assert!(matches!(shelf.put(&record("a", body)), Err(ShelfError::Disk(_))));
        fs::remove_dir(blocked).unwrap();
    };
    fail_late("one");
    shelf.remove("a").unwrap();
    assert!(!path.exists(), "a restart would read it");

    fail_late("one");
    assert!(
        shelf.put(&record("a", "one")).unwrap(),
        "a power cut may undo the first"
    );
    assert!(!shelf.put(&record("a", "one")).unwrap());
    fail_late("two, longer");
    assert_eq!(shelf.totals(), open(&folder).totals());
    assert!(shelf.put(&record("a", "one")).unwrap(), "the file is another one");
    assert_eq!(open(&folder).get("a"), Some(record("a", "one")));

    for key in ["b", "c", "d"] {
        shelf.put(&record(key, key)).unwrap();
    }
    shelf.remove("a").unwrap();
    shelf.put(&record("e", "e")).unwrap();
    fail_late("one");
    assert_eq!(files(&folder).len(), ALL.records, "they stay bounded");
}

#[test]
fn failed_write_does_not_return_a_removed_record() {
    let folder = TestDir::new();
    let shelf = open(&folder);
    shelf.put(&record("a", "one")).unwrap();
    let path = files(&folder).remove(0);
    fail_to_remove(&shelf, "a", &path);
    let blocked = block(&folder, "a");
    shelf.put(&record("a", "two")).unwrap_err();
    fs::remove_dir(blocked).unwrap();
    assert_eq!(shelf.get("a"), None);
    shelf.remove("a").unwrap();
    assert!(!path.exists());
}

/// Removes a record whose file cannot be deleted now: a directory is in its place during the call.
fn fail_to_remove(shelf: &Shelf, key: &str, path: &Path) {
    let aside = path.with_file_name("aside");
    fs::rename(path, &aside).unwrap();
    fs::create_dir(path).unwrap();
    shelf.remove(key).unwrap_err();
    fs::remove_dir(path).unwrap();
    fs::rename(&aside, path).unwrap();
}

#[test]
fn files_of_removed_records_go_with_all_others() {
    let folder = TestDir::new();
    let shelf = open(&folder);
    shelf.put(&record("a", "one")).unwrap();
    fail_to_remove(&shelf, "a", &files(&folder)[0]);
    shelf.clear();
    assert!(files(&folder).is_empty());
}

#[test]
fn failing_disk_keeps_the_old_record() {
    let folder = TestDir::new();
    let shelf = open(&folder);
    shelf.put(&record("a", "one")).unwrap();
    block(&folder, "a");
    assert!(matches!(shelf.put(&record("a", "two")), Err(ShelfError::Disk(_))));
    assert_eq!(shelf.get("a"), Some(record("a", "one")));
    assert_eq!(open(&folder).get("a"), Some(record("a", "one")));
}

#[test]
fn removed_records_stay_removed() {
    let folder = TestDir::new();
    let shelf = open(&folder);
    shelf.put(&record("a", "one")).unwrap();
    shelf.put(&record("b", "two")).unwrap();
    shelf.remove("a").unwrap();
    shelf.remove("a").unwrap();
    assert_eq!(
        (shelf.get("a"), open(&folder).all().collect()),
        (None, vec![record("b", "two")])
    );
    shelf.clear();
    assert_eq!(open(&folder).totals(), Totals::default());
}
