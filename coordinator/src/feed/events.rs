//! Applies a batch of events of the cloud's log, which has to continue exactly at the collection's position.

use std::collections::BTreeSet;

use serde_json::Value;
use yurt_apimachinery::watch::EventType;
use yurt_apimachinery::{Object, ResourceKind, ResourceVersion, Status};
use yurt_pool_protocol::members;
// The feeding call holds the fence: there is no other writer, and `apply` compares the generation.
use yurt_collection::Collection;
use yurt_storage::OnlyWriter as _;

use super::collection::PoolCollection;
use super::wire::{EventsCall, Progress};
use super::{Feed, FeedError, Refusal, decode};
use crate::authn::User;

impl Feed {
    /// Applies one batch as a whole or not at all. It is durable a few seconds later: a crash costs a resend. Where several
    /// coordinators share the data, it is stored immediately, for the others to see.
    pub(super) async fn take_events(
        &self,
        collection: &PoolCollection,
        user: &User,
        body: &[u8],
    ) -> Result<Value, FeedError> {
        let call: EventsCall<'_> = decode(body)?;
        if !call.up_to.is_own() {
            Refusal::check_position("upTo", call.up_to)?;
        }
        let events = read_events(&call, collection.objects().kind())?;
        self.require_members(collection)?;
        self.admit(collection, events.iter().map(|(_, object)| object))?;
        if collection.objects().read(|held| next(held, &call))?.is_none() {
            self.cover(collection, call.generation, call.up_to).await?;
        }
        let (applied, guard) = {
            let election = self.fence.enter(&call.claim(), user).map_err(|_| self.fenced())?;
            self.require_room(collection, &events)?;
            let judge = |held: &Collection, events: &[_]| self.judge_members(collection, user, held, events);
            let applied = collection.objects().update(|held| apply(held, &call, events, judge))?;
            // The collection goes on without an earlier leader's unfinished snapshot.
            self.pending.lock().remove(collection.name());
            self.metrics.batch(collection.name(), self.is_late(&election.holder));
            (applied, election.guard())
        };
        if self.replicas.is_shared() {
            self.persist(guard.as_ref()).await?;
            self.tell_freshness(collection, call.fresh).await;
        }
        collection.heard(call.fresh, self.clock.boot());
        Ok(Progress {
            applied,
            durable: collection.replica().durable().position.min(applied),
        }
        .to_json())
    }

    /// Checks the membership that results from these events, if the collection is the members.
    fn judge_members(
        &self,
        collection: &PoolCollection,
        user: &User,
        held: &Collection,
        events: &[(EventType, Object)],
    ) -> Result<(), Refusal> {
        if collection.name() != members::COLLECTION || events.is_empty() {
            return Ok(());
        }
        let mut names: BTreeSet<&str> = held.objects().map(Object::name).collect();
        for (event_type, object) in events {
            match event_type {
                EventType::Deleted => names.remove(object.name()),
                _ => names.insert(object.name()),
            };
        }
        self.members.judge(user.node_name(), names.into_iter())
    }

    pub(super) fn fenced(&self) -> Refusal {
        Refusal::Fenced {
            store: self.fence.store().to_owned(),
        }
    }
}

fn read_events(call: &EventsCall<'_>, kind: &ResourceKind) -> Result<Vec<(EventType, Object)>, Status> {
    let mut last = call.after;
    let mut events = Vec::with_capacity(call.events.len());
    for event in &call.events {
        let bad = |why: String| Status::bad_request(format!("event after {last}: {why}"));
        let event_type = match event.kind.as_str() {
            "ADDED" => EventType::Added,
            "MODIFIED" => EventType::Modified,
            "DELETED" => EventType::Deleted,
            other => return Err(bad(format!("type {other:?} cannot be fed"))),
        };
        let object = read_object(event.object.get(), kind).map_err(bad)?;
        let rv = object.resource_version();
        if rv <= last || rv > call.up_to || rv.is_own() {
            return Err(bad(format!("resourceVersion {rv} is not in ({last}, {}]", call.up_to)));
        }
        last = rv;
        events.push((event_type, object));
    }
    if call.up_to < call.after || call.up_to.is_own() {
        return Err(Status::bad_request(format!(
            "upTo {} is not at or after {}",
            call.up_to, call.after
        )));
    }
    Ok(events)
}

/// Parses an object of the feed. Its bytes are copied: a slice would keep the whole message in memory.
pub(super) fn read_object(text: &str, kind: &ResourceKind) -> Result<Object, String> {
    Object::parse(bytes::Bytes::copy_from_slice(text.as_bytes()), kind).map_err(|error| error.to_string())
}

/// Checks that the batch continues at `C`. Returns `C` if it repeats an applied batch.
fn next(held: &Collection, call: &EventsCall<'_>) -> Result<Option<ResourceVersion>, Refusal> {
    let at = held.position();
    if held.generation() != call.generation {
        return Err(Refusal::Generation {
            generation: held.generation(),
            applied: at,
        });
    }
    if held.is_complete() && call.up_to <= at {
        return Ok(Some(at));
    }
    if !held.is_complete() || call.after != at {
        return Err(Refusal::Gap { applied: at });
    }
    Ok(None)
}

fn apply(
    held: &mut Collection,
    call: &EventsCall<'_>,
    events: Vec<(EventType, Object)>,
    judge: impl Fn(&Collection, &[(EventType, Object)]) -> Result<(), Refusal>,
) -> Result<ResourceVersion, Refusal> {
    if let Some(at) = next(held, call)? {
        return Ok(at);
    }
    require_mark(held, call.up_to)?;
    judge(held, &events)?;
    if call.step {
        held.catch_up_to(call.up_to, events);
    } else {
        for (event_type, object) in events {
            held.apply(event_type, object);
        }
        held.advance(call.up_to);
    }
    Ok(held.position())
}

/// Checks that the stored mark covers `to`; it did before this call entered the fence.
pub(super) fn require_mark(held: &Collection, to: ResourceVersion) -> Result<(), Refusal> {
    let applied = held.position();
    held.covers(to).then_some(()).ok_or(Refusal::Gap { applied })
}

/// Parses and applies a batch without checking the sender: the remaining checks when a hostile leader passes the fence.
/// Returns true if it was applied.
pub(crate) fn apply_unfenced(held: &mut Collection, kind: &ResourceKind, body: &[u8]) -> bool {
    let Ok(call) = decode::<EventsCall<'_>>(body) else {
        return false;
    };
    read_events(&call, kind).is_ok_and(|events| apply(held, &call, events, |_, _| Ok(())).is_ok())
}
