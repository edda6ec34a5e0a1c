//! Objects of the sizes the benchmark needs.

use serde_json::{Value, json};

pub(super) const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
pub(super) const ALL_SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
pub(super) const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
pub(super) const PODS: &str = "/api/v1/namespaces/default/pods";
pub(super) const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
pub(super) const NODES: &str = "/api/v1/nodes";
pub(super) const NODE_LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

/// An EndpointSlice as the controller writes them.
pub(super) fn slice(name: &str, endpoints: usize) -> Value {
    let endpoints: Vec<Value> = (0..endpoints).map(endpoint).collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": { "name": name, "namespace": "default", "labels": { "kubernetes.io/service-name": "bench", "endpointslice.kubernetes.io/managed-by": "bench" } },
        "ports": [{ "name": "http", "port": 8080, "protocol": "TCP" }],
        "endpoints": endpoints,
    })
}

fn endpoint(at: usize) -> Value {
    json!({
        "addresses": [format!("10.{}.{}.{}", at / 65_536, at / 256 % 256, at % 256)],
        "conditions": { "ready": true, "serving": true, "terminating": false },
        "nodeName": format!("node-{:04}", at % 500),
        "targetRef": { "kind": "Pod", "name": format!("bench-6d4cf56db6-{at:05}"), "namespace": "default", "uid": format!("00000000-0000-4000-8000-{at:012}") },
        "zone": "zone-a",
    })
}

/// A ConfigMap with one value of this many bytes.
pub(super) fn config_map(name: &str, bytes: usize) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name, "namespace": "default" }, "data": { "value": "x".repeat(bytes) } })
}

/// A Pod of about this many bytes: annotations, as real ones have.
pub(super) fn pod(name: &str, bytes: usize) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "default", "labels": { "app": "bench" }, "annotations": { "bench/filling": "x".repeat(bytes) } },
        "spec": { "containers": [{ "name": "c", "image": "registry.example/bench:1" }], "automountServiceAccountToken": false, "enableServiceLinks": false },
    })
}

/// A Node of about this many bytes.
pub(super) fn node(name: &str, bytes: usize) -> Value {
    json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name, "annotations": { "bench/filling": "x".repeat(bytes) } } })
}

/// Status of a healthy node as its kubelet repeats it, at this second of a day.
pub(super) fn heartbeat(second: usize) -> Value {
    let time = time(second as u64);
    let condition = |kind: &str, status: &str, reason: &str| {
        json!({
            "type": kind, "status": status, "reason": reason, "message": format!("kubelet has {reason}"),
            "lastHeartbeatTime": format!("{time}Z"), "lastTransitionTime": "2026-11-20T00:00:00Z",
        })
    };
    json!({ "status": { "conditions": [
        condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
        condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
        condition("PIDPressure", "False", "KubeletHasSufficientPID"),
        condition("Ready", "True", "KubeletReady"),
    ] } })
}

/// A second of a day, without its fractions.
fn time(second: u64) -> String {
    let second = second % 86_400;
    format!(
        "2026-11-20T{:02}:{:02}:{:02}",
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

/// A kubelet's lease, renewed at this microsecond of a day.
pub(super) fn lease(name: &str, micros: u64, resource_version: Option<&str>) -> Value {
    let time = format!("{}.{:06}Z", time(micros / 1_000_000), micros % 1_000_000);
    let mut lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": name, "namespace": "kube-node-lease" },
        "spec": { "holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": time },
    });
    if let Some(rv) = resource_version {
        lease["metadata"]["resourceVersion"] = json!(rv);
    }
    lease
}
