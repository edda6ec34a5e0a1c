//! Limits on the answers that callers without the node's identity receive at a time.
//!
//! A client that reads nothing keeps its answer open for as long as it likes. The hub holds about 100 KiB for one of
//! the cloud: the window of the stream, and the piece before it. Watches of replicas are not counted, they have limits
//! of their own.

use std::sync::Arc;

use http::Response;
use yurt_apimachinery::{RequestInfo, Status, Verb};
use yurt_runtime::http::{Body, holding};

use super::caller::{Caller, Credential};
use super::shares::{Part, Shares};

/// Maximum number of answers of all origins that end by themselves: 50 MB if all readers stall. One origin alone gets
/// about a hundred: a client with a hundred informers lists as many collections at once.
const CALLS: usize = 512;
/// Maximum number of watches and logs of all origins that pass from the cloud: 100 MB if all readers stall. One origin
/// alone gets about two hundred: two clients with a hundred informers, or the old and the new one of an update.
const STREAMS: usize = 1024;
/// Seconds of `Retry-After` for a caller beyond a limit.
const RETRY_AFTER: u32 = 1;

/// Answers of one kind that are open at present.
pub struct OpenAnswers(Arc<Shares>);

// === impl OpenAnswers ===

impl OpenAnswers {
    /// Answers that end by themselves.
    #[must_use]
    pub fn calls() -> Self {
        Self(Shares::fair(CALLS))
    }

    /// Watches and logs.
    #[must_use]
    pub fn streams() -> Self {
        Self(Shares::fair(STREAMS))
    }

    /// Counts one more answer for `caller`, until the returned part is dropped. `None` for a component that acts as the
    /// node, which has no limit.
    ///
    /// # Errors
    /// 429 beyond a limit.
    pub(super) fn one_more(&self, caller: &Caller) -> Result<Option<Part>, Status> {
        if caller.credential == Credential::Node {
            return Ok(None);
        }
        let mut part = self.0.part(caller.origin);
        if part.grow(1) {
            return Ok(Some(part));
        }
        let why = "too many answers of this client, or of all clients, are being read, please try again later";
        Err(Status::too_many_requests(why, RETRY_AFTER))
    }
}

/// True if the answer may last: a watch or a log.
pub(super) fn is_stream(info: &RequestInfo) -> bool {
    info.verb == Verb::Watch || info.subresource.as_deref() == Some("log")
}

/// The same response, counted until its body is dropped.
pub(super) fn counted(response: Response<Body>, part: Option<Part>) -> Response<Body> {
    match part {
        Some(part) => response.map(|body| holding(body, part)),
        None => response,
    }
}

#[cfg(test)]
mod tests {
    use super::super::caller::Origin;
    use super::*;

    fn pod(number: usize) -> Caller {
        Caller {
            component: "pod".to_owned(),
            credential: Credential::Token("made up".to_owned()),
            origin: Origin {
                address: [10, 1, 0, u8::try_from(number).unwrap()].into(),
                uid: None,
            },
        }
    }

    /// Takes as many as possible.
    fn taken(open: &OpenAnswers, caller: &Caller) -> Vec<Option<Part>> {
        (0..2 * STREAMS).map_while(|_| open.one_more(caller).ok()).collect()
    }

    #[test]
    fn pods_have_shares_of_the_answers_and_the_node_has_no_limit() {
        for (open, alone) in [(OpenAnswers::calls(), 102), (OpenAnswers::streams(), 204)] {
            let mut held = vec![taken(&open, &pod(0))];
            assert_eq!(held[0].len(), alone);
            held.extend((1..16).map(|number| taken(&open, &pod(number))));
            let refused = open.one_more(&pod(0)).map(drop).unwrap_err();
            assert_eq!((refused.code(), refused.retry_after()), (429, Some(RETRY_AFTER)));
            assert!(open.one_more(&pod(16)).is_ok());
            let node = Caller {
                credential: Credential::Node,
                ..pod(0)
            };
            assert_eq!(taken(&open, &node).len(), 2 * STREAMS);
            drop(held);
            assert_eq!(taken(&open, &pod(16)).len(), alone);
        }
    }
}
