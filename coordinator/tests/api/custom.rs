//! Custom resources: kinds declared by files, at the start and while the server runs.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Client, Server, rv};

mod reads;
mod schemas;
mod writes;

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
