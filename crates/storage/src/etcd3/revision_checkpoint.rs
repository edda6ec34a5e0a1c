//! Record of the highest position seen in the store, in a file of this coordinator: etcd itself cannot report its own
//! rollback.
//!
//! It is written at intervals, so it lies up to [`EVERY`] behind; a store put back by less than that goes undetected.
//! Each number is first written into a key of etcd. An etcd with a lower number than the file has lost data, even if
//! its revisions are higher now.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::endpoints::Endpoints;
use super::grpc::CallError;
use super::timeline::{KnownStore, Timeline};
use super::txn::Layout;
use super::wire::RangeRequest;
use super::{EtcdState, Identity, error};
use crate::backend::{Action, Durability, Expect, Op, StorageError};

/// Minimum interval between writes of the file: each one wears the medium by a page or two.
const EVERY: Duration = Duration::from_secs(60);
/// Prefix of the key with the number in the file, followed by the mark's name. It lies behind the prefix itself,
/// outside of the watch.
const KEY_PREFIX: &str = "~seen/";

/// The file and its contents.
#[derive(Debug)]
pub(super) struct RevisionCheckpoint {
    path: PathBuf,
    /// Name of the key in etcd; random.
    name: String,
    /// The number that etcd certainly has in the key; 0 for none.
    witnessed: Mutex<u64>,
    /// The mark as found at the start.
    pub(super) seen: KnownStore,
}

/// The number in the key of a mark, and the revision that wrote it; zeros if there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Witness {
    number: u64,
    revision: i64,
}

// === impl RevisionCheckpoint ===

impl RevisionCheckpoint {
    /// Reads the file. A missing or unreadable record counts as none.
    ///
    /// # Errors
    /// The file is there and cannot be read, naming it.
    pub(super) fn open(path: &Path) -> Result<Self, String> {
        let read = match std::fs::read_to_string(path) {
            Ok(text) => parse(&text).or_else(|| {
                tracing::warn!(file = %path.display(), "Invalid mark file; a rollback of etcd would go undetected");
                None
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(format!("{}: {error}", path.display())),
        };
        let fresh = || (KnownStore::default(), uuid::Uuid::new_v4().simple().to_string(), 0);
        let (seen, name, witnessed) = read.unwrap_or_else(fresh);
        Ok(Self {
            path: path.to_owned(),
            name,
            witnessed: Mutex::new(witnessed),
            seen,
        })
    }

    /// Switches to `timeline`: the key is not expected to be in the store if it was written in another timeline.
    pub(super) fn adopt(&self, timeline: &Timeline) {
        if self.seen.id != timeline.id {
            *self.witnessed.lock() = 0;
        }
    }

    /// Replaces the file. It is not flushed: after a power failure the previous one is good enough.
    pub(super) fn write(&self, number: u64, identity: &Identity) {
        let Some(timeline) = &identity.timeline else { return };
        let (id, name, witnessed) = (&timeline.id, &self.name, *self.witnessed.lock());
        let text = format!("{number} {id} {:x} {name} {witnessed}\n", identity.cluster);
        let temporary = self.path.with_extension("new");
        let written = std::fs::write(&temporary, text);
        if let Err(error) = written.and_then(|()| std::fs::rename(&temporary, &self.path)) {
            tracing::warn!(file = %self.path.display(), %error, "Failed to write the mark file of etcd");
        }
    }

    /// Reads this coordinator's last number in etcd; `None` if etcd has lost it. Valid only for the store it was
    /// written into.
    pub(super) async fn witness(&self, endpoints: &Endpoints, layout: &Layout) -> Result<Option<Witness>, CallError> {
        let request = RangeRequest {
            key: layout.key(&self.key()),
            ..RangeRequest::default()
        };
        let found = endpoints.range(&request).await?.kvs.into_iter().next();
        let number = |value: &[u8]| std::str::from_utf8(value).ok()?.parse().ok();
        let witness = found.map_or(Witness::default(), |kv| Witness {
            number: number(&kv.value).unwrap_or(0),
            revision: kv.mod_revision,
        });
        Ok((witness.number >= *self.witnessed.lock()).then_some(witness))
    }

    /// Writes `number` into etcd, unless etcd has gone back since the last read.
    async fn write_witness(&self, shared: &EtcdState, number: u64) -> Result<(), StorageError> {
        let EtcdState { endpoints, layout, .. } = shared;
        let before = self.witness(endpoints, layout).await;
        let Some(before) = before.map_err(|error| error::of_read(&error))? else {
            shared.doubted.notify_one();
            return Err(StorageError::Unavailable("it has lost this coordinator's mark".into()));
        };
        let put = Op {
            key: self.key(),
            expect: match before.revision {
                0 => Expect::Absent,
                revision => Expect::At(layout.rv(revision)),
            },
            // Never a lower number: the file may have been copied to another machine, with the name.
            action: Action::Put(
                Bytes::from(number.max(before.number).to_string()).into(),
                Durability::Durable,
            ),
        };
        let ops = [put];
        let answer = endpoints.txn(&layout.request(&ops)).await;
        layout.outcome(&ops, &answer.map_err(|error| error::of_write(&error))?)?;
        *self.witnessed.lock() = number;
        Ok(())
    }

    fn key(&self) -> String {
        format!("{KEY_PREFIX}{}", self.name)
    }
}

/// `<number> <store id> <cluster> <name> <witnessed>`.
fn parse(text: &str) -> Option<(KnownStore, String, u64)> {
    let [number, id, cluster, name, witnessed] = text.split_whitespace().collect::<Vec<_>>()[..] else {
        return None;
    };
    let seen = KnownStore {
        number: number.parse().ok()?,
        id: id.to_owned(),
        cluster: u64::from_str_radix(cluster, 16).ok()?,
    };
    Some((seen, name.to_owned(), witnessed.parse().ok()?))
}

/// Records the published position at intervals until `stop`.
pub(super) async fn run(shared: Arc<EtcdState>, stop: CancellationToken) {
    let mut noted = 0;
    while stop.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_some() {
        let published = *shared.published.borrow();
        if published > noted {
            note(&shared).await;
            noted = published;
        }
    }
}

/// Records the highest position seen, first in etcd and then in the file.
pub(super) async fn note(shared: &EtcdState) {
    let published = *shared.published.borrow();
    let Some(mark) = shared.checkpoint.as_ref().filter(|_| published > 0) else {
        return;
    };
    if let Err(error) = mark
        .write_witness(shared, shared.layout.timeline.number(published))
        .await
    {
        tracing::debug!(%error, "Failed to write the mark in etcd");
    }
    shared.note_mark();
}
