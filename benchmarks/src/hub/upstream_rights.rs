//! Prerequisites of OpenYurt's hubs in the cloud, as its chart installs them: the kind NodePool, and rights of their
//! group.

use anyhow::Result;
use serde_json::{Value, json};
use yurt_testbed::api::Api;

use super::world::{BINDINGS, ROLES};

/// Group of the client certificates of OpenYurt's hubs.
pub(super) const UPSTREAM_GROUP: &str = "openyurt:yurthub";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// Versions of NodePool that OpenYurt 1.5 and 1.7 read.
const VERSIONS: [&str; 2] = ["v1beta1", "v1beta2"];

pub(super) async fn apply(api: &Api) -> Result<()> {
    let version = |name: &str| {
        let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
        json!({"name": name, "served": true, "storage": name == VERSIONS[0], "schema": schema})
    };
    let versions: Vec<Value> = VERSIONS.into_iter().map(version).collect();
    let names = json!({"plural": "nodepools", "singular": "nodepool", "kind": "NodePool", "listKind": "NodePoolList"});
    let spec = json!({"group": "apps.openyurt.io", "scope": "Cluster", "names": names, "versions": versions});
    let definition = json!({"metadata": {"name": "nodepools.apps.openyurt.io"}, "spec": spec});
    api.create(DEFINITIONS, &definition).await?;
    let metadata = json!({"name": "openyurt-hub"});
    let read = json!(["get", "list", "watch"]);
    let rules = json!([
        {"apiGroups": [""], "resources": ["configmaps", "nodes", "services", "endpoints"], "verbs": read},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": read},
        {"apiGroups": ["apps.openyurt.io"], "resources": ["nodepools", "nodebuckets"], "verbs": read},
    ]);
    api.create(ROLES, &json!({"metadata": metadata, "rules": rules}))
        .await?;
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "openyurt-hub"});
    let group = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": UPSTREAM_GROUP});
    let binding = json!({"metadata": metadata, "subjects": [group], "roleRef": role});
    api.create(BINDINGS, &binding).await.map(drop)
}
