//! The membership of a pool as a collection: one Member (name and uid) per Node that carries the pool's label.
//!
//! Leader, coordinator and followers hold it like any other replica; its RVs are the cloud's, those of the Nodes.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::LazyLock;

use bytes::Bytes;
use serde_json::json;
use yurt_apimachinery::kind::NameRule;
use yurt_apimachinery::{Object, ResourceKind, ResourceVersion};
use yurt_collection::Collection;

/// Name of the collection in the feed and among the replicas.
pub const COLLECTION: &str = "members";

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
    columns: &[],
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

/// Names of the members, sorted.
#[must_use]
pub fn names<'a>(members: impl Iterator<Item = &'a Object>) -> BTreeSet<String> {
    members.map(|member| member.name().to_owned()).collect()
}

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
/// member because the NodePool names none has not changed recently. No member is above `at`, not even in a cloud that
/// was rolled back.
#[must_use]
pub fn going_on(held: &Collection, listed: Vec<Object>, at: ResourceVersion) -> Vec<Object> {
    let going_on = |listed: Object| match held.object(listed.key()) {
        Some(held) if held.uid() == listed.uid() && held.resource_version() <= at => held.clone(),
        _ if listed.resource_version() <= held.position() => listed.with_resource_version(at),
        _ => listed,
    };
    listed.into_iter().map(going_on).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn member(uid: &str, rv: u64) -> Object {
        let member = json!({"metadata": {"name": "n1", "uid": uid, "resourceVersion": rv.to_string()}});
        Object::from_value(member, kind()).expect("fixture")
    }

    #[test]
    fn member_goes_on_unless_a_rolled_back_cloud_has_not_written_it_yet() {
        let mut held = Collection::new(true);
        held.restart(0, vec![member("a", 50)], ResourceVersion(60));
        for (uid, listed, at, is) in [
            ("a", 70, 80, 50),
            ("b", 70, 80, 70),
            ("b", 55, 80, 80),
            ("a", 20, 30, 30),
        ] {
            let members = going_on(&held, vec![member(uid, listed)], ResourceVersion(at));
            assert_eq!(members[0].resource_version().0, is, "{uid} {listed} {at}");
        }
    }
}
