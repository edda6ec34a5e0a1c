//! Fields a kind does not have, or has with another type.

use bytes::Bytes;
use http::Method;
use serde_json::json;

use crate::harness::{Answer, Server, config_map};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn warnings(answer: &Answer) -> Vec<&str> {
    let values = answer.headers.get_all("warning").iter();
    values.map(|value| value.to_str().unwrap()).collect()
}

/// Conformance: 2.40
#[tokio::test]
async fn unknown_and_duplicate_fields_are_warned_about_refused_or_dropped_as_asked() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let body = r#"{"metadata":{"name":"NAME"},"data":{"a":"1","a":"2"},"more":1}"#;
    let create = async |name: &str, query: &str| {
        let body = Bytes::from(body.replace("NAME", name));
        admin
            .send_bytes(Method::POST, &format!("{MAPS}{query}"), body, &[])
            .await
    };
    let created = create("warned", "").await;
    assert_eq!(
        warnings(&created),
        [
            r#"299 - "duplicate field \"data.a\"""#,
            r#"299 - "unknown field \"more\"""#
        ]
    );
    let object = created.expect(201);
    assert_eq!((&object["data"], object.get("more")), (&json!({"a": "2"}), None));

    let ignored = create("ignored", "?fieldValidation=Ignore").await;
    assert!(warnings(&ignored).is_empty());
    assert_eq!(ignored.expect(201).get("more"), None);

    let refused = create("refused", "?fieldValidation=Strict").await.expect(400);
    assert_eq!(
        refused["message"],
        r#"ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: duplicate field "data.a", unknown field "more""#
    );
}

/// Conformance: 3.C12
#[tokio::test]
async fn patches_are_held_to_the_same_fields() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let created = admin.post(MAPS, &config_map("a", "1")).await.expect(201);
    let path = format!("{MAPS}/a");
    let patched = admin.merge(&path, &json!({"more": 1})).await;
    assert_eq!(warnings(&patched), [r#"299 - "unknown field \"more\"""#]);
    assert_eq!(patched.expect(200), created, "nothing is left to change");

    let strict = format!("{path}?fieldValidation=Strict");
    let refused = admin.merge(&strict, &json!({"more": 1})).await.expect(422);
    let message = refused["message"].as_str().unwrap();
    assert!(
        message.ends_with(r#"strict decoding error: unknown field "more""#),
        "{message}"
    );

    let refused = admin.merge(&path, &json!({"data": {"key": 7}})).await.expect(422);
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("json: cannot unmarshal number into Go struct field ConfigMap.data of type string"));
}

#[tokio::test]
async fn warnings_come_with_failures_too_and_about_kinds() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u1"});
    let metadata = json!({"name": "a", "ownerReferences": [owner, owner]});
    let endpoints = "/api/v1/namespaces/default/endpoints";
    let created = admin.post(endpoints, &json!({ "metadata": metadata })).await;
    let [deprecated, twice] = warnings(&created)[..] else {
        panic!("two warnings");
    };
    assert_eq!(
        deprecated,
        r#"299 - "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice""#
    );
    assert!(twice.ends_with(r#"duplicate UID(s) observed: u1""#), "{twice}");
    assert_eq!(
        created.expect(201)["metadata"]["ownerReferences"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    let nameless = admin.post(MAPS, &json!({"Metadata": {"name": "a"}})).await;
    assert_eq!(warnings(&nameless), [r#"299 - "unknown field \"Metadata\"""#]);
    nameless.expect(422);
}

#[tokio::test]
async fn only_refusals_tell_browsers_not_to_guess() {
    let server = Server::standalone().await;
    let missing = server.admin().get(&format!("{MAPS}/none")).await;
    assert_eq!((missing.code, missing.header("x-content-type-options")), (404, None));
    let refused = server.user("stranger", &[]).get(MAPS).await;
    assert_eq!(
        (refused.code, refused.header("x-content-type-options")),
        (403, Some("nosniff"))
    );
}
