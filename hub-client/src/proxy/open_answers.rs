//! Limits on the answers of the cloud that callers with tokens receive at a time.
//!
//! A client that reads nothing keeps its answer open for as long as it likes. The hub holds about 100 KiB for it: the
//! window of the stream, and the piece before it.

use std::sync::Arc;

use yurt_apimachinery::{RequestInfo, Status, Verb};

use super::caller::{Caller, Credential};
use super::shares::{Part, Shares};

/// Maximum number of answers of all origins that end by themselves: 50 MB if all readers stall.
const CALLS: usize = 512;
/// Maximum number of those of one origin. A client with a hundred informers lists as many collections at once.
const CALLS_SHARE: usize = 128;
/// Maximum number of watches and logs of all origins: 100 MB if all readers stall.
const STREAMS: usize = 1024;
/// Maximum number of those of one origin: two clients with a hundred informers, or the old and the new one of an update.
const STREAMS_SHARE: usize = 256;
/// Seconds of `Retry-After` for a caller beyond a limit.
const RETRY_AFTER: u32 = 1;

/// Answers that pass at present.
pub struct OpenAnswers {
    calls: Arc<Shares>,
    streams: Arc<Shares>,
}

impl Default for OpenAnswers {
    fn default() -> Self {
        Self {
            calls: Shares::new(CALLS, CALLS_SHARE),
            streams: Shares::new(STREAMS, STREAMS_SHARE),
        }
    }
}

// === impl OpenAnswers ===

impl OpenAnswers {
    /// Counts one more answer for `caller`, until the returned part is dropped. `None` for a component that acts as the
    /// node, which has no limit.
    ///
    /// # Errors
    /// 429 beyond a limit.
    pub(super) fn one_more(&self, caller: &Caller, info: &RequestInfo) -> Result<Option<Part>, Status> {
        if caller.credential == Credential::Node {
            return Ok(None);
        }
        let is_stream = info.verb == Verb::Watch || info.subresource.as_deref() == Some("log");
        let shares = if is_stream { &self.streams } else { &self.calls };
        let mut part = shares.part(caller.origin);
        if part.grow(1) {
            return Ok(Some(part));
        }
        let why = "too many answers of this client, or of all clients, are being read, please try again later";
        Err(Status::too_many_requests(why, RETRY_AFTER))
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

    fn request(path: &str, query: Option<&str>) -> RequestInfo {
        RequestInfo::parse("GET", path, query).unwrap()
    }

    /// Takes as many as possible.
    fn taken(open: &OpenAnswers, caller: &Caller, info: &RequestInfo) -> Vec<Option<Part>> {
        (0..2 * STREAMS)
            .map_while(|_| open.one_more(caller, info).ok())
            .collect()
    }

    #[test]
    fn pods_have_shares_of_calls_and_of_streams_and_the_node_has_no_limit() {
        let open = OpenAnswers::default();
        let (list, watch) = (request("/api/v1/pods", None), request("/api/v1/pods", Some("watch=1")));
        let log = request("/api/v1/namespaces/shop/pods/web/log", None);
        let calls: Vec<_> = (0..5).map(|number| taken(&open, &pod(number), &list)).collect();
        let counts: Vec<_> = calls.iter().map(Vec::len).collect();
        assert_eq!(counts, [CALLS_SHARE, CALLS_SHARE, CALLS_SHARE, CALLS_SHARE, 0]);
        let streams = taken(&open, &pod(0), &watch);
        assert_eq!((streams.len(), taken(&open, &pod(0), &log).len()), (STREAMS_SHARE, 0));
        let node = Caller {
            credential: Credential::Node,
            ..pod(0)
        };
        assert_eq!(taken(&open, &node, &list).len(), 2 * STREAMS);
        drop(calls);
        assert_eq!(taken(&open, &pod(9), &list).len(), CALLS_SHARE);
    }
}
