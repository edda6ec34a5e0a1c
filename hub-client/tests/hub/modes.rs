//! Cloud mode: nothing is answered without the cloud, and filters apply all the same.

use http::Method;
use serde_json::json;
use yurt_runtime::http::full;

use super::client::request;
use super::cloud::Cloud;
use super::harness::{NODE, TestHub};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
const SERVICES: &str = "/api/v1/services";

#[tokio::test]
async fn hub_in_cloud_mode_answers_nothing_from_its_own_data() {
    let mut cloud = Cloud::start().await;
    cloud.put(
        "services",
        json!({"metadata": {"namespace": "shop", "name": "web"}, "spec": {}}),
    );
    let hub = TestHub::start(&cloud, &["--working-mode=cloud"]).await;
    let flanneld = hub.component("flanneld/1");
    assert_eq!(
        hub.kubelet().get(SERVICES).await.names(),
        ["web"],
        "filtered, from the hub"
    );
    hub.kubelet()
        .get("/api/v1/namespaces/shop/configmaps/c")
        .await
        .expect(404);
    cloud.go_away().await;
    hub.until("the loss must be detected", |state| state["cloudReachable"] == false)
        .await;
    for answer in [hub.kubelet().get(SERVICES).await, flanneld.get(SERVICES).await] {
        assert!([502, 503].contains(&answer.code), "{answer:?}");
    }
}

#[tokio::test]
async fn lease_in_cloud_mode_is_a_request_as_any_other() {
    let mut cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &["--working-mode=cloud"]).await;
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"namespace": "kube-node-lease", "name": NODE},
        "spec": {"holderIdentity": NODE, "leaseDurationSeconds": 40},
    });
    let send = async || {
        let headers = [("content-type", "application/json")];
        hub.kubelet()
            .send(request(Method::POST, LEASES, &headers, full(lease.to_string())))
            .await
    };
    send().await.expect(201);
    cloud.go_away().await;
    hub.until("the loss must be detected", |state| state["cloudReachable"] == false)
        .await;
    let code = send().await.code;
    assert!(
        [502, 503].contains(&code),
        "{code}: no hub may claim that the cloud took the lease"
    );
}
