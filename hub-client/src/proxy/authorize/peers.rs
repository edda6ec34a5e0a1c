//! Limits reviews per peer: one in flight, and none for a second after the cloud did not know its token.
//!
//! Tokens can be made up without limit, addresses cannot. A peer has a row only during a review and for that second. In
//! that second the token itself gets 401 again, and the peer's other ones 429.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, OwnedMutexGuard};
use yurt_apimachinery::time::BootTime;

use super::credential::Hash;
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
    /// Last caller that the cloud did not know, and the time of its answer.
    refused: Option<(Hash, BootTime)>,
}

/// Recent refusal by the cloud to know a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The caller.
    pub caller: Hash,
    /// Time until its peer may have reviews again, s, rounded up.
    pub seconds_left: u32,
}

// === impl Peers ===

impl Peers {
    /// Returns the lock for the peer's turn; `None` if too many peers have reviews.
    #[must_use]
    pub fn turn(&mut self, peer: Origin, now: BootTime) -> Option<Arc<Mutex<()>>> {
        Some(self.row(peer, now)?.turn.clone())
    }

    /// Records that the cloud did not know a caller of this peer.
    pub fn refused(&mut self, peer: Origin, caller: Hash, now: BootTime) {
        if let Some(row) = self.row(peer, now) {
            row.refused = Some((caller, now));
        }
    }

    /// Returns the last refusal for [`REFUSED_FOR`] after [`Self::refused`].
    #[must_use]
    pub fn refusal(&self, peer: Origin, now: BootTime) -> Option<Refusal> {
        self.rows.get(&peer)?.refusal(now)
    }

    fn row(&mut self, peer: Origin, now: BootTime) -> Option<&mut Row> {
        if self.rows.len() >= PEERS_MAX && !self.rows.contains_key(&peer) {
            self.rows.retain(|_, row| row.is_asking() || row.refusal(now).is_some());
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

    fn refusal(&self, now: BootTime) -> Option<Refusal> {
        let (caller, at) = self.refused?;
        let left = REFUSED_FOR.checked_sub(now.since(at)).filter(|left| !left.is_zero())?;
        let seconds_left = left.as_secs_f64().ceil() as u32;
        Some(Refusal { caller, seconds_left })
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const CALLER: Hash = [7; 32];
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
            peers.refused(peer(number), CALLER, NOW);
        }
        assert!(
            peers.turn(peer(9999), NOW).is_none(),
            "all have a review in flight or a recent refusal"
        );
        assert!(peers.refusal(peer(1), NOW).is_some() && peers.refusal(peer(0), NOW).is_none());
        let later = NOW + REFUSED_FOR;
        assert!(peers.refusal(peer(1), later).is_none());
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
        peers.refused(of(1), CALLER, NOW);
        assert!(peers.refusal(of(1), NOW).is_some() && peers.refusal(of(2), NOW).is_none());
    }
    #[test]
    fn refusal_names_its_caller_and_the_time_left() {
        let mut peers = Peers::default();
        peers.refused(peer(1), CALLER, NOW);
        let left = |after| peers.refusal(peer(1), NOW + Duration::from_millis(after));
        let refusal = Refusal {
            caller: CALLER,
            seconds_left: 1,
        };
        assert_eq!([0, 999, 1000].map(left), [Some(refusal), Some(refusal), None]);
    }
}
