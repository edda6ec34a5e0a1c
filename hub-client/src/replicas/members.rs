//! Membership of the pool from Nodes, when no NodePool names the members (`nodepool.rs`). The leader reads Nodes as
//! metadata only, selected by the pool's label, and reduces them to Members. All other hubs read Members from the
//! coordinator.

use bytes::Bytes;
use serde_json::json;
use yurt_apimachinery::{Object, ResourceVersion};
use yurt_collection::Collection;

pub use yurt_storage::members::{COLLECTION, kind, names};

/// Label of a Node that names its pool.
pub const POOL_LABEL: &str = "apps.openyurt.io/nodepool";

/// Returns the Member for `node`; `None` only for a name that no apiserver accepts.
#[must_use]
pub fn of_node(node: &Object) -> Option<Object> {
    let member = json!({
        "apiVersion": kind().api_version(),
        "kind": kind().kind,
        "metadata": {
            "name": node.name(),
            "resourceVersion": node.resource_version().to_string(),
            "uid": node.uid(),
        },
    });
    Object::parse(Bytes::from(member.to_string()), kind()).ok()
}

/// Returns the listed members at `at`, based on the existing ones. A changed Node is the same member. One that became a
/// member because the NodePool names none has not changed recently.
#[must_use]
pub fn going_on(held: &Collection, listed: Vec<Object>, at: ResourceVersion) -> Vec<Object> {
    let going_on = |listed: Object| match held.object(listed.key()) {
        Some(held) if held.uid() == listed.uid() => held.clone(),
        _ if listed.resource_version() <= held.position() => listed.with_resource_version(at),
        _ => listed,
    };
    listed.into_iter().map(going_on).collect()
}
