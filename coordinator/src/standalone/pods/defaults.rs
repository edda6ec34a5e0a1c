//! Defaults of a pod: those of kube-apiserver 1.36 for `v1.Pod`.
//!
//! Left out: requests of the pod as a whole (`spec.resources`), which follow from all its containers. The additions of
//! admission plugins are left out, too: service account and its token, priority, tolerations.

use serde_json::{Map, Value, json};

use crate::registry::fields::{each, fill, members, text};

/// Paths of a pod's lists of containers.
const CONTAINERS: [[&str; 2]; 3] = [
    ["spec", "containers"],
    ["spec", "initContainers"],
    ["spec", "ephemeralContainers"],
];

/// Mode of a volume's files, 0644: readable by all and writable by the owner.
const FILE_MODE: i64 = 0o644;

/// Lifetime of a projected token, in seconds.
const TOKEN_SECONDS: i64 = 3600;

/// Time for the containers to stop, in seconds.
const GRACE_SECONDS: i64 = 30;

/// Sets the defaults of a whole pod.
pub(super) fn pod(object: &mut Value) {
    let Some(spec) = members(object, &["spec"]) else { return };
    fill(spec, "dnsPolicy", "ClusterFirst");
    fill(spec, "enableServiceLinks", true);
    fill(spec, "restartPolicy", "Always");
    fill(spec, "schedulerName", "default-scheduler");
    fill(spec, "securityContext", json!({}));
    fill(spec, "terminationGracePeriodSeconds", GRACE_SECONDS);
    mirror_service_account(spec);
    let on_host = spec.get("hostNetwork") == Some(&Value::Bool(true));
    for (index, path) in CONTAINERS.iter().enumerate() {
        let is_ephemeral = index == 2;
        for one in each(object, path) {
            container(one);
            if !is_ephemeral {
                request_limits(one);
            }
            if on_host && !is_ephemeral {
                list(one, "ports").for_each(publish);
            }
        }
    }
    each(object, &["spec", "volumes"]).for_each(volume);
}

/// Sets the deprecated field of the service account to the value of the new one, which decides.
fn mirror_service_account(spec: &mut Map<String, Value>) {
    let named = ["serviceAccountName", "serviceAccount"].into_iter().find_map(|name| {
        let account = spec.get(name).and_then(Value::as_str);
        account.filter(|account| !account.is_empty()).map(str::to_owned)
    });
    if let Some(account) = named {
        spec.insert("serviceAccountName".to_owned(), account.clone().into());
        spec.insert("serviceAccount".to_owned(), account.into());
    }
}

fn container(one: &mut Map<String, Value>) {
    fill_pull_policy(one, "imagePullPolicy", "image");
    fill(one, "terminationMessagePath", "/dev/termination-log");
    fill(one, "terminationMessagePolicy", "File");
    list(one, "ports").for_each(|port| fill(port, "protocol", "TCP"));
    for variable in list(one, "env") {
        let Some(source) = part(variable, "valueFrom") else {
            continue;
        };
        field_ref(source);
        if let Some(file) = part(source, "fileKeyRef") {
            fill(file, "optional", false);
        }
    }
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(found) = part(one, name) {
            probe(found);
        }
    }
    for name in ["postStart", "preStop"] {
        if let Some(handler) = part(one, "lifecycle").and_then(|lifecycle| part(lifecycle, name)) {
            http_get(handler);
        }
    }
}

/// A limit is also the request, unless a request is given.
fn request_limits(one: &mut Map<String, Value>) {
    let Some(resources) = part(one, "resources") else {
        return;
    };
    let Some(limits) = part(resources, "limits").map(|limits| limits.clone()) else {
        return;
    };
    let requests = resources.entry("requests").or_insert(Value::Null);
    if requests.is_null() {
        *requests = json!({});
    }
    let Some(requests) = requests.as_object_mut() else {
        return;
    };
    for (name, limit) in limits {
        requests.entry(name).or_insert(limit);
    }
}

/// A port of a container in the host's network is the host's.
fn publish(port: &mut Map<String, Value>) {
    let Some(number) = port.get("containerPort").cloned() else {
        return;
    };
    fill_zero(port, "hostPort", number);
}

fn probe(one: &mut Map<String, Value>) {
    fill_zero(one, "timeoutSeconds", 1);
    fill_zero(one, "periodSeconds", 10);
    fill_zero(one, "successThreshold", 1);
    fill_zero(one, "failureThreshold", 3);
    http_get(one);
    if let Some(grpc) = part(one, "grpc") {
        fill(grpc, "service", "");
    }
}

fn http_get(handler: &mut Map<String, Value>) {
    if let Some(action) = part(handler, "httpGet") {
        fill(action, "path", "/");
        fill(action, "scheme", "HTTP");
    }
}

fn field_ref(source: &mut Map<String, Value>) {
    if let Some(reference) = part(source, "fieldRef") {
        fill(reference, "apiVersion", "v1");
    }
}

fn volume(one: &mut Map<String, Value>) {
    // An unknown member may be a volume source of a newer version.
    if one.iter().all(|(name, value)| name == "name" || value.is_null()) {
        one.insert("emptyDir".to_owned(), json!({}));
    }
    for name in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(source) = part(one, name) {
            fill(source, "defaultMode", FILE_MODE);
        }
    }
    if let Some(source) = part(one, "downwardAPI") {
        list(source, "items").for_each(field_ref);
    }
    if let Some(source) = part(one, "projected") {
        for projection in list(source, "sources") {
            if let Some(downward) = part(projection, "downwardAPI") {
                list(downward, "items").for_each(field_ref);
            }
            if let Some(token) = part(projection, "serviceAccountToken") {
                fill(token, "expirationSeconds", TOKEN_SECONDS);
            }
        }
    }
    if let Some(source) = part(one, "hostPath") {
        source
            .entry("type")
            .and_modify(|held| {
                if held.is_null() {
                    *held = "".into()
                }
            })
            .or_insert_with(|| "".into());
    }
    if let Some(source) = part(one, "image") {
        fill_pull_policy(source, "pullPolicy", "reference");
    }
    let template = part(one, "ephemeral").and_then(|source| part(source, "volumeClaimTemplate"));
    if let Some(claim) = template.and_then(|template| part(template, "spec")) {
        fill(claim, "volumeMode", "Filesystem");
    }
    storage_system(one);
}

/// Sources that name a storage system.
fn storage_system(one: &mut Map<String, Value>) {
    let defaults = [
        ("iscsi", json!({ "iscsiInterface": "default" })),
        (
            "rbd",
            json!({ "pool": "rbd", "user": "admin", "keyring": "/etc/ceph/keyring" }),
        ),
        ("scaleIO", json!({ "storageMode": "ThinProvisioned", "fsType": "xfs" })),
        (
            "azureDisk",
            json!({ "cachingMode": "ReadWrite", "fsType": "ext4", "readOnly": false, "kind": "Shared" }),
        ),
    ];
    for (name, values) in defaults {
        let Some(source) = part(one, name) else { continue };
        for (field, value) in values.as_object().into_iter().flatten() {
            fill(source, field, value.clone());
        }
    }
}

fn fill_pull_policy(members: &mut Map<String, Value>, policy: &str, image: &str) {
    let image = members.get(image).and_then(Value::as_str).unwrap_or_default();
    let value = if is_latest(image) { "Always" } else { "IfNotPresent" };
    fill(members, policy, value);
}

/// True if an image may change under its name: its tag is `latest`, or it has neither tag nor digest. False for an
/// invalid reference.
fn is_latest(image: &str) -> bool {
    let (named, digest) = match image.split_once('@') {
        Some((named, digest)) => (named, Some(digest)),
        None => (image, None),
    };
    let path_at = named.rfind('/').map_or(0, |slash| slash + 1);
    let (name, tag) = match named[path_at..].split_once(':') {
        Some((last, tag)) => (&named[..path_at + last.len()], Some(tag)),
        None => (named, None),
    };
    let path = match name.split_once('/') {
        Some((host, path)) if is_host(host) => path,
        _ => name,
    };
    let is_name = path.split('/').all(is_path_component);
    is_name && tag.map_or(digest.is_none(), |tag| tag == "latest")
}

/// True if the part before the first slash names a registry.
fn is_host(first: &str) -> bool {
    first == "localhost" || first.contains(['.', ':']) || first.contains(|c: char| c.is_ascii_uppercase())
}

fn is_path_component(component: &str) -> bool {
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    component.starts_with(is_word)
        && component.ends_with(is_word)
        && component.chars().all(|c| is_word(c) || matches!(c, '.' | '_' | '-'))
}

/// Sets a number that is missing, null or zero.
fn fill_zero(members: &mut Map<String, Value>, name: &str, value: impl Into<Value>) {
    if members.get(name).is_none_or(|held| held.is_null() || held == 0) {
        members.insert(name.to_owned(), value.into());
    }
}

/// A structure, if present.
fn part<'a>(members: &'a mut Map<String, Value>, name: &str) -> Option<&'a mut Map<String, Value>> {
    members.get_mut(name).and_then(Value::as_object_mut)
}

/// The structures of a list, if present.
fn list<'a>(members: &'a mut Map<String, Value>, name: &str) -> impl Iterator<Item = &'a mut Map<String, Value>> {
    let items = members.get_mut(name).and_then(Value::as_array_mut);
    items.into_iter().flatten().filter_map(Value::as_object_mut)
}

/// The condition of a pod whose scheduling gates are not removed yet.
pub(super) fn gated(object: &Value) -> Value {
    json!([{
        "type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "lastProbeTime": null,
        "lastTransitionTime": text(object, &["metadata", "creationTimestamp"]),
        "message": "Scheduling is blocked due to non-empty scheduling gates",
    }])
}

/// Keeps a pod's address equal to the first of its addresses. Older kubelets write the single one only: where both are
/// present and differ, it counts.
pub(super) fn addresses(pod: &mut Value) {
    let Some(status) = members(pod, &["status"]) else {
        return;
    };
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    let single = text(status.get("podIP"));
    let first = text(status.get("podIPs").and_then(|held| held.get(0)?.get("ip")));
    if single == first {
        return;
    }
    if single.is_empty() {
        status.insert("podIP".to_owned(), json!(first));
    } else {
        status.insert("podIPs".to_owned(), json!([{ "ip": single }]));
    }
}
