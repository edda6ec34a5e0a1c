//! Reads a watch and applies its events to the replica, one by one or as a step.

use tokio::time::Instant;
use yurt_apimachinery::watch::{Bookmark, EventType, RawEvent, WatchDecoder};
use yurt_apimachinery::{Object, ResourceVersion};
use yurt_collection::Collection;
use yurt_pool_protocol::members;
use yurt_pool_protocol::source::Source;
use yurt_runtime::http::Decoded;
use yurt_runtime::http::client::HttpClient;
use yurt_storage::serve::{ANNOTATION_DIFF_DONE, ANNOTATION_DIFF_TO, ANNOTATION_DIFF_WATCHED, ANNOTATION_STALE};

use super::answer::{ended_by, generation_of};
use super::{LABELS, Reflector, StreamEnd};
use crate::replicas::sources::silence_of;
use crate::upstream::watch_body::OVERDUE;

/// Events between an announced step and its end. A cut drops them: `C` did not move.
pub(super) struct PendingStep {
    /// Position at the server where the step begins.
    from: ResourceVersion,
    events: Vec<(EventType, Object)>,
    /// Size of the events.
    bytes: usize,
}

// === impl Reflector ===

impl Reflector {
    pub(super) async fn watch(&mut self) -> Result<StreamEnd, StreamEnd> {
        let position = self.look(Collection::position)?;
        // Boxed, as what handles an event: a stream spends its life between events.
        let response = Box::pin(self.send_as(&self.watch_query(position), true)).await?;
        let response = self.require_ok(response).await?;
        self.opened = Some(Instant::now());
        self.require_later_history(response.headers())?;
        if generation_of(response.headers()).is_some_and(|generation| generation != self.generation) {
            return Ok(StreamEnd::OtherHistory);
        }
        // A coordinator also accepts a watch that it cannot serve yet: that says nothing of its data.
        self.data.sources().heard(self.replica.name(), self.source, None);
        self.data.partial_lists().tidy(self.replica.name()).await;
        if self.source == Source::Cloud {
            // Every position comes from the cloud, so it covers ours.
            self.confirm();
        }
        let connection = HttpClient::connection_of(&response);
        let body = Decoded::of(response).map_err(|error| StreamEnd::Failed(error.to_string()))?;
        let ended = self.pump(body, position).await;
        if matches!(ended, Err(StreamEnd::Silent(_))) {
            self.leave(connection);
        }
        ended
    }

    /// Makes new requests avoid the connection with this number, whose server is silent. A load balancer may answer
    /// pings for a dead server.
    pub(in crate::replicas) fn leave(&self, connection: u64) {
        match &self.selected {
            Some(selected) => selected.lane.leave(connection),
            None => self.client.leave(connection),
        }
    }

    pub(in crate::replicas) fn watch_query(&self, position: ResourceVersion) -> String {
        let seconds = self.lasts().as_secs();
        format!("watch=1&allowWatchBookmarks=true&resourceVersion={position}&timeoutSeconds={seconds}")
    }

    async fn pump(&mut self, mut body: Decoded, opened_at: ResourceVersion) -> Result<StreamEnd, StreamEnd> {
        let mut decoder = WatchDecoder::new();
        let mut step = None;
        let ends = Instant::now() + self.lasts() + OVERDUE;
        // An aggregated API may send no bookmarks at all.
        let mut has_bookmarks = self.source == Source::Coordinator;
        loop {
            let silence = silence_of(self.source);
            let quiet = if has_bookmarks { silence } else { self.lasts() + OVERDUE };
            let next = tokio::time::timeout_at(ends.min(Instant::now() + quiet), body.next()).await;
            let data = match next {
                Ok(Some(Ok(data))) => data,
                // A broken connection equals a normal end: the next watch starts at the same position.
                Ok(_) => return Ok(StreamEnd::Closed),
                Err(_) if Instant::now() >= ends => {
                    return Err(StreamEnd::Silent("the server did not end the watch in time".into()));
                }
                Err(_) => return Err(StreamEnd::Silent(format!("no data for {} s", silence.as_secs()))),
            };
            decoder.push(&data);
            for event in decoder.by_ref() {
                let event = event.map_err(|error| StreamEnd::Unreadable(error.to_string()))?;
                has_bookmarks |= event.event_type == EventType::Bookmark;
                Box::pin(self.take_event(event, &mut step, opened_at)).await?;
            }
        }
    }

    pub(super) async fn take_event(
        &mut self,
        event: RawEvent,
        step: &mut Option<PendingStep>,
        opened_at: ResourceVersion,
    ) -> Result<(), StreamEnd> {
        if event.event_type == EventType::Error {
            let is_confirmed = self.confirmed.is_none();
            return Err(match ended_by(&event.object) {
                // The source may have begun another history; the answer to a new stream shows that.
                StreamEnd::Expired if is_confirmed && self.source == Source::Coordinator => StreamEnd::Closed,
                ended => ended,
            });
        }
        let unreadable = StreamEnd::Unreadable;
        let (rv, stale) = if event.event_type == EventType::Bookmark {
            let bookmark = Bookmark::parse(&event.object).map_err(|error| unreadable(error.to_string()))?;
            let stale = self.take_bookmark(&bookmark, step).await?;
            (bookmark.resource_version, Some(stale))
        } else {
            let object =
                Object::parse(event.object, self.wire_kind()).map_err(|error| unreadable(error.to_string()))?;
            let rv = object.resource_version();
            match (step.as_mut(), self.reduce(&object)) {
                (_, None) => {}
                (Some(pending), Some(object)) => {
                    pending.bytes += object.size();
                    self.require_room(self.replica.collection().read(Collection::size) + pending.bytes)?;
                    pending.events.push((event.event_type, object));
                    if self.reads_nodes() && event.event_type != EventType::Deleted {
                        self.take_members(step, rv).await?;
                    }
                }
                (None, Some(object)) if self.leaves_nobody(event.event_type, &object) => {
                    self.data.failures().refused(LABELS, &self.nobody());
                    *step = Some(PendingStep {
                        from: rv,
                        bytes: object.size(),
                        events: vec![(event.event_type, object)],
                    });
                }
                (None, Some(object)) => self.apply(event.event_type, object).await?,
            }
            (rv, None)
        };
        if rv >= opened_at {
            self.confirm();
        }
        self.data.sources().heard(self.replica.name(), self.source, stale);
        Ok(())
    }

    /// Applies a bookmark. Returns true if it reports that the data is stale.
    async fn take_bookmark(&self, bookmark: &Bookmark, step: &mut Option<PendingStep>) -> Result<bool, StreamEnd> {
        let to = bookmark.resource_version;
        if bookmark.annotations.contains_key(ANNOTATION_DIFF_TO) {
            // A server that could not continue by its log announces the rest of the same step again.
            step.get_or_insert_with(|| PendingStep {
                from: to,
                events: Vec::new(),
                bytes: 0,
            });
        } else if bookmark.annotations.contains_key(ANNOTATION_DIFF_DONE) {
            if let Some(pending) = step.take() {
                let jumped = !bookmark.annotations.contains_key(ANNOTATION_DIFF_WATCHED);
                let is_behind = |c: &Collection| c.may_be_behind() && c.position() < to;
                if jumped && self.has_fallback && self.replica.collection().read(is_behind) {
                    return Err(StreamEnd::Expired);
                }
                let stretch = (pending.from, to);
                let followed = self
                    .change(to, |c| c.follow_step(stretch, pending.events, jumped))
                    .await?;
                followed.map_err(|_| StreamEnd::Expired)?;
            }
        } else if step.is_none() && to > self.look(Collection::position)? {
            self.change(to, |c| c.advance(to)).await?;
        }
        let stale = bookmark.annotations.get(ANNOTATION_STALE);
        Ok(stale.is_some_and(|value| value == "true"))
    }

    /// Applies an event of the source's log.
    async fn apply(&self, event: EventType, object: Object) -> Result<(), StreamEnd> {
        let (name, of_members) = (self.replica.name(), self.replica.name() == members::COLLECTION);
        if self.source == Source::Cloud && !of_members {
            let follows = self.look(|c| c.check_follows(event, &object))?;
            if let Err(why) = follows {
                if self.data.history().contradict(name, self.generation, &why) {
                    return Err(StreamEnd::Closed);
                }
                tracing::warn!(collection = name, %why, "The cloud omitted events");
            }
        }
        if event != EventType::Deleted {
            let (all, old) = self.replica.collection().read(|held| {
                let old = held.object(object.key()).map_or(0, Object::size);
                (held.size(), old)
            });
            // The recent history holds the object, too.
            self.require_room(all.saturating_sub(old) + 2 * object.size())?;
            self.data.fits(name);
        }
        self.change(object.resource_version(), |collection| {
            let is_held = |held: &Object| held.uid() == object.uid();
            if of_members && event != EventType::Deleted && collection.object(object.key()).is_some_and(is_held) {
                // A Node changes every few minutes, its membership does not.
                collection.advance(object.resource_version());
            } else {
                collection.apply(event, object);
            }
        })
        .await
    }

    /// True if this event removes the last labelled Node. It is held back until the next Node appears.
    fn leaves_nobody(&self, event: EventType, object: &Object) -> bool {
        let is_last = |c: &Collection| c.len() == 1 && c.object(object.key()).is_some();
        self.reads_nodes() && event == EventType::Deleted && self.replica.collection().read(is_last)
    }

    /// Applies the members again once there is one.
    async fn take_members(&self, step: &mut Option<PendingStep>, at: ResourceVersion) -> Result<(), StreamEnd> {
        if let Some(step) = step.take() {
            self.change(at, |c| c.catch_up_to(at, step.events)).await?;
            self.data.failures().works(LABELS);
        }
        Ok(())
    }
}
