//! Legacy discovery: one document per group version.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::model::{Entry, Group};

/// `/api`.
pub(super) fn versions(local: SocketAddr) -> Value {
    let here = json!([{ "clientCIDR": "0.0.0.0/0", "serverAddress": local.to_string() }]);
    json!({ "kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": here })
}

/// `/apis`; the core group is not listed.
pub(super) fn group_list(groups: &[Group]) -> Value {
    let named: Vec<Value> = by_name(groups)
        .filter(|group| !group[0].name.is_empty())
        .map(describe)
        .collect();
    json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": named })
}

/// The versions of each group.
fn by_name(groups: &[Group]) -> impl Iterator<Item = &[Group]> {
    groups.chunk_by(|a, b| a.name == b.name)
}

/// `/apis/G`.
pub(super) fn group(groups: &[Group], name: &str) -> Option<Value> {
    let mut document = describe(by_name(groups).find(|group| !name.is_empty() && group[0].name == name)?);
    document["kind"] = json!("APIGroup");
    document["apiVersion"] = json!("v1");
    Some(document)
}

/// `/api/v1` and `/apis/G/V`.
pub(super) fn resources(groups: &[Group], name: &str, version: &str) -> Option<Value> {
    let group = groups
        .iter()
        .find(|group| group.name == name && group.version == version)?;
    let entries: Vec<Value> = group.resources.iter().flat_map(entries_of).collect();
    let mut document = json!({ "kind": "APIResourceList", "groupVersion": group.api_version(), "resources": entries });
    if !group.name.is_empty() {
        document["apiVersion"] = json!("v1");
    }
    Some(document)
}

/// A group with its versions; there is at least one.
fn describe(group: &[Group]) -> Value {
    let version = |group: &Group| json!({ "groupVersion": group.api_version(), "version": group.version });
    let versions: Vec<Value> = group.iter().map(version).collect();
    json!({ "name": group[0].name, "versions": versions, "preferredVersion": versions[0] })
}

fn entries_of(entry: &Entry) -> Vec<Value> {
    let mut main = json!({
        "name": entry.plural,
        "singularName": entry.singular,
        "namespaced": entry.namespaced,
        "kind": entry.kind,
        "verbs": entry.verbs,
    });
    if !entry.short_names.is_empty() {
        main["shortNames"] = json!(entry.short_names);
    }
    if !entry.categories.is_empty() {
        main["categories"] = json!(entry.categories);
    }
    if entry.is_stored {
        main["storageVersionHash"] = json!(super::digest(&entry.plural));
    }
    let mut entries = vec![main];
    entries.extend(entry.subresources.iter().map(|below| {
        let mut described = json!({
            "name": format!("{}/{}", entry.plural, below.name),
            "singularName": "",
            "namespaced": entry.namespaced,
            "kind": below.kind,
            "verbs": below.verbs,
        });
        if let Some((group, version)) = below.group_version {
            described["group"] = json!(group);
            described["version"] = json!(version);
        }
        described
    }));
    entries
}
