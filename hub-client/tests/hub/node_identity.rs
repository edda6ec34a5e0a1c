//! The node's identity is limited to root's components and to requests addressed to the hub; other processes on the
//! node do not get it.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use http::StatusCode;
use yurt_runtime::tls::ClientTls;

use super::client::Client;
use super::cloud::Cloud;
use super::cloud::requests::CSRS;
use super::harness::{NODE_USER, TestHub, own_uid};

const SECRET: &str = "/api/v1/namespaces/shop/secrets/db";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1";
const TOKENS: &str = "/api/v1/namespaces/shop/serviceaccounts/robot/token";
/// A uid that owns nothing.
pub(super) const NOBODY: u32 = 65534;

/// Sends these bytes from a separate process and returns the answer. Only root may choose the process's uid.
async fn said_by(uid: Option<u32>, port: u16, request: String) -> String {
    let mut command = Command::new("bash");
    let talk = r#"exec 3<>"/dev/tcp/127.0.0.1/$0"; printf '%s' "$1" >&3; cat <&3"#;
    command.args(["-c", talk, &port.to_string(), &request]).current_dir("/");
    if let Some(uid) = uid.filter(|uid| *uid != own_uid()) {
        command.uid(uid).gid(uid);
    }
    let answer = tokio::task::spawn_blocking(move || command.output()).await.unwrap();
    String::from_utf8(answer.expect("bash must run").stdout).unwrap()
}

/// A kubelet's request, which any process can write.
fn as_kubelet(method: &str, path: &str, host: &str) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: kubelet/v1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    )
}

fn code(answer: &str) -> u16 {
    let code = answer.split(' ').nth(1).unwrap_or_default();
    code.parse().unwrap_or_else(|_| panic!("no answer: {answer:?}"))
}

#[tokio::test]
async fn uid_that_is_not_configured_does_not_act_as_the_node() {
    let cloud = Cloud::start().await;
    // Without the right to run processes of another uid, the test's own uid is the refused one.
    let uid = if own_uid() == 0 { NOBODY } else { own_uid() };
    let hub = TestHub::start(&cloud, &["--node-identity-uids=0"]).await;
    for (method, path) in [("GET", SECRET), ("POST", TOKENS), ("GET", "/api/v1/services")] {
        let answer = said_by(Some(uid), hub.proxy_port(), as_kubelet(method, path, "127.0.0.1")).await;
        assert_eq!(code(&answer), 401, "{method} {path}: {answer}");
        assert!(
            answer.contains("--node-identity-uids") && answer.contains(&format!("uid {uid}")),
            "{answer}"
        );
    }
    assert!(cloud.seen(SECRET).is_empty() && cloud.seen(TOKENS).is_empty());
}

#[tokio::test]
async fn name_that_leads_to_the_hub_is_not_the_hubs_own() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    let answer = said_by(None, hub.proxy_port(), as_kubelet("GET", SECRET, "rebound.example:80")).await;
    assert_eq!(code(&answer), 421, "{answer}");
    assert!(cloud.seen(SECRET).is_empty());
}

#[tokio::test]
async fn uid_that_is_configured_acts_as_the_node() {
    let cloud = Cloud::start().await;
    let uid = if own_uid() == 0 { NOBODY } else { own_uid() };
    for uids in [uid.to_string(), "any".to_owned()] {
        let hub = TestHub::start(&cloud, &[&format!("--node-identity-uids={uids}")]).await;
        let answer = said_by(
            Some(uid),
            hub.proxy_port(),
            as_kubelet("GET", "/api/v1/pods", "localhost"),
        )
        .await;
        assert_eq!(code(&answer), 200, "{answer}");
    }
}

#[tokio::test]
async fn demanded_token_is_read_by_the_hub_and_seen_by_nobody_else() {
    let cloud = Cloud::start().await;
    let mut hub = TestHub::start(&cloud, &["--node-identity=token"]).await;
    let refused = hub.kubelet().get(SECRET).await;
    assert_eq!(refused.code, 401);
    assert!(refused.json()["message"].as_str().unwrap().contains("kubelet.token"));
    let token = std::fs::read_to_string(hub.folder().path().join("root/kubelet.token")).unwrap();
    hub.bearer("kubelet/v1", &token).get(SECRET).await.expect(404);
    let seen = cloud.seen(SECRET);
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].user.as_deref(), Some(NODE_USER));
    assert!(
        !seen[0].headers.contains_key("authorization"),
        "the token is the hub's own"
    );
    for (agent, path) in [("curl/8", SECRET), ("curl/8", "/api/v1/services")] {
        hub.bearer(agent, &token).get(path).await.expect(401);
    }
    hub.pod(&cloud, &token).get(SECRET).await.expect(401);
    assert_eq!(
        cloud.seen(SECRET).len(),
        1,
        "an unknown token, and no request to the cloud"
    );
    hub.restart().await;
    hub.bearer("kubelet/v1", &token).get(SECRET).await.expect(404);
}

#[tokio::test]
async fn kubelet_that_pins_the_hubs_own_authority_talks_to_nobody_else() {
    let cloud = Cloud::start().await;
    let mut hub = TestHub::start(&cloud, &["--node-identity=token"]).await;
    let root = hub.folder().path().join("root");
    std::fs::remove_file(root.join("pki/yurthub-server-current.pem")).unwrap();
    hub.restart().await;
    let token = std::fs::read_to_string(root.join("kubelet.token")).unwrap();
    let pinned = ClientTls {
        ca: root.join("pki/yurthub-ca.crt").into(),
        identity: None,
    };
    let kubelet = |hub: &TestHub| {
        let url = format!("https://127.0.0.1:{}", hub.secure_port());
        Client::new(&url, Some(pinned.config().unwrap()), "kubelet/v1", Some(&token))
    };
    let early = pinned.config().unwrap();
    kubelet(&hub).get("/api/v1/pods").await.expect(200);
    let key = root.join("pki/yurthub-ca.key");
    assert_eq!(std::fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    hub.restart().await;
    let url = format!("https://127.0.0.1:{}", hub.secure_port());
    let kept = Client::new(&url, Some(early), "kubelet/v1", Some(&token));
    kept.get("/api/v1/pods").await.expect(200);
    // A key that other users could read may have been copied.
    std::fs::set_permissions(&key, Permissions::from_mode(0o644)).unwrap();
    let before = std::fs::read_to_string(&key).unwrap();
    hub.restart().await;
    assert_ne!(std::fs::read_to_string(&key).unwrap(), before);
    assert_eq!(std::fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
}

/// kubeadm's kubelet rotates its certificate, and so presents it instead of the token.
#[tokio::test]
async fn kubelet_with_the_nodes_certificate_reads_and_writes_as_the_node() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &["--node-identity=token"]).await;
    let certificate = cloud.pki().client_config(Some(&cloud.pki().node("n1")));
    let url = format!("https://127.0.0.1:{}", hub.secure_port());
    let kubelet = Client::new(&url, Some(certificate), "kubelet/v1", None);
    cloud.on(LEASE, async |_| {
        yurt_runtime::http::json(StatusCode::OK, r#"{"kind":"Lease"}"#)
    });
    kubelet.put(LEASE, "application/json", "{}").await.expect(200);
    kubelet
        .get("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1")
        .await
        .expect(200);
    kubelet.get(SECRET).await.expect(404);
    // It requests its next certificate here, too.
    kubelet.get(CSRS).await;
    for path in [LEASE, "/api/v1/pods", SECRET, CSRS] {
        let seen = cloud.seen(path);
        assert_eq!(seen[0].user.as_deref(), Some(NODE_USER), "{path}");
    }
}
