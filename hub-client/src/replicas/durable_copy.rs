//! Durable copy of the replicas on this node's disk, and the pool and cluster that it belongs to.
//!
//! A copy of another cluster ends in two steps: the replicas at once, everything else when the tasks have stopped. The
//! record of the cluster goes last, so a start after a kill in between finds the other cluster again.

use std::path::{Path, PathBuf};
use std::{fs, io};

use tokio_util::sync::CancellationToken;

use super::origin::Origin;
use super::{disk, host_network, scope};
use crate::hub_config::disk::FILE as HUB_CONFIG;

/// File of the cloud's last answer about this node's lease, in the folder of the copy.
pub const NODE_LEASE: &str = "node-lease";
/// Files of the same cluster in the folder of the copy.
const FILES: [&str; 4] = [NODE_LEASE, HUB_CONFIG, host_network::FILE, scope::FILE];

/// Folder of the copy, and its origin.
pub struct DurableCopy {
    folder: PathBuf,
    origin: Origin,
    /// Pool whose members were dropped at the start.
    other_pool: Option<String>,
    is_foreign: CancellationToken,
}

// === impl DurableCopy ===

impl DurableCopy {
    pub(super) fn new(folder: &Path, origin: Origin, other_pool: Option<String>) -> Self {
        Self {
            folder: folder.to_owned(),
            origin,
            other_pool,
            is_foreign: CancellationToken::new(),
        }
    }

    /// Pool and cluster of the replicas.
    #[must_use]
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Name of the pool whose members were dropped at the start.
    pub(super) fn other_pool(&self) -> Option<&str> {
        self.other_pool.as_deref()
    }

    /// Token that is cancelled when this node's replicas turn out to be of another cluster and must be dropped.
    #[must_use]
    pub fn is_foreign(&self) -> &CancellationToken {
        &self.is_foreign
    }

    /// Deletes the replicas of another cluster, before the next start.
    ///
    /// # Errors
    /// Path of the file if it could not be deleted.
    pub(super) fn remove(&self) -> Result<(), String> {
        self.is_foreign.cancel();
        let removed = disk::remove(&self.folder);
        removed.map_err(|error| format!("{}: {error}", self.folder.join(disk::FILE).display()))
    }

    /// Deletes everything that is kept of another cluster, if it is one: also the files and folders of these names, and
    /// its record last. No task may write to the folder any more. Blocks.
    pub(crate) fn remove_rest(&self, names: &[&str]) {
        if !self.is_foreign.is_cancelled() {
            return;
        }
        if let Err(error) = self.remove_all(names) {
            let folder = self.folder.display();
            tracing::warn!(%folder, %error, "Failed to delete data of another cluster; the next start tries again");
        }
    }

    fn remove_all(&self, names: &[&str]) -> io::Result<()> {
        disk::remove(&self.folder)?;
        for name in FILES.iter().chain(names) {
            remove(&self.folder.join(name))?;
        }
        self.origin.remove()
    }
}

/// Deletes a file or a folder, if there is one.
fn remove(path: &Path) -> io::Result<()> {
    let removed = match path.is_dir() {
        true => fs::remove_dir_all(path),
        false => fs::remove_file(path),
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}
