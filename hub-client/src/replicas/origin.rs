//! Record of the replicas' origin, stored next to them: the NodePool, because its members are among them, and the
//! cluster.
//!
//! A node may move to another pool or cluster and keep its disk. A flag names the pool. The uid of the Namespace
//! `kube-system` identifies the cluster; it outlives certificates, addresses and a restored backup. The cluster is also
//! that of the kept answers, tokens, rights and writes, so its record outlives the replicas.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use yurt_runtime::pki::write_secret;

/// Name of the file in the directory of the durable copy.
const FILE: &str = "origin.json";
/// Path of the Namespace whose uid identifies the cluster.
pub const IDENTITY_PATH: &str = "/api/v1/namespaces/kube-system";

/// Origin of the replicas; unknown fields are absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
struct Record {
    pool: Option<String>,
    cluster: Option<String>,
    /// True if the disk refused `cluster`.
    #[serde(skip)]
    is_unsaved: bool,
}

/// The record of one hub.
#[derive(Debug)]
pub struct Origin {
    folder: PathBuf,
    record: Mutex<Record>,
}

/// Result of comparing the cluster's identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OriginVerdict {
    /// The replicas are copies of this cluster, which is recorded from now on.
    Same,
    /// The replicas are copies of another cluster.
    Other,
}

// === impl Origin ===

impl Origin {
    /// Reads the record in `folder`. A missing or unreadable record means an unknown origin. If the replicas are yet to
    /// be created (`is_new`), there are no members of a pool; the cluster is still that of what else is kept.
    #[must_use]
    pub fn open(folder: &Path, is_new: bool) -> Self {
        let read = fs::read(folder.join(FILE)).ok();
        let mut record: Record = read
            .and_then(|text| serde_json::from_slice(&text).ok())
            .unwrap_or_default();
        record.pool = record.pool.filter(|_| !is_new);
        Self {
            folder: folder.to_owned(),
            record: Mutex::new(record),
        }
    }

    /// Pool whose members are among the replicas, if it is not `pool`.
    #[must_use]
    pub fn other_pool(&self, pool: &str) -> Option<String> {
        let held = self.record.lock().pool.clone();
        held.filter(|held| held != pool)
    }

    /// Records that the members among the replicas, if any, are those of `pool`. Without a change there is no write, so
    /// a disk that takes nothing does not keep a hub from its replicas.
    ///
    /// # Errors
    /// The record could not be written.
    pub fn set_pool(&self, pool: &str) -> io::Result<()> {
        let mut record = self.record.lock();
        if record.pool.as_deref() == Some(pool) {
            return Ok(());
        }
        record.pool = Some(pool.to_owned());
        self.save(&record)
    }

    /// Compares the cluster `uid` with that of the replicas. An unknown one is recorded; if the record cannot be
    /// written, the next comparison tries again.
    pub fn judge(&self, uid: &str) -> OriginVerdict {
        let mut record = self.record.lock();
        match &record.cluster {
            Some(held) if held != uid => return OriginVerdict::Other,
            Some(_) if !record.is_unsaved => return OriginVerdict::Same,
            _ => {}
        }
        record.cluster = Some(uid.to_owned());
        let saved = self.save(&record);
        record.is_unsaved = saved.is_err();
        if let Err(error) = saved {
            tracing::warn!(%error, file = FILE, "Failed to record the cluster");
        }
        OriginVerdict::Same
    }

    /// Deletes the record, once the removal of everything else in the folder is durable.
    ///
    /// # Errors
    /// The disk failed.
    pub(super) fn remove(&self) -> io::Result<()> {
        File::open(&self.folder)?.sync_all()?;
        fs::remove_file(self.folder.join(FILE))
    }

    fn save(&self, record: &Record) -> io::Result<()> {
        // An unknown origin would let the replicas pass for those of any cluster.
        write_secret(&self.folder.join(FILE), serde_json::to_vec(record)?)
    }
}

#[cfg(test)]
mod tests {
    use yurt_test_support::TestDir;

    use super::*;

    #[test]
    fn record_binds_replicas_to_a_pool_and_a_cluster_once_they_are_known() {
        let folder = TestDir::new();
        let open = |is_new| Origin::open(folder.path(), is_new);
        assert_eq!(open(false).other_pool("p"), None, "no record: nothing is known");
        open(false).set_pool("p").unwrap();
        assert_eq!(open(false).other_pool("p"), None);
        assert_eq!(open(false).other_pool("q").as_deref(), Some("p"));
        assert_eq!(
            open(false).other_pool("").as_deref(),
            Some("p"),
            "a node that left its pool"
        );
        assert_eq!(open(true).other_pool("q"), None, "there are no replicas");
        assert_eq!(open(false).judge("u1"), OriginVerdict::Same, "the first one");
        assert_eq!(open(false).judge("u1"), OriginVerdict::Same);
        assert_eq!(open(false).judge("u2"), OriginVerdict::Other);
        open(false).set_pool("q").unwrap();
        assert_eq!(open(false).judge("u2"), OriginVerdict::Other, "the cluster stays known");
        assert_eq!(open(true).judge("u2"), OriginVerdict::Other, "also without replicas");
        open(true).set_pool("q").unwrap();
        assert_eq!(open(false).judge("u1"), OriginVerdict::Same);
        open(false).remove().unwrap();
        assert_eq!(open(false).judge("u2"), OriginVerdict::Same);
    }

    #[test]
    fn known_pool_is_not_written_again() {
        use std::os::unix::fs::MetadataExt as _;
        let folder = TestDir::new();
        let inode = || std::fs::metadata(folder.path().join(FILE)).unwrap().ino();
        Origin::open(folder.path(), true).set_pool("p").unwrap();
        let first = inode();
        Origin::open(folder.path(), false).set_pool("p").unwrap();
        assert_eq!(inode(), first);
        Origin::open(folder.path(), false).set_pool("q").unwrap();
        assert_ne!(inode(), first);
    }

    #[test]
    fn cluster_is_known_while_the_disk_refuses_its_record() {
        let folder = TestDir::new();
        let absent = folder.path().join("absent");
        let origin = Origin::open(&absent, true);
        assert_eq!(origin.judge("u1"), OriginVerdict::Same);
        assert_eq!(origin.judge("u2"), OriginVerdict::Other);
        std::fs::create_dir(&absent).unwrap();
        assert_eq!(origin.judge("u1"), OriginVerdict::Same);
        assert_eq!(
            Origin::open(&absent, false).judge("u2"),
            OriginVerdict::Other,
            "saved by then"
        );
    }

    #[test]
    fn unreadable_record_says_nothing() {
        let folder = TestDir::new();
        folder.write(FILE, "{\"pool\":");
        let origin = Origin::open(folder.path(), false);
        assert_eq!(origin.other_pool("q"), None);
        assert_eq!(origin.judge("u1"), OriginVerdict::Same);
    }
}
