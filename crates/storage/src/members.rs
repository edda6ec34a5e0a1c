//! The membership of a pool as a collection: one Member (name and uid) per Node that carries the pool's label.
//!
//! Leader, coordinator and followers hold it like any other replica; its RVs are the cloud's, those of the Nodes.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::LazyLock;

use yurt_apimachinery::kind::NameRule;
use yurt_apimachinery::{Object, ResourceKind};

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
