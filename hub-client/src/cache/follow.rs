//! Keeps one cached selection up to date: one stream from the cloud, with the rights of a caller, for any number of
//! local clients.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot, watch};
use yurt_pool_protocol::cloud_fallback::Begin;
use yurt_pool_protocol::source::Source;

use super::described::Described;
use super::entry::{Entry, Reader, StreamState};
use crate::health::CloudReach;
use crate::replicas::PoolData;
use crate::replicas::follower::{Backoff, SETTLES_AFTER, after_oversized};
use crate::replicas::reflector::{Reflector, Selected, StreamEnd};
use crate::upstream::Cloud;

/// Maximum streams of the node's selections that begin at the same time. When the cloud comes back, hundreds resume;
/// each waits until one of these is confirmed or has failed.
const BEGINNING_MAX: usize = 32;
/// The same for selections that are read with tokens. A server that does not answer pods delays nothing of the node.
const BEGINNING_OF_TOKENS_MAX: usize = 8;

/// Bounds the streams that begin at the same time. Clones share the bounds.
#[derive(Clone)]
pub(super) struct Turns {
    node: Arc<Semaphore>,
    tokens: Arc<Semaphore>,
}

/// Reason why a selection is no longer followed.
pub(super) enum FollowEnd {
    /// The hub stops.
    Stopped,
    /// The cloud describes its kind in another way.
    Redefined,
}

/// Keeps one selection up to date.
pub(super) struct Following {
    pub(super) entry: Arc<Entry>,
    pub(super) described: Arc<Described>,
    pub(super) data: Arc<PoolData>,
    pub(super) cloud: Arc<Cloud>,
    pub(super) reach: watch::Receiver<CloudReach>,
    /// Wakes the cloud's prober.
    pub(super) wake: Arc<Notify>,
    /// Bound of the streams that begin; `None` for what keeps the node running.
    pub(super) turns: Option<Turns>,
}

// === impl Turns ===

impl Default for Turns {
    fn default() -> Self {
        Self {
            node: Arc::new(Semaphore::new(BEGINNING_MAX)),
            tokens: Arc::new(Semaphore::new(BEGINNING_OF_TOKENS_MAX)),
        }
    }
}

impl Turns {
    /// Waits for the turn of a stream with the rights of `reader`, in the order of the calls.
    async fn turn(&self, reader: &Reader) -> Option<OwnedSemaphorePermit> {
        let bound = match reader {
            Reader::Node => &self.node,
            Reader::Token(_) => &self.tokens,
        };
        // Nothing closes it.
        bound.clone().acquire_owned().await.ok()
    }
}

// === impl Following ===

impl Following {
    /// Runs until it is dropped, its kind is another one, or the hub stops.
    pub(super) async fn run(mut self) -> FollowEnd {
        let (mut begin, mut backoff) = (Begin::Resume, Backoff::default());
        let name = self.entry.replica().name().to_owned();
        let mut may_be_redefined = false;
        loop {
            let reader = self.reader().await;
            if self.reach.wait_for(|reach| !reach.is_failing()).await.is_err() {
                return FollowEnd::Stopped;
            }
            let mut turn = match &self.turns {
                Some(turns) => turns.turn(&reader).await,
                None => None,
            };
            if may_be_redefined {
                match self.described.has_changed(&self.entry, &reader).await {
                    Ok(true) => return FollowEnd::Redefined,
                    Ok(false) => may_be_redefined = false,
                    Err(why) => tracing::debug!(collection = name, why, "Failed to describe a kind"),
                }
            }
            let (confirm, confirmed) = oneshot::channel();
            // The selection goes on at another server, if there is one.
            let down = self.cloud.server().availability.down();
            // Boxed: this task would contain it three times, and there are hundreds of tasks.
            let stream = Box::pin(self.reflector(&reader, confirm).run(begin));
            let mut stream = pin!(async { down.run_until_cancelled(stream).await.unwrap_or(StreamEnd::ServerDown) });
            let (ended, is_early) = tokio::select! {
                biased;
                Ok(()) = confirmed => {
                    turn.take();
                    begin = Begin::Resume;
                    backoff.confirmed();
                    self.data.sources().confirmed(&name, Source::Cloud);
                    self.entry.set_state(StreamState::Live);
                    match tokio::time::timeout(SETTLES_AFTER, &mut stream).await {
                        Ok(ended) => (ended, true),
                        Err(_) => {
                            backoff.settled();
                            self.data.failures().works(&name);
                            (stream.await, false)
                        }
                    }
                }
                ended = &mut stream => (ended, false),
            };
            drop(turn);
            may_be_redefined |= self.may_be_redefined(&ended);
            let pause = self.after(&name, &reader, ended, is_early, &mut begin, &mut backoff);
            let comes_back = async {
                // The sender lives as long as the hub.
                let _ = self.reach.changed().await;
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = comes_back => {}
            }
        }
    }

    /// Waits for a reader. If there is none when the cloud returns, watches that began without the cloud end: they
    /// would stay silent.
    async fn reader(&mut self) -> Reader {
        loop {
            let was_failing = self.reach.borrow_and_update().is_failing();
            tokio::select! {
                biased;
                reader = self.entry.reader() => return reader,
                Ok(()) = self.reach.changed() => {}
                // Without it, the hub stops.
                else => std::future::pending().await,
            }
            if was_failing && !self.reach.borrow().is_failing() {
                self.entry.end_watches();
            }
        }
    }

    /// True if the stream may have ended because the kind was deleted, and perhaps made again with other names or
    /// another scope.
    fn may_be_redefined(&self, ended: &StreamEnd) -> bool {
        let is_of_a_kind = match ended {
            StreamEnd::Denied(status, _) => *status == StatusCode::NOT_FOUND,
            StreamEnd::Expired | StreamEnd::Unreadable(_) => true,
            _ => false,
        };
        is_of_a_kind && self.entry.key().built_in().is_none()
    }

    fn reflector(&self, reader: &Reader, confirm: oneshot::Sender<()>) -> Reflector {
        let place = self.cloud.current();
        let server = self.cloud.at(place);
        let (lane, authorization) = match reader {
            Reader::Node => (&server.selections, None),
            Reader::Token(token) => (&server.token_selections, Some(token.clone())),
        };
        let (key, replica) = (self.entry.key(), self.entry.replica());
        Reflector {
            source: Source::Cloud,
            client: server.streams.clone(),
            traffic: self.cloud.traffic().clone(),
            place,
            replica: replica.clone(),
            data: self.data.clone(),
            pool: String::new(),
            random: fastrand::u64(..),
            confirmed: Some(confirm),
            opened: None,
            generation: replica.collection().read(yurt_collection::Collection::generation),
            has_fallback: false,
            selected: Some(Selected {
                path: key.path(),
                query: key.query(),
                authorization,
                lane: lane.clone(),
            }),
        }
    }

    /// Applies the end of a stream and returns the pause before the next one. `is_early` is true if it was confirmed
    /// and did not settle.
    fn after(
        &self,
        name: &str,
        reader: &Reader,
        ended: StreamEnd,
        is_early: bool,
        begin: &mut Begin,
        backoff: &mut Backoff,
    ) -> Duration {
        let failures = self.data.failures();
        let least = if is_early {
            backoff.ended_early(&ended)
        } else {
            Duration::ZERO
        };
        let (state, pause) = match ended {
            StreamEnd::Closed | StreamEnd::Overtaken | StreamEnd::ServerDown => {
                if self.entry.state() == StreamState::Live {
                    // The next stream may begin hours later.
                    self.entry.set_state(StreamState::Lost);
                    return backoff.short().max(least);
                }
                (StreamState::Lost, backoff.grow())
            }
            StreamEnd::Expired | StreamEnd::OtherHistory => {
                *begin = Begin::List;
                (StreamState::Lost, backoff.short())
            }
            StreamEnd::NotReady(after) => (StreamState::Lost, backoff.asked_for(Source::Cloud, after)),
            StreamEnd::Interrupted(why) | StreamEnd::Failed(why) | StreamEnd::Silent(why) => {
                tracing::debug!(collection = name, why, "Reflector failed");
                self.wake.notify_one();
                (StreamState::Lost, backoff.grow())
            }
            StreamEnd::Denied(status, why) => {
                tracing::debug!(
                    collection = name,
                    why,
                    "The cloud refused a credential for a cached selection"
                );
                self.entry.refuse(reader);
                if status == StatusCode::FORBIDDEN {
                    let message = why.strip_prefix(&format!("{status}: ")).unwrap_or(&why);
                    self.entry.note_denial(reader, message);
                }
                let state = match status {
                    // The credential may only be old.
                    StatusCode::UNAUTHORIZED => StreamState::Refused,
                    _ => StreamState::Denied,
                };
                // Hundreds of clients may have it tried again at every read.
                (state, backoff.grow())
            }
            StreamEnd::Oversized(why) => {
                *begin = Begin::List;
                let row = self.data.does_not_fit(name, &why);
                (StreamState::Refused, after_oversized(row))
            }
            StreamEnd::Refused(why) | StreamEnd::Unreadable(why) | StreamEnd::Unstored(why) => {
                failures.refused(name, &why);
                (StreamState::Refused, backoff.grow())
            }
        };
        self.data.sources().lost(name);
        self.entry.set_state(state);
        if state.is_refused() && !self.reach.borrow().is_lost() {
            self.entry.end_watches();
        }
        pause.max(least)
    }
}

#[cfg(test)]
mod tests {
    use yurt_runtime::Clock;
    use yurt_test_support::TestDir;

    use super::super::key::Key;
    use super::*;

    const PODS: &str = "/api/v1/pods";

    fn following(folder: &TestDir) -> Following {
        let (key, _) = Key::parse(PODS).unwrap();
        let data = PoolData::open(folder.path(), "", usize::MAX, Clock::system()).unwrap();
        let replica = data.replicas().create(PODS, key.built_in().unwrap());
        let cloud = Arc::new(Cloud::for_test("http://127.0.0.1:9"));
        Following {
            entry: Arc::new(Entry::new(key, replica, true)),
            described: Arc::new(Described::new(cloud.clone())),
            data: Arc::new(data),
            cloud,
            reach: watch::Sender::default().subscribe(),
            wake: Arc::default(),
            turns: None,
        }
    }

    /// A silent link ends the stream like a normal end does. Hours may pass until the next one.
    #[test]
    fn selection_is_not_live_between_two_streams() {
        let folder = TestDir::new();
        let following = following(&folder);
        let (mut begin, mut backoff) = (Begin::Resume, Backoff::default());
        for ended in [StreamEnd::Closed, StreamEnd::Overtaken] {
            following.entry.set_state(StreamState::Live);
            following.after(PODS, &Reader::Node, ended, true, &mut begin, &mut backoff);
            assert_eq!(following.entry.state(), StreamState::Lost);
            assert!(following.entry.is_followed(), "the next one is due at once");
        }
    }

    #[test]
    fn cloud_that_refuses_a_selection_is_asked_less_and_less() {
        let folder = TestDir::new();
        let following = following(&folder);
        let (mut begin, mut backoff) = (Begin::Resume, Backoff::default());
        let mut pause = Duration::ZERO;
        for _ in 0..10 {
            let denied = StreamEnd::Denied(StatusCode::FORBIDDEN, "no relationship found".to_owned());
            pause = following.after(PODS, &Reader::Node, denied, false, &mut begin, &mut backoff);
        }
        assert!(pause >= Duration::from_secs(10), "{pause:?}");
    }

    #[test]
    fn selection_whose_streams_end_as_soon_as_they_are_open_is_asked_less_and_less() {
        let folder = TestDir::new();
        let following = following(&folder);
        let ends: [fn() -> StreamEnd; 3] = [
            || StreamEnd::Closed,
            || StreamEnd::Expired,
            || StreamEnd::Unreadable("no object".to_owned()),
        ];
        for ended in ends {
            let (mut begin, mut backoff) = (Begin::Resume, Backoff::default());
            let mut pause = || {
                backoff.confirmed();
                following.entry.set_state(StreamState::Live);
                following.after(PODS, &Reader::Node, ended(), true, &mut begin, &mut backoff)
            };
            let pauses: Vec<_> = (0..20).map(|_| pause()).collect();
            let soon = Duration::from_millis(400);
            assert!(
                pauses[..2].iter().all(|pause| *pause < soon),
                "a link may flap: {pauses:?}"
            );
            assert!(pauses[19] >= Duration::from_secs(1), "{pauses:?}");
        }
    }
}
