//! Search for the store at a start. It waits for etcd without limit and creates the store's record on first use. It
//! begins a new timeline when etcd has another history than before.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use yurt_runtime::Clock;
use yurt_runtime::clock::UnixTime;

use super::endpoints::Endpoints;
use super::grpc::CallError;
use super::revision_checkpoint::RevisionCheckpoint;
use super::timeline::{KnownStore, MARGIN, Timeline};
use super::txn::Layout;
use super::wire::RangeRequest;
use super::{Identity, OpenError};
use crate::backend::{Action, Durability, Expect, Op};

/// Pause between attempts.
const PAUSE: Duration = Duration::from_secs(1);
/// Interval of log lines about failed attempts.
const TELL_EVERY: Duration = Duration::from_secs(15);
/// Key of the timeline. It lies behind the prefix itself, outside of the watch.
const ID_KEY: &str = "~store-id";

/// Pauses of one wait for etcd.
#[derive(Default)]
pub(super) struct Wait {
    began: Option<Instant>,
    told: Option<Instant>,
}

// === impl Wait ===

impl Wait {
    /// Pauses after a failed attempt. Logs failures at intervals.
    ///
    /// # Errors
    /// `error`, if waiting does not resolve it.
    pub(super) async fn after(&mut self, error: CallError) -> Result<(), CallError> {
        if error.is_lasting() {
            return Err(error);
        }
        let began = *self.began.get_or_insert_with(Instant::now);
        if self.told.is_none_or(|at| at.elapsed() >= TELL_EVERY) {
            self.told = Some(Instant::now());
            let seconds = began.elapsed().as_secs();
            tracing::warn!(%error, seconds, "Waiting for etcd; nothing is served until it answers");
        }
        tokio::time::sleep(PAUSE).await;
        Ok(())
    }
}

/// Returns the store's identity. `layout` uses its timeline afterwards.
///
/// # Errors
/// Only a cause that waiting does not resolve: every member of etcd rejects this client, or is too old.
pub(super) async fn find(
    endpoints: &Endpoints,
    layout: &mut Layout,
    checkpoint: Option<&RevisionCheckpoint>,
) -> Result<Identity, OpenError> {
    let mut wait = Wait::default();
    loop {
        match settle(endpoints, layout, checkpoint).await {
            Ok(Some(identity)) => {
                if let (Some(checkpoint), Some(timeline)) = (checkpoint, &identity.timeline) {
                    checkpoint.adopt(timeline);
                }
                return Ok(identity);
            }
            // Another coordinator was faster, or the record is about to be written.
            Ok(None) => {}
            Err(error) => wait.after(error).await.map_err(|error| match error {
                CallError::Outdated(_) => OpenError::Outdated(error.to_string()),
                _ => OpenError::Refused(error.to_string()),
            })?,
        }
    }
}

/// Reads the store's present identity and position.
pub(super) async fn look(endpoints: &Endpoints, layout: &Layout) -> Result<Identity, CallError> {
    let request = RangeRequest {
        key: layout.key(ID_KEY),
        ..RangeRequest::default()
    };
    let answer = endpoints.range(&request).await?;
    let header = answer.header.unwrap_or_default();
    let record = answer.kvs.into_iter().next();
    let timeline = record.as_ref().map(|kv| {
        let text = String::from_utf8_lossy(&kv.value);
        Timeline::parse(&text).ok_or_else(|| CallError::Malformed(format!("the store's record is {text:?}")))
    });
    Ok(Identity {
        timeline: timeline.transpose()?,
        written: record.map_or(0, |kv| kv.mod_revision),
        cluster: header.cluster_id,
        revision: header.revision,
    })
}

/// One attempt; `None` if the store has to be read again.
async fn settle(
    endpoints: &Endpoints,
    layout: &mut Layout,
    checkpoint: Option<&RevisionCheckpoint>,
) -> Result<Option<Identity>, CallError> {
    endpoints.require_version().await?;
    let found = look(endpoints, layout).await?;
    let nothing = KnownStore::default();
    let seen = checkpoint.map_or(&nothing, |checkpoint| &checkpoint.seen);
    let id = uuid::Uuid::new_v4().to_string();
    let begin = |above: u64| Timeline::begin(id, found.cluster, found.revision, above.max(micros()));
    let (next, expect) = match &found.timeline {
        None => {
            let above = match seen.number {
                0 => 0,
                number => number.saturating_add(MARGIN),
            };
            // Of several coordinators that start together, one wins.
            (begin(above), Expect::Absent)
        }
        Some(timeline) => {
            layout.timeline = timeline.clone();
            let expect = Expect::At(layout.rv(found.written));
            let why = match (timeline.is_over(found.cluster, found.revision, seen), checkpoint) {
                (Some(why), _) => Some(why),
                (None, Some(checkpoint)) if seen.id == timeline.id => {
                    let kept = checkpoint.witness(endpoints, layout).await?.is_some();
                    (!kept).then_some("etcd has lost this coordinator's mark")
                }
                (None, _) => None,
            };
            match why {
                Some(why) => {
                    let (shown, is_at) = (seen.number, timeline.number(found.revision));
                    tracing::error!(
                        why,
                        shown,
                        is_at,
                        "etcd has another history than before; resourceVersions continue above those shown and all clients relist"
                    );
                    (begin(timeline.highest(found.revision, seen)), expect)
                }
                None if timeline.cluster != 0 => return Ok(Some(found)),
                None => {
                    let cluster = found.cluster;
                    (
                        Timeline {
                            cluster,
                            ..timeline.clone()
                        },
                        expect,
                    )
                }
            }
        }
    };
    let record = Op {
        key: ID_KEY.to_owned(),
        expect,
        action: Action::Put(Bytes::from(next.to_text()).into(), Durability::Durable),
    };
    endpoints.txn(&layout.request(&[record])).await?;
    Ok(None)
}

/// The time of day.
fn micros() -> u64 {
    let now = Clock::system().unix().since(UnixTime::default());
    u64::try_from(now.as_micros()).unwrap_or(0)
}
