//! The list of a stream: page by page into a draft that outlives the stream, with the changes beside it when it takes long.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::time::Instant;
use yurt_apimachinery::list::ParsedList;
use yurt_apimachinery::watch::{Bookmark, EventType, RawEvent, WatchDecoder};
use yurt_apimachinery::{Object, Status};
use yurt_runtime::http::Decoded;

use super::draft::{Page, Unfit};
use super::drafts::{Ask, Held, Slot};
use super::stream::{Ended, Stream, ended_by, generation_of, read_all};

/// Pause before changes are watched again after the server ended the watch.
const PAUSE: Duration = Duration::from_millis(200);

// === impl Stream ===

impl Stream {
    /// Fetches the whole collection, going on with what an earlier stream left.
    pub(super) async fn list(&mut self) -> Result<(), Ended> {
        let collection = self.replica.collection();
        let slot = self
            .data
            .drafts()
            .slot(self.replica.name(), collection.kind(), self.source);
        slot.open(self.held().0).await;
        if self.is_gone() {
            // What came of a list may be of the history that the cloud has lost.
            slot.forget().await;
        }
        let this = &*self;
        let outcome = tokio::select! {
            outcome = this.pages(&slot) => outcome,
            ended = this.changes_beside(&slot) => Err(ended),
        };
        match outcome {
            Ok(()) => {
                let Some(draft) = slot.take() else { return Ok(()) };
                let generation = draft.generation();
                let (objects, at) = draft.into_list();
                let taken = self.take_list(objects, at, generation).await;
                slot.forget().await;
                taken
            }
            // What came is kept: there is no reason to wait for long.
            Err(Ended::Failed(why)) if slot.has_progressed() => {
                slot.save_due().await;
                Err(Ended::Interrupted(why))
            }
            Err(ended) => Err(ended),
        }
    }

    fn held(&self) -> Held {
        self.replica.collection().read(|c| (c.position(), c.generation()))
    }

    /// Gets page after page until the list is complete and of one state.
    async fn pages(&self, slot: &Arc<Slot>) -> Result<(), Ended> {
        loop {
            let mut changes = slot.changes();
            let held = self.held();
            match slot.ask(held) {
                Ask::Nothing => return Ok(()),
                Ask::Changes => drop(changes.changed().await),
                Ask::Page(token, limit) => {
                    if let Err(unfit) = self.page(slot, token.as_deref(), limit, held).await? {
                        slot.forget().await;
                        return Err(Ended::Failed(unfit.to_string()));
                    }
                    slot.save_due().await;
                }
            }
        }
    }

    async fn page(
        &self,
        slot: &Slot,
        token: Option<&str>,
        limit: usize,
        held: Held,
    ) -> Result<Result<(), Unfit>, Ended> {
        let mut query = format!("limit={limit}");
        if let Some(token) = token {
            query.push_str("&continue=");
            query.push_str(&escaped(token));
        }
        let began = Instant::now();
        let response = self.send(&query).await?;
        let generation = generation_of(response.headers());
        if token.is_some() && is_about_the_token(response.status()) {
            let gone = response.status() == StatusCode::GONE;
            let body = read_all(response).await?;
            let status = Status::from_json(&body);
            return Ok(slot.take_expired(status.as_ref().filter(|_| gone).and_then(Status::continue_token)));
        }
        let response = self.require_ok(response).await?;
        let body = read_all(response).await.inspect_err(|_| slot.cut())?;
        let bytes = body.len();
        self.require_room_for_list(slot, bytes).await?;
        let page = ParsedList::parse(body, self.wire_kind()).map_err(|error| Ended::Unreadable(error.to_string()))?;
        let page = Page {
            items: page.items.iter().filter_map(|object| self.reduce(object)).collect(),
            bytes,
            rest: page
                .meta
                .remaining_item_count
                .and_then(|rest| usize::try_from(rest).ok()),
            at: page.meta.resource_version,
            token: page.meta.continue_token,
            generation,
        };
        Ok(slot.take_page(page, held, began.elapsed()))
    }

    /// Whether a list that has `more` bytes than what has come of it may replace what is held.
    async fn require_room_for_list(&self, slot: &Slot, more: usize) -> Result<(), Ended> {
        let come = self.data.drafts().progress(self.replica.name());
        let come = come.map_or(0, |(_, bytes, _)| bytes);
        let room = self.data.require_room(self.replica.name(), come + more);
        if room.is_err() {
            slot.forget().await;
        }
        room.map_err(Ended::Oversized)
    }

    /// Watches what changes while the list comes, once it takes long or its pages are not of one state. Ends only by
    /// failure.
    async fn changes_beside(&self, slot: &Arc<Slot>) -> Ended {
        loop {
            let mut changes = slot.changes();
            match slot.watch_from(self.held()) {
                Ok((from, generation)) => match self.watch_beside(slot, from, generation).await {
                    Ended::Closed => tokio::time::sleep(PAUSE).await,
                    Ended::Expired => {
                        // What happened since is not known any more: the pages cannot be made one state.
                        slot.forget().await;
                        return Ended::Expired;
                    }
                    ended => return ended,
                },
                Err(None) => drop(changes.changed().await),
                Err(Some(at)) => tokio::select! {
                    _ = changes.changed() => {}
                    () = tokio::time::sleep_until(at) => {}
                },
            }
        }
    }

    async fn watch_beside(
        &self,
        slot: &Slot,
        from: yurt_apimachinery::ResourceVersion,
        generation: Option<u64>,
    ) -> Ended {
        let response = match self.get(&self.watch_query(from)).await {
            Ok(response) => response,
            Err(ended) => return ended,
        };
        if generation_of(response.headers()) != generation {
            return Ended::Expired;
        }
        let mut body = match Decoded::of(response) {
            Ok(body) => body,
            Err(error) => return Ended::Failed(error.to_string()),
        };
        let mut decoder = WatchDecoder::new();
        while let Some(Ok(data)) = body.next().await {
            decoder.push(&data);
            for event in decoder.by_ref() {
                let taken = event
                    .map_err(|error| Ended::Unreadable(error.to_string()))
                    .and_then(|event| self.take_beside(slot, event));
                if let Err(ended) = taken {
                    return ended;
                }
            }
        }
        Ended::Closed
    }

    fn take_beside(&self, slot: &Slot, event: RawEvent) -> Result<(), Ended> {
        let unreadable = Ended::Unreadable;
        match event.event_type {
            EventType::Error => Err(ended_by(&event.object)),
            EventType::Bookmark => {
                let bookmark = Bookmark::parse(&event.object).map_err(|error| unreadable(error.to_string()))?;
                slot.advance(bookmark.resource_version);
                Ok(())
            }
            event_type => {
                let object =
                    Object::parse(event.object, self.wire_kind()).map_err(|error| unreadable(error.to_string()))?;
                if event_type == EventType::Deleted && slot.knows(object.resource_version()) {
                    // The source itself jumped, and does not know when that was: it is no log of changes.
                    return Err(Ended::Expired);
                }
                let come = self.data.drafts().progress(self.replica.name());
                let size = come.map_or(0, |(_, bytes, _)| bytes) + object.size();
                self.data
                    .require_room(self.replica.name(), size)
                    .map_err(Ended::Oversized)?;
                match self.reduce(&object) {
                    Some(reduced) => slot.take_event(event_type, reduced),
                    None => slot.advance(object.resource_version()),
                }
                Ok(())
            }
        }
    }
}

/// Whether a refusal is about the token and not about the caller or the server's state: trying again would not help.
fn is_about_the_token(status: StatusCode) -> bool {
    let others = [
        StatusCode::UNAUTHORIZED,
        StatusCode::FORBIDDEN,
        StatusCode::REQUEST_TIMEOUT,
        StatusCode::TOO_MANY_REQUESTS,
    ];
    status.is_client_error() && !others.contains(&status)
}

/// A token is opaque, and a name may come from anybody: what could end a part of a path or a query is escaped.
pub(super) fn escaped(token: &str) -> String {
    let mut escaped = String::with_capacity(token.len());
    for byte in token.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}
