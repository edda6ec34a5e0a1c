//! What a folder of the shared store has gained, and how a collection is brought to what its pointer says.

use std::collections::BTreeSet;

use bytes::Bytes;
use yurt_apimachinery::watch::EventType;
use yurt_apimachinery::{Object, ObjectKey, ResourceKind, ResourceVersion};

use super::Pointer;
use crate::collection::{Collection, Delivery, RangeTombstone, Recovered};

/// What came into a folder.
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

    /// The collection that consists of this.
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
        }
    }
}

/// Whether what is held has all that the pointer says, and may be on its way into the store.
pub(super) fn is_ahead(held: &Collection, pointer: &Pointer) -> bool {
    held.is_complete() && (held.generation(), held.position()) >= (pointer.generation, pointer.position)
}

/// Brings `held` to the pointer by all that is stored. Where that remembers what happened since `C`, nothing is jumped over:
/// whoever read more of it elsewhere can go on here.
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

/// What leads from `held` to `stored`, and whether it crosses a list; `None` when that is not remembered, or does not lead
/// there: both are compared then.
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

/// Brings `held`, which is as the commit before said, to `to`: a commit holds the last state of each key only.
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
