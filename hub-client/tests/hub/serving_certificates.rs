//! The certificate of the HTTPS port for pods comes from the cluster.

use std::sync::Arc;
use std::time::Duration;

use clap::Parser as _;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use yurt_hub_client::config::Flags;
use yurt_hub_client::failures::Failures;
use yurt_hub_client::identity::serving::ServingCertificate;
use yurt_hub_client::upstream::Upstreams;
use yurt_runtime::tls::{CertificateInfo, PemIdentity, PemSource};
use yurt_runtime::{Clock, TaskGroup};
use yurt_test_support::{TestDir, eventually};

use super::cloud::Cloud;
use super::harness::{HUB_OF_PODS, NODE, NODE_USER, TestHub};

const DAY: Duration = Duration::from_secs(24 * 3600);
/// Certificates of the test CA begin an hour ago, so with this validity the renewal is due at once.
const ALMOST_OVER: Duration = Duration::from_secs(300);

/// A node at `cloud`.
struct Node {
    folder: TestDir,
    upstreams: Upstreams,
    tasks: TaskGroup,
    failures: Failures,
}

// === impl Node ===

impl Node {
    fn at(cloud: &Cloud) -> Self {
        let (folder, tasks) = (TestDir::new(), TaskGroup::new());
        let kubeconfig = cloud
            .pki()
            .write_kubeconfig(&folder, "kubelet.conf", &cloud.url(), &cloud.pki().node(NODE));
        let flags = [
            "yurthub".to_owned(),
            format!("--node-name={NODE}"),
            format!("--server-addr={}", cloud.url()),
            "--bootstrap-mode=kubeletcertificate".to_owned(),
            format!("--kubeconfig={}", kubeconfig.display()),
        ];
        let config = Flags::try_parse_from(flags).unwrap().check().unwrap();
        let upstreams = Upstreams::new(&config, &tasks).unwrap();
        let failures = Failures::new(Clock::system());
        Self {
            folder,
            upstreams,
            tasks,
            failures,
        }
    }

    /// Starts a keeper; `addresses` are those of Service `default/kubernetes`.
    fn keep(&self, addresses: Option<&str>) -> CancellationToken {
        let (stop, addresses) = (CancellationToken::new(), addresses.map(|one| vec![one.to_owned()]));
        let keeper = ServingCertificate {
            node: NODE.to_owned(),
            address: "169.254.2.1".to_owned(),
            cluster: Arc::new(move || addresses.clone()),
            root: self.folder.path().to_owned(),
            cloud: self.upstreams.cloud.clone(),
            clock: Clock::system(),
            failures: self.failures.clone(),
        };
        self.tasks.spawn("keep", keeper.keep(stop.clone()));
        stop
    }

    /// User of the certificate in use; empty without one.
    fn user(&self) -> String {
        let file = self.folder.path().join("pki/yurthub-pods-current.pem");
        if !file.exists() {
            return String::new();
        }
        PemIdentity::one_file(&file)
            .load()
            .expect("certificate and key belong together");
        CertificateInfo::leaf(&PemSource::from(file))
            .unwrap()
            .identity
            .common_name
    }
}

async fn pending(cloud: &Cloud) -> String {
    let first = async || cloud.requests().pending().into_iter().next();
    eventually("a certificate must be requested", first).await
}

#[tokio::test]
async fn certificate_for_pods_is_requested_installed_and_renewed() {
    let cloud = Cloud::start().await;
    let node = Node::at(&cloud);
    let stop = node.keep(Some("10.96.0.1"));
    let name = pending(&cloud).await;
    let spec = cloud.requests().all()[0]["spec"].clone();
    assert_eq!(
        (&spec["signerName"], &spec["usages"]),
        (
            &json!("kubernetes.io/kubelet-serving"),
            &json!(["digital signature", "key encipherment", "server auth"])
        )
    );
    assert_eq!(node.user(), "");
    stop.cancel();
    // A restart finds the same request.
    let stop = node.keep(Some("10.96.0.1"));
    cloud.requests().approve(cloud.pki(), &name, NODE_USER, ALMOST_OVER);
    eventually("the certificate must be installed", async || {
        (node.user() == NODE_USER).then_some(())
    })
    .await;
    let next = pending(&cloud).await;
    assert_ne!(next, name, "the renewal has a key of its own");
    cloud.requests().approve(cloud.pki(), &next, NODE_USER, DAY);
    eventually("the renewal must be installed", async || {
        let key = node.folder.path().join("pki/yurthub-pods-pending.key");
        (!key.exists()).then_some(())
    })
    .await;
    stop.cancel();
    assert_eq!(cloud.requests().all().len(), 2);
}

#[tokio::test]
async fn certificate_without_a_name_of_today_is_replaced() {
    let cloud = Cloud::start().await;
    let node = Node::at(&cloud);
    let stop = node.keep(Some("10.96.0.1"));
    let first = pending(&cloud).await;
    cloud.requests().approve(cloud.pki(), &first, NODE_USER, DAY);
    let installed = async || (node.user() == NODE_USER).then_some(());
    eventually("the certificate must be installed", installed).await;
    stop.cancel();
    // It is not due, and has all names.
    let stop = node.keep(None);
    // The Service has another address.
    let _running = node.keep(Some("10.112.0.1")).drop_guard();
    let second = pending(&cloud).await;
    assert_eq!((second == first, cloud.requests().all().len()), (false, 2));
    stop.cancel();
}

#[tokio::test]
async fn refused_request_is_shown_and_nothing_is_requested_for_unknown_addresses() {
    let cloud = Cloud::start().await;
    let node = Node::at(&cloud);
    let stop = node.keep(None);
    eventually("the reason must be shown", async || {
        let why = node.failures.why("serving certificate for pods")?;
        why.contains("default/kubernetes").then_some(())
    })
    .await;
    stop.cancel();
    assert!(cloud.requests().all().is_empty());
    let _running = node.keep(Some("10.96.0.1")).drop_guard();
    let name = pending(&cloud).await;
    cloud.requests().deny(&name, "no");
    eventually("the reason must be shown", async || {
        let why = node.failures.why("serving certificate for pods")?;
        why.contains(&format!("kubectl delete csr {name}")).then_some(())
    })
    .await;
    assert_eq!(node.user(), "");
}

#[tokio::test]
async fn request_that_waits_for_approval_is_shown_while_pods_cannot_trust_the_port() {
    let cloud = Cloud::start().await;
    let node = Node::at(&cloud);
    let _running = node.keep(Some("10.96.0.1")).drop_guard();
    let shown = async |name: &str| {
        eventually("the command must be shown", async || {
            let why = node.failures.why("serving certificate for pods")?;
            why.contains(&format!("kubectl certificate approve {name}"))
                .then_some(())
        })
        .await;
    };
    let first = pending(&cloud).await;
    shown(&first).await;
    // The certificate is in the last tenth of its life when it is issued.
    cloud.requests().approve(cloud.pki(), &first, NODE_USER, ALMOST_OVER);
    let renewal = pending(&cloud).await;
    shown(&renewal).await;
    cloud.requests().approve(cloud.pki(), &renewal, NODE_USER, DAY);
    eventually("nothing is wrong any more", async || {
        let why = node.failures.why("serving certificate for pods");
        why.is_none().then_some(())
    })
    .await;
}

#[tokio::test]
async fn pods_are_led_to_no_certificate_of_the_hubs_own() {
    let mut cloud = Cloud::start().await;
    let metadata = json!({"namespace": "default", "name": "kubernetes"});
    let raw = cloud.put(
        "services",
        json!({"metadata": metadata, "spec": {"clusterIP": "10.96.0.1"}}),
    );
    let mut hub = TestHub::start(&cloud, &[]).await;
    let pem = hub.folder().path().join("root/pki/yurthub-server-current.pem");
    let placed = std::fs::read(&pem).unwrap();
    std::fs::remove_file(&pem).unwrap();
    hub.restart().await;
    hub.wait_until_complete().await;
    let seen = async |hub: &TestHub| hub.kubelet().get("/api/v1/services").await.json()["items"][0].clone();
    assert_eq!(seen(&hub).await, raw);
    let why = hub.state().await["troubles"]["address for pods"]["why"].to_string();
    for part in ["kube-apiserver", "trust", "pki/yurthub-server-current.pem"] {
        assert!(why.contains(part), "{part} in {why}");
    }
    let filters = async |hub: &TestHub| hub.admin().get("/debug/filters").await.json();
    assert_eq!(filters(&hub).await["podsTrustHub"], false);
    std::fs::write(&pem, placed).unwrap();
    // The certificate is in use without the cloud, too.
    cloud.go_away().await;
    hub.restart().await;
    assert_eq!(seen(&hub).await["spec"]["clusterIP"], HUB_OF_PODS);
    assert_eq!(filters(&hub).await["podsTrustHub"], true);
}
