//! Keeps one cached selection up to date: one stream from the cloud, with the rights of a caller, for any number of
//! local clients.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot, watch};
use yurt_pool_protocol::cloud_fallback::Begin;
use yurt_pool_protocol::source::Source;

use super::entry::{Entry, Reader, StreamState};
use crate::health::CloudReach;
use crate::replicas::PoolData;
use crate::replicas::follower::{Backoff, after_oversized};
use crate::replicas::reflector::{Reflector, Selected, StreamEnd};
use crate::upstream::Cloud;

/// Maximum streams of the node's selections that begin at the same time. When the cloud comes back, hundreds resume; each
/// waits until one of these is confirmed or has failed.
const BEGINNING_MAX: usize = 32;
/// The same for selections that are read with tokens. A server that does not answer pods delays nothing of the node.
const BEGINNING_OF_TOKENS_MAX: usize = 8;

/// Bounds the streams that begin at the same time. Clones share the bounds.
#[derive(Clone)]
pub(super) struct Turns {
    node: Arc<Semaphore>,
    tokens: Arc<Semaphore>,
}

/// Keeps one selection up to date.
pub(super) struct Following {
    pub(super) entry: Arc<Entry>,
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
    /// Runs until it is dropped, or the hub stops.
    pub(super) async fn run(mut self) {
        let (mut begin, mut backoff) = (Begin::Resume, Backoff::default());
        let name = self.entry.replica().name().to_owned();
        loop {
            let reader = self.entry.reader().await;
            if self.reach.wait_for(|reach| !reach.is_failing()).await.is_err() {
                return;
            }
            let mut turn = match &self.turns {
                Some(turns) => turns.turn(&reader).await,
                None => None,
            };
            let (confirm, confirmed) = oneshot::channel();
            // The selection goes on at another server, if there is one.
            let down = self.cloud.server().availability.down();
            // Boxed: this task would contain it three times, and there are hundreds of tasks.
            let stream = Box::pin(self.reflector(&reader, confirm).run(begin));
            let mut stream = pin!(async { down.run_until_cancelled(stream).await.unwrap_or(StreamEnd::Closed) });
            let ended = tokio::select! {
                biased;
                Ok(()) = confirmed => {
                    turn.take();
                    (begin, backoff) = (Begin::Resume, Backoff::default());
                    self.data.sources().confirmed(&name, Source::Cloud);
                    self.data.failures().works(&name);
                    self.entry.set_state(StreamState::Live);
                    stream.await
                }
                ended = &mut stream => ended,
            };
            drop(turn);
            let pause = self.after(&name, &reader, ended, &mut begin, &mut backoff);
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

    /// Applies the end of a stream and returns the pause before the next one.
    fn after(
        &self,
        name: &str,
        reader: &Reader,
        ended: StreamEnd,
        begin: &mut Begin,
        backoff: &mut Backoff,
    ) -> Duration {
        let failures = self.data.failures();
        let (state, pause) = match ended {
            StreamEnd::Closed | StreamEnd::Overtaken => {
                if self.entry.state() == StreamState::Live {
                    // The next stream may begin hours later.
                    self.entry.set_state(StreamState::Lost);
                    return backoff.short();
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
            StreamEnd::Denied(why) => {
                tracing::debug!(
                    collection = name,
                    why,
                    "The cloud refused a credential for a cached selection"
                );
                self.entry.refuse(reader);
                (StreamState::Refused, backoff.short())
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
        pause
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
        Following {
            entry: Arc::new(Entry::new(key, replica, true)),
            data: Arc::new(data),
            cloud: Arc::new(Cloud::for_test("http://127.0.0.1:9")),
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
            following.after(PODS, &Reader::Node, ended, &mut begin, &mut backoff);
            assert_eq!(following.entry.state(), StreamState::Lost);
            assert!(following.entry.is_followed(), "the next one is due at once");
        }
    }
}
