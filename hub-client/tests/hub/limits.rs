//! One node cannot take more of the hub than its share.

use http::{Method, StatusCode};
use serde_json::json;
use tokio::sync::watch;
use yurt_runtime::http::{empty, json as answer_json};
use yurt_test_support::eventually;

use super::client::request;
use super::cloud::Cloud;
use super::harness::TestHub;

const PODS: &str = "/api/v1/pods";
const SERVICES: &str = "/api/v1/services";

/// Keeps requests for pods waiting at the cloud until the gate is opened.
fn hold_pods(cloud: &Cloud) -> watch::Sender<bool> {
    let gate = watch::Sender::new(false);
    let open = gate.clone();
    cloud.on(PODS, move |_| {
        let mut open = open.subscribe();
        async move {
            open.wait_for(|open| *open).await.unwrap();
            answer_json(StatusCode::OK, "{}")
        }
    });
    gate
}

async fn until_held(cloud: &Cloud, count: usize) {
    eventually("the requests must reach the cloud", async || {
        (cloud.seen(PODS).len() == count).then_some(())
    })
    .await;
}

/// The lease of the node the test hub runs on.
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1";

#[tokio::test]
async fn requests_above_the_limit_get_429_and_watches_do_not_count() {
    let cloud = Cloud::start().await;
    cloud.put("services", json!({"metadata": {"namespace": "shop", "name": "web"}}));
    let hub = TestHub::start(&cloud, &["--max-requests-in-flight=2"]).await;
    let gate = hold_pods(&cloud);
    let [one, two] = [hub.kubelet(), hub.kubelet()];
    let meanwhile = async {
        until_held(&cloud, 2).await;
        for path in [PODS, SERVICES, "/version"] {
            let refused = hub.kube_proxy().get(path).await;
            assert_eq!(
                (refused.code, refused.header("retry-after")),
                (429, Some("1")),
                "{path}"
            );
            assert_eq!(refused.json()["reason"], "TooManyRequests");
        }
        assert_eq!(hub.kube_proxy().watch(SERVICES).await.told().await, "ADDED web");
        let beat = hub.kubelet().get(LEASE).await;
        assert_ne!(beat.code, 429, "a full hub must not make its node look dead");
        assert_eq!(cloud.seen(PODS).len(), 2, "what is refused costs the cloud nothing");
        gate.send_replace(true);
    };
    let (one, two, ()) = tokio::join!(one.get(PODS), two.get(PODS), meanwhile);
    assert_eq!((one.code, two.code), (200, 200));
    hub.kube_proxy().get(SERVICES).await.expect(200);
}

#[tokio::test]
async fn client_that_hangs_up_gives_its_place_back() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &["--max-requests-in-flight=1"]).await;
    let _gate = hold_pods(&cloud);
    let kubelet = hub.kubelet();
    tokio::select! {
        _ = kubelet.open(request(Method::GET, PODS, &[], empty())) => panic!("nobody answers that"),
        () = until_held(&cloud, 1) => {}
    }
    let free = async || (hub.kube_proxy().get(SERVICES).await.code == 200).then_some(());
    eventually("the place must be free again", free).await;
}

#[tokio::test]
async fn gauge_of_requests_in_flight_goes_down_again() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    hub.kubelet().get(PODS).await.expect(200);
    let metrics = hub.admin().get("/metrics").await.expect(200);
    let metrics = String::from_utf8_lossy(&metrics).into_owned();
    assert!(
        metrics.contains("node_yurthub_in_flight_requests_total 0\n"),
        "nothing is in flight any more:\n{metrics}"
    );
}
