//! Bearer tokens: signed here, and valid as long as the object they are bound to; reviews of tokens and of other users;
//! impersonation.

use std::time::Duration;

use serde_json::{Value, json};
use yurt_runtime::Clock;
use yurt_runtime::pki::CertificateAuthority;
use yurt_test_support::eventually;

use crate::harness::{Answer, Client, Server, TRUSTING};

const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
const TOKENS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const WHO: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const ISSUER: &str = "https://cluster.example";

/// A server that signs tokens, and the folder of its key.
async fn signing(flags: &[&str]) -> (Server, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("sa.key");
    let pair = CertificateAuthority::generate("sa")
        .unwrap()
        .issue_client("sa", &["x"])
        .unwrap();
    std::fs::write(&key, pair.key_pem).unwrap();
    let key = key.to_str().unwrap();
    let mut all = vec![
        "--service-account-issuer",
        ISSUER,
        "--service-account-signing-key-file",
        key,
    ];
    all.extend(flags);
    (Server::start(&all).await, folder)
}

async fn account(admin: &Client, name: &str) {
    let body = json!({ "metadata": { "name": name } });
    admin.post(ACCOUNTS, &body).await.expect(201);
}

async fn token(client: &Client, account: &str, spec: Value) -> String {
    let answer = client
        .post(&format!("{ACCOUNTS}/{account}/token"), &json!({ "spec": spec }))
        .await
        .expect(201);
    assert_eq!(answer["kind"], "TokenRequest");
    answer["status"]["token"].as_str().unwrap().to_owned()
}

async fn who(server: &Server, token: &str) -> u16 {
    let bearer = format!("Bearer {token}");
    server
        .anonymous()
        .post_with(WHO, &json!({}), &[("authorization", &bearer)])
        .await
        .code
}

/// A bad certificate is refused by name, over a working connection, and blocks no other credential.
///
/// Conformance: 6.01
#[tokio::test]
async fn certificate_counts_if_it_is_good_and_else_a_token_does() {
    let (server, _key) = signing(&["--profile", "standalone"]).await;
    let admin = server.admin();
    account(&admin, "robot").await;
    let robot = format!("Bearer {}", token(&admin, "robot", json!({})).await);
    let who = async |client: &Client, authorization: &str| {
        let headers = [("authorization", authorization)];
        client.post_with(WHO, &json!({}), &headers).await
    };
    let user = |answer: Answer| answer.expect(201)["status"]["userInfo"].clone();
    let jane = user(who(&server.user("jane", &["a", "b"]), "Bearer wrong").await);
    assert_eq!(jane["username"], "jane");
    assert_eq!(jane["groups"], json!(["a", "b", "system:authenticated"]));
    let id = jane["extra"]["authentication.kubernetes.io/credential-id"][0].as_str();
    assert!(id.unwrap().starts_with("X509SHA256="), "{id:?}");

    let strange = CertificateAuthority::generate("yurt-coordinator").unwrap();
    let (clock, time) = Clock::fake();
    time.set_unix(Clock::system().unix() - Duration::from_secs(48 * 3600));
    let past = server
        .authority()
        .with_clock(clock)
        .with_leaf_validity(Duration::from_secs(3600));
    let masters = ["system:masters"];
    let serving = server.authority().issue_server("admin", &["admin"]).unwrap();
    for (why, client) in [
        ("of another authority", server.user_of(&strange, "admin", &masters)),
        ("past its time", server.user_of(&past, "admin", &masters)),
        ("not for clients", server.with_pair(&serving)),
    ] {
        for authorization in ["", "Bearer wrong"] {
            let refused = who(&client, authorization).await.expect(401);
            assert_eq!(
                (&refused["kind"], &refused["reason"]),
                (&"Status".into(), &"Unauthorized".into()),
                "{why}"
            );
        }
        client.get("/version").await.expect(401);
        let robot = user(who(&client, &robot).await);
        assert_eq!(robot["username"], "system:serviceaccount:default:robot", "{why}");
    }
    let unnamed = server.user("", &masters).get("/api/v1/namespaces").await.expect(403);
    let message = unnamed["message"].as_str().unwrap();
    assert!(
        message.contains("\"system:anonymous\""),
        "a certificate without a name is none: {message}"
    );
}

/// Conformance: 6.02, 6.03, 6.04
#[tokio::test]
async fn token_is_its_service_account_until_that_is_gone() {
    let (server, _key) = signing(&["--profile", "standalone"]).await;
    let admin = server.admin();
    account(&admin, "robot").await;
    let robot = token(&admin, "robot", json!({})).await;
    let bearer = format!("bEaReR {robot}");
    let me = server
        .anonymous()
        .post_with(WHO, &json!({}), &[("authorization", &bearer)])
        .await
        .expect(201);
    let user = &me["status"]["userInfo"];
    assert_eq!(user["username"], "system:serviceaccount:default:robot");
    assert_eq!(
        user["groups"],
        json!([
            "system:serviceaccounts",
            "system:serviceaccounts:default",
            "system:authenticated"
        ])
    );
    assert!(
        user["extra"]["authentication.kubernetes.io/credential-id"][0]
            .as_str()
            .unwrap()
            .starts_with("JTI=")
    );
    let refused = server
        .anonymous()
        .get_with("/api/v1/pods", &[("authorization", &bearer)])
        .await
        .expect(403);
    assert!(
        refused["message"]
            .as_str()
            .unwrap()
            .contains("User \"system:serviceaccount:default:robot\" cannot list")
    );
    let certificate = server
        .node("n1")
        .post_with(WHO, &json!({}), &[("authorization", "Bearer wrong")])
        .await
        .expect(201);
    assert_eq!(
        certificate["status"]["userInfo"]["username"], "system:node:n1",
        "a certificate wins"
    );
    let broken = format!("{}x", &robot[..robot.len() - 1]);
    assert_eq!((who(&server, &robot).await, who(&server, &broken).await), (201, 401));
    admin.delete(&format!("{ACCOUNTS}/robot")).await.expect(200);
    assert_eq!(who(&server, &robot).await, 401);
    account(&admin, "robot").await;
    assert_eq!(who(&server, &robot).await, 401, "another account of the same name");
}

/// Conformance: 6.04, 6.25
#[tokio::test]
async fn node_gets_tokens_for_its_pods_only_and_they_end_with_the_pod() {
    let (server, _key) = signing(&["--profile", "standalone"]).await;
    let (admin, n1, n2) = (server.admin(), server.node("n1"), server.node("n2"));
    account(&admin, "runner").await;
    let volume = json!({ "name": "t", "projected": { "sources": [
        { "serviceAccountToken": { "path": "token" } }, { "serviceAccountToken": { "path": "v", "audience": "vault" } }] } });
    let pod = json!({ "metadata": { "name": "web" },
                      "spec": { "nodeName": "n1", "serviceAccountName": "runner", "volumes": [volume],
                                "containers": [{ "name": "c", "image": "i" }] } });
    let pods = "/api/v1/namespaces/default/pods";
    let uid = admin.post(pods, &pod).await.expect(201)["metadata"]["uid"].clone();
    let path = format!("{ACCOUNTS}/runner/token");
    let bound = json!({ "apiVersion": "v1", "kind": "Pod", "name": "web", "uid": uid });
    for (spec, why) in [
        (json!({}), "not bound to a pod"),
        (
            json!({ "boundObjectRef": { "apiVersion": "v1", "kind": "Pod", "name": "web" } }),
            "without a uid",
        ),
        (
            json!({ "boundObjectRef": bound, "audiences": ["other"] }),
            "audience \"other\" not found in pod spec volume",
        ),
        (
            json!({ "boundObjectRef": bound, "audiences": ["a", "b"] }),
            "0 or 1 audiences",
        ),
    ] {
        let refused = n1.post(&path, &json!({ "spec": spec })).await.expect(403);
        assert!(refused["message"].as_str().unwrap().contains(why), "{refused}");
    }
    n2.post(&path, &json!({ "spec": { "boundObjectRef": bound } }))
        .await
        .expect(403);
    token(
        &n1,
        "runner",
        json!({ "boundObjectRef": bound, "audiences": ["vault"] }),
    )
    .await;
    let token = token(&n1, "runner", json!({ "boundObjectRef": bound })).await;
    let review = admin
        .post(TOKENS, &json!({ "spec": { "token": token } }))
        .await
        .expect(201);
    let extra = &review["status"]["user"]["extra"];
    assert_eq!(extra["authentication.kubernetes.io/pod-name"], json!(["web"]));
    assert_eq!(extra["authentication.kubernetes.io/node-name"], json!(["n1"]));
    admin.delete(&format!("{pods}/web?gracePeriodSeconds=0")).await;
    assert_eq!(who(&server, &token).await, 401);
}

/// Conformance: 6.27
#[tokio::test]
async fn token_review_says_whose_a_token_is_and_for_which_audience() {
    let (server, _key) = signing(&["--profile", "standalone", "--api-audiences", "here,there"]).await;
    let admin = server.admin();
    account(&admin, "robot").await;
    let review = async |token: &str, audiences: Value| {
        let spec = json!({ "token": token, "audiences": audiences });
        admin.post(TOKENS, &json!({ "spec": spec })).await.expect(201)["status"].clone()
    };
    let ours = token(&admin, "robot", json!({})).await;
    let status = review(&ours, json!([])).await;
    assert_eq!(
        (&status["authenticated"], &status["audiences"]),
        (&json!(true), &json!(["here", "there"]))
    );
    let vault = token(&admin, "robot", json!({ "audiences": ["vault"] })).await;
    assert_eq!(
        review(&vault, json!(["x", "vault"])).await["audiences"],
        json!(["vault"])
    );
    let elsewhere = review(&vault, json!([])).await;
    assert!(
        elsewhere["authenticated"].is_null() && elsewhere["error"].is_string(),
        "{elsewhere}"
    );
    assert_eq!(who(&server, &vault).await, 401);
    assert_eq!(review("nonsense", json!([])).await["error"], "invalid bearer token");
    admin.post(TOKENS, &json!({ "spec": {} })).await.expect(400);
    server
        .user("jane", &[])
        .post(TOKENS, &json!({ "spec": { "token": "x" } }))
        .await
        .expect(403);
}

#[tokio::test]
async fn lifetimes_of_tokens_have_bounds_and_no_key_means_no_tokens() {
    let (server, _key) = signing(&["--profile", "standalone"]).await;
    let admin = server.admin();
    account(&admin, "robot").await;
    let path = format!("{ACCOUNTS}/robot/token");
    let ask = async |seconds: i64| {
        admin
            .post(&path, &json!({ "spec": { "expirationSeconds": seconds } }))
            .await
            .code
    };
    for (seconds, code) in [(599, 422), (600, 201), (601, 201)] {
        assert_eq!(ask(seconds).await, code, "{seconds}");
    }
    for (seconds, code) in [((1 << 32) - 1, 201), (1 << 32, 201), ((1 << 32) + 1, 422)] {
        assert_eq!(ask(seconds).await, code, "{seconds}");
    }
    admin
        .post(&format!("{ACCOUNTS}/nobody/token"), &json!({}))
        .await
        .expect(404);
    let plain = Server::standalone().await;
    account(&plain.admin(), "robot").await;
    plain.admin().post(&path, &json!({})).await.expect(404);
}

/// Conformance: 6.05
#[tokio::test]
async fn pool_takes_tokens_by_signature_alone() {
    let (cloud, key) = signing(&["--profile", "standalone"]).await;
    account(&cloud.admin(), "robot").await;
    let robot = token(&cloud.admin(), "robot", json!({})).await;
    let key = key.path().join("sa.key");
    let key = key.to_str().unwrap();
    let pool = Server::start(&[
        TRUSTING,
        "--service-account-issuer",
        ISSUER,
        "--service-account-key-file",
        key,
    ])
    .await;
    assert_eq!(who(&pool, &robot).await, 201);
    let other = Server::start(&[
        TRUSTING,
        "--service-account-issuer",
        "https://other",
        "--service-account-key-file",
        key,
    ])
    .await;
    assert_eq!(who(&other, &robot).await, 401);
}

/// Conformance: 6.08
#[tokio::test]
async fn keys_of_tokens_change_while_the_server_runs() {
    let [(old, old_key), (new, new_key)] = [
        signing(&["--profile", "standalone"]).await,
        signing(&["--profile", "standalone"]).await,
    ];
    let mut tokens = Vec::new();
    for cloud in [&old, &new] {
        account(&cloud.admin(), "robot").await;
        tokens.push(token(&cloud.admin(), "robot", json!({})).await);
    }
    let file = old_key.path().join("sa.key");
    let flags = [
        TRUSTING,
        "--service-account-issuer",
        ISSUER,
        "--service-account-key-file",
        file.to_str().unwrap(),
    ];
    let pool = Server::start(&flags).await;
    assert_eq!((who(&pool, &tokens[0]).await, who(&pool, &tokens[1]).await), (201, 401));
    std::fs::copy(new_key.path().join("sa.key"), &file).unwrap();
    let taken_over = async || (who(&pool, &tokens[1]).await == 201).then_some(());
    eventually("the new key is taken over", taken_over).await;
    assert_eq!(who(&pool, &tokens[0]).await, 401, "the old one is gone");
}

/// Conformance: 6.27, 6.28
#[tokio::test]
async fn access_reviews_answer_for_others_and_keep_their_rules() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let group = "/apis/authorization.k8s.io/v1";
    let ask = async |spec: Value| {
        let answer = admin
            .post(&format!("{group}/subjectaccessreviews"), &json!({ "spec": spec }))
            .await
            .expect(201);
        answer["status"].clone()
    };
    let proxy = ask(json!({ "user": "system:kube-proxy",
                            "resourceAttributes": { "verb": "list", "resource": "services" } }))
    .await;
    let why = "RBAC: allowed by ClusterRoleBinding \"system:node-proxier\" of ClusterRole \"system:node-proxier\" to User \
               \"system:kube-proxy\"";
    assert_eq!(proxy, json!({ "allowed": true, "reason": why }));
    let anonymous = ask(json!({ "user": "jane", "nonResourceAttributes": { "verb": "get", "path": "/api" } })).await;
    assert_eq!(
        anonymous,
        json!({ "allowed": false }),
        "groups are those of the question, nothing is added"
    );
    let node = |selector: Value| {
        json!({ "user": "system:node:n1", "groups": ["system:nodes"],
                "resourceAttributes": { "verb": "list", "resource": "pods", "fieldSelector": selector } })
    };
    let mine = json!({ "requirements": [{ "key": "spec.nodeName", "operator": "In", "values": ["n1"] }] });
    assert_eq!(ask(node(mine)).await["allowed"], true);
    assert_eq!(
        ask(node(json!({ "rawSelector": "spec.nodeName=n1" }))).await["allowed"],
        true
    );
    let strange = json!({ "requirements": [{ "key": "spec.nodeName", "operator": "Is", "values": ["n1"] }] });
    let partial = ask(node(strange)).await;
    assert_eq!(partial["allowed"], false);
    assert_eq!(
        partial["evaluationError"],
        "spec.resourceAttributes.fieldSelector ignored due to parse error"
    );
    for spec in [
        json!({ "resourceAttributes": { "verb": "get" } }),
        json!({ "user": "a" }),
        json!({ "user": "a", "resourceAttributes": {}, "nonResourceAttributes": {} }),
    ] {
        admin
            .post(&format!("{group}/subjectaccessreviews"), &json!({ "spec": spec }))
            .await
            .expect(422);
    }
    let local = format!("{group}/namespaces/ns/localsubjectaccessreviews");
    let spec = |namespace: &str| json!({ "spec": { "user": "a", "resourceAttributes": { "verb": "get", "resource": "pods", "namespace": namespace } } });
    assert_eq!(
        admin.post(&local, &spec("ns")).await.expect(201)["metadata"]["namespace"],
        "ns"
    );
    admin.post(&local, &spec("other")).await.expect(422);
    admin
        .post(&format!("{group}/localsubjectaccessreviews"), &spec("ns"))
        .await
        .expect(404);
    server
        .user("jane", &[])
        .post(&format!("{group}/subjectaccessreviews"), &spec("ns"))
        .await
        .expect(403);
}

/// Conformance: 6.10
#[tokio::test]
async fn impersonation_needs_its_right_and_changes_who_asks() {
    let server = Server::standalone().await;
    let (admin, jane) = (server.admin(), server.user("jane", &[]));
    let as_node = [("Impersonate-User", "system:node:n1")];
    let me = admin.post_with(WHO, &json!({}), &as_node).await.expect(201);
    let expected = json!({ "username": "system:node:n1", "groups": ["system:nodes", "system:authenticated"] });
    assert_eq!(me["status"]["userInfo"], expected);
    admin.get_with("/api/v1/secrets", &as_node).await.expect(403);
    let refused = jane.get_with("/api", &[("impersonate-user", "bob")]).await.expect(403);
    let why = "forbidden: User \"jane\" cannot impersonate-on:user-info:get path \"/api\"";
    assert_eq!(refused["message"], why);
    jane.get_with("/api", &[("IMPERSONATE-GROUP", "system:masters")])
        .await
        .expect(400);
    jane.get_with(
        "/api/v1/secrets",
        &[("x-remote-user", "admin"), ("x-remote-group", "system:masters")],
    )
    .await
    .expect(403);
}
