//! References of a pod to Secrets, ConfigMaps and its ServiceAccount: its node may read these by name.

use serde_json::Value;

use super::node::Reference;

/// Annotation of mirror pods, the API copies of static pods. A node writes those itself, so they grant
/// nothing.
pub(crate) const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

/// Other volume kinds with a Secret: member of the volume, and member with the Secret's name.
const SECRET_REFS: [(&str, &str); 10] = [
    ("cephfs", "secretRef"),
    ("cinder", "secretRef"),
    ("flexVolume", "secretRef"),
    ("rbd", "secretRef"),
    ("scaleIO", "secretRef"),
    ("iscsi", "secretRef"),
    ("storageos", "secretRef"),
    ("csi", "nodePublishSecretRef"),
    ("azureFile", "secretName"),
    ("secret", "secretName"),
];
const CONTAINERS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// True if `pod` refers to the object of that name in its own namespace. Mirror pods refer to nothing.
pub(crate) fn refers(pod: &Value, reference: Reference, name: &str) -> bool {
    if name.is_empty() || !pod["metadata"]["annotations"][MIRROR_ANNOTATION].is_null() {
        return false;
    }
    let spec = &pod["spec"];
    match reference {
        Reference::Pod => false,
        Reference::ServiceAccount => spec["serviceAccountName"] == name,
        Reference::Secret => names_secret(spec, name),
        Reference::ConfigMap => names_config_map(spec, name),
    }
}

/// True if a volume of `pod` holds a service account token for `audience`; the empty one is the server's own.
pub(crate) fn mounts_token_for(pod: &Value, audience: &str) -> bool {
    let sources = items(&pod["spec"]["volumes"]).flat_map(|volume| items(&volume["projected"]["sources"]));
    sources
        .map(|source| &source["serviceAccountToken"])
        .filter(|token| token.is_object())
        .any(|token| token["audience"].as_str().unwrap_or_default() == audience)
}

/// Kind that `spec` refers to, Secret or ConfigMap; of the two, the one that messages name first.
pub(crate) fn any_reference(spec: &Value) -> Option<&'static str> {
    let some = |names: Vec<&Value>| {
        names
            .iter()
            .any(|name| name.as_str().is_some_and(|name| !name.is_empty()))
    };
    if some(secret_names(spec)) {
        return Some("secrets");
    }
    some(config_map_names(spec)).then_some("configmaps")
}

fn names_secret(spec: &Value, name: &str) -> bool {
    secret_names(spec).into_iter().any(|one| one == name)
}

fn names_config_map(spec: &Value, name: &str) -> bool {
    config_map_names(spec).into_iter().any(|one| one == name)
}

fn secret_names(spec: &Value) -> Vec<&Value> {
    let mut names: Vec<&Value> = items(&spec["imagePullSecrets"]).map(|pull| &pull["name"]).collect();
    names.extend(environment(spec, "secretRef", "secretKeyRef"));
    for volume in items(&spec["volumes"]) {
        for (kind, member) in SECRET_REFS {
            let found = &volume[kind][member];
            names.push(if found.is_object() { &found["name"] } else { found });
        }
        names.extend(items(&volume["projected"]["sources"]).map(|source| &source["secret"]["name"]));
    }
    names
}

fn config_map_names(spec: &Value) -> Vec<&Value> {
    let mut names: Vec<&Value> = environment(spec, "configMapRef", "configMapKeyRef").collect();
    for volume in items(&spec["volumes"]) {
        names.push(&volume["configMap"]["name"]);
        names.extend(items(&volume["projected"]["sources"]).map(|source| &source["configMap"]["name"]));
    }
    names
}

/// Names in the environment of every container: whole objects, and single keys.
fn environment<'a>(spec: &'a Value, whole: &'static str, key: &'static str) -> impl Iterator<Item = &'a Value> {
    let containers = CONTAINERS.into_iter().flat_map(move |kind| items(&spec[kind]));
    containers.flat_map(move |container| {
        let from = items(&container["envFrom"]).map(move |from| &from[whole]["name"]);
        from.chain(items(&container["env"]).map(move |variable| &variable["valueFrom"][key]["name"]))
    })
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}
