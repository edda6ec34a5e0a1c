//! Limit on the requests served concurrently, with fair queueing by client.
//!
//! A request without a permit waits in its client's queue, and freed permits go round the queues. So a client with a
//! thousand waiting lists delays another's first request by one permit, not by a thousand. The queues together are
//! bounded. When they are full, the newest request of the longest queue is evicted in favour of a client with a shorter
//! one. Otherwise the new request gets 429.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::IntCounter;
use tokio::sync::oneshot;
use yurt_apimachinery::Status;

mod round_robin;

use round_robin::{Joined, RoundRobin};

/// Seconds after which a rejected client should retry (`Retry-After`).
const RETRY_AFTER: u32 = 1;

/// Limit on the requests in flight, with a queue per client. Clones share it.
#[derive(Clone)]
pub struct FairQueue {
    shared: Arc<QueueShared>,
}

/// Right to be served; when it is dropped, the next request in line gets it.
pub struct Permit {
    /// `None` once it was passed on.
    queue: Option<FairQueue>,
}

/// Counters of rejected requests, by reason.
#[derive(Clone)]
pub struct Refusals {
    /// The queue was full: the request was rejected, or evicted in favour of another client.
    pub full: IntCounter,
    /// The wait exceeded the limit.
    pub late: IntCounter,
}

struct QueueShared {
    in_flight_max: usize,
    wait_max: Duration,
    refusals: Option<Refusals>,
    // Held for a few map operations, never while a waiter is woken.
    state: Mutex<QueueState>,
}

struct QueueState {
    in_flight: usize,
    waiting: RoundRobin<oneshot::Sender<Permit>>,
}

/// Leaves the queue when the request is dropped.
struct Ticket<'a> {
    queue: &'a FairQueue,
    client: &'a str,
    id: round_robin::Ticket,
}

/// Verdict on an arriving request.
enum Admitted {
    Go,
    Wait(round_robin::Ticket, oneshot::Receiver<Permit>),
    Refused,
}

// === impl FairQueue ===

impl FairQueue {
    /// A limit of `in_flight_max` requests, and queues for `queued_max` requests that wait at most `wait_max`;
    /// `refusals` are counted if given.
    #[must_use]
    pub fn new(in_flight_max: usize, queued_max: usize, wait_max: Duration, refusals: Option<Refusals>) -> Self {
        let state = QueueState {
            in_flight: 0,
            waiting: RoundRobin::new(queued_max),
        };
        Self {
            shared: Arc::new(QueueShared {
                in_flight_max,
                wait_max,
                refusals,
                state: Mutex::new(state),
            }),
        }
    }

    /// Returns a permit for a request of `client`, immediately or after a wait.
    ///
    /// # Errors
    /// 429 with Retry-After when the queues are full, or the wait exceeded its limit.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the queue.
    pub async fn enter(&self, client: &str) -> Result<Permit, Status> {
        let (id, granted) = match self.admit(client) {
            Admitted::Go => return Ok(Permit::of(self)),
            Admitted::Refused => return Err(self.busy(|refusals| &refusals.full)),
            Admitted::Wait(id, granted) => (id, granted),
        };
        let _ticket = Ticket {
            queue: self,
            client,
            id,
        };
        match tokio::time::timeout(self.shared.wait_max, granted).await {
            Ok(Ok(permit)) => Ok(permit),
            // Evicted in favour of a client with a shorter queue.
            Ok(Err(_)) => Err(self.busy(|refusals| &refusals.full)),
            Err(_) => Err(self.busy(|refusals| &refusals.late)),
        }
    }

    fn busy(&self, why: impl FnOnce(&Refusals) -> &IntCounter) -> Status {
        if let Some(refusals) = &self.shared.refusals {
            why(refusals).inc();
        }
        Status::too_many_requests("Too many requests, please try again later.", RETRY_AFTER)
    }

    /// Number of requests being served, and of requests waiting.
    #[must_use]
    pub fn load(&self) -> (usize, usize) {
        let state = self.shared.state.lock();
        (state.in_flight, state.waiting.len())
    }

    fn admit(&self, client: &str) -> Admitted {
        let mut state = self.shared.state.lock();
        if state.in_flight < self.shared.in_flight_max {
            state.in_flight += 1;
            return Admitted::Go;
        }
        let (wake, granted) = oneshot::channel();
        let joined = state.waiting.join(client, wake);
        // Woken only after the lock is released: a dropped sender runs the other task.
        drop(state);
        match joined {
            Joined::Waits(id) | Joined::InPlaceOf(id, _) => Admitted::Wait(id, granted),
            Joined::Refused => Admitted::Refused,
        }
    }

    /// Passes a freed permit to the next request in line.
    fn release(&self) {
        let mut permit = Permit::of(self);
        loop {
            let mut state = self.shared.state.lock();
            let Some(next) = state.waiting.next() else {
                state.in_flight -= 1;
                permit.queue = None;
                return;
            };
            drop(state);
            match next.send(permit) {
                Ok(()) => return,
                // Dropped in this very moment, so the permit can still be passed on.
                Err(back) => permit = back,
            }
        }
    }
}

// === impl Permit ===

impl Permit {
    fn of(queue: &FairQueue) -> Self {
        Self {
            queue: Some(queue.clone()),
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(queue) = self.queue.take() {
            queue.release();
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let sender = self.queue.shared.state.lock().waiting.leave(self.client, self.id);
        drop(sender);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use futures_util::FutureExt as _;

    use super::*;

    const LONG: Duration = Duration::from_secs(15);

    fn queue(in_flight_max: usize, queued_max: usize) -> FairQueue {
        let counter = || IntCounter::new("refused", "Refused.").unwrap();
        let refusals = Refusals {
            full: counter(),
            late: counter(),
        };
        FairQueue::new(in_flight_max, queued_max, LONG, Some(refusals))
    }

    /// Rejected because the queue was full, and because the wait was too long.
    fn refused(queue: &FairQueue) -> [u64; 2] {
        let refusals = queue.shared.refusals.as_ref().unwrap();
        [refusals.full.get(), refusals.late.get()]
    }

    fn waits(request: &mut (impl Future + Unpin)) -> bool {
        request.now_or_never().is_none()
    }

    /// A permit that is free now.
    fn now(queue: &FairQueue, client: &str) -> Option<Permit> {
        queue
            .enter(client)
            .now_or_never()
            .and_then(|permit| permit.map_err(drop).ok())
    }

    /// Conformance: 6.31
    #[tokio::test]
    async fn places_and_queue_are_bounded_to_the_last_one() {
        let queue = queue(3, 2);
        let mut places: Vec<Permit> = (0..2).map(|_| now(&queue, "a").unwrap()).collect();
        assert_eq!(queue.load(), (2, 0));
        places.push(now(&queue, "a").unwrap());
        let mut first = Box::pin(queue.enter("a"));
        let mut second = Box::pin(queue.enter("a"));
        assert!(waits(&mut first) && waits(&mut second));
        assert_eq!(queue.load(), (3, 2));
        let refused = queue.enter("a").await.map(drop).unwrap_err();
        assert_eq!((refused.code(), refused.retry_after()), (429, Some(1)));
        places.pop();
        let permit = first.await.unwrap();
        assert!(waits(&mut second));
        drop(second);
        assert_eq!(queue.load(), (3, 0), "who hangs up leaves the queue");
        drop((permit, places));
        assert_eq!(queue.load(), (0, 0));
    }

    /// Conformance: 6.31, 6.33
    #[tokio::test]
    async fn greedy_client_delays_another_by_one_place() {
        let queue = queue(1, 100);
        let mut permit = now(&queue, "greedy");
        let mut greedy: VecDeque<_> = (0..50).map(|_| Box::pin(queue.enter("greedy"))).collect();
        for one in &mut greedy {
            assert!(waits(one));
        }
        let mut modest = Box::pin(queue.enter("modest"));
        assert!(waits(&mut modest));
        drop(permit.take());
        let of_greedy = greedy.pop_front().unwrap().await.unwrap();
        assert!(waits(&mut modest));
        drop(of_greedy);
        drop(modest.await.unwrap());
        assert_eq!(queue.load(), (1, 48), "the other's turn again");
    }

    #[tokio::test]
    async fn full_queue_makes_room_for_who_waits_for_less() {
        let queue = queue(1, 3);
        let _place = now(&queue, "greedy");
        let mut greedy: Vec<_> = (0..3).map(|_| Box::pin(queue.enter("greedy"))).collect();
        for one in &mut greedy {
            assert!(waits(one));
        }
        let mut modest = Box::pin(queue.enter("modest"));
        assert!(waits(&mut modest));
        let pushed_out = greedy.pop().unwrap().await.map(drop).unwrap_err();
        assert_eq!(pushed_out.code(), 429);
        assert_eq!(
            queue.enter("modest").await.map(drop).unwrap_err().code(),
            429,
            "2 and 1: no queue is shorter"
        );
        assert_eq!(queue.load(), (1, 3));
        assert_eq!(refused(&queue), [2, 0]);
    }

    /// Conformance: 6.31
    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_ever() {
        for (free_after, is_served) in [(LONG - MILLISECOND, true), (LONG + MILLISECOND, false)] {
            let queue = queue(1, 1);
            let permit = now(&queue, "a");
            let free = async {
                tokio::time::sleep(free_after).await;
                drop(permit);
            };
            let (answer, ()) = tokio::join!(queue.enter("b"), free);
            assert_eq!(answer.as_ref().map_err(Status::code).err(), (!is_served).then_some(429));
            drop(answer);
            assert_eq!(queue.load(), (0, 0));
            assert_eq!(refused(&queue), [0, u64::from(!is_served)]);
        }
    }

    const MILLISECOND: Duration = Duration::from_millis(1);
}
