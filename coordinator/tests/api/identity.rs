//! Rights of callers, questions of callers about themselves, and requests that every caller may
//! make.

use serde_json::{Value, json};
use yurt_runtime::pki::CertificateAuthority;

use crate::harness::{Client, Server, config_map};

const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

async fn may(client: &Client, spec: Value) -> Value {
    let answer = client.post(REVIEWS, &json!({ "spec": spec })).await.expect(201);
    assert_eq!(answer["kind"], "SelfSubjectAccessReview");
    answer["status"].clone()
}

/// Conformance: 1.65, 2.98, 4.03, 6.02, 6.22
#[tokio::test]
async fn anonymous_sees_health_and_version_only() {
    let server = Server::pool().await;
    let nobody = server.anonymous();
    assert_eq!(nobody.get("/readyz").await.expect(200), "ok");
    let version = nobody.get("/version").await.expect(200);
    assert!(version["gitVersion"].as_str().unwrap().starts_with("v1.36.") && version["minor"] == "36");
    let refused = nobody.get_with("/api/v1/namespaces", &[("audit-id", "a-1")]).await;
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("cache-control", "no-cache, private"),
        ("content-type", "application/json"),
        ("audit-id", "a-1"),
    ] {
        assert_eq!(refused.header(name), Some(value));
    }
    assert!(refused.header("date").is_some());
    let refused = refused.expect(403);
    assert_eq!(refused["reason"], "Forbidden");
    nobody.get("/metrics").await.expect(403);
    let token = nobody
        .get_with("/api", &[("authorization", "Bearer x")])
        .await
        .expect(401);
    assert_eq!(token["reason"], "Unauthorized");
}

#[tokio::test]
async fn callers_learn_who_they_are_and_what_they_may() {
    let server = Server::standalone().await;
    let node = server.node("n1");
    let review = json!({"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1"});
    let me = node
        .post("/apis/authentication.k8s.io/v1/selfsubjectreviews", &review)
        .await
        .expect(201);
    assert_eq!(me["status"]["userInfo"]["username"], "system:node:n1");
    assert_eq!(
        me["status"]["userInfo"]["groups"],
        json!(["system:nodes", "system:authenticated"])
    );
    let lease = |name: &str| {
        json!({"resourceAttributes": {"verb": "update", "group": "coordination.k8s.io", "resource": "leases",
               "namespace": "kube-node-lease", "name": name}})
    };
    assert_eq!(may(&node, lease("n1")).await["allowed"], true);
    assert_eq!(may(&node, lease("n2")).await["allowed"], false);
    assert_eq!(
        may(
            &node,
            json!({"nonResourceAttributes": {"verb": "get", "path": "/metrics"}})
        )
        .await["allowed"],
        false
    );
    node.post(REVIEWS, &json!({"spec": {}})).await.expect(422);
}

#[tokio::test]
async fn name_of_a_create_is_looked_at_once_it_is_known() {
    let server = Server::standalone().await;
    let node = server.node("n1");
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let lease = |name: &str| json!({"metadata": {"name": name}, "spec": {"holderIdentity": name}});
    node.post(leases, &lease("n2")).await.expect(403);
    node.post(leases, &lease("n1")).await.expect(201);
    node.post("/api/v1/namespaces/default/configmaps", &config_map("a", "1"))
        .await
        .expect(403);
}

/// Conformance: 6.26
#[tokio::test]
async fn node_of_a_pool_writes_in_its_own_name_only() {
    let server = Server::pool().await;
    let (node, jane) = (server.node("n1"), server.user("jane", &[]));
    let leases = |namespace: &str| format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases");
    let lease = |name: &str| json!({"metadata": {"name": name}, "spec": {"holderIdentity": name}});
    for (namespace, name, code) in [
        ("kube-node-lease", "n1", 201),
        ("kube-node-lease", "n2", 403),
        ("kube-system", "other", 403),
        ("kube-system", "leader-informer-sync", 403),
    ] {
        let answer = node.post(&leases(namespace), &lease(name)).await;
        assert_eq!(answer.code, code, "{namespace}/{name}");
    }
    let other = format!("{}/n2", leases("kube-node-lease"));
    server
        .admin()
        .post(&leases("kube-node-lease"), &lease("n2"))
        .await
        .expect(201);
    node.delete(&other).await.expect(403);
    node.put(&other, &lease("n1")).await.expect(403);
    node.get("/api/v1/secrets").await.expect(403);
    node.get("/api/v1/configmaps").await.expect(403);
    node.get("/api/v1/services").await.expect(429);
    for path in ["/api/v1/services", "/yurt/v1/feed"] {
        jane.get(path).await.expect(403);
    }
}

#[tokio::test]
async fn given_certificates_are_used_and_others_refused() {
    let cluster = CertificateAuthority::generate("cluster").unwrap();
    let server = Server::with_cluster_ca(&cluster).await;
    let node = server.user_of(&cluster, "system:node:n1", &["system:nodes"]);
    assert_eq!(
        node.get("/yurt/v1/feed").await.code,
        200,
        "the node certificate is enough"
    );
    let admin = server.user_of(&cluster, "root", &["system:masters"]);
    admin.get("/api/v1/namespaces").await.expect(200);
    let stranger = CertificateAuthority::generate("stranger").unwrap();
    let stranger = server.user_of(&stranger, "root", &["system:masters"]);
    assert_eq!(
        stranger.try_get("/readyz").await,
        Some(401),
        "a certificate of another CA identifies no user"
    );
}
