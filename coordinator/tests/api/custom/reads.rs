//! Reads of custom resources: selectors, tables, OpenAPI, and the versions of NodePools.

use serde_json::{Value, json};

use super::{OLD, WIDGETS, until, widget, widgets_and_gadgets};
use crate::harness::Server;

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
