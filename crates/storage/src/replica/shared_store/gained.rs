//! New rows of a folder of the shared store, and the update of a collection to the pointer's state.

use std::collections::BTreeSet;

use bytes::Bytes;
use yurt_apimachinery::watch::EventType;
use yurt_apimachinery::{Object, ObjectKey, ResourceKind, ResourceVersion};
use yurt_collection::{Collection, Delivery, RangeTombstone, Recovered};

use super::pointer::Pointer;

/// New rows of a folder.
#[derive(Default)]
pub(super) struct Gained {
    objects: Vec<Object>,
    tombstones: Vec<Object>,
    ranges: Vec<RangeTombstone>,
}

impl Gained {
    pub(super) fn read<'a>(
        rows: impl Iterator<Item = (&'a str, &'a Bytes)>,
        kind: &ResourceKind,
    ) -> Result<Self, String> {
        let mut gained = Self::default();
        for (key, value) in rows {
            let object = Object::parse(value.clone(), kind).map_err(|error| format!("{key}: {error}"))?;
            let mut parts = key.splitn(4, '/');
            let number = |part: Option<&str>| part.and_then(|part| part.parse().ok()).map(ResourceVersion);
            match parts.next() {
                Some("o") => gained.objects.push(object),
                Some("t") => gained.tombstones.push(object),
                Some("r") => {
                    let (to, after) = (number(parts.next()), number(parts.next()));
                    let (Some(to), Some(after)) = (to, after) else {
                        return Err(format!("{key}: not a range"));
                    };
                    gained.ranges.push(RangeTombstone { after, to, object });
                }
                _ => return Err(format!("{key}: unknown")),
            }
        }
        Ok(gained)
    }

    /// The collection that consists of these rows.
    pub(super) fn at(self, pointer: &Pointer) -> Recovered {
        Recovered {
            objects: self.objects,
            tombstones: self.tombstones,
            ranges: self.ranges,
            gaps: pointer.gaps.clone(),
            position: pointer.position,
            floor: pointer.floor,
            complete: true,
            generation: pointer.generation,
            high: pointer.high,
            mark: pointer.mark,
        }
    }
}

/// True if the held state covers the pointer's, and may be on its way into the store.
pub(super) fn is_ahead(held: &Collection, pointer: &Pointer) -> bool {
    held.is_complete() && (held.generation(), held.position()) >= (pointer.generation, pointer.position)
}

/// Updates `held` to the pointer with all stored rows. If these contain the history since `C`, no gap results: readers
/// that were further ahead elsewhere can resume here.
pub(super) fn apply_all(held: &mut Collection, pointer: &Pointer, all: Gained) -> Result<(), String> {
    let all = all.at(pointer);
    if !held.is_complete() || held.generation() != pointer.generation {
        held.recover(all);
        return Ok(());
    }
    let mut stored = Collection::new(false);
    stored.recover(all);
    let (from, to) = (held.position(), pointer.position);
    match history(&stored, held) {
        Some((events, jumped)) => held
            .follow_step((from, to), events, jumped)
            .map_err(|error| error.to_string()),
        None => held
            .replace(stored.objects().cloned().collect(), to)
            .map_err(|error| error.to_string()),
    }
}

/// Changes from `held` to `stored`, and whether they cross a list. `None` when the history is not remembered, or does
/// not lead there: the caller then compares both.
fn history(stored: &Collection, held: &Collection) -> Option<(Vec<(EventType, Object)>, bool)> {
    let mut reader = stored.open(held.position()).ok()?;
    let deliveries = stored.read(&mut reader, usize::MAX).ok()?;
    let (mut events, mut jumped) = (Vec::new(), false);
    for delivery in deliveries {
        match delivery {
            Delivery::Current { object, .. } => events.push((EventType::Modified, object)),
            Delivery::Gone(object) => events.push((EventType::Deleted, object)),
            Delivery::DiffEnd { jumped: crossed, .. } => jumped |= crossed,
            Delivery::DiffBegin(_) | Delivery::Exact(_) => {}
        }
    }
    let told: BTreeSet<&ObjectKey> = events.iter().map(|(_, object)| object.key()).collect();
    let same = |object: &Object| {
        let here = held.object(object.key());
        here.is_some_and(|here| here.resource_version() == object.resource_version())
    };
    let is_whole = stored
        .objects()
        .all(|object| told.contains(object.key()) || same(object))
        && held
            .objects()
            .all(|object| told.contains(object.key()) || stored.object(object.key()).is_some());
    is_whole.then_some((events, jumped))
}

/// Updates `held`, which has the state of the commit before, to `to`: a commit contains only the last state of each
/// key.
pub(super) fn apply_step(held: &mut Collection, to: ResourceVersion, gained: Gained) {
    let modified = gained.objects.into_iter().map(|object| (EventType::Modified, object));
    let deleted = gained.tombstones.into_iter().map(|object| (EventType::Deleted, object));
    let mut events: Vec<_> = modified.chain(deleted).collect();
    if !gained.ranges.is_empty() {
        events.extend(
            gained
                .ranges
                .into_iter()
                .map(|range| (EventType::Deleted, range.object)),
        );
        return held.apply_step(to, events);
    }
    if events.is_empty() {
        held.advance(to);
    } else {
        held.catch_up_to(to, events);
    }
}
