//! Load of the complete state: values page by page at one revision, then the deletions that etcd still remembers.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use yurt_runtime::http::client::ClientError;

use super::endpoints::Endpoints;
use super::grpc::{CallError, Duplex};
use super::txn::Layout;
use super::wire::{
    EVENT_DELETE, Event, FILTER_NO_PUT, RangeRequest, WatchAsk, WatchCreateRequest, WatchProgressRequest, WatchRequest,
    WatchResponse,
};
use crate::backend::{Loaded, Stored};

/// Maximum number of keys of one page; fewer when the values are large.
const PAGE_KEYS: i64 = 500;
/// Maximum number of deletions taken over; the oldest are dropped first and raise the floor.
const DELETIONS_MAX: usize = 10_000;
/// Maximum bytes of their keys and values, as above.
const DELETION_BYTES_MAX: usize = 16 << 20;
/// etcd serves watches of past revisions every 100 ms.
const PROGRESS_EVERY: Duration = Duration::from_millis(50);
/// Time limit for the past deletions; after it the load continues without them.
const HISTORY_TIMEOUT: Duration = Duration::from_secs(20);

/// Deletions after a revision.
#[derive(Default)]
struct Past {
    deletions: VecDeque<(i64, String, Bytes)>,
    /// Size of `deletions`.
    bytes: usize,
    /// Older ones may be missing.
    floor: i64,
}

/// Returns everything below the prefix at one revision, with that revision. It contains no deletions.
///
/// # Errors
/// [`CallError`]; nothing usable was read.
pub(super) async fn live(endpoints: &Endpoints, layout: &Layout) -> Result<(Loaded, i64), CallError> {
    let (mut from, end) = layout.bounds();
    let (mut at, mut limit) = (0, PageLimit::default());
    let mut loaded = Loaded::default();
    loop {
        let request = RangeRequest {
            key: from.clone(),
            range_end: end.clone(),
            limit: limit.keys,
            revision: at,
            keys_only: false,
        };
        let page = match endpoints.range(&request).await {
            Ok(page) => page,
            Err(error) => match limit.failed(&error) {
                true => continue,
                false => return Err(error),
            },
        };
        limit.read();
        if at == 0 {
            at = page.header.unwrap_or_default().revision;
        }
        let last = page.kvs.last().map(|kv| kv.key.clone());
        for kv in page.kvs {
            if let Some(key) = layout.own_key(&kv.key) {
                loaded.live.push(Stored {
                    key,
                    rv: layout.rv(kv.mod_revision),
                    // A slice would keep the whole page in memory.
                    value: Bytes::copy_from_slice(&kv.value),
                });
            }
        }
        match last.filter(|_| page.more) {
            // The next possible key.
            Some(last) => from = [&last[..], &[0]].concat().into(),
            None => break,
        }
    }
    loaded.at = layout.rv(at);
    loaded.floor = loaded.at;
    Ok((loaded, at))
}

/// Number of keys of the next page.
struct PageLimit {
    keys: i64,
    /// Number above which a page did not fit into a message.
    max: i64,
}

impl Default for PageLimit {
    fn default() -> Self {
        Self {
            keys: PAGE_KEYS,
            max: PAGE_KEYS,
        }
    }
}

// === impl PageLimit ===

impl PageLimit {
    /// Records a page that failed; false if a smaller one does not help.
    fn failed(&mut self, error: &CallError) -> bool {
        let is_too_large = matches!(error, CallError::TooLarge(_));
        // A thin link transfers less than a page in time.
        let is_too_slow = matches!(error, CallError::Transport(ClientError::Timeout { connecting, .. }) if !connecting);
        if self.keys <= 1 || !(is_too_large || is_too_slow) {
            return false;
        }
        self.keys = (self.keys / 4).max(1);
        if is_too_large {
            self.max = self.keys;
        }
        true
    }

    /// Records a page that was read. etcd may have been slow for a moment only.
    fn read(&mut self) {
        self.keys = (self.keys * 2).min(self.max);
    }
}

/// Adds the deletions up to revision `until` that etcd remembers. Without them earlier readers start over.
pub(super) async fn add_deletions(endpoints: &Endpoints, layout: &Layout, loaded: &mut Loaded, until: i64) {
    let past = match tokio::time::timeout(HISTORY_TIMEOUT, deletions(endpoints, layout, until)).await {
        Ok(Ok(past)) => past,
        Ok(Err(error)) => return tracing::warn!(%error, "Failed to read etcd's history; watches start over"),
        Err(_) => return tracing::warn!("Timed out reading etcd's history; watches start over"),
    };
    loaded.floor = layout.rv(past.floor);
    loaded.tombstones = past
        .deletions
        .into_iter()
        .map(|(revision, key, value)| Stored {
            key,
            rv: layout.rv(revision),
            value,
        })
        .collect();
}

async fn deletions(endpoints: &Endpoints, layout: &Layout, until: i64) -> Result<Past, CallError> {
    let mut past = Past::default();
    let (key, range_end) = layout.bounds();
    // A compaction may happen in between, once.
    loop {
        // A member that was left for another one may be too old for watches.
        endpoints.require_version().await?;
        let (_, member) = endpoints.pick();
        let create = WatchCreateRequest {
            key: key.clone(),
            range_end: range_end.clone(),
            start_revision: past.floor + 1,
            progress_notify: false,
            filters: vec![FILTER_NO_PUT],
            prev_kv: true,
            fragment: true,
        };
        let mut stream = member.open_watch(create).await?;
        match past.collect(&mut stream, layout, until).await? {
            None => return Ok(past),
            Some(compacted) => {
                past = Past {
                    floor: compacted.max(past.floor + 1),
                    ..Past::default()
                }
            }
        }
    }
}

// === impl Past ===

impl Past {
    /// Collects deletions up to `until`. Returns the revision of a compaction if they begin before it.
    async fn collect(&mut self, stream: &mut Duplex, layout: &Layout, until: i64) -> Result<Option<i64>, CallError> {
        let ask = WatchRequest {
            ask: Some(WatchAsk::Progress(WatchProgressRequest {})),
        };
        let mut ask_at = tokio::time::interval(PROGRESS_EVERY);
        loop {
            let message: Option<WatchResponse> = tokio::select! {
                message = stream.next() => message?,
                _ = ask_at.tick() => {
                    stream.send(&ask);
                    continue;
                }
            };
            let message = message.ok_or_else(|| CallError::Malformed("the watch ended".into()))?;
            if message.canceled && message.compact_revision > 0 {
                return Ok(Some(message.compact_revision));
            }
            if message.canceled {
                return Err(CallError::Malformed(message.cancel_reason));
            }
            if message.progress().is_some_and(|revision| revision >= until) {
                return Ok(None);
            }
            for event in message.events {
                if !self.take(event, layout, until) {
                    return Ok(None);
                }
            }
        }
    }

    /// Adds the deletion of `event`, if it is one of an object. Returns false for an event after `until`.
    fn take(&mut self, event: Event, layout: &Layout, until: i64) -> bool {
        let (EVENT_DELETE, Some(gone)) = (event.event_type, event.kv) else {
            return true;
        };
        if gone.mod_revision > until {
            return false;
        }
        // Records and pool data are kept in keys of their own; only objects have readers that resume.
        let Some(key) = layout.own_key(&gone.key).filter(|key| !key.starts_with("/~")) else {
            return true;
        };
        match event.prev_kv {
            Some(before) => {
                let value = Bytes::copy_from_slice(&before.value);
                self.push((gone.mod_revision, key, value));
            }
            // Its last state is compacted, so readers before it start over.
            None => self.floor = gone.mod_revision,
        }
        true
    }

    fn push(&mut self, deletion: (i64, String, Bytes)) {
        self.bytes += size(&deletion);
        self.deletions.push_back(deletion);
        while self.deletions.len() > DELETIONS_MAX || self.bytes > DELETION_BYTES_MAX {
            let Some(oldest) = self.deletions.pop_front() else {
                return;
            };
            self.bytes -= size(&oldest);
            self.floor = oldest.0;
        }
    }
}

/// Size in memory, in bytes.
fn size((_, key, value): &(i64, String, Bytes)) -> usize {
    key.len() + value.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd3::timeline::Timeline;
    use crate::etcd3::wire::KeyValue;

    fn timeout(connecting: bool) -> CallError {
        CallError::Transport(ClientError::Timeout {
            server: String::new(),
            after: Duration::from_secs(5),
            connecting,
        })
    }

    #[test]
    fn page_that_is_too_large_or_too_slow_is_tried_with_fewer_keys() {
        for error in [CallError::TooLarge(17 << 20), timeout(false)] {
            let mut limit = PageLimit::default();
            let tried = std::iter::from_fn(|| {
                let keys = limit.keys;
                limit.failed(&error).then_some(keys)
            });
            assert_eq!(tried.collect::<Vec<_>>(), [500, 125, 31, 7], "{error}");
            assert_eq!(limit.keys, 1);
        }
        for error in [timeout(true), CallError::Malformed(String::new())] {
            assert!(!PageLimit::default().failed(&error), "{error}");
        }
    }

    #[test]
    fn pages_grow_again_up_to_what_fits_into_a_message() {
        let after = |error: &CallError| {
            let mut limit = PageLimit::default();
            assert!(limit.failed(error));
            [(); 4].map(|()| {
                limit.read();
                limit.keys
            })
        };
        assert_eq!(after(&timeout(false)), [250, 500, 500, 500], "it was slow for a moment");
        assert_eq!(after(&CallError::TooLarge(17 << 20)), [125; 4]);
    }

    /// `past` takes the deletion of `key` with a last state of this size.
    fn delete(past: &mut Past, revision: i64, key: &str, bytes: usize) {
        let layout = Layout {
            prefix: "/yurt".into(),
            tag: 0,
            timeline: Timeline::begin("id".into(), 1, 0, 0),
        };
        let kv = |value: Vec<u8>| KeyValue {
            key: layout.key(key),
            mod_revision: revision,
            version: 0,
            value: value.into(),
        };
        let event = Event {
            event_type: EVENT_DELETE,
            kv: Some(kv(Vec::new())),
            prev_kv: Some(kv(vec![0; bytes])),
        };
        assert!(past.take(event, &layout, i64::MAX));
    }

    /// A leader deletes the old folder of a collection key by key.
    #[test]
    fn deletions_of_pool_data_are_not_collected() {
        let mut past = Past::default();
        delete(&mut past, 1, "/configmaps/x/a", 10);
        for revision in 2..=20_000 {
            delete(&mut past, revision, &format!("/~pool/services/f/o/x/{revision}"), 10);
        }
        assert_eq!((past.deletions.len(), past.floor), (1, 0));
    }

    #[test]
    fn deletions_are_bounded_by_number_and_by_bytes() {
        for (bytes, kept) in [(10, DELETIONS_MAX), (1 << 20, 15)] {
            let mut past = Past::default();
            let count = i64::try_from(kept).expect("it is small") + 5;
            for revision in 1..=count {
                delete(&mut past, revision, "/configmaps/x/a", bytes);
            }
            assert_eq!((past.deletions.len(), past.floor), (kept, 5), "{bytes}");
            assert!(past.bytes <= DELETION_BYTES_MAX);
        }
    }
}
