//! Keeps one stream per replica open and moves it between sources make-before-break: the old stream continues until the new
//! one has confirmed the replica's position. Both may deliver events at the same time; those that `C` already covers are
//! ignored. [`cloud_fallback`](yurt_pool_protocol::cloud_fallback) decides what to do when a source cannot resume.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use yurt_collection::Collection;
use yurt_pool_protocol::cloud_fallback::{Begin, CloudFallback, Wanted};
use yurt_pool_protocol::members;
use yurt_pool_protocol::source::Source;
use yurt_runtime::{Clock, TaskGroup};
use yurt_storage::Replica;

use super::PoolData;
use super::reflector::{Reflector, StreamEnd};
use crate::upstream::Upstreams;

/// First pause after a failure.
const BACKOFF_MIN: Duration = Duration::from_millis(200);
/// Longest pause before a replica that fell back to the cloud tries the coordinator again.
const FALLBACK_PAUSE_MAX: Duration = Duration::from_secs(2);
/// Longest pause after failures.
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// First pause when the coordinator has no complete data yet.
const NOT_READY: Duration = Duration::from_millis(500);
/// Maximum of that pause, to which jitter adds up to as much again. So 1,000 hubs with four replicas each send 1,000
/// requests a second at most during a first list over a thin link.
const NOT_READY_MAX: Duration = Duration::from_secs(4);
/// First pause after an oversized update, and the maximum factor by which it grows: up to an hour.
const OVERSIZED: (Duration, u32) = (Duration::from_secs(60), 60);
/// Maximum Retry-After that the hub honours.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// Keeps one replica up to date.
pub struct Follower {
    /// The replica.
    pub replica: Arc<Replica>,
    /// Records signs of life.
    pub data: Arc<PoolData>,
    /// Connections.
    pub upstreams: Upstreams,
    /// The source to follow.
    pub wanted: watch::Receiver<Wanted>,
    /// The pool's name.
    pub pool: String,
    /// Owner of the streams' tasks.
    pub tasks: TaskGroup,
    /// Clock.
    pub clock: Clock,
}

/// A running stream; dropping it ends it.
struct Running {
    source: Source,
    confirmed: oneshot::Receiver<()>,
    ended: oneshot::Receiver<StreamEnd>,
    _cancel: DropGuard,
}

/// Back-off that grows with consecutive failures.
pub(crate) struct Backoff(Duration);

// === impl Follower ===

impl Follower {
    /// Runs until the hub stops.
    pub async fn run(mut self) {
        let token = self.tasks.token();
        let (mut active, mut next): (Option<Running>, Option<Running>) = (None, None);
        let mut fallback = CloudFallback::default();
        let mut backoff = Backoff::default();
        let mut distrusted = self.data.distrust().changes();
        loop {
            let _ = distrusted.borrow_and_update();
            let general = *self.wanted.borrow_and_update();
            let wanted = self.instead(general);
            if wanted != general {
                // Later data of the coordinator must not be applied.
                active.take_if(|running| running.source == Source::Coordinator);
            }
            let at_cloud = active.as_ref().is_some_and(|running| running.source == Source::Cloud);
            let (target, begin) = fallback.next(wanted, at_cloud);
            self.drop_unwanted(target, &mut active, &mut next);
            let following = active.iter().chain(&next).any(|running| running.source == target);
            if !following && target != Source::None {
                next = self.open(target, begin, wanted);
            }
            let (source, ended) = tokio::select! {
                () = token.cancelled() => return,
                changed = self.wanted.changed() => if changed.is_err() { return } else { continue },
                Ok(()) = distrusted.changed() => continue,
                event = confirmed_or_ended(&mut next) => match event {
                    Some(ended) => (next.take().map_or(target, |running| running.source), ended),
                    None => {
                        active = next.take();
                        fallback.confirmed(target);
                        backoff.0 = BACKOFF_MIN;
                        self.data.sources().confirmed(self.replica.name(), target);
                        self.data.failures().works(self.replica.name());
                        let (collection, source) = (self.replica.name(), target.as_str());
                        tracing::info!(collection, source, "Source confirmed");
                        continue;
                    }
                },
                ended = ended(&mut active) => (active.take().map_or(target, |running| running.source), ended),
            };
            let is_lost = matches!(
                ended,
                StreamEnd::Failed(_)
                    | StreamEnd::Silent(_)
                    | StreamEnd::Refused(_)
                    | StreamEnd::Denied(_)
                    | StreamEnd::Oversized(_)
                    | StreamEnd::Unstored(_)
                    | StreamEnd::Unreadable(_)
            );
            if is_lost && active.is_none() {
                self.data.sources().lost(self.replica.name());
            }
            let pause = self.after(source, ended, wanted, &mut fallback, &mut backoff);
            let is_asked_for = tokio::select! {
                is_asked_for = self.pause(pause, general.source, &token) => is_asked_for,
                Ok(()) = distrusted.changed() => Some(()),
            };
            if is_asked_for.is_none() {
                return;
            }
        }
    }

    /// Source for this replica that replaces the `general` one.
    fn instead(&self, general: Wanted) -> Wanted {
        let now = self.clock.boot();
        self.data.distrust().instead(self.replica.name(), general, now)
    }

    fn note_failure(&self, source: Source, why: &str) {
        let why = format!("{}: {why}", source.as_str());
        self.data.failures().unanswered(self.replica.name(), &why);
    }

    /// Applies the end of a stream of `source` and returns the pause before the next one.
    fn after(
        &self,
        source: Source,
        ended: StreamEnd,
        wanted: Wanted,
        fallback: &mut CloudFallback,
        backoff: &mut Backoff,
    ) -> Duration {
        let (collection, name) = (self.replica.name(), source.as_str());
        match ended {
            // A stream that ended normally is reopened immediately: the source is not lost.
            StreamEnd::Closed | StreamEnd::Overtaken => backoff.short(),
            StreamEnd::Expired => {
                // Only this hub reads the members.
                let has_copy =
                    collection != members::COLLECTION && self.replica.collection().read(Collection::is_complete);
                if fallback.expired(source, wanted, has_copy) {
                    tracing::info!(
                        collection,
                        "The coordinator cannot resume this replica; resuming at the cloud"
                    );
                    self.data.history().reopen();
                    return wanted.fallback.unwrap_or_default() + backoff.short();
                }
                match fallback {
                    CloudFallback::Taken { .. } => backoff.grow().min(FALLBACK_PAUSE_MAX),
                    CloudFallback::None | CloudFallback::List(_) => backoff.short(),
                }
            }
            StreamEnd::OtherHistory => {
                fallback.contradicted(source);
                backoff.short()
            }
            StreamEnd::Oversized(why) => {
                let row = self.data.does_not_fit(collection, &why);
                // A later list may fit. Resuming event by event would never reach it.
                fallback.contradicted(source);
                after_oversized(row)
            }
            StreamEnd::NotReady(after) => {
                self.note_failure(source, "requested a retry later");
                fallback.failed(source);
                backoff.asked_for(source, after)
            }
            StreamEnd::Interrupted(why) => {
                tracing::debug!(collection, source = name, why, "List interrupted");
                backoff.0 = BACKOFF_MIN;
                backoff.short()
            }
            StreamEnd::Refused(why)
            | StreamEnd::Denied(why)
            | StreamEnd::Unreadable(why)
            | StreamEnd::Unstored(why) => {
                let why = format!("{name}: {why}");
                self.data.failures().refused(collection, &why);
                fallback.failed(source);
                backoff.grow()
            }
            StreamEnd::Failed(why) | StreamEnd::Silent(why) => {
                tracing::debug!(collection, source = name, why, "Reflector failed");
                self.note_failure(source, &why);
                fallback.failed(source);
                backoff.grow()
            }
        }
    }

    /// Ends the stream of a source that is no longer wanted, unless the wanted source has not confirmed yet.
    fn drop_unwanted(&self, target: Source, active: &mut Option<Running>, next: &mut Option<Running>) {
        if next.as_ref().is_some_and(|running| running.source != target) {
            *next = None;
        }
        if target == Source::None && active.take().is_some() {
            self.data.sources().lost(self.replica.name());
        }
    }

    /// Pauses; ends early when a source other than `source` is wanted. Returns `None` when the hub stops.
    async fn pause(&mut self, pause: Duration, source: Source, token: &CancellationToken) -> Option<()> {
        let mut wanted = self.wanted.clone();
        tokio::select! {
            () = token.cancelled() => None,
            _ = wanted.wait_for(|wanted| wanted.source != source) => Some(()),
            () = tokio::time::sleep(pause) => Some(()),
        }
    }

    fn open(&self, source: Source, begin: Begin, wanted: Wanted) -> Option<Running> {
        let place = self.upstreams.cloud.current();
        let client = match source {
            Source::None => return None,
            Source::Cloud => self.upstreams.cloud.at(place).streams.clone(),
            Source::Coordinator => self.upstreams.coordinator.as_ref()?.shared.clone(),
        };
        let (confirm, confirmed) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let stream = Reflector {
            source,
            client,
            traffic: self.upstreams.cloud.traffic().clone(),
            place,
            replica: self.replica.clone(),
            data: self.data.clone(),
            pool: self.pool.clone(),
            random: fastrand::u64(..),
            confirmed: Some(confirm),
            opened: None,
            generation: self.replica.collection().read(Collection::generation),
            has_fallback: begin != Begin::List && wanted.fallback.is_some() && source == Source::Coordinator,
            selected: None,
        };
        let token = self.tasks.token().child_token();
        let cancel = token.clone().drop_guard();
        let down = match source {
            Source::Cloud => self.upstreams.cloud.at(place).availability.down(),
            _ => CancellationToken::new(),
        };
        self.tasks.spawn("replica-stream", async move {
            let stream = async {
                // A stream of a server that is down may stay open without data, while another server has them.
                let ended = down.run_until_cancelled(stream.run(begin)).await;
                ended.unwrap_or_else(|| match begin {
                    Begin::List => StreamEnd::Failed("the server is down".to_owned()),
                    _ => StreamEnd::Closed,
                })
            };
            if let Some(result) = token.run_until_cancelled(stream).await {
                // The follower is gone when the hub stops.
                let _ = end.send(result);
            }
        });
        Some(Running {
            source,
            confirmed,
            ended,
            _cancel: cancel,
        })
    }
}

/// Pause after the `row`th oversized update in a row.
pub(crate) fn after_oversized(row: u32) -> Duration {
    OVERSIZED.0 * 2_u32.saturating_pow(row.saturating_sub(1)).min(OVERSIZED.1)
}

/// Waits until `running` has confirmed (`None`) or ended (its end); never resolves without a stream.
async fn confirmed_or_ended(running: &mut Option<Running>) -> Option<StreamEnd> {
    let Some(running) = running else {
        return std::future::pending().await;
    };
    tokio::select! {
        biased;
        Ok(()) = &mut running.confirmed => None,
        ended = &mut running.ended => Some(ended.unwrap_or(StreamEnd::Closed)),
    }
}

async fn ended(running: &mut Option<Running>) -> StreamEnd {
    match running {
        Some(running) => (&mut running.ended).await.unwrap_or(StreamEnd::Closed),
        None => std::future::pending().await,
    }
}

// === impl Backoff ===

impl Default for Backoff {
    fn default() -> Self {
        Self(BACKOFF_MIN)
    }
}

impl Backoff {
    /// Pause after a normal end: short, but long enough to avoid a busy loop.
    pub(crate) fn short(&self) -> Duration {
        Duration::from_millis(20 + fastrand::u64(..) % 80)
    }

    /// Pause that the server asked for, `after` if it sent a duration. A coordinator without complete data is near and has
    /// it soon.
    pub(crate) fn asked_for(&mut self, source: Source, after: Option<Duration>) -> Duration {
        let asked = after.unwrap_or_default().min(RETRY_AFTER_MAX);
        match source {
            Source::Cloud => asked + self.grow(),
            Source::Coordinator | Source::None => {
                self.0 = self.0.clamp(NOT_READY, NOT_READY_MAX);
                asked.max(self.grow())
            }
        }
    }

    /// Pause after a failure: longer after each.
    pub(crate) fn grow(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (self.0 * 2).min(BACKOFF_MAX);
        pause + pause.mul_f64((fastrand::u64(..) % 1000) as f64 / 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_cloud_is_left_alone_as_long_as_it_asks_for() {
        let mut backoff = Backoff(BACKOFF_MIN);
        let asked = Duration::from_secs(7);
        let first = backoff.asked_for(Source::Cloud, Some(asked));
        assert!(first > asked, "not all hubs at the same moment: {first:?}");
        let for_ever = Some(Duration::from_secs(1 << 40));
        assert!(backoff.asked_for(Source::Cloud, for_ever) <= RETRY_AFTER_MAX + 2 * BACKOFF_MAX);
        let (mut unsaid, mut last) = (Backoff(BACKOFF_MIN), Duration::ZERO);
        for _ in 0..10 {
            last = unsaid.asked_for(Source::Cloud, None);
        }
        assert!(last >= BACKOFF_MAX, "without a Retry-After the pauses grow: {last:?}");
    }

    #[test]
    fn coordinator_without_data_is_asked_less_and_less() {
        let mut backoff = Backoff(BACKOFF_MIN);
        let first = backoff.asked_for(Source::Coordinator, None);
        assert!((NOT_READY..=2 * NOT_READY).contains(&first), "it is near: {first:?}");
        for _ in 0..10 {
            backoff.asked_for(Source::Coordinator, None);
        }
        let pauses: Vec<_> = (0..100).map(|_| backoff.asked_for(Source::Coordinator, None)).collect();
        assert!(
            pauses
                .iter()
                .all(|pause| (NOT_READY_MAX..=2 * NOT_READY_MAX).contains(pause)),
            "{pauses:?}"
        );
        assert!(
            pauses.iter().any(|pause| *pause != pauses[0]),
            "not all hubs at the same moment"
        );
        let (hubs, copies) = (1_000, 4);
        assert!(hubs * copies / NOT_READY_MAX.as_secs() <= 1_000);
        let asked = Duration::from_secs(20);
        assert!(backoff.asked_for(Source::Coordinator, Some(asked)) >= asked);
        let for_ever = Some(Duration::from_secs(1 << 40));
        assert_eq!(backoff.asked_for(Source::Coordinator, for_ever), RETRY_AFTER_MAX);
    }
}
