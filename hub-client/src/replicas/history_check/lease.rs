//! Evidence from this node's lease: the RV that the cloud acknowledged last.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::Value;
use yurt_apimachinery::ResourceVersion;

/// RV of this node's lease that the cloud acknowledged last in its present history; clones share it. The heartbeat
/// writes it, the check of the history reads it.
#[derive(Clone, Debug, Default)]
pub struct AcknowledgedLease(Arc<Mutex<Option<ResourceVersion>>>);

// === impl AcknowledgedLease ===

impl AcknowledgedLease {
    /// Returns the RV; `None` if the cloud acknowledged none.
    #[must_use]
    pub fn version(&self) -> Option<ResourceVersion> {
        *self.0.lock()
    }

    /// Records an answer of the cloud. Returns true if it is the first one of the present history.
    pub fn record(&self, version: ResourceVersion) -> bool {
        self.0.lock().replace(version).is_none()
    }

    /// Forgets the RV: the cloud returned with another history.
    pub fn forget(&self) {
        *self.0.lock() = None;
    }
}

/// RV of a lease in JSON.
#[must_use]
pub fn lease_version(lease: &[u8]) -> Option<ResourceVersion> {
    version_of(&serde_json::from_slice(lease).ok()?)
}

pub(super) fn version_of(object: &Value) -> Option<ResourceVersion> {
    ResourceVersion::parse(object["metadata"]["resourceVersion"].as_str()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_answer_of_each_history_is_known_as_such() {
        let (lease, heartbeat) = {
            let lease = AcknowledgedLease::default();
            (lease.clone(), lease)
        };
        assert!(heartbeat.record(ResourceVersion(7)) && !heartbeat.record(ResourceVersion(9)));
        assert_eq!(lease.version(), Some(ResourceVersion(9)));
        lease.forget();
        assert_eq!(heartbeat.version(), None);
        assert!(
            heartbeat.record(ResourceVersion(3)),
            "the stored answer is of another history"
        );
    }
}
