//! Decides which Secrets and ConfigMaps the pods of a node may need. Pure.
//!
//! Every string in the spec of a pod counts as a name in the pod's namespace. So no reference is missed, also one in a
//! kind of volume that this hub does not know. A string that only looks like a name keeps one selection too many.

use std::collections::{HashMap, HashSet};

use serde_json::Value;
use yurt_apimachinery::Object;

/// Names that pods may reference, by namespace.
#[derive(Default)]
pub(super) struct References(HashMap<String, HashSet<String>>);

// === impl References ===

impl References {
    /// Names that these pods may reference, whatever their phase.
    pub(super) fn of(pods: &[Object]) -> Self {
        let mut references = Self::default();
        for pod in pods {
            let namespace = pod.namespace().unwrap_or_default().to_owned();
            let names = references.0.entry(namespace).or_default();
            if let Some(spec) = pod.to_value().get_mut("spec") {
                add_strings(spec.take(), names);
            }
        }
        references
    }

    /// True if one of the pods may reference the object `name` in `namespace`.
    pub(super) fn has(&self, namespace: &str, name: &str) -> bool {
        self.0.get(namespace).is_some_and(|names| names.contains(name))
    }
}

/// Adds every string inside `value`; names of members are none.
fn add_strings(value: Value, strings: &mut HashSet<String>) {
    let mut rest = vec![value];
    while let Some(value) = rest.pop() {
        match value {
            Value::String(text) => {
                strings.insert(text);
            }
            Value::Array(items) => rest.extend(items),
            Value::Object(members) => rest.extend(members.into_iter().map(|(_, member)| member)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use yurt_apimachinery::kind::find_kind;

    use super::*;

    fn pod(namespace: &str, spec: &Value) -> Object {
        let pod =
            json!({"metadata": {"namespace": namespace, "name": "web"}, "spec": spec, "status": {"phase": "Failed"}});
        Object::from_value(pod, find_kind("", "pods").unwrap()).unwrap()
    }

    /// Kubernetes' own list is `pkg/api/v1/pod/util.go`.
    #[test]
    fn every_reference_of_a_pod_counts() {
        let container = |source: Value| json!({"name": "c", "env": [{"name": "A", "valueFrom": source}]});
        let volume = |source: Value| json!({"volumes": [{"name": "v", "emptyDir": {}}, source]});
        for spec in [
            json!({"imagePullSecrets": [{"name": "db"}]}),
            json!({"containers": [container(json!({"secretKeyRef": {"name": "db", "key": "a"}}))]}),
            json!({"initContainers": [container(json!({"configMapKeyRef": {"name": "db", "key": "a"}}))]}),
            json!({"ephemeralContainers": [{"name": "c", "envFrom": [{"secretRef": {"name": "db"}}]}]}),
            json!({"containers": [{"name": "c", "envFrom": [{"configMapRef": {"name": "db"}}]}]}),
            volume(json!({"secret": {"secretName": "db"}})),
            volume(json!({"configMap": {"name": "db"}})),
            volume(json!({"projected": {"sources": [{"secret": {"name": "x"}}, {"configMap": {"name": "db"}}]}})),
            volume(json!({"csi": {"driver": "x", "nodePublishSecretRef": {"name": "db"}}})),
            volume(json!({"azureFile": {"secretName": "db"}})),
            volume(json!({"rbd": {"secretRef": {"name": "db"}}})),
            volume(json!({"invented": {"later": [{"deep": {"inside": "db"}}]}})),
        ] {
            let references = References::of(&[pod("bank", &json!({})), pod("shop", &spec)]);
            assert!(references.has("shop", "db"), "{spec}");
            assert!(!references.has("bank", "db"), "{spec}");
        }
    }

    #[test]
    fn what_no_spec_names_is_no_reference() {
        let references = References::of(&[pod("shop", &json!({"containers": [{"name": "c", "image": "a/db:1"}]}))]);
        for other in ["db", "containers", "web", "Failed", "shop", ""] {
            assert!(!references.has("shop", other), "{other}");
        }
        assert!(!References::default().has("shop", "db"));
    }
}
