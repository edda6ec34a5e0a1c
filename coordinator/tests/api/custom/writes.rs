//! Writes of custom resources: status, patches, metadata, and warnings.

use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

use super::{OLD, WIDGETS, strict_widgets, widget, widgets_and_gadgets};
use crate::harness::Answer;

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

/// Go prints a number without a fraction as an integer, and reads no other into one.
#[tokio::test]
async fn numbers_without_a_fraction_are_stored_as_integers() {
    let (_declared, admin) = widgets_and_gadgets().await;
    let path = format!("{WIDGETS}/w1");
    let numbers = |text: &str| {
        let head = r#"{"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w1"}"#;
        Bytes::from(format!(r#"{head}, "spec": {{"unknown": {{"n": {text}}}}}}}"#))
    };
    let shown = |answer: Answer, code: u16| answer.expect(code)["spec"]["unknown"]["n"].to_string();
    let json = [("content-type", "application/json")];
    let created = admin
        .send_bytes(Method::POST, WIDGETS, numbers("[5.0, 1e2, -0.0, 1.5, 1e300]"), &json)
        .await;
    assert_eq!(shown(created, 201), "[5,100,0,1.5,1e+300]");
    let merge = [("content-type", "application/merge-patch+json")];
    let patched = admin.send_bytes(Method::PATCH, &path, numbers("6.0"), &merge).await;
    assert_eq!(shown(patched, 200), "6");
    let apply = [("content-type", "application/apply-patch+yaml")];
    let target = format!("{path}?fieldManager=m&force=true");
    let applied = admin
        .send_bytes(Method::PATCH, &target, numbers("{\"m\": 7.0}"), &apply)
        .await;
    assert_eq!(shown(applied, 200), r#"{"m":7}"#);
}
