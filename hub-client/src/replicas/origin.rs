//! The record beside the replicas of where they come from: the NodePool, whose members are among them, and the cluster.
//!
//! A node may be moved to another pool or to another cluster and keep its disk. The pool is a flag; the cluster is known by
//! the uid of its Namespace `kube-system`, which outlives certificates, addresses and a restored backup.

use std::io;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// Name of the file in the folder of the durable copy.
const FILE: &str = "origin.json";
/// The Namespace whose uid tells one cluster from another.
pub const IDENTITY_PATH: &str = "/api/v1/namespaces/kube-system";

/// Where the replicas come from; of what is not known, nothing is said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
struct Record {
    pool: Option<String>,
    cluster: Option<String>,
}

/// The record of one hub.
#[derive(Debug)]
pub struct Origin {
    /// `None` while the hub keeps nothing on its disk.
    file: Option<PathBuf>,
    record: Mutex<Record>,
}

/// What follows from the identity of the cluster that answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The replicas are copies of this cluster; it is remembered from now on.
    Same,
    /// They are copies of another one.
    Other,
}

// === impl Origin ===

impl Origin {
    /// The origin of what is kept in memory alone.
    #[must_use]
    pub fn in_memory() -> Self {
        Self {
            file: None,
            record: Mutex::default(),
        }
    }

    /// The record in `folder`. Without one, or with one that cannot be read, nothing is known of the replicas there; of
    /// replicas that are yet to come (`is_new`) nothing is known either, whatever the record says.
    #[must_use]
    pub fn open(folder: &Path, is_new: bool) -> Self {
        let file = folder.join(FILE);
        let read = || serde_json::from_slice(&std::fs::read(&file).ok()?).ok();
        let record: Option<Record> = if is_new { None } else { read() };
        Self {
            record: Mutex::new(record.unwrap_or_default()),
            file: Some(file),
        }
    }

    /// The pool whose members are among the replicas, where it is another one than `pool`.
    #[must_use]
    pub fn other_pool(&self, pool: &str) -> Option<String> {
        let held = self.record.lock().pool.clone();
        held.filter(|held| held != pool)
    }

    /// The members among the replicas are those of `pool`, or there are none.
    ///
    /// # Errors
    /// The record could not be written.
    pub fn set_pool(&self, pool: &str) -> io::Result<()> {
        let mut record = self.record.lock();
        record.pool = Some(pool.to_owned());
        self.save(&record)
    }

    /// Compares the cluster that answers, known by `uid`, with the one of the replicas. One that was not known is remembered;
    /// where the record cannot be written, the next comparison tries again.
    pub fn judge(&self, uid: &str) -> Verdict {
        let mut record = self.record.lock();
        match &record.cluster {
            Some(held) if held == uid => return Verdict::Same,
            Some(_) => return Verdict::Other,
            None => {}
        }
        let known = Record {
            cluster: Some(uid.to_owned()),
            ..record.clone()
        };
        match self.save(&known) {
            Ok(()) => *record = known,
            Err(error) => tracing::warn!(%error, file = FILE, "The cluster is not remembered"),
        }
        Verdict::Same
    }

    fn save(&self, record: &Record) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let temporary = file.with_extension("tmp");
        std::fs::write(&temporary, serde_json::to_vec(record)?)?;
        std::fs::rename(&temporary, file)
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
        assert_eq!(open(false).judge("u1"), Verdict::Same, "the first one");
        assert_eq!(open(false).judge("u1"), Verdict::Same);
        assert_eq!(open(false).judge("u2"), Verdict::Other);
        open(false).set_pool("q").unwrap();
        assert_eq!(open(false).judge("u2"), Verdict::Other, "the cluster stays known");
        assert_eq!(open(true).judge("u2"), Verdict::Same);
        assert_eq!(open(false).judge("u1"), Verdict::Other);
    }

    #[test]
    fn unreadable_record_says_nothing() {
        let folder = TestDir::new();
        folder.write(FILE, "{\"pool\":");
        let origin = Origin::open(folder.path(), false);
        assert_eq!(origin.other_pool("q"), None);
        assert_eq!(origin.judge("u1"), Verdict::Same);
    }

    #[test]
    fn what_is_in_memory_alone_leaves_no_record() {
        let origin = Origin::in_memory();
        origin.set_pool("p").unwrap();
        assert_eq!(origin.judge("u1"), Verdict::Same);
        assert_eq!(origin.judge("u2"), Verdict::Other);
    }
}
