//! Applies `manifests/pool-rbac.yaml` to a real cloud, and tests the contents of the file.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::api::{Api, refusal};

/// The one file a pool needs in the cloud.
const POOL_RBAC: &str = include_str!("../../manifests/pool-rbac.yaml");

/// Creates every object of the file that is not there yet.
pub async fn apply(cloud: &Api) -> Result<()> {
    for object in objects()? {
        let collection = collection(&object)?;
        match cloud.create(&collection, &object).await {
            Ok(_) => {}
            Err(error) if refusal(&error) == Some(409) => {}
            Err(error) => return Err(error.context("manifests/pool-rbac.yaml")),
        }
    }
    Ok(())
}

/// Writes the file for a cloud that reads its roles from files, and returns its path.
pub fn write(folder: &Path) -> Result<PathBuf> {
    let path = folder.join("pool-rbac.yaml");
    std::fs::write(&path, POOL_RBAC).with_context(|| path.display().to_string())?;
    Ok(path)
}

fn objects() -> Result<Vec<Value>> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(POOL_RBAC).context("manifests/pool-rbac.yaml")?;
    Ok(documents.into_iter().filter(|document| !document.is_null()).collect())
}

/// Path of the collection in which an object is created.
fn collection(object: &Value) -> Result<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let plural = match object["kind"].as_str().unwrap_or_default() {
        "ConfigMap" => "configmaps",
        "ClusterRole" => "clusterroles",
        "ClusterRoleBinding" => "clusterrolebindings",
        "Role" => "roles",
        "RoleBinding" => "rolebindings",
        "ValidatingAdmissionPolicy" => "validatingadmissionpolicies",
        "ValidatingAdmissionPolicyBinding" => "validatingadmissionpolicybindings",
        other => bail!("manifests/pool-rbac.yaml has an object of kind {other:?}"),
    };
    let prefix = match text(&object["apiVersion"]).as_str() {
        "v1" => "/api/v1".to_owned(),
        version => format!("/apis/{version}"),
    };
    Ok(match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("{prefix}/namespaces/{namespace}/{plural}"),
        None => format!("{prefix}/{plural}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `(resource, verbs)` of every rule in the roles of these names.
    fn rules(names: &[&str]) -> Vec<(String, String)> {
        let objects = objects().expect("the file must parse");
        let roles = objects
            .iter()
            .filter(|object| names.iter().any(|name| object["metadata"]["name"] == *name));
        let rules = roles.filter_map(|role| role["rules"].as_array()).flatten();
        let joined = |value: &Value| {
            let words = value.as_array().cloned().unwrap_or_default();
            words.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(",")
        };
        rules
            .map(|rule| (joined(&rule["resources"]), joined(&rule["verbs"])))
            .collect()
    }

    #[test]
    fn hubs_read_pool_data_and_nothing_else() {
        let found = rules(&["yurt-hub-pool-data", "yurt-hub-cfg"]);
        let (cluster, found): (Vec<_>, Vec<_>) = found.into_iter().partition(|(resource, _)| resource == "namespaces");
        // The one Namespace that identifies the cluster.
        assert_eq!(cluster, [("namespaces".to_owned(), "get".to_owned())]);
        let resources: Vec<&str> = found.iter().map(|(resource, _)| resource.as_str()).collect();
        assert_eq!(resources, ["endpoints", "endpointslices", "nodepools", "configmaps"]);
        assert!(found.iter().all(|(_, verbs)| verbs == "get,list,watch"));
    }

    #[test]
    fn the_delegate_may_get_and_patch_node_leases_only() {
        assert_eq!(
            rules(&["yurt-delegate-heartbeat"]),
            [("leases".to_owned(), "get,patch".to_owned())]
        );
        let objects = objects().expect("the file must parse");
        let role = objects
            .iter()
            .find(|o| o["metadata"]["name"] == "yurt-delegate-heartbeat")
            .expect("the role");
        assert_eq!(
            (&role["kind"], &role["metadata"]["namespace"]),
            (&"Role".into(), &"kube-node-lease".into())
        );
    }

    #[test]
    fn blocks_that_may_be_left_out_are_labelled_and_nothing_else_is() {
        let objects = objects().expect("the file must parse");
        let labelled = |key: &str, value: &str| -> Vec<&str> {
            let is_labelled = |object: &&Value| object["metadata"]["labels"][key] == value;
            let names = objects
                .iter()
                .filter(is_labelled)
                .map(|o| o["metadata"]["name"].as_str());
            names.map(Option::unwrap_or_default).collect()
        };
        assert_eq!(
            labelled("openyurt.io/wider-than-stock", "true"),
            ["yurt-hub-pool-members"; 2]
        );
        let (role, policy) = ("yurt-delegate-heartbeat", "forwarded-heartbeats-are-marked");
        assert_eq!(
            labelled("openyurt.io/heartbeats", "forwarded"),
            [role, role, policy, policy]
        );
        let named = |name: &str| objects.iter().filter(|o| o["metadata"]["name"] == name).count();
        assert_eq!(
            [named("yurt-hub-pool-members"), named(role), named(policy)],
            [2; 3],
            "all of them"
        );
        assert_eq!(
            rules(&["yurt-hub-pool-members"]),
            [("nodes".to_owned(), "list,watch".to_owned())]
        );
    }

    #[test]
    fn every_object_has_a_place() {
        for object in objects().expect("the file must parse") {
            collection(&object).expect("a known kind");
        }
    }
}
