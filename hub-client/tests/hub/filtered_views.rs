//! Filtered reads of resources that are no pool data: Pods and ConfigMaps, from views of the node's cache.

use futures_util::future::join_all;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use yurt_apimachinery::Status;
use yurt_runtime::http::{full, json as answer_json, status_response};
use yurt_test_support::eventually;

use super::client::{Answer, Client, request};
use super::cloud::Cloud;
use super::configuring::configure;
use super::harness::{HUB_OF_PODS, TestHub};

const PODS: &str = "/api/v1/pods";
const OWN_PODS: &str = "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1";
const POD: &str = "/api/v1/namespaces/shop/pods/web";
const MAPS: &str = "/api/v1/namespaces/kube-system/configmaps";
const MAP: &str = "/api/v1/namespaces/kube-system/configmaps/kube-proxy";
const ONE_MAP: &str = "/api/v1/namespaces/kube-system/configmaps?fieldSelector=metadata.name%3Dkube-proxy";
/// The address that only the cloud's objects have.
const PUBLIC: &str = "203.0.113.9";
/// The line that only the cloud's ConfigMap has.
const KUBECONFIG: &str = "\\n  kubeconfig: ";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// A pod of this node that finds kube-apiserver at [`PUBLIC`].
fn pod(name: &str) -> Value {
    let env = json!([{"name": "KUBERNETES_SERVICE_HOST", "value": PUBLIC}]);
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "shop", "name": name, "uid": format!("u-{name}")},
        "spec": {"nodeName": "n1", "containers": [{"name": "a", "env": env}]}, "status": {"phase": "Pending"}})
}

fn map(data: &str) -> Value {
    json!({"metadata": {"namespace": "kube-system", "name": "kube-proxy"},
        "data": {"config.conf": format!("clientConnection:\n  kubeconfig: /var/lib/{data}\n")}})
}

async fn cloud() -> Cloud {
    let cloud = Cloud::start().await;
    cloud.put("pods", pod("web"));
    cloud.put("configmaps", map("a"));
    cloud
}

/// True if an answer has an object and nothing that its reader must not see.
fn is_filtered(answer: &Answer) -> bool {
    let text = String::from_utf8_lossy(&answer.body);
    assert_eq!(answer.code, 200, "{text}");
    assert!(text.contains("web") || text.contains("kube-proxy"), "{text}");
    // Protobuf has the line break as it is.
    !text.contains(PUBLIC) && !text.contains(KUBECONFIG) && !text.contains("\n  kubeconfig: ")
}

fn host_of(pod: &Value) -> &str {
    pod["spec"]["containers"][0]["env"][0]["value"].as_str().unwrap()
}

async fn until_reachable(hub: &TestHub, is_reachable: bool) {
    hub.until("the probes must notice", |state| {
        state["cloudReachable"] == is_reachable
    })
    .await;
}

async fn until_complete(hub: &TestHub, selection: &str) {
    hub.until("the selection must be complete", |state| {
        state["cache"]["selections"][selection]["complete"] == true
    })
    .await;
}

/// Every form of every read of the kubelet, with the data of the cache alone if `is_offline`.
async fn assert_all_reads_are_filtered(kubelet: &Client) {
    for path in [OWN_PODS, POD, MAPS, ONE_MAP, MAP] {
        for accept in [
            "application/json",
            "*/*",
            PROTOBUF,
            "application/yaml",
            "application/json;as=Table;g=meta.k8s.io;v=v1,application/json",
        ] {
            let separator = if path.contains('?') { '&' } else { '?' };
            let path = format!("{path}{separator}includeObject=Object");
            let answer = kubelet.get_with(&path, &[("accept", accept)]).await;
            assert!(is_filtered(&answer), "{path} as {accept}: {answer:?}");
            let is_protobuf = answer.header("content-type") == Some(PROTOBUF);
            assert_eq!(is_protobuf, accept == PROTOBUF, "{path}: {:?}", answer.headers);
        }
    }
    for path in [OWN_PODS, MAPS, ONE_MAP] {
        let event = kubelet.watch(path).await.next().await.unwrap();
        let text = event.object.to_string();
        assert!(!text.contains(PUBLIC) && !text.contains(KUBECONFIG), "{path}: {text}");
    }
}

#[tokio::test]
async fn every_read_of_the_kubelet_is_filtered_with_and_without_the_cloud() {
    let mut cloud = cloud().await;
    let mut hub = TestHub::start(&cloud, &[]).await;
    assert_all_reads_are_filtered(&hub.kubelet()).await;
    let status = format!("{POD}/status");
    cloud.on(&status, async |_| answer_json(StatusCode::OK, pod("web").to_string()));
    let status = hub.kubelet().get(&status).await;
    assert!(is_filtered(&status), "{status:?}");
    assert!(
        !is_filtered(&hub.component("flanneld").get(OWN_PODS).await),
        "others see the cloud's"
    );
    let mut watch = hub.kubelet().watch(OWN_PODS).await;
    assert_eq!(watch.told().await, "ADDED web");
    cloud.put("pods", pod("db"));
    let event = watch.next().await.unwrap();
    assert_eq!((event.kind.as_str(), host_of(&event.object)), ("ADDED", HUB_OF_PODS));

    for selection in [OWN_PODS, MAPS, ONE_MAP] {
        until_complete(&hub, selection).await;
    }
    cloud.go_away().await;
    assert_all_reads_are_filtered(&hub.kubelet()).await;
    until_reachable(&hub, false).await;
    assert_all_reads_are_filtered(&hub.kubelet()).await;
    hub.restart().await;
    assert_all_reads_are_filtered(&hub.kubelet()).await;
}

/// A get needs no selection: the cloud's object is filtered.
#[tokio::test]
async fn get_of_an_object_that_is_in_no_selection_is_filtered() {
    let mut cloud = cloud().await;
    let hub = TestHub::start(&cloud, &[]).await;
    assert!(is_filtered(&hub.kubelet().get(POD).await));
    hub.until("the object must be kept", |state| {
        state["offline"]["answers"]["records"] == 1
    })
    .await;
    for accept in [
        "application/json",
        PROTOBUF,
        "application/json;as=Table;g=meta.k8s.io;v=v1",
    ] {
        let path = format!("{POD}?includeObject=Object");
        let answer = hub.kubelet().get_with(&path, &[("accept", accept)]).await;
        assert!(is_filtered(&answer), "{accept}: {answer:?}");
    }
    let selections = &hub.state().await["cache"]["selections"];
    assert_eq!(selections, &json!({}), "a get caches no selection");
    hub.kubelet()
        .get("/api/v1/namespaces/shop/pods/unknown")
        .await
        .expect(404);
    // An object that no filter changes passes byte for byte.
    let plain = r#"{ "kind":"Pod","apiVersion":"v1","metadata":{"name":"plain","namespace":"shop"},"x":1.0 }"#;
    let path = "/api/v1/namespaces/shop/pods/plain";
    cloud.on(path, move |_| async move { answer_json(StatusCode::OK, plain) });
    assert_eq!(hub.kubelet().get(path).await.expect(200), plain);
    // An object that cannot be read is not passed on.
    cloud.on(path, async |_| answer_json(StatusCode::OK, "[1]"));
    let refused = hub.kubelet().get(path).await;
    assert_eq!((refused.code, refused.header("retry-after").is_some()), (503, true));
    // Output of a container is no object.
    let log = format!("{POD}/log");
    cloud.on(&log, async |_| yurt_runtime::http::text(StatusCode::OK, PUBLIC));
    assert_eq!(hub.kubelet().get(&log).await.expect(200), PUBLIC);

    cloud.go_away().await;
    let kept = eventually("the kept object", async || {
        Some(hub.kubelet().get(POD).await).filter(|kept| kept.code == 200)
    });
    assert!(is_filtered(&kept.await), "a kept object is filtered, too");
}

#[tokio::test]
async fn change_of_the_configuration_reaches_a_watch_of_the_cache() {
    let cloud = cloud().await;
    let hub = TestHub::start(&cloud, &[]).await;
    let agent = hub.component("flanneld");
    let listed = agent.get(OWN_PODS).await.json();
    assert_eq!(host_of(&listed["items"][0]), PUBLIC);
    let number = |object: &Value| {
        object["metadata"]["resourceVersion"]
            .as_str()
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    let (mut held, mut last) = (number(&listed["items"][0]), number(&listed));
    let mut watch = agent.watch(&format!("{OWN_PODS}&resourceVersion={last}")).await;
    let mut others = [hub.kubelet().watch(OWN_PODS).await, hub.kubelet().watch(ONE_MAP).await];
    for watch in &mut others {
        watch.next().await.unwrap();
    }
    for (data, expected) in [
        (json!({"serviceenvupdater": "flanneld"}), HUB_OF_PODS),
        (json!({}), PUBLIC),
    ] {
        configure(&cloud, &data);
        while let Some(event) = watch.next().await {
            assert_eq!(event.kind, "MODIFIED", "{}", event.object);
        }
        // The position moves on: a state under an RV that the object had comes once more.
        cloud.put("pods", pod(&format!("at-{last}")));
        watch = agent.watch(&format!("{OWN_PODS}&resourceVersion={last}")).await;
        // A client ignores another state under the RV that it has.
        loop {
            let event = watch.next().await.unwrap();
            assert_eq!(host_of(&event.object), expected);
            last = number(&event.object);
            if event.object["metadata"]["name"] == "web" && last > held {
                held = last;
                break;
            }
        }
        assert_eq!(host_of(&agent.get(POD).await.json()), expected);
        assert_eq!(
            others[0].told().await.split(' ').next(),
            Some("ADDED"),
            "watches with other filters go on"
        );
    }
    cloud.put("pods", pod("db"));
    cloud.put("configmaps", map("b"));
    assert_eq!(others[0].told().await, "ADDED db");
    assert_eq!(others[1].told().await, "MODIFIED kube-proxy");
}

#[tokio::test]
async fn view_that_cannot_be_had_is_refused_and_nothing_passes() {
    let mut cloud = cloud().await;
    let hub = TestHub::start(&cloud, &[]).await;
    cloud.on(PODS, |_| async {
        status_response(&Status::service_unavailable("busy", 1))
    });
    for path in [OWN_PODS.to_owned(), format!("{OWN_PODS}&watch=1")] {
        let refused = hub.kubelet().get(&path).await;
        let why = refused.json()["message"].as_str().unwrap().to_owned();
        assert_eq!((refused.code, refused.header("retry-after").is_some()), (503, true));
        assert!(
            why.contains("serviceenvupdater") && why.contains("not complete"),
            "{why}"
        );
    }
    let passed = cloud.seen(PODS).into_iter().filter(|seen| {
        let agent = seen.headers.get("user-agent").and_then(|agent| agent.to_str().ok());
        agent.is_some_and(|agent| agent.starts_with("kubelet"))
    });
    assert_eq!(passed.count(), 0);
    hub.kubelet().get("/api/v1/pods?fieldSelector=x").await.expect(400);
    let as_jane: &[(&str, &str)] = &[("impersonate-user", "jane")];
    hub.kubelet().get_with(OWN_PODS, as_jane).await.expect(403);
    cloud.off(PODS);
    eventually("the selection must become complete", async || {
        Some(hub.kubelet().get(OWN_PODS).await).filter(|answer| answer.code == 200 && is_filtered(answer))
    })
    .await;
    cloud.go_away().await;
    until_reachable(&hub, false).await;
    let elsewhere = "/api/v1/namespaces/elsewhere/pods";
    for path in [elsewhere.to_owned(), format!("{elsewhere}?watch=1")] {
        let refused = hub.kubelet().get(&path).await;
        assert_eq!(
            (refused.code, refused.header("retry-after").is_some()),
            (503, true),
            "{path}"
        );
    }
    let known = &hub.state().await["cache"]["selections"];
    assert!(known.get(elsewhere).is_none(), "nothing is made that cannot be filled");
}

/// The Node authorizer refuses for a moment what it does not know yet.
#[tokio::test]
async fn view_that_the_cloud_refused_is_shown_once_the_cloud_allows_it() {
    let cloud = cloud().await;
    let hub = TestHub::start(&cloud, &[]).await;
    cloud.on(PODS, |_| async {
        status_response(&Status::failure(403, "Forbidden", "no relationship found"))
    });
    let kubelet = hub.kubelet();
    for _ in 0..2 {
        let refused = join_all((0..20).map(|_| kubelet.get(OWN_PODS))).await;
        for answer in &refused {
            let message = answer.json()["message"].clone();
            assert_eq!((answer.code, message), (403, json!("no relationship found")));
        }
    }
    let asked = cloud.seen(PODS).len();
    assert!((1..20).contains(&asked), "{asked} attempts for 40 reads");
    cloud.off(PODS);
    let shown = eventually("the selection must be read again", async || {
        Some(kubelet.get(OWN_PODS).await).filter(|answer| answer.code == 200)
    });
    assert!(is_filtered(&shown.await));
}

/// A node has no certificate that the cloud accepts for the time of its renewal.
#[tokio::test]
async fn view_whose_stream_the_cloud_refused_goes_on_once_the_cloud_allows_it() {
    let mut cloud = cloud().await;
    let hub = TestHub::start(&cloud, &[]).await;
    assert!(is_filtered(&hub.kubelet().get(OWN_PODS).await));
    until_complete(&hub, OWN_PODS).await;
    cloud.go_away().await;
    cloud.on(PODS, |_| async { status_response(&Status::unauthorized()) });
    cloud.come_back().await;
    eventually("the stream must be refused", async || {
        Some(hub.kubelet().get(OWN_PODS).await).filter(|answer| answer.code == 503)
    })
    .await;
    cloud.off(PODS);
    let shown = eventually("the selection must be read again", async || {
        Some(hub.kubelet().get(OWN_PODS).await).filter(|answer| answer.code == 200)
    });
    assert!(is_filtered(&shown.await));
}

#[tokio::test]
async fn filtered_get_shows_the_status_that_was_written_without_the_cloud() {
    let mut cloud = cloud().await;
    let hub = TestHub::start(&cloud, &[]).await;
    let kubelet = hub.kubelet();
    assert!(is_filtered(&kubelet.get(OWN_PODS).await));
    until_complete(&hub, OWN_PODS).await;
    cloud.go_away().await;
    let running = json!({"metadata": {"uid": "u-web"}, "status": {"phase": "Running"}}).to_string();
    let headers = [("content-type", "application/strategic-merge-patch+json")];
    let status = format!("{POD}/status");
    let write = request(Method::PATCH, &status, &headers, full(running));
    kubelet.send(write).await.expect(200);
    for accept in ["application/json", PROTOBUF, "application/yaml"] {
        for path in [POD, &status] {
            let answer = kubelet.get_with(path, &[("accept", accept)]).await;
            assert!(is_filtered(&answer), "{path} as {accept}: {answer:?}");
            assert!(
                String::from_utf8_lossy(&answer.body).contains("Running"),
                "{path} as {accept}"
            );
        }
    }
    let seen = hub.kubelet().get(POD).await;
    assert_eq!(seen.header("yurt-stale"), Some("true"));
    assert_eq!(host_of(&seen.json()), HUB_OF_PODS);
    let others = hub.component("flanneld").get(POD).await.json();
    assert_eq!(
        (host_of(&others), &others["status"]["phase"]),
        (PUBLIC, &json!("Running"))
    );
}

#[tokio::test]
async fn filtered_list_reflects_this_nodes_write() {
    let cloud = cloud().await;
    let hub = TestHub::start(&cloud, &[]).await;
    let kubelet = hub.kubelet();
    assert!(is_filtered(&kubelet.get(OWN_PODS).await));
    let ahead = cloud.version().parse::<u64>().unwrap() + 1;
    let mut running = pod("web");
    running["status"]["phase"] = json!("Running");
    let mut written = running.clone();
    written["metadata"]["resourceVersion"] = json!(ahead.to_string());
    let status = format!("{POD}/status");
    let text = written.to_string();
    cloud.on(&status, move |_| {
        let text = text.clone();
        async move { answer_json(StatusCode::OK, text) }
    });
    kubelet
        .put(&status, "application/json", written.to_string())
        .await
        .expect(200);
    let reading = kubelet.get(OWN_PODS);
    let storing = async {
        // The read waits for the replica, which gets the change only now.
        eventually("the read must be counted", async || {
            let metrics = hub.admin().get("/metrics").await.expect(200);
            let text = String::from_utf8(metrics.to_vec()).unwrap();
            let mut lines = text.lines();
            lines
                .any(|line| line.contains("in_flight") && line.ends_with(" 1"))
                .then_some(())
        })
        .await;
        cloud.put("pods", running.clone());
    };
    let (listed, ()) = tokio::join!(reading, storing);
    assert_eq!(listed.json()["items"][0]["status"]["phase"], "Running");
}

#[tokio::test]
async fn view_of_one_caller_is_not_shown_to_another_one() {
    let mut cloud = cloud().await;
    configure(&cloud, &json!({"serviceenvupdater": "agent"}));
    cloud.allow("good", true);
    cloud.allow("bad", false);
    let hub = TestHub::start(&cloud, &[]).await;
    let shop = "/api/v1/namespaces/shop/pods";
    let paths = [shop.to_owned(), format!("{shop}?watch=1")];
    let (good, bad) = (hub.bearer("agent/1", "good"), hub.bearer("agent/1", "bad"));
    assert!(is_filtered(&good.get(shop).await));
    for path in &paths {
        bad.get(path).await.expect(403);
    }
    until_complete(&hub, &format!("{shop}#tokens")).await;
    cloud.go_away().await;
    until_reachable(&hub, false).await;
    assert!(is_filtered(&good.get(shop).await));
    for path in &paths {
        bad.get(path).await.expect(403);
        let answer = hub.bearer("agent/1", "stranger").get(path).await;
        assert_eq!(answer.code, 429, "its rights are not known: {path}");
    }
}

#[tokio::test]
async fn streams_of_a_pod_take_no_view_from_the_kubelet() {
    let cloud = cloud().await;
    cloud.allow("pod", true);
    let hub = TestHub::start(&cloud, &[]).await;
    let mut streams = Vec::new();
    let pod = hub.bearer("kubelet/v1", "pod");
    let refused = loop {
        let path = format!(
            "/api/v1/namespaces/shop/pods?labelSelector=a%3D{}&watch=1",
            streams.len()
        );
        let opened = pod.open(request(Method::GET, &path, &[], full(""))).await;
        if opened.status() != 200 {
            break opened.status();
        }
        streams.push(opened);
    };
    assert_eq!((refused, streams.len()), (StatusCode::SERVICE_UNAVAILABLE, 32));
    assert!(is_filtered(&hub.kubelet().get(OWN_PODS).await));
}

/// The filter of ConfigMaps edits one. Others are neither delayed nor kept in views.
#[tokio::test]
async fn object_that_no_filter_concerns_passes_as_if_there_were_none() {
    let cloud = cloud().await;
    let other = json!({"metadata": {"namespace": "shop", "name": "settings"}, "data": {"a": "b"}});
    cloud.put("configmaps", other);
    // The configuration of the hub stays unknown.
    cloud.on(MAPS, |_| async {
        status_response(&Status::service_unavailable("busy", 1))
    });
    let hub = TestHub::start(&cloud, &[]).await;
    let maps = "/api/v1/namespaces/shop/configmaps";
    for path in [
        maps.to_owned(),
        format!("{maps}/settings"),
        format!("{maps}?fieldSelector=metadata.name%3Dsettings"),
        format!("{maps}?fieldSelector=metadata.name%3Dkube-proxy"),
    ] {
        hub.kubelet().get(&path).await.expect(200);
    }
    hub.kubelet().get(ONE_MAP).await.expect(503);
}
