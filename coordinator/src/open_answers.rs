//! Limits on the answers that one caller receives at a time.
//!
//! A client that reads nothing keeps its answers open until they end for that ([`MAX_STALL`]). The coordinator holds up
//! to 128 KiB of each: a piece, and what the connection buffers. No caller counts for another, so that all nodes of a
//! pool may list at the same time over slow links.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use yurt_apimachinery::Status;
use yurt_runtime::http::GZIPS_AT_ONCE;

use crate::config::Profile;

/// Maximum number of answers that end by themselves, of one caller in a pool: 16 MiB if it reads none. A hub that
/// starts lists the at most 32 shared resources and a few others.
const POOL_CALLS: usize = 128;
/// Maximum number of watches of one caller in a pool. A hub has one for each resource; twice as many while it changes
/// its connection.
const POOL_WATCHES: usize = 256;
/// As [`POOL_CALLS`], in profile `standalone`: above the default numbers of requests in flight.
const CALLS: usize = 1024;
/// As [`POOL_WATCHES`], in profile `standalone`: a kubelet watches each Secret and ConfigMap of its pods.
const WATCHES: usize = 4096;
/// Maximum number of answers that are compressed for one caller; further ones are sent uncompressed. Half of all, so
/// that a caller that reads none leaves the others compression.
const COMPRESSED: usize = GZIPS_AT_ONCE / 2;
/// Maximum time in which a client takes nothing of an answer that waits. Over a link of 5 KiB/s, of 32 lists each has
/// its turn once in 100 s.
pub(crate) const MAX_STALL: Duration = Duration::from_secs(120);
/// Seconds of `Retry-After` for a caller beyond a limit.
const RETRY_AFTER: u32 = 1;

/// Answers that are open at present, by caller.
pub(crate) struct OpenAnswers {
    calls: Arc<Class>,
    watches: Arc<Class>,
    compressed: Arc<Class>,
}

/// Answers of one kind.
struct Class {
    /// Maximum number for one caller.
    max: usize,
    /// Callers with an open answer.
    of: Mutex<HashMap<Arc<str>, usize>>,
}

/// One open answer; counted until it is dropped.
pub(crate) struct OpenAnswer {
    class: Arc<Class>,
    caller: Arc<str>,
}

// === impl OpenAnswers ===

impl OpenAnswers {
    /// Creates the count with the limits of a profile.
    pub(crate) fn new(profile: Profile) -> Self {
        let (calls, watches) = match profile {
            Profile::Pool => (POOL_CALLS, POOL_WATCHES),
            Profile::Standalone => (CALLS, WATCHES),
        };
        let class = |max| {
            let of = Mutex::default();
            Arc::new(Class { max, of })
        };
        Self {
            calls: class(calls),
            watches: class(watches),
            compressed: class(COMPRESSED),
        }
    }

    /// Counts one more answer for `caller`.
    ///
    /// # Errors
    /// 429 beyond the limit.
    pub(crate) fn one_more(&self, caller: &str, is_watch: bool) -> Result<OpenAnswer, Status> {
        let class = if is_watch { &self.watches } else { &self.calls };
        class.one_more(caller).ok_or_else(|| {
            let why = "too many answers of this client are being read, please try again later";
            Status::too_many_requests(why, RETRY_AFTER)
        })
    }

    /// Counts one more compressed answer for `caller`; `None` beyond the limit.
    pub(crate) fn one_more_compressed(&self, caller: &str) -> Option<OpenAnswer> {
        self.compressed.one_more(caller)
    }
}

// === impl Class ===

impl Class {
    fn one_more(self: &Arc<Self>, caller: &str) -> Option<OpenAnswer> {
        let mut of = self.of.lock();
        let held = of.get_key_value(caller);
        let (caller, count) = held.map_or_else(|| (Arc::from(caller), 0), |(caller, count)| (caller.clone(), *count));
        if count >= self.max {
            return None;
        }
        of.insert(caller.clone(), count + 1);
        let class = self.clone();
        Some(OpenAnswer { class, caller })
    }
}

impl Drop for OpenAnswer {
    fn drop(&mut self) {
        let mut of = self.class.of.lock();
        if let Some(count) = of.get_mut(&self.caller) {
            *count -= 1;
            if *count == 0 {
                of.remove(&self.caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_caller_has_its_own_limit_of_calls_and_of_watches() {
        let open = OpenAnswers::new(Profile::Pool);
        let most = |caller, is_watch| {
            let held = std::iter::from_fn(|| open.one_more(caller, is_watch).ok());
            held.take(WATCHES).collect::<Vec<_>>()
        };
        let (mut calls, watches) = (most("n1", false), most("n1", true));
        assert_eq!((calls.len(), watches.len()), (POOL_CALLS, POOL_WATCHES));
        let refused = open.one_more("n1", false).map(drop).unwrap_err();
        assert_eq!((refused.code(), refused.retry_after()), (429, Some(RETRY_AFTER)));
        assert_eq!(most("n2", false).len(), POOL_CALLS);
        calls.pop();
        assert!(open.one_more("n1", false).is_ok());
        drop((calls, watches));
        assert!(open.calls.of.lock().is_empty() && open.watches.of.lock().is_empty());
    }
}
