//! A watch as a stream of frames: no task, no queue; the client's pace is its own.
//!
//! ```text
//!   Starting ──► Initial (ADDED of the snapshot, end bookmark) ──► Live ──► end
//!       └──────────────────── resume at RV ────────────────────────▲
//! ```
//! Every failure after the headers is one ERROR frame and a clean end: clients retry an HTTP error with the
//! same RV for ever (kube-rs, RetryWatcher).

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::negotiation::Negotiated;
use yurt_apimachinery::watch::{EventType, INITIAL_EVENTS_END};
use yurt_apimachinery::{ListOptions, Object, ResourceVersion, Space, Status};
use yurt_runtime::Clock;

use super::list::{check_space, not_ready};
use super::view::Lens;
use super::{ANNOTATION_DIFF_DONE, ANNOTATION_DIFF_TO, ANNOTATION_STALE, Selection, View, WAIT_FOR_RV};
use crate::collection::{Delivery, Expired, Reader};
use crate::shared::SharedCollection;

/// Deliveries taken from the collection at a time.
const BATCH: usize = 64;
/// Bookmark cadence for ordinary clients.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// Bookmark cadence for replicas, to whom it is also a sign of life.
const REPLICA_BOOKMARK_EVERY: Duration = Duration::from_secs(10);
/// A replica hears of a new position at the latest after this.
const REPLICA_BOOKMARK_SOON: Duration = Duration::from_secs(1);
/// The last bookmark is sent this long before the stream's timeout.
const BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);

/// What a client asked for.
pub struct WatchRequest {
    /// Query options.
    pub options: ListOptions,
    /// Which objects.
    pub selection: Selection,
    /// What it sees of them.
    pub view: Arc<dyn View>,
    /// How events are written.
    pub how: Negotiated,
    /// Tells tables how old things are.
    pub clock: Clock,
    /// The reader is another replica: announce diffs, bookmark often.
    pub replica: bool,
    /// How long the stream lasts.
    pub lasts: Duration,
    /// RV a start without resourceVersion has to reflect; see [`super::list`].
    pub least: ResourceVersion,
    /// Whether the data's source is alive (told to replicas on bookmarks).
    pub is_fresh: Arc<dyn Fn() -> bool + Send + Sync>,
    /// Ends the stream cleanly.
    pub shutdown: CancellationToken,
}

enum Phase {
    Starting,
    Initial(std::vec::IntoIter<Object>, Reader),
    Live(Reader),
    Ended,
}

struct Watch {
    shared: Arc<SharedCollection>,
    changes: tokio::sync::watch::Receiver<u64>,
    lens: Lens,
    /// What the view depends on beside the collection.
    inputs: Vec<tokio::sync::watch::Receiver<u64>>,
    /// An input changed: hidden objects may be visible now.
    look_again: bool,
    options: ListOptions,
    replica: bool,
    least: ResourceVersion,
    is_fresh: Arc<dyn Fn() -> bool + Send + Sync>,
    shutdown: CancellationToken,
    phase: Phase,
    ready: VecDeque<Bytes>,
    ends_at: Instant,
    bookmark_at: Instant,
    /// Position last told to the client, by an event or a bookmark.
    told: ResourceVersion,
    /// A replica was told once that its position is ours too.
    confirmed: bool,
    /// Whether the data was fresh when the last bookmark said so.
    told_fresh: bool,
}

/// Starts a watch on `shared`.
///
/// # Errors
/// 429 while the collection is incomplete: the client keeps its RV and backs off. Everything else is told in
/// the stream.
pub fn watch(shared: Arc<SharedCollection>, request: WatchRequest) -> Result<impl Stream<Item = Bytes> + Send, Status> {
    if !shared.read(|collection| collection.is_complete()) {
        return Err(not_ready(&shared));
    }
    let now = Instant::now();
    let ends_at = now + request.lasts;
    let changes = shared.subscribe();
    let inputs = request.view.inputs();
    let lens = Lens {
        selection: request.selection,
        kind: request.view.kind().unwrap_or_else(|| shared.kind()),
        view: request.view,
        how: request.how,
        clock: request.clock,
        began: false,
        hidden: BTreeSet::new(),
    };
    let mut watch = Watch {
        shared,
        changes,
        lens,
        inputs,
        look_again: false,
        options: request.options,
        replica: request.replica,
        least: request.least,
        is_fresh: request.is_fresh,
        shutdown: request.shutdown,
        phase: Phase::Starting,
        ready: VecDeque::new(),
        ends_at,
        bookmark_at: now,
        told: ResourceVersion::ZERO,
        confirmed: false,
        told_fresh: true,
    };
    watch.schedule_bookmark();
    Ok(futures_util::stream::unfold(watch, |mut watch| async move {
        let frame = watch.next().await?;
        Some((frame, watch))
    }))
}

// === impl Watch ===

impl Watch {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(frame) = self.ready.pop_front() {
                return Some(frame);
            }
            match std::mem::replace(&mut self.phase, Phase::Ended) {
                Phase::Starting => self.start().await,
                Phase::Initial(objects, reader) => self.continue_initial(objects, reader),
                Phase::Live(reader) => self.continue_live(reader).await,
                Phase::Ended => return None,
            }
        }
    }

    async fn start(&mut self) {
        let requested = self.options.resource_version;
        let unset = requested.is_none_or(|rv| rv == ResourceVersion::ZERO);
        if let Err(status) = check_space(&self.shared, requested.unwrap_or_default()) {
            return self.fail(&status);
        }
        let position = self.shared.read(|collection| collection.position());
        // An own RV above C can only come from a history that was lost; a replica's reader may be ahead and is held.
        if let Some(rv) = requested.filter(|rv| rv.space() == Space::Own && *rv > position) {
            return self.fail(&Status::too_old_resource_version(rv, position));
        }
        // A plain watch from "" or "0" starts with the present state, as at kube-apiserver since 1.27.
        if self.options.send_initial_events.unwrap_or(unset) {
            let wanted = requested.unwrap_or(self.least);
            if tokio::time::timeout(WAIT_FOR_RV, self.shared.reached(wanted))
                .await
                .is_err()
            {
                let position = self.shared.read(|collection| collection.position());
                return self.fail(&Status::too_large_resource_version(wanted, position));
            }
            let snapshot = self
                .shared
                .read(|collection| collection.snapshot(self.lens.selection.confined_to()));
            self.phase = Phase::Initial(snapshot.objects.into_iter(), snapshot.reader);
            return;
        }
        let opened = self.shared.read(|collection| {
            collection.open(if unset {
                collection.position()
            } else {
                requested.unwrap_or_default()
            })
        });
        match opened {
            Ok(reader) => {
                self.find_hidden();
                self.told = reader.position();
                self.phase = Phase::Live(reader);
            }
            Err(expired) => self.expire(expired),
        }
    }

    fn continue_initial(&mut self, mut objects: std::vec::IntoIter<Object>, reader: Reader) {
        for object in objects.by_ref() {
            if let Some(seen) = self.lens.see(&object) {
                self.ready.push_back(self.lens.encode(EventType::Added, seen.bytes()));
                if self.ready.len() >= BATCH {
                    self.phase = Phase::Initial(objects, reader);
                    return;
                }
            }
        }
        if self.options.allow_watch_bookmarks {
            self.bookmark(reader.position(), &[(INITIAL_EVENTS_END, "true")]);
        }
        self.told = reader.position();
        self.phase = Phase::Live(reader);
    }

    async fn continue_live(&mut self, mut reader: Reader) {
        self.changes.borrow_and_update();
        let read = self.shared.read(|collection| collection.read(&mut reader, BATCH));
        match read {
            Err(expired) => self.expire(expired),
            Ok(deliveries) if deliveries.is_empty() && std::mem::take(&mut self.look_again) => {
                self.reveal(&reader);
                self.phase = Phase::Live(reader);
            }
            Ok(deliveries) if deliveries.is_empty() => {
                if self.replica {
                    self.hurry_bookmark(&reader);
                }
                self.wait(reader).await;
            }
            Ok(deliveries) => {
                for delivery in &deliveries {
                    self.deliver(delivery);
                }
                self.phase = Phase::Live(reader);
            }
        }
    }

    /// A stream that resumes does not know what its predecessor had hidden.
    fn find_hidden(&mut self) {
        if self.inputs.is_empty() {
            return;
        }
        let objects = self
            .shared
            .read(|collection| collection.snapshot(self.lens.selection.confined_to()))
            .objects;
        for object in &objects {
            // Only the note it takes of hidden objects is wanted.
            let _ = self.lens.see(object);
        }
    }

    /// Shows what was hidden and is not any more, at the position the client has now: nothing that happened is older.
    fn reveal(&mut self, reader: &Reader) {
        for key in self.lens.hidden.clone() {
            let Some(object) = self.shared.read(|collection| collection.object(&key).cloned()) else {
                continue;
            };
            if let Some(seen) = self.lens.see(&object) {
                let seen = seen.with_resource_version(reader.position());
                self.ready.push_back(self.lens.encode(EventType::Added, seen.bytes()));
            }
        }
    }

    /// A replica hears at once that its position is ours and when the data turns fresh or stale, soon of a new position.
    fn hurry_bookmark(&mut self, reader: &Reader) {
        let soon = if !self.confirmed || self.told_fresh != (self.is_fresh)() {
            Duration::ZERO
        } else if self.told < reader.position() {
            REPLICA_BOOKMARK_SOON
        } else {
            return;
        };
        self.bookmark_at = self.bookmark_at.min(Instant::now() + soon);
    }

    fn deliver(&mut self, delivery: &Delivery) {
        match delivery {
            Delivery::DiffBegin(to) if self.replica => {
                self.bookmark(self.told, &[(ANNOTATION_DIFF_TO, &to.to_string())]);
            }
            Delivery::DiffEnd(to) if self.replica => self.bookmark(*to, &[(ANNOTATION_DIFF_DONE, &to.to_string())]),
            Delivery::DiffBegin(_) | Delivery::DiffEnd(_) => {}
            Delivery::Exact(change) => {
                if let Some(frame) = self.lens.frame(delivery) {
                    self.told = change.resource_version();
                    self.ready.push_back(frame);
                }
            }
            Delivery::Current { object, .. } | Delivery::Gone(object) => {
                if let Some(frame) = self.lens.frame(delivery) {
                    self.told = object.resource_version();
                    self.ready.push_back(frame);
                }
            }
        }
    }

    /// Nothing to send: until something changes, a bookmark is due, or the stream ends.
    async fn wait(&mut self, reader: Reader) {
        let wants_bookmarks = self.options.allow_watch_bookmarks;
        let wake_at = if wants_bookmarks {
            self.bookmark_at.min(self.ends_at)
        } else {
            self.ends_at
        };
        let shutdown = self.shutdown.clone();
        tokio::select! {
            () = shutdown.cancelled() => return,
            changed = self.changes.changed() => if changed.is_err() { return },
            () = any_changed(&mut self.inputs) => self.look_again = true,
            () = tokio::time::sleep_until(wake_at) => {}
        }
        let now = Instant::now();
        if now >= self.ends_at {
            return;
        }
        if wants_bookmarks && now >= self.bookmark_at {
            // Ahead of C nothing is known of the client's position yet, and a bookmark must not claim it.
            if self.shared.read(|collection| collection.position()) >= reader.position() && !self.behind(&reader) {
                self.confirmed = true;
                self.bookmark(reader.position(), &[]);
            } else {
                self.schedule_bookmark();
            }
        }
        self.phase = Phase::Live(reader);
    }

    /// Whether the collection moved on since this reader last looked: events come before the bookmark.
    fn behind(&self, reader: &Reader) -> bool {
        self.shared.read(|collection| collection.position()) > reader.position()
    }

    fn bookmark(&mut self, position: ResourceVersion, annotations: &[(&str, &str)]) {
        let mut annotations = annotations.to_vec();
        if self.replica {
            self.told_fresh = (self.is_fresh)();
            if !self.told_fresh {
                annotations.push((ANNOTATION_STALE, "true"));
            }
        }
        let frame = self.lens.bookmark(position, &annotations);
        self.ready.push_back(frame);
        self.told = position;
        self.schedule_bookmark();
    }

    fn schedule_bookmark(&mut self) {
        let now = Instant::now();
        let next = now
            + if self.replica {
                REPLICA_BOOKMARK_EVERY
            } else {
                BOOKMARK_EVERY
            };
        let last = self.ends_at.checked_sub(BOOKMARK_BEFORE_END).unwrap_or(now);
        self.bookmark_at = if now < last { next.min(last) } else { next };
    }

    fn expire(&mut self, expired: Expired) {
        self.fail(&Status::too_old_resource_version(expired.position, expired.floor));
    }

    fn fail(&mut self, status: &Status) {
        self.ready.push_back(self.lens.how.error_frame(status));
        self.phase = Phase::Ended;
    }
}

/// Resolves when one of `inputs` changed; never when there are none left.
async fn any_changed(inputs: &mut Vec<tokio::sync::watch::Receiver<u64>>) {
    while !inputs.is_empty() {
        let (changed, at, _) =
            futures_util::future::select_all(inputs.iter_mut().map(|input| Box::pin(input.changed()))).await;
        if changed.is_ok() {
            return;
        }
        inputs.swap_remove(at);
    }
    std::future::pending().await
}
