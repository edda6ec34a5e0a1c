//! Requests crafted so that a server behind the hub reads them differently.

use http::{Response, StatusCode};
use http_body_util::BodyExt as _;
use yurt_runtime::http::empty;

use super::cloud::Cloud;
use super::harness::TestHub;
use super::raw_http2::{End, Raw};

/// Leases are never cached: their lists and watches go to the cloud.
const LEASES: &str = "/apis/coordination.k8s.io/v1/leases";
/// Reaches the cloud only if the hub did not parse it as a request: it names no component.
const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

fn as_kubelet(line: &str, headers: &str, body: &str) -> String {
    format!("{line} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: kubelet/v1\r\n{headers}\r\n{body}")
}

#[tokio::test]
async fn redirect_of_the_cloud_is_handed_on_and_not_followed() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    let location = format!("{}/elsewhere", cloud.url());
    let there = location.clone();
    cloud.on(LEASES, move |_| {
        let answer = Response::builder().status(StatusCode::FOUND).header("location", &there);
        let answer = answer.body(empty()).unwrap();
        async move { answer }
    });
    for client in [hub.kubelet(), hub.bearer("pod/v1", "t")] {
        let answer = client.get(LEASES).await;
        assert_eq!((answer.code, answer.header("location")), (302, Some(location.as_str())));
    }
    assert!(cloud.seen("/elsewhere").is_empty());
}

#[tokio::test]
async fn request_has_one_length_behind_the_hub() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    let post = format!("POST {LEASES}");
    let rest = format!("0\r\n\r\n{SMUGGLED}");
    let length = SMUGGLED.len() + 5;
    for (headers, body) in [
        (
            format!("Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n"),
            rest.clone(),
        ),
        (
            format!("Transfer-Encoding: chunked\r\nContent-Length: {length}\r\n"),
            rest.clone(),
        ),
        (
            "Content-Length: 0\r\nTransfer-Encoding : chunked\r\n".to_owned(),
            rest.clone(),
        ),
        (
            "Content-Length: 0\r\nTransfer-Encoding: xchunked\r\n".to_owned(),
            rest.clone(),
        ),
        (
            format!("Content-Length: 0\r\nContent-Length: {length}\r\n"),
            rest.clone(),
        ),
        (
            format!("Connection: content-length, close\r\nContent-Length: {length}\r\n"),
            rest.clone(),
        ),
        ("Content-Length: +4\r\n".to_owned(), rest.clone()),
        (
            "X: a\r\n Transfer-Encoding: chunked\r\nContent-Length: 0\r\n".to_owned(),
            rest,
        ),
        ("Content-Length: 0\r\n".to_owned(), SMUGGLED.to_owned()),
    ] {
        hub.said(&as_kubelet(&post, &headers, &body)).await;
        assert!(cloud.seen("/smuggled").is_empty(), "{headers}");
    }
}

#[tokio::test]
async fn front_proxy_headers_are_taken_out_however_they_are_written() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    let forged = [
        "X-REMOTE-USER: admin",
        "x-ReMoTe-Group: system:masters",
        "X-Remote-Group: a\r\nX-Remote-Group: b",
        "X-Remote-Extra-Example.Org%2fScopes: all",
        "Connection: close, x-remote-user\r\nX-Remote-User: admin",
        "X-Remote-Uid: 0",
    ];
    for headers in forged {
        hub.said(&as_kubelet(
            &format!("GET {LEASES}"),
            &format!("{headers}\r\nConnection: close\r\n"),
            "",
        ))
        .await;
    }
    let seen = cloud.seen(LEASES);
    assert_eq!(seen.len(), forged.len());
    let is_forged = |name: &&http::HeaderName| name.as_str().to_lowercase().contains("remote");
    assert!(seen.iter().all(|seen| seen.headers.keys().find(is_forged).is_none()));
}

const MAPS: &str = "/api/v1/namespaces/shop/configmaps";
const STATUS: &str = "/api/v1/nodes/n1/status";

/// Spellings of the headers that select another user.
const SELECTING: [(&str, &str); 11] = [
    ("Impersonate-User", "admin"),
    ("impersonate-group", "system:masters"),
    ("IMPERSONATE-UID", "0"),
    ("Impersonate-Extra-Scopes%2fall", "all"),
    ("Impersonate_User", "admin"),
    ("impersonate_extra-a", "all"),
    ("X-Remote-User", "admin"),
    ("x-REMOTE-Group", "system:masters"),
    ("X_Remote_User", "admin"),
    ("X-Remote_Group", "system:masters"),
    ("X-Remote-Extra-Scopes%2fall", "all"),
];

/// True for a header, or a trailer, that selects another user.
fn selects(name: &http::HeaderName) -> bool {
    let name = name.as_str().replace('_', "-");
    name.starts_with("impersonate-") || name.starts_with("x-remote-")
}

#[tokio::test]
async fn node_speaks_for_nobody_else_however_that_is_written() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    let requests = [
        ("GET", LEASES),
        ("GET", "/api/v1/services"),
        ("POST", MAPS),
        ("PATCH", STATUS),
        (
            "GET",
            "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1",
        ),
    ];
    let before = cloud.all_seen().len();
    for (name, value) in SELECTING {
        let other = if value == "all" { "some" } else { "all" };
        for headers in [
            format!("{name}: {value}\r\n"),
            format!("{name}: {value}\r\n{name}: {other}\r\n"),
            format!("{name}: {value}\r\nConnection: {name}\r\n"),
            format!("Connection: keep-alive, {name}\r\n{name}: {value}\r\n"),
        ] {
            let (method, path) = requests[headers.len() % requests.len()];
            let head = format!("{headers}Connection: close\r\nContent-Length: 2\r\n");
            hub.said(&as_kubelet(&format!("{method} {path}"), &head, "{}")).await;
        }
        let lower = name.to_lowercase();
        for (method, path) in requests {
            let request = Raw::of_kubelet(method, path, &[(&lower, value), (&lower, other)]);
            let end = request.send(&hub).await;
            assert!(
                name.starts_with('X') || name.starts_with('x') || end != End::Answer(200),
                "{name} {path}"
            );
        }
    }
    let seen = cloud.all_seen().split_off(before);
    assert!(
        seen.iter().any(|seen| seen.path == LEASES && seen.user.is_some()),
        "the others pass"
    );
    let forged = seen.iter().find(|seen| seen.headers.keys().any(selects));
    assert!(forged.is_none(), "{forged:?}");
}

/// A Connection header that names them would take the caller's own rights for those of the impersonated user.
#[tokio::test]
async fn connection_takes_no_credential_and_no_impersonation_out() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    for named in [
        "Authorization",
        "impersonate-user",
        "close, IMPERSONATE-USER",
        "Impersonate-Group",
    ] {
        let headers = format!(
            "Authorization: Bearer t\r\nImpersonate-User: jane\r\nImpersonate-Group: dev\r\nConnection: {named}\r\nConnection: close\r\n"
        );
        let answer = hub.said(&as_kubelet(&format!("GET {LEASES}"), &headers, "")).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{named}: {answer}");
    }
    assert!(cloud.seen(LEASES).is_empty());
}

#[tokio::test]
async fn trailers_do_not_reach_the_cloud() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    let (received, mut trailers) = tokio::sync::mpsc::channel(100);
    cloud.on(MAPS, move |request| {
        let received = received.clone();
        async move {
            let body = request.into_body().collect().await;
            let trailers = body.ok().and_then(|body| body.trailers().cloned()).unwrap_or_default();
            received.send(trailers).await.unwrap();
            Response::new(empty())
        }
    });
    for (name, value) in SELECTING {
        let headers = format!("Transfer-Encoding: chunked\r\nTrailer: {name}\r\nConnection: close\r\n");
        let body = format!("2\r\n{{}}\r\n0\r\n{name}: {value}\r\n\r\n");
        hub.said(&as_kubelet(&format!("POST {MAPS}"), &headers, &body)).await;
        let lower = name.to_lowercase();
        let request = Raw {
            body: "{}",
            trailers: vec![(&lower, value)],
            ..Raw::of_kubelet("POST", MAPS, &[("trailer", &lower)])
        };
        assert_eq!(request.send(&hub).await, End::Answer(200));
    }
    for turn in 0..2 * SELECTING.len() {
        let trailers = trailers.recv().await.unwrap();
        assert!(trailers.is_empty(), "{turn}: {trailers:?}");
    }
}

#[tokio::test]
async fn path_that_climbs_reaches_nothing() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    for path in [
        "/api/v1/namespaces/../../../etc/passwd",
        "/api/v1/namespaces/%2e%2e/secrets/db",
        "/api/v1/namespaces/shop/secrets/..%2f..%2fdb",
        "/api/v1/namespaces/shop/secrets/.",
        "/api/v1/namespaces/shop/secrets/%2e",
        "/api/v1/namespaces/a%2f..%2fkube-system/secrets",
        "/api/v1/namespaces/a/../kube-system/secrets/db",
        "/api/v1/namespaces/a%2Fsecrets",
        "/api/./v1/secrets",
        "/healthz/../api/v1/secrets",
    ] {
        let request = as_kubelet(&format!("GET {path}"), "Connection: close\r\n", "");
        let answer = hub.said(&request).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{path}: {answer}");
        assert_eq!(
            Raw::of_kubelet("GET", path, &[]).send(&hub).await,
            End::Answer(400),
            "{path}"
        );
        assert!(cloud.seen(path).is_empty());
    }
    // The component must not become part of a path.
    let agent =
        "GET /api/v1/pods HTTP/1.1\r\nHost: localhost\r\nUser-Agent: ../../kubelet\r\nConnection: close\r\n\r\n";
    assert!(hub.said(agent).await.starts_with("HTTP/1.1 401 "));
}
