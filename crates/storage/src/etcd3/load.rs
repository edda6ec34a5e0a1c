//! Load of the complete state: values page by page at one revision, then the deletions that etcd still remembers.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;

use super::endpoints::Endpoints;
use super::grpc::{CallError, Duplex};
use super::txn::Layout;
use super::wire::{
    EVENT_DELETE, FILTER_NO_PUT, RangeRequest, WATCH, WatchAsk, WatchCreateRequest, WatchProgressRequest, WatchRequest,
    WatchResponse,
};
use crate::backend::{Loaded, Stored};

/// Maximum number of keys of one page; fewer when the values are large.
const PAGE_KEYS: i64 = 500;
/// Maximum number of deletions taken over; the oldest are dropped first and raise the floor.
const DELETIONS_MAX: usize = 10_000;
/// etcd serves watches of past revisions every 100 ms.
const PROGRESS_EVERY: Duration = Duration::from_millis(50);
/// Time limit for the past deletions; after it the load continues without them.
const HISTORY_TIMEOUT: Duration = Duration::from_secs(20);

/// Deletions after a revision.
#[derive(Default)]
struct Past {
    deletions: VecDeque<(i64, String, Bytes)>,
    /// Older ones may be missing.
    floor: i64,
}

/// Returns everything below the prefix at one revision, with that revision. It contains no deletions.
///
/// # Errors
/// [`CallError`]; nothing usable was read.
pub(super) async fn live(endpoints: &Endpoints, layout: &Layout) -> Result<(Loaded, i64), CallError> {
    let (mut from, end) = layout.bounds();
    let (mut at, mut limit) = (0, PAGE_KEYS);
    let mut loaded = Loaded::default();
    loop {
        let request = RangeRequest {
            key: from.clone(),
            range_end: end.clone(),
            limit,
            revision: at,
            keys_only: false,
        };
        let page = match endpoints.range(&request).await {
            Err(CallError::TooLarge(_)) if limit > 1 => {
                limit /= 4;
                continue;
            }
            page => page?,
        };
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
        let create = WatchRequest {
            ask: Some(WatchAsk::Create(create)),
        };
        let mut stream = Duplex::open(&member.watches, WATCH, &create).await?;
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
            for event in message
                .events
                .into_iter()
                .filter(|event| event.event_type == EVENT_DELETE)
            {
                let (Some(gone), before) = (event.kv, event.prev_kv) else {
                    continue;
                };
                if gone.mod_revision > until {
                    return Ok(None);
                }
                let Some(key) = layout.own_key(&gone.key) else { continue };
                match before {
                    Some(before) => {
                        let value = Bytes::copy_from_slice(&before.value);
                        self.push((gone.mod_revision, key, value));
                    }
                    // Its last state is compacted, so readers before it start over.
                    None => self.floor = gone.mod_revision,
                }
            }
        }
    }

    fn push(&mut self, deletion: (i64, String, Bytes)) {
        self.deletions.push_back(deletion);
        while self.deletions.len() > DELETIONS_MAX {
            if let Some((revision, ..)) = self.deletions.pop_front() {
                self.floor = revision;
            }
        }
    }
}
