//! Turns of guarded writes: one write at a time per lease.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// The leases that are being written. The number of requests in flight bounds it.
#[derive(Default)]
pub(super) struct LeaseTurns(Mutex<BTreeMap<String, Place>>);

/// A lease that is being written.
#[derive(Default)]
struct Place {
    /// Number of its writes, waiting ones included.
    writes: usize,
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// One write of a lease. The entry goes with the last one.
pub(super) struct LeaseWrite<'a> {
    turns: &'a LeaseTurns,
    key: &'a str,
    turn: Arc<tokio::sync::Mutex<()>>,
}

// === impl LeaseTurns ===

impl LeaseTurns {
    /// Begins a write of the lease `key`.
    pub(super) fn begin<'a>(&'a self, key: &'a str) -> LeaseWrite<'a> {
        let mut places = self.0.lock();
        let place = places.entry(key.to_owned()).or_default();
        place.writes += 1;
        let turn = place.turn.clone();
        LeaseWrite { turns: self, key, turn }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

// === impl LeaseWrite ===

impl LeaseWrite<'_> {
    /// Waits for the earlier writes of the lease; later ones wait until the result is dropped.
    pub(super) async fn turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.turn.lock().await
    }
}

impl Drop for LeaseWrite<'_> {
    fn drop(&mut self) {
        let mut places = self.turns.0.lock();
        if let Some(place) = places.get_mut(self.key) {
            place.writes -= 1;
            if place.writes == 0 {
                places.remove(self.key);
            }
        }
    }
}
