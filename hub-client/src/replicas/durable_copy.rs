//! Durable copy of the replicas on this node's disk, and the pool and cluster that it belongs to.

use std::path::{Path, PathBuf};

use tokio_util::sync::CancellationToken;

use super::origin::Origin;
use super::{disk, host_network};
use crate::hub_config::disk::FILE as HUB_CONFIG;

/// File of the cloud's last answer about this node's lease, in the folder of the copy.
pub const NODE_LEASE: &str = "node-lease";

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

    /// Deletes the copy, and what other parts of the hub keep of the same cluster: the node lease, the ConfigMap and a value
    /// of the NodePool.
    ///
    /// # Errors
    /// Path of the copy's file if it could not be deleted.
    pub(super) fn remove(&self) -> Result<(), String> {
        self.is_foreign.cancel();
        let removed = disk::remove(&self.folder);
        removed.map_err(|error| format!("{}: {error}", self.folder.join(disk::FILE).display()))?;
        for name in [NODE_LEASE, HUB_CONFIG, host_network::FILE] {
            let path = self.folder.join(name);
            if let Err(error) = std::fs::remove_file(&path) {
                tracing::debug!(%error, path = %path.display(), "Failed to delete file of another cluster");
            }
        }
        Ok(())
    }
}
