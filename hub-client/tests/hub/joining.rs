//! A node joins with a token, resumes its request, renews its certificate and joins again after its end.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{Method, StatusCode};
use serde_json::{Value, json};
use yurt_runtime::http::{self as our_http, full};
use yurt_runtime::pki::RequestKey;
use yurt_runtime::tls::{CertificateInfo, PemSource, public_key_pin};
use yurt_test_support::{PATIENCE, TestDir, eventually};

use super::client::request;
use super::cloud::Cloud;
use super::cloud::requests::{CLUSTER_INFO, CSRS, cluster_info};
use super::harness::{NODE, NODE_USER, TestHub, own_uid};

pub(super) const TOKEN: &str = "abcdef.0123456789abcdef";
pub(super) const DAY: Duration = Duration::from_secs(24 * 3600);
/// Certificates of the test CA begin an hour ago, so with this validity the renewal is due at once.
pub(super) const ALMOST_OVER: Duration = Duration::from_secs(300);

/// A cloud that knows the token and publishes its CA.
pub(super) async fn cloud_with_token() -> Cloud {
    let cloud = Cloud::start().await;
    cloud.requests().accept_token(TOKEN);
    let info = cluster_info(cloud.pki(), TOKEN).to_string();
    cloud.on(CLUSTER_INFO, move |_| {
        let info = info.clone();
        async move { our_http::json(StatusCode::OK, info) }
    });
    cloud
}

fn pin(cloud: &Cloud) -> String {
    let info = CertificateInfo::leaf(&PemSource::inline("ca", cloud.pki().ca_pem())).unwrap();
    format!("--discovery-token-ca-cert-hash={}", public_key_pin(&info.public_key))
}

/// Flags of a new node that joins with `more`.
fn flags(cloud: &Cloud, folder: &TestDir, more: &[&str]) -> Vec<String> {
    let path = |name: &str| folder.path().join(name).display().to_string();
    let own = [
        format!("--node-name={NODE}"),
        format!("--server-addr={}", cloud.url()),
        format!("--root-dir={}", path("root")),
        format!("--disk-cache-path={}", path("cache")),
        format!("--node-identity-uids={}", own_uid()),
        "--enable-dummy-if=false".to_owned(),
    ];
    own.into_iter()
        .chain(more.iter().map(|flag| (*flag).to_owned()))
        .collect()
}

pub(super) fn token_flags(cloud: &Cloud, folder: &TestDir) -> Vec<String> {
    flags(cloud, folder, &[&format!("--join-token={TOKEN}"), &pin(cloud)])
}

pub(super) async fn pending(cloud: &Cloud) -> String {
    let first = async || cloud.requests().pending().into_iter().next();
    eventually("the hub must request a certificate", first).await
}

async fn failure(flags: &[String], folder: TestDir) -> String {
    let started = tokio::time::timeout(PATIENCE, TestHub::try_start(flags.to_vec(), folder));
    match started.await.expect("the start must end") {
        Err(error) => error.to_string(),
        Ok(_) => panic!("the start must fail"),
    }
}

/// Its CA is not the pinned one, and its handshake fails later.
#[tokio::test]
async fn server_of_another_cluster_does_not_keep_a_node_from_joining_at_the_next_one() {
    let (other, cloud, folder) = (cloud_with_token().await, cloud_with_token().await, TestDir::new());
    cloud.requests().approve_all(DAY);
    let mut flags = token_flags(&cloud, &folder);
    flags.retain(|flag| !flag.starts_with("--server-addr="));
    flags.push(format!("--server-addr={},{}", other.url(), cloud.url()));
    let hub = TestHub::try_start(flags, folder).await.unwrap();
    assert_eq!(hub.state().await["certificate"]["state"], "Valid");
    assert_eq!(other.requests().all().len(), 0);
}

#[tokio::test]
async fn new_node_joins_with_a_token_once_its_request_is_approved() {
    let (cloud, folder) = (cloud_with_token().await, TestDir::new());
    let root = folder.path().join("root");
    let flags = token_flags(&cloud, &folder);
    let approving = async {
        let name = pending(&cloud).await;
        assert!(!root.join("pki/yurthub-current.pem").exists());
        cloud.requests().approve(cloud.pki(), &name, NODE_USER, DAY);
    };
    let (hub, ()) = tokio::join!(TestHub::try_start(flags, folder), approving);
    let hub = hub.unwrap();
    hub.wait_until_complete().await;
    let state = hub.state().await;
    assert_eq!(state["certificate"]["state"], "Valid", "{state}");
    hub.admin().get("/v1/readyz").await.expect(200);
    let metrics = hub.admin().get("/metrics").await.expect(200);
    let metrics = String::from_utf8(metrics.to_vec()).unwrap();
    let end = metrics
        .lines()
        .find(|line| line.starts_with("node_yurthub_client_certificate_expiration_timestamp_seconds "));
    assert!(end.is_some_and(|line| !line.ends_with(" 0")), "{end:?}");
    hub.kubelet().get("/api/v1/pods").await.expect(200);
    let as_node = cloud.seen("/api/v1/pods");
    assert_eq!(
        as_node[0].user.as_deref(),
        Some(NODE_USER),
        "the new certificate is in use"
    );
    let object = &cloud.requests().all()[0];
    assert_eq!(object["spec"]["signerName"], "kubernetes.io/kube-apiserver-client");
    for before in cloud.seen(CLUSTER_INFO) {
        assert!(
            !before.headers.contains_key("authorization"),
            "the token is not sent before the CA is known"
        );
    }
    assert!(root.join("yurthub.conf").exists() && !root.join("pki/yurthub-pending.key").exists());
}

#[tokio::test]
async fn state_of_a_waiting_hub_names_the_request_and_the_hub_is_not_ready() {
    let (cloud, folder) = (cloud_with_token().await, TestDir::new());
    let flags = token_flags(&cloud, &folder);
    let (ports, mut known) = tokio::sync::watch::channel(None);
    let watching = async {
        let name = pending(&cloud).await;
        let ports = known.wait_for(Option::is_some).await.unwrap().unwrap();
        let admin = TestHub::admin_at(ports);
        let state = eventually("the request must be in the state", async || {
            let state: Value = admin.get("/debug/state.json").await.json();
            (state["certificate"]["request"] == name.as_str()).then_some(state)
        })
        .await;
        assert_eq!(state["certificate"]["state"], "Missing");
        admin.get("/v1/healthz").await.expect(200);
        admin.get("/v1/readyz").await.expect(500);
    };
    tokio::select! {
        _ = TestHub::try_start_reporting(flags, folder, ports) => panic!("nobody approves"),
        () = watching => {}
    }
}

#[tokio::test]
async fn restart_resumes_the_pending_request() {
    let (cloud, folder) = (cloud_with_token().await, Arc::new(TestDir::new()));
    let flags = token_flags(&cloud, &folder);
    let name = tokio::select! {
        _ = TestHub::try_start(flags.clone(), folder.clone()) => panic!("nobody approves"),
        name = pending(&cloud) => name,
    };
    cloud.requests().approve(cloud.pki(), &name, NODE_USER, DAY);
    let hub = TestHub::try_start(flags, folder).await.unwrap();
    assert_eq!(cloud.requests().all().len(), 1, "no second request");
    assert_eq!(hub.state().await["certificate"]["state"], "Valid");
}

#[tokio::test]
async fn denied_request_ends_the_start_with_the_fix() {
    let (cloud, folder) = (cloud_with_token().await, TestDir::new());
    let flags = token_flags(&cloud, &folder);
    let denying = async {
        let name = pending(&cloud).await;
        cloud.requests().deny(&name, "unknown node");
        name
    };
    let (error, name) = tokio::join!(failure(&flags, folder), denying);
    let parts = ["denied", "unknown node", &format!("kubectl delete csr {name}")];
    assert!(parts.iter().all(|part| error.contains(part)), "{error}");
}

#[tokio::test]
async fn certificate_for_another_node_is_not_installed() {
    let (cloud, folder) = (cloud_with_token().await, TestDir::new());
    let (flags, pair) = (
        token_flags(&cloud, &folder),
        folder.path().join("root/pki/yurthub-current.pem"),
    );
    let signing = async {
        let name = pending(&cloud).await;
        cloud.requests().approve(cloud.pki(), &name, "system:node:n2", DAY);
    };
    let (error, ()) = tokio::join!(failure(&flags, folder), signing);
    assert!(error.contains("system:node:n2") && !pair.exists(), "{error}");
}

#[tokio::test]
async fn authority_that_is_not_pinned_gets_no_token() {
    let (cloud, folder) = (cloud_with_token().await, TestDir::new());
    let other = Cloud::start().await;
    let flags = flags(&cloud, &folder, &[&format!("--join-token={TOKEN}"), &pin(&other)]);
    let error = failure(&flags, folder).await;
    assert!(error.contains("--discovery-token-ca-cert-hash"), "{error}");
    assert!(
        cloud
            .all_seen()
            .iter()
            .all(|seen| !seen.headers.contains_key("authorization"))
    );
    assert!(cloud.seen(CSRS).is_empty());
}

#[tokio::test]
async fn token_that_the_cluster_does_not_know_names_the_flag() {
    let (cloud, folder) = (cloud_with_token().await, TestDir::new());
    let unknown = ["--join-token=fedcba.0123456789abcdef", "--discovery-timeout=0s"];
    let flags = flags(&cloud, &folder, &[unknown[0], unknown[1], &pin(&cloud)]);
    let error = failure(&flags, folder).await;
    assert!(
        error.contains("--join-token") && error.contains("kubeadm token create"),
        "{error}"
    );
}

/// The signer of the ConfigMap and the apiservers learn of a new token a moment after its creation.
#[tokio::test]
async fn token_that_the_cluster_does_not_know_yet_is_tried_again() {
    let (cloud, folder) = (Cloud::start().await, TestDir::new());
    let signed = cluster_info(cloud.pki(), TOKEN);
    let mut unsigned = signed.clone();
    unsigned["data"]
        .as_object_mut()
        .unwrap()
        .remove("jws-kubeconfig-abcdef");
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    cloud.on(CLUSTER_INFO, move |_| {
        let is_first = count.fetch_add(1, Ordering::Relaxed) == 0;
        let info = if is_first {
            unsigned.to_string()
        } else {
            signed.to_string()
        };
        async move { our_http::json(StatusCode::OK, info) }
    });
    let flags = token_flags(&cloud, &folder);
    let approving = async {
        eventually("the token must be refused once", async || {
            cloud.seen(CSRS).first().cloned()
        })
        .await;
        cloud.requests().accept_token(TOKEN);
        let name = pending(&cloud).await;
        cloud.requests().approve(cloud.pki(), &name, NODE_USER, DAY);
    };
    let (hub, ()) = tokio::join!(TestHub::try_start(flags, folder), approving);
    let hub = hub.unwrap();
    assert_eq!(hub.state().await["certificate"]["state"], "Valid");
    assert!(asked.load(Ordering::Relaxed) >= 3, "{asked:?}");
}

#[tokio::test]
async fn renewal_keeps_open_streams_and_uses_the_old_certificate() {
    let (cloud, folder) = (cloud_with_token().await, TestDir::new());
    let flags = token_flags(&cloud, &folder);
    let approving = async {
        let name = pending(&cloud).await;
        cloud.requests().approve(cloud.pki(), &name, NODE_USER, ALMOST_OVER);
    };
    let (hub, ()) = tokio::join!(TestHub::try_start(flags, folder), approving);
    let hub = hub.unwrap();
    let name = pending(&cloud).await;
    let created = cloud.seen(CSRS);
    let renewal = created.last().unwrap();
    assert_eq!(renewal.user.as_deref(), Some(NODE_USER));
    assert!(
        !renewal.headers.contains_key("authorization"),
        "the token is for joining only"
    );
    let mut watch = hub.kubelet().watch("/api/v1/pods").await;
    let before = hub.state().await["certificate"]["validUntil"].clone();
    cloud.requests().approve(cloud.pki(), &name, NODE_USER, DAY);
    let is_new =
        |state: &Value| state["certificate"]["validUntil"] != before && state["certificate"]["request"].is_null();
    hub.until("the certificate must be renewed", is_new).await;
    cloud.put("pods", json!({"metadata": {"namespace": "shop", "name": "web"}}));
    assert_eq!(watch.told().await, "ADDED web");
}

#[tokio::test]
async fn node_whose_certificate_expired_serves_and_joins_again_with_a_token_it_is_sent() {
    let (cloud, folder) = (cloud_with_token().await, TestDir::new());
    let expired = cloud.pki().expired_node(NODE);
    write(
        folder.path(),
        "root/pki/yurthub-current.pem",
        &format!("{}{}", expired.cert_pem, expired.key_pem),
    );
    write(folder.path(), "root/pki/ca.crt", cloud.pki().ca_pem());
    // As kube-apiserver answers who presents such a certificate. The hub has no copies yet.
    cloud.on("/livez", |_| async {
        yurt_runtime::http::text(http::StatusCode::UNAUTHORIZED, "certificate has expired")
    });
    let flags = flags(&cloud, &folder, &["--bootstrap-mode=token"]);
    let hub = TestHub::try_start(flags, folder).await.unwrap();
    let state = hub.state().await;
    assert_eq!(state["certificate"]["state"], "Expired");
    assert!(
        state["certificate"]["message"].as_str().unwrap().contains("/v1/token"),
        "{state}"
    );
    hub.admin().get("/v1/readyz").await.expect(500);

    cloud.requests().approve_all(DAY);
    let admin = hub.admin();
    let send = async |body: &str, headers: &[(&str, &str)]| {
        admin
            .send(request(Method::POST, "/v1/token", headers, full(body.to_owned())))
            .await
    };
    send("{}", &[]).await.expect(400);
    let body = json!({ "jointoken": TOKEN }).to_string();
    send(&body, &[("origin", "http://page.example")]).await.expect(403);
    assert!(cloud.seen(CSRS).is_empty());
    send(&body, &[]).await.expect(200);
    hub.until("the node must join again", |state| {
        state["certificate"]["state"] == "Valid"
    })
    .await;
    cloud.off("/livez");
    eventually("the hub must become ready", async || {
        (admin.get("/v1/readyz").await.code == 200).then_some(())
    })
    .await;
}

/// The cluster has another authority of client certificates.
#[tokio::test]
async fn certificate_that_the_servers_do_not_accept_is_replaced_with_a_token_that_is_sent() {
    let (cloud, folder) = (cloud_with_token().await, TestDir::new());
    let key = RequestKey::generate().unwrap();
    let request = key.request(NODE_USER, &["system:nodes"], &[] as &[&str]).unwrap();
    let due = cloud.pki().sign(&request, NODE_USER, &["system:nodes"], ALMOST_OVER);
    let pair = format!("{due}{}", key.pem());
    write(folder.path(), "root/pki/yurthub-current.pem", &pair);
    write(folder.path(), "root/pki/ca.crt", cloud.pki().ca_pem());
    cloud.requests().refuse_certificates();
    let flags = flags(&cloud, &folder, &["--bootstrap-mode=token"]);
    let hub = TestHub::try_start(flags, folder).await.unwrap();
    let state = hub.until("the certificate must be named", |state| {
        let message = state["certificate"]["message"].as_str().unwrap_or_default();
        message.contains("pki/yurthub-current.pem") && message.contains("/v1/token")
    });
    assert_eq!(state.await["certificate"]["state"], "Valid");
    cloud.requests().approve_all(DAY);
    let body = full(json!({ "jointoken": TOKEN }).to_string());
    let sent = hub
        .admin()
        .send(super::client::request(Method::POST, "/v1/token", &[], body))
        .await;
    sent.expect(200);
    hub.until("the node must join again", |state| {
        state["certificate"]["message"] == "" && state["certificate"]["request"].is_null()
    })
    .await;
    let joined = cloud.requests().all();
    assert_eq!(joined.len(), 1, "{joined:?}");
}

#[tokio::test]
async fn clock_that_is_far_ahead_costs_few_requests_and_is_named() {
    let (cloud, folder) = (cloud_with_token().await, TestDir::new());
    // Each certificate is due for renewal when it is issued.
    cloud.requests().approve_all(ALMOST_OVER);
    let flags = token_flags(&cloud, &folder);
    let hub = TestHub::try_start(flags, folder).await.unwrap();
    hub.until("the clock must be named", |state| {
        let message = state["certificate"]["message"].as_str();
        message.is_some_and(|message| message.contains("this node's clock"))
    })
    .await;
    // That of the start, and two in a row.
    assert_eq!(cloud.requests().all().len(), 3);
}

#[tokio::test]
async fn join_token_is_set_by_root_or_by_the_holder_of_the_present_one() {
    let (cloud, folder) = (cloud_with_token().await, TestDir::new());
    cloud.requests().approve_all(DAY);
    let mut flags = token_flags(&cloud, &folder);
    let stranger = own_uid() + 1;
    flags.retain(|flag| !flag.starts_with("--node-identity-uids="));
    flags.push(format!("--node-identity-uids={stranger}"));
    let hub = TestHub::try_start(flags, folder).await.unwrap();
    let admin = hub.admin();
    let body = json!({"jointoken": "bcdefa.0123456789abcdef"}).to_string();
    for (header, code) in [
        ("Bearer x", 403),
        ("Bearer bcdefa.0123456789abcdef", 403),
        (&format!("Bearer {TOKEN}"), 200),
    ] {
        let headers = [("authorization", header)];
        let answer = admin
            .send(request(Method::PUT, "/v1/token", &headers, full(body.clone())))
            .await;
        answer.expect(code);
    }
}

/// The flag is removed once the node has joined.
#[tokio::test]
async fn present_join_token_is_known_after_a_restart_without_its_flag() {
    let (cloud, folder) = (cloud_with_token().await, Arc::new(TestDir::new()));
    cloud.requests().approve_all(DAY);
    let stranger = format!("--node-identity-uids={}", own_uid() + 1);
    let with_stranger = |mut flags: Vec<String>| {
        flags.retain(|flag| !flag.starts_with("--node-identity-uids="));
        flags.push(stranger.clone());
        flags
    };
    let joining = with_stranger(token_flags(&cloud, &folder));
    let mut hub = TestHub::try_start(joining, folder.clone()).await.unwrap();
    hub.stop().await;
    let joined = with_stranger(flags(&cloud, &folder, &["--bootstrap-mode=token"]));
    let hub = TestHub::try_start(joined, folder).await.unwrap();
    let admin = hub.admin();
    for (header, code) in [("Bearer x", 403), (&format!("Bearer {TOKEN}"), 200)] {
        let body = full(json!({"jointoken": "bcdefa.0123456789abcdef"}).to_string());
        let headers = [("authorization", header)];
        let answer = admin.send(request(Method::PUT, "/v1/token", &headers, body));
        answer.await.expect(code);
    }
}

#[tokio::test]
async fn certificate_of_another_node_names_the_flag() {
    let cloud = Cloud::start().await;
    let folder = TestDir::new();
    let pair = cloud.pki().node("n2");
    let kubeconfig = cloud
        .pki()
        .write_kubeconfig(&folder, "kubelet.conf", &cloud.url(), &pair);
    let flags = flags(&cloud, &folder, &[&format!("--kubeconfig={}", kubeconfig.display())]);
    let error = failure(&flags, folder).await;
    assert!(
        error.starts_with("--node-name:") && error.contains("--node-name=n2"),
        "{error}"
    );
}

fn write(folder: &Path, name: &str, content: &str) {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, content).unwrap();
}

#[tokio::test]
async fn pods_of_the_node_are_told_to_trusted_uids_at_the_hubs_own_address() {
    let cloud = Cloud::start().await;
    cloud.put(
        "pods",
        json!({"metadata": {"namespace": "shop", "name": "web"}, "spec": {"nodeName": NODE}}),
    );
    for proof in ["socket", "token"] {
        let hub = TestHub::start(&cloud, &[&format!("--node-identity={proof}")]).await;
        assert_eq!(hub.admin().get("/pods").await.names(), ["web"], "{proof}");
        let rebound = [("host", "rebound.example:80")];
        hub.admin().get_with("/pods", &rebound).await.expect(403);
    }
    let asked = cloud.seen("/api/v1/pods");
    assert!(asked.iter().all(|seen| seen.user.as_deref() == Some(NODE_USER)));
    assert!(asked[0].query.as_deref().unwrap().contains("spec.nodeName%3Dn1"));
    let stranger = format!("--node-identity-uids={}", own_uid() + 1);
    let hub = TestHub::start(&cloud, &[&stranger]).await;
    hub.admin().get("/pods").await.expect(403);
}
