//! Endpoints of a Service on given nodes: the parts of the three representations that topology filters keep.
//!
//! All three lead to the same addresses for the same Pods. Kubernetes 1.25 and later serve no v1beta1 slices. A client
//! of that version gets 404 from such a cloud. A component with filters gets 404 from every hub: replicas hold v1 only,
//! and a hub does not convert versions.

use std::borrow::Cow;
use std::collections::BTreeSet;

use yurt_apimachinery::{Object, ObjectKey, ResourceKind};

use super::json::{Edit, Json, WrongType};

/// Label of an EndpointSlice that names its Service.
const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";
/// Key of the node's name in the topology of a v1beta1 endpoint.
const HOSTNAME: &str = "kubernetes.io/hostname";
/// Member of a slice with its endpoints.
const ENDPOINTS: &str = "endpoints";
/// Member with the node's name, of a v1 endpoint and of an address.
const NODE_NAME: &str = "nodeName";
/// Both lists of addresses in a subset of Endpoints.
const ADDRESSES: [&str; 2] = ["addresses", "notReadyAddresses"];

/// Representation of the node's name in an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// discovery.k8s.io/v1: `nodeName`.
    Slice,
    /// discovery.k8s.io/v1beta1: `topology["kubernetes.io/hostname"]`, nothing else.
    SliceBeta,
    /// v1 Endpoints: `nodeName` of each address, ready or not.
    Endpoints,
}

/// Nodes whose endpoints are kept. An endpoint that names no node is on none of them.
#[derive(Clone, Copy, Debug)]
pub(super) enum Near<'a> {
    /// This node.
    Node(&'a str),
    /// Members of a pool.
    Members(&'a BTreeSet<String>),
}

// === impl Shape ===

impl Shape {
    /// The shape of a kind; `None` for kinds without endpoints.
    pub(super) fn of(kind: &ResourceKind) -> Option<Self> {
        match (&*kind.group, &*kind.version, &*kind.plural) {
            ("", "v1", "endpoints") => Some(Shape::Endpoints),
            ("discovery.k8s.io", "v1beta1", "endpointslices") => Some(Shape::SliceBeta),
            ("discovery.k8s.io", _, "endpointslices") => Some(Shape::Slice),
            _ => None,
        }
    }

    /// Key of the Service that an object belongs to; a slice without the label belongs to none.
    pub(super) fn service_of(self, object: &Object) -> Option<ObjectKey> {
        let name = match self {
            Shape::Endpoints => object.name(),
            Shape::Slice | Shape::SliceBeta => object.labels().get(SERVICE_NAME_LABEL)?,
        };
        (!name.is_empty()).then(|| ObjectKey::new(object.namespace(), name))
    }

    /// True if an object has no endpoint at all, so that every topology shows it as it is.
    pub(super) fn is_empty(self, object: Json<'_>) -> bool {
        let has = |list: Option<Json<'_>>| match list.map(Json::items) {
            None => false,
            Some(Ok(mut items)) => items.next().is_some(),
            Some(Err(WrongType)) => true,
        };
        let has_addresses = |subset: Json<'_>| ADDRESSES.iter().any(|field| has(subset.member(field)));
        match self {
            Shape::Slice | Shape::SliceBeta => !has(object.member(ENDPOINTS)),
            Shape::Endpoints => match object.member("subsets").map(Json::items) {
                None => true,
                Some(Ok(mut subsets)) => !subsets.any(has_addresses),
                Some(Err(WrongType)) => false,
            },
        }
    }

    /// Removes the endpoints that are not near; `None` if there are none of these.
    ///
    /// An emptied slice keeps an empty list. A subset stays if it has an address of either kind; emptied lists and
    /// subsets are removed, as Go encodes them.
    ///
    /// # Errors
    /// A list has another type, so that endpoints may be hidden in it.
    pub(super) fn retain(self, object: Json<'_>, near: Near<'_>) -> Result<Option<Vec<u8>>, WrongType> {
        match self {
            Shape::Slice => {
                let is_near = |node: Option<Json<'_>>| near.includes(node.and_then(Json::text));
                let retained = object.retain_items(ENDPOINTS, NODE_NAME, is_near);
                retained.or_else(|WrongType| self.retain_each(object, near))
            }
            Shape::SliceBeta => self.retain_each(object, near),
            Shape::Endpoints => retain_in_subsets(object, near),
        }
    }

    /// As [`Self::retain`] for slices, value by value.
    fn retain_each(self, object: Json<'_>, near: Near<'_>) -> Result<Option<Vec<u8>>, WrongType> {
        let is_far = |endpoint: Json<'_>| !near.includes(self.node_of(endpoint));
        let endpoints = without(object.member(ENDPOINTS), is_far)?;
        Ok(endpoints.and_then(|endpoints| object.with(&[(ENDPOINTS, &endpoints)])))
    }

    fn node_of(self, endpoint: Json<'_>) -> Option<Cow<'_, str>> {
        match self {
            Shape::Slice | Shape::Endpoints => endpoint.member(NODE_NAME),
            Shape::SliceBeta => endpoint
                .member("topology")
                .and_then(|topology| topology.member(HOSTNAME)),
        }
        .and_then(Json::text)
    }
}

// === impl Near ===

impl Near<'_> {
    fn includes(self, node: Option<Cow<'_, str>>) -> bool {
        match (self, node) {
            (_, None) => false,
            (Near::Node(here), Some(node)) => here == node,
            (Near::Members(members), Some(node)) => members.contains(&*node),
        }
    }
}

/// Removes items of a list; `None` if none is removed, or there is no list.
fn without(list: Option<Json<'_>>, is_far: impl Fn(Json<'_>) -> bool) -> Result<Option<Vec<u8>>, WrongType> {
    let Some(list) = list else { return Ok(None) };
    let _ = list.items()?;
    Ok(list.edit_items(|item| if is_far(item) { Edit::Remove } else { Edit::Keep }))
}

fn retain_in_subsets(object: Json<'_>, near: Near<'_>) -> Result<Option<Vec<u8>>, WrongType> {
    let Some(subsets) = object.member("subsets") else {
        return Ok(None);
    };
    for subset in subsets.items()? {
        for field in ADDRESSES {
            subset.at(&[field])?.map_or(Ok(()), |list| list.items().map(|_| ()))?;
        }
    }
    let is_far = |address: Json<'_>| !near.includes(Shape::Endpoints.node_of(address));
    let edited = subsets.edit_items(|subset| {
        let mut has_addresses = false;
        let edited = subset.edit_members(|name, list| {
            if !ADDRESSES.contains(&name) {
                return Edit::Keep;
            }
            let is_emptied = list.items().is_ok_and(|mut items| items.all(is_far));
            has_addresses |= !is_emptied;
            match without(Some(list), is_far) {
                Ok(Some(_)) if is_emptied => Edit::Remove,
                Ok(Some(near)) => Edit::Set(near),
                _ => Edit::Keep,
            }
        });
        match edited {
            Some(_) if !has_addresses => Edit::Remove,
            Some(edited) => Edit::Set(edited),
            None => Edit::Keep,
        }
    });
    let Some(edited) = edited else { return Ok(None) };
    if edited == b"[]" {
        return Ok(object.edit_members(|name, _| if name == "subsets" { Edit::Remove } else { Edit::Keep }));
    }
    Ok(object.with(&[("subsets", &edited)]))
}
