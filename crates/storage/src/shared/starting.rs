//! Permits of watches that receive the present state.
//!
//! Nothing polls the watch of a client that reads nothing, so it would hold its permit as long as the client likes. An
//! old permit therefore goes to the next watch that asks for one. Its former holder takes another before it reads more.
//! There is no timer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Maximum number of watches of one collection that read pages of its present state at the same time; further ones get
/// 429. A watch that lost its permit still holds the page that it read last, as a stalled one without a permit does.
/// The server's limits on connections and streams bound these.
pub const STARTING_WATCHES_MAX: usize = 2000;
/// Time after which a permit may go to another watch. Within it, most clients receive the whole state.
pub const START_PERMIT_TIME: Duration = Duration::from_secs(30);

/// Permits in use of one collection.
#[derive(Clone, Debug, Default)]
pub(super) struct Starting(Arc<Mutex<Permits>>);

#[derive(Debug, Default)]
struct Permits {
    /// Times at which the permits were taken, by number: the oldest first.
    taken: BTreeMap<u64, Instant>,
    /// Number of the permit taken last.
    last: u64,
}

/// A permit, given back when dropped.
#[derive(Debug)]
pub(crate) struct StartPermit {
    starting: Starting,
    number: u64,
}

// === impl Starting ===

impl Starting {
    /// Takes a free permit, or else the oldest one if its time is over.
    pub(super) fn take(&self, now: Instant) -> Option<StartPermit> {
        let number = self.0.lock().take(now)?;
        Some(StartPermit {
            starting: self.clone(),
            number,
        })
    }
}

// === impl Permits ===

impl Permits {
    fn take(&mut self, now: Instant) -> Option<u64> {
        if self.taken.len() >= STARTING_WATCHES_MAX {
            let oldest = self.taken.first_entry()?;
            if now < *oldest.get() + START_PERMIT_TIME {
                return None;
            }
            oldest.remove();
        }
        self.last += 1;
        self.taken.insert(self.last, now);
        Some(self.last)
    }
}

// === impl StartPermit ===

impl StartPermit {
    /// False once the permit went to another watch.
    pub(crate) fn is_held(&self) -> bool {
        self.starting.0.lock().taken.contains_key(&self.number)
    }
}

impl Drop for StartPermit {
    fn drop(&mut self) {
        self.starting.0.lock().taken.remove(&self.number);
    }
}
