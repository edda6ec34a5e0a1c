//! The form in which a client sees objects, and the event that a change means for that client's selection.
//!
//! Pure. An object that was selected and is no longer becomes DELETED, one that becomes selected ADDED;
//! the event carries the RV of the change.
//!
//! The previous state is unknown in a catch-up, so DELETED is also sent for objects that were never selected. A node
//! may read only its own pods, which the authorizer derives from the field selector. So DELETED shows it no other pods.

use std::sync::Arc;

use bytes::Bytes;
use yurt_apimachinery::selector::FieldOperator;
use yurt_apimachinery::time::Time;
use yurt_apimachinery::watch::EventType;
use yurt_apimachinery::{Object, ResourceKind, ResourceVersion};
use yurt_codec::negotiation::Negotiated;
use yurt_collection::{Change, ChangeKind, Delivery, outline};
use yurt_runtime::Clock;

use super::Selection;

/// Field of a pod with the name of its node; empty until the pod is bound.
const NODE_NAME: &str = "spec.nodeName";

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
                None => Some(self.final_frame(&self.revealed(object))),
            },
            Delivery::Gone(object) => Some(self.final_frame(&self.revealed(object))),
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

    /// Namespace and name never change, and a bound pod stays on its node, so an object outside them was never visible.
    /// A pod without a node may be one whose spec a filter hides.
    fn inside(&self, object: &Object) -> bool {
        let at = object.field(NODE_NAME).unwrap_or_default();
        self.selection
            .confined_to()
            .is_none_or(|namespace| object.namespace() == Some(namespace))
            && self
                .selection
                .fields
                .requires("metadata.name")
                .is_none_or(|name| object.name() == name)
            && self.nodes().all(|node| [node, ""].contains(&at))
    }

    /// The part of the object that DELETED may show where its earlier states are unknown: of a pod that is not on the
    /// required node only the outline. Other selections show the whole object, because clients clean up by its state.
    fn revealed(&self, object: &Object) -> Object {
        match self.nodes().all(|node| object.field(NODE_NAME) == Some(node)) {
            true => object.clone(),
            false => outline(object, self.kind),
        }
    }

    /// The node whose pods are selected. A selection of several nodes selects nothing.
    fn nodes(&self) -> impl Iterator<Item = &str> {
        let is_pods = self.kind.group.is_empty() && self.kind.plural == "pods";
        let requirements = self.selection.fields.requirements().iter();
        let nodes = requirements.filter(move |required| {
            is_pods && required.operator == FieldOperator::Equals && required.field == NODE_NAME
        });
        nodes
            .map(|required| required.value.as_str())
            .filter(|node| !node.is_empty())
    }

    /// True if every change is sent as it is: the reader covers only the namespace's keys.
    fn is_plain(&self) -> bool {
        let selects = !self.selection.labels.is_everything() || !self.selection.fields.is_everything();
        self.how.is_shared() && !selects && self.view.is_identity()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use yurt_apimachinery::kind::find_kind;
    use yurt_apimachinery::{FieldSelector, LabelSelector};

    use super::*;

    fn pods() -> &'static ResourceKind {
        find_kind("", "pods").expect("pods must be built in")
    }

    fn pod(node: &str) -> Object {
        let pod = json!({
            "metadata": {"namespace": "shop", "name": "p", "uid": "u1", "resourceVersion": "7", "labels": {"l": "y"}},
            "spec": {"nodeName": node, "containers": []},
        });
        Object::parse(pod.to_string().into(), pods()).expect("fixture must parse")
    }

    /// The event of a client that selects pods.
    fn told(fields: &str, labels: &str, delivery: &Delivery) -> Option<Value> {
        let mut watcher = WatcherView {
            selection: Selection {
                namespace: None,
                fields: FieldSelector::parse(fields).expect("the selector must parse"),
                labels: LabelSelector::parse(labels).expect("the selector must parse"),
            },
            view: Arc::new(Unfiltered),
            kind: pods(),
            how: Negotiated::default(),
            clock: Clock::system(),
            began: false,
        };
        let frame = watcher.frame(delivery)?;
        Some(serde_json::from_slice(&frame).expect("a frame must be JSON"))
    }

    /// Deliveries of a catch-up in which the client may know an earlier state of `object`.
    fn catch_up(object: &Object) -> [Delivery; 2] {
        let current = Delivery::Current {
            object: object.clone(),
            created: false,
            known: true,
        };
        [current, Delivery::Gone(object.clone())]
    }

    /// Conformance: 6.24
    #[test]
    fn node_that_catches_up_receives_nothing_of_pods_on_other_nodes() {
        for fields in ["spec.nodeName=n1", "spec.nodeName=n1,spec.nodeName=n2"] {
            for delivery in catch_up(&pod("n2")) {
                assert_eq!(told(fields, "", &delivery), None, "{fields}: {delivery:?}");
            }
        }
    }

    /// A filter's outline of a pod of this node has no node, so the deletion has to arrive.
    ///
    /// Conformance: 6.24
    #[test]
    fn node_that_catches_up_receives_the_outline_of_a_pod_without_a_node() {
        for delivery in catch_up(&pod("")) {
            let event = told("spec.nodeName=n1", "", &delivery).expect("a deletion");
            assert_eq!(event["type"], "DELETED");
            let identity =
                json!({"namespace": "shop", "name": "p", "uid": "u1", "resourceVersion": "7", "labels": {"l": "y"}});
            assert_eq!(event["object"]["metadata"], identity);
            assert_eq!(event["object"]["spec"], Value::Null);
        }
    }

    #[test]
    fn pod_that_is_gone_from_the_selected_node_is_shown_whole() {
        let [_, gone] = catch_up(&pod("n1"));
        let event = told("spec.nodeName=n1", "l=x", &gone).expect("a deletion");
        assert_eq!(event["object"]["spec"]["nodeName"], "n1");
    }

    /// kube-proxy and the scheduler clean up by the spec of the deleted object.
    #[test]
    fn object_that_left_another_selection_is_shown_whole() {
        for (fields, labels) in [("spec.nodeName=", ""), ("", "l=x"), ("status.phase=Running", "")] {
            for delivery in catch_up(&pod("n1")) {
                let event = told(fields, labels, &delivery).expect("a deletion");
                assert_eq!(
                    (&event["type"], &event["object"]["spec"]["nodeName"]),
                    (&"DELETED".into(), &"n1".into())
                );
            }
        }
    }
}
