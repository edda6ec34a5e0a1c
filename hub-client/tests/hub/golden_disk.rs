//! Golden bytes of the disk: files that a hub writes, and a start on recorded ones. Files of earlier versions look like
//! these; see `yurt_test_support::golden` for a wanted change.

use std::path::Path;

use http::StatusCode;
use serde_json::{Value, json};
use yurt_runtime::Clock;
use yurt_runtime::http::json as answer_json;
use yurt_test_support::golden::{self, Recording};

use super::client::Client;
use super::cloud::Cloud;
use super::harness::TestHub;
use super::sharing::{define_widgets, entry, list, widget};

/// Recorded files of a hub that was stopped.
const FILES: &str = "disk/hub";
/// Its files that are text.
const TEXTS: [&str; 5] = [
    "authorizations",
    "hub-config",
    "node-lease",
    "origin.json",
    "pool-scope.json",
];
const SERVICES: &str = "/api/v1/services";
const ENDPOINTS: &str = "/api/v1/endpoints";
const WIDGETS: &str = "/apis/example.com/v1/widgets";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1";
/// Copies that are complete in the recording.
const FOLLOWED: [&str; 4] = [
    "members",
    "services",
    "endpointslices.discovery.k8s.io",
    "widgets.example.com",
];
/// Answer of the cloud to a renewal.
const RENEWED: &str = r#"{"kind":"Lease","metadata":{"name":"n1","resourceVersion":"77"}}"#;
/// Token of a pod that may read the Services.
const TOKEN: &str = "token-of-the-recording";
/// Token of the second page of Endpoints.
const PAGE: &str = "page-of-the-recording";
/// RV of the last object that is put before the first deletion.
const ALL_THREE: &str = "1009";

/// The cloud when the hub starts for the first time.
async fn cloud() -> Cloud {
    let cloud = Cloud::start().await;
    cloud.allow(TOKEN, true);
    cloud.on(LEASE, async |_| answer_json(StatusCode::OK, RENEWED));
    define_widgets(&cloud);
    for name in ["n1", "n2"] {
        let labels = json!({"apps.openyurt.io/nodepool": "hangzhou"});
        cloud.put("nodes", json!({"metadata": {"name": name, "labels": labels}}));
    }
    list(&cloud, &json!([entry("example.com", "v1", "widgets")]).to_string());
    cloud.put("widgets", widget("a", 1));
    for name in ["db", "new", "web"] {
        cloud.put("services", object("Service", name));
    }
    for name in ["a", "b"] {
        cloud.put("endpoints", object("Endpoints", name));
    }
    serve_pages(&cloud);
    cloud
}

fn object(kind: &str, name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": kind,
        "metadata": {"namespace": "shop", "name": name, "annotations": {"text": "\"quoted\" <ä&€> \u{1f980}\n"}},
        "later": {"field": 1.0, "list": [null, true, -7]},
    })
}

/// Endpoints come in two pages, and the second one does not come yet.
fn serve_pages(cloud: &Cloud) {
    let first = page(cloud, "a", json!({"continue": PAGE, "remainingItemCount": 1}));
    cloud.on(ENDPOINTS, move |request| {
        let first = first.clone();
        async move {
            let query = request.uri().query().unwrap_or_default();
            match query.contains("continue=") || query.contains("watch=") {
                true => answer_json(StatusCode::SERVICE_UNAVAILABLE, "{}"),
                false => answer_json(StatusCode::OK, first),
            }
        }
    });
}

/// The second page comes, and the first one does not come again.
fn serve_second_page(cloud: &Cloud) {
    let second = page(cloud, "b", json!({}));
    cloud.on(ENDPOINTS, move |request| {
        let second = second.clone();
        async move {
            match request
                .uri()
                .query()
                .unwrap_or_default()
                .contains(&format!("continue={PAGE}"))
            {
                true => answer_json(StatusCode::OK, second),
                false => answer_json(StatusCode::SERVICE_UNAVAILABLE, "{}"),
            }
        }
    });
}

/// A page of Endpoints with one object, of the state in which the last object was put.
fn page(cloud: &Cloud, name: &str, mut metadata: Value) -> String {
    let [item, last] = [name, "b"].map(|name| cloud.get("endpoints", Some("shop"), name).unwrap());
    metadata["resourceVersion"] = last["metadata"]["resourceVersion"].clone();
    json!({"kind": "EndpointsList", "apiVersion": "v1", "metadata": metadata, "items": [item]}).to_string()
}

/// Changes the cloud while the hub watches.
fn change(cloud: &Cloud) {
    cloud.delete("services", "shop", "db");
}

/// Changes the cloud while the hub has no link. Afterwards the cloud has forgotten its history.
fn change_unseen(cloud: &Cloud) {
    cloud.delete("services", "shop", "new");
    cloud.put("services", object("Service", "web"));
    cloud.restore(cloud.backup());
}

/// Runs a hub until its files hold a deletion, a range that a list jumped over, a partial list, the rights of a caller,
/// the kubelet's lease, and further resources.
async fn written() -> TestHub {
    let mut cloud = cloud().await;
    let mut hub = TestHub::start_at_once(&cloud, &["--nodepool-name=hangzhou"]).await;
    let has = |state: &Value, names: &[&str], cloud: &Cloud| {
        let is_there = |name: &&str| {
            let held = &state["collections"][*name];
            held["complete"] == true && held["fresh"] == true && held["rv"] == cloud.version()
        };
        names.iter().all(is_there) && state["collections"]["endpoints"]["listing"]["objects"] == 1
    };
    hub.until("the copies must be there", |state| has(state, &FOLLOWED, &cloud))
        .await;
    change(&cloud);
    hub.until("the change must arrive", |state| has(state, &["services"], &cloud))
        .await;
    hub.bearer("pod/v1", TOKEN).get(SERVICES).await.expect(200);
    hub.kubelet().put(LEASE, "application/json", "{}").await.expect(200);
    cloud.go_away().await;
    hub.until("the link must be gone", |state| {
        state["collections"]["services"]["fresh"] == false
    })
    .await;
    change_unseen(&cloud);
    cloud.come_back().await;
    hub.until("the cloud must be listed", |state| has(state, &FOLLOWED, &cloud))
        .await;
    hub.stop().await;
    hub
}

/// The texts of `cache`, without hashes and times.
fn texts(cache: &Path) -> Recording {
    let mut texts = Recording::default();
    for name in TEXTS {
        let mut text = std::fs::read(cache.join(name)).unwrap();
        if name == "authorizations" {
            let mut rights: Value = serde_json::from_slice(&text).unwrap();
            assert_eq!(
                serde_json::to_vec(&rights).unwrap().len(),
                text.len(),
                "no field more or less"
            );
            let row = &mut rights["answers"][0];
            (row["caller"], row["question"], row["age"]) = (json!("hash"), json!("hash"), json!(0));
            (rights["salt"], rights["savedAt"]) = (json!("random"), json!(0));
            text = rights.to_string().into_bytes();
        }
        texts.add(name, text);
    }
    texts
}

/// Files of a recording in which time did not pass: rights end.
fn restore(cache: &Path) {
    std::fs::remove_dir_all(cache).unwrap();
    golden::restore_files(FILES, cache);
    let path = cache.join("authorizations");
    let mut rights: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    rights["savedAt"] = json!(Clock::system().unix().secs);
    std::fs::write(&path, rights.to_string()).unwrap();
}

async fn get(recording: &mut Recording, client: &Client, path: &str) {
    let answer = client.get(path).await;
    recording.add(format!("GET {path} -> {}", answer.code), &answer.body);
}

#[tokio::test]
async fn golden_files_are_written_and_read() {
    let hub = written().await;
    let cache = hub.folder().path().join("cache");
    texts(&cache).check("disk/hub-files.txt");
    if golden::is_updating() {
        golden::record_files(FILES, &cache, &[&["replicas.redb"], &TEXTS[..]].concat());
    }
    drop(hub);

    // A hub without a link, on the recorded files.
    let mut cloud = cloud().await;
    change(&cloud);
    change_unseen(&cloud);
    let mut hub = TestHub::start_at_once(&cloud, &["--nodepool-name=hangzhou"]).await;
    hub.stop().await;
    cloud.go_away().await;
    restore(&hub.folder().path().join("cache"));
    hub.restart().await;
    let mut served = Recording::default();
    let state = hub.state().await;
    for (name, held) in state["collections"].as_object().unwrap() {
        let shown = ["complete", "rv", "durableRv", "generation", "objects"];
        let shown: Vec<_> = shown.iter().map(|field| format!("{field}: {}", held[field])).collect();
        served.add(format!("state of {name}"), shown.join(", "));
    }
    for path in [SERVICES, WIDGETS, ENDPOINTS] {
        get(&mut served, &hub.component("flanneld"), path).await;
    }
    get(&mut served, &hub.kubelet(), LEASE).await;
    let pod = hub.bearer("pod/v1", TOKEN).get(SERVICES).await;
    assert_eq!(pod.names(), ["web"], "the cloud allowed it before");
    // A reader that knew all three Services hears of both deletions.
    let mut watch = hub
        .component("flanneld")
        .watch(&format!("{SERVICES}?resourceVersion={ALL_THREE}"))
        .await;
    let told = [watch.told().await, watch.told().await, watch.told().await];
    served.add("watch of services", told.join("\n"));
    served.check("disk/hub.txt");

    // The partial list goes on.
    serve_second_page(&cloud);
    cloud.come_back().await;
    hub.until("the list must end", |state| {
        state["collections"]["endpoints"]["complete"] == true
    })
    .await;
    assert_eq!(hub.component("flanneld").get(ENDPOINTS).await.names(), ["a", "b"]);
}
