//! The audit log: user, request and result, and never a secret.

use serde_json::{Value, json};

use crate::harness::Server;

/// The events of a log.
fn events(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Conformance: 6.30, 2.98
#[tokio::test]
async fn every_stage_of_every_request_is_a_line_without_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.log");
    let flags = ["--profile", "standalone", "--audit-log-path", path.to_str().unwrap()];
    let mut server = Server::start(&flags).await;
    let (admin, jane) = (server.admin(), server.user("jane", &["dev"]));
    let secret = json!({ "metadata": { "name": "s" }, "stringData": { "password": "hunter2" } });
    let created = admin
        .post_with(
            "/api/v1/namespaces/default/secrets",
            &secret,
            &[
                ("audit-id", "mine"),
                ("impersonate-user", "boss"),
                ("impersonate-group", "system:masters"),
            ],
        )
        .await;
    assert_eq!((created.code, created.header("audit-id")), (201, Some("mine")));
    jane.get("/api/v1/namespaces/default/secrets/s?x=1").await.expect(403);
    let token = [("authorization", "Bearer tell-nobody")];
    server.anonymous().get_with("/api", &token).await.expect(401);
    let mut watch = admin.watch("/api/v1/namespaces/default/secrets").await;
    assert_eq!(watch.told().await, "ADDED s");
    drop(watch);
    server.stop();
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(!text.contains("hunter2") && !text.contains("tell-nobody"), "{text}");
    let all = events(&text);
    let stages = |is_meant: &dyn Fn(&Value) -> bool| -> Vec<Value> {
        all.iter()
            .filter(|event| is_meant(event))
            .map(|event| event["stage"].clone())
            .collect()
    };
    let create = |event: &Value| event["auditID"] == "mine";
    assert_eq!(stages(&create), ["RequestReceived", "ResponseComplete"]);
    let event = all.iter().rfind(|event| create(event)).unwrap();
    assert_eq!(
        (&event["user"]["username"], &event["impersonatedUser"]["username"]),
        (&json!("admin"), &json!("boss"))
    );
    assert_eq!(
        (&event["level"], &event["responseStatus"]["code"]),
        (&json!("Metadata"), &json!(201))
    );
    assert_eq!(
        event["objectRef"],
        json!({ "resource": "secrets", "namespace": "default", "apiVersion": "v1" })
    );
    let denied = all.iter().rfind(|event| event["user"]["username"] == "jane").unwrap();
    assert_eq!(denied["annotations"]["authorization.k8s.io/decision"], "forbid");
    assert_eq!(
        (&denied["responseStatus"]["code"], &denied["verb"]),
        (&json!(403), &json!("get"))
    );
    assert_eq!(denied["requestURI"], "/api/v1/namespaces/default/secrets/s?x=1");
    assert_eq!(
        stages(&|event| event["responseStatus"]["code"] == 401),
        ["ResponseStarted"]
    );
    let watch = stages(&|event| event["verb"] == "watch");
    assert_eq!(watch, ["RequestReceived", "ResponseStarted", "ResponseComplete"]);
}

#[tokio::test]
async fn request_that_is_refused_before_its_caller_is_known_is_recorded_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.log");
    let flags = ["--profile", "standalone", "--audit-log-path", path.to_str().unwrap()];
    let mut server = Server::start(&flags).await;
    let token = [("authorization", "Bearer x")];
    server.anonymous().get_with("/api", &token).await.expect(401);
    let refused = server.admin().get("/api/v1/nodes?timeout=soon").await.expect(400);
    server.stop();
    let all = events(&std::fs::read_to_string(&path).unwrap());
    let told = all.iter().map(|event| {
        let status = &event["responseStatus"];
        json!([
            event["stage"],
            event["user"],
            event["verb"],
            status["reason"],
            status["code"],
            status["message"]
        ])
    });
    let expected = [
        json!(["ResponseStarted", {}, "get", "Unauthorized", 401, "Unauthorized"]),
        json!(["ResponseStarted", {}, "list", "BadRequest", 400, refused["message"]]),
    ];
    assert_eq!(told.collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn verb_of_a_constrained_impersonation_is_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.log");
    let flags = ["--profile", "standalone", "--audit-log-path", path.to_str().unwrap()];
    let mut server = Server::start(&flags).await;
    let boss = [("impersonate-user", "boss")];
    server.admin().get_with("/api/v1/nodes", &boss).await.expect(403);
    server.stop();
    let all = events(&std::fs::read_to_string(&path).unwrap());
    let last = all.last().unwrap();
    assert_eq!(last["impersonatedUser"]["username"], "boss");
    assert_eq!(
        last["authenticationMetadata"],
        json!({ "impersonationConstraint": "impersonate:user-info" })
    );
}

#[tokio::test]
async fn void_of_pool_data_is_recorded_with_its_user() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.log");
    let flags = [
        "--nodepool",
        "hangzhou",
        "--initial-members",
        "n1",
        "--audit-log-path",
        path.to_str().unwrap(),
    ];
    let mut server = Server::start(&flags).await;
    server.node("n1").delete("/yurt/v1/feed/services").await.expect(403);
    server.admin().delete("/yurt/v1/feed/services").await.expect(200);
    server.stop();
    let all = events(&std::fs::read_to_string(&path).unwrap());
    let of_voids = all
        .iter()
        .filter(|event| event["requestURI"] == "/yurt/v1/feed/services" && event["stage"] == "ResponseComplete")
        .map(|event| {
            json!([
                event["user"]["username"],
                event["verb"],
                event["responseStatus"]["code"]
            ])
        })
        .collect::<Vec<_>>();
    let expected = [
        json!(["system:node:n1", "delete", 403]),
        json!(["admin", "delete", 200]),
    ];
    assert_eq!(of_voids, expected);
}
