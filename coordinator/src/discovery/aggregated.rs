//! Discovery in one document: `apidiscovery.k8s.io/v2`.

use serde_json::{Value, json};

use super::model::{Entry, Group};

/// The list of `groups`.
pub(super) fn list(groups: &[&Group]) -> Value {
    let items: Vec<Value> = groups.iter().map(|group| describe(group)).collect();
    json!({ "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items })
}

fn describe(group: &Group) -> Value {
    let metadata = if group.name.is_empty() {
        json!({})
    } else {
        json!({ "name": group.name })
    };
    let resources: Vec<Value> = group.resources.iter().map(resource).collect();
    let version = json!({ "version": group.version, "freshness": "Current", "resources": resources });
    json!({ "metadata": metadata, "versions": [version] })
}

fn resource(entry: &Entry) -> Value {
    // Group and version are empty where they are the list's own; a kind must be there or clients drop the resource.
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
