//! NodeRestriction: limits the objects that a node writes, as in kube-apiserver, for the kinds served here.
//!
//! Pure; lookups come in as [`KnownNodes`].

use std::collections::BTreeSet;

use serde_json::Value;
use yurt_apimachinery::Object;
use yurt_pool_protocol::names::NODE_LEASES;

use crate::authz::references::{MIRROR_ANNOTATION, any_reference};

/// One write of a node.
pub(super) struct NodeRestriction<'a> {
    /// Node that writes.
    pub(super) node: &'a str,
    /// `resource.group` of the object.
    pub(super) resource: &'a str,
    pub(super) subresource: &'a str,
    pub(super) namespace: &'a str,
    pub(super) known: KnownNodes<'a>,
}

/// Lookups that the rules need.
pub(super) struct KnownNodes<'a> {
    /// Uid of a Node by name.
    pub(super) node_uid: &'a dyn Fn(&str) -> Option<String>,
}

/// Reason of a refusal.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NodeRefusal {
    /// 403.
    Forbidden(String),
    /// 404: the Node of this name does not exist.
    NoNode(String),
}

type Admitted = Result<(), NodeRefusal>;

/// Domain of labels that only administrators may set on nodes.
const RESTRICTED_DOMAIN: &str = "node-restriction.kubernetes.io";
/// Labels of Kubernetes' own domains that a kubelet puts on its Node.
const KUBELET_LABELS: [&str; 11] = [
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];
/// Domains of which a kubelet may set every label.
const KUBELET_DOMAINS: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];
/// Kinds of volumes that use no API object.
const LOCAL_VOLUMES: [&str; 22] = [
    "awsElasticBlockStore",
    "azureDisk",
    "cephfs",
    "cinder",
    "downwardAPI",
    "emptyDir",
    "fc",
    "flexVolume",
    "flocker",
    "gcePersistentDisk",
    "gitRepo",
    "hostPath",
    "image",
    "iscsi",
    "nfs",
    "photonPersistentDisk",
    "portworxVolume",
    "quobyte",
    "rbd",
    "scaleIO",
    "storageos",
    "vsphereVolume",
];

// === impl NodeRestriction ===

impl NodeRestriction<'_> {
    /// Checks a new object.
    pub(super) fn create(&self, name: &str, object: &Value) -> Admitted {
        match (self.resource, self.subresource) {
            ("pods", "") => self.create_pod(object),
            ("pods", other) => self.other_pod_subresource(other),
            ("nodes", _) => {
                self.own_node(name)?;
                if !object["spec"]["configSource"].is_null() {
                    return forbid(format!(
                        "node \"{}\" is not allowed to create pods with a non-nil configSource",
                        self.node
                    ));
                }
                let forbidden = forbidden_labels(&object["metadata"]["labels"], &Value::Null);
                if forbidden.is_empty() {
                    return Ok(());
                }
                forbid(format!(
                    "node \"{}\" is not allowed to set the following labels: {}",
                    self.node,
                    describe_labels(&forbidden)
                ))
            }
            ("leases.coordination.k8s.io", _) => self.own_lease(name),
            _ => Ok(()),
        }
    }

    /// Checks a new state.
    pub(super) fn update(&self, name: &str, old: &Value, new: &Value) -> Admitted {
        match (self.resource, self.subresource) {
            ("pods", "") => forbid(format!(
                "unexpected operation \"UPDATE\", node \"{}\" can only create and delete mirror pods",
                self.node
            )),
            ("pods", "status") => self.pod_status(old, new),
            ("pods", other) => self.other_pod_subresource(other),
            ("nodes", _) => {
                self.own_node(name)?;
                self.node_update(old, new)
            }
            ("leases.coordination.k8s.io", _) => self.own_lease(name),
            _ => Ok(()),
        }
    }

    /// Checks a deletion; `named` is the name in the URL.
    pub(super) fn delete(&self, named: &str, current: &Object) -> Admitted {
        match self.resource {
            "pods" if current.field("spec.nodeName") != Some(self.node) => forbid(format!(
                "node \"{}\" can only delete pods with spec.nodeName set to itself",
                self.node
            )),
            "nodes" => self.own_node(named),
            "leases.coordination.k8s.io" => self.own_lease(named),
            _ => Ok(()),
        }
    }

    fn own_node(&self, name: &str) -> Admitted {
        if name == self.node {
            return Ok(());
        }
        forbid(format!(
            "node \"{}\" is not allowed to modify node \"{name}\"",
            self.node
        ))
    }

    fn own_lease(&self, name: &str) -> Admitted {
        if self.namespace != NODE_LEASES {
            return forbid(format!(
                "can only access leases in the \"{NODE_LEASES}\" system namespace"
            ));
        }
        if name != self.node {
            return forbid("can only access node lease with the same name as the requesting node");
        }
        Ok(())
    }

    fn other_pod_subresource(&self, subresource: &str) -> Admitted {
        forbid(format!(
            "unexpected pod subresource \"{subresource}\", only 'status' and 'eviction' are allowed"
        ))
    }

    fn node_update(&self, old: &Value, new: &Value) -> Admitted {
        let node = self.node;
        let (old_spec, spec) = (&old["spec"], &new["spec"]);
        if !spec["configSource"].is_null() && !same(&spec["configSource"], &old_spec["configSource"]) {
            return forbid(format!(
                "node \"{node}\" is not allowed to update configSource to a new non-nil configSource"
            ));
        }
        if !same(&spec["taints"], &old_spec["taints"]) {
            return forbid(format!("node \"{node}\" is not allowed to modify taints"));
        }
        let (old, new) = (&old["metadata"], &new["metadata"]);
        if !same(&new["ownerReferences"], &old["ownerReferences"]) {
            return forbid(format!("node \"{node}\" is not allowed to modify ownerReferences"));
        }
        let forbidden = forbidden_labels(&new["labels"], &old["labels"]);
        if forbidden.is_empty() {
            return Ok(());
        }
        forbid(format!(
            "is not allowed to modify labels: {}",
            describe_labels(&forbidden)
        ))
    }

    fn pod_status(&self, old: &Value, new: &Value) -> Admitted {
        let node = self.node;
        if old["spec"]["nodeName"] != node {
            return forbid(format!(
                "node \"{node}\" can only update pod status for pods with spec.nodeName set to itself"
            ));
        }
        if !same(&old["metadata"]["labels"], &new["metadata"]["labels"]) {
            return forbid(format!("node \"{node}\" cannot update labels through pod status"));
        }
        let is_kept = |member: &str| same(&old["status"][member], &new["status"][member]);
        if !is_kept("resourceClaimStatuses") {
            return forbid(format!("node \"{node}\" cannot update resource claim statues"));
        }
        if !is_kept("extendedResourceClaimStatus") {
            return forbid(format!("node \"{node}\" cannot update extended resource claim status"));
        }
        Ok(())
    }

    /// Allows only the mirror pod of a static pod of this very node, which reads nothing through the API.
    fn create_pod(&self, pod: &Value) -> Admitted {
        let node = self.node;
        if pod["metadata"]["annotations"][MIRROR_ANNOTATION].is_null() {
            return forbid(format!(
                "pod does not have \"{MIRROR_ANNOTATION}\" annotation, node \"{node}\" can only create mirror pods"
            ));
        }
        if pod["spec"]["nodeName"] != node {
            return forbid(format!(
                "node \"{node}\" can only create pods with spec.nodeName set to itself"
            ));
        }
        let owners = pod["metadata"]["ownerReferences"]
            .as_array()
            .map_or(&[][..], Vec::as_slice);
        let owner = match owners {
            [owner] => owner,
            [] => {
                return forbid(format!(
                    "node \"{node}\" can only create pods with an owner reference set to itself"
                ));
            }
            _ => {
                return forbid(format!(
                    "node \"{node}\" can only create pods with a single owner reference set to itself"
                ));
            }
        };
        self.check_owner(owner)?;
        if let Some(what) = api_reference(&pod["spec"]) {
            return forbid(format!("node \"{node}\" can not create pods that reference {what}"));
        }
        Ok(())
    }

    fn check_owner(&self, owner: &Value) -> Admitted {
        let node = self.node;
        if owner["apiVersion"] != "v1" || owner["kind"] != "Node" || owner["name"] != node {
            return forbid(format!(
                "node \"{node}\" can only create pods with an owner reference set to itself"
            ));
        }
        if owner["controller"] != true {
            return forbid(format!(
                "node \"{node}\" can only create pods with a controller owner reference set to itself"
            ));
        }
        if owner["blockOwnerDeletion"] == true {
            return forbid(format!(
                "node \"{node}\" must not set blockOwnerDeletion on an owner reference"
            ));
        }
        let uid = (self.known.node_uid)(node).ok_or_else(|| NodeRefusal::NoNode(node.to_owned()))?;
        let given = owner["uid"].as_str().unwrap_or_default();
        if given != uid {
            return forbid(format!("node {node} UID mismatch: expected {given} got {uid}"));
        }
        Ok(())
    }
}

fn forbid(why: impl Into<String>) -> Admitted {
    Err(NodeRefusal::Forbidden(why.into()))
}

/// True if two values are equal; missing ones equal empty lists and maps.
fn same(one: &Value, other: &Value) -> bool {
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        _ => false,
    };
    one == other || (is_empty(one) && is_empty(other))
}

/// Labels that differ although a node may not set them.
fn forbidden_labels(new: &Value, old: &Value) -> BTreeSet<String> {
    let keys = |labels: &Value| {
        labels
            .as_object()
            .map(|labels| labels.keys().cloned().collect::<Vec<_>>())
    };
    let all = keys(new).into_iter().chain(keys(old)).flatten();
    let differs = |key: &String| new.get(key) != old.get(key);
    all.filter(differs).filter(|key| is_forbidden(key)).collect()
}

fn is_forbidden(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    let below = |parent: &str| domain == parent || domain.strip_suffix(parent).is_some_and(|rest| rest.ends_with('.'));
    if below(RESTRICTED_DOMAIN) {
        return true;
    }
    let is_kubernetes = below("kubernetes.io") || below("k8s.io");
    is_kubernetes && !KUBELET_LABELS.contains(&key) && !KUBELET_DOMAINS.into_iter().any(below)
}

fn describe_labels(labels: &BTreeSet<String>) -> String {
    labels.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

/// Kind of API object that a pod refers to. Unknown volumes count, too.
fn api_reference(spec: &Value) -> Option<String> {
    let is_set = |value: &Value| !matches!(value, Value::Null) && value.as_str() != Some("");
    if is_set(&spec["serviceAccountName"]) {
        return Some("serviceaccounts".to_owned());
    }
    if let Some(what) = any_reference(spec) {
        return Some(what.to_owned());
    }
    if spec["resourceClaims"]
        .as_array()
        .is_some_and(|claims| !claims.is_empty())
    {
        return Some("resourceclaims".to_owned());
    }
    let volumes = spec["volumes"].as_array().into_iter().flatten();
    volumes.into_iter().find_map(volume_reference)
}

fn volume_reference(volume: &Value) -> Option<String> {
    const NAMED: [(&str, &str); 7] = [
        ("configMap", "configmaps (via configmap volumes)"),
        ("secret", "secrets (via secret volumes)"),
        ("csi", "csidrivers (via CSI volumes)"),
        ("glusterfs", "endpoints (via glusterFS volumes)"),
        ("persistentVolumeClaim", "persistentvolumeclaims"),
        ("ephemeral", "persistentvolumeclaims (via ephemeral volumes)"),
        ("azureFile", "secrets (via azureFile volumes)"),
    ];
    const PROJECTED: [(&str, &str); 5] = [
        ("configMap", "configmaps (via projected volumes)"),
        ("secret", "secrets (via projected volumes)"),
        ("serviceAccountToken", "serviceaccounts (via projected volumes)"),
        ("clusterTrustBundle", "clustertrustbundles"),
        ("podCertificate", "podcertificates"),
    ];
    let has = |value: &Value, member: &str| value.get(member).is_some_and(|found| !found.is_null());
    if let Some((_, what)) = NAMED.iter().find(|(kind, _)| has(volume, kind)) {
        return Some((*what).to_owned());
    }
    if has(volume, "projected") {
        let sources = volume["projected"]["sources"].as_array().into_iter().flatten();
        for source in sources {
            if let Some((_, what)) = PROJECTED.iter().find(|(kind, _)| has(source, kind)) {
                return Some((*what).to_owned());
            }
            if !has(source, "downwardAPI") {
                return Some("an unknown source of a projected volume".to_owned());
            }
        }
        return None;
    }
    if LOCAL_VOLUMES.iter().any(|kind| has(volume, kind)) {
        return None;
    }
    Some("an unknown type of volume".to_owned())
}
