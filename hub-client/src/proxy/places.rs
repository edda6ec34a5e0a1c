//! Limits the requests in progress at a time, and orders the waiting ones.
//!
//! There are places for requests, and as many again for requests that open a stream: watches and upgrades. Those hold
//! theirs until their headers are sent. A fifth of the places is reserved for components that act as the node; they may
//! use all of them. The others are shared round-robin by origin: tokens cost nothing to make up, origins cannot be made
//! up.

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::select_ok;
use prometheus::{IntCounter, IntGauge};
use yurt_apimachinery::Status;
use yurt_runtime::fair_queue::{FairQueue, Permit};

use super::caller::{Caller, Credential};
use crate::metrics::Metrics;

/// Fraction of the places reserved for the node: one of this many, so 50 of the default 250.
const KEPT_OF: usize = 5;
/// Maximum wait for a place. Above [`super::body::WAIT_MAX`], so that requests behind stalled bodies still get a place.
const WAIT_MAX: Duration = Duration::from_secs(15);

/// Places of a hub.
pub struct Places {
    requests: PlaceQueues,
    openings: PlaceQueues,
    in_flight: IntGauge,
    rejected: IntCounter,
}

/// Places for one kind of request.
struct PlaceQueues {
    /// Places for the node alone; `None` if there are too few places.
    kept: Option<FairQueue>,
    shared: FairQueue,
}

/// Permit in use, counted in the metric.
pub struct PlaceGuard {
    _place: Permit,
    gauge: Option<IntGauge>,
}

// === impl Places ===

impl Places {
    /// Creates `max` places of each kind, and queues of the same length.
    #[must_use]
    pub fn new(max: usize, metrics: &Metrics) -> Self {
        Self {
            requests: PlaceQueues::new(max),
            openings: PlaceQueues::new(max),
            in_flight: metrics.in_flight.clone(),
            rejected: metrics.rejected.clone(),
        }
    }

    /// Returns a place for a request of `caller`, after a wait if necessary. `is_opening` is true if the request opens
    /// a stream.
    ///
    /// # Errors
    /// 429 with Retry-After if the queue is full, or the wait was too long.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the queue.
    pub async fn enter(&self, caller: &Caller, is_opening: bool) -> Result<PlaceGuard, Status> {
        let queues = if is_opening { &self.openings } else { &self.requests };
        let place = queues.enter(caller).await.inspect_err(|_| self.rejected.inc())?;
        let gauge = (!is_opening).then(|| self.in_flight.clone());
        gauge.iter().for_each(IntGauge::inc);
        Ok(PlaceGuard { _place: place, gauge })
    }
}

// === impl PlaceQueues ===

impl PlaceQueues {
    fn new(max: usize) -> Self {
        let lane = |places| FairQueue::new(places, max, WAIT_MAX, None);
        let kept = max / KEPT_OF;
        Self {
            kept: (kept > 0).then(|| lane(kept)),
            shared: lane(max - kept),
        }
    }

    async fn enter(&self, caller: &Caller) -> Result<Permit, Status> {
        let client = client(caller);
        match &self.kept {
            Some(kept) if caller.credential == Credential::Node => {
                // The first free one is used. A full queue of one kind does not end the wait in the other.
                let both = [kept.enter(&client).boxed(), self.shared.enter(&client).boxed()];
                select_ok(both).await.map(|(place, _)| place)
            }
            _ => self.shared.enter(&client).await,
        }
    }
}

impl Drop for PlaceGuard {
    fn drop(&mut self) {
        self.gauge.iter().for_each(IntGauge::dec);
    }
}

/// Returns the owner of a queue: a component of the node, a user proved by a certificate, or an origin.
fn client(caller: &Caller) -> String {
    match &caller.credential {
        Credential::Node => format!("node {}", caller.component),
        Credential::Certificate { user, .. } => format!("user {user}"),
        Credential::Token(_) => caller.origin.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::caller::Origin;

    fn pod(number: u8, token: usize) -> Caller {
        Caller {
            component: "pod".to_owned(),
            credential: Credential::Token(format!("made-up-{token}")),
            origin: Origin {
                address: [10, 1, 0, number].into(),
                uid: None,
            },
        }
    }

    fn kubelet() -> Caller {
        Caller {
            component: "kubelet".to_owned(),
            credential: Credential::Node,
            ..pod(0, 0)
        }
    }

    fn places(max: usize) -> Places {
        Places::new(max, &Metrics::new().unwrap())
    }

    fn now(places: &Places, caller: &Caller) -> Option<PlaceGuard> {
        places.enter(caller, false).now_or_never()?.ok()
    }

    #[tokio::test]
    async fn fifth_of_the_places_is_the_nodes_and_the_rest_too() {
        let places = places(10);
        let of_pods: Vec<_> = (0..20).map_while(|token| now(&places, &pod(1, token))).collect();
        assert_eq!(of_pods.len(), 8);
        let of_node: Vec<_> = (0..20).map_while(|_| now(&places, &kubelet())).collect();
        assert_eq!((of_node.len(), places.in_flight.get()), (2, 10));
        assert!(now(&places, &pod(2, 0)).is_none());
        drop((of_pods, of_node));
        let of_node: Vec<_> = (0..20).map_while(|_| now(&places, &kubelet())).collect();
        assert_eq!(of_node.len(), 10, "no other caller wants them");
        drop(of_node);
        assert_eq!(places.in_flight.get(), 0);
    }

    #[tokio::test]
    async fn node_gets_whichever_place_is_free_first() {
        for frees_kept in [true, false] {
            let places = places(5);
            let mut shared: Vec<_> = (0..4).map_while(|token| now(&places, &pod(1, token))).collect();
            let mut kept = vec![now(&places, &kubelet()).unwrap()];
            let kubelet = kubelet();
            let mut waiting = Box::pin(places.enter(&kubelet, false));
            assert!((&mut waiting).now_or_never().is_none());
            if frees_kept {
                kept.pop()
            } else {
                shared.pop()
            };
            assert!(waiting.await.is_ok());
        }
    }

    #[tokio::test]
    async fn made_up_tokens_give_no_more_turns() {
        let places = places(2);
        let mut held: Vec<_> = (0..2).map(|token| now(&places, &pod(1, token)).unwrap()).collect();
        let greedy: Vec<_> = (0..2).map(|token| pod(1, 10 + token)).collect();
        let mut greedy: Vec<_> = greedy.iter().map(|pod| Box::pin(places.enter(pod, false))).collect();
        for one in &mut greedy {
            assert!(one.now_or_never().is_none());
        }
        let modest = pod(2, 0);
        let mut modest = Box::pin(places.enter(&modest, false));
        assert!((&mut modest).now_or_never().is_none());
        // The queue was full: the last request of the longest queue was evicted.
        let refused = greedy.pop().unwrap().await.map(drop).unwrap_err();
        assert_eq!((refused.code(), places.rejected.get()), (429, 1));
        held.pop();
        let _of_greedy = greedy.pop().unwrap().await.unwrap();
        held.pop();
        assert!(modest.await.is_ok());
    }

    #[tokio::test]
    async fn streams_that_open_take_no_place_of_requests() {
        let places = places(5);
        let open = |caller: &Caller| places.enter(caller, true).now_or_never()?.ok();
        let held: Vec<_> = (0..20).map_while(|token| open(&pod(1, token))).collect();
        assert_eq!((held.len(), places.in_flight.get()), (4, 0));
        assert!(open(&kubelet()).is_some() && now(&places, &pod(1, 0)).is_some());
    }
}
