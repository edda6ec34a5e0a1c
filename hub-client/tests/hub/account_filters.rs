//! Filters that ConfigMap yurt-hub-cfg binds to service accounts.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use yurt_test_support::eventually;

use super::client::Client;
use super::cloud::Cloud;
use super::configuring::configure;
use super::harness::{HUB_OF_PODS, TestHub};

const SERVICES: &str = "/api/v1/services";
const AGENT: &str = "system:serviceaccount:kube-system:agent";

/// A cloud with Service default/kubernetes, which masterservice rewrites, and one that discardcloudservice hides.
async fn cloud() -> Cloud {
    let cloud = Cloud::start().await;
    for (namespace, name, kind) in [
        ("default", "kubernetes", "ClusterIP"),
        ("shop", "balanced", "LoadBalancer"),
    ] {
        let spec = json!({"type": kind, "clusterIP": "10.96.0.1", "ports": [{"name": "https", "port": 443}]});
        cloud.put(
            "services",
            json!({"metadata": {"namespace": namespace, "name": name}, "spec": spec}),
        );
    }
    cloud
}

/// Token of an account that the cloud accepts.
fn token(cloud: &Cloud, account: &str) -> String {
    let claims = URL_SAFE_NO_PAD.encode(json!({"sub": account}).to_string());
    let token = format!("e30.{claims}.c2ln");
    cloud.allow(&token, true);
    token
}

/// True for each of two filters if it shapes the view of a client: masterservice rewrites default/kubernetes,
/// discardcloudservice hides the balanced Service.
async fn view(client: &Client) -> (bool, bool) {
    let list = client.get(SERVICES).await.json();
    let services = list["items"].as_array().unwrap_or_else(|| panic!("{list}"));
    let has = |name: &str| services.iter().find(|one| one["metadata"]["name"] == name);
    let is_rewritten = is_rewritten(has("kubernetes").expect("it is shown"));
    (is_rewritten, has("balanced").is_none())
}

fn is_rewritten(service: &Value) -> bool {
    service["spec"]["clusterIP"] == HUB_OF_PODS
}

/// Waits until the hub reports this origin of the account's binding to masterservice; `None` if it is not bound.
async fn until_named(hub: &TestHub, origin: Option<&str>) {
    eventually("the binding must change", async || {
        let report = hub.admin().get("/debug/filters").await.json();
        let mut filters = report["filters"].as_array()?.iter();
        let bindings = filters.find(|filter| filter["name"] == "masterservice")?["bindings"].clone();
        let mut bindings = bindings.as_array()?.iter();
        let of_agent = bindings.find(|binding| binding["component"] == AGENT);
        (of_agent.and_then(|binding| binding["origin"].as_str()) == origin).then_some(())
    })
    .await;
}

#[tokio::test]
async fn account_that_an_entry_names_is_filtered_by_its_name_whatever_its_user_agent_says() {
    let cloud = cloud().await;
    let entry = format!("{AGENT}/services#list;watch");
    configure(&cloud, &json!({"masterservice": entry}));
    let (agent, other) = (
        token(&cloud, AGENT),
        token(&cloud, "system:serviceaccount:kube-system:other"),
    );
    let hub = TestHub::start(&cloud, &[]).await;
    until_named(&hub, Some("ConfigMap")).await;
    for user_agent in ["flanneld/1", "kube-proxy/v1", "two words/1"] {
        assert_eq!(
            view(&hub.bearer(user_agent, &agent)).await,
            (true, false),
            "{user_agent}"
        );
    }
    // An account that no entry names keeps the component of its User-Agent, with its defaults.
    assert_eq!(view(&hub.bearer("flanneld/1", &other)).await, (false, false));
    assert_eq!(view(&hub.bearer("kube-proxy/v1", &other)).await, (false, true));
    assert_eq!(view(&hub.bearer("two words/1", &other)).await, (false, false));
    assert_eq!(view(&hub.kube_proxy()).await, (false, true));
    let made_up = format!("{agent}x");
    hub.bearer("flanneld/1", &made_up).get(SERVICES).await.expect(401);
}

#[tokio::test]
async fn change_of_a_callers_name_reaches_its_watches_and_those_of_no_other_caller() {
    let cloud = cloud().await;
    let (agent, other) = (
        token(&cloud, AGENT),
        token(&cloud, "system:serviceaccount:kube-system:other"),
    );
    let hub = TestHub::start(&cloud, &[]).await;
    let mut others = hub.bearer("flanneld/1", &other).watch(SERVICES).await;
    for _ in 0..2 {
        assert_eq!(others.next().await.unwrap().kind, "ADDED");
    }
    for user_agent in ["kube-proxy/v1", "flanneld/1", "two words/1"] {
        let client = hub.bearer(user_agent, &agent);
        let as_component = (false, user_agent.starts_with("kube-proxy"));
        assert_eq!(view(&client).await, as_component, "{user_agent}");
        for (entry, origin, expected) in [
            (AGENT, Some("ConfigMap"), (true, false)),
            ("", None, as_component),
            (AGENT, Some("ConfigMap"), (true, false)),
            ("", None, as_component),
        ] {
            let list = client.get(SERVICES).await.json();
            let version = list["metadata"]["resourceVersion"].as_str().unwrap();
            let from = format!("{SERVICES}?watch=1&resourceVersion={version}");
            let mut open = client.watch(&from).await;
            configure(&cloud, &json!({"masterservice": entry}));
            while open.next().await.is_some() {}
            until_named(&hub, origin).await;
            // The objects come as the filters of the other name show them, although the cloud has not changed them.
            let mut watch = client.watch(&from).await;
            let event = loop {
                let event = watch.next().await.unwrap();
                if event.object["metadata"]["name"] == "kubernetes" {
                    break event;
                }
            };
            assert_eq!(event.kind, "MODIFIED", "{user_agent}");
            assert_eq!(is_rewritten(&event.object), expected.0, "{user_agent}");
            assert_eq!(view(&client).await, expected, "{user_agent}");
        }
    }
    cloud.put("services", json!({"metadata": {"namespace": "shop", "name": "web"}}));
    assert_eq!(others.told().await, "ADDED web");
}
