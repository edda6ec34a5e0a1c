//! Rules for a batch of events: it continues exactly at the collection's position, or repeats an applied one.

use yurt_apimachinery::kind::NameRule;
use yurt_apimachinery::meta::{dns_label_errors, name_errors};
use yurt_apimachinery::watch::EventType;
use yurt_apimachinery::{Object, ResourceKind, ResourceVersion, Status};
use yurt_collection::Collection;

use super::{EventsCall, Refusal};

/// Parses the events of a call.
///
/// # Errors
/// 400 for an event that is none of the cloud, or not in `(after, upTo]`.
pub fn read_events(call: &EventsCall<'_>, kind: &ResourceKind) -> Result<Vec<(EventType, Object)>, Status> {
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
///
/// # Errors
/// The reason why it is none.
pub fn read_object(text: &str, kind: &ResourceKind) -> Result<Object, String> {
    let bytes = bytes::Bytes::copy_from_slice(text.as_bytes());
    let object = Object::parse(bytes, kind).map_err(|error| error.to_string())?;
    check_key(&object)?;
    Ok(object)
}

/// Checks what every kind requires of a name and a namespace: the rules of a kind are stricter, and older objects need
/// not follow them.
fn check_key(object: &Object) -> Result<(), String> {
    let namespace = object.namespace().map(dns_label_errors).unwrap_or_default();
    let name = name_errors(NameRule::PathSegment, object.name(), false);
    let faults = [("namespace", namespace), ("name", name)];
    match faults.iter().find_map(|(what, errors)| Some((what, errors.first()?))) {
        Some((what, why)) => Err(format!("{what} of {:?}: {why}", object.key().as_str())),
        None => Ok(()),
    }
}

/// Checks that the batch continues at `C`. Returns `C` if it repeats an applied batch.
///
/// # Errors
/// [`Refusal::Generation`] or [`Refusal::Gap`].
pub fn next(held: &Collection, call: &EventsCall<'_>) -> Result<Option<ResourceVersion>, Refusal> {
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

/// Applies a batch that was read from `call`, as a whole or not at all, if `judge` allows it. Returns `C` after it.
///
/// # Errors
/// [`Refusal`]; nothing has changed then.
pub fn apply(
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
///
/// # Errors
/// [`Refusal::Gap`].
pub fn require_mark(held: &Collection, to: ResourceVersion) -> Result<(), Refusal> {
    let applied = held.position();
    held.covers(to).then_some(()).ok_or(Refusal::Gap { applied })
}
