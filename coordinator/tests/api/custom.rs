//! Custom resources: kinds declared by files, at the start and while the server runs.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

use crate::harness::{Answer, Client, Server, rv};

const V1: &str = "/apis/example.com/v1";
const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";
const OLD: &str = "/apis/example.com/v1beta1/namespaces/default/widgets";
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
/// Files are read every 10 s, and the machine may be busy.
const RELOADED: Duration = Duration::from_secs(60);

/// A folder of manifests, and a server that reads it.
struct Declared {
    folder: tempfile::TempDir,
    server: Server,
}

/// A manifest with these versions; see `version`.
fn manifest(plural: &str, kind: &str, versions: &[Value]) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.example.com")},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": plural, "kind": kind, "shortNames": [&plural[..2]], "categories": ["all"]},
            "versions": versions,
        },
    })
}

fn version(name: &str, is_stored: bool) -> Value {
    json!({
        "name": name, "served": true, "storage": is_stored, "subresources": {"status": {}},
        "selectableFields": [{"jsonPath": ".spec.color"}],
        "additionalPrinterColumns": [
            {"name": "Color", "type": "string", "jsonPath": ".spec.color"},
            {"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status"},
        ],
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {
            "spec": {"type": "object", "properties": {
                "color": {"type": "string", "description": "What it looks like."},
                "unknown": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}},
            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}},
    })
}

fn widget(name: &str, color: &str) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name},
        "spec": {"color": color, "unknown": {"to": "anybody"}}})
}

// === impl Declared ===

impl Declared {
    async fn new(manifests: &[Value]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path().join("all.yaml"), manifests);
        let flags = [
            "--profile",
            "standalone",
            "--custom-resources-path",
            folder.path().to_str().unwrap(),
        ];
        let server = Server::over_some_store(&flags).await;
        Self { folder, server }
    }

    fn declare(&self, manifests: &[Value]) {
        write(self.folder.path().join("all.yaml"), manifests);
    }
}

/// YAML documents, one after the other; JSON is YAML.
fn write(path: PathBuf, manifests: &[Value]) {
    let texts: Vec<String> = manifests.iter().map(Value::to_string).collect();
    std::fs::write(path, texts.join("\n---\n")).unwrap();
}

/// Repeats a request until the answer has this code.
async fn until(client: &Client, path: &str, code: u16) {
    let asked = async {
        while client.get(path).await.code != code {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::time::timeout(RELOADED, asked).await.expect(path);
}

async fn etag(client: &Client) -> String {
    let answer = client.get_with("/apis", &[("accept", AGGREGATED)]).await;
    answer.header("etag").unwrap().to_owned()
}

/// Discovery and OpenAPI of the group: aggregated, by groups, and the paths of documents.
async fn documents(client: &Client) -> (Vec<Value>, Vec<Value>, bool) {
    let found = |list: &Value, name: &str| {
        let groups = list.as_array().unwrap().iter();
        let group = groups
            .clone()
            .find(|group| *group.pointer(name).unwrap() == "example.com");
        let versions = group.map_or(&Value::Null, |group| &group["versions"]);
        let versions = versions.as_array().cloned().unwrap_or_default();
        versions
            .iter()
            .map(|version| version["version"].clone())
            .collect::<Vec<_>>()
    };
    let aggregated = client.get_with("/apis", &[("accept", AGGREGATED)]).await.expect(200);
    let plain = client.get("/apis").await.expect(200);
    let index = client.get("/openapi/v3").await.expect(200);
    (
        found(&aggregated["items"], "/metadata/name"),
        found(&plain["groups"], "/name"),
        index["paths"]["apis/example.com/v1"].is_object(),
    )
}

#[tokio::test]
async fn start_names_the_rules_that_are_not_enforced() {
    let mut strict = version("v1", true);
    strict["schema"]["openAPIV3Schema"]["properties"]["spec"]["x-kubernetes-validations"] =
        json!([{"rule": "self.color != 'red'"}]);
    let declared = Declared::new(&[manifest("widgets", "Widget", &[strict])]).await;
    let log = declared.server.log();
    assert!(
        log.contains("not enforced here") && log.contains("widgets.example.com"),
        "{log}"
    );
}

/// Conformance: 3.E03
#[tokio::test]
async fn items_of_a_list_say_what_they_are_built_in_or_declared() {
    let declared = Declared::new(&[manifest("widgets", "Widget", &[version("v1", true)])]).await;
    let admin = declared.server.admin();
    admin.post(WIDGETS, &widget("a", "red")).await.expect(201);
    for (list, version, kind) in [
        (WIDGETS, "example.com/v1", "Widget"),
        ("/api/v1/namespaces", "v1", "Namespace"),
    ] {
        let listed = admin.get(list).await.expect(200);
        let items = listed["items"].as_array().expect("items");
        assert!(!items.is_empty());
        let is_told = |item: &Value| item["apiVersion"] == version && item["kind"] == kind;
        assert!(items.iter().all(is_told), "{items:?}");
    }
}

/// Conformance: 1.08, 1.24, 1.25
#[tokio::test]
async fn kinds_come_change_and_go_while_the_server_runs() {
    let mut declared = Declared::new(&[]).await;
    let admin = declared.server.admin();
    let before = etag(&admin).await;
    assert_eq!(documents(&admin).await, (vec![], vec![], false));
    admin.get(WIDGETS).await.expect(404);

    let gadgets = manifest("gadgets", "Gadget", &[version("v1", true)]);
    declared.declare(&[manifest("widgets", "Widget", &[version("v1", true)]), gadgets.clone()]);
    until(&admin, V1, 200).await;
    assert_ne!(etag(&admin).await, before);
    assert_eq!(documents(&admin).await, (vec![json!("v1")], vec![json!("v1")], true));
    let created = admin.post(WIDGETS, &widget("w1", "red")).await.expect(201);
    let mut watch = admin
        .watch(&format!("{WIDGETS}?resourceVersion={}", rv(&created)))
        .await;
    let gadget = format!("{V1}/namespaces/default/gadgets");
    admin
        .post(&gadget, &json!({"metadata": {"name": "g"}}))
        .await
        .expect(201);
    let mut others = admin.watch(&gadget).await;
    assert_eq!(others.told().await, "ADDED g");

    // The kind changes, and other versions come: watches end and resume at their position.
    let mut changed_v1 = version("v1", true);
    changed_v1["selectableFields"] = json!([{"jsonPath": ".spec.size"}]);
    let versions = [version("v1beta1", false), changed_v1, version("v2", false)];
    declared.declare(&[manifest("widgets", "Widget", &versions), gadgets.clone()]);
    until(&admin, "/apis/example.com/v2", 200).await;
    let all = [json!("v2"), json!("v1"), json!("v1beta1")];
    assert_eq!(documents(&admin).await, (all.to_vec(), all.to_vec(), true));
    assert!(
        watch.within(RELOADED).await.unwrap().is_none(),
        "the stream ends without a word"
    );
    let mut watch = admin
        .watch(&format!("{WIDGETS}?resourceVersion={}", rv(&created)))
        .await;
    let changed = admin
        .merge(&format!("{OLD}/w1"), &json!({"spec": {"color": "blue"}}))
        .await
        .expect(200);
    assert_eq!(changed["apiVersion"], "example.com/v1beta1");
    let told = watch.next().await.unwrap();
    assert_eq!(
        (&*told.kind, &told.object["apiVersion"]),
        ("MODIFIED", &json!("example.com/v1"))
    );

    declared.declare(&[gadgets]);
    until(&admin, WIDGETS, 404).await;
    admin.post(WIDGETS, &widget("w2", "red")).await.expect(404);
    assert!(watch.within(RELOADED).await.unwrap().is_none());
    assert_eq!(documents(&admin).await.0, [json!("v1")]);
    let change = json!({"metadata": {"labels": {"a": "b"}}});
    admin.merge(&format!("{gadget}/g"), &change).await.expect(200);
    assert_eq!(
        others.told().await,
        "MODIFIED g",
        "watches of what did not change go on"
    );

    declared.server.stop();
    declared.server.start_again().await;
    let admin = declared.server.admin();
    admin.get(WIDGETS).await.expect(404);
    declared.declare(&[manifest("widgets", "Widget", &[version("v1", true)])]);
    until(&admin, WIDGETS, 200).await;
    let back = admin.get(&format!("{WIDGETS}/w1")).await.expect(200);
    assert_eq!(rv(&back), rv(&changed));
    assert_eq!(
        (&back["metadata"]["uid"], &back["spec"]["color"]),
        (&created["metadata"]["uid"], &json!("blue"))
    );
    assert_eq!(back["spec"]["unknown"], json!({"to": "anybody"}));
}

#[tokio::test]
async fn mistake_in_a_manifest_keeps_what_was_there_and_is_counted() {
    let declared = Declared::new(&[manifest("widgets", "Widget", &[version("v1", true)])]).await;
    let admin = declared.server.admin();
    admin.post(WIDGETS, &widget("w1", "red")).await.expect(201);
    let mut cluster_wide = manifest("widgets", "Widget", &[version("v1", true)]);
    cluster_wide["spec"]["scope"] = json!("Cluster");
    let mut pattern = version("v1", true);
    pattern["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["color"]["pattern"] = json!("\\p{L}+");
    for mistake in [
        manifest("widgets", "Widget", &[pattern]),
        manifest("widgets", "Widget", &[version("v1", true), version("v1", true)]),
        cluster_wide,
    ] {
        let refused = async || {
            let metrics = admin.get("/metrics").await.body;
            let line = "yurt_coordinator_custom_resources_loads_total{result=\"refused\"} ";
            let found = metrics
                .as_str()
                .unwrap()
                .lines()
                .find_map(|text| text.strip_prefix(line))
                .map(str::to_owned);
            found.map_or(0, |count| count.parse::<u64>().unwrap())
        };
        let before = refused().await;
        declared.declare(&[mistake, manifest("others", "Other", &[version("v1", true)])]);
        let counted = async {
            while refused().await == before {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        };
        tokio::time::timeout(RELOADED, counted)
            .await
            .expect("the mistake is noticed");
        admin.get(&format!("{WIDGETS}/w1")).await.expect(200);
        admin.get("/apis/example.com/v1/others").await.expect(404);
    }
}

/// Conformance: 3.C07, 3.C12
#[tokio::test]
async fn applies_are_held_to_the_schema() {
    let mut keyed = version("v1", true);
    keyed["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["parts"] = json!({
        "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
        "items": {"type": "object", "properties": {"name": {"type": "string"}, "since": {"type": "string", "format": "date"}}}});
    let declared = Declared::new(&[manifest("widgets", "Widget", &[keyed])]).await;
    let admin = declared.server.admin();
    let config = |spec: Value| json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": spec});
    let apply = async |manager: &str, spec: Value| {
        let path = format!("{WIDGETS}/w?fieldManager={manager}");
        admin.patch("apply", &path, &config(spec)).await
    };
    apply("a", json!({"color": "red", "parts": [{"name": "x"}]}))
        .await
        .expect(201);
    let both = apply("b", json!({"parts": [{"name": "y", "since": "2026-01-02"}]}))
        .await
        .expect(200);
    assert_eq!(
        both["spec"]["parts"].as_array().unwrap().len(),
        2,
        "items have owners of their own"
    );
    let refused = apply("b", json!({"colour": "red"})).await.expect(500);
    assert_eq!(
        refused["message"],
        "failed to create typed patch object (/w; example.com/v1, Kind=Widget): .spec.colour: field not declared in schema"
    );
    let refused = apply("b", json!({"parts": [{"name": "y", "since": "today"}]}))
        .await
        .expect(422);
    assert_eq!(refused["details"]["causes"][0]["field"], "spec.parts[1].since");
}

/// Widgets in two versions, and gadgets whose status is no subresource.
async fn widgets_and_gadgets() -> (Declared, Client) {
    let without_status = json!({"name": "v1", "served": true, "storage": true});
    let manifests = [
        manifest("widgets", "Widget", &[version("v1", true), version("v1beta1", false)]),
        manifest("gadgets", "Gadget", &[without_status]),
    ];
    let declared = Declared::new(&manifests).await;
    let admin = declared.server.admin();
    (declared, admin)
}

/// Conformance: 3.A12, 3.B08, 3.B09, 3.C10
#[tokio::test]
async fn status_is_a_subresource_where_the_manifest_says_so() {
    let (_declared, admin) = widgets_and_gadgets().await;
    let path = format!("{WIDGETS}/w1");

    // The status is a subresource: a create and an update leave it alone, and it leaves the rest alone.
    let mut body = widget("w1", "red");
    body["status"] = json!({"conditions": []});
    let created = admin.post(WIDGETS, &body).await.expect(201);
    assert_eq!(
        (&created["status"], &created["metadata"]["generation"]),
        (&Value::Null, &json!(1))
    );
    let status = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"color": "green"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let ready = admin.merge(&format!("{path}/status"), &status).await.expect(200);
    assert_eq!(
        (&ready["spec"]["color"], &ready["metadata"]["labels"]),
        (&json!("red"), &Value::Null)
    );
    assert_eq!(ready["metadata"]["generation"], 1);
    let blue = admin
        .merge(&path, &json!({"spec": {"color": "blue"}, "status": null}))
        .await
        .expect(200);
    assert_eq!(blue["metadata"]["generation"], 2);
    assert_eq!(blue["status"]["conditions"][0]["status"], "True");
    let labelled = admin
        .merge(&path, &json!({"metadata": {"labels": {"a": "b"}}}))
        .await
        .expect(200);
    assert_eq!(labelled["metadata"]["generation"], 2);

    // Without the subresource it is a field as any other.
    let gadgets = "/apis/example.com/v1/namespaces/default/gadgets";
    let gadget = json!({"metadata": {"name": "g"}, "status": {"x": 1}});
    assert_eq!(admin.post(gadgets, &gadget).await.expect(201)["status"]["x"], 1);
    let changed = admin
        .merge(&format!("{gadgets}/g"), &json!({"status": {"x": 2}}))
        .await
        .expect(200);
    assert_eq!(changed["metadata"]["generation"], 2);
    admin.get(&format!("{gadgets}/g/status")).await.expect(404);
}

#[tokio::test]
async fn patches_and_updates_follow_the_rules_of_custom_resources() {
    let (_declared, admin) = widgets_and_gadgets().await;
    let path = format!("{WIDGETS}/w1");
    admin.post(WIDGETS, &widget("w1", "red")).await.expect(201);

    // Patches without merge rules.
    let json_patch = json!([{"op": "replace", "path": "/spec/color", "value": "green"}]);
    assert_eq!(
        admin.patch("json", &path, &json_patch).await.expect(200)["spec"]["color"],
        "green"
    );
    admin
        .patch("strategic-merge", &path, &json!({"spec": {}}))
        .await
        .expect(415);

    // An update needs the version it is based on, and the body has to be of the kind and version of the path.
    admin.put(&path, &widget("w1", "red")).await.expect(422);
    let other_version = admin.put(&format!("{OLD}/w1"), &widget("w1", "red")).await.expect(400);
    let message =
        "the API version in the data (example.com/v1) does not match the expected API version (example.com/v1beta1)";
    assert_eq!(other_version["message"], message);
    let mut other_kind = widget("w2", "red");
    other_kind["kind"] = json!("Gadget");
    assert_eq!(
        admin.post(WIDGETS, &other_kind).await.expect(422)["details"]["causes"][0]["field"],
        "kind"
    );
}

#[tokio::test]
async fn declared_fields_select_in_every_version() {
    let (_declared, admin) = widgets_and_gadgets().await;
    let path = format!("{WIDGETS}/w1");
    admin.post(WIDGETS, &widget("w1", "green")).await.expect(201);

    // Selectable fields.
    admin.post(WIDGETS, &widget("w2", "red")).await.expect(201);
    for path in [WIDGETS, OLD] {
        let red = admin
            .get(&format!("{path}?fieldSelector=spec.color%3Dred"))
            .await
            .expect(200);
        assert_eq!(
            (red["items"].as_array().unwrap().len(), &red["kind"]),
            (1, &json!("WidgetList"))
        );
        assert_eq!(red["items"][0]["metadata"]["name"], "w2");
        assert_eq!(red["items"][0]["apiVersion"], red["apiVersion"]);
    }
    let unknown = admin
        .get(&format!("{WIDGETS}?fieldSelector=spec.size%3D1"))
        .await
        .expect(400);
    assert!(
        unknown["message"]
            .as_str()
            .unwrap()
            .contains("field label not supported: spec.size")
    );
    let mut green = admin
        .watch(&format!("{WIDGETS}?fieldSelector=spec.color%3Dgreen"))
        .await;
    assert_eq!(green.told().await, "ADDED w1");
    admin
        .merge(&format!("{WIDGETS}/w2"), &json!({"spec": {"color": "green"}}))
        .await
        .expect(200);
    assert_eq!(green.told().await, "ADDED w2");
    admin.merge(&path, &json!({"spec": {"color": "red"}})).await.expect(200);
    assert_eq!(green.told().await, "DELETED w1");
}

#[tokio::test]
async fn tables_and_openapi_show_what_the_manifest_says() {
    let (_declared, admin) = widgets_and_gadgets().await;
    admin.post(WIDGETS, &widget("w1", "red")).await.expect(201);
    admin.post(WIDGETS, &widget("w2", "green")).await.expect(201);
    let status = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    admin.merge(&format!("{WIDGETS}/w1/status"), &status).await.expect(200);

    // Tables.
    let accept = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let table = admin.get_with(WIDGETS, &accept).await.expect(200);
    let names: Vec<&Value> = table["columnDefinitions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["name"])
        .collect();
    assert_eq!(names, ["Name", "Color", "Ready"]);
    assert_eq!(table["rows"][0]["cells"], json!(["w1", "red", "True"]));
    assert_eq!(table["rows"][1]["cells"], json!(["w2", "green", null]));

    // OpenAPI has the schema of the manifest.
    let document = admin.get("/openapi/v3/apis/example.com/v1").await.expect(200);
    let schema = &document["components"]["schemas"]["com.example.v1.Widget"];
    assert_eq!(
        schema["properties"]["spec"]["properties"]["color"]["description"],
        "What it looks like."
    );
    let metadata = schema["properties"]["metadata"]["allOf"][0]["$ref"].as_str().unwrap();
    assert!(
        document
            .pointer(&metadata[1..])
            .is_some_and(|found| found["properties"]["labels"].is_object())
    );
}

#[tokio::test]
async fn content_of_a_namespace_goes_with_it() {
    let (_declared, admin) = widgets_and_gadgets().await;
    admin.post(WIDGETS, &widget("w1", "red")).await.expect(201);
    admin.post(WIDGETS, &widget("w2", "red")).await.expect(201);

    // Everything in a namespace is deleted with it.
    admin.delete(&format!("{OLD}/w1")).await.expect(200);
    admin.delete(WIDGETS).await.expect(200);
    assert_eq!(admin.get(WIDGETS).await.expect(200)["items"], json!([]));
    admin
        .post("/api/v1/namespaces", &json!({"metadata": {"name": "gone"}}))
        .await
        .expect(201);
    let inside = "/apis/example.com/v1/namespaces/gone/widgets";
    admin.post(inside, &widget("w", "red")).await.expect(201);
    admin.delete("/api/v1/namespaces/gone").await.expect(200);
    until(&admin, "/api/v1/namespaces/gone", 404).await;
    admin.get(&format!("{inside}/w")).await.expect(404);
}

#[tokio::test]
async fn nodepools_are_served_in_the_versions_of_openyurt() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let pool = json!({"apiVersion": "apps.openyurt.io/v1beta1", "kind": "NodePool", "metadata": {"name": "hangzhou"},
        "spec": {"type": "Edge"}});
    admin
        .post("/apis/apps.openyurt.io/v1beta1/nodepools", &pool)
        .await
        .expect(201);
    let shown = admin
        .get("/apis/apps.openyurt.io/v1beta2/nodepools/hangzhou")
        .await
        .expect(200);
    assert_eq!(
        (&shown["apiVersion"], &shown["spec"]),
        (&json!("apps.openyurt.io/v1beta2"), &json!({"type": "Edge"}))
    );
    let group = admin.get("/apis/apps.openyurt.io").await.expect(200);
    assert_eq!(group["preferredVersion"]["version"], "v1beta2");
    let mut events = admin.watch("/apis/apps.openyurt.io/v1beta1/nodepools").await;
    let event = events.next().await.unwrap();
    assert_eq!(event.object["apiVersion"], "apps.openyurt.io/v1beta1");
    let accept = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let table = admin
        .get_with("/apis/apps.openyurt.io/v1beta1/nodepools", &accept)
        .await
        .expect(200);
    let age = &table["rows"][0]["cells"][4];
    assert_eq!(table["rows"][0]["cells"], json!(["hangzhou", "Edge", null, null, age]));
    assert!(age.is_string());
}

/// Widgets with a schema.
async fn strict_widgets() -> (Declared, Client) {
    let mut strict = version("v1", true);
    strict["schema"]["openAPIV3Schema"]["properties"] = json!({
        "spec": {"type": "object", "required": ["color"], "properties": {
            "color": {"type": "string", "enum": ["red", "blue"]},
            "size": {"type": "integer", "minimum": 1, "default": 3},
            "pod": {"type": "object", "x-kubernetes-embedded-resource": true},
            "parts": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}}}}},
        "status": {"type": "object", "properties": {"ready": {"type": "boolean"}}}});
    let declared = Declared::new(&[manifest("widgets", "Widget", &[strict])]).await;
    let admin = declared.server.admin();
    (declared, admin)
}

#[tokio::test]
async fn schemas_are_enforced_on_every_kind_of_write() {
    let (_declared, admin) = strict_widgets().await;
    let widget = |name: &str, spec: Value| json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec});
    let path = format!("{WIDGETS}/w1");

    let odd = widget(
        "w1",
        json!({"color": "red", "odd": 1, "parts": [{"name": "a", "odd": 2}], "size": null}),
    );
    let strict = admin.post(&format!("{WIDGETS}?fieldValidation=Strict"), &odd).await;
    let want = "Widget in version \"v1\" cannot be handled as a Widget: strict decoding error: unknown field \"spec.odd\", \
                unknown field \"spec.parts[0].odd\"";
    assert_eq!(strict.expect(400)["message"], want);
    let told = admin.post(WIDGETS, &odd).await;
    assert_eq!(told.header("warning"), Some("299 - \"unknown field \\\"spec.odd\\\"\""));
    let created = told.expect(201);
    assert_eq!(
        created["spec"],
        json!({"color": "red", "parts": [{"name": "a"}], "size": 3})
    );

    let refused = admin
        .post(WIDGETS, &widget("w2", json!({"color": "green", "size": 0})))
        .await
        .expect(422);
    let want = "Widget.example.com \"w2\" is invalid: [spec.color: Unsupported value: \"green\": supported values: \"red\", \
                \"blue\", spec.size: Invalid value: 0: spec.size in body should be greater than or equal to 1]";
    assert_eq!(refused["message"], want);
    assert_eq!(refused["details"]["causes"][0]["field"], "spec.color");
    let refused = admin.post(WIDGETS, &widget("w2", json!({}))).await.expect(422);
    assert_eq!(
        refused["message"],
        "Widget.example.com \"w2\" is invalid: spec.color: Required value"
    );

    let pod = json!({"color": "red", "pod": {"kind": "Pod"}});
    let refused = admin.post(WIDGETS, &widget("w2", pod)).await.expect(422);
    let want = "Widget.example.com \"w2\" is invalid: spec.pod.apiVersion: Required value";
    assert_eq!(refused["message"], want);

    let change = json!({"spec": {"size": "big"}});
    let refused = admin.patch("merge", &path, &change).await.expect(422);
    let want = "Widget.example.com \"w1\" is invalid: spec.size: Invalid value: \"string\": spec.size in body must be of \
                type integer: \"string\"";
    assert_eq!(refused["message"], want);
    let (change, applied) = (
        widget("w1", json!({"size": "big"})),
        format!("{path}?fieldManager=me&force=true"),
    );
    let refused = admin.patch("apply", &applied, &change).await.expect(500);
    let want = "failed to create typed patch object (/w1; example.com/v1, Kind=Widget): .spec.size: expected numeric (int or \
                float), got string";
    assert_eq!(refused["message"], want);
    let left_out = admin
        .merge(&path, &json!({"spec": {"size": null, "odd": 1}}))
        .await
        .expect(200);
    assert_eq!(
        left_out["spec"], created["spec"],
        "the default again, and nothing unknown"
    );
    let mut put = created.clone();
    put["spec"]["color"] = json!(7);
    admin.put(&path, &put).await.expect(422);

    let status = |ready: Value| json!({"status": {"ready": ready, "odd": 1}});
    admin
        .merge(&format!("{path}/status"), &status(json!("yes")))
        .await
        .expect(422);
    let ready = admin
        .merge(&format!("{path}/status"), &status(json!(true)))
        .await
        .expect(200);
    assert_eq!(ready["status"], json!({"ready": true}));
}

#[tokio::test]
async fn metadata_of_custom_resources_has_the_types_of_metadata() {
    let (_declared, admin) = strict_widgets().await;
    let with = |metadata: Value| json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": metadata, "spec": {"color": "red"}});
    let cannot = |found: &str, field: &str, ty: &str| {
        format!("json: cannot unmarshal {found} into Go struct field ObjectMeta.{field} of type {ty}")
    };
    for (metadata, why) in [
        (
            json!({"name": "w", "generateName": 5}),
            cannot("number", "generateName", "string"),
        ),
        (
            json!({"name": "w", "labels": {"a": 1}}),
            cannot("number", "labels", "string"),
        ),
        (
            json!({"name": "w", "finalizers": "x"}),
            cannot("string", "finalizers", "[]string"),
        ),
        (
            json!(["w"]),
            "json: cannot unmarshal array into Go value of type v1.ObjectMeta".to_owned(),
        ),
    ] {
        let refused = admin.post(WIDGETS, &with(metadata)).await.expect(400);
        let want = format!("Widget in version \"v1\" cannot be handled as a Widget: {why}");
        assert_eq!(refused["message"], want);
    }

    let odd = with(json!({"name": "w", "odd": 1, "kind": "x"}));
    let strict = admin.post(&format!("{WIDGETS}?fieldValidation=Strict"), &odd).await;
    let message = strict.expect(400)["message"].as_str().unwrap().to_owned();
    let want = "strict decoding error: unknown field \"metadata.kind\", unknown field \"metadata.odd\"";
    assert!(message.ends_with(want), "{message}");
    let told = admin.post(WIDGETS, &odd).await;
    assert_eq!(
        told.header("warning"),
        Some("299 - \"unknown field \\\"metadata.kind\\\"\"")
    );
    let created = told.expect(201);
    assert!(created["metadata"].get("odd").is_none() && created["metadata"].get("kind").is_none());

    let path = format!("{WIDGETS}/w");
    let refused = admin
        .patch("merge", &path, &json!({"metadata": {"labels": {"a": 1}}}))
        .await;
    let message = refused.expect(422)["message"].as_str().unwrap().to_owned();
    assert!(message.ends_with(&cannot("number", "labels", "string")), "{message}");
    let patched = admin
        .merge(&path, &json!({"metadata": {"odd": 1, "labels": {"a": "b"}}}))
        .await
        .expect(200);
    assert_eq!(patched["metadata"]["labels"], json!({"a": "b"}));
    assert!(patched["metadata"].get("odd").is_none());
    let mut put = patched;
    put["metadata"]["annotations"] = json!({"a": true});
    admin.put(&path, &put).await.expect(400);
}

#[tokio::test]
async fn what_was_valid_once_is_no_obstacle_to_other_changes() {
    let (declared, admin) = strict_widgets().await;
    let old = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w1"},
        "spec": {"color": "red", "size": 9, "parts": [{"name": "a"}]}});
    admin.post(WIDGETS, &old).await.expect(201);
    let mut stricter = version("v1", true);
    stricter["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"] = json!({
        "color": {"type": "string", "enum": ["blue"]}, "size": {"type": "integer"}});
    declared.declare(&[manifest("widgets", "Widget", &[stricter])]);
    let taken_over = async {
        let mut red = old.clone();
        red["metadata"]["name"] = json!("w2");
        while admin.post(&format!("{WIDGETS}?dryRun=All"), &red).await.code != 422 {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::time::timeout(RELOADED, taken_over)
        .await
        .expect("the new schema is taken over");
    let path = format!("{WIDGETS}/w1");
    // The schema no longer knows the parts.
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    let labelled = admin.merge(&path, &label).await.expect(200);
    assert_eq!(labelled["metadata"]["generation"], 1, "the specification is the same");
    let larger = json!({"spec": {"size": 10}});
    let strict = admin.merge(&format!("{path}?fieldValidation=Strict"), &larger).await;
    assert_eq!(strict.expect(200)["spec"], json!({"color": "red", "size": 10}));
    admin
        .merge(&path, &json!({"spec": {"color": "green"}}))
        .await
        .expect(422);
    admin
        .merge(&path, &json!({"spec": {"color": "blue"}}))
        .await
        .expect(200);
}

#[tokio::test]
async fn reads_have_the_shape_of_the_present_schema() {
    let spec_of = |properties: Value, name: &str, is_stored: bool| {
        let mut version = version(name, is_stored);
        version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"] = properties;
        version
    };
    let first = json!({"color": {"type": "string"}, "size": {"type": "integer"}});
    let second = json!({"color": {"type": "string"}, "shade": {"type": "string", "default": "dark"}});
    let manifests = |properties: &Value, more: &str| {
        let versions = [
            spec_of(properties.clone(), "v1", true),
            spec_of(properties.clone(), "v1beta1", false),
        ];
        [
            manifest("widgets", "Widget", &versions),
            manifest(more, "More", &[version("v1", true)]),
        ]
    };
    let declared = Declared::new(&manifests(&first, "gadgets")).await;
    let admin = declared.server.admin();
    let mut widget = widget("w1", "red");
    widget["spec"] = json!({"color": "red", "size": 9});
    let created = admin.post(WIDGETS, &widget).await.expect(201);
    let read = async || {
        let mut watch = admin.watch(&format!("{WIDGETS}?watch=1&resourceVersion=0")).await;
        [
            admin.get(&format!("{WIDGETS}/w1")).await.expect(200),
            admin.get(WIDGETS).await.expect(200)["items"][0].clone(),
            watch.next().await.expect("the object").object,
            admin.get(&format!("{OLD}/w1")).await.expect(200),
        ]
    };
    let assert_read = async |spec: Value| {
        for object in read().await {
            assert_eq!(object["spec"], spec);
            assert_eq!(rv(&object), rv(&created));
        }
    };
    assert_read(json!({"color": "red", "size": 9})).await;
    declared.declare(&manifests(&second, "gizmos"));
    until(&admin, &format!("{V1}/namespaces/default/gizmos"), 200).await;
    assert_read(json!({"color": "red", "shade": "dark"})).await;
    // What is stored has not changed.
    declared.declare(&manifests(&first, "gadgets"));
    until(&admin, &format!("{V1}/namespaces/default/gadgets"), 200).await;
    assert_read(json!({"color": "red", "size": 9})).await;
}

#[tokio::test]
async fn fields_that_a_custom_resource_names_twice_are_a_matter_of_field_validation() {
    let (_declared, admin) = strict_widgets().await;
    let twice = r#"{"metadata": {"name": "w1"}, "spec": {"color": "green", "color": "red", "odd": 1}}"#;
    let content = [("content-type", "application/json")];
    let target = format!("{WIDGETS}?fieldValidation=Strict");
    let refused = admin
        .send_bytes(Method::POST, &target, Bytes::from(twice), &content)
        .await;
    let message = refused.expect(400)["message"].as_str().unwrap().to_owned();
    let want = "strict decoding error: duplicate field \"spec.color\", unknown field \"spec.odd\"";
    assert!(message.ends_with(want), "{message}");
    let warned = admin
        .send_bytes(Method::POST, WIDGETS, Bytes::from(twice), &content)
        .await;
    let warnings = warned
        .headers
        .get_all("warning")
        .iter()
        .map(|text| text.to_str().unwrap());
    let want = [
        r#"299 - "duplicate field \"spec.color\"""#,
        r#"299 - "unknown field \"spec.odd\"""#,
    ];
    assert_eq!(warnings.collect::<Vec<_>>(), want);
    assert_eq!(warned.expect(201)["spec"]["color"], "red", "the last one counts");
}

#[tokio::test]
async fn finalizers_without_a_domain_are_warned_about_once() {
    let (_declared, admin) = strict_widgets().await;
    let widget = json!({"metadata": {"name": "w1", "finalizers": ["plain", "example.com", "example.com/a", "orphan"]},
        "spec": {"color": "red"}});
    let warnings = |answer: &Answer| -> Vec<String> {
        let texts = answer.headers.get_all("warning").iter();
        texts.map(|text| text.to_str().unwrap().to_owned()).collect()
    };
    let prefer = |name: &str, path: &str| {
        format!(
            "299 - \"metadata.finalizers: \\\"{name}\\\": prefer a domain-qualified finalizer name{path} to avoid accidental \
             conflicts with other finalizer writers\""
        )
    };
    let created = admin.post(WIDGETS, &widget).await;
    let want = [prefer("example.com", " including a path (/)"), prefer("plain", "")];
    assert_eq!(warnings(&created), want);
    let mut changed = created.expect(201);
    changed["metadata"]["finalizers"] = json!(["plain", "other"]);
    let changed = admin.put(&format!("{WIDGETS}/w1"), &changed).await;
    assert_eq!(warnings(&changed), [prefer("other", "")]);
    changed.expect(200);
}

#[tokio::test]
async fn status_that_is_written_in_another_version_costs_no_field_of_the_specification() {
    let mut stored = version("v1", true);
    let known = &mut stored["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
    known["size"] = json!({"type": "integer"});
    let declared = Declared::new(&[manifest("widgets", "Widget", &[stored, version("v1beta1", false)])]).await;
    let admin = declared.server.admin();
    let mut widget = widget("w1", "red");
    widget["spec"]["size"] = json!(5);
    let created = admin.post(WIDGETS, &widget).await.expect(201);
    let path = format!("{OLD}/w1/status?fieldValidation=Strict");
    let changed = admin
        .merge(&path, &json!({"status": {"ready": true}}))
        .await
        .expect(200);
    assert_eq!(changed["status"]["ready"], true);
    assert_eq!(changed["metadata"]["generation"], 1);
    assert_eq!(
        admin.get(&format!("{WIDGETS}/w1")).await.expect(200)["spec"],
        created["spec"]
    );
}
