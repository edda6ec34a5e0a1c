//! The record that names the valid folder of a collection in the shared store.

use std::cmp::Ordering;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use yurt_apimachinery::ResourceVersion;
use yurt_collection::{Gap, ahead_of};

use crate::backend::StorageError;
use crate::embedded::replicas::Meta;

/// Record that names the valid folder and its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Pointer {
    /// Folder of the rows.
    pub(super) folder: String,
    /// Generation of the RVs.
    pub(super) generation: u64,
    /// `C`.
    pub(super) position: ResourceVersion,
    /// Oldest RV that readers may resume from.
    pub(super) floor: ResourceVersion,
    /// Stretches that lists jumped over.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) gaps: Vec<Gap>,
    /// See [`Collection::high`](yurt_collection::Collection::high).
    #[serde(default)]
    pub(super) high: ResourceVersion,
    /// RV up to which coordinators may serve until the next commit.
    #[serde(default)]
    pub(super) mark: ResourceVersion,
}

// === impl Pointer ===

impl Pointer {
    /// The pointer to `folder` after a commit of `meta`.
    pub(super) fn of(meta: &Meta, folder: String) -> Self {
        Self {
            folder,
            generation: meta.generation(),
            position: meta.position(),
            floor: meta.floor(),
            gaps: meta.gaps().to_vec(),
            high: meta.high(),
            mark: meta.mark(),
        }
    }

    /// Generation and position.
    pub(super) fn place(&self) -> (u64, ResourceVersion) {
        (self.generation, self.position)
    }

    /// `Less` if a commit of `held` adds to the stored state: a later position, or a higher mark for the same one.
    pub(super) fn compare(&self, held: &Meta) -> Ordering {
        let position = self.place().cmp(&(held.generation(), held.position()));
        position.then(match self.mark < held.mark() {
            true => Ordering::Less,
            false => Ordering::Equal,
        })
    }

    /// Reads the row `what` of a collection. `None` if it is not the pointer, or damaged.
    pub(super) fn decode(what: &str, value: &[u8]) -> Option<Self> {
        if what != "pointer" {
            return None;
        }
        let read = serde_json::from_slice::<Self>(value).map_err(
            |error| tracing::error!(%error, "Failed to read pointer of pool data; its folder is not followed"),
        );
        let mut pointer = read.ok()?;
        // A coordinator without marks may have written it.
        pointer.mark = pointer.mark.max(ahead_of(pointer.position));
        Some(pointer)
    }

    /// The row's value.
    pub(super) fn encode(&self) -> Result<Bytes, StorageError> {
        let bytes = serde_json::to_vec(self).map_err(|error| StorageError::Corrupt(error.to_string()))?;
        Ok(bytes.into())
    }
}
