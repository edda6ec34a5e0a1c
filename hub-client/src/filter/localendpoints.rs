//! `localendpoints`: a client sees the pods of this node at the addresses, and as ready, as the kubelet reported while
//! the cloud was away.
//!
//! After a reboot without the cloud the pods of a node have other addresses, and nothing at the cloud knows them. For
//! an endpoint whose `targetRef` has the uid of such a pod, this filter does what the cloud's controllers will do:
//!
//! * Its addresses are those of the pod in the family of the object.
//! * It is ready if the pod has condition Ready and is not terminating, or if the Service publishes addresses that are
//!   not ready. Endpoints have it in `addresses` then, else in `notReadyAddresses`.
//! * A pod that has ended, or has no address, is no endpoint.
//!
//! An object that is later than the pod's status at the cloud is kept: it is the cloud's own answer to that status.
//! Endpoints are never added: a pod that was no endpoint when the cloud was lost stays none.
//!
//! Hides nothing else: an object that cannot be read is kept.

use core::net::IpAddr;
use std::cell::LazyCell;
use std::collections::BTreeSet;

use memchr::memmem;
use yurt_apimachinery::json_text::quote;
use yurt_apimachinery::{Object, ObjectKey, ResourceKind, ResourceVersion};

use super::context::{LocalPod, LocalPods};
use super::json::{self, Edit, Json};
use super::near::Shape;
use super::{FilterContext, Inputs, ObjectFilter, Verdict};

/// Lists of addresses in a subset of Endpoints: ready, not ready.
const ADDRESSES: [&str; 2] = ["addresses", "notReadyAddresses"];

/// The filter; see the module.
#[derive(Clone, Copy, Debug)]
pub struct LocalEndpoints;

/// The pods that one object may show.
struct Local<'a, P: FnOnce() -> bool> {
    pods: &'a LocalPods,
    /// RV of the object.
    at: ResourceVersion,
    /// True if the Service publishes addresses that are not ready.
    publishes: LazyCell<bool, P>,
}

impl ObjectFilter for LocalEndpoints {
    fn name(&self) -> &'static str {
        "localendpoints"
    }

    fn inputs(&self) -> Inputs {
        Inputs {
            services: true,
            local_pods: true,
            ..Inputs::NONE
        }
    }

    fn service_of(&self, kind: &ResourceKind, object: &Object) -> Option<ObjectKey> {
        Shape::of(kind)?.service_of(object)
    }

    fn filter(&self, kind: &ResourceKind, object: &Object, context: &FilterContext<'_>) -> Verdict {
        if context.local_pods.is_empty() {
            return Verdict::Keep;
        }
        let Some(shape) = Shape::of(kind) else {
            return Verdict::Keep;
        };
        let local = Local {
            pods: context.local_pods,
            at: object.resource_version(),
            publishes: LazyCell::new(|| {
                let service = shape.service_of(object).and_then(|key| context.services.service(&key));
                service.is_some_and(|service| {
                    let text = service.bytes();
                    let spec = Json::of(&text).member("spec");
                    spec.is_some_and(|spec| spec.is_true("publishNotReadyAddresses"))
                })
            }),
        };
        let text = object.bytes();
        let json = Json::of(&text);
        json::verdict(
            kind,
            match shape {
                Shape::Slice | Shape::SliceBeta => local.in_slice(json),
                Shape::Endpoints => local.in_endpoints(json),
            },
        )
    }
}

/// True if the object may name one of these pods. kube-apiserver writes uids without escapes.
pub(crate) fn names_any(object: &Object, uids: &BTreeSet<String>) -> bool {
    // The text of every object of the collection would be inflated.
    if uids.is_empty() {
        return false;
    }
    let text = object.bytes();
    uids.iter().any(|uid| memmem::find(&text, uid.as_bytes()).is_some())
}

// === impl Local ===

impl<P: FnOnce() -> bool> Local<'_, P> {
    /// The pod of an endpoint, if the object is not the cloud's own answer to its status.
    fn pod(&self, endpoint: Json<'_>) -> Option<&LocalPod> {
        let uid = endpoint.member("targetRef")?.member("uid")?.text()?;
        let pod = self.pods.get(&*uid)?;
        pod.known_at.is_none_or(|known| self.at <= known).then_some(pod)
    }

    fn is_ready(&self, pod: &LocalPod, is_terminating: bool) -> bool {
        (pod.is_ready && !pod.is_terminating && !is_terminating) || *self.publishes
    }

    fn in_slice(&self, slice: Json<'_>) -> Option<Vec<u8>> {
        let is_v4 = match &*slice.member("addressType")?.text()? {
            "IPv4" => true,
            "IPv6" => false,
            _ => return None,
        };
        let endpoints = slice.member("endpoints")?.edit_items(|endpoint| {
            let Some(pod) = self.pod(endpoint) else {
                return Edit::Keep;
            };
            let addresses: Vec<String> = pod.of_family(is_v4).map(|ip| quote(&ip.to_string())).collect();
            if addresses.is_empty() {
                return Edit::Remove;
            }
            let addresses = format!("[{}]", addresses.join(","));
            let mut members = vec![("addresses", addresses.as_bytes())];
            let conditions = self.conditions(pod, endpoint.member("conditions"));
            members.extend(conditions.as_deref().map(|conditions| ("conditions", conditions)));
            endpoint.with(&members).map_or(Edit::Keep, Edit::Set)
        })?;
        slice.with(&[("endpoints", &endpoints)])
    }

    /// The conditions of an endpoint; `None` if they stay. An absent `ready` or `serving` is true.
    fn conditions(&self, pod: &LocalPod, held: Option<Json<'_>>) -> Option<Vec<u8>> {
        let is_terminating = held.is_some_and(|held| held.is_true("terminating"));
        let text = |is: bool| if is { b"true".as_slice() } else { b"false".as_slice() };
        let ready = text(self.is_ready(pod, is_terminating));
        let Some(held) = held.filter(|held| held.member("ready").is_some() || held.member("serving").is_some()) else {
            let is_new = ready == b"false";
            return is_new.then(|| br#"{"ready":false}"#.to_vec());
        };
        let mut members = vec![("ready", ready)];
        members.extend(held.member("serving").map(|_| ("serving", text(pod.is_ready))));
        held.with(&members)
    }

    fn in_endpoints(&self, object: Json<'_>) -> Option<Vec<u8>> {
        let subsets = object
            .member("subsets")?
            .edit_items(|subset| self.in_subset(subset).unwrap_or(Edit::Keep))?;
        if subsets == b"[]" {
            return object.edit_members(|name, _| if name == "subsets" { Edit::Remove } else { Edit::Keep });
        }
        object.with(&[("subsets", &subsets)])
    }

    /// The edit of a subset; `None` if it cannot be read, or has none of the pods.
    fn in_subset(&self, subset: Json<'_>) -> Option<Edit> {
        let mut lists: [Vec<Vec<u8>>; 2] = Default::default();
        let mut has_local = false;
        for (place, field) in ADDRESSES.iter().enumerate() {
            let Some(list) = subset.member(field) else { continue };
            for address in list.items().ok()? {
                let Some(pod) = self.pod(address) else {
                    lists[place].push(address.bytes().to_vec());
                    continue;
                };
                let held: IpAddr = address.member("ip")?.text()?.parse().ok()?;
                has_local = true;
                let Some(ip) = pod.of_family(held.is_ipv4()).next() else {
                    continue;
                };
                let edited = address.with(&[("ip", quote(&ip.to_string()).as_bytes())]);
                let to = usize::from(!self.is_ready(pod, false));
                lists[to].push(edited.unwrap_or_else(|| address.bytes().to_vec()));
            }
        }
        if !has_local {
            return None;
        }
        if lists.iter().all(Vec::is_empty) {
            return Some(Edit::Remove);
        }
        let texts = lists.map(|list| [b"[".as_slice(), &list.join(&b',')[..], b"]".as_slice()].concat());
        let members = ADDRESSES.into_iter().zip(texts.iter().map(Vec::as_slice));
        let full: Vec<_> = members.filter(|(_, text)| *text != b"[]").collect();
        let set = subset.with(&full);
        let subset = set.as_deref().map_or(subset, Json::of);
        let is_empty = |name: &str| ADDRESSES.contains(&name) && full.iter().all(|(field, _)| *field != name);
        let removed = subset.edit_members(|name, _| if is_empty(name) { Edit::Remove } else { Edit::Keep });
        removed.or(set).map(Edit::Set)
    }
}
