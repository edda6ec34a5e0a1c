//! Patches of every type: their effects and refusals, and what they have in common.

use bytes::Bytes;
use http::Method;
use serde_json::json;

use crate::harness::{Server, config_map, rv};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";
const POOLS: &str = "/apis/apps.openyurt.io/v1beta2/nodepools";

/// Conformance: 3.C03, 3.C06, 3.C10
#[tokio::test]
async fn strategic_merge_patch_knows_the_lists_of_built_in_kinds() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a", "image": "x"}, {"name": "b", "image": "y"}]}});
    let created = admin.post(PODS, &pod).await.expect(201);
    let path = format!("{PODS}/p");
    let patch = json!({"spec": {"containers": [{"name": "b", "image": "z"}]}, "status": {"phase": "Running"}});
    let patched = admin.patch("strategic-merge", &path, &patch).await.expect(200);
    let images = |pod: &serde_json::Value| {
        let containers = pod["spec"]["containers"].as_array().unwrap().clone();
        let mut images: Vec<_> = containers
            .iter()
            .map(|container| container["image"].as_str().unwrap().to_owned())
            .collect();
        images.sort();
        images
    };
    assert_eq!(images(&patched), ["x", "z"]);
    assert_eq!(
        patched["status"]["phase"], created["status"]["phase"],
        "the status has a path of its own"
    );
    let status = json!({"metadata": {"uid": created["metadata"]["uid"]}, "spec": {"nodeName": "n"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let answer = admin.patch("strategic-merge", &format!("{path}/status"), &status).await;
    let patched = answer.expect(200);
    assert_eq!(patched["status"]["conditions"][0]["type"], "Ready");
    assert!(patched["spec"]["nodeName"].is_null());
    let same = admin.patch("strategic-merge", &format!("{path}/status"), &status).await;
    assert_eq!(
        rv(&same.expect(200)),
        rv(&patched),
        "nothing changed, nothing is written"
    );
    let bad = json!({"spec": {"containers": [{"image": "z"}]}});
    let refused = admin.patch("strategic-merge", &path, &bad).await.expect(422);
    assert_eq!(
        refused["message"],
        "map: map[image:z] does not contain declared merge key: name"
    );
}

/// Conformance: 2.61, 3.C03
#[tokio::test]
async fn patch_types_that_are_not_offered_get_415() {
    let server = Server::standalone().await;
    let admin = server.admin();
    admin.post(POOLS, &json!({"metadata": {"name": "a"}})).await.expect(201);
    let refused = admin
        .patch("strategic-merge", &format!("{POOLS}/a"), &json!({}))
        .await
        .expect(415);
    let of_custom = "the body of the request was in an unknown format - accepted media types include: \
                     application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml";
    assert_eq!(refused["message"], of_custom);
    admin.post(MAPS, &config_map("a", "1")).await.expect(201);
    let json_type = [("content-type", "application/json")];
    for (path, message) in [(POOLS, of_custom), (MAPS, "415: Unsupported Media Type")] {
        let path = format!("{path}/a");
        let refused = admin.send(Method::PATCH, &path, Some(&json!({})), &json_type).await;
        assert_eq!(refused.expect(415)["message"], message);
    }
}

/// Conformance: 3.C01, 3.C02, 3.C05, 3.C06
#[tokio::test]
async fn patches_cannot_change_what_an_object_is() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let created = admin.post(MAPS, &config_map("a", "1")).await.expect(201);
    let path = format!("{MAPS}/a");
    for kind in ["merge", "strategic-merge"] {
        let missing = format!("{MAPS}/missing");
        let uid = json!({"metadata": {"uid": "u1"}});
        admin.patch(kind, &missing, &uid).await.expect(404);
        let refused = admin.patch(kind, &path, &uid).await.expect(422);
        assert_eq!(refused["details"]["causes"][0]["field"], "metadata.uid");
        for (field, value) in [("name", "b"), ("namespace", "other")] {
            admin
                .patch(kind, &path, &json!({"metadata": {field: value}}))
                .await
                .expect(400);
        }
        let version = json!({"metadata": {"resourceVersion": "1"}, "data": {"x": "y"}});
        admin.patch(kind, &path, &version).await.expect(409);
        let same = admin.patch(kind, &path, &json!({})).await.expect(200);
        assert_eq!(rv(&same), rv(&created));
        admin
            .patch(kind, &format!("{path}?force=true"), &json!({}))
            .await
            .expect(422);
    }
    let test = json!([{"op": "test", "path": "/data/key", "value": "2"}]);
    let refused = admin.patch("json", &path, &test).await.expect(422);
    assert_eq!(
        refused["message"],
        "the server rejected our request due to an error in our request"
    );
    admin.patch("json", &path, &json!({})).await.expect(400);
    assert_eq!(
        rv(&admin.patch("json", &path, &json!([])).await.expect(200)),
        rv(&created)
    );
}

/// Conformance: 3.C11
#[tokio::test]
async fn patch_takes_the_last_finalizer_of_a_deleting_object() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let mut map = config_map("a", "1");
    map["metadata"]["finalizers"] = json!(["example.com/hold"]);
    admin.post(MAPS, &map).await.expect(201);
    let path = format!("{MAPS}/a");
    admin.delete(&path).await.expect(200);
    admin.merge(&path, &json!({"data": {"late": "1"}})).await.expect(200);
    let patch = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["example.com/hold"]}});
    admin.patch("strategic-merge", &path, &patch).await.expect(200);
    admin.get(&path).await.expect(404);
}

/// Conformance: 2.82
#[tokio::test]
async fn json_patches_are_bounded() {
    let server = Server::standalone().await;
    let admin = server.admin();
    admin.post(MAPS, &config_map("a", "1")).await.expect(201);
    let path = format!("{MAPS}/a");
    let operations = |count: usize| vec![json!({"op": "test", "path": "/data/key", "value": "1"}); count].into();
    admin.patch("json", &path, &operations(10_000)).await.expect(200);
    admin.patch("json", &path, &operations(10_001)).await.expect(413);
    let mut copies = vec![json!({"op": "add", "path": "/data/key", "value": "x".repeat(500_000)})];
    copies.extend(vec![
        json!({"op": "copy", "from": "/data/key", "path": "/data/other"});
        7
    ]);
    admin.patch("json", &path, &copies.into()).await.expect(422);
}

/// Conformance: 3.C04
#[tokio::test]
async fn racing_patches_without_a_version_all_succeed() {
    let server = Server::standalone().await;
    let admin = server.admin();
    admin.post(MAPS, &config_map("a", "1")).await.expect(201);
    let patches = (0..20).map(|n| {
        let admin = admin.clone();
        async move {
            let patch = json!({"data": {format!("k{n}"): "v"}});
            admin.patch("strategic-merge", &format!("{MAPS}/a"), &patch).await.code
        }
    });
    let codes = futures_util::future::join_all(patches).await;
    assert!(codes.iter().all(|code| *code == 200), "{codes:?}");
    let map = admin.get(&format!("{MAPS}/a")).await.expect(200);
    assert_eq!(map["data"].as_object().unwrap().len(), 21);
}

/// Conformance: 3.C01, 3.C06
#[tokio::test]
async fn patches_answer_what_kube_apiserver_answers() {
    let server = Server::standalone().await;
    let admin = server.admin();
    admin.post(MAPS, &config_map("a", "1")).await.expect(201);
    let path = format!("{MAPS}/a");
    let replace = json!([{"op": "replace", "path": "/data/none", "value": "x"}]);
    let added = admin.patch("json", &path, &replace).await.expect(200);
    assert_eq!(added["data"]["none"], "x", "replacing what is not there adds it");
    let deep = json!([{"op": "replace", "path": "/data/none/such", "value": "x"}]);
    admin.patch("json", &path, &deep).await.expect(422);
    let whole = json!([{"op": "replace", "path": "", "value": {}}]);
    let nameless = admin.patch("json", &path, &whole).await.expect(400);
    let why = "the name of the object (a based on URL) was undeterminable: name must be provided";
    assert_eq!(nameless["message"], why);
    let kind = json!({"kind": "Other"});
    let other = admin.merge(&path, &kind).await.expect(422);
    assert_eq!(other["details"]["causes"][0]["field"], "patch");
    let typed = admin.patch("strategic-merge", &path, &kind).await.expect(200);
    assert_eq!(typed["kind"], "ConfigMap", "applied to a value of the type");
    admin.patch("strategic-merge", &path, &json!(null)).await.expect(200);
    let list = admin.patch("strategic-merge", &path, &json!([])).await.expect(400);
    let why = "json: cannot unmarshal array into Go value of type map[string]interface {}";
    assert_eq!(list["message"], why);
    let junk = json!({"metadata": {"resourceVersion": "x"}});
    admin.merge(&path, &junk).await.expect(400);
    let finalizer = json!({"metadata": {"finalizers": ["example.com/a"]}});
    admin.merge(&path, &finalizer).await.expect(200);
    let marked = admin.delete(&path).await.expect(200);
    let gone = admin
        .merge(&path, &json!({"metadata": {"finalizers": null}}))
        .await
        .expect(200);
    assert_eq!(rv(&gone), rv(&marked), "the last state is shown as it was stored");
    admin.get(&path).await.expect(404);
}

/// Conformance: 3.C12
#[tokio::test]
async fn fields_that_a_patch_names_twice_are_a_matter_of_field_validation() {
    let server = Server::standalone().await;
    let admin = server.admin();
    admin.post(MAPS, &config_map("a", "1")).await.expect(201);
    admin.post(POOLS, &json!({"metadata": {"name": "a"}})).await.expect(201);
    let twice = r#"{"metadata": {"labels": {"a": "1", "a": "2"}}}"#;
    let operations = r#"[{"op": "test", "op": "add", "path": "/metadata/labels", "value": {"a": "2"}, "odd": 1}]"#;
    let field = ["duplicate field \"metadata.labels.a\""].as_slice();
    let of_operations = [
        "json patch duplicate field \"[0].op\"",
        "json patch unknown field \"[0].odd\"",
    ];
    for (path, kind, patch, faults) in [
        (format!("{MAPS}/a"), "merge", twice, field),
        (format!("{MAPS}/a"), "strategic-merge", twice, field),
        (format!("{MAPS}/a"), "json", operations, &of_operations),
        (format!("{POOLS}/a"), "merge", twice, field),
    ] {
        let content = format!("application/{kind}-patch+json");
        let send = async |validation: &str| {
            let target = format!("{path}?fieldValidation={validation}");
            let headers = [("content-type", content.as_str())];
            let body = Bytes::from(patch);
            admin.send_bytes(Method::PATCH, &target, body, &headers).await
        };
        let refused = send("Strict").await.expect(422);
        let want = format!("strict decoding error: {}", faults.join(", "));
        let message = refused["message"].as_str().unwrap();
        assert!(message.ends_with(&want), "{kind}: {message}");
        let ignored = send("Ignore").await;
        assert_eq!(ignored.header("warning"), None);
        assert_eq!(
            ignored.expect(200)["metadata"]["labels"]["a"],
            "2",
            "the last one counts"
        );
        let warned = send("Warn").await;
        let warnings = warned
            .headers
            .get_all("warning")
            .iter()
            .map(|text| text.to_str().unwrap());
        let want = faults.iter().map(|fault| format!("299 - {fault:?}"));
        assert_eq!(warnings.collect::<Vec<_>>(), want.collect::<Vec<_>>(), "{kind}");
        warned.expect(200);
    }
}
