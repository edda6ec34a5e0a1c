//! Answers of the cloud that the hub keeps for the time without it: discovery, and objects read by name.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode};
use yurt_apimachinery::Status;
use yurt_runtime::http::{Body, json, respond, status_response};
use yurt_test_support::eventually;

use super::cloud::Cloud;
use super::harness::TestHub;

const NODE: &str = "/api/v1/nodes/n1";
const SECRET: &str = "/api/v1/namespaces/shop/secrets/db";
const MAPS: &str = "/api/v1/namespaces/shop/configmaps";
const APIS: &str = "/apis";
const GROUPS: &str = r#"{"kind":"APIGroupList","apiVersion":"v1","groups":[]}"#;
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// Bytes that no parser accepts.
const OPAQUE: &[u8] = b"k8s\0\n\x1f\n\x16\x00\xff\xfe";

fn answer(content_type: &str, body: impl Into<Bytes>) -> Response<Body> {
    respond(
        StatusCode::OK,
        content_type.parse().unwrap(),
        yurt_runtime::http::full(body),
    )
}

/// Waits until the hub holds so many answers.
async fn until_kept(hub: &TestHub, count: u64) {
    hub.until("the answers must be kept", |state| {
        state["offline"]["answers"]["records"] == count
    })
    .await;
}

#[tokio::test]
async fn discovery_and_objects_outlive_the_cloud_and_a_restart() {
    let mut cloud = Cloud::start().await;
    cloud.on(APIS, |request| async move {
        let accept = request.headers().get("accept").cloned();
        match accept.filter(|accept| accept == AGGREGATED) {
            Some(_) => answer(AGGREGATED, "{\"kind\":\"APIGroupDiscoveryList\"}"),
            None => json(StatusCode::OK, GROUPS),
        }
    });
    cloud.on(NODE, |_| async { answer(PROTOBUF, OPAQUE) });
    let mut hub = TestHub::start(&cloud, &[]).await;
    let kubelet = hub.kubelet();
    kubelet.get(APIS).await.expect(200);
    kubelet.get_with(APIS, &[("accept", AGGREGATED)]).await.expect(200);
    let both = [("accept", "application/vnd.kubernetes.protobuf,application/json")];
    let online = kubelet.get_with(&format!("{NODE}?resourceVersion=0"), &both).await;
    assert_eq!(online.header("yurt-stale"), None);
    until_kept(&hub, 3).await;
    cloud.go_away().await;
    hub.crash().await;
    let kubelet = hub.kubelet();
    let plain = kubelet.get(APIS).await;
    assert_eq!((plain.code, &plain.body[..]), (200, GROUPS.as_bytes()));
    let aggregated = kubelet.get_with(APIS, &[("accept", AGGREGATED)]).await;
    assert_eq!(aggregated.header("content-type"), Some(AGGREGATED));
    let node = kubelet.get_with(NODE, &both).await;
    assert_eq!((node.code, &node.body[..]), (200, OPAQUE));
    assert_eq!(
        (node.header("content-type"), node.header("yurt-stale")),
        (Some(PROTOBUF), Some("true"))
    );
    let json_only = kubelet.get_with(NODE, &[("accept", "application/json")]).await;
    assert_eq!(json_only.code, 503, "no answer of another type than the client accepts");
    cloud.come_back().await;
    let back = eventually("the cloud answers again", async || {
        Some(hub.kubelet().get_with(NODE, &both).await).filter(|answer| answer.header("yurt-stale").is_none())
    });
    back.await.expect(200);
}

/// kubectl reads the index first, and then the documents that it names. The hub serves it over HTTP/1.1.
#[tokio::test]
async fn schemas_of_the_cloud_are_read_without_it() {
    let mut cloud = Cloud::start().await;
    let (index, apps) = ("/openapi/v3", "/openapi/v3/apis/apps/v1");
    let text = "text/plain; charset=utf-8";
    let listed = r#"{"paths":{"apis/apps/v1":{"serverRelativeURL":"/openapi/v3/apis/apps/v1?hash=0A1B"}}}"#;
    cloud.on(index, move |_| async move { answer(text, listed) });
    cloud.on(apps, |_| async {
        let piece = Ok::<_, std::convert::Infallible>(Bytes::from(GROUPS));
        // HTTP/2 ends it by a frame of its own.
        let body = yurt_runtime::http::stream(futures_util::stream::iter([piece]));
        let mut response = respond(StatusCode::OK, HeaderValue::from_static("application/json"), body);
        response.headers_mut().insert("content-length", GROUPS.len().into());
        response
    });
    let hub = TestHub::start(&cloud, &[]).await;
    let hashed = format!("{apps}?hash=0A1B&timeout=32s");
    let kubectl = hub.bearer("kubectl/v1", "theirs");
    let read = async |path: &str| {
        let accept = [("accept", "application/json, */*"), ("accept-encoding", "gzip")];
        kubectl.get_with(path, &accept).await
    };
    for path in [index, &hashed] {
        read(path).await.expect(200);
    }
    until_kept(&hub, 2).await;
    cloud.go_away().await;
    let kept = read(index).await;
    assert_eq!((kept.header("content-type"), kept.code), (Some(text), 200));
    assert_eq!(kept.body, listed);
    assert_eq!(read(&hashed).await.expect(200), GROUPS);
}

#[tokio::test]
async fn kept_objects_are_returned_to_callers_with_the_right_to_read_them_only() {
    let mut cloud = Cloud::start().await;
    cloud.on(SECRET, |request| async move {
        let is_theirs = request.headers().get("authorization") == Some(&HeaderValue::from_static("Bearer theirs"));
        if is_theirs || request.headers().get("authorization").is_none() {
            return json(StatusCode::OK, "{\"kind\":\"Secret\"}");
        }
        status_response(&Status::failure(403, "Forbidden", "no"))
    });
    cloud.on(APIS, |_| async { json(StatusCode::OK, GROUPS) });
    let hub = TestHub::start(&cloud, &[]).await;
    let theirs = hub.bearer("kubelet/v1", "theirs");
    theirs.get(SECRET).await.expect(200);
    theirs.get(APIS).await.expect(200);
    hub.component("curl/8").get(APIS).await.expect(401);
    until_kept(&hub, 2).await;
    cloud.go_away().await;
    theirs.get(SECRET).await.expect(200);
    theirs.get(APIS).await.expect(200);
    let made_up = hub.bearer("kubelet/v1", "made-up");
    let refused = made_up.get(SECRET).await;
    assert!([403, 429, 503].contains(&refused.code), "{}", refused.code);
    made_up.get(APIS).await.expect(503);
    hub.bearer("kubectl/v1", "theirs").get(SECRET).await.expect(503);
}

#[tokio::test]
async fn refusal_of_a_pod_that_calls_itself_kubelet_deletes_nothing_of_the_kubelet() {
    let mut cloud = Cloud::start().await;
    cloud.on(SECRET, |_| async { json(StatusCode::OK, "{\"kind\":\"Secret\"}") });
    cloud.on(APIS, |_| async { json(StatusCode::OK, GROUPS) });
    cloud.allow("denied", false);
    let hub = TestHub::start(&cloud, &[]).await;
    for path in [SECRET, APIS] {
        hub.kubelet().get(path).await.expect(200);
    }
    until_kept(&hub, 2).await;
    let pod = hub.bearer("kubelet/v1.36.0 (linux/amd64) kubernetes/0000000", "denied");
    for path in [SECRET, APIS] {
        pod.get(path).await.expect(403);
    }
    // Written behind the deletions, if there were any.
    hub.kubelet().get("/version").await;
    cloud.go_away().await;
    for path in [SECRET, APIS] {
        hub.kubelet().get(path).await.expect(200);
        pod.get(path).await.expect(503);
    }
}

/// The answers of one component are kept together, and each caller has rights of its own.
#[tokio::test]
async fn refusal_of_one_token_takes_the_kept_answer_from_no_other() {
    let mut cloud = Cloud::start().await;
    let refused = ["Bearer denied", "Bearer revoked"].map(HeaderValue::from_static);
    let refusing = Arc::new(AtomicUsize::new(1));
    let count = refusing.clone();
    cloud.on(SECRET, move |request| {
        let refused = refused[..count.load(Ordering::SeqCst)].to_vec();
        async move {
            match request
                .headers()
                .get("authorization")
                .filter(|token| refused.contains(token))
            {
                None => json(StatusCode::OK, "{\"kind\":\"Secret\"}"),
                Some(_) => status_response(&Status::failure(403, "Forbidden", "no")),
            }
        }
    });
    let hub = TestHub::start(&cloud, &[]).await;
    let [theirs, denied, revoked] = ["theirs", "denied", "revoked"].map(|token| hub.bearer("kubelet/v1", token));
    theirs.get(SECRET).await.expect(200);
    until_kept(&hub, 1).await;
    denied.get(SECRET).await.expect(403);
    revoked.get(SECRET).await.expect(200);
    refusing.store(2, Ordering::SeqCst);
    revoked.get(SECRET).await.expect(403);
    cloud.go_away().await;
    let kept = theirs.get(SECRET).await;
    assert_eq!((kept.code, kept.header("yurt-stale")), (200, Some("true")));
    denied.get(SECRET).await.expect(429);
    revoked.get(SECRET).await.expect(403);
}

#[tokio::test]
async fn header_edge_cache_keeps_the_reads_of_any_component_and_stays_at_the_hub() {
    let mut cloud = Cloud::start().await;
    cloud.on(SECRET, |_| async { json(StatusCode::OK, "{\"kind\":\"Secret\"}") });
    cloud.put(
        "configmaps",
        serde_json::json!({"metadata": {"namespace": "shop", "name": "settings"}}),
    );
    cloud.allow("theirs", true);
    let hub = TestHub::start(&cloud, &[]).await;
    let agent = hub.bearer("agent/1", "theirs");
    let asks = [("edge-cache", "True")];
    agent.get_with(SECRET, &asks).await.expect(200);
    agent.get_with(MAPS, &asks).await.expect(200);
    until_kept(&hub, 1).await;
    hub.until("the selection must be complete", |state| {
        state["cache"]["selections"][format!("{MAPS}#tokens")]["complete"] == true
    })
    .await;
    let is_passed_on = |path: &str| {
        cloud
            .seen(path)
            .iter()
            .any(|seen| seen.headers.contains_key("edge-cache"))
    };
    assert!(!is_passed_on(SECRET) && !is_passed_on(MAPS));
    cloud.go_away().await;
    assert_eq!(agent.get_with(SECRET, &asks).await.header("yurt-stale"), Some("true"));
    assert_eq!(agent.get_with(MAPS, &asks).await.names(), ["settings"]);
    agent.get(SECRET).await.expect(503);
}

#[tokio::test]
async fn object_that_the_cloud_deleted_is_not_returned_later() {
    let mut cloud = Cloud::start().await;
    cloud.on(SECRET, |_| async { json(StatusCode::OK, "{}") });
    let hub = TestHub::start(&cloud, &[]).await;
    hub.kubelet().get(SECRET).await.expect(200);
    until_kept(&hub, 1).await;
    cloud.off(SECRET);
    hub.kubelet().get(SECRET).await.expect(404);
    until_kept(&hub, 0).await;
    cloud.go_away().await;
    hub.kubelet().get(SECRET).await.expect(503);
}

/// A kube-apiserver answers no get from a state before the resourceVersion that it names.
#[tokio::test]
async fn kept_object_is_at_least_as_new_as_the_resource_version_that_a_get_names() {
    let mut cloud = Cloud::start().await;
    let secret = r#"{"kind":"Secret","metadata":{"resourceVersion":"7"}}"#;
    cloud.on(SECRET, move |_| async move { json(StatusCode::OK, secret) });
    cloud.on(NODE, |_| async { answer(PROTOBUF, OPAQUE) });
    cloud.on(APIS, |_| async { json(StatusCode::OK, GROUPS) });
    let hub = TestHub::start(&cloud, &[]).await;
    let kubelet = hub.kubelet();
    let accept = [("accept", "application/vnd.kubernetes.protobuf,application/json")];
    for path in [SECRET, NODE, APIS] {
        kubelet.get_with(path, &accept).await.expect(200);
    }
    until_kept(&hub, 3).await;
    cloud.go_away().await;
    for (path, query, code) in [
        (SECRET, "", 200),
        (SECRET, "?resourceVersion=", 200),
        (SECRET, "?resourceVersion=0", 200),
        (SECRET, "?resourceVersion=7", 200),
        (SECRET, "?resourceVersion=8", 503),
        (SECRET, "?resourceVersion=abc", 400),
        // Its resourceVersion is unknown.
        (NODE, "?resourceVersion=0", 200),
        (NODE, "?resourceVersion=1", 503),
        (APIS, "?resourceVersion=1", 200),
    ] {
        let answer = kubelet.get_with(&format!("{path}{query}"), &accept).await;
        assert_eq!(answer.code, code, "{path}{query}");
    }
}

#[tokio::test]
async fn names_that_look_like_paths_stay_below_the_folder() {
    let mut cloud = Cloud::start().await;
    let dotted = "/api/v1/namespaces/shop/configmaps/..%5c..%5cetc";
    cloud.on(dotted, |_| async { json(StatusCode::OK, "{}") });
    let hub = TestHub::start(&cloud, &[]).await;
    hub.component("kubelet/../../x").get(dotted).await.expect(200);
    until_kept(&hub, 1).await;
    let kept = std::fs::read_dir(hub.folder().path().join("cache/answers")).unwrap();
    let names: Vec<String> = kept
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(
        names.len() == 1 && names[0].bytes().all(|b| b.is_ascii_hexdigit()),
        "{names:?}"
    );
    cloud.go_away().await;
    for path in ["/api/v1/namespaces/shop/configmaps/..%2fetc", "/apis/../version"] {
        hub.kubelet().get(path).await.expect(400);
    }
    hub.kubelet().get(dotted).await.expect(200);
}
