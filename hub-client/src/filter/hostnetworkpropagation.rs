//! `hostnetworkpropagation`: in a pool whose NodePool has `spec.hostNetwork: true`, the kubelet sees the Pods of its
//! node with `hostNetwork: true`.
//!
//! For nodes without a Pod network. Off by default: Pods that share ports collide on such a node.
//!
//! Hides nothing: a Pod is kept while the pool is unknown, and if it cannot be read. Pods of other nodes are kept.

use yurt_apimachinery::{Object, ResourceKind};

use super::json::{self, Json};
use super::{FilterContext, Inputs, ObjectFilter, Pool, Verdict};

/// The filter; see the module.
#[derive(Clone, Copy, Debug)]
pub struct HostNetworkPropagation;

impl ObjectFilter for HostNetworkPropagation {
    fn name(&self) -> &'static str {
        "hostnetworkpropagation"
    }

    fn inputs(&self) -> Inputs {
        Inputs {
            host_network: true,
            ..Inputs::NONE
        }
    }

    fn filter(&self, kind: &ResourceKind, object: &Object, context: &FilterContext<'_>) -> Verdict {
        let uses_host_network = matches!(context.pool, Pool::Named(pool) if pool.host_network == Some(true));
        if !uses_host_network || !kind.group.is_empty() || kind.plural != "pods" {
            return Verdict::Keep;
        }
        let text = object.bytes();
        let json = Json::of(&text);
        let is_here = json
            .text_at(&["spec", "nodeName"])
            .is_ok_and(|node| node == context.node_name);
        if !is_here {
            return Verdict::Keep;
        }
        let edited = json.edit_at(&["spec"], &|spec| spec.with(&[("hostNetwork", b"true")]));
        json::verdict(kind, edited)
    }
}
