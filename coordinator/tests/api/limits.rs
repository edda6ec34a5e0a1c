//! Limits hold to the byte and to the last request, and certificates change under open watches.

use std::time::Duration;

use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use yurt_runtime::http::GZIPS_AT_ONCE;
use yurt_runtime::pki::CertificateAuthority;
use yurt_test_support::eventually;

use crate::harness::{Client, PATIENCE, Server, config_map};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const NODE_LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

/// A ConfigMap whose JSON has exactly this many bytes.
fn of_size(bytes: usize, name: &str) -> Value {
    let mut map = config_map(name, "");
    let rest = bytes - map.to_string().len();
    map["data"]["key"] = json!("x".repeat(rest));
    map
}

/// Conformance: 2.80, 4.10
#[tokio::test]
async fn bodies_are_taken_up_to_the_last_byte_allowed() {
    let server = Server::start(&["--profile", "standalone", "--max-request-body-bytes", "2000"]).await;
    let admin = server.admin();
    for (bytes, code) in [(1999, 201), (2000, 201), (2001, 413)] {
        let answer = admin.post(MAPS, &of_size(bytes, &format!("m{bytes}"))).await;
        assert_eq!(answer.code, code, "{bytes}");
    }
    let refused = admin.post(MAPS, &of_size(2001, "x")).await.expect(413);
    assert_eq!(refused["message"], "Request entity too large: limit is 2000");
    let default = Server::standalone().await;
    let mut lease = json!({ "metadata": { "name": "x" }, "spec": { "holderIdentity": "" } });
    for (bytes, is_refused) in [(3 << 20, false), ((3 << 20) + 1, true)] {
        lease["spec"]["holderIdentity"] = json!("");
        let rest = bytes - lease.to_string().len();
        lease["spec"]["holderIdentity"] = json!("x".repeat(rest));
        let path = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
        let answer = default.admin().post(path, &lease).await;
        let limit = "Request entity too large: limit is 3145728";
        assert_eq!(
            answer.body["message"] == limit,
            is_refused,
            "{:?}",
            answer.body["message"]
        );
    }
}

/// JSON whose member `extra`, which no kind has, is nested so that the whole has this many levels.
fn nested(head: &str, levels: usize) -> Bytes {
    let (open, close) = ("[".repeat(levels - 1), "]".repeat(levels - 1));
    format!("{{{head}\"extra\":{open}{close}}}").into()
}

/// Every format of a body, also where the member would be dropped.
#[tokio::test]
async fn bodies_are_nested_as_deeply_as_gos_parser_takes() {
    const DEEPEST: usize = 10_000;
    let server = Server::standalone().await;
    let admin = server.admin();
    admin.post(MAPS, &config_map("kept", "1")).await.expect(201);
    let kept = format!("{MAPS}/kept");
    let named = |name: &str| format!(r#""apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}"}},"#);
    let send = async |method: &Method, path: &str, media_type: &str, body: Bytes| {
        let headers = [("content-type", media_type)];
        admin.send_bytes(method.clone(), path, body, &headers).await
    };
    let json = "application/json";
    let deepest = nested(&named("deepest"), DEEPEST);
    send(&Method::POST, MAPS, json, deepest).await.expect(201);
    let refused = send(&Method::POST, MAPS, json, nested(&named("deeper"), DEEPEST + 1)).await;
    let refused = refused.expect(400);
    let message = refused["message"].as_str().unwrap();
    assert!(
        message.ends_with("json parse error: invalid character '[' exceeded max depth"),
        "{message}"
    );
    let of_one = r#""op":"test","path":"/data/key","value":"1","#;
    let operations = |levels: usize| [b"[", &*nested(of_one, levels - 1), b"]"].concat().into();
    let apply = format!("{kept}?fieldManager=me");
    let review = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    for levels in [DEEPEST + 1, 200_000] {
        let object = nested(&named("kept"), levels);
        let rows = [
            (Method::POST, MAPS, json, object.clone()),
            (Method::POST, MAPS, "application/yaml", object.clone()),
            (Method::PUT, &kept, json, object.clone()),
            (Method::PATCH, &kept, "application/merge-patch+json", object.clone()),
            (
                Method::PATCH,
                &kept,
                "application/strategic-merge-patch+json",
                object.clone(),
            ),
            (Method::PATCH, &kept, "application/json-patch+json", operations(levels)),
            (Method::PATCH, &apply, "application/apply-patch+yaml", object.clone()),
            (Method::POST, review, json, nested("", levels)),
            (Method::DELETE, &kept, json, nested("", levels)),
        ];
        for (method, path, media_type, body) in rows {
            let code = if path == review && levels > DEEPEST + 1 {
                413
            } else {
                400
            };
            let answer = send(&method, path, media_type, body).await;
            assert_eq!(answer.code, code, "{method} {path} {media_type}: {}", answer.body);
        }
    }
    admin.get(&kept).await.expect(200);
}

/// Conformance: 2.81
#[tokio::test]
async fn objects_are_stored_up_to_the_last_byte_allowed() {
    let server = Server::start(&["--profile", "standalone", "--max-stored-object-bytes", "2000"]).await;
    let admin = server.admin();
    let map = |name: &str, length: usize| json!({"metadata": {"name": name}, "data": {"k": "x".repeat(length)}});
    let stored = |mut object: Value| {
        object["metadata"].as_object_mut().unwrap().remove("resourceVersion");
        object.to_string().len()
    };
    let rest = stored(admin.post(MAPS, &map("m0", 0)).await.expect(201));
    for (name, bytes, code) in [("m1", 1999, 201), ("m2", 2000, 201), ("m3", 2001, 413)] {
        let answer = admin.post(MAPS, &map(name, bytes - rest)).await.expect(code);
        match code {
            201 => assert_eq!(stored(answer), bytes),
            _ => assert_eq!(
                answer["message"],
                "Request entity too large: the object has 2001 bytes as it is stored, limit is 2000"
            ),
        }
    }
    let path = format!("{MAPS}/m2");
    admin.merge(&path, &json!({"data": {"l": "y"}})).await.expect(413);
    admin
        .merge(&format!("{path}?dryRun=All"), &json!({"data": {"l": "y"}}))
        .await
        .expect(200);
    admin.get(&format!("{MAPS}/m3")).await.expect(404);
}

/// Conformance: 2.81
#[tokio::test]
async fn object_that_is_too_large_with_managed_fields_is_stored_without_them() {
    let server = Server::start(&["--profile", "standalone", "--max-stored-object-bytes", "2000"]).await;
    let admin = server.admin();
    let path = format!("{MAPS}/a");
    let apply = format!("{path}?fieldManager=m");
    let map = |length: usize| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "x".repeat(length)}});
    let applied = admin.patch("apply", &apply, &map(1000)).await.expect(201);
    let managed = |map: &Value| map["metadata"]["managedFields"].as_array().map(Vec::len);
    assert_eq!(managed(&applied), Some(1));
    admin.patch("apply", &apply, &map(1700)).await.expect(413);
    let small = admin.merge(&path, &json!({"data": {"l": "y"}})).await.expect(200);
    assert_eq!(managed(&small), Some(2));
    let patched = admin
        .merge(&path, &json!({"data": {"k": "x".repeat(1700)}}))
        .await
        .expect(200);
    assert_eq!(managed(&patched), None);
    let mut body = json!({"metadata": {"name": "b", "managedFields": applied["metadata"]["managedFields"]}});
    let created = admin.post(MAPS, &body).await.expect(201);
    assert_eq!(managed(&created), Some(1));
    body["data"] = json!({"k": "x".repeat(1700)});
    let updated = admin.put(&format!("{MAPS}/b"), &body).await.expect(200);
    assert_eq!(managed(&updated), None);
    body["metadata"]["name"] = "c".into();
    let created = admin.post(MAPS, &body).await.expect(201);
    assert_eq!(managed(&created), None);
    admin
        .merge(&path, &json!({"data": {"k": "x".repeat(2000)}}))
        .await
        .expect(413);
}

#[tokio::test]
async fn header_blocks_are_bounded() {
    let server = Server::start(&["--profile", "standalone", "--max-header-bytes", "8192"]).await;
    // Some 300 bytes go to the other fields.
    for (bytes, is_taken) in [(7600, true), (8192, false)] {
        let answer = server
            .admin()
            .try_get_with("/version", "x-filler", &"x".repeat(bytes))
            .await;
        assert_eq!(answer == Some(200), is_taken, "{bytes}: {answer:?}");
    }
}

#[tokio::test]
async fn streams_of_a_connection_are_bounded() {
    let server = Server::start(&["--profile", "standalone", "--http2-max-streams-per-connection", "3"]).await;
    let admin = server.admin();
    let mut watches = Vec::new();
    for _ in 0..2 {
        watches.push(admin.watch(MAPS).await);
    }
    admin.get("/version").await.expect(200);
    watches.push(admin.watch(MAPS).await);
    let fourth = async { admin.get("/version").await.code };
    let mut fourth = Box::pin(fourth);
    let early = tokio::time::timeout(Duration::from_millis(300), &mut fourth).await;
    assert!(early.is_err(), "there is no room for a fourth");
    drop(watches.pop());
    assert_eq!(fourth.await, 200);
}

#[tokio::test]
async fn connections_are_bounded() {
    let server = Server::start(&["--profile", "standalone", "--max-connections", "3"]).await;
    let mut clients: Vec<_> = (0..4).map(|_| server.admin()).collect();
    for client in &clients[..3] {
        assert_eq!(client.try_get("/version").await, Some(200));
    }
    assert_eq!(clients[3].try_get("/version").await, Some(429));
    drop(clients.remove(0));
    let late = async {
        while clients[2].try_get("/version").await != Some(200) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, late).await.unwrap();
}

/// A coordinator of the members `n1` and `n2`. Its list of leases is larger than the windows of a client, also if it is
/// compressed.
async fn pool_with_a_long_lease() -> Server {
    let server = Server::start(&["--nodepool", "hangzhou", "--initial-members", "n1,n2"]).await;
    let random: String = std::iter::repeat_with(fastrand::alphanumeric).take(600 << 10).collect();
    let lease = json!({"metadata": {"name": "n9"}, "spec": {"holderIdentity": random}});
    server.admin().post(NODE_LEASES, &lease).await.expect(201);
    server
}

#[tokio::test]
async fn answers_that_a_member_does_not_read_are_bounded() {
    let server = pool_with_a_long_lease().await;
    let (leases, greedy, other) = (NODE_LEASES, server.node("n1"), server.node("n2"));
    let mut unread = Vec::new();
    let refused = loop {
        let answer = greedy.unread(leases, "identity").await;
        if answer.status() != 200 {
            break answer;
        }
        unread.push(answer);
        assert!(unread.len() < 300, "no limit");
    };
    assert_eq!((refused.status().as_u16(), unread.len()), (429, 128));
    assert_eq!(refused.headers()["retry-after"], "1");
    other.get(leases).await.expect(200);
    assert_eq!(
        greedy.unread(&format!("{leases}?watch=1"), "identity").await.status(),
        200
    );
    unread.pop();
    let is_answered = async || (greedy.unread(leases, "identity").await.status() == 200).then_some(());
    eventually("an answer that was given up leaves its place", is_answered).await;
}

#[tokio::test]
async fn member_that_reads_no_compressed_answer_leaves_compression_to_the_others() {
    let server = pool_with_a_long_lease().await;
    let (greedy, other) = (server.node("n1"), server.node("n2"));
    let mut unread = Vec::new();
    let mut is_compressed = async |client: &Client| {
        let answer = client.unread(NODE_LEASES, "gzip").await;
        assert_eq!(answer.status(), 200);
        let encoding = answer.headers().get("content-encoding").cloned();
        unread.push(answer);
        encoding.is_some_and(|encoding| encoding == "gzip")
    };
    let mut compressed = 0;
    for _ in 0..40 {
        compressed += usize::from(is_compressed(&greedy).await);
    }
    assert_eq!(compressed, GZIPS_AT_ONCE / 2);
    assert!(is_compressed(&other).await);
}

/// A review whose body does not arrive: it keeps its place until it is dropped.
async fn stalled(client: Client) -> JoinSet<()> {
    let mut asked = JoinSet::new();
    asked.spawn(async move { client.stall("/apis/authentication.k8s.io/v1/selfsubjectreviews").await });
    asked
}

/// Conformance: 6.31, 6.33
#[tokio::test]
async fn writes_wait_for_their_turn_and_are_refused_beyond() {
    let flags = "--profile standalone --max-mutating-requests-inflight 2 --max-queued-requests 1 --max-queue-wait 60s";
    let server = Server::start(&flags.split(' ').collect::<Vec<_>>()).await;
    let (jane, john, admin) = (server.user("jane", &[]), server.user("john", &[]), server.admin());
    let review = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let load = async |wanted: [usize; 2]| {
        let loaded = async || {
            let text = admin.get("/metrics").await.expect(200);
            let line = |name: &str, kind: &str| format!("{name}{{request_kind=\"{kind}\"}} ");
            let text = text.as_str().unwrap();
            let in_flight = line("apiserver_current_inflight_requests", "mutating") + &wanted[0].to_string() + "\n";
            let queued = line("apiserver_current_inqueue_requests", "mutating") + &wanted[1].to_string() + "\n";
            (text.contains(&in_flight) && text.contains(&queued)).then_some(())
        };
        eventually("the load is as wanted", loaded).await;
    };
    // n - 1: there is room.
    let first = stalled(jane.clone()).await;
    load([1, 0]).await;
    jane.post(review, &json!({})).await.expect(201);
    // n: one waits.
    let second = stalled(jane.clone()).await;
    load([2, 0]).await;
    let third = stalled(jane.clone()).await;
    load([2, 1]).await;
    // n + 1: refused for any user.
    for client in [&jane, &john] {
        let refused = client.post(review, &json!({})).await;
        assert_eq!(refused.header("retry-after"), Some("1"));
        assert_eq!(refused.expect(429)["reason"], "TooManyRequests");
    }
    admin.post(review, &json!({})).await.expect(201);
    // Heartbeats and reads have room of their own.
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let lease = json!({"metadata": {"name": "n1"}, "spec": {"holderIdentity": "n1"}});
    server.node("n1").post(leases, &lease).await.expect(201);
    john.get(MAPS).await.expect(403);
    let metrics = admin.get("/metrics").await.expect(200);
    let refused =
        "apiserver_flowcontrol_rejected_requests_total{priority_level=\"mutating\",reason=\"queue-full\"} 2\n";
    assert!(metrics.as_str().unwrap().contains(refused));
    // A client that disconnects leaves the queue, and frees its place.
    drop(third);
    load([2, 0]).await;
    drop(first);
    load([1, 0]).await;
    john.post(review, &json!({})).await.expect(201);
    drop(second);
    load([0, 0]).await;
}

/// Conformance: 6.08
#[tokio::test]
async fn authorities_change_under_open_watches() {
    let [old, new] = ["old", "new"].map(|name| CertificateAuthority::generate(name).unwrap());
    let server = Server::with_cluster_ca(&old).await;
    let before = server.user_of(&old, "root", &["system:masters"]);
    let mut watch = before.watch("/api/v1/namespaces/default/configmaps").await;
    let newcomer = || server.user_of(&new, "root", &["system:masters"]);
    assert_eq!(newcomer().try_get("/api/v1/namespaces").await, Some(401));
    let both = format!("{}{}", old.cert_pem(), new.cert_pem());
    server.write("clients", &both);
    // Files are read every 10 s.
    let taken_over = async {
        while newcomer().try_get("/api/v1/namespaces").await != Some(200) {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::time::timeout(PATIENCE, taken_over).await.unwrap();
    let other = server.user_of(&old, "root", &["system:masters"]);
    other.post(MAPS, &config_map("a", "1")).await.expect(201);
    assert_eq!(
        watch.told().await,
        "ADDED a",
        "the watch lives, and both authorities are trusted"
    );
    let pair = new.issue_server("yurt-coordinator", &["127.0.0.1"]).unwrap();
    server.write("crt", &pair.cert_pem);
    server.write("key", &pair.key_pem);
    // From here on the test's clients trust the new authority alone.
    server.write("ca", new.cert_pem());
    let reached = async || (newcomer().try_get("/api/v1/namespaces").await == Some(200)).then_some(());
    eventually("the server shows its new certificate", reached).await;
    server.write("clients", new.cert_pem());
    assert!(watch.next().await.is_none(), "what the old one alone vouched for ends");
    let (code, held) = (
        other.try_get("/api/v1/namespaces").await,
        newcomer().try_get("/version").await,
    );
    // It does not trust the server's new certificate.
    assert!(
        matches!(code, None | Some(401)) && held == Some(200),
        "{code:?}, {held:?}"
    );
}

/// Conformance: 2.97
#[tokio::test]
async fn strangers_lose_their_connection_with_the_answer() {
    let server = Server::standalone().await;
    let (nobody, admin) = (server.anonymous(), server.admin());
    for _ in 0..3 {
        nobody.get("/version").await.expect(200);
        nobody
            .get_with("/api", &[("authorization", "Bearer x")])
            .await
            .expect(401);
        admin.get("/version").await.expect(200);
    }
    assert!(
        nobody.connections() >= 3,
        "one for each round: {}",
        nobody.connections()
    );
    assert_eq!(admin.connections(), 1, "who is known keeps its connection");
    let metrics = admin.get("/metrics").await.expect(200);
    let text = metrics.as_str().unwrap();
    assert!(
        text.contains("apiserver_current_inflight_requests{request_kind=\"readOnly\"} 0"),
        "{text}"
    );
}

/// Conformance: 2.11
#[tokio::test]
async fn paths_that_climb_or_hide_slashes_reach_nothing() {
    let server = Server::standalone().await;
    let jane = server.user("jane", &[]);
    for path in [
        "/api/v1/namespaces/default/../../../healthz/x",
        "/api/v1/namespaces/..%2f..%2fsecrets",
        "/api/v1/namespaces/%2e%2e/secrets",
        "/api/v1/namespaces/default/secrets/..",
        "/version/../api/v1/secrets",
        "//api/v1/secrets",
    ] {
        let answer = jane.get(path).await;
        assert!(matches!(answer.code, 400 | 403 | 404), "{path}: {}", answer.code);
    }
}

/// A request with several faults gets the first in kube-apiserver's order: path, deadline, identity, impersonation,
/// limits, rights, and only then the body.
///
/// Conformance: 6.34
#[tokio::test]
async fn of_several_faults_the_first_in_order_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("audit.log");
    let mut flags: Vec<&str> =
        "--profile standalone --max-mutating-requests-inflight 1 --max-queued-requests 0 --audit-log-path"
            .split(' ')
            .collect();
    flags.push(log.to_str().unwrap());
    let mut server = Server::start(&flags).await;
    let jane = server.user("jane", &[]);
    let holder = stalled(server.user("holder", &[])).await;
    let full = async || {
        let metrics = server.admin().get("/metrics").await;
        let line = "apiserver_current_inflight_requests{request_kind=\"mutating\"} 1\n";
        metrics.body.as_str().unwrap().contains(line).then_some(())
    };
    eventually("the lane is full", full).await;
    let token = ("authorization", "Bearer nobody's");
    let boss = ("impersonate-user", "boss");
    // A certificate counts before a token.
    let nobody = server.anonymous();
    let answer = async |path: &str, headers: &[(&str, &str)]| {
        let client = if headers.contains(&token) { &nobody } else { &jane };
        let headers = [&[("audit-id", "mine")], headers].concat();
        let answer = client.post_with(path, &json!("no object"), &headers).await;
        assert_eq!(
            answer.header("audit-id"),
            Some("mine"),
            "{path}: known from the first step on"
        );
        answer.code
    };
    let late = format!("{MAPS}?timeout=soon");
    // Deadline before identity, identity before impersonation, impersonation before the lane, the lane before rights.
    for (path, headers, code) in [
        (&*late, &[token, boss][..], 400),
        (MAPS, &[token, boss], 401),
        (MAPS, &[boss], 403),
        (MAPS, &[], 429),
    ] {
        assert_eq!(answer(path, headers).await, code, "{path} {headers:?}");
    }
    drop(holder);
    let free = async || (answer(MAPS, &[]).await != 429).then_some(());
    eventually("the lane is free", free).await;
    // Rights before the body, which is checked last.
    assert_eq!(answer(MAPS, &[]).await, 403);
    assert_eq!(server.admin().post(MAPS, &json!("no object")).await.code, 400);
    server.stop();
    // Identity before audit, audit before impersonation: a caller that impersonation refuses is in the log, under its
    // own name.
    let log = std::fs::read_to_string(&log).unwrap();
    let refused = |line: &&str| line.contains("\"code\":403") && line.contains("\"username\":\"jane\"");
    assert!(log.lines().filter(refused).count() >= 2, "{log}");
    assert!(!log.contains("impersonatedUser"), "{log}");
}
