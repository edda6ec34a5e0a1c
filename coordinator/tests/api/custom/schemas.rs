//! Schemas of custom resources: what they do to writes, and to reads after a change.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Declared, OLD, RELOADED, V1, WIDGETS, manifest, strict_widgets, until, version, widget};
use crate::harness::rv;

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

#[tokio::test]
async fn metadata_of_an_object_within_an_object_is_read_by_its_type() {
    let (_declared, admin) = strict_widgets().await;
    let of = |metadata: Value| {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata});
        json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"color": "red", "pod": pod}})
    };
    let odd = of(json!({"name": "p", "odd": 1}));
    let unknown = "unknown field \"spec.pod.metadata.odd\"";
    let strict = admin.post(&format!("{WIDGETS}?fieldValidation=Strict"), &odd).await;
    let cannot = "Widget in version \"v1\" cannot be handled as a Widget";
    assert_eq!(
        strict.expect(400)["message"],
        format!("{cannot}: strict decoding error: {unknown}")
    );
    let created = admin.post(WIDGETS, &odd).await.expect(201);
    assert_eq!(created["spec"]["pod"]["metadata"], json!({"name": "p"}));
    let why = "spec.pod.metadata: Invalid value: {\"name\":5}: json: cannot unmarshal number into Go struct field \
               ObjectMeta.name of type string";
    let wrong = of(json!({"name": 5}));
    let refused = admin.post(WIDGETS, &wrong).await.expect(400);
    assert_eq!(refused["message"], format!("{cannot}: {why}"));
    let change = json!({"spec": {"pod": {"metadata": {"name": 5}}}});
    let refused = admin.merge(&format!("{WIDGETS}/w"), &change).await.expect(422);
    assert_eq!(refused["details"]["causes"][0]["field"], "patch");
    let refused = admin
        .patch("apply", &format!("{WIDGETS}/w?fieldManager=me"), &wrong)
        .await;
    assert!(refused.code >= 400, "{}", refused.body);
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
    // In no version is this a change of the specification.
    for path in [WIDGETS, OLD] {
        let label = json!({"metadata": {"labels": {"a": "b"}}});
        let labelled = admin.merge(&format!("{path}/w1?dryRun=All"), &label).await.expect(200);
        assert_eq!(labelled["metadata"]["generation"], 1, "{path}");
    }
    // The stored object still has the field of the first schema.
    declared.declare(&manifests(&first, "gadgets"));
    until(&admin, &format!("{V1}/namespaces/default/gadgets"), 200).await;
    assert_read(json!({"color": "red", "size": 9})).await;
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
