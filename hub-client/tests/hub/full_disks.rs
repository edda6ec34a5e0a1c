//! A disk without space under a running hub and under its restart: clients notice nothing, what is on the disk stays,
//! and everything is stored once there is space.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::Method;
use serde_json::{Value, json};
use yurt_runtime::http::full;
use yurt_runtime::tls::ClientTls;
use yurt_test_support::fault_fs::{FaultFs, Health};
use yurt_test_support::{TestDir, eventually};

use super::client::{Answer, Client, request};
use super::cloud::Cloud;
use super::harness::{NODE_USER, TestHub};
use super::joining::{ALMOST_OVER, DAY, cloud_with_token, pending, token_flags};
use super::power_cuts::{disk_troubles, flags};

const OWN_PODS: &str = "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1";
const SECRET: &str = "/api/v1/namespaces/shop/secrets?fieldSelector=metadata.name%3Ddb";
const CONFIG: &str = "/api/v1/namespaces/shop/configmaps?fieldSelector=metadata.name%3Dlogs";
const POD: &str = "/api/v1/namespaces/shop/pods/web";

fn pod(name: &str) -> Value {
    json!({"metadata": {"namespace": "shop", "name": name}, "spec": {"nodeName": "n1"}, "status": {"phase": "Pending"}})
}

async fn names(client: &Client, path: &str) -> Vec<String> {
    let answer = client.get(&format!("{path}&resourceVersion=0")).await;
    assert_eq!(answer.code, 200, "{path}");
    answer.names()
}

async fn write_status(client: &Client, phase: &str) -> Answer {
    let headers = [("content-type", "application/merge-patch+json")];
    let body = json!({"status": {"phase": phase}}).to_string();
    client
        .send(request(Method::PATCH, &format!("{POD}/status"), &headers, full(body)))
        .await
}

async fn until_complete(hub: &TestHub, name: &str) {
    hub.until("the selection", |state| {
        state["cache"]["selections"][name]["complete"] == true
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_disk_costs_no_client_anything_and_no_data_also_over_a_restart() {
    let mut cloud = Cloud::start().await;
    for name in ["web", "db"] {
        cloud.put("pods", pod(name));
    }
    cloud.put("secrets", json!({"metadata": {"namespace": "shop", "name": "db"}}));
    cloud.put("configmaps", json!({"metadata": {"namespace": "shop", "name": "logs"}}));
    let (folder, behind) = (Arc::new(TestDir::new()), TestDir::new());
    let Some(disk) = FaultFs::mount_or_skip(folder.path(), behind.path()) else {
        return;
    };
    let flags = flags(&cloud, &folder);
    let mut hub = TestHub::try_start(flags, folder.clone()).await.expect("it starts");
    assert_eq!(names(&hub.kubelet(), OWN_PODS).await, ["db", "web"]);
    until_complete(&hub, OWN_PODS).await;

    disk.set(Health::Full);
    let listed = hub.kubelet().get(&format!("{OWN_PODS}&resourceVersion=0")).await.json();
    let version = listed["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let mut watch = hub
        .kubelet()
        .watch(&format!("{OWN_PODS}&resourceVersion={version}"))
        .await;
    cloud.put("pods", pod("new"));
    assert_eq!(watch.told().await, "ADDED new");
    drop(watch);
    assert_eq!(names(&hub.kubelet(), SECRET).await, ["db"], "a new selection");
    assert_eq!(
        names(&hub.kubelet(), CONFIG).await,
        ["logs"],
        "a new selection that is filtered"
    );
    hub.kubelet().get(POD).await.expect(200);

    cloud.go_away().await;
    hub.restart().await;
    let kept = names(&hub.kubelet(), OWN_PODS).await;
    assert!(kept.contains(&"web".to_owned()), "the disk has it: {kept:?}");
    write_status(&hub.kubelet(), "Running").await.expect(200);
    let state = hub.state().await;
    assert!(
        !disk_troubles(&state).is_empty(),
        "the operator learns of it: {}",
        state["troubles"]
    );

    disk.set(Health::Works);
    hub.until("everything must be stored", |state| disk_troubles(state).is_empty())
        .await;
    let stored = std::fs::read_dir(folder.path().join("cache/local-writes")).map_or(0, Iterator::count);
    assert_eq!(stored, 1, "the status is on the disk");
    hub.crash().await;
    let state = hub.state().await;
    let written = &state["offline"]["localWrites"];
    assert_eq!(*written, json!(["shop/web"]), "accepted, and stored later");
    cloud.come_back().await;
    hub.until("the cloud is back", |state| state["cloudReachable"] == true)
        .await;
    assert_eq!(names(&hub.kubelet(), SECRET).await, ["db"]);
    until_complete(&hub, SECRET).await;
}

/// The kernel makes a file system read-only that has a fault.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hub_whose_disk_is_read_only_starts_again_and_serves_what_it_can_read_and_what_the_cloud_has() {
    let mut cloud = Cloud::start().await;
    cloud.put("pods", pod("web"));
    let (folder, behind) = (Arc::new(TestDir::new()), TestDir::new());
    let Some(disk) = FaultFs::mount_or_skip(folder.path(), behind.path()) else {
        return;
    };
    let flags = flags(&cloud, &folder);
    let mut hub = TestHub::try_start(flags, folder.clone()).await.expect("it starts");
    assert_eq!(names(&hub.kubelet(), OWN_PODS).await, ["web"]);
    hub.kubelet().get(POD).await.expect(200);
    until_complete(&hub, OWN_PODS).await;

    disk.set(Health::ReadOnly);
    cloud.put("pods", pod("db"));
    eventually("changes must be shown without the disk", async || {
        (names(&hub.kubelet(), OWN_PODS).await == ["db", "web"]).then_some(())
    })
    .await;
    hub.restart().await;
    assert_eq!(names(&hub.kubelet(), OWN_PODS).await, ["db", "web"]);
    let troubles = hub.state().await["troubles"].clone();
    let why = troubles["durable copy"]["why"].as_str().unwrap_or_default();
    assert!(why.contains("Read-only") && why.contains("memory"), "{troubles}");
    cloud.go_away().await;
    hub.kubelet().get(POD).await.expect(200);
    hub.restart().await;
    assert_eq!(
        names(&hub.kubelet(), OWN_PODS).await,
        ["web"],
        "the copy of the first run"
    );
    hub.kubelet().get(POD).await.expect(200);
    write_status(&hub.kubelet(), "Running").await.expect(200);

    disk.set(Health::Works);
    hub.until("the status must be stored", |state| {
        state["troubles"].get("local writes").is_none()
    })
    .await;
    hub.restart().await;
    assert_eq!(
        names(&hub.kubelet(), OWN_PODS).await,
        ["web"],
        "the copy of the first run"
    );
}

/// Files below `folder`, also the hidden ones.
fn files_in(folder: &Path) -> Vec<String> {
    let found = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    let files = found.filter(|entry| entry.file_type().unwrap().is_file());
    files.map(|entry| entry.file_name().into_string().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_start_on_a_full_disk_serves_and_stores_token_and_authority_once_there_is_space() {
    let cloud = Cloud::start().await;
    let (folder, behind) = (Arc::new(TestDir::new()), TestDir::new());
    let Some(disk) = FaultFs::mount_or_skip(folder.path(), behind.path()) else {
        return;
    };
    let mut flags = flags(&cloud, &folder);
    flags.push("--node-identity=token".to_owned());
    let root = folder.path().join("root");
    std::fs::remove_file(root.join("pki/yurthub-server-current.pem")).unwrap();
    std::fs::create_dir(folder.path().join("cache")).unwrap();

    disk.set(Health::Full);
    let mut hub = TestHub::try_start(flags, folder.clone()).await.expect("it starts");
    hub.wait_until_complete().await;
    hub.admin().get("/v1/readyz").await.expect(200);
    let troubles = hub.state().await["troubles"].clone();
    let files = ["kubelet.token", "pki/yurthub-ca.key", "pki/yurthub-ca.crt"];
    for file in files {
        let why = troubles[file]["why"].as_str().unwrap_or_default();
        let path = root.join(file).display().to_string();
        assert!(
            why.contains(&path) && why.contains("No space left"),
            "{file}: {troubles}"
        );
    }
    let nothing: [&str; 0] = [];
    assert_eq!(files_in(&root), nothing, "neither an empty nor a half file");
    assert_eq!(files_in(&root.join("pki")), nothing);
    hub.kubelet().get("/api/v1/pods").await.expect(401);
    hub.bearer("kubelet/v1", "").get("/api/v1/pods").await.expect(401);

    disk.set(Health::Works);
    hub.until("the files must be stored", |state| {
        files.iter().all(|file| state["troubles"].get(file).is_none())
    })
    .await;
    let token = std::fs::read_to_string(root.join("kubelet.token")).unwrap();
    let pinned = ClientTls {
        ca: root.join("pki/yurthub-ca.crt").into(),
        identity: None,
    };
    for is_restarted in [false, true] {
        if is_restarted {
            hub.restart().await;
        }
        let url = format!("https://127.0.0.1:{}", hub.secure_port());
        let kubelet = Client::new(&url, Some(pinned.config().unwrap()), "kubelet/v1", Some(&token));
        kubelet.get("/api/v1/pods").await.expect(200);
    }
}

/// A node that joins with a token, and whose disk can fill up.
struct Joining {
    cloud: Cloud,
    folder: Arc<TestDir>,
    flags: Vec<String>,
    disk: FaultFs,
}

// === impl Joining ===

impl Joining {
    /// `None` where a file system of ours cannot be mounted. `behind` outlives it.
    async fn new(behind: &TestDir) -> Option<Self> {
        let (cloud, folder) = (cloud_with_token().await, Arc::new(TestDir::new()));
        let disk = FaultFs::mount_or_skip(folder.path(), behind.path())?;
        for name in ["root", "cache"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        let flags = token_flags(&cloud, &folder);
        Some(Self {
            cloud,
            folder,
            flags,
            disk,
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("root").join(name)
    }

    /// True if this text says that there was no space for this file.
    fn is_told(&self, why: &Value, name: &str) -> bool {
        let why = why.as_str().unwrap_or_default();
        why.contains(&self.path(name).display().to_string()) && why.contains("No space left")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_that_joins_on_a_full_disk_names_the_file_and_joins_once_there_is_space() {
    let behind = TestDir::new();
    let Some(node) = Joining::new(&behind).await else {
        return;
    };
    node.cloud.requests().approve_all(DAY);
    node.disk.set(Health::Full);
    let (ports, mut known) = tokio::sync::watch::channel(None);
    let watching = async {
        let ports = known.wait_for(Option::is_some).await.unwrap().unwrap();
        let admin = TestHub::admin_at(ports);
        eventually("the state must name the file", async || {
            let state: Value = admin.get("/debug/state.json").await.json();
            let message = &state["certificate"]["message"];
            node.is_told(message, "bootstrap-hub.conf").then_some(())
        })
        .await;
        assert!(node.cloud.requests().all().is_empty(), "no request without its key");
        assert_eq!(files_in(&node.folder.path().join("root")), Vec::<String>::new());
        node.disk.set(Health::Works);
    };
    let started = TestHub::try_start_reporting(node.flags.clone(), node.folder.clone(), ports);
    let (hub, ()) = tokio::join!(started, watching);
    assert_eq!(hub.unwrap().state().await["certificate"]["state"], "Valid");
    assert_eq!(node.cloud.requests().all().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewal_on_a_full_disk_keeps_the_present_certificate_also_over_a_restart() {
    let behind = TestDir::new();
    let Some(node) = Joining::new(&behind).await else {
        return;
    };
    let approving = async {
        let name = pending(&node.cloud).await;
        node.cloud
            .requests()
            .approve(node.cloud.pki(), &name, NODE_USER, ALMOST_OVER);
    };
    let (hub, ()) = tokio::join!(TestHub::try_start(node.flags.clone(), node.folder.clone()), approving);
    let mut hub = hub.unwrap();
    hub.wait_until_complete().await;
    let name = pending(&node.cloud).await;
    let present = std::fs::read(node.path("pki/yurthub-current.pem")).unwrap();

    node.disk.set(Health::Full);
    node.cloud.requests().approve(node.cloud.pki(), &name, NODE_USER, DAY);
    hub.restart().await;
    let state = hub
        .until("the state must name the file", |state| {
            let why = &state["troubles"]["node certificate"]["why"];
            why.as_str().is_some_and(|why| why.contains("No space left"))
        })
        .await;
    assert_eq!(state["certificate"]["state"], "Valid", "{state}");
    assert_eq!(std::fs::read(node.path("pki/yurthub-current.pem")).unwrap(), present);
    hub.wait_until_complete().await;
    hub.kube_proxy().get("/api/v1/services").await.expect(200);

    node.disk.set(Health::Works);
    hub.until("the certificate must be renewed", |state| {
        state["troubles"].get("node certificate").is_none() && state["certificate"]["request"].is_null()
    })
    .await;
    assert_ne!(std::fs::read(node.path("pki/yurthub-current.pem")).unwrap(), present);
    assert_eq!(node.cloud.requests().all().len(), 2, "the same request");
}
