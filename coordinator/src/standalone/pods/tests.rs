//! Results of writes of pods, compared with the answers of kube-apiserver 1.36.3 to the same
//! bodies.

use yurt_codec::{canonical, schema};

use super::*;

/// A pod as it is stored after its create.
fn created(text: &str) -> Value {
    let mut pod = serde_json::from_str(text).unwrap();
    Pods.default(&mut pod);
    Pods.prepare_create(&mut pod);
    canonical::canonicalize(&mut pod, schema::find("", "v1", "Pod").unwrap());
    pod
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn a_full_pod_becomes_what_the_reference_makes_of_it() {
    let mut pod = created(FULL);
    assert_eq!(pod, parsed(FULL_STORED));
    let before = pod.clone();
    Pods.default(&mut pod);
    assert_eq!(pod, before, "what has its defaults stays");
}

#[test]
fn images_decide_the_pull_policy_and_gates_make_a_condition() {
    assert_eq!(created(GATED), parsed(GATED_STORED));
}

#[test]
fn any_shape_is_survived() {
    for odd in [
        "1",
        r#"{"spec": 3}"#,
        r#"{"spec": {"containers": 7, "volumes": [1], "initContainers": [{"env": 1, "ports": {}, "resources": {"limits": {"cpu": 1}, "requests": 2}}]}}"#,
    ] {
        let mut pod = parsed(odd);
        Pods.default(&mut pod);
        Pods.prepare_create(&mut pod);
    }
}

#[test]
fn a_status_keeps_owners_class_and_what_was_observed() {
    let old = json!({
        "metadata": {"ownerReferences": [{"uid": "u"}]},
        "status": {"qosClass": "Burstable", "observedGeneration": 3},
    });
    let mut new = json!({"metadata": {"ownerReferences": []}, "status": {"phase": "Running"}});
    Pods.prepare_status(&old, &mut new);
    let want = json!({"phase": "Running", "qosClass": "Burstable", "observedGeneration": 3});
    assert_eq!((&new["metadata"], &new["status"]), (&old["metadata"], &want));
    let mut later = json!({"metadata": {}, "status": {"observedGeneration": 4, "qosClass": "Guaranteed"}});
    Pods.prepare_status(&old, &mut later);
    assert_eq!(
        later["status"],
        json!({"observedGeneration": 4, "qosClass": "Guaranteed"})
    );
}

/// A pod with a value in every place that has defaults.
const FULL: &str = r#"{
  "apiVersion": "v1",
  "kind": "Pod",
  "metadata": {"name": "full", "namespace": "default"},
  "spec": {
    "hostNetwork": true,
    "initContainers": [
      {
        "name": "i",
        "image": "a@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "resources": {"limits": {"cpu": "1", "memory": "64Mi"}}
      }
    ],
    "containers": [
      {
        "name": "a",
        "image": "registry:5000/a",
        "ports": [{"containerPort": 80}],
        "resources": {"limits": {"cpu": "1", "memory": "64Mi"}, "requests": {"cpu": "1"}},
        "env": [{"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        "livenessProbe": {"httpGet": {"port": 80}},
        "readinessProbe": {"grpc": {"port": 9}},
        "startupProbe": {"tcpSocket": {"port": 80}, "periodSeconds": 3},
        "lifecycle": {"postStart": {"httpGet": {"port": 80}}, "preStop": {"httpGet": {"port": 80, "scheme": "HTTPS", "path": "/x"}}}
      },
      {"name": "b", "image": "a:1", "resources": {"limits": {"cpu": "1", "memory": "64Mi"}}},
      {
        "name": "c",
        "image": "a:latest",
        "imagePullPolicy": "Never",
        "resources": {"limits": {"cpu": "1", "memory": "64Mi"}}
      }
    ],
    "volumes": [
      {"name": "v1"},
      {"name": "v2", "secret": {"secretName": "s"}},
      {"name": "v3", "configMap": {"name": "c"}},
      {"name": "v4", "hostPath": {"path": "/x"}},
      {"name": "v5", "downwardAPI": {"items": [{"path": "p", "fieldRef": {"fieldPath": "metadata.name"}}]}},
      {
        "name": "v6",
        "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}, {"downwardAPI": {"items": [{"path": "p", "fieldRef": {"fieldPath": "metadata.name"}}]}}]}
      },
      {
        "name": "v7",
        "iscsi": {"targetPortal": "1.2.3.4:3260", "iqn": "iqn.2001-04.com.example:storage", "lun": 0}
      },
      {"name": "v8", "rbd": {"monitors": ["m"], "image": "i"}},
      {"name": "v9", "azureDisk": {"diskName": "d", "diskURI": "https://blob/d"}},
      {"name": "v11", "image": {"reference": "a"}},
      {
        "name": "v12",
        "ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}}
      }
    ],
    "serviceAccountName": "x"
  }
}"#;

/// The same as the reference stored it.
const FULL_STORED: &str = r#"{
  "kind": "Pod",
  "apiVersion": "v1",
  "metadata": {"name": "full", "namespace": "default"},
  "spec": {
    "volumes": [
      {"name": "v1", "emptyDir": {}},
      {"name": "v2", "secret": {"secretName": "s", "defaultMode": 420}},
      {"name": "v3", "configMap": {"name": "c", "defaultMode": 420}},
      {"name": "v4", "hostPath": {"path": "/x", "type": ""}},
      {
        "name": "v5",
        "downwardAPI": {"items": [{"path": "p", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}], "defaultMode": 420}
      },
      {
        "name": "v6",
        "projected": {"sources": [{"serviceAccountToken": {"expirationSeconds": 3600, "path": "t"}}, {"downwardAPI": {"items": [{"path": "p", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}]}}], "defaultMode": 420}
      },
      {
        "name": "v7",
        "iscsi": {"targetPortal": "1.2.3.4:3260", "iqn": "iqn.2001-04.com.example:storage", "lun": 0, "iscsiInterface": "default"}
      },
      {
        "name": "v8",
        "rbd": {"monitors": ["m"], "image": "i", "pool": "rbd", "user": "admin", "keyring": "/etc/ceph/keyring"}
      },
      {
        "name": "v9",
        "azureDisk": {"diskName": "d", "diskURI": "https://blob/d", "cachingMode": "ReadWrite", "fsType": "ext4", "readOnly": false, "kind": "Shared"}
      },
      {"name": "v11", "image": {"reference": "a", "pullPolicy": "Always"}},
      {
        "name": "v12",
        "ephemeral": {"volumeClaimTemplate": {"metadata": {}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "volumeMode": "Filesystem"}}}
      }
    ],
    "initContainers": [
      {
        "name": "i",
        "image": "a@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "resources": {"limits": {"cpu": "1", "memory": "64Mi"}, "requests": {"cpu": "1", "memory": "64Mi"}},
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent"
      }
    ],
    "containers": [
      {
        "name": "a",
        "image": "registry:5000/a",
        "ports": [{"hostPort": 80, "containerPort": 80, "protocol": "TCP"}],
        "env": [{"name": "N", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}}],
        "resources": {"limits": {"cpu": "1", "memory": "64Mi"}, "requests": {"cpu": "1", "memory": "64Mi"}},
        "livenessProbe": {"httpGet": {"path": "/", "port": 80, "scheme": "HTTP"}, "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3},
        "readinessProbe": {"grpc": {"port": 9, "service": ""}, "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3},
        "startupProbe": {"tcpSocket": {"port": 80}, "timeoutSeconds": 1, "periodSeconds": 3, "successThreshold": 1, "failureThreshold": 3},
        "lifecycle": {"postStart": {"httpGet": {"path": "/", "port": 80, "scheme": "HTTP"}}, "preStop": {"httpGet": {"path": "/x", "port": 80, "scheme": "HTTPS"}}},
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "Always"
      },
      {
        "name": "b",
        "image": "a:1",
        "resources": {"limits": {"cpu": "1", "memory": "64Mi"}, "requests": {"cpu": "1", "memory": "64Mi"}},
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent"
      },
      {
        "name": "c",
        "image": "a:latest",
        "resources": {"limits": {"cpu": "1", "memory": "64Mi"}, "requests": {"cpu": "1", "memory": "64Mi"}},
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "Never"
      }
    ],
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "serviceAccountName": "x",
    "serviceAccount": "x",
    "hostNetwork": true,
    "securityContext": {},
    "schedulerName": "default-scheduler",
    "enableServiceLinks": true
  },
  "status": {"phase": "Pending", "qosClass": "Guaranteed"}
}"#;

/// References to images of all forms, in a pod that waits for a gate.
const GATED: &str = r#"{
  "apiVersion": "v1",
  "kind": "Pod",
  "metadata": {"name": "gated", "creationTimestamp": "2026-11-21T05:23:41Z"},
  "spec": {
    "schedulingGates": [
      {"name": "x/y"}
    ],
    "containers": [
      {"name": "a", "image": "Bad Image"},
      {"name": "b", "image": "UP/x"},
      {
        "name": "c",
        "image": "a:latest@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
      },
      {"name": "d", "image": "localhost:5000/a/b"},
      {"name": "e", "image": "a:1", "resources": {"requests": {"cpu": "0"}}}
    ]
  }
}"#;

/// The same as the reference stored it.
const GATED_STORED: &str = r#"{
  "kind": "Pod",
  "apiVersion": "v1",
  "metadata": {"name": "gated", "creationTimestamp": "2026-11-21T05:23:41Z"},
  "spec": {
    "containers": [
      {
        "name": "a",
        "image": "Bad Image",
        "resources": {},
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent"
      },
      {
        "name": "b",
        "image": "UP/x",
        "resources": {},
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "Always"
      },
      {
        "name": "c",
        "image": "a:latest@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "resources": {},
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "Always"
      },
      {
        "name": "d",
        "image": "localhost:5000/a/b",
        "resources": {},
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "Always"
      },
      {
        "name": "e",
        "image": "a:1",
        "resources": {"requests": {"cpu": "0"}},
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent"
      }
    ],
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "securityContext": {},
    "schedulerName": "default-scheduler",
    "enableServiceLinks": true,
    "schedulingGates": [
      {"name": "x/y"}
    ]
  },
  "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "lastProbeTime": null, "lastTransitionTime": "2026-11-21T05:23:41Z", "reason": "SchedulingGated", "message": "Scheduling is blocked due to non-empty scheduling gates"}], "qosClass": "BestEffort"}
}"#;

#[test]
fn a_pods_address_is_the_first_of_its_addresses() {
    for (given, want) in [
        (
            json!({"podIP": "10.0.0.1"}),
            json!({"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]}),
        ),
        (
            json!({"podIPs": [{"ip": "10.0.0.2"}, {"ip": "fd00::2"}]}),
            json!({"podIP": "10.0.0.2", "podIPs": [{"ip": "10.0.0.2"}, {"ip": "fd00::2"}]}),
        ),
        (
            json!({"podIP": "10.0.0.3", "podIPs": [{"ip": "10.0.0.4"}]}),
            json!({"podIP": "10.0.0.3", "podIPs": [{"ip": "10.0.0.3"}]}),
        ),
        (json!({"podIPs": []}), json!({"podIPs": []})),
    ] {
        let mut pod = json!({ "status": given });
        super::defaults::addresses(&mut pod);
        assert_eq!(pod["status"], want);
    }
}
