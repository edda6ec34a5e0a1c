//! Limits reviews per peer: one in flight, and none for a second after the cloud did not know its token.
//!
//! Tokens can be made up without limit, addresses cannot. A peer has a row only during a review and for that second.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, OwnedMutexGuard};
use yurt_apimachinery::time::BootTime;

use crate::proxy::caller::Origin;

/// Time after a 401 without further reviews of the peer.
pub const REFUSED_FOR: Duration = Duration::from_secs(1);
/// Maximum number of peers with a row.
const PEERS_MAX: usize = 1024;

/// Turn of a peer for a review; its next review waits until the turn is dropped.
pub type Turn = OwnedMutexGuard<()>;

/// Peers with reviews.
#[derive(Default)]
pub struct Peers {
    rows: BTreeMap<Origin, Row>,
}

#[derive(Default)]
struct Row {
    turn: Arc<Mutex<()>>,
    refused: Option<BootTime>,
}

// === impl Peers ===

impl Peers {
    /// Returns the lock for the peer's turn; `None` if too many peers have reviews.
    #[must_use]
    pub fn turn(&mut self, peer: Origin, now: BootTime) -> Option<Arc<Mutex<()>>> {
        Some(self.row(peer, now)?.turn.clone())
    }

    /// Records that the cloud did not know a token of this peer.
    pub fn refused(&mut self, peer: Origin, now: BootTime) {
        if let Some(row) = self.row(peer, now) {
            row.refused = Some(now);
        }
    }

    /// True for [`REFUSED_FOR`] after [`Self::refused`].
    #[must_use]
    pub fn is_refused(&self, peer: Origin, now: BootTime) -> bool {
        self.rows.get(&peer).is_some_and(|row| row.is_refused(now))
    }

    fn row(&mut self, peer: Origin, now: BootTime) -> Option<&mut Row> {
        if self.rows.len() >= PEERS_MAX && !self.rows.contains_key(&peer) {
            self.rows.retain(|_, row| row.is_asking() || row.is_refused(now));
            if self.rows.len() >= PEERS_MAX {
                return None;
            }
        }
        Some(self.rows.entry(peer).or_default())
    }
}

// === impl Row ===

impl Row {
    fn is_asking(&self) -> bool {
        Arc::strong_count(&self.turn) > 1
    }

    fn is_refused(&self, now: BootTime) -> bool {
        self.refused.is_some_and(|at| now.since(at) < REFUSED_FOR)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const NOW: BootTime = BootTime::from_boot(Duration::from_secs(30));

    fn peer(number: u32) -> Origin {
        Origin {
            address: Ipv4Addr::from_bits(number).into(),
            uid: None,
        }
    }

    #[test]
    fn peers_are_bounded_and_those_that_ask_stay() {
        let mut peers = Peers::default();
        let asking = peers.turn(peer(0), NOW).unwrap();
        for number in 1..PEERS_MAX as u32 {
            peers.refused(peer(number), NOW);
        }
        assert!(
            peers.turn(peer(9999), NOW).is_none(),
            "all have a review in flight or a recent refusal"
        );
        assert!(peers.is_refused(peer(1), NOW) && !peers.is_refused(peer(0), NOW));
        let later = NOW + REFUSED_FOR;
        assert!(!peers.is_refused(peer(1), later));
        assert!(peers.turn(peer(9999), later).is_some());
        assert_eq!(peers.rows.len(), 2);
        assert!(Arc::ptr_eq(&asking, &peers.turn(peer(0), later).unwrap()));
    }

    #[test]
    fn uids_of_one_address_are_peers_of_their_own() {
        let mut peers = Peers::default();
        let of = |uid| Origin {
            uid: Some(uid),
            ..peer(1)
        };
        peers.refused(of(1), NOW);
        assert!(peers.is_refused(of(1), NOW) && !peers.is_refused(of(2), NOW));
    }
}
