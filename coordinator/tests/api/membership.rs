//! Which nodes belong to the pool, from flags and files.

use serde_json::json;

use crate::harness::Server;

#[tokio::test]
async fn strangers_are_told_how_to_become_members() {
    let server = Server::start(&["--nodepool", "hangzhou", "--initial-members", "n1,n2"]).await;
    let refused = server.node("n9").get("/api/v1/services").await.expect(403);
    let message = refused["message"].as_str().unwrap();
    assert!(
        message.contains("node \"n9\" is not a member of NodePool \"hangzhou\""),
        "{message}"
    );
    let member = server.node("n1");
    assert_eq!(
        member.get("/api/v1/services").await.code,
        429,
        "let in; nobody has fed them yet"
    );
    let state = member.get("/yurt/v1/feed").await.expect(200);
    assert_eq!(state["members"], json!(["n1", "n2"]));
}

#[tokio::test]
async fn members_only_may_be_elected_and_only_in_their_own_name() {
    let server = Server::start(&["--initial-members", "n1"]).await;
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
    let lease = |holder: &str| json!({"metadata": {"name": "yurthub"}, "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15}});
    server.node("n9").post(leases, &lease("n9_1")).await.expect(403);
    server.node("n1").post(leases, &lease("n2_1")).await.expect(403);
    let elected = server.node("n1").post(leases, &lease("n1_1")).await;
    assert_eq!(elected.header("yurt-epoch"), Some("1"));
    elected.expect(201);
}
