//! The one watch that publishes everything. It resumes at its last position, at any member, without end. etcd accepts a
//! watch from a revision that it has not reached, so a store that went back shows in its answers' revisions only.
//!
//! ```text
//!   verify ──► open at last+1 ──► events, progress ──► broken or silent ──► verify, at another member
//!                    └─► compacted, or a message is too large ──► reload the state, publish the difference ──► open
//! ```
//! A store that went back in time ends the task, and with it the process: its readers have to start over.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::grpc::{CallError, Duplex};
use super::load;
use super::wire::{
    EVENT_DELETE, Event, WatchAsk, WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse,
};
use super::{EtcdState, Unverified};
use crate::backend::{Committed, Sink};

/// Time limit for opening a watch.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of progress requests on a quiet watch.
const PROGRESS_EVERY: Duration = Duration::from_secs(3);
/// Maximum silence of a watch before it is abandoned.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Maximum interval between checks of the store's record.
const VERIFY_EVERY: Duration = Duration::from_secs(10);
/// First pause after a failure; doubled up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// Longest pause between attempts.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Publishes etcd's events; see the module header.
pub(super) struct WatchLoop {
    pub(super) shared: Arc<EtcdState>,
    pub(super) sink: Arc<dyn Sink>,
    /// Everything up to this revision is published.
    pub(super) last: i64,
    pub(super) stop: CancellationToken,
}

/// Reason why a watch ended.
#[derive(Debug)]
enum End {
    Stopped,
    /// It cannot resume at its position.
    Reload(String),
    Broken(String),
}

/// Changes of one revision that have arrived so far.
#[derive(Default)]
struct Pending {
    revision: i64,
    changes: Vec<Committed>,
}

/// Verifies at intervals, until `stop`, that the store is still the same. A watch that stays open does not show that
/// another coordinator has begun a new timeline.
pub(super) async fn verify(shared: Arc<EtcdState>, stop: CancellationToken) {
    while stop
        .run_until_cancelled(tokio::time::sleep(VERIFY_EVERY))
        .await
        .is_some()
    {
        // A contradiction wakes the watch. Another task handles an etcd that does not answer.
        drop(shared.identity().await);
    }
}

// === impl WatchLoop ===

impl WatchLoop {
    /// Publishes until the stop; ends earlier only if the store is another one.
    pub(super) async fn run(mut self) {
        let mut pause = PAUSE_MIN;
        let mut attempted = Instant::now();
        while !self.stop.is_cancelled() {
            let ended = match self.verify().await {
                Ok(()) => self.watch().await,
                Err(Unverified::Unanswered(error)) => {
                    self.shared.set_trouble(Some(error.to_string()));
                    End::Broken(error.to_string())
                }
                Err(Unverified::Other(why)) => {
                    tracing::error!(
                        why,
                        "etcd holds another store than before: stopping, clients relist after the restart"
                    );
                    self.shared.note_mark();
                    return;
                }
            };
            match ended {
                End::Stopped => return,
                End::Reload(why) => {
                    if let Err(error) = self.reload(&why).await {
                        self.shared.set_trouble(Some(error.to_string()));
                        tracing::warn!(%error, "Failed to reload the state from etcd");
                    }
                }
                End::Broken(why) => tracing::warn!(why, at = self.last, "Watch of etcd ended, resuming"),
            }
            if attempted.elapsed() > PAUSE_MAX {
                pause = PAUSE_MIN;
            }
            attempted = Instant::now();
            let _ = self.stop.run_until_cancelled(tokio::time::sleep(pause)).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Checks that this still is the published history.
    async fn verify(&self) -> Result<(), Unverified> {
        self.shared.identity().await?;
        let EtcdState {
            endpoints,
            layout,
            checkpoint,
            ..
        } = &*self.shared;
        let Some(checkpoint) = checkpoint else { return Ok(()) };
        let witness = checkpoint.witness(endpoints, layout).await;
        match witness.map_err(Unverified::Unanswered)? {
            Some(_) => Ok(()),
            None => Err(Unverified::Other("etcd has lost this coordinator's mark".into())),
        }
    }

    async fn watch(&mut self) -> End {
        let shared = self.shared.clone();
        let (at, member) = shared.endpoints.pick();
        let (key, range_end) = shared.layout.bounds();
        let create = WatchCreateRequest {
            key,
            range_end,
            start_revision: self.last + 1,
            progress_notify: true,
            filters: Vec::new(),
            prev_kv: true,
            fragment: true,
        };
        let opened = tokio::time::timeout(OPEN_TIMEOUT, member.open_watch(create)).await;
        let end = match opened {
            Ok(Ok(stream)) => self.listen(stream).await,
            Ok(Err(error)) => End::Broken(error.to_string()),
            Err(_) => End::Broken("not opened in time".into()),
        };
        if let End::Broken(why) = &end {
            shared.endpoints.failed(at, why);
            shared.set_trouble(Some(format!("{}: {why}", member.server())));
        }
        end
    }

    async fn listen(&mut self, mut stream: Duplex) -> End {
        let shared = self.shared.clone();
        let progress = WatchRequest {
            ask: Some(WatchAsk::Progress(WatchProgressRequest {})),
        };
        let mut pending = Pending::default();
        let mut heard = Instant::now();
        let mut asking = tokio::time::interval(PROGRESS_EVERY);
        loop {
            let message: Result<Option<WatchResponse>, CallError> = tokio::select! {
                () = self.stop.cancelled() => return End::Stopped,
                message = stream.next() => message,
                () = shared.asked.notified() => {
                    stream.send(&progress);
                    continue;
                }
                () = shared.doubted.notified() => return End::Broken("the store may be another one".into()),
                _ = asking.tick() => {
                    if heard.elapsed() > SILENCE_MAX {
                        return End::Broken("no message in time".into());
                    }
                    stream.send(&progress);
                    continue;
                }
            };
            let message = match message {
                Ok(Some(message)) => message,
                Ok(None) => return End::Broken("the server ended it".into()),
                // Resumed at this position, the watch would get the same message again.
                Err(error @ CallError::TooLarge(_)) => return End::Reload(error.to_string()),
                Err(error) => return End::Broken(error.to_string()),
            };
            heard = Instant::now();
            shared.set_trouble(None);
            if message.canceled && message.compact_revision > 0 {
                return End::Reload("etcd has compacted the needed history".into());
            }
            if message.canceled {
                return End::Broken(message.cancel_reason);
            }
            if let Err(why) = self.require_reached(&message) {
                return End::Broken(why);
            }
            self.take(&mut pending, message);
        }
    }

    /// Checks that the member has reached everything that is published. One that has not lags behind the others, or
    /// etcd went back.
    fn require_reached(&self, message: &WatchResponse) -> Result<(), String> {
        let behind = message.header.filter(|header| header.revision < self.last);
        behind.map_or(Ok(()), |header| {
            Err(format!(
                "the member is at revision {}, before {}",
                header.revision, self.last
            ))
        })
    }

    /// Publishes a message revision by revision. If the message is only a fragment, its last revision waits for the
    /// rest.
    fn take(&mut self, pending: &mut Pending, message: WatchResponse) {
        let (progress, is_piece) = (message.progress(), message.fragment);
        for event in message.events {
            let revision = event.kv.as_ref().map_or(0, |kv| kv.mod_revision);
            if revision <= self.last {
                continue;
            }
            if revision != pending.revision {
                self.publish(pending);
                pending.revision = revision;
            }
            pending.changes.extend(self.change(event));
        }
        if !is_piece {
            self.publish(pending);
        }
        if let Some(revision) = progress {
            self.advance(revision);
        }
    }

    fn change(&self, event: Event) -> Option<Committed> {
        let kv = event.kv?;
        let key = self.shared.layout.own_key(&kv.key)?;
        let deleted = event.event_type == EVENT_DELETE;
        let value = match event.prev_kv {
            Some(before) if deleted => before.value,
            // An empty value: it was compacted in the meantime, and the sink has the last state.
            None if deleted => Bytes::new(),
            _ => kv.value,
        };
        // A slice would keep the whole message in memory.
        let value = Bytes::copy_from_slice(&value).into();
        Some(Committed { key, value, deleted })
    }

    fn publish(&mut self, pending: &mut Pending) {
        let Pending { revision, changes } = std::mem::take(pending);
        if changes.is_empty() {
            return;
        }
        self.sink.committed(self.shared.layout.rv(revision), &changes);
        self.advance(revision);
    }

    fn advance(&mut self, revision: i64) {
        if revision > self.last {
            self.last = revision;
            self.shared.published.send_replace(revision);
        }
    }

    /// Publishes the present state as a difference from the published one.
    async fn reload(&mut self, why: &str) -> Result<(), CallError> {
        let (loaded, at) = load::live(&self.shared.endpoints, &self.shared.layout).await?;
        tracing::warn!(why, from = self.last, to = at, "Reloaded the state from etcd");
        if at > self.last {
            self.sink.reloaded(loaded);
            self.advance(at);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use tokio::sync::{Notify, watch};
    use yurt_apimachinery::ResourceVersion;
    use yurt_runtime::TaskGroup;

    use super::*;
    use crate::backend::{Loaded, StorageError};
    use crate::etcd3::Identity;
    use crate::etcd3::endpoints::Endpoints;
    use crate::etcd3::fake_member;
    use crate::etcd3::timeline::Timeline;
    use crate::etcd3::txn::Layout;
    use crate::etcd3::wire::{KeyValue, ResponseHeader, STATUS, StatusResponse, WATCH};

    /// URL without a server.
    const NONE: &str = "http://127.0.0.1:1";

    /// Commits in the order of their publication.
    #[derive(Default)]
    struct Published(Mutex<Vec<(u64, Vec<String>)>>);

    impl Sink for Published {
        fn load(&self, _loaded: Loaded) -> Result<(), StorageError> {
            Ok(())
        }

        fn committed(&self, rv: ResourceVersion, changes: &[Committed]) {
            let keys = changes.iter().map(|change| change.key.clone()).collect();
            self.0.lock().push((rv.0, keys));
        }

        fn reloaded(&self, _loaded: Loaded) {}
    }

    fn example(server: &str) -> (WatchLoop, Arc<Published>) {
        let timeline = Timeline {
            id: "test".into(),
            offset: 0,
            since: 0,
            cluster: 1,
        };
        let shared = EtcdState {
            endpoints: Endpoints::new(&[server.to_owned()], None, &TaskGroup::new()).expect("a URL"),
            layout: Layout {
                prefix: String::new(),
                tag: 0,
                timeline: timeline.clone(),
            },
            identity: Identity {
                timeline: Some(timeline),
                written: 1,
                cluster: 1,
                revision: 1,
            },
            checkpoint: None,
            published: watch::Sender::new(0),
            asked: Notify::new(),
            doubted: Notify::new(),
            trouble: Mutex::new(None),
            writes: Mutex::default(),
        };
        let sink = Arc::new(Published::default());
        let watch_loop = WatchLoop {
            shared: Arc::new(shared),
            sink: sink.clone(),
            last: 4,
            stop: CancellationToken::new(),
        };
        (watch_loop, sink)
    }

    /// A message with a put of each key at the revision before it.
    fn message(puts: &[(i64, &'static str)], fragment: bool) -> WatchResponse {
        let event = |(revision, key): &(i64, &'static str)| Event {
            kv: Some(KeyValue {
                key: Bytes::from_static(key.as_bytes()),
                mod_revision: *revision,
                ..KeyValue::default()
            }),
            ..Event::default()
        };
        WatchResponse {
            header: Some(ResponseHeader {
                cluster_id: 1,
                revision: 9,
            }),
            fragment,
            events: puts.iter().map(event).collect(),
            ..WatchResponse::default()
        }
    }

    /// etcd cuts messages at any event. Publishing a fragment of a revision would move `C`, and `C` would cover the
    /// rest.
    #[test]
    fn revision_in_several_pieces_is_one_commit() {
        let (mut watch_loop, sink) = example(NONE);
        let mut pending = Pending::default();
        watch_loop.take(&mut pending, message(&[(5, "/a"), (6, "/b")], true));
        assert_eq!(*sink.0.lock(), [(5, vec!["/a".to_owned()])]);
        assert_eq!(
            *watch_loop.shared.published.borrow(),
            5,
            "writers of 6 wait for all of it"
        );
        watch_loop.take(&mut pending, message(&[(6, "/c")], true));
        watch_loop.take(&mut pending, message(&[(6, "/d"), (7, "/e")], false));
        let wanted = [(6, vec!["/b", "/c", "/d"]), (7, vec!["/e"])];
        let wanted = wanted.map(|(rv, keys)| (rv, keys.into_iter().map(str::to_owned).collect()));
        assert_eq!(sink.0.lock()[1..], wanted);
        assert_eq!((watch_loop.last, *watch_loop.shared.published.borrow()), (7, 7));
    }

    #[test]
    fn member_that_has_not_reached_what_is_published_is_left() {
        let (watch_loop, _) = example(NONE);
        let at = |revision| WatchResponse {
            header: Some(ResponseHeader {
                cluster_id: 1,
                revision,
            }),
            created: true,
            ..WatchResponse::default()
        };
        assert_eq!(watch_loop.require_reached(&at(4)), Ok(()));
        let why = watch_loop.require_reached(&at(3)).expect_err("it is behind");
        assert!(why.contains("revision 3"), "{why}");
    }

    /// A watch of an etcd that went back opens, and is silent until etcd has passed the published revision.
    #[tokio::test]
    async fn watch_stays_closed_while_etcd_cannot_be_verified() {
        let (watch_loop, _) = example(NONE);
        let verified = watch_loop.verify().await;
        assert!(matches!(verified, Err(Unverified::Unanswered(_))), "{verified:?}");
    }

    #[test]
    fn etcd_before_the_published_revision_is_not_the_same_store() {
        let (watch_loop, _) = example(NONE);
        let identity = &watch_loop.shared.identity;
        let now = |revision| Identity {
            revision,
            ..identity.clone()
        };
        assert_eq!(identity.contradicts(4, &now(4)), None);
        let why = identity.contradicts(4, &now(3));
        assert_eq!(why.as_deref(), Some("etcd went back from revision 4 to 3"));
    }

    /// A watch that broke inside a revision repeats it as a whole, and perhaps earlier events.
    #[test]
    fn what_is_published_is_not_published_again() {
        let (mut watch_loop, sink) = example(NONE);
        let mut pending = Pending::default();
        watch_loop.take(&mut pending, message(&[(3, "/old"), (4, "/old"), (5, "/a")], false));
        watch_loop.take(&mut pending, message(&[(4, "/old"), (5, "/a"), (6, "/b")], false));
        let keys: Vec<_> = sink.0.lock().iter().flat_map(|(_, keys)| keys.clone()).collect();
        assert_eq!(keys, ["/a", "/b"]);
    }

    /// etcd sends what a watch has missed in messages up to its own limit, which an administrator may raise.
    #[tokio::test]
    async fn message_that_is_too_large_ends_in_a_reload() {
        let tasks = TaskGroup::new();
        let answer = |path: &str, _| match path {
            WATCH => fake_member::bytes(Bytes::from_static(&[0, 0xff, 0xff, 0xff, 0xff])),
            STATUS => fake_member::message(&StatusResponse {
                version: "3.6.6".into(),
            }),
            path => panic!("{path} is not called"),
        };
        let (mut watch_loop, _) = example(&fake_member::start(&tasks, answer).await);
        let ended = watch_loop.watch().await;
        assert!(matches!(ended, End::Reload(_)), "{ended:?}");
    }
}
