//! Use of the node's identity, and the credentials and headers of a caller that the hub forwards or
//! removes.

use http::Method;
use yurt_runtime::http::empty;
use yurt_test_support::{TestDir, TestPki};

use super::client::{Client, request};
use super::cloud::Cloud;
use super::harness::{NODE_USER, TestHub};

/// Leases are never cached: their lists and watches go to the cloud.
const LEASES: &str = "/apis/coordination.k8s.io/v1/leases";
const SERVICES: &str = "/api/v1/services";

/// Conformance: 6.07
#[tokio::test]
async fn stranger_without_credentials_gets_401_and_the_cloud_hears_nothing() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    for agent in ["curl/8.5", "kubectl/v1.36", "not-kubelet/v1", "/kubelet", ""] {
        for path in [LEASES, SERVICES, "/version"] {
            let refused = hub.component(agent).get(path).await;
            assert_eq!(refused.code, 401, "{agent:?} {path}");
            assert_eq!(refused.json()["reason"], "Unauthorized");
        }
    }
    assert!(cloud.seen(LEASES).is_empty() && cloud.seen("/version").is_empty());
}

#[tokio::test]
async fn component_on_loopback_acts_as_the_node() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    hub.kubelet().get(LEASES).await.expect(200);
    let seen = cloud.seen(LEASES);
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].user.as_deref(), Some(NODE_USER));
    assert!(
        seen[0].headers["user-agent"].to_str().unwrap().starts_with("kubelet/"),
        "the cloud knows who asks"
    );
    hub.component("KUBELET/v1.36").get(LEASES).await.expect(200);
    hub.component("coredns").get(SERVICES).await.expect(200);
}

#[tokio::test]
async fn components_are_those_of_the_flag() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &["--node-identity-components=Calico-Node"]).await;
    hub.component("calico-node/v3").get(LEASES).await.expect(200);
    hub.kubelet().get(LEASES).await.expect(401);
}

/// Conformance: 6.07
#[tokio::test]
async fn token_is_passed_on_without_the_nodes_certificate() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    // A kubelet with a token is treated as any other bearer.
    for agent in ["pod/v1", "kubelet/v1.36"] {
        hub.bearer(agent, "pods-own").get(LEASES).await.expect(200);
    }
    let seen = cloud.seen(LEASES);
    assert_eq!(seen.len(), 2);
    for seen in seen {
        assert_eq!(seen.headers["authorization"], "Bearer pods-own");
        assert_eq!(seen.user, None, "a client certificate would win over the token");
    }
}

#[tokio::test]
async fn certificate_cannot_be_passed_on() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    let refused = hub.with_certificate(&cloud, "jane", &["dev"]).get(LEASES).await;
    assert_eq!(
        (refused.code, refused.json()["reason"].as_str()),
        (403, Some("Forbidden"))
    );
    assert!(cloud.seen(LEASES).is_empty(), "and least of all with the node's rights");
}

#[tokio::test]
async fn front_proxy_headers_never_reach_the_cloud() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    let forged = [
        ("x-remote-user", "kubernetes-admin"),
        ("x-remote-group", "system:masters"),
        ("X-Remote-Extra-Scopes", "all"),
        ("x-remote-uid", "0"),
        ("x-request-id", "stays"),
    ];
    hub.kubelet().get_with(LEASES, &forged).await.expect(200);
    hub.bearer("pod/v1", "t").get_with(LEASES, &forged).await.expect(200);
    let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1";
    hub.kubelet().get_with(lease, &forged).await.expect(404);
    let seen: Vec<_> = [LEASES, lease].into_iter().flat_map(|path| cloud.seen(path)).collect();
    assert!(seen.len() >= 3);
    for seen in seen.iter().filter(|seen| seen.method == Method::GET) {
        let remote = seen.headers.keys().find(|name| name.as_str().starts_with("x-remote-"));
        assert_eq!(remote, None, "{}", seen.path);
        assert_eq!(seen.headers["x-request-id"], "stays");
    }
}

#[tokio::test]
async fn impersonation_is_left_to_the_cloud() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    let jane = [("impersonate-user", "jane"), ("impersonate-group", "dev")];
    hub.kubelet().get_with(LEASES, &jane).await.expect(403);
    assert!(
        cloud.seen(LEASES).is_empty(),
        "the node's identity does not impersonate"
    );
    hub.bearer("kubectl/v1", "t").get_with(LEASES, &jane).await.expect(200);
    let seen = cloud.seen(LEASES);
    assert_eq!(
        (
            &seen[0].headers["impersonate-user"],
            &seen[0].headers["impersonate-group"]
        ),
        (&"jane".parse().unwrap(), &"dev".parse().unwrap())
    );
    assert_eq!(
        (seen[0].headers["authorization"].as_bytes(), &seen[0].user),
        (b"Bearer t".as_slice(), &None),
        "whether it may speak for her is decided there"
    );
}

#[tokio::test]
async fn pool_data_is_not_shown_to_somebody_who_speaks_for_another() {
    let cloud = Cloud::start().await;
    cloud.allow("may-read", true);
    let hub = TestHub::start(&cloud, &[]).await;
    let path = "/api/v1/namespaces/shop/services";
    // The cloud's review of jane; the hub cannot know it.
    cloud.on(path, async |_| {
        yurt_runtime::http::json(
            http::StatusCode::FORBIDDEN,
            r#"{"kind":"Status","code":403,"reason":"Forbidden"}"#,
        )
    });
    for client in [hub.kubelet(), hub.bearer("kubectl/v1", "may-read")] {
        let answer = client
            .send(request(Method::GET, path, &[("impersonate-user", "jane")], empty()))
            .await;
        assert_eq!(answer.code, 403, "answered from the copy with the caller's own rights");
    }
}

/// Conformance: 2.90
#[tokio::test]
async fn pod_at_the_https_port_is_a_bearer_over_http2_too() {
    let cloud = Cloud::start().await;
    cloud.put(
        "services",
        serde_json::json!({"metadata": {"namespace": "shop", "name": "web"}}),
    );
    cloud.allow("good", true);
    let hub = TestHub::start(&cloud, &[]).await;
    let pod = hub.pod(&cloud, "good");
    assert_eq!(pod.get(SERVICES).await.names(), ["web"]);
    assert_eq!(pod.watch(SERVICES).await.told().await, "ADDED web");
    pod.get(LEASES).await.expect(200);
    let seen = cloud.seen(LEASES).remove(0);
    assert_eq!(
        (seen.headers["authorization"].as_bytes(), seen.user),
        (b"Bearer good".as_slice(), None)
    );
    hub.pod(&cloud, "unknown").get(SERVICES).await.expect(401);
}

#[tokio::test]
async fn certificates_of_the_client_ca_alone_are_callers() {
    let (cloud, clients, folder) = (Cloud::start().await, TestPki::new(), TestDir::new());
    folder.write("clients.crt", clients.ca_pem());
    let flag = format!("--client-ca-file={}", folder.path().join("clients.crt").display());
    let hub = TestHub::start(&cloud, &[&flag]).await;
    let url = format!("https://127.0.0.1:{}", hub.secure_port());
    let as_jane = |pki: &TestPki| {
        let tls = cloud.pki().client_config(Some(&pki.client("jane", &["dev"])));
        Client::new(&url, Some(tls), "kubectl/v1", None)
    };
    as_jane(&clients).get(LEASES).await.expect(403);
    as_jane(cloud.pki()).get(LEASES).await.expect(401);
}
