//! How the leader reads the pool's membership where no NodePool says it (`nodepool.rs`): Nodes as metadata only, selected
//! by the pool's label, reduced to Members.
//! Everybody else reads Members from the coordinator.

use bytes::Bytes;
use serde_json::json;
use yurt_apimachinery::Object;

pub use yurt_storage::members::{COLLECTION, kind, names};

/// Label of a Node that names its pool.
pub const POOL_LABEL: &str = "apps.openyurt.io/nodepool";

/// The Member that stands for `node`; `None` only for a name no apiserver accepts.
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
