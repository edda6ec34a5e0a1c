//! A watch as a stream of frames. It has no task and no queue: the client sets the pace.
//!
//! A frame is encoded when the client takes it, and the initial state is read page by page. A client that stalls holds
//! one page of references, independent of the size of the collection.
//!
//! ```text
//!   Starting ──► Initial (ADDED of the snapshot, end bookmark) ──► Live ──► end
//!       └──────────────────── resume at RV ────────────────────────▲
//! ```
//! Every failure after the headers is one ERROR frame and a clean end: clients retry an HTTP error with the
//! same RV for ever (kube-rs, RetryWatcher).

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::watch::{EventType, INITIAL_EVENTS_END};
use yurt_apimachinery::{ListOptions, Object, ResourceVersion, Space, Status};
use yurt_codec::negotiation::Negotiated;
use yurt_collection::{Collection, Delivery, Expired, KeyRange, Reader, Resumption};
use yurt_runtime::Clock;
use yurt_runtime::tasks::cancelled;

use super::list::{check_space, not_ready, reach};
use super::view::WatcherView;
use super::{ANNOTATION_DIFF_DONE, ANNOTATION_DIFF_TO, ANNOTATION_DIFF_WATCHED, Selection, View};
use crate::shared::{Changes, SharedCollection, StartPermit};

mod bookmarks;

/// Deliveries, or objects of the initial state, taken from the collection at a time.
const BATCH: usize = 64;
/// Status code after which a client lists again.
const GONE: u16 = 410;

/// Parameters of a watch.
pub struct WatchRequest {
    /// Query options.
    pub options: ListOptions,
    /// Selected objects.
    pub selection: Selection,
    /// View of the objects.
    pub view: Arc<dyn View>,
    /// Format of the events.
    pub how: Negotiated,
    /// Clock for the ages in tables.
    pub clock: Clock,
    /// True if the reader is another replica: the stream announces diffs and bookmarks often.
    pub replica: bool,
    /// Maximum duration of the stream.
    pub lasts: Duration,
    /// RV that a start without resourceVersion has to reflect; see [`super::list()`].
    pub least: ResourceVersion,
    /// Returns true while the data's source is alive (sent to replicas on bookmarks).
    pub is_fresh: Arc<dyn Fn() -> bool + Send + Sync>,
    /// Ends the stream cleanly.
    pub shutdown: CancellationToken,
    /// Called once all initial events were sent, if the client requested a bookmark at their end.
    pub on_initial_end: Option<Box<dyn FnOnce() + Send>>,
    /// Time for which the stream continues after `shutdown`, as if it then timed out; a minute at most.
    pub lingers: Duration,
}

enum Phase {
    Starting,
    /// The state at the reader's position, from a key on; `None` once all of it was taken.
    Initial(Reader, Option<String>),
    Live(Reader),
    Ended,
}

/// Next step when nothing is pending.
enum Turn {
    /// Something may be pending now.
    Continue,
    Start,
    Wait,
    End,
}

/// Start of a stream that sends no initial events.
enum Opened {
    At(Reader),
    /// The reader continues after the whole state; the deletions are sent before it.
    Everything(Reader, Vec<Object>),
    Later,
}

/// Items still to be sent to the client, in order.
enum Pending {
    Frame(Bytes),
    Initial(Object),
    Delivery(Delivery),
}

struct Watch {
    shared: Arc<SharedCollection>,
    /// Generation at the start of the answer: its header may name it already.
    generation: u64,
    /// Wakes the stream after a change that may be selected.
    changes: Changes,
    watcher: WatcherView,
    keys: KeyRange,
    /// True once the stream has waited for `C` to reach the client.
    was_ahead: bool,
    requested: Option<ResourceVersion>,
    sends_initial_events: bool,
    on_initial_end: Option<Box<dyn FnOnce() + Send>>,
    /// Taken for the initial events, until they are sent; `None` for a stream without.
    permit: Option<StartPermit>,
    wants_bookmarks: bool,
    replica: bool,
    least: ResourceVersion,
    is_fresh: Arc<dyn Fn() -> bool + Send + Sync>,
    /// Resolves at the shutdown, once. One future waits for the whole stream, because a new one after each event would
    /// cost more.
    stop: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// In milliseconds; a small integer because there are many watches.
    lingers: u16,
    phase: Phase,
    pending: VecDeque<Pending>,
    ends_at: Instant,
    bookmark_at: Instant,
    /// One timer for the whole stream: it is rarely moved, while waits are frequent.
    timer: Pin<Box<Sleep>>,
    /// Last position sent to the client, by an event or a bookmark.
    told: ResourceVersion,
    /// True once a replica has received the confirmation that this collection has its position.
    confirmed: bool,
    /// True if the last bookmark reported fresh data.
    told_fresh: bool,
}

/// Starts a watch on `shared`.
///
/// # Errors
/// 429 while the collection is incomplete, or too many watches are starting: the client keeps its RV and backs off. All
/// other failures are sent in the stream.
pub fn watch(shared: Arc<SharedCollection>, request: WatchRequest) -> Result<impl Stream<Item = Bytes> + Send, Status> {
    let (is_complete, generation) = shared.read(|held| (held.is_complete(), held.generation()));
    if !is_complete {
        return Err(not_ready(&shared));
    }
    let now = Instant::now();
    let ends_at = now + request.lasts;
    let keys = request.selection.keys(shared.kind());
    let changes = shared.changes_of(&keys);
    let watcher = WatcherView {
        selection: request.selection,
        kind: request.view.kind().unwrap_or_else(|| shared.kind()),
        view: request.view,
        how: request.how,
        clock: request.clock,
        began: false,
    };
    let requested = request.options.resource_version;
    // A plain watch from "" or "0" starts with the present state, as at kube-apiserver since 1.27.
    let is_unset = requested.is_none_or(ResourceVersion::is_zero);
    let sends_initial_events = request.options.send_initial_events.unwrap_or(is_unset);
    let permit = match sends_initial_events {
        true => Some(shared.start_watch().ok_or_else(too_many_starts)?),
        false => None,
    };
    let mut watch = Watch {
        shared,
        generation,
        changes,
        watcher,
        keys,
        was_ahead: false,
        requested,
        on_initial_end: request
            .on_initial_end
            .filter(|_| sends_initial_events && request.options.allow_watch_bookmarks),
        sends_initial_events,
        permit,
        wants_bookmarks: request.options.allow_watch_bookmarks,
        replica: request.replica,
        least: request.least,
        is_fresh: request.is_fresh,
        stop: Box::pin(async move { cancelled(&request.shutdown).await }),
        lingers: u16::try_from(request.lingers.as_millis()).unwrap_or(u16::MAX),
        phase: Phase::Starting,
        pending: VecDeque::new(),
        ends_at,
        bookmark_at: now,
        timer: Box::pin(tokio::time::sleep_until(ends_at)),
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
            if let Some(pending) = self.pending.pop_front() {
                if self.pending.is_empty() {
                    // The memory of a burst is not kept for the life of the stream.
                    self.pending = VecDeque::new();
                }
                if let Some(frame) = self.tell(pending) {
                    return Some(frame);
                }
                continue;
            }
            match self.advance() {
                // A selection without matches walks the whole collection.
                Turn::Continue => tokio::task::coop::consume_budget().await,
                // Boxed: its room is not kept for the life of the stream.
                Turn::Start => Box::pin(self.start()).await,
                Turn::Wait => self.wait().await,
                Turn::End => return None,
            }
        }
    }

    fn advance(&mut self) -> Turn {
        // Also for a client that is too slow for this stream ever to wait.
        if Instant::now() >= self.ends_at {
            self.phase = Phase::Ended;
        }
        match std::mem::replace(&mut self.phase, Phase::Ended) {
            Phase::Starting if self.is_ahead() => {
                self.phase = Phase::Starting;
                Turn::Wait
            }
            Phase::Starting => Turn::Start,
            Phase::Initial(reader, from) => self.continue_initial(reader, from),
            Phase::Live(reader) => self.continue_live(reader),
            Phase::Ended => Turn::End,
        }
    }

    async fn start(&mut self) {
        let wanted = self.requested.unwrap_or_default();
        if let Err(status) = check_space(&self.shared, wanted) {
            return self.fail(&status);
        }
        if self.sends_initial_events {
            let wanted = self.requested.unwrap_or(self.least);
            return match reach(&self.shared, wanted).await {
                Ok(()) => match self.shared.read(|held| self.same(held).map(Collection::follow)) {
                    Ok(reader) => self.phase = Phase::Initial(reader, Some(String::new())),
                    Err(expired) => self.expire(expired),
                },
                Err(status) => self.fail(&status),
            };
        }
        if wanted > self.shared.read(Collection::position) {
            self.shared.follow_store();
        }
        let position = self.shared.read(Collection::position);
        // An own RV above C can only come from a lost history; a replica's reader may be ahead and is held.
        if wanted.space() == Space::Own && wanted > position {
            return self.fail(&Status::too_old_resource_version(wanted, position));
        }
        match self.shared.read(|collection| self.open(self.same(collection)?, wanted)) {
            Ok(Opened::Everything(reader, gone)) => {
                let tell = |object: Object| Pending::Delivery(Delivery::Gone(object.with_resource_version(wanted)));
                self.pending.extend(gone.into_iter().map(tell));
                self.phase = Phase::Initial(reader, Some(String::new()));
            }
            Ok(Opened::At(reader)) => {
                self.told = reader.position();
                self.phase = Phase::Live(self.settled(reader));
            }
            Ok(Opened::Later) => {
                self.was_ahead = true;
                self.phase = Phase::Starting;
            }
            Err(expired) => self.expire(expired),
        }
    }

    /// Opens a reader for a client at `wanted`.
    fn open(&self, collection: &Collection, wanted: ResourceVersion) -> Result<Opened, Expired> {
        let from = if wanted.is_zero() {
            collection.position()
        } else {
            wanted
        };
        // A replica has compared generations.
        let resumption = match self.replica || wanted.is_zero() {
            true => Resumption::ByNumber,
            false => collection.resumption(from)?,
        };
        match resumption {
            Resumption::ByNumber => {
                let reader = collection.open(from)?;
                // Its RV was issued before this collection had reached it.
                if self.was_ahead {
                    return everything(collection, from);
                }
                Ok(Opened::At(reader))
            }
            Resumption::Everything => everything(collection, from),
            Resumption::Later => Ok(Opened::Later),
        }
    }

    /// True while a derived collection has not reached the client's position.
    fn is_ahead(&self) -> bool {
        self.was_ahead && self.requested.unwrap_or_default() > self.shared.read(Collection::position)
    }

    /// The collection, while its generation is that of the answer's start.
    fn same<'a>(&self, held: &'a Collection) -> Result<&'a Collection, Expired> {
        match held.generation() == self.generation {
            true => Ok(held),
            false => Err(Expired {
                position: self.requested.unwrap_or_default(),
                floor: held.position(),
            }),
        }
    }

    /// True if the initial state is sent without a request, to a client that may hold another one.
    fn corrects(&self) -> bool {
        !self.sends_initial_events
    }

    /// Replaces a permit that went to another watch; false if there is no other.
    fn renew_permit(&mut self) -> bool {
        if self.permit.as_ref().is_some_and(|permit| !permit.is_held()) {
            self.permit = self.shared.start_watch();
            return self.permit.is_some();
        }
        true
    }

    /// Takes the next page of the initial state. An object is encoded when the client takes the event.
    fn continue_initial(&mut self, reader: Reader, from: Option<String>) -> Turn {
        let Some(from) = from else {
            self.permit = None;
            if let Some(told) = self.on_initial_end.take() {
                told();
            }
            // A corrected client lacks objects above the reader's position, and may have older states of them.
            let is_exact = !self.corrects() || self.shared.read(|held| held.has_state_at(reader.position()));
            if self.wants_bookmarks && is_exact {
                let annotations = [(INITIAL_EVENTS_END, "true")];
                let end = self.bookmark(reader.position(), &annotations[usize::from(self.corrects())..]);
                self.pending.push_back(Pending::Frame(end));
            }
            self.told = reader.position();
            self.phase = Phase::Live(reader);
            return Turn::Continue;
        };
        if !self.renew_permit() {
            self.fail(&too_many_starts());
            return Turn::Continue;
        }
        let page = self.shared.read(|collection| {
            let objects = collection.initial(&reader, &self.keys, &from)?;
            Ok::<Vec<Object>, Expired>(objects.take(BATCH).cloned().collect())
        });
        match page {
            Ok(objects) => {
                let (at, corrects) = (reader.position(), self.corrects());
                let next = objects.last().filter(|_| objects.len() == BATCH);
                self.phase = Phase::Initial(reader, next.map(|last| format!("{}\0", last.key())));
                let tell = |object: Object| match corrects {
                    false => Some(Pending::Initial(object)),
                    // Above it the client would be resumed by number if its watch were cut now, so the reader sends
                    // these.
                    true if object.resource_version() > at => None,
                    // The client may hold objects that are not selected now.
                    true => Some(Pending::Delivery(Delivery::Current {
                        object,
                        created: false,
                        known: true,
                    })),
                };
                self.pending.extend(objects.into_iter().filter_map(tell));
            }
            Err(expired) => self.expire(expired),
        }
        Turn::Continue
    }

    fn continue_live(&mut self, mut reader: Reader) -> Turn {
        self.changes.mark_seen();
        let read = self
            .shared
            .read(|collection| collection.read_within(&mut reader, BATCH, &self.keys));
        match read {
            Err(expired) => self.expire(expired),
            Ok(deliveries) if deliveries.is_empty() => {
                if self.replica {
                    self.hurry_bookmark(&reader);
                }
                self.phase = Phase::Live(self.settled(reader));
                return Turn::Wait;
            }
            Ok(deliveries) => {
                self.pending.extend(deliveries.into_iter().map(Pending::Delivery));
                self.phase = Phase::Live(reader);
            }
        }
        Turn::Continue
    }

    /// A reader whose client knows nothing above its position. While it receives the present state, it may.
    fn settled(&self, reader: Reader) -> Reader {
        if self.replica { reader } else { reader.for_client() }
    }

    /// The frame of a pending item; `None` if the client's selectors exclude it.
    fn tell(&mut self, pending: Pending) -> Option<Bytes> {
        let delivery = match pending {
            Pending::Frame(frame) => return Some(frame),
            Pending::Initial(object) => {
                let seen = self.watcher.see(&object)?;
                return Some(self.watcher.encode(EventType::Added, &seen.bytes()));
            }
            Pending::Delivery(delivery) => delivery,
        };
        let version = match &delivery {
            Delivery::DiffBegin(to) if self.replica => {
                return Some(self.bookmark(self.told, &[(ANNOTATION_DIFF_TO, &to.to_string())]));
            }
            Delivery::DiffEnd { to, jumped } if self.replica => {
                let (done, watched) = (to.to_string(), (ANNOTATION_DIFF_WATCHED, "true"));
                let annotations = [(ANNOTATION_DIFF_DONE, done.as_str()), watched];
                return Some(self.bookmark(*to, &annotations[..2 - usize::from(*jumped)]));
            }
            // Before it receives the end, its last event lies inside the jump, where no reader may resume.
            Delivery::DiffEnd { to, jumped: true } if self.wants_bookmarks => return Some(self.bookmark(*to, &[])),
            Delivery::DiffBegin(_) | Delivery::DiffEnd { .. } => return None,
            Delivery::Exact(change) => change.resource_version(),
            Delivery::Current { object, .. } | Delivery::Gone(object) => object.resource_version(),
        };
        let frame = self.watcher.frame(&delivery)?;
        self.told = version;
        Some(frame)
    }

    /// Waits without a frame to send: until a change, until a bookmark is due, or until the stream ends.
    async fn wait(&mut self) {
        // Also without bookmarks: a stream about one key receives no other changes, and still has to keep up.
        let wake_at = self.bookmark_at.min(self.ends_at);
        if self.timer.deadline() != wake_at {
            self.timer.as_mut().reset(wake_at);
        }
        tokio::select! {
            biased;
            () = self.stop.as_mut() => {
                let lingers = Duration::from_millis(self.lingers.into());
                self.ends_at = self.ends_at.min(Instant::now() + lingers);
                self.stop = Box::pin(std::future::pending());
            }
            changed = self.changes.changed() => if changed.is_err() { return self.phase = Phase::Ended },
            () = self.timer.as_mut() => {}
        }
        let now = Instant::now();
        if now >= self.ends_at {
            self.phase = Phase::Ended;
        } else if now >= self.bookmark_at {
            self.give_bookmark();
        }
    }

    /// Names the requested version, as kube-apiserver does, even if the client has advanced since.
    fn expire(&mut self, expired: Expired) {
        let asked = self.requested.filter(|version| !version.is_zero());
        let asked = asked.unwrap_or(expired.position);
        self.fail(&Status::too_old_resource_version(asked, expired.floor));
    }

    fn fail(&mut self, status: &Status) {
        if status.code() == GONE {
            self.shared.count_forced_relist();
        }
        let frame = self.watcher.how.error_frame(status);
        self.pending.push_back(Pending::Frame(frame));
        self.phase = Phase::Ended;
    }
}

fn too_many_starts() -> Status {
    Status::too_many_requests("too many watches are starting, please try again", 1)
}

fn everything(collection: &Collection, from: ResourceVersion) -> Result<Opened, Expired> {
    let (reader, gone) = collection.correction(from)?;
    Ok(Opened::Everything(reader, gone))
}
