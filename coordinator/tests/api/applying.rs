//! Server-side apply: created, changed and removed fields, their owners, and the effect of other writes.

use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

use crate::harness::{Answer, Client, Server, rv};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";
const SERVICES: &str = "/api/v1/namespaces/default/services";
const POOLS: &str = "/apis/apps.openyurt.io/v1beta2/nodepools";

fn map(data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data})
}

async fn apply(client: &Client, path: &str, query: &str, object: &Value) -> Answer {
    client.patch("apply", &format!("{path}?{query}"), object).await
}

/// Manager, operation and fields of each entry.
fn owners(object: &Value) -> Vec<(&str, &str, &Value)> {
    let entries = object["metadata"]["managedFields"].as_array().into_iter().flatten();
    entries
        .map(|entry| {
            let text = |name: &str| entry[name].as_str().unwrap_or_default();
            (text("manager"), text("operation"), &entry["fieldsV1"])
        })
        .collect()
}

/// Conformance: 2.61, 3.C07
#[tokio::test]
async fn apply_creates_changes_and_takes_away() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let path = format!("{MAPS}/a");
    let config = map(json!({"a": "1", "b": "2"}));
    let dry = apply(&admin, &path, "fieldManager=me&dryRun=All", &config)
        .await
        .expect(201);
    assert_eq!(owners(&dry).len(), 1);
    admin.get(&path).await.expect(404);
    let created = apply(&admin, &path, "fieldManager=me", &config).await.expect(201);
    assert_eq!(created["data"], json!({"a": "1", "b": "2"}));
    let entry = &created["metadata"]["managedFields"][0];
    assert!(entry["time"].is_string() && entry["apiVersion"] == "v1" && entry["fieldsType"] == "FieldsV1");
    assert_eq!(
        owners(&created),
        [("me", "Apply", &json!({"f:data": {"f:a": {}, "f:b": {}}}))]
    );

    let again = apply(&admin, &path, "fieldManager=me", &config).await.expect(200);
    assert_eq!(again, created, "nothing changed, nothing is written");
    let yaml = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndata:\n  a: '2'\n";
    let content = [("content-type", "application/apply-patch+yaml; charset=utf-8")];
    let target = format!("{path}?fieldManager=me");
    let answer = admin
        .send_bytes(Method::PATCH, &target, Bytes::from(yaml), &content)
        .await;
    let changed = answer.expect(200);
    assert_eq!(changed["data"], json!({"a": "2"}), "what is applied no longer goes");
    assert!(rv(&changed) > rv(&created) && changed["metadata"]["uid"] == created["metadata"]["uid"]);

    let locked = |version: &str| {
        let mut config = map(json!({"a": "3"}));
        config["metadata"]["resourceVersion"] = version.into();
        config
    };
    apply(&admin, &path, "fieldManager=me", &locked("1")).await.expect(409);
    let version = changed["metadata"]["resourceVersion"].as_str().unwrap();
    apply(&admin, &path, "fieldManager=me", &locked(version))
        .await
        .expect(200);
    let mut elsewhere = locked("7");
    elsewhere["metadata"]["name"] = "b".into();
    apply(&admin, &format!("{MAPS}/b"), "fieldManager=me", &elsewhere)
        .await
        .expect(201);
}

/// Conformance: 3.C07, 3.C12
#[tokio::test]
async fn apply_refuses_what_it_cannot_own() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let path = format!("{MAPS}/a");
    let config = map(json!({"a": "1"}));
    let refused = admin.patch("apply", &path, &config).await.expect(422);
    assert_eq!(refused["details"]["causes"][0]["field"], "fieldManager");
    assert_eq!(
        refused["details"]["causes"][0]["message"],
        "Required value: is required for apply patch"
    );
    let text = "error decoding YAML: error unmarshaling JSON: while decoding JSON: json: cannot unmarshal string into Go value of \
                type map[string]interface {}";
    let uid = "Operation cannot be fulfilled on configmaps \"a\": uid mismatch: the provided object specified uid u1, and no \
               existing object was found";
    let spec = "failed to create typed patch object (/a; /v1, Kind=ConfigMap): .spec: field not declared in schema";
    let name = "the name of the object (b) does not match the name on the URL (a)";
    let kind = "invalid object type: /v2, Kind=ConfigMap";
    let owners = "metadata.managedFields must be nil";
    let with = |pointer: &str, value: Value| {
        let mut config = config.clone();
        let (parent, name) = pointer.rsplit_once('/').unwrap();
        config.pointer_mut(parent).unwrap()[name] = value;
        config
    };
    let cases = [
        (with("/metadata/managedFields", json!([])), 400, owners),
        (with("/apiVersion", json!("v2")), 400, kind),
        (with("/metadata/name", json!("b")), 400, name),
        (with("/metadata/uid", json!("u1")), 409, uid),
        (with("/spec", json!({})), 500, spec),
        (json!("text"), 400, text),
    ];
    for (config, code, message) in cases {
        let refused = apply(&admin, &path, "fieldManager=me", &config).await.expect(code);
        assert_eq!(refused["message"], message);
    }
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}});
    let status = format!("{PODS}/x/status");
    apply(&admin, &status, "fieldManager=me", &pod).await.expect(404);
    let nowhere = "/api/v1/namespaces/nowhere/configmaps/a";
    apply(&admin, nowhere, "fieldManager=me", &config).await.expect(404);
}

/// Conformance: 3.C07, 3.C12
#[tokio::test]
async fn keys_that_occur_twice_are_a_matter_of_field_validation() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let path = format!("{MAPS}/a");
    let twice = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {a: '1', a: '2'}\n";
    let content = [("content-type", "application/apply-patch+yaml")];
    let send = |validation: &str| {
        let target = format!("{path}?fieldManager=me&fieldValidation={validation}");
        let (admin, content) = (admin.clone(), content);
        async move {
            admin
                .send_bytes(Method::PATCH, &target, Bytes::from(twice), &content)
                .await
        }
    };
    let refused = send("Strict").await.expect(400);
    let why = "error strict decoding YAML: error converting YAML to JSON: yaml: unmarshal errors:\n  line 4: key \"a\" \
               already set in map";
    assert_eq!(refused["message"], why);
    let warned = send("Warn").await;
    let warning = r#"299 - "line 4: key \"a\" already set in map""#;
    assert_eq!(warned.header("warning"), Some(warning));
    assert_eq!(warned.expect(201)["data"]["a"], "2", "the last one counts");
}

/// Conformance: 3.C08
#[tokio::test]
async fn what_others_own_is_taken_by_force_only() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let path = format!("{SERVICES}/a");
    let service = |port: u16, selector: &str| {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a", "labels": {"app": selector}},
            "spec": {"clusterIP": "None", "selector": {"app": selector}, "ports": [{"name": "p", "port": 80, "targetPort": port}]}})
    };
    let first = apply(&admin, &path, "fieldManager=one", &service(1, "x"))
        .await
        .expect(201);
    let refused = apply(&admin, &path, "fieldManager=two", &service(2, "y"))
        .await
        .expect(409);
    assert_eq!(refused["reason"], "Conflict");
    assert_eq!(
        refused["message"],
        "Apply failed with 3 conflicts: conflicts with \"one\":\n- .metadata.labels.app\n- .spec.selector\n\
         - .spec.ports[port=80,protocol=\"TCP\"].targetPort"
    );
    assert_eq!(
        refused["details"]["causes"][2],
        json!({"reason": "FieldManagerConflict", "message": "conflict with \"one\"",
            "field": ".spec.ports[port=80,protocol=\"TCP\"].targetPort"})
    );
    assert_eq!(admin.get(&path).await.expect(200), first);
    let forced = apply(&admin, &path, "fieldManager=two&force=true", &service(2, "y"))
        .await
        .expect(200);
    assert_eq!(forced["spec"]["ports"][0]["targetPort"], 2);
    assert_eq!(forced["spec"]["selector"], json!({"app": "y"}));
    apply(&admin, &path, "fieldManager=one", &service(1, "x"))
        .await
        .expect(409);
    let port = json!({"port": 81, "name": "q"});
    let mut more = service(2, "y");
    more["spec"]["ports"] = json!([port]);
    let both = apply(&admin, &path, "fieldManager=one", &more).await.expect(200);
    assert_eq!(
        both["spec"]["ports"].as_array().unwrap().len(),
        2,
        "the other port still has an owner"
    );
}

/// Conformance: 3.A13
#[tokio::test]
async fn after_the_first_apply_every_write_is_accounted_for() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let path = format!("{MAPS}/a");
    let created = admin.post(MAPS, &map(json!({"a": "1"}))).await.expect(201);
    let patched = admin.merge(&path, &json!({"data": {"b": "1"}})).await.expect(200);
    assert!(
        owners(&created).is_empty() && owners(&patched).is_empty(),
        "there was no apply"
    );

    let applied = apply(&admin, &path, "fieldManager=me", &map(json!({"c": "1"})))
        .await
        .expect(200);
    let before = json!({"f:data": {".": {}, "f:a": {}, "f:b": {}}});
    assert_eq!(owners(&applied)[1], ("before-first-apply", "Update", &before));
    let agent = [
        ("content-type", "application/merge-patch+json"),
        ("user-agent", "editor/1.0 (test)"),
    ];
    let change = json!({"data": {"a": "2"}});
    let answer = admin.send(Method::PATCH, &path, Some(&change), &agent).await;
    let edited = answer.expect(200);
    assert!(owners(&edited).contains(&("editor", "Update", &json!({"f:data": {"f:a": {}}}))));
    let same = admin
        .send(Method::PATCH, &path, Some(&change), &agent)
        .await
        .expect(200);
    assert_eq!(rv(&same), rv(&edited));
    apply(&admin, &path, "fieldManager=me", &map(json!({"a": "3"})))
        .await
        .expect(409);

    let mut put = edited.clone();
    put["data"]["d"] = "1".into();
    put["metadata"].as_object_mut().unwrap().remove("managedFields");
    let put = admin
        .put(&format!("{path}?fieldManager=putter"), &put)
        .await
        .expect(200);
    assert_eq!(
        owners(&put).len(),
        4,
        "a client that leaves them out deletes nothing: {:?}",
        owners(&put)
    );
    let strategic = admin
        .patch(
            "strategic-merge",
            &format!("{path}?fieldManager=s"),
            &json!({"data": {"e": "1"}}),
        )
        .await;
    assert!(owners(&strategic.expect(200)).iter().any(|owner| owner.0 == "s"));

    let operations = json!([{"op": "replace", "path": "/metadata/managedFields", "value": [{}]}]);
    let forgotten = admin.patch("json", &path, &operations).await.expect(200);
    assert!(owners(&forgotten).is_empty(), "one empty entry resets the account");
    let quiet = admin.merge(&path, &json!({"data": {"f": "1"}})).await.expect(200);
    assert!(owners(&quiet).is_empty());
}

/// Conformance: 3.A13, 3.C10
#[tokio::test]
async fn a_status_has_an_account_of_its_own() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let path = format!("{PODS}/a");
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"},
        "spec": {"containers": [{"name": "c", "image": "i"}]}, "status": {"phase": "Failed"}});
    let created = apply(&admin, &path, "fieldManager=me", &pod).await.expect(201);
    assert_eq!(created["status"]["phase"], "Pending");
    let spec = json!({"f:spec": {"f:containers": {"k:{\"name\":\"c\"}": {".": {}, "f:image": {}, "f:name": {}}}}});
    assert_eq!(owners(&created), [("me", "Apply", &spec)]);
    let status = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    let reported = apply(&admin, &format!("{path}/status"), "fieldManager=me&force=true", &status)
        .await
        .expect(200);
    assert_eq!(reported["status"]["phase"], "Running");
    let entries = reported["metadata"]["managedFields"].as_array().unwrap();
    let of_status = entries.iter().find(|entry| entry["subresource"] == "status").unwrap();
    let condition = json!({".": {}, "f:status": {}, "f:type": {}});
    let want = json!({"f:status": {"f:phase": {}, "f:conditions": {"k:{\"type\":\"Ready\"}": condition}}});
    assert_eq!(of_status["fieldsV1"], want);
    let kept = apply(&admin, &path, "fieldManager=me", &pod).await.expect(200);
    assert_eq!(kept["status"]["phase"], "Running");
}

/// Conformance: 3.C07
#[tokio::test]
async fn custom_resources_have_granular_maps_and_atomic_lists() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let path = format!("{POOLS}/a");
    let pool = |spec: Value, finalizers: Value| {
        json!({"apiVersion": "apps.openyurt.io/v1beta2", "kind": "NodePool",
            "metadata": {"name": "a", "finalizers": finalizers}, "spec": spec})
    };
    let one = pool(
        json!({"labels": {"x": "1"}, "taints": [{"key": "a"}]}),
        json!(["e.io/a"]),
    );
    let created = apply(&admin, &path, "fieldManager=one", &one).await.expect(201);
    let want = json!({"f:metadata": {"f:finalizers": {".": {}, "v:\"e.io/a\"": {}}},
        "f:spec": {"f:labels": {"f:x": {}}, "f:taints": {}}});
    let found = owners(&created)[0].2;
    assert_eq!(found["f:spec"], want["f:spec"]);
    assert!(found["f:metadata"]["f:finalizers"]["v:\"e.io/a\""].is_object());
    let two = pool(json!({"labels": {"y": "2"}}), json!(["e.io/b"]));
    let both = apply(&admin, &path, "fieldManager=two", &two).await.expect(200);
    assert_eq!(both["spec"]["labels"], json!({"x": "1", "y": "2"}));
    assert_eq!(both["metadata"]["finalizers"].as_array().unwrap().len(), 2);
    let three = pool(json!({"taints": [{"key": "b"}]}), json!([]));
    let refused = apply(&admin, &path, "fieldManager=three", &three).await.expect(409);
    assert_eq!(
        refused["message"],
        "Apply failed with 1 conflict: conflict with \"one\": .spec.taints"
    );
}

/// Both views of an event share their managed fields.
#[tokio::test]
async fn events_are_applied_through_either_view() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let new = "/apis/events.k8s.io/v1/namespaces/default/events/e";
    let core = "/api/v1/namespaces/default/events/e";
    let about = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "namespace": "default"});
    let event = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e"}, "regarding": about,
        "note": "one", "reason": "R", "type": "Normal", "action": "A", "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "c/d", "reportingInstance": "i"});
    let created = apply(&admin, new, "fieldManager=me", &event).await.expect(201);
    assert_eq!(created["note"], "one");
    let shown = admin.get(core).await.expect(200);
    assert_eq!(shown["message"], "one");
    assert!(owners(&shown)[0].2["f:message"].is_object());
    let other = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}, "message": "two"});
    let refused = apply(&admin, core, "fieldManager=you", &other).await.expect(409);
    assert_eq!(refused["details"]["causes"][0]["field"], ".message");
}
