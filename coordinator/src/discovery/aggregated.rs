//! Discovery in one document: `apidiscovery.k8s.io/v2`.

use serde_json::{Value, json};

use super::model::{Entry, Group};

/// The list of `groups`.
pub(super) fn list(groups: &[&Group]) -> Value {
    let items: Vec<Value> = groups.chunk_by(|a, b| a.name == b.name).map(describe).collect();
    json!({ "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items })
}

/// A group with its versions; there is at least one.
fn describe(group: &[&Group]) -> Value {
    let name = &group[0].name;
    let metadata = if name.is_empty() {
        json!({})
    } else {
        json!({ "name": name })
    };
    let version = |group: &&Group| {
        let resources: Vec<Value> = group.resources.iter().map(resource).collect();
        json!({ "version": group.version, "freshness": "Current", "resources": resources })
    };
    json!({ "metadata": metadata, "versions": group.iter().map(version).collect::<Vec<_>>() })
}

fn resource(entry: &Entry) -> Value {
    // Group and version are empty if they are the list's own. A kind is required, or clients drop the resource.
    let kind = json!({ "group": "", "version": "", "kind": entry.kind });
    let mut document = json!({
        "resource": entry.plural,
        "responseKind": kind,
        "scope": if entry.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": entry.singular,
        "verbs": entry.verbs,
    });
    if !entry.short_names.is_empty() {
        document["shortNames"] = json!(entry.short_names);
    }
    if !entry.categories.is_empty() {
        document["categories"] = json!(entry.categories);
    }
    if !entry.subresources.is_empty() {
        let below = entry.subresources.iter().map(|below| {
            let (group, version) = below.group_version.unwrap_or_default();
            let kind = json!({ "group": group, "version": version, "kind": below.kind });
            json!({ "subresource": below.name, "responseKind": kind, "verbs": below.verbs })
        });
        document["subresources"] = below.collect();
    }
    document
}
