//! Rights of a node in profile `standalone`: kube-apiserver's Node authorizer.
//!
//! A node reads its own Node, the pods bound to it, and by name the objects that those pods refer to. `admission`,
//! which sees the object, checks its writes further.

use yurt_pool_protocol::names::NODE_LEASES;

use super::rbac::{PolicyRule, bootstrap};
use super::{Attributes, Decision};

/// Object that a pod bound to a node may refer to by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reference {
    /// The pod itself.
    Pod,
    /// A Secret.
    Secret,
    /// A ConfigMap.
    ConfigMap,
    /// The ServiceAccount the pod runs as.
    ServiceAccount,
}

/// The pods, as the node authorizer queries them.
pub(crate) trait BoundPods {
    /// True if a pod bound to `node` is, or refers to, the object `namespace`/`name`.
    fn refer(&self, node: &str, reference: Reference, namespace: &str, name: &str) -> bool;
}

/// The node authorizer.
pub(crate) struct NodeAuthorizer {
    rules: Vec<PolicyRule>,
}

/// One request, with the node that sends it.
struct NodeQuery<'a> {
    node: &'a str,
    attributes: &'a Attributes<'a>,
    pods: &'a dyn BoundPods,
}

/// Allowed, or refused with a reason that may be empty.
type NodeAnswer = Result<(), String>;

// === impl NodeAuthorizer ===

impl NodeAuthorizer {
    pub(crate) fn new() -> Self {
        Self {
            rules: bootstrap::node_rules(),
        }
    }

    /// Decides about a request of `node`.
    pub(crate) fn authorize(&self, node: &str, attributes: &Attributes<'_>, pods: &dyn BoundPods) -> Decision {
        let question = NodeQuery { node, attributes, pods };
        let answer = question.answer().unwrap_or_else(|| {
            let allowed = self.rules.iter().any(|rule| rule.allows(attributes));
            if allowed { Ok(()) } else { Err(String::new()) }
        });
        match answer {
            Ok(()) => Decision::allowed(),
            Err(why) => Decision::Denied(why),
        }
    }
}

// === impl NodeQuery ===

impl NodeQuery<'_> {
    /// `None` for kinds on which all nodes have the same rights.
    fn answer(&self) -> Option<NodeAnswer> {
        let attributes = self.attributes;
        if attributes.path.is_some() {
            return None;
        }
        match (attributes.group, attributes.resource) {
            ("", "secrets") => Some(self.read(Reference::Secret)),
            ("", "configmaps") => Some(self.read(Reference::ConfigMap)),
            ("", "serviceaccounts") => Some(self.service_account()),
            ("coordination.k8s.io", "leases") => Some(self.lease()),
            ("", "nodes") => Some(self.own_node()),
            ("", "pods") => Some(self.pod()),
            _ => None,
        }
    }

    /// Decides about a read of one object: a pod of this node has to refer to it.
    fn read(&self, reference: Reference) -> NodeAnswer {
        let attributes = self.attributes;
        if !matches!(attributes.verb, "get" | "list" | "watch") {
            return deny("can only read resources of this type");
        }
        if !attributes.subresource.is_empty() {
            return deny("cannot read subresource");
        }
        if attributes.namespace.is_empty() {
            return deny("can only read namespaced object of this type");
        }
        self.related(reference)
    }

    fn related(&self, reference: Reference) -> NodeAnswer {
        if self.attributes.name.is_empty() {
            return deny("No Object name found");
        }
        self.related_by_name(reference)
    }

    fn related_by_name(&self, reference: Reference) -> NodeAnswer {
        let Attributes { namespace, name, .. } = *self.attributes;
        if self.pods.refer(self.node, reference, namespace, name) {
            return Ok(());
        }
        let node = self.node;
        Err(format!("no relationship found between node '{node}' and this object"))
    }

    fn service_account(&self) -> NodeAnswer {
        let attributes = self.attributes;
        if attributes.verb == "get" && attributes.subresource.is_empty() {
            return self.read(Reference::ServiceAccount);
        }
        if attributes.verb != "create" || attributes.name.is_empty() {
            return deny("can only create tokens for individual service accounts");
        }
        if attributes.subresource != "token" {
            return deny("can only create token subresource of serviceaccount");
        }
        self.related_by_name(Reference::ServiceAccount)
    }

    fn lease(&self) -> NodeAnswer {
        let attributes = self.attributes;
        if !matches!(attributes.verb, "get" | "create" | "update" | "patch" | "delete") {
            return deny("can only get, create, update, patch, or delete a node lease");
        }
        if attributes.namespace != NODE_LEASES {
            return Err(format!(
                "can only access leases in the \"{NODE_LEASES}\" system namespace"
            ));
        }
        // The name of a create is in its body: admission checks it.
        if attributes.verb != "create" && attributes.name != self.node {
            return deny("can only access node lease with the same name as the requesting node");
        }
        Ok(())
    }

    fn own_node(&self) -> NodeAnswer {
        let Attributes { verb, name, .. } = *self.attributes;
        let node = self.node;
        match (self.attributes.subresource, verb) {
            ("", "create" | "update" | "patch") | ("status", "update" | "patch") => Ok(()),
            ("", "get" | "list" | "watch") if name == node => Ok(()),
            ("", "get" | "list" | "watch") if name.is_empty() => {
                Err(format!("node '{node}' cannot read all nodes, only its own Node object"))
            }
            ("", "get" | "list" | "watch") => {
                Err(format!("node '{node}' cannot read '{name}', only its own Node object"))
            }
            _ => deny(""),
        }
    }

    fn pod(&self) -> NodeAnswer {
        let attributes = self.attributes;
        match (attributes.subresource, attributes.verb) {
            ("", "get") => self.related(Reference::Pod),
            ("", "list" | "watch") => {
                let is_own = |(field, value): &(String, String)| field == "spec.nodeName" && value == self.node;
                if attributes.fields.iter().any(is_own) {
                    return Ok(());
                }
                if attributes.name.is_empty() {
                    return deny("can only list/watch pods with spec.nodeName field selector");
                }
                self.related(Reference::Pod)
            }
            ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create") => Ok(()),
            _ => deny(""),
        }
    }
}

fn deny(why: &str) -> NodeAnswer {
    Err(why.to_owned())
}
