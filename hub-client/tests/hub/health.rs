//! Probes of cloud and coordinator: their requests and targets, and silent servers that do not count.

use std::time::Duration;

use http::{Method, StatusCode};
use serde_json::{Value, json};
use yurt_runtime::http::json as answer_json;
use yurt_test_support::{TestPki, eventually};

use super::cloud::Cloud;
use super::harness::{NODE_USER, TestHub};
use super::pool::{NODE_LEASES, Pool};
use super::relay_pool::Link;

const SERVICES: &str = "/api/v1/services";
/// Maximum wait of a request for a silent server.
const BOUND: Duration = Duration::from_secs(30);

fn web() -> serde_json::Value {
    json!({"metadata": {"namespace": "shop", "name": "web"}})
}

#[tokio::test]
async fn probe_needs_no_rights() {
    let cloud = Cloud::start().await;
    // All its reads and writes are refused.
    cloud.forbid(NODE_USER);
    let hub = TestHub::start_at_once(&cloud, &[]).await;
    hub.until("the cloud must be found", |state| state["cloudReachable"] == true)
        .await;
    let state = hub.state().await;
    assert_eq!(
        state["collections"]["services"]["complete"], false,
        "it may not read anything"
    );
    let probes = cloud.seen("/livez");
    assert!(!probes.is_empty() && probes.iter().all(|seen| seen.method == Method::GET));
}

#[tokio::test]
async fn health_is_told_before_the_first_probe_is_answered() {
    let cloud = Cloud::start().await;
    cloud.on("/livez", async |_| std::future::pending().await);
    let hub = TestHub::start_at_once(
        &cloud,
        &[
            "--enable-coordinator",
            "--nodepool-name=p",
            "--coordinator-server-addr=https://127.0.0.1:9",
        ],
    )
    .await;
    let text = hub.admin().get("/metrics").await.expect(200);
    let text = String::from_utf8(text.to_vec()).unwrap();
    for server in [cloud.addr().to_string(), "coordinator".to_owned()] {
        let line = format!("node_yurthub_server_healthy_status{{server=\"{server}\"}} 0");
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}

#[tokio::test]
async fn conflict_of_a_renewal_is_no_sign_of_health() {
    let cloud = Cloud::start().await;
    let own = format!("{NODE_LEASES}/n1");
    let refuse = |path: &str, code: StatusCode| {
        cloud.on(path, move |_| async move {
            answer_json(code, json!({"kind": "Status", "code": code.as_u16()}).to_string())
        });
    };
    refuse(&own, StatusCode::CONFLICT);
    let hub = TestHub::start(&cloud, &[]).await;
    hub.until("the cloud must be found", |state| state["cloudReachable"] == true)
        .await;
    refuse("/livez", StatusCode::INTERNAL_SERVER_ERROR);
    hub.until("the loss must be noticed", |state| state["cloudReachable"] == false)
        .await;
    let before = cloud.seen("/livez").len();
    eventually("two more probes", async || {
        hub.kubelet().put(&own, "application/json", "{}").await.expect(409);
        assert_eq!(hub.state().await["cloudReachable"], false);
        (cloud.seen("/livez").len() >= before + 2).then_some(())
    })
    .await;
}

/// The operator sees which file to correct.
#[tokio::test]
async fn certificates_that_do_not_fit_are_shown_with_their_file() {
    let pool = Pool::start().await;
    let mut hub = pool.hub("n1", &[]).await;
    let shown = |state: &Value, part: &str| {
        let why = |what: &str| state["troubles"][what]["why"].as_str().unwrap_or_default().to_owned();
        why("cloud").contains(part) && why("coordinator").contains(part)
    };
    let refusal = json!({"kind": "Status", "status": "Failure", "code": 401, "message": "Unauthorized"}).to_string();
    for (server, path) in [(&pool.cloud, "/livez"), (&pool.coordinator, "/yurt/v1/feed")] {
        let refusal = refusal.clone();
        server.on(path, move |_| {
            let refusal = refusal.clone();
            async move { answer_json(StatusCode::UNAUTHORIZED, refusal) }
        });
    }
    let own = "401 Unauthorized: Unauthorized; it does not accept the certificate in client-certificate-data in /";
    hub.until("the client certificate must be named", |state| shown(state, own))
        .await;
    let (other, pair) = (TestPki::new(), pool.cloud.pki().node("n1"));
    other.write_kubeconfig(hub.folder(), "kubelet.conf", &pool.cloud.url(), &pair);
    hub.restart().await;
    let ca = format!(
        "; certificate-authority-data in {}/kubelet.conf does not verify its certificate",
        hub.folder().path().display()
    );
    hub.until("the CA must be named", |state| shown(state, &ca)).await;
}

/// One hanging kubelet does not affect the state of the cloud or of the coordinator.
#[tokio::test]
async fn silent_kubelet_concerns_nobody_else() {
    let pool = Pool::start().await;
    pool.cloud.put("services", web());
    let lease = json!({"metadata": {"namespace": "kube-node-lease", "name": "n1"}, "spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}});
    let beat = pool.cloud.put_lease(lease);
    let hub = pool.leader("n1").await;
    let own = format!("{NODE_LEASES}/n1");
    let put = hub.kubelet().put(&own, "application/json", beat.to_string()).await;
    put.expect(200);
    let writes = || {
        let mut seen = pool.cloud.seen(&own);
        seen.retain(|seen| seen.method != Method::GET);
        seen.len()
    };
    let beaten = writes();
    // Two rounds of probes without a beat.
    let probes = || pool.cloud.seen("/livez").len();
    let before = probes();
    eventually("probes go on", async || (probes() >= before + 2).then_some(())).await;
    let state = hub.state().await;
    assert_eq!(
        (
            &state["hubState"],
            &state["cloudReachable"],
            &state["coordinatorReachable"]
        ),
        (&json!("LeaderHub"), &json!(true), &json!(true))
    );
    assert_eq!(hub.kube_proxy().get(SERVICES).await.names(), ["web"]);
    hub.component("flanneld").get("/api/v1/pods").await.expect(200);
    assert_eq!(writes(), beaten, "no beat of the kubelet, no renewal");
}

#[tokio::test]
async fn silent_server_keeps_nobody_waiting() {
    let cloud = Cloud::start().await;
    cloud.put("services", web());
    let mut silent = Link::to(cloud.addr()).await;
    silent.swallow().await;
    let servers = format!("{},{}", silent.url(), cloud.url());
    let hub = TestHub::start_node(&cloud, "n1", &servers, &[]).await;
    hub.wait_until_complete().await;
    hub.kubelet().get("/api/v1/pods").await.expect(200);
    // The reverse case: the server in use falls silent.
    let mut link = Link::to(cloud.addr()).await;
    let servers = format!("{},{}", link.url(), cloud.url());
    let hub = TestHub::start_node(&cloud, "n1", &servers, &[]).await;
    hub.wait_until_complete().await;
    hub.kubelet().get("/api/v1/pods").await.expect(200);
    link.swallow().await;
    let answered = async || {
        let get = tokio::time::timeout(BOUND, hub.kubelet().get("/api/v1/pods")).await;
        let answer = get.expect("no request may wait longer");
        assert!([200, 502, 503].contains(&answer.code), "{answer:?}");
        (answer.code == 200).then_some(())
    };
    eventually("the other server must be used", answered).await;
}

/// A node without the cloud from the start still reaches the pool. Only its configuration is known from before.
#[tokio::test]
async fn hub_started_offline_uses_a_running_coordinator() {
    let mut pool = Pool::start().await;
    let mut hub = pool.hub("n2", &["--leader-elect=false"]).await;
    hub.until("the configuration must be read", |state| {
        state["hubConfig"]["synced"] == true
    })
    .await;
    hub.stop().await;
    let cache = hub.folder().path().join("cache");
    for file in std::fs::read_dir(&cache).unwrap().map(|file| file.unwrap().path()) {
        if file.file_name() != Some("hub-config".as_ref()) {
            std::fs::remove_file(file).unwrap();
        }
    }
    pool.cloud.go_away().await;
    pool.coordinator.put("services", web());
    hub.set_flag("--leader-elect=true");
    hub.restart().await;
    hub.wait_until_complete().await;
    assert_eq!(hub.kube_proxy().get(SERVICES).await.names(), ["web"]);
    let mut watch = hub.kube_proxy().watch(SERVICES).await;
    assert_eq!(watch.told().await, "ADDED web");
    pool.coordinator
        .put("services", json!({"metadata": {"namespace": "shop", "name": "db"}}));
    assert_eq!(watch.told().await, "ADDED db");
    let state = hub.state().await;
    assert_eq!(
        (&state["hubState"], &state["cloudReachable"]),
        (&json!("FollowerHub"), &json!(false))
    );
    assert_eq!(state["collections"]["services"]["source"], "coordinator");
    // The same after a loss of the coordinator: the order of events does not matter.
    pool.coordinator.go_away().await;
    hub.until("the loss must be noticed", |state| {
        state["coordinatorReachable"] == false
    })
    .await;
    assert_eq!(hub.kube_proxy().get(SERVICES).await.names().len(), 2);
    pool.coordinator.come_back().await;
    pool.coordinator
        .put("services", json!({"metadata": {"namespace": "shop", "name": "late"}}));
    assert_eq!(watch.told().await, "ADDED late");
}

/// Requests of one component by name or with a limit do not reduce the replicas.
#[tokio::test]
async fn narrow_and_empty_answers_take_nothing_away() {
    let mut cloud = Cloud::start().await;
    for name in ["a", "b", "c"] {
        cloud.put("services", json!({"metadata": {"namespace": "shop", "name": name}}));
    }
    let mut hub = TestHub::start(&cloud, &[]).await;
    let secrets = "/api/v1/namespaces/shop/secrets";
    cloud.on(secrets, async |_| {
        answer_json(
            StatusCode::OK,
            r#"{"kind":"SecretList","apiVersion":"v1","metadata":{"resourceVersion":"9999"},"items":[]}"#,
        )
    });
    let missing = "fieldSelector=metadata.name%3Dmissing";
    for narrow in [
        format!("{secrets}?{missing}"),
        format!("{SERVICES}?{missing}"),
        format!("/api/v1/namespaces/shop/services?{missing}"),
        "/api/v1/namespaces/elsewhere/services?limit=1".to_owned(),
    ] {
        for client in [hub.kubelet(), hub.kube_proxy(), hub.component("coredns")] {
            assert!(client.get(&narrow).await.names().is_empty(), "{narrow}");
        }
    }
    let one = hub.component("coredns").get(&format!("{SERVICES}?limit=1")).await;
    assert_eq!(one.names(), ["a"]);
    assert_eq!(hub.kube_proxy().get(SERVICES).await.names(), ["a", "b", "c"]);
    hub.stop().await;
    cloud.go_away().await;
    hub.restart().await;
    for client in [hub.kubelet(), hub.kube_proxy(), hub.component("coredns")] {
        assert_eq!(client.get(SERVICES).await.names(), ["a", "b", "c"], "nor on the disk");
    }
}
