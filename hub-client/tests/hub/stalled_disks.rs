//! A disk that hangs under a running hub: requests that do not need it are answered.

use std::sync::Arc;

use http::StatusCode;
use serde_json::json;
use yurt_runtime::http::json as answer_json;
use yurt_test_support::TestDir;
use yurt_test_support::fault_fs::{FaultFs, Health};

use super::cloud::Cloud;
use super::harness::TestHub;
use super::power_cuts::flags;

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1";
const OWN_PODS: &str = "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1&resourceVersion=0";
/// Answer of the cloud to a renewal.
const RENEWED: &str = r#"{"kind":"Lease","metadata":{"name":"n1","resourceVersion":"77"}}"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn disk_that_hangs_delays_no_beat_and_no_read() {
    let mut cloud = Cloud::start().await;
    cloud.on(LEASE, async |_| answer_json(StatusCode::OK, RENEWED));
    cloud.put("services", json!({"metadata": {"namespace": "shop", "name": "web"}}));
    cloud.put(
        "pods",
        json!({"metadata": {"namespace": "shop", "name": "web"}, "spec": {"nodeName": "n1"}}),
    );
    let (folder, behind) = (Arc::new(TestDir::new()), TestDir::new());
    let Some(disk) = FaultFs::mount_or_skip(folder.path(), behind.path()) else {
        return;
    };
    let flags = flags(&cloud, &folder);
    let mut hub = TestHub::try_start(flags, folder.clone()).await.expect("it starts");
    hub.wait_until_complete().await;
    hub.kubelet().get(OWN_PODS).await.expect(200);

    disk.set(Health::Stalls);
    // The first beat of a process is stored.
    for _ in 0..2 {
        let beat = hub.kubelet().put(LEASE, "application/json", "{}").await;
        assert_eq!(beat.expect(200), RENEWED);
    }
    hub.kubelet().get(LEASE).await.expect(200);
    assert_eq!(hub.kubelet().get(OWN_PODS).await.names(), ["web"]);
    assert_eq!(hub.kube_proxy().get("/api/v1/services").await.names(), ["web"]);
    hub.admin().get("/v1/healthz").await.expect(200);

    disk.set(Health::Works);
    hub.stop().await;
    cloud.go_away().await;
    hub.restart().await;
    assert_eq!(hub.kubelet().get(LEASE).await.expect(200), RENEWED, "it is stored");
}
