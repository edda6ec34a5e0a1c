//! The pool's membership as a collection: one Member (name and uid) per Node that carries the pool's label.
//!
//! The leader reads Nodes as metadata only, selected by label; everybody else reads Members from the coordinator. The
//! RVs are the cloud's, those of the Nodes.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::LazyLock;

use bytes::Bytes;
use serde_json::json;
use yurt_apimachinery::kind::NameRule;
use yurt_apimachinery::{Object, ResourceKind};

/// Name of the collection.
pub const COLLECTION: &str = "members";
/// Label of a Node that names its pool.
pub const POOL_LABEL: &str = "apps.openyurt.io/nodepool";

static KIND: LazyLock<ResourceKind> = LazyLock::new(|| ResourceKind {
    group: Cow::Borrowed("yurt.openyurt.io"),
    version: Cow::Borrowed("v1"),
    plural: Cow::Borrowed("members"),
    singular: Cow::Borrowed("member"),
    kind: Cow::Borrowed("Member"),
    list_kind: Cow::Borrowed("MemberList"),
    namespaced: false,
    short_names: &[],
    categories: &[],
    fields: &[],
    has_status: false,
    unconditional_update: false,
    create_on_update: false,
    delete_returns_object: false,
    name_rule: NameRule::DnsSubdomain,
});

/// Descriptor of the Member kind.
#[must_use]
pub fn kind() -> &'static ResourceKind {
    &KIND
}

/// The Member that stands for `node`; `None` only for a name no apiserver accepts.
#[must_use]
pub fn of_node(node: &Object) -> Option<Object> {
    let member = json!({
        "apiVersion": "yurt.openyurt.io/v1",
        "kind": "Member",
        "metadata": {
            "name": node.name(),
            "resourceVersion": node.resource_version().to_string(),
            "uid": node.uid(),
        },
    });
    Object::parse(Bytes::from(member.to_string()), &KIND).ok()
}

/// Names of the members, sorted.
#[must_use]
pub fn names<'a>(members: impl Iterator<Item = &'a Object>) -> BTreeSet<String> {
    members.map(|member| member.name().to_owned()).collect()
}
