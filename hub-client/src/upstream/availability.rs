//! Availability of one server, as its probes judge it, for everything that sends requests to it.

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// Last judgement about a server. Requests in flight end when the server falls.
#[derive(Debug)]
pub struct Availability(Mutex<AvailabilityState>);

#[derive(Debug)]
struct AvailabilityState {
    is_up: Option<bool>,
    may_answer: bool,
    /// Cancelled while the server is known not to answer.
    lost: CancellationToken,
    /// Cancelled while the server is not up.
    down: CancellationToken,
}

impl Default for Availability {
    fn default() -> Self {
        Self(Mutex::new(AvailabilityState {
            is_up: None,
            may_answer: true,
            lost: CancellationToken::new(),
            down: CancellationToken::new(),
        }))
    }
}

// === impl Availability ===

impl Availability {
    /// True if the server is up, `None` before the first judgement.
    #[must_use]
    pub fn is_up(&self) -> Option<bool> {
        self.0.lock().is_up
    }

    /// False if the server is known not to answer.
    #[must_use]
    pub fn may_answer(&self) -> bool {
        self.0.lock().may_answer
    }

    /// Token that is cancelled once the server no longer answers; cancelled already if it does not answer now.
    #[must_use]
    pub fn lost(&self) -> CancellationToken {
        self.0.lock().lost.clone()
    }

    /// Token that is cancelled once the server is not up, also if it still answers; cancelled already if it is down
    /// now. Streams of data go on at another server then.
    #[must_use]
    pub fn down(&self) -> CancellationToken {
        self.0.lock().down.clone()
    }

    /// Stores a judgement.
    pub(crate) fn set(&self, is_up: Option<bool>, may_answer: bool) {
        let mut known = self.0.lock();
        match (known.is_up, is_up) {
            (Some(false), Some(true)) => known.down = CancellationToken::new(),
            (_, Some(false)) => known.down.cancel(),
            _ => {}
        }
        known.is_up = is_up;
        if known.may_answer != may_answer {
            known.may_answer = may_answer;
            if may_answer {
                known.lost = CancellationToken::new();
            } else {
                known.lost.cancel();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_a_lost_server_end_and_new_ones_begin_after_its_return() {
        let server = Availability::default();
        let first = server.lost();
        server.set(Some(true), true);
        server.set(Some(false), true);
        assert!(
            !first.is_cancelled() && server.down().is_cancelled(),
            "it still answers"
        );
        server.set(Some(false), false);
        assert!(first.is_cancelled() && server.lost().is_cancelled());
        server.set(Some(true), true);
        assert!(first.is_cancelled() && !server.lost().is_cancelled() && !server.down().is_cancelled());
    }
}
