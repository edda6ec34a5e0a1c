//! Changes of a view that follow from changes of its source. The filters ran before, outside of any lock.

use yurt_apimachinery::watch::EventType;
use yurt_apimachinery::{Object, ObjectKey, ResourceKind, ResourceVersion};

use crate::{ChangeKind, Collection, Delivery};

/// Members of the metadata that identify an object, and select it.
const OUTLINE: [&str; 6] = [
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "labels",
];

/// A delivery of the source, with its object as the view shows it.
#[derive(Debug)]
pub struct Filtered {
    delivery: Delivery,
    /// `None` if the view hides the object, or the delivery is a deletion.
    shown: Option<Object>,
}

/// Changes between the bounds of a step, or of one RV outside of a step.
#[derive(Default)]
struct Pending {
    events: Vec<(EventType, Object)>,
    /// Objects that the view hides and did not show before.
    hidden: Vec<Object>,
    /// RV of the last of them.
    rv: ResourceVersion,
    in_step: bool,
}

/// The object with nothing but its identity and its labels: what a deletion of a hidden object shows.
#[must_use]
pub fn outline(object: &Object, kind: &ResourceKind) -> Object {
    let mut value = object.to_value();
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|name, _| ["apiVersion", "kind", "metadata"].contains(&name.as_str()));
    }
    if let Some(metadata) = value.get_mut("metadata").and_then(|metadata| metadata.as_object_mut()) {
        metadata.retain(|name, _| OUTLINE.contains(&name.as_str()));
    }
    Object::from_value(value, kind).expect("an object must keep its name in an outline")
}

// === impl Filtered ===

impl Filtered {
    /// Filters a delivery; `show` is not called for deletions.
    pub fn new(delivery: Delivery, show: impl FnOnce(&Object) -> Option<Object>) -> Self {
        let shown = match &delivery {
            Delivery::Exact(change) if change.kind != ChangeKind::Deleted => show(&change.object),
            Delivery::Current { object, .. } => show(object),
            _ => None,
        };
        Self { delivery, shown }
    }
}

// === impl Collection ===

impl Collection {
    /// Applies changes of the source, in its order, up to its position `to`. A step is taken as a whole, so the changes
    /// have to end outside of one. An object that leaves the view is DELETED with its last shown state.
    pub fn project(&mut self, changes: Vec<Filtered>, kind: &ResourceKind, to: ResourceVersion) {
        let mut pending = Pending::default();
        for Filtered { delivery, shown } in changes {
            let (object, is_deleted) = match &delivery {
                Delivery::DiffBegin(_) => {
                    pending.settle(self, kind);
                    pending.in_step = true;
                    continue;
                }
                Delivery::DiffEnd { to, jumped } => {
                    let Pending { events, hidden, .. } = std::mem::take(&mut pending);
                    match jumped {
                        true => self.apply_step(*to, events),
                        false => self.catch_up_to(*to, events),
                    }
                    self.withhold_all(hidden, kind);
                    continue;
                }
                Delivery::Exact(change) => (&change.object, change.kind == ChangeKind::Deleted),
                Delivery::Current { object, .. } => (object, false),
                Delivery::Gone(object) => (object, true),
            };
            if object.resource_version() != pending.rv {
                pending.settle(self, kind);
            }
            pending.rv = object.resource_version();
            match self.projected(object, shown, is_deleted, kind) {
                Some(event) => pending.events.push(event),
                None => pending.hidden.push(object.clone()),
            }
        }
        pending.settle(self, kind);
        self.advance(to);
    }

    /// The event of one change for this view; `None` if it hides an object that it did not show.
    fn projected(
        &self,
        object: &Object,
        shown: Option<Object>,
        is_deleted: bool,
        kind: &ResourceKind,
    ) -> Option<(EventType, Object)> {
        if let Some(shown) = shown {
            return Some((EventType::Modified, shown));
        }
        let held = self.object(object.key());
        match held.map(|held| held.with_resource_version(object.resource_version())) {
            Some(last) => Some((EventType::Deleted, last)),
            None if is_deleted => Some((EventType::Deleted, outline(object, kind))),
            None => None,
        }
    }

    fn withhold_all(&mut self, hidden: Vec<Object>, kind: &ResourceKind) {
        for object in hidden {
            if !self.is_withheld(object.key()) {
                self.withhold(outline(&object, kind));
            }
        }
    }

    /// The revision after which the view shows these objects of the source: those whose content differs.
    #[must_use]
    pub fn differences(&self, seen: Vec<(ObjectKey, Option<Object>)>) -> Vec<(ObjectKey, Option<Object>)> {
        let is_same = |(key, shown): &(ObjectKey, Option<Object>)| match (shown, self.object(key)) {
            (Some(shown), Some(held)) => shown == held || shown.with_resource_version(held.resource_version()) == *held,
            (shown, held) => shown.is_none() && held.is_none(),
        };
        seen.into_iter().filter(|seen| !is_same(seen)).collect()
    }
}

// === impl Pending ===

impl Pending {
    /// Applies the changes of one RV. Those of a step wait for its end.
    fn settle(&mut self, view: &mut Collection, kind: &ResourceKind) {
        if self.in_step {
            return;
        }
        if !self.events.is_empty() {
            view.apply_all(self.rv, std::mem::take(&mut self.events));
        }
        view.withhold_all(std::mem::take(&mut self.hidden), kind);
    }
}
