//! `servicetopology`: a client sees only those endpoints of a Service that its annotation `openyurt.io/topologyKeys`
//! lets it reach from this node.
//! `kubernetes.io/hostname` keeps the endpoints on this node. `openyurt.io/nodepool` and its synonym
//! `kubernetes.io/zone` keep those on the members of this node's pool. An object that becomes empty is still shown, so
//! that the client knows that there is no endpoint. While an input (the Service, the pool) is unknown, the object is
//! dropped.

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde_json::Value;
use yurt_apimachinery::{Object, ObjectKey, ResourceKind};

use super::{FilterContext, Inputs, Members, ObjectFilter, Pool, Verdict};

/// Annotation of a Service that requests a topology.
pub const TOPOLOGY_KEYS_ANNOTATION: &str = "openyurt.io/topologyKeys";

const HOSTNAME: &str = "kubernetes.io/hostname";
const NODE_POOL: &str = "openyurt.io/nodepool";
const ZONE: &str = "kubernetes.io/zone";

/// Label of an EndpointSlice that names its Service.
const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

/// The filter; see the module.
#[derive(Clone, Copy, Debug)]
pub struct ServiceTopology;

/// Representation of the node's name in an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// discovery.k8s.io/v1: `nodeName`.
    Slice,
    /// discovery.k8s.io/v1beta1: `topology["kubernetes.io/hostname"]`, nothing else.
    SliceBeta,
    /// v1 Endpoints: `nodeName` of each address, ready or not.
    Endpoints,
}

/// Nodes whose endpoints are kept.
#[derive(Clone, Copy, Debug)]
enum Near<'a> {
    Node(&'a str),
    Members(&'a BTreeSet<String>),
}

impl ObjectFilter for ServiceTopology {
    fn name(&self) -> &'static str {
        "servicetopology"
    }

    fn inputs(&self) -> Inputs {
        Inputs {
            services: true,
            pool: true,
        }
    }

    fn service_of(&self, kind: &ResourceKind, object: &Object) -> Option<ObjectKey> {
        let service = Shape::of(kind)?.service_of(object)?;
        Some(ObjectKey::new(object.namespace(), &service))
    }

    fn filter(&self, kind: &ResourceKind, object: &Object, context: &FilterContext<'_>) -> Verdict {
        let Some(shape) = Shape::of(kind) else {
            return Verdict::Keep;
        };
        let Some(service) = shape.service_of(object) else {
            return Verdict::Keep;
        };
        let namespace = object.namespace().unwrap_or_default();
        let Some(service) = context.services.service(namespace, &service) else {
            return Verdict::Drop;
        };
        let near = match service.annotation(TOPOLOGY_KEYS_ANNOTATION).as_deref() {
            Some(HOSTNAME) => Near::Node(context.node_name),
            Some(NODE_POOL | ZONE) => match context.pool {
                Pool::Unknown => return Verdict::Drop,
                Pool::NoPool => Near::Node(context.node_name),
                Pool::Named(pool) => match pool.members {
                    Members::Unknown => return Verdict::Drop,
                    Members::Missing => return Verdict::Keep,
                    Members::Names(names) => Near::Members(names),
                },
            },
            _ => return Verdict::Keep,
        };
        let mut value = object.to_value();
        match shape.retain(&mut value, near) {
            Ok(false) => Verdict::Keep,
            Ok(true) => Object::from_value(value, kind).map_or(Verdict::Drop, Verdict::Replace),
            Err(NotAList) => Verdict::Drop,
        }
    }
}

/// A field that must be a list has another type. Such an object cannot be filtered and is dropped.
#[derive(Debug)]
struct NotAList;

// === impl Shape ===

impl Shape {
    fn of(kind: &ResourceKind) -> Option<Self> {
        match (&*kind.group, &*kind.version, &*kind.plural) {
            ("", "v1", "endpoints") => Some(Shape::Endpoints),
            ("discovery.k8s.io", "v1beta1", "endpointslices") => Some(Shape::SliceBeta),
            ("discovery.k8s.io", _, "endpointslices") => Some(Shape::Slice),
            _ => None,
        }
    }

    /// Returns the Service that an object belongs to; a slice without the label belongs to none.
    fn service_of(self, object: &Object) -> Option<Cow<'_, str>> {
        match self {
            Shape::Endpoints => Some(Cow::Borrowed(object.name())),
            Shape::Slice | Shape::SliceBeta => object
                .labels()
                .get(SERVICE_NAME_LABEL)
                .filter(|name| !name.is_empty())
                .map(Cow::Borrowed),
        }
    }

    /// Removes the endpoints that are not near; returns true if there were any.
    fn retain(self, value: &mut Value, near: Near<'_>) -> Result<bool, NotAList> {
        match self {
            Shape::Slice | Shape::SliceBeta => {
                let Some(endpoints) = list(value, "endpoints")? else {
                    return Ok(false);
                };
                let before = endpoints.len();
                endpoints.retain(|endpoint| near.includes(self.node_of(endpoint)));
                Ok(endpoints.len() != before)
            }
            Shape::Endpoints => retain_in_subsets(value, near),
        }
    }

    fn node_of(self, endpoint: &Value) -> Option<&str> {
        match self {
            Shape::Slice | Shape::Endpoints => endpoint.get("nodeName"),
            Shape::SliceBeta => endpoint.get("topology").and_then(|topology| topology.get(HOSTNAME)),
        }
        .and_then(Value::as_str)
    }
}

// === impl Near ===

impl Near<'_> {
    /// True if `node` is near; false for an endpoint that names no node.
    fn includes(self, node: Option<&str>) -> bool {
        match (self, node) {
            (_, None) => false,
            (Near::Node(here), Some(node)) => here == node,
            (Near::Members(members), Some(node)) => members.contains(node),
        }
    }
}

/// Filters the addresses of both kinds. A subset stays if it has an address of either kind; emptied lists and subsets
/// are removed, as Go encodes them.
fn retain_in_subsets(value: &mut Value, near: Near<'_>) -> Result<bool, NotAList> {
    let Some(subsets) = list(value, "subsets")? else {
        return Ok(false);
    };
    let mut is_changed = false;
    for subset in subsets.iter_mut() {
        for field in ["addresses", "notReadyAddresses"] {
            let Some(addresses) = list(subset, field)? else {
                continue;
            };
            let before = addresses.len();
            addresses.retain(|address| near.includes(Shape::Endpoints.node_of(address)));
            is_changed |= addresses.len() != before;
            let is_empty = addresses.is_empty();
            if let Some(subset) = subset.as_object_mut().filter(|_| is_empty) {
                subset.remove(field);
            }
        }
    }
    subsets.retain(|subset| subset.get("addresses").is_some() || subset.get("notReadyAddresses").is_some());
    let is_empty = subsets.is_empty();
    if let Some(object) = value.as_object_mut().filter(|_| is_empty) {
        object.remove("subsets");
    }
    Ok(is_changed)
}

/// Returns a list in an object; an absent field and null both mean no list.
fn list<'a>(value: &'a mut Value, field: &str) -> Result<Option<&'a mut Vec<Value>>, NotAList> {
    match value.get_mut(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Array(items)) => Ok(Some(items)),
        Some(_) => Err(NotAList),
    }
}

#[cfg(test)]
mod tests;
