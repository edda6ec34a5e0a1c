//! Answers queries about the objects that credentials and rights are bound to, from the objects this server holds.
//! There is no index that could be out of date: the pods of one node in one namespace are few.

use yurt_apimachinery::time::Time;
use yurt_apimachinery::{Object, ObjectKey, meta};

use super::Served;
use crate::authn::claims::BoundState;
use crate::authz::node::{BoundPods, Reference};
use crate::authz::references;
use crate::registry::{Authority, Registry};

/// Field of a pod with the name of its node.
const NODE_NAME: &str = "spec.nodeName";

impl BoundPods for Registry {
    fn refer(&self, node: &str, reference: Reference, namespace: &str, name: &str) -> bool {
        let Some(pods) = self.find("", "pods").filter(|_| !namespace.is_empty()) else {
            return false;
        };
        let runs_here = |pod: &&Object| pod.field(NODE_NAME) == Some(node);
        if reference == Reference::Pod {
            let key = ObjectKey::new(Some(namespace), name);
            return pods
                .objects()
                .read(|held| held.object(&key).as_ref().is_some_and(runs_here));
        }
        // Cloned, so that no pod is parsed under the collection's lock.
        let candidates: Vec<Object> = pods.objects().read(|held| {
            let here = |pod: &&Object| pod.namespace() == Some(namespace) && runs_here(pod);
            held.objects().filter(here).cloned().collect()
        });
        candidates
            .iter()
            .any(|pod| references::refers(&pod.to_value(), reference, name))
    }
}

// === impl Served ===

impl Served {
    /// State of an object of the core group that a token is bound to.
    pub(crate) fn bound_object(&self, plural: &str, namespace: Option<&str>, name: &str) -> BoundState {
        let resource = self.registry.find("", plural);
        let Some(resource) = resource.filter(|resource| matches!(resource.authority, Authority::Own(_))) else {
            return BoundState::Unserved;
        };
        let key = ObjectKey::new(namespace, name);
        let object = resource.objects().read(|held| held.object(&key).cloned());
        object.map_or(BoundState::Missing, |object| BoundState::There {
            uid: object.uid().to_owned(),
            gone_at: gone_at(&object),
        })
    }
}

fn gone_at(object: &Object) -> Option<i64> {
    if !object.is_deleting() {
        return None;
    }
    let at = Time::parse(meta::text(&object.to_value(), "deletionTimestamp"));
    // A deletion time that cannot be parsed counts as long past.
    Some(at.map_or(i64::MIN, Time::unix))
}
