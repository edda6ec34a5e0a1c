//! The form in which a client sees objects, and the event that a change means for that client's selection.
//!
//! Pure. An object that was selected and is no longer becomes DELETED, one that becomes selected ADDED;
//! the event carries the RV of the change.

use std::sync::Arc;

use bytes::Bytes;
use yurt_apimachinery::time::Time;
use yurt_apimachinery::watch::EventType;
use yurt_apimachinery::{Object, ResourceKind, ResourceVersion};
use yurt_codec::negotiation::Negotiated;
use yurt_collection::{Change, ChangeKind, Delivery};
use yurt_runtime::Clock;

use super::Selection;

/// Form of the shown objects: a pure function of each object.
pub trait View: Send + Sync {
    /// The object as the client sees it. Unchanged objects are returned as they are.
    fn show(&self, object: &Object) -> Object;

    /// True if every object is shown unchanged, so that frames can be shared between watchers.
    fn is_identity(&self) -> bool {
        false
    }

    /// Kind of the shown objects, if it differs from the collection's.
    fn kind(&self) -> Option<&'static ResourceKind> {
        None
    }
}

/// Shows everything as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unfiltered;

impl View for Unfiltered {
    fn show(&self, object: &Object) -> Object {
        object.clone()
    }

    fn is_identity(&self) -> bool {
        true
    }
}

/// State that decides which events one watcher receives.
pub(super) struct WatcherView {
    pub(super) selection: Selection,
    pub(super) view: Arc<dyn View>,
    pub(super) kind: &'static ResourceKind,
    /// Format of the events.
    pub(super) how: Negotiated,
    pub(super) clock: Clock,
    /// True if an event was written already.
    pub(super) began: bool,
}

// === impl WatcherView ===

impl WatcherView {
    /// The object as the client sees it; `None` if it is not selected.
    pub(super) fn see(&self, object: &Object) -> Option<Object> {
        self.selection.matches(object).then(|| self.view.show(object))
    }

    /// The frame of one delivery for this client; `None` if its selectors exclude the object.
    pub(super) fn frame(&mut self, delivery: &Delivery) -> Option<Bytes> {
        match delivery {
            Delivery::Exact(change) => self.exact(change),
            Delivery::Current { object, .. } | Delivery::Gone(object) if !self.inside(object) => None,
            Delivery::Current { object, created, known } => match self.see(object) {
                Some(seen) if *created => Some(self.encode(EventType::Added, &seen.bytes())),
                Some(seen) => Some(self.encode(EventType::Modified, &seen.bytes())),
                None if !*known => None,
                // An earlier state may have matched: report that it is absent now.
                None => Some(self.final_frame(object)),
            },
            Delivery::Gone(object) => Some(self.final_frame(object)),
            Delivery::DiffBegin(_) | Delivery::DiffEnd { .. } => None,
        }
    }

    /// The frame of an object's JSON in this client's format.
    pub(super) fn encode(&mut self, event: EventType, object: &Bytes) -> Bytes {
        let is_first = !std::mem::replace(&mut self.began, true);
        self.how.frame(event, self.kind, object, self.now(), is_first)
    }

    pub(super) fn bookmark(&mut self, version: ResourceVersion, annotations: &[(&str, &str)]) -> Bytes {
        let is_first = !std::mem::replace(&mut self.began, true);
        self.how.bookmark(self.kind, version, annotations, self.now(), is_first)
    }

    fn now(&self) -> Time {
        Time::from_unix(self.clock.unix().secs)
    }

    fn exact(&mut self, change: &Change) -> Option<Bytes> {
        if self.is_plain() {
            let event = match change.kind {
                ChangeKind::Created => EventType::Added,
                ChangeKind::Updated => EventType::Modified,
                ChangeKind::Deleted => EventType::Deleted,
            };
            return Some(change.frame(event, self.how, self.kind));
        }
        let is_deleted = change.kind == ChangeKind::Deleted;
        // Without the previous state, only the last state is available.
        let before = change.previous.as_ref().or(is_deleted.then_some(&change.object));
        let before = before.filter(|before| self.selection.matches(before));
        let now = if is_deleted { None } else { self.see(&change.object) };
        match (before, now) {
            (None, None) => None,
            (None, Some(now)) => Some(self.encode(EventType::Added, &now.bytes())),
            (Some(_), Some(now)) => Some(self.encode(EventType::Modified, &now.bytes())),
            // A deletion shows its last state to every client. An object that left the selection is shown in its
            // previous state, as in kube-apiserver, if that is known. Inside of a step it is unknown, so the state at
            // that RV is shown, as in a catch-up.
            (Some(_), None) if is_deleted || change.is_conflated => Some(self.final_frame(&change.object)),
            (Some(before), None) => Some(self.final_frame(&before.with_resource_version(change.resource_version()))),
        }
    }

    /// DELETED for an object that the client may hold.
    fn final_frame(&mut self, object: &Object) -> Bytes {
        let seen = self.view.show(object);
        self.encode(EventType::Deleted, &seen.bytes())
    }

    /// Namespace and name never change, so an object outside them was never visible.
    fn inside(&self, object: &Object) -> bool {
        self.selection
            .confined_to()
            .is_none_or(|namespace| object.namespace() == Some(namespace))
            && self
                .selection
                .fields
                .requires("metadata.name")
                .is_none_or(|name| object.name() == name)
    }

    /// True if every change is sent as it is: the reader covers only the namespace's keys.
    fn is_plain(&self) -> bool {
        let selects = !self.selection.labels.is_everything() || !self.selection.fields.is_everything();
        self.how.is_shared() && !selects && self.view.is_identity()
    }
}
