//! Answers the node authorizer's queries from the pods this server holds. There is no index that could be out of date: the
//! pods of one node in one namespace are few.

use yurt_apimachinery::{Object, ObjectKey};

use super::node::{BoundPods, Reference};
use super::references;
use crate::registry::Registry;

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
