//! Rows as in kube-apiserver's printers.

use serde_json::json;

use super::*;
use crate::negotiation::MetaVersion;
use yurt_apimachinery::kind::{builtin_kinds, find_kind};

const NOW: &str = "2026-11-20T10:00:00Z";

fn now() -> Time {
    Time::parse(NOW).unwrap()
}

fn cells(group: &str, plural: &str, object: &Value) -> Vec<Value> {
    let printer = Printer::of(find_kind(group, plural).unwrap());
    let cells = printer.cells(object, now());
    let columns = printer.columns();
    assert_eq!(
        cells.len(),
        columns.as_array().unwrap().len(),
        "one cell for each column"
    );
    cells
}

#[test]
fn every_kind_has_as_many_cells_as_columns() {
    for kind in builtin_kinds() {
        for object in [
            json!({}),
            json!({"metadata": {"name": "a"}}),
            json!({"spec": 1, "status": [], "data": "x"}),
        ] {
            cells(&kind.group, &kind.plural, &object);
        }
    }
}

fn pod(status: Value) -> Vec<Value> {
    let spec = json!({
        "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}],
        "containers": [{"name": "a"}, {"name": "b"}],
    });
    let created = "2026-11-20T09:58:00Z";
    cells(
        "",
        "pods",
        &json!({"metadata": {"name": "p", "creationTimestamp": created}, "spec": spec, "status": status}),
    )
}

#[test]
fn pods_show_what_their_containers_do() {
    let running = json!({"ready": true, "restartCount": 2, "state": {"running": {}},
        "lastState": {"terminated": {"finishedAt": "2026-11-20T09:59:30Z"}}});
    let done = json!({"name": "i", "state": {"terminated": {"exitCode": 0}}});
    let sidecar = json!({"name": "s", "started": true, "ready": true, "state": {"running": {}}});
    let pick = |status: Value| pod(status)[1..4].to_vec();
    assert_eq!(
        pick(json!({"phase": "Pending"})),
        [json!("0/3"), json!("Pending"), json!("0")]
    );
    assert_eq!(
        pick(
            json!({"phase": "Running", "initContainerStatuses": [done, sidecar], "containerStatuses": [running, running]})
        ),
        [json!("3/3"), json!("Running"), json!("4 (30s ago)")]
    );
    assert_eq!(
        pick(
            json!({"phase": "Running", "initContainerStatuses": [done, sidecar], "containerStatuses": [
            {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "restartCount": 7}, running]})
        ),
        [json!("2/3"), json!("CrashLoopBackOff"), json!("9 (30s ago)")]
    );
    assert_eq!(
        pick(json!({"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": {"running": {}}}]})),
        [json!("0/3"), json!("Init:0/2"), json!("0")]
    );
    assert_eq!(
        pick(
            json!({"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": {"terminated": {"exitCode": 3}}}]})
        )[1],
        "Init:ExitCode:3"
    );
    assert_eq!(
        pick(
            json!({"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"signal": 9, "exitCode": 137}}}]})
        )[1],
        "Signal:9"
    );
    let gone = json!({"metadata": {"name": "p", "deletionTimestamp": NOW}, "status": {"phase": "Running"}});
    assert_eq!(cells("", "pods", &gone)[2], "Terminating");
    let wide = pod(json!({"podIPs": [{"ip": "10.0.0.1"}]}))[4..].to_vec();
    assert_eq!(
        wide,
        [
            json!("2m"),
            json!("10.0.0.1"),
            json!("<none>"),
            json!("<none>"),
            json!("<none>")
        ]
    );
}

#[test]
fn services_show_addresses_and_ports() {
    let service = json!({"metadata": {"name": "s"}, "spec": {
        "type": "LoadBalancer", "clusterIPs": ["10.0.0.1"], "externalIPs": ["9.9.9.9"], "selector": {"b": "2", "a": "1"},
        "ports": [{"port": 80, "protocol": "TCP", "nodePort": 30080}, {"port": 53, "protocol": "UDP"}],
    }, "status": {"loadBalancer": {"ingress": [{"hostname": "z"}, {"ip": "1.1.1.1"}]}}});
    assert_eq!(
        cells("", "services", &service),
        [
            json!("s"),
            json!("LoadBalancer"),
            json!("10.0.0.1"),
            json!("1.1.1.1,z,9.9.9.9"),
            json!("80:30080/TCP,53/UDP"),
            json!("<unknown>"),
            json!("a=1,b=2")
        ]
    );
    let waiting = json!({"spec": {"type": "LoadBalancer"}});
    assert_eq!(cells("", "services", &waiting)[3], "<pending>");
    assert_eq!(
        cells("", "services", &json!({"spec": {"type": "ClusterIP"}}))[2..5],
        ["<none>", "<none>", "<none>"]
    );
}

#[test]
fn endpoints_and_slices_are_shortened() {
    let addresses: Vec<Value> = (1..6).map(|n| json!({"ip": format!("10.0.0.{n}")})).collect();
    let object = json!({"subsets": [{"addresses": addresses, "ports": [{"port": 80}]}]});
    assert_eq!(
        cells("", "endpoints", &object)[1],
        "10.0.0.1:80,10.0.0.2:80,10.0.0.3:80 + 2 more..."
    );
    let ipv6 = json!({"subsets": [{"addresses": [{"ip": "fd00::1"}], "ports": [{"port": 80}]}]});
    assert_eq!(cells("", "endpoints", &ipv6)[1], "[fd00::1]:80");
    assert_eq!(cells("", "endpoints", &json!({}))[1], "<none>");
    let slice = json!({"addressType": "IPv4", "ports": [{"port": 80}, {"name": "n"}, {}],
        "endpoints": [{"addresses": ["a", "b"]}, {"addresses": ["c", "d"]}]});
    assert_eq!(
        cells("discovery.k8s.io", "endpointslices", &slice)[1..4],
        ["IPv4", "80,n,*", "a,b,c + 1 more..."]
    );
    assert_eq!(
        cells("discovery.k8s.io", "endpointslices", &json!({}))[2..4],
        ["<unset>", "<unset>"]
    );
}

#[test]
fn nodes_show_state_and_roles() {
    let node = json!({
        "metadata": {"name": "n", "labels": {"node-role.kubernetes.io/worker": "", "kubernetes.io/role": "edge", "x": "y"}},
        "spec": {"unschedulable": true},
        "status": {
            "conditions": [{"type": "Ready", "status": "False"}], "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            "nodeInfo": {"kubeletVersion": "v1.36.3", "kernelVersion": "6.1", "architecture": "arm64"},
        },
    });
    assert_eq!(
        cells("", "nodes", &node),
        [
            json!("n"),
            json!("NotReady,SchedulingDisabled"),
            json!("edge,worker"),
            json!("<unknown>"),
            json!("v1.36.3"),
            json!("10.0.0.1"),
            json!("<none>"),
            json!("<unknown>"),
            json!("6.1 (arm64)"),
            json!("<unknown>")
        ]
    );
}

#[test]
fn events_of_both_groups_look_alike() {
    let core = json!({
        "metadata": {"name": "e"}, "type": "Normal", "reason": "Started", "message": " started \n", "count": 3,
        "involvedObject": {"kind": "Pod", "name": "p", "fieldPath": "spec"}, "source": {"component": "kubelet", "host": "n"},
        "firstTimestamp": "2026-11-20T09:00:00Z", "lastTimestamp": "2026-11-20T09:59:00Z",
    });
    let want = [
        json!("60s"),
        json!("Normal"),
        json!("Started"),
        json!("pod/p"),
        json!("spec"),
        json!("kubelet, n"),
        json!("started"),
        json!("60m"),
        json!(3),
        json!("e"),
    ];
    assert_eq!(cells("", "events", &core), want);
    let new = json!({
        "metadata": {"name": "e"}, "type": "Normal", "reason": "Started", "note": "started",
        "regarding": {"kind": "Pod", "name": "p", "fieldPath": "spec"}, "reportingController": "kubelet",
        "reportingInstance": "n", "eventTime": "2026-11-20T09:00:00.000000Z",
        "series": {"count": 3, "lastObservedTime": "2026-11-20T09:59:00.000000Z"},
    });
    assert_eq!(cells("", "events", &new), want);
}

#[test]
fn small_kinds() {
    assert_eq!(
        cells("", "configmaps", &json!({"data": {"a": 1}, "binaryData": {"b": 1}}))[1],
        2
    );
    assert_eq!(
        cells("", "secrets", &json!({"type": "Opaque", "data": {"a": ""}}))[1..3],
        [json!("Opaque"), json!(1)]
    );
    assert_eq!(
        cells("", "namespaces", &json!({"status": {"phase": "Active"}}))[1],
        "Active"
    );
    let lease = json!({"metadata": {"creationTimestamp": "2026-11-20T07:00:00Z"}, "spec": {"holderIdentity": "h"}});
    assert_eq!(cells("coordination.k8s.io", "leases", &lease)[1..], ["h", "3h"]);
}

/// Conformance: 2.56
#[test]
fn rows_carry_what_was_asked_for() {
    let kind = find_kind("", "configmaps").unwrap();
    let object = Bytes::from(
        r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","resourceVersion":"4"},"data":{}}"#,
    );
    let table = |include, version, has_columns| -> Value {
        let options = TableOptions { version, include };
        serde_json::from_slice(&Printer::of(kind).table(options, &object, now(), has_columns)).unwrap()
    };
    let metadata = table(Include::Metadata, MetaVersion::V1, true);
    assert_eq!(
        (&metadata["kind"], &metadata["apiVersion"]),
        (&json!("Table"), &json!("meta.k8s.io/v1"))
    );
    assert_eq!(metadata["metadata"], json!({"resourceVersion": "4"}));
    let names: Vec<&Value> = metadata["columnDefinitions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| &c["name"])
        .collect();
    assert_eq!(names, ["Name", "Data", "Age"]);
    assert_eq!(metadata["columnDefinitions"][0]["format"], "name");
    let row = &metadata["rows"][0];
    assert_eq!(row["cells"], json!(["a", 0, "<unknown>"]));
    assert_eq!(
        (&row["object"]["kind"], &row["object"]["data"]),
        (&json!("PartialObjectMetadata"), &json!(null))
    );
    let beta = table(Include::Object, MetaVersion::V1Beta1, false);
    assert_eq!(
        (&beta["apiVersion"], &beta["columnDefinitions"]),
        (&json!("meta.k8s.io/v1beta1"), &json!(null))
    );
    assert_eq!(beta["rows"][0]["object"]["kind"], "ConfigMap");
    assert_eq!(
        table(Include::None, MetaVersion::V1, true)["rows"][0]["object"],
        json!(null)
    );
}

#[test]
fn finished_pods_are_marked() {
    let kind = find_kind("", "pods").unwrap();
    let pod = Bytes::from(r#"{"metadata":{"name":"a"},"status":{"phase":"Succeeded"}}"#);
    let row = Printer::of(kind).row(TableOptions::default(), &pod, now());
    let row: Value = serde_json::from_slice(&row).unwrap();
    assert_eq!(row["conditions"][0]["type"], "Completed");
}

#[test]
fn custom_resources_have_the_columns_of_their_manifest() {
    let printer = Printer::of(crate::testing::widget());
    let columns = printer.columns();
    let names: Vec<&Value> = columns
        .as_array()
        .unwrap()
        .iter()
        .map(|column| &column["name"])
        .collect();
    assert_eq!(names, ["Name", "Color", "Size", "Weight", "On", "Since"]);
    let description = "Custom resource definition column (in JSONPath format): .spec.color";
    assert_eq!(
        columns[1],
        json!({"name": "Color", "type": "string", "format": "", "description": description, "priority": 0})
    );
    assert_eq!(
        (&columns[2]["priority"], &columns[2]["description"]),
        (&json!(1), &json!("How big"))
    );
    let row = |spec: Value, since: Value| {
        let object = json!({"metadata": {"name": "a"}, "spec": spec, "status": {"since": since}});
        Value::from(printer.cells(&object, now()))
    };
    assert_eq!(
        row(
            json!({"color": "red", "size": 2, "weight": 1.5, "on": true}),
            json!("2026-11-20T07:00:00Z")
        ),
        json!(["a", "red", 2, 1.5, true, "3h"])
    );
    assert_eq!(
        row(
            json!({"color": 3, "size": 2.9, "weight": 4, "on": "yes"}),
            json!("yesterday")
        ),
        json!(["a", "3", 2, 4, null, "<invalid>"])
    );
    assert_eq!(
        row(json!({"color": {"b": [1, null]}, "size": "2"}), json!("")),
        json!(["a", "{\"b\":[1,null]}", null, null, null, "<unknown>"])
    );
    assert_eq!(
        row(json!({"color": null}), json!(null)),
        json!(["a", "<no value>", null, null, null, null])
    );
}
