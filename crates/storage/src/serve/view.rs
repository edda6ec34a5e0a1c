//! A client's view of objects, and the event that a change means for that client.
//!
//! Pure. An object that was visible and is no longer becomes DELETED, one that becomes visible ADDED;
//! the event carries the RV of the change.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::watch;
use yurt_apimachinery::time::Time;
use yurt_apimachinery::watch::EventType;
use yurt_apimachinery::{Object, ObjectKey, ResourceKind, ResourceVersion};
use yurt_codec::negotiation::Negotiated;
use yurt_collection::{Change, ChangeKind, Delivery};
use yurt_runtime::Clock;

use super::Selection;

/// A client's view of single objects: a function of the object and of the inputs named by [`View::inputs`].
pub trait View: Send + Sync {
    /// The object as the client sees it; `None` hides it. Unchanged objects are returned as they are.
    fn show(&self, object: &Object) -> Option<Object>;

    /// True if every object is shown unchanged, so that frames can be shared between watchers.
    fn is_identity(&self) -> bool {
        false
    }

    /// Kind of the shown objects, if it differs from the collection's.
    fn kind(&self) -> Option<&'static ResourceKind> {
        None
    }

    /// True if some objects may be hidden.
    fn hides(&self) -> bool {
        !self.is_identity()
    }

    /// Channels that announce changes of the view's inputs. Hidden objects are evaluated again then. An object already
    /// shown keeps its form until it changes or is read again.
    fn inputs(&self) -> Vec<watch::Receiver<u64>> {
        Vec::new()
    }
}

/// Shows everything as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unfiltered;

impl View for Unfiltered {
    fn show(&self, object: &Object) -> Option<Object> {
        Some(object.clone())
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
    /// Selected objects that the view hides at present.
    pub(super) hidden: BTreeSet<ObjectKey>,
}

// === impl WatcherView ===

impl WatcherView {
    /// The object as the client sees it; `None` if it is not selected or hidden.
    pub(super) fn see(&mut self, object: &Object) -> Option<Object> {
        let selected = self.selection.matches(object);
        let seen = if selected { self.view.show(object) } else { None };
        if selected && seen.is_none() {
            self.hidden.insert(object.key().clone());
        } else {
            self.hidden.remove(object.key());
        }
        seen
    }

    /// The frame of one delivery for this client; `None` if its selectors or filters exclude the object.
    pub(super) fn frame(&mut self, delivery: &Delivery) -> Option<Bytes> {
        match delivery {
            Delivery::Exact(change) => self.exact(change),
            Delivery::Current { object, .. } | Delivery::Gone(object) if !self.inside(object) => None,
            Delivery::Current { object, created } => match self.see(object) {
                Some(seen) if *created => Some(self.encode(EventType::Added, seen.bytes())),
                Some(seen) => Some(self.encode(EventType::Modified, seen.bytes())),
                None if *created => None,
                // It may have matched at the client's position: report that it is absent now.
                None => Some(self.final_frame(object)),
            },
            Delivery::Gone(object) => {
                self.hidden.remove(object.key());
                Some(self.final_frame(object))
            }
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
        let now = if is_deleted {
            self.hidden.remove(change.object.key());
            None
        } else {
            self.see(&change.object)
        };
        match (before, now) {
            (None, None) => None,
            (None, Some(now)) => Some(self.encode(EventType::Added, now.bytes())),
            (Some(_), Some(now)) => Some(self.encode(EventType::Modified, now.bytes())),
            // Whether the view showed it then may have depended on inputs that changed since. A DELETED too many is
            // harmless, one too few is a lost deletion.
            //
            // A deletion shows its last state to every client. An object that left the selection is shown in its
            // previous state, as in kube-apiserver, if that is known. Inside of a step it is unknown, so the state at
            // that RV is shown, as in a catch-up.
            (Some(_), None) if is_deleted || change.is_conflated => Some(self.final_frame(&change.object)),
            (Some(before), None) => Some(self.final_frame(&before.with_resource_version(change.resource_version()))),
        }
    }

    /// DELETED for an object whose visibility at the client's position is unknown. A hidden object is reduced to its
    /// metadata, so that no unfiltered content is sent.
    fn final_frame(&mut self, object: &Object) -> Bytes {
        match self.view.show(object) {
            Some(seen) => self.encode(EventType::Deleted, seen.bytes()),
            None => self.encode(EventType::Deleted, &metadata_only(object)),
        }
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

/// The object reduced to its metadata, under its own kind.
fn metadata_only(object: &Object) -> Bytes {
    let mut value = object.to_value();
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|name, _| matches!(name.as_str(), "apiVersion" | "kind" | "metadata"));
    }
    Bytes::from(value.to_string())
}

#[cfg(test)]
mod tests {
    use yurt_apimachinery::kind::find_kind;

    use super::*;

    struct Nothing;

    impl View for Nothing {
        fn show(&self, _: &Object) -> Option<Object> {
            None
        }
    }

    /// A stream lasts for hours, and names come and go.
    #[test]
    fn deleted_object_is_not_remembered_as_hidden() {
        let kind = find_kind("", "services").expect("services must be built in");
        let json = r#"{"metadata":{"namespace":"shop","name":"a","uid":"u","resourceVersion":"5"}}"#;
        let object = Object::parse(Bytes::from(json), kind).expect("fixture must parse");
        let mut watcher = WatcherView {
            selection: Selection::default(),
            view: Arc::new(Nothing),
            kind,
            how: Negotiated::default(),
            clock: Clock::system(),
            began: false,
            hidden: BTreeSet::new(),
        };
        let deletions = [
            Delivery::Gone(object.clone()),
            Delivery::Exact(Change::new(
                ChangeKind::Deleted,
                object.clone(),
                Some(object.clone()),
                false,
            )),
        ];
        for deletion in deletions {
            assert_eq!(watcher.see(&object), None);
            assert_eq!(watcher.hidden.len(), 1);
            let _ = watcher.frame(&deletion);
            assert_eq!(watcher.hidden.len(), 0, "{deletion:?}");
        }
    }
}
