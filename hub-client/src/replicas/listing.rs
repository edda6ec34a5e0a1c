//! Lists a collection page by page into a draft that outlives the stream. If the list takes long, a watch collects the
//! changes in parallel.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::time::Instant;
use yurt_apimachinery::list::ParsedList;
use yurt_apimachinery::watch::{Bookmark, EventType, RawEvent, WatchDecoder};
use yurt_apimachinery::{Object, Status};
use yurt_pool_protocol::partial_list::{Page, Unfit};
use yurt_runtime::http::Decoded;
use yurt_runtime::http::client::HttpClient;

use super::partial_list_store::{CopyPosition, ListStep, Slot};
use super::reflector::{Reflector, StreamEnd, ended_by, generation_of, read_all, read_checked};
use crate::upstream::watch_body::{CLOUD_SILENCE, OVERDUE};

/// Pause before the next watch after the server ended one.
const PAUSE: Duration = Duration::from_millis(200);

// === impl Reflector ===

impl Reflector {
    /// Fetches the whole collection, continuing the draft of an earlier stream.
    pub(super) async fn list(&mut self) -> Result<(), StreamEnd> {
        let collection = self.replica.collection();
        let slot = self
            .data
            .partial_lists()
            .slot(self.replica.name(), collection.kind(), self.source);
        slot.open(self.held().0).await;
        if self.is_gone() {
            // The draft may be of the history that the cloud has lost.
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
            // The received pages are kept, so a long pause is not needed.
            Err(StreamEnd::Failed(why) | StreamEnd::Silent(why)) if slot.has_progressed() => {
                slot.save_due().await;
                Err(StreamEnd::Interrupted(why))
            }
            Err(ended) => {
                if matches!(ended, StreamEnd::Oversized(_)) {
                    // The pause is long, and other lists have less room for this one.
                    slot.forget().await;
                }
                Err(ended)
            }
        }
    }

    fn held(&self) -> CopyPosition {
        self.replica.collection().read(|c| (c.position(), c.generation()))
    }

    /// Gets pages until the list is complete and of one state.
    async fn pages(&self, slot: &Arc<Slot>) -> Result<(), StreamEnd> {
        loop {
            let mut changes = slot.changes();
            let held = self.held();
            match slot.ask(held) {
                ListStep::Nothing => return Ok(()),
                ListStep::Changes => drop(changes.changed().await),
                ListStep::Page(token, limit) => {
                    if let Err(unfit) = self.page(slot, token.as_deref(), limit, held).await? {
                        slot.forget().await;
                        return Err(StreamEnd::Failed(unfit.to_string()));
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
        held: CopyPosition,
    ) -> Result<Result<(), Unfit>, StreamEnd> {
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
        self.require_later_history(response.headers())?;
        // A page that cannot be applied ends while it arrives: no server makes the hub hold more than the limit.
        let body = read_checked(response, |bytes| self.require_room_for_list(bytes)).await;
        let body = body.inspect_err(|ended| {
            if !matches!(ended, StreamEnd::Oversized(_)) {
                slot.cut();
            }
        })?;
        let bytes = body.len();
        let page =
            ParsedList::parse(body, self.wire_kind()).map_err(|error| StreamEnd::Unreadable(error.to_string()))?;
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

    /// Checks that a list with `more` bytes in addition to the draft may replace the replica.
    fn require_room_for_list(&self, more: usize) -> Result<(), StreamEnd> {
        let come = self.data.partial_lists().progress(self.replica.name());
        let come = come.map_or(0, |(_, bytes, _)| bytes);
        self.data
            .require_room_for_list(self.replica.name(), come + more)
            .map_err(StreamEnd::Oversized)
    }

    /// Watches changes during the list, once it takes long or its pages are not of one state. Ends only with an error.
    async fn changes_beside(&self, slot: &Arc<Slot>) -> StreamEnd {
        loop {
            let mut changes = slot.changes();
            match slot.watch_from(self.held()) {
                Ok((from, generation)) => match self.watch_beside(slot, from, generation).await {
                    StreamEnd::Closed => tokio::time::sleep(PAUSE).await,
                    StreamEnd::Expired => {
                        // The changes since then are compacted: the pages cannot become one state.
                        slot.forget().await;
                        return StreamEnd::Expired;
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

    /// Watches from `from` on into the draft. Its limits of silence are those of every watch.
    pub(super) async fn watch_beside(
        &self,
        slot: &Slot,
        from: yurt_apimachinery::ResourceVersion,
        generation: Option<u64>,
    ) -> StreamEnd {
        let response = match self.get(&self.watch_query(from)).await {
            Ok(response) => response,
            Err(ended) => return ended,
        };
        if generation_of(response.headers()) != generation {
            return StreamEnd::Expired;
        }
        let connection = HttpClient::connection_of(&response);
        let mut body = match Decoded::of(response) {
            Ok(body) => body,
            Err(error) => return StreamEnd::Failed(error.to_string()),
        };
        let mut decoder = WatchDecoder::new();
        let ends = Instant::now() + self.lasts() + OVERDUE;
        let mut has_bookmarks = false;
        loop {
            // This is no watch of a replica: the coordinator sends bookmarks as seldom as the cloud.
            let until = match has_bookmarks {
                true => ends.min(Instant::now() + CLOUD_SILENCE),
                false => ends,
            };
            let data = match tokio::time::timeout_at(until, body.next()).await {
                Ok(Some(Ok(data))) => data,
                Ok(_) => return StreamEnd::Closed,
                Err(_) => {
                    self.leave(connection);
                    return StreamEnd::Silent("the watch during the list is silent, or did not end in time".to_owned());
                }
            };
            decoder.push(&data);
            for event in decoder.by_ref() {
                has_bookmarks |= matches!(&event, Ok(event) if event.event_type == EventType::Bookmark);
                let taken = event
                    .map_err(|error| StreamEnd::Unreadable(error.to_string()))
                    .and_then(|event| self.take_beside(slot, event));
                if let Err(ended) = taken {
                    return ended;
                }
            }
        }
    }

    fn take_beside(&self, slot: &Slot, event: RawEvent) -> Result<(), StreamEnd> {
        let unreadable = StreamEnd::Unreadable;
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
                    // The source itself skipped events and does not return their position: it is no log of changes.
                    return Err(StreamEnd::Expired);
                }
                self.require_room_for_list(object.size())?;
                match self.reduce(&object) {
                    Some(reduced) => slot.take_event(event_type, reduced),
                    None => slot.advance(object.resource_version()),
                }
                Ok(())
            }
        }
    }
}

/// True if a refusal concerns the token rather than the caller or the server's state. Retrying with the same token
/// would fail again.
fn is_about_the_token(status: StatusCode) -> bool {
    let others = [
        StatusCode::UNAUTHORIZED,
        StatusCode::FORBIDDEN,
        StatusCode::REQUEST_TIMEOUT,
        StatusCode::TOO_MANY_REQUESTS,
    ];
    status.is_client_error() && !others.contains(&status)
}

/// Escapes characters that could end a part of a path or query: a token is opaque, and a name may come from any client.
pub(crate) fn escaped(token: &str) -> String {
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
