//! The patches that Kubernetes' own clients send, every directive, rejected patches, and the real implementation's
//! answers to a few hundred random patches.

use serde_json::json;

use super::*;
use yurt_codec::schema;

fn patched(kind: &str, mut document: Value, patch: Value) -> Result<Value, (u16, String)> {
    let message = schema::find("", "v1", kind).unwrap();
    let Value::Object(patch) = patch else {
        panic!("a patch is an object")
    };
    apply_strategic_merge_patch(&mut document, patch, message)
        .map(|()| document)
        .map_err(|status| (status.code(), status.message().to_owned()))
}

/// Conformance: 3.C03
#[test]
fn kubelets_node_status_patch_merges_conditions_and_addresses() {
    let node = json!({"status": {
        "conditions": [
            {"type": "Ready", "status": "True", "reason": "KubeletReady"},
            {"type": "DiskPressure", "status": "False"},
        ],
        "addresses": [{"type": "Hostname", "address": "n"}, {"type": "InternalIP", "address": "10.0.0.1"}],
    }});
    let patch = json!({"status": {
        "$setElementOrder/conditions": [{"type": "DiskPressure"}, {"type": "Ready"}],
        "conditions": [{"lastHeartbeatTime": "2026-01-01T00:00:00Z", "type": "Ready", "status": "False"}],
        "addresses": [{"address": "10.0.0.2", "type": "InternalIP"}, {"$patch": "replace"}],
    }});
    assert_eq!(
        patched("Node", node, patch).unwrap(),
        json!({"status": {
            "conditions": [
                {"type": "DiskPressure", "status": "False"},
                {"type": "Ready", "status": "False", "reason": "KubeletReady", "lastHeartbeatTime": "2026-01-01T00:00:00Z"},
            ],
            "addresses": [{"address": "10.0.0.2", "type": "InternalIP"}],
        }})
    );
}

/// Conformance: 3.C03
#[test]
fn kubelets_pod_status_patch_keeps_what_it_does_not_name() {
    let pod = json!({
        "metadata": {"uid": "u1", "name": "p"},
        "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}], "qosClass": "BestEffort"},
    });
    let patch = json!({
        "metadata": {"uid": "u1"},
        "status": {
            "$setElementOrder/conditions": [{"type": "Initialized"}, {"type": "PodScheduled"}],
            "conditions": [{"type": "Initialized", "status": "True", "lastProbeTime": null}],
            "containerStatuses": [{"name": "c", "ready": true}],
            "phase": "Running",
            "podIPs": [{"ip": "10.1.0.1"}],
        },
    });
    assert_eq!(
        patched("Pod", pod, patch).unwrap(),
        json!({
            "metadata": {"uid": "u1", "name": "p"},
            "status": {
                "phase": "Running",
                "qosClass": "BestEffort",
                // New elements of a list come as they are; decoding drops the null.
                "conditions": [
                    {"type": "Initialized", "status": "True", "lastProbeTime": null},
                    {"type": "PodScheduled", "status": "True"},
                ],
                "containerStatuses": [{"name": "c", "ready": true}],
                "podIPs": [{"ip": "10.1.0.1"}],
            },
        })
    );
}

/// Conformance: 3.C03
#[test]
fn client_gos_event_series_patch_counts() {
    let event = json!({"count": 1, "message": "m", "lastTimestamp": "2026-01-01T00:00:00Z"});
    let patch = json!({"count": 2, "lastTimestamp": "2026-01-01T00:00:05Z"});
    let want = json!({"count": 2, "message": "m", "lastTimestamp": "2026-01-01T00:00:05Z"});
    assert_eq!(patched("Event", event, patch).unwrap(), want);
}

/// Conformance: 3.C03
#[test]
fn directives_delete_replace_retain_and_order() {
    let pod = json!({
        "metadata": {"finalizers": ["a/b", "c/d", "e/f"], "labels": {"x": "1", "y": "2"}},
        "spec": {
            "containers": [{"name": "a", "image": "1", "env": [{"name": "E", "value": "1"}]}, {"name": "b", "image": "2"}],
            "volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}],
            "nodeSelector": {"a": "b"},
        },
    });
    let patch = json!({
        "metadata": {
            "$deleteFromPrimitiveList/finalizers": ["c/d"],
            "$setElementOrder/finalizers": ["g/h", "a/b"],
            "finalizers": ["g/h"],
            "labels": {"$patch": "replace", "z": "3"},
        },
        "spec": {
            "containers": [{"name": "b", "$patch": "delete"}, {"name": "a", "env": [{"name": "F", "value": "2"}]}, {"name": "c"}],
            "volumes": [{"$retainKeys": ["name", "hostPath"], "name": "v", "hostPath": {"path": "/"}}],
            "nodeSelector": {"$patch": "delete"},
        },
    });
    assert_eq!(
        patched("Pod", pod, patch).unwrap(),
        json!({
            "metadata": {"finalizers": ["g/h", "a/b", "e/f"], "labels": {"z": "3"}},
            "spec": {
                "containers": [
                    {"name": "a", "image": "1", "env": [{"name": "F", "value": "2"}, {"name": "E", "value": "1"}]},
                    {"name": "c"},
                ],
                "volumes": [{"name": "v", "hostPath": {"path": "/"}}],
                "nodeSelector": {},
            },
        })
    );
}

#[test]
fn lists_without_merge_rule_are_replaced_and_nulls_delete() {
    let service =
        json!({"spec": {"externalIPs": ["1.1.1.1"], "clusterIP": "10.0.0.1", "ports": [{"port": 80}, {"port": 81}]}});
    let patch = json!({"spec": {"externalIPs": ["2.2.2.2"], "clusterIP": null, "absent": null, "ports": [{"port": 81, "name": "x"}]}});
    assert_eq!(
        patched("Service", service, patch).unwrap(),
        json!({"spec": {"externalIPs": ["2.2.2.2"], "ports": [{"port": 80}, {"port": 81, "name": "x"}]}})
    );
    let account = json!({"imagePullSecrets": [{"name": "a"}], "secrets": [{"name": "a"}]});
    let patch = json!({"imagePullSecrets": [{"name": "b"}], "secrets": [{"name": "b"}]});
    assert_eq!(
        patched("ServiceAccount", account, patch).unwrap(),
        json!({"imagePullSecrets": [{"name": "b"}], "secrets": [{"name": "b"}, {"name": "a"}]})
    );
}

#[test]
fn what_does_not_fit_is_the_patchs_fault() {
    let pod = || json!({"metadata": {"finalizers": ["a/b"]}, "spec": {"containers": [{"name": "a"}]}});
    for (patch, code, message) in [
        (
            json!({"spec": {"containers": [{"image": "x"}]}}),
            422,
            "map: map[image:x] does not contain declared merge key: name",
        ),
        (
            json!({"spec": {"$patch": "frobnicate"}}),
            422,
            "unknown patch type: frobnicate in map: map[$patch:frobnicate]",
        ),
        (
            json!({"metadata": {"$deleteFromPrimitiveListfinalizers": ["x"]}}),
            400,
            "invalid patch format of primitive list",
        ),
        (
            json!({"metadata": {"$setElementOrder/finalizers": 1}}),
            400,
            "invalid patch format of setElementOrder list",
        ),
        (
            json!({"spec": {"$retainKeys": 1}}),
            400,
            "invalid patch format of retainKeys",
        ),
        (
            json!({"spec": {"$retainKeys": [], "nodeName": "x"}}),
            400,
            "invalid patch format of retainKeys",
        ),
        (
            json!({"metadata": {"finalizers": [["x"]]}}),
            422,
            "list element types are not identical: [[a/b] [[x]]]",
        ),
        (
            json!({"metadata": {"finalizers": ["c", "d"], "$setElementOrder/finalizers": ["d", "c"]}}),
            422,
            "The order in patch list:\n[c d]\n doesn't match $setElementOrder list:\n[d c]\n",
        ),
        (
            json!({"spec": {"containers": [{"name": "a", "$patch": "merge"}]}}),
            422,
            "merging lists cannot yet be specified in the patch",
        ),
    ] {
        assert_eq!(
            patched("Pod", pod(), patch.clone()),
            Err((code, message.to_owned())),
            "{patch}"
        );
    }
}

/// Every case was answered by the real implementation (`interop/cmd/patchcases`).
///
/// Conformance: 3.C03
#[test]
fn random_patches_merge_as_upstream() {
    let cases: Vec<Value> = serde_json::from_str(include_str!("../../testdata/strategic.json")).unwrap();
    assert!(cases.len() > 300);
    for (number, case) in cases.iter().enumerate() {
        let kind = case["kind"].as_str().unwrap();
        let found = patched(kind, case["original"].clone(), case["patch"].clone());
        match case.get("result") {
            Some(want) => assert_eq!(found.as_ref(), Ok(want), "case {number}: {case}"),
            None => assert!(found.is_err(), "case {number}: {case} gave {found:?}"),
        }
    }
}
