//! Pool data from the node's own replica: complete or refused, with the cloud's versions and bytes, also during an
//! outage.

use http::{Method, StatusCode};
use serde_json::json;
use yurt_apimachinery::ResourceVersion;
use yurt_apimachinery::options::ContinueToken;
use yurt_runtime::http::{empty, gzip_bytes, json as answer_json};
use yurt_test_support::eventually;

use super::client::request;
use super::cloud::{Cloud, SeenRequest};
use super::harness::TestHub;

const SERVICES: &str = "/api/v1/services";
const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";

fn service(name: &str, port: u16) -> serde_json::Value {
    json!({"metadata": {"namespace": "shop", "name": name}, "spec": {"ports": [{"port": port}]}, "later": {"field": 1.0}})
}

/// Pages of the replicas' lists (their first one is larger); the proof of the history requests one object.
fn lists(cloud: &Cloud) -> usize {
    let is_page = |query: &str| query.starts_with("limit=") && query != "limit=1";
    let seen = cloud.seen(SERVICES);
    let queries = seen.iter().filter_map(|seen| seen.query.as_deref());
    queries.filter(|query| is_page(query)).count()
}

/// Conformance: 5.22a, 7.45, 7.46
#[tokio::test]
async fn list_has_the_clouds_items_and_resource_version() {
    let cloud = Cloud::start().await;
    let web = cloud.put("services", service("web", 80));
    let db = cloud.put("services", service("db", 5432));
    let hub = TestHub::start(&cloud, &[]).await;
    for client in [hub.kube_proxy(), hub.component("coredns/1.12")] {
        let listed = client.get(SERVICES).await;
        assert_eq!(listed.names(), ["db", "web"]);
        let list = listed.json();
        assert_eq!(
            (&list["kind"], &list["apiVersion"]),
            (&json!("ServiceList"), &json!("v1"))
        );
        assert_eq!(list["metadata"]["resourceVersion"], cloud.version());
        assert_eq!(list["items"], json!([db, web]), "not a field more or less");
        assert_eq!(listed.header("yurt-stale"), None);
    }
    let one = hub
        .kube_proxy()
        .get("/api/v1/namespaces/shop/services?fieldSelector=metadata.name%3Dweb")
        .await;
    assert_eq!(one.names(), ["web"]);
    let elsewhere = hub.kube_proxy().get("/api/v1/namespaces/elsewhere/services").await;
    assert_eq!(elsewhere.names(), Vec::<String>::new(), "complete, and really empty");
    let all = hub.kube_proxy().get(SERVICES).await;
    assert_eq!(
        all.names(),
        ["db", "web"],
        "narrower answers are not kept for wider questions"
    );
}

#[tokio::test]
async fn missing_object_is_reported_in_the_form_that_the_client_accepts() {
    let mut cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    cloud.go_away().await;
    hub.until("the loss", |state| state["cloudReachable"] == false).await;
    let path = "/api/v1/namespaces/shop/services/none";
    for accept in [
        "application/json",
        "application/yaml",
        "application/vnd.kubernetes.protobuf",
    ] {
        for client in [hub.kube_proxy(), hub.kubelet(), hub.component("coredns/1.12")] {
            let answer = client.get_with(path, &[("accept", accept)]).await;
            assert_eq!((answer.code, answer.header("content-type")), (404, Some(accept)));
        }
    }
}

#[tokio::test]
async fn list_of_many_pages_comes_whole() {
    let cloud = Cloud::start().await;
    let names: Vec<String> = (0..1001).map(|number| format!("web-{number:04}")).collect();
    for name in &names {
        cloud.put("services", service(name, 80));
    }
    let hub = TestHub::start(&cloud, &[]).await;
    assert!(lists(&cloud) >= 3, "the list comes in pages");
    let asked = lists(&cloud);
    let first = hub.kube_proxy().get(&format!("{SERVICES}?limit=500")).await;
    let token = first.json()["metadata"]["continue"].as_str().unwrap().to_owned();
    cloud.put("services", service("web-0600-new", 80));
    let rest = hub.kube_proxy().get(&format!("{SERVICES}?continue={token}")).await;
    assert_eq!([first.names(), rest.names()].concat(), names, "one state in both pages");
    assert_eq!(lists(&cloud), asked, "the replica goes on with its own tokens");
}

#[tokio::test]
async fn watch_delivers_changes_byte_for_byte() {
    let cloud = Cloud::start().await;
    cloud.put("services", service("web", 80));
    let hub = TestHub::start(&cloud, &[]).await;
    let at = hub.kube_proxy().get(SERVICES).await.json()["metadata"]["resourceVersion"].clone();
    let mut watch = hub
        .kube_proxy()
        .watch(&format!("{SERVICES}?resourceVersion={}", at.as_str().unwrap()))
        .await;
    let mut from_nothing = hub.kube_proxy().watch(SERVICES).await;
    assert_eq!(from_nothing.told().await, "ADDED web");
    let changed = cloud.put("services", service("web", 8080));
    for watch in [&mut watch, &mut from_nothing] {
        let event = watch.next().await.unwrap();
        assert_eq!((event.kind.as_str(), &event.object), ("MODIFIED", &changed));
        assert!(
            std::str::from_utf8(&event.bytes).unwrap().contains(r#""field":1.0"#),
            "bytes, not values"
        );
    }
    cloud.put("services", service("db", 5432));
    cloud.delete("services", "shop", "web");
    assert_eq!(
        (watch.told().await.as_str(), watch.told().await.as_str()),
        ("ADDED db", "DELETED web")
    );
}

/// Conformance: 4.18, 7.58, 7.76
#[tokio::test]
async fn incomplete_copy_is_never_an_empty_list() {
    let cloud = Cloud::start().await;
    cloud.put("services", service("web", 80));
    cloud.on(SERVICES, async |_| answer_json(StatusCode::SERVICE_UNAVAILABLE, "{}"));
    let hub = TestHub::start_at_once(&cloud, &[]).await;
    for path in [
        SERVICES,
        &format!("{SERVICES}?watch=1"),
        "/api/v1/namespaces/shop/services",
    ] {
        let refused = hub.component("coredns").get(path).await;
        assert_eq!(
            (refused.code, refused.header("retry-after")),
            (429, Some("1")),
            "{path}"
        );
        assert_eq!(refused.json()["reason"], "TooManyRequests");
    }
    // The cloud can still return a single object.
    hub.component("coredns")
        .get("/api/v1/namespaces/shop/services/web")
        .await
        .expect(200);
    cloud.off(SERVICES);
    hub.wait_until_complete().await;
    assert_eq!(hub.component("coredns").get(SERVICES).await.names(), ["web"]);
}

#[tokio::test]
async fn copy_answers_no_other_method_than_get() {
    let mut cloud = Cloud::start().await;
    cloud.put("services", service("web", 80));
    cloud.allow("t", true);
    let hub = TestHub::start(&cloud, &[]).await;
    // Over HTTP/2, where a body in the answer to HEAD is an error.
    let pod = hub.pod(&cloud, "t");
    let ask = async |method: &Method, path: &str| pod.send(request(method.clone(), path, &[], empty())).await;
    let reads = [
        (Method::HEAD, SERVICES.to_owned()),
        (Method::HEAD, format!("{SERVICES}?watch=1")),
        (Method::POST, "/api/v1/watch/services".to_owned()),
    ];
    for (method, path) in &reads {
        assert_eq!(ask(method, path).await.code, 405, "{method} {path}");
    }
    cloud.go_away().await;
    hub.until("the loss", |state| state["cloudReachable"] == false).await;
    for (method, path) in &reads {
        assert_eq!(ask(method, path).await.code, 405, "{method} {path}");
    }
    let get = request(Method::HEAD, "/api/v1/namespaces/shop/services/web", &[], empty());
    assert_eq!(hub.component("flanneld").send(get).await.code, 405);
}

#[tokio::test]
async fn token_of_a_state_the_copy_does_not_reach_goes_to_the_cloud_or_is_refused() {
    let mut cloud = Cloud::start().await;
    for name in ["a", "b", "c"] {
        cloud.put("services", service(name, 80));
    }
    let then = cloud.version().parse().unwrap();
    cloud.put("services", service("b-new", 80));
    let hub = TestHub::start(&cloud, &[]).await;
    let token = ContinueToken::after(Some(ResourceVersion(then)), "shop/a").encode();
    let path = format!("{SERVICES}?continue={token}");
    let rest = hub.component("coredns/1.12").get(&path).await;
    assert_eq!(rest.names(), ["b", "c"], "as it was then");
    assert_eq!(rest.json()["metadata"]["resourceVersion"], then.to_string());
    cloud.go_away().await;
    let alone = async || Some(hub.component("coredns/1.12").get(&path).await).filter(|answer| answer.code == 410);
    let refused = eventually("the copy answers alone", alone).await.json();
    let fresh = refused["metadata"]["continue"].as_str().unwrap();
    let rest = hub
        .component("coredns/1.12")
        .get(&format!("{SERVICES}?continue={fresh}"))
        .await;
    assert_eq!(rest.names(), ["b", "b-new", "c"], "the rest as it is now");
}

/// Conformance: 7.56, 7.57
#[tokio::test]
async fn copy_outlives_a_restart_without_the_cloud() {
    let mut cloud = Cloud::start().await;
    let web = cloud.put("services", service("web", 80));
    let slice = json!({"metadata": {"namespace": "shop", "name": "web-1"}, "endpoints": []});
    cloud.put("endpointslices", slice);
    let mut hub = TestHub::start(&cloud, &[]).await;
    let before = hub.component("flanneld").get(SERVICES).await;
    hub.stop().await;
    cloud.go_away().await;
    hub.restart().await;
    let after = hub.component("flanneld").get(SERVICES).await;
    assert_eq!(after.header("yurt-stale"), Some("true"));
    assert_eq!(after.body, before.body);
    assert_eq!(hub.component("flanneld").get(SLICES).await.names(), ["web-1"]);
    let get = hub
        .component("flanneld")
        .get("/api/v1/namespaces/shop/services/web")
        .await;
    assert_eq!((get.header("yurt-stale"), get.json()), (Some("true"), web));
    let at = after.json()["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let mut watch = hub
        .component("flanneld")
        .watch(&format!("{SERVICES}?resourceVersion={at}"))
        .await;
    assert_eq!(watch.headers["yurt-stale"], "true");
    // With the cloud back, the watch resumes at its position: no list, no duplicate event.
    cloud.come_back().await;
    cloud.put("services", service("db", 5432));
    assert_eq!(watch.told().await, "ADDED db");
    let fresh =
        async || Some(hub.component("flanneld").get(SERVICES).await).filter(|list| list.header("yurt-stale").is_none());
    let list = eventually("the copy must be fresh again", fresh).await;
    assert_eq!(list.names(), ["db", "web"]);
}

/// Clients are served from a list as soon as it is complete. If it were lost, no source could send the deletions
/// since then.
#[tokio::test]
async fn list_outlives_a_kill_right_after_it() {
    let mut cloud = Cloud::start().await;
    cloud.put("services", service("web", 80));
    let mut hub = TestHub::start(&cloud, &[]).await;
    let watches = |seen: &SeenRequest| seen.query.as_deref().is_some_and(|query| query.contains("watch=1"));
    let watched = async || cloud.seen(SERVICES).iter().any(watches).then_some(());
    eventually("the watch follows the list, once it is stored", watched).await;
    cloud.go_away().await;
    hub.crash().await;
    assert_eq!(hub.kube_proxy().get(SERVICES).await.names(), ["web"]);
}

#[tokio::test]
async fn hub_resumes_at_the_cloud_instead_of_listing_again() {
    let mut cloud = Cloud::start().await;
    cloud.put("services", service("web", 80));
    let mut hub = TestHub::start(&cloud, &[]).await;
    assert_eq!(lists(&cloud), 1);
    hub.restart().await;
    cloud.put("services", service("db", 5432));
    let both = async || Some(hub.kube_proxy().get(SERVICES).await.names()).filter(|names| names.len() == 2);
    eventually("the copy must follow", both).await;
    assert_eq!(lists(&cloud), 1, "a restart costs no list");
    cloud.go_away().await;
    cloud.come_back().await;
    cloud.delete("services", "shop", "web");
    let one = async || Some(hub.kube_proxy().get(SERVICES).await.names()).filter(|names| *names == ["db"]);
    eventually("the copy must follow", one).await;
    assert_eq!(lists(&cloud), 1, "nor does a broken link");
}

#[tokio::test]
async fn cloud_is_told_that_a_copy_watches() {
    let cloud = Cloud::start().await;
    let _hub = TestHub::start(&cloud, &[]).await;
    let watches = async || {
        let seen = cloud.seen(SERVICES).into_iter();
        let watches = seen.filter(|seen| seen.query.as_deref().is_some_and(|query| query.contains("watch=1")));
        Some(watches.collect::<Vec<_>>()).filter(|watches| !watches.is_empty())
    };
    for watch in eventually("the copy must watch", watches).await {
        let header = watch.headers.get("yurt-replica");
        let why = "a coordinator in the cloud's role sends the changes before its log as one step to replicas only";
        assert!(header.is_some_and(|value| value == "1"), "{why}: {:?}", watch.query);
    }
}

/// Conformance: 3.E18
#[tokio::test]
async fn own_write_is_seen_by_the_next_list() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    let shop = "/api/v1/namespaces/shop/services";
    let client = hub.component("coredns");
    for (name, is_gzip) in [("first", false), ("second", true)] {
        // The replica gets the change only when the test sends it.
        let ahead: u64 = cloud.version().parse::<u64>().unwrap() + 1;
        let metadata = json!({"namespace": "shop", "name": name, "resourceVersion": ahead.to_string()});
        let stored = json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata}).to_string();
        cloud.on(shop, move |_| {
            let stored = stored.clone();
            async move {
                if !is_gzip {
                    return answer_json(StatusCode::CREATED, stored);
                }
                // kube-apiserver does the same with large objects.
                let mut answer = answer_json(StatusCode::CREATED, gzip_bytes(stored.as_bytes()));
                let gzip = "gzip".parse().unwrap();
                answer.headers_mut().insert(http::header::CONTENT_ENCODING, gzip);
                answer
            }
        });
        let create = request(
            Method::POST,
            shop,
            &[("content-type", "application/json"), ("accept-encoding", "gzip")],
            yurt_runtime::http::full(service(name, 80).to_string()),
        );
        client.send(create).await.expect(201);
        let (listed, ()) = tokio::join!(client.get(SERVICES), async {
            // Answers to later requests come first: the list waits for the write.
            for _ in 0..5 {
                hub.state().await;
            }
            cloud.put("services", service(name, 80));
        });
        assert!(
            listed.names().contains(&name.to_owned()),
            "a list after a write reflects it"
        );
    }
}

#[tokio::test]
async fn watch_of_any_length_is_harmless() {
    let cloud = Cloud::start().await;
    cloud.put("services", service("web", 80));
    let hub = TestHub::start(&cloud, &[]).await;
    let longest = format!("{SERVICES}?timeoutSeconds={}", i64::MAX);
    assert_eq!(hub.kube_proxy().watch(&longest).await.told().await, "ADDED web");
    // Above an int64 kube-apiserver does not parse it as a number.
    let refused = hub
        .kube_proxy()
        .get(&format!("{SERVICES}?watch=1&timeoutSeconds={}", u64::MAX))
        .await;
    assert_eq!(
        (refused.code, refused.json()["reason"].as_str()),
        (400, Some("BadRequest"))
    );
    let mut shortest = hub.kube_proxy().watch(&format!("{SERVICES}?timeoutSeconds=1")).await;
    assert_eq!(shortest.told().await, "ADDED web");
    assert!(shortest.next().await.is_none(), "it ends cleanly at its time");
}
