//! Filters that ConfigMap yurt-hub-cfg binds while clients read.

use std::sync::Arc;

use http::StatusCode;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use yurt_runtime::http::{json as answer_json, read_body};
use yurt_test_support::eventually;

use super::client::Client;
use super::cloud::Cloud;
use super::configuring::configure;
use super::harness::{HUB_OF_PODS, TestHub};
use super::pool::Pool;

const MAPS: &str = "/api/v1/namespaces/kube-system/configmaps";
const SERVICES: &str = "/api/v1/services";
const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
/// A resource that no filter handles.
const SECRETS: &str = "/api/v1/secrets";

/// A cloud with Service default/kubernetes, which masterservice rewrites.
async fn cloud() -> Cloud {
    let cloud = Cloud::start().await;
    put_kubernetes(&cloud);
    cloud
}

fn put_kubernetes(cloud: &Cloud) {
    let spec = json!({"clusterIP": "10.96.0.1", "ports": [{"name": "https", "port": 443}]});
    cloud.put(
        "services",
        json!({"metadata": {"namespace": "default", "name": "kubernetes"}, "spec": spec}),
    );
}

/// True if the object is masterservice's view of default/kubernetes.
fn is_rewritten(service: &Value) -> bool {
    assert_eq!(service["metadata"]["name"], "kubernetes");
    service["spec"]["clusterIP"] == HUB_OF_PODS
}

async fn sees_rewritten(client: &Client) -> bool {
    is_rewritten(&client.get(SERVICES).await.json()["items"][0])
}

/// Names of the filters of `component`, as the hub reports them.
async fn bound(hub: &TestHub, component: &str) -> Vec<String> {
    let report = hub.admin().get("/debug/filters").await.json();
    let filters = report["filters"].as_array().unwrap().iter();
    let is_bound = |filter: &&Value| {
        let mut bindings = filter["bindings"].as_array().unwrap().iter();
        filter["runs"] == true && bindings.any(|binding| binding["component"] == component)
    };
    let names = filters
        .filter(is_bound)
        .map(|filter| filter["name"].as_str().unwrap().to_owned());
    names.collect()
}

async fn until_bound(hub: &TestHub, component: &str, name: &str, is_wanted: bool) {
    eventually("the binding must change", async || {
        let is_so = bound(hub, component).await.iter().any(|one| one == name);
        (is_so == is_wanted).then_some(())
    })
    .await;
}

#[tokio::test]
async fn change_of_the_configuration_ends_the_watches_that_it_concerns_and_no_others() {
    let cloud = cloud().await;
    let hub = TestHub::start(&cloud, &[]).await;
    let (proxy, dns, kubelet) = (hub.kube_proxy(), hub.component("coredns"), hub.kubelet());
    let mut concerned = proxy.watch(SERVICES).await;
    assert!(!is_rewritten(&concerned.next().await.unwrap().object));
    let mut others = [
        dns.watch(SERVICES).await,
        kubelet.watch(SERVICES).await,
        proxy.watch(SLICES).await,
    ];
    for watch in &mut others[..2] {
        assert_eq!(watch.told().await, "ADDED kubernetes");
    }

    configure(&cloud, &json!({"masterservice": "flanneld, Kube-Proxy"}));
    assert!(concerned.next().await.is_none(), "it ends cleanly");
    assert!(sees_rewritten(&proxy).await);
    let mut concerned = proxy.watch(SERVICES).await;
    assert!(is_rewritten(&concerned.next().await.unwrap().object));
    assert!(!sees_rewritten(&dns).await);

    // An entry that changes nothing ends nothing.
    configure(
        &cloud,
        &json!({"filter_masterservice": "kube-proxy", "cache_agents": "*"}),
    );
    until_bound(&hub, "flanneld", "masterservice", false).await;
    cloud.put("services", json!({"metadata": {"namespace": "shop", "name": "web"}}));
    cloud.put(
        "endpointslices",
        json!({"metadata": {"namespace": "shop", "name": "web-1"}}),
    );
    for watch in others[..2].iter_mut().chain([&mut concerned]) {
        assert_eq!(watch.told().await, "ADDED web");
    }
    assert_eq!(others[2].told().await, "ADDED web-1");

    configure(&cloud, &json!({"masterservice": "-kubelet"}));
    // Its objects have new numbers since its filters changed, and come once more under the next ones.
    while let Some(event) = concerned.next().await {
        assert_eq!(event.kind, "MODIFIED");
    }
    assert!(others[1].next().await.is_none(), "a default ends, too");
    assert!(!sees_rewritten(&proxy).await && !sees_rewritten(&kubelet).await);
    cloud.delete("configmaps", "kube-system", "yurt-hub-cfg");
    until_bound(&hub, "kubelet", "masterservice", true).await;
    assert!(sees_rewritten(&kubelet).await);
}

#[tokio::test]
async fn request_that_may_be_filtered_waits_until_the_configuration_is_known() {
    let cloud = cloud().await;
    configure(&cloud, &json!({"masterservice": "flanneld"}));
    let list = json!({"metadata": {"resourceVersion": "1"}, "items": [cloud.get("configmaps", Some("kube-system"), "yurt-hub-cfg")]});
    let gate = Arc::new(Semaphore::new(0));
    let held = gate.clone();
    cloud.on(MAPS, move |_| {
        let (held, list) = (held.clone(), list.to_string());
        async move {
            held.acquire().await.unwrap().forget();
            answer_json(StatusCode::OK, list)
        }
    });
    cloud.on(SECRETS, async |_| answer_json(StatusCode::OK, "{}"));
    let hub = TestHub::start(&cloud, &[]).await;
    let reader = hub.component("flanneld");
    let reading = sees_rewritten(&reader);
    tokio::pin!(reading);
    let others = async {
        // No filter handles secrets, so they wait for nothing.
        reader.get(SECRETS).await.expect(200);
        gate.add_permits(1);
        std::future::pending::<()>().await;
    };
    tokio::select! {
        is_rewritten = &mut reading => assert!(is_rewritten, "it was answered after the configuration came"),
        () = others => {}
    }
    assert_eq!(gate.available_permits(), 0);
}

#[tokio::test]
async fn without_the_configuration_nothing_passes_and_the_reason_is_told() {
    let mut cloud = cloud().await;
    cloud.on(MAPS, async |_| {
        answer_json(
            StatusCode::FORBIDDEN,
            r#"{"kind":"Status","code":403,"message":"no role"}"#,
        )
    });
    cloud.on(SECRETS, async |_| answer_json(StatusCode::OK, "{}"));
    let mut hub = TestHub::start(&cloud, &[]).await;
    let refused = hub.kubelet().get(SERVICES).await;
    assert_eq!((refused.code, refused.header("retry-after")), (503, Some("1")));
    let message = refused.json()["message"].as_str().unwrap().to_owned();
    assert!(
        message.contains("yurt-hub-cfg") && message.contains("no role"),
        "{message}"
    );
    hub.kubelet().get(SECRETS).await.expect(200);
    assert_eq!(hub.admin().get("/debug/filters").await.json()["synced"], false);

    cloud.off(MAPS);
    configure(&cloud, &json!({"masterservice": "flanneld"}));
    until_bound(&hub, "flanneld", "masterservice", true).await;
    assert!(sees_rewritten(&hub.kubelet()).await);
    cloud.go_away().await;
    hub.restart().await;
    assert!(
        sees_rewritten(&hub.component("flanneld")).await,
        "the last state is on disk"
    );
}

#[tokio::test]
async fn flags_turn_filters_off_for_good() {
    let cloud = cloud().await;
    configure(&cloud, &json!({"masterservice": "flanneld"}));
    for flag in [
        "--enable-resource-filter=false",
        "--disabled-resource-filters=masterservice,servicetopology",
    ] {
        let hub = TestHub::start(&cloud, &[flag]).await;
        assert!(!sees_rewritten(&hub.kubelet()).await && !sees_rewritten(&hub.component("flanneld")).await);
        let is_bound = bound(&hub, "kubelet").await.iter().any(|name| name == "masterservice");
        assert!(!is_bound, "{flag}");
    }
}

/// Value of a metric line that begins with `name`.
async fn metric(hub: &TestHub, name: &str) -> Option<String> {
    let metrics = hub.admin().get("/metrics").await.expect(200);
    let text = String::from_utf8(metrics.to_vec()).unwrap();
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(name));
    lines.next().map(|value| value.trim().to_owned())
}

#[tokio::test]
async fn entries_that_are_not_applied_are_reported_and_verdicts_are_counted() {
    let pool = Pool::start_fed().await;
    put_kubernetes(&pool.cloud);
    let events: Arc<Mutex<Vec<Value>>> = Arc::default();
    let written = events.clone();
    pool.coordinator
        .on("/api/v1/namespaces/default/events", move |request| {
            let written = written.clone();
            async move {
                let body = read_body(request.into_body(), 1 << 20).await.unwrap();
                written.lock().push(serde_json::from_slice(&body).unwrap());
                answer_json(StatusCode::CREATED, "{}")
            }
        });
    let hub = pool.hub("n1", &["--leader-elect=false"]).await;
    configure(&pool.cloud, &json!({"masterservice": "*, flanneld", "nosuch": "a"}));
    until_bound(&hub, "flanneld", "masterservice", true).await;
    let report = hub.admin().get("/debug/filters").await.json();
    let of = |error: &Value| (error["key"].clone(), error["entry"].clone());
    let errors: Vec<_> = report["configErrors"].as_array().unwrap().iter().map(of).collect();
    assert_eq!(
        errors,
        [(json!("nosuch"), json!("")), (json!("masterservice"), json!("*"))]
    );
    assert_eq!(
        metric(&hub, "node_yurthub_filter_config_errors").await.as_deref(),
        Some("2")
    );
    let message = eventually("an Event must be written", async || {
        let events = events.lock();
        let event = events.iter().find(|event| event["reason"] == "FilterConfigInvalid")?;
        assert_eq!(
            (&event["involvedObject"]["kind"], &event["type"]),
            (&json!("Node"), &json!("Warning"))
        );
        Some(event["message"].as_str().unwrap().to_owned())
    })
    .await;
    assert!(message.contains("nosuch") && message.contains("1 more"), "{message}");

    hub.wait_until_complete().await;
    pool.cloud
        .put("services", json!({"metadata": {"namespace": "shop", "name": "web"}}));
    eventually("both must be listed", async || {
        (hub.component("flanneld").get(SERVICES).await.names().len() == 2).then_some(())
    })
    .await;
    for result in ["kept", "replaced"] {
        let name = format!("node_yurthub_filter_objects_total{{filter=\"masterservice\",result=\"{result}\"}}");
        let count: u64 = metric(&hub, &name).await.unwrap().parse().unwrap();
        assert!(count > 0, "{result}");
    }
}

/// The NodePool is requested only once a filter needs it.
#[tokio::test]
async fn host_network_of_the_node_pool_is_followed_and_kept_on_disk() {
    const PATH: &str = "/apis/apps.openyurt.io/v1beta2/nodepools";
    let mut cloud = cloud().await;
    let put = |cloud: &Cloud, value: bool| {
        let (metadata, nodes) = (json!({"name": "p"}), json!(["n1"]));
        let version = "apps.openyurt.io/v1beta2";
        cloud.put(
            "nodepools",
            json!({"apiVersion": version, "kind": "NodePool", "metadata": metadata, "spec": {"hostNetwork": value}, "status": {"nodes": nodes}}),
        );
    };
    put(&cloud, true);
    let mut hub = TestHub::start(&cloud, &["--nodepool-name=p"]).await;
    let asked = cloud.seen(PATH).len();
    let kubelet = hub.kubelet();
    let known = async |hub: &TestHub| hub.admin().get("/debug/filters").await.json()["hostNetwork"].clone();
    assert_eq!(known(&hub).await, Value::Null);
    let pods = "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1";
    kubelet.get(pods).await.expect(200);
    assert_eq!(
        (known(&hub).await, cloud.seen(PATH).len()),
        (Value::Null, asked),
        "no filter needs it"
    );
    configure(&cloud, &json!({"hostnetworkpropagation": "kubelet"}));
    until_bound(&hub, "kubelet", "hostnetworkpropagation", true).await;
    kubelet.get(pods).await.expect(200);
    assert_eq!(known(&hub).await, true, "the request waited for it");
    put(&cloud, false);
    eventually("the change must be noticed", async || {
        (known(&hub).await == false).then_some(())
    })
    .await;
    cloud.delete("nodepools", "", "p");
    put(&cloud, true);
    eventually("the next one, too", async || (known(&hub).await == true).then_some(())).await;
    hub.stop().await;
    cloud.go_away().await;
    hub.restart().await;
    assert_eq!(known(&hub).await, true, "from the disk");
}
