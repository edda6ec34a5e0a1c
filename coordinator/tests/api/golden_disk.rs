//! Golden bytes of the disk: a coordinator starts on recorded files and serves what they hold. Files of earlier
//! versions look like these; see `yurt_test_support::golden` for a wanted change.

use http::Method;
use serde_json::{Value, json};
use yurt_test_support::golden::{self, Recording};

use crate::feeding::{Leader, service};
use crate::golden_feed::{STORE, led_pool, masked, play};
use crate::harness::{Client, Server, TRUSTING, config_map, rv};

/// Recorded files of a coordinator that was stopped.
const FILES: &str = "disk/coordinator";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const NODE_LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
const ELECTION: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/yurthub";
const SERVICES: &str = "/api/v1/services";
const SLICES: &str = "endpointslices.discovery.k8s.io";

/// Records the files: own objects and a deletion, the election, and replicas with tombstones, a range that a list
/// jumped over, two generations, a void, and further resources.
async fn record() {
    let (mut server, leader) = led_pool().await;
    write_own_objects(&server).await;
    play(&leader, STORE, &mut Recording::default()).await;
    // A list that lacks `new`, and does not say when it vanished.
    let web = leader
        .client
        .get("/api/v1/namespaces/shop/services/web")
        .await
        .expect(200);
    let lists = [
        ("services", 0, 1020, vec![web]),
        ("endpoints", 0, 1020, vec![endpoints("old", 1015)]),
    ];
    for (collection, generation, at, objects) in lists {
        leader.snapshot(collection, generation, at, &objects).await.expect(200);
    }
    let restored = [endpoints("new", 900)];
    leader
        .snapshot("endpoints", 1_000_007, 950, &restored)
        .await
        .expect(200);
    server
        .admin()
        .delete(&format!("/yurt/v1/feed/{SLICES}"))
        .await
        .expect(200);
    server.stop();
    golden::record_files(FILES, server.folder(), &["store.redb", "store.mark"]);
}

async fn write_own_objects(server: &Server) {
    let (admin, node) = (server.admin(), server.node("n2"));
    for name in ["gone", "first"] {
        admin.post(MAPS, &config_map(name, "1")).await.expect(201);
    }
    let mut kept = config_map("kept", "1");
    admin.post(MAPS, &kept).await.expect(201);
    kept["data"]["text"] = json!("\"quoted\" <ä&€> \u{1f980}\n");
    admin.put(&format!("{MAPS}/kept"), &kept).await.expect(200);
    admin.delete(&format!("{MAPS}/gone")).await.expect(200);
    let spec = json!({"holderIdentity": "n2", "leaseDurationSeconds": 40, "renewTime": "2026-01-02T03:04:05.000000Z"});
    let lease = json!({"metadata": {"name": "n2"}, "spec": spec});
    node.post(NODE_LEASES, &lease).await.expect(201);
}

fn endpoints(name: &str, version: u64) -> Value {
    let mut object = service(name, version);
    object["kind"] = json!("Endpoints");
    object
}

/// Adds the answer to a GET, with the generation of its RVs. The RVs of leases and of lists of own objects are those of
/// the start.
async fn get(recording: &mut Recording, client: &Client, path: &str) {
    let answer = client.get(path).await;
    let generation = answer.header("yurt-generation");
    let text = std::str::from_utf8(&answer.bytes).unwrap();
    let text = match (path.contains("/leases"), generation) {
        (true, _) => masked(text, "resourceVersion"),
        (false, Some(_)) => masked(text, "stalenessSeconds"),
        (false, None) => match text.split_once(r#""items":"#) {
            Some((_, items)) => items.to_owned(),
            None => masked(text, "stalenessSeconds"),
        },
    };
    let generation = generation.unwrap_or("none");
    recording.add(format!("GET {path} -> {}, generation {generation}", answer.code), text);
}

/// Adds the first `count` frames of a watch.
async fn watch(recording: &mut Recording, client: &Client, path: &str, count: usize) {
    let (_, frames) = client.frames(path, &[], count).await;
    recording.add(format!("WATCH {path}"), frames);
}

#[tokio::test]
async fn golden_files_are_opened_and_served() {
    if golden::is_updating() {
        record().await;
    }
    let folder = tempfile::tempdir().unwrap();
    golden::restore_files(FILES, folder.path());
    let server = Server::start_in(folder, &["--nodepool", "hangzhou", TRUSTING]).await;
    let (admin, reader, mut served) = (server.admin(), server.node("n2"), Recording::default());
    let lists = [
        SERVICES,
        "/api/v1/endpoints",
        "/apis/discovery.k8s.io/v1/endpointslices",
    ];
    for path in lists {
        get(&mut served, &reader, path).await;
    }
    for path in [
        "/apis/example.com/v1/widgets",
        MAPS,
        NODE_LEASES,
        ELECTION,
        "/api/v1/namespaces",
    ] {
        get(&mut served, &admin, path).await;
    }
    for path in ["/yurt/v1/feed", "/yurt/v1/members"] {
        get(&mut served, &admin, path).await;
    }
    // Deletions: an observed one, one that a list jumped over, and one of the lost history.
    watch(
        &mut served,
        &reader,
        &format!("{SERVICES}?watch=1&resourceVersion=1008"),
        2,
    )
    .await;
    watch(&mut served, &reader, "/api/v1/endpoints?watch=1&resourceVersion=920", 2).await;
    let first = rv(&admin.get(&format!("{MAPS}/first")).await.expect(200));
    watch(
        &mut served,
        &admin,
        &format!("{MAPS}?watch=1&resourceVersion={first}"),
        2,
    )
    .await;
    served.check("disk/coordinator.txt");

    // The leader of then goes on.
    let leader = Leader::again(&server, "n1").await;
    assert_eq!(
        (leader.store(), leader.epoch()),
        (server_store(&admin).await.as_str(), 1)
    );
    leader.events(1020, json!([]), 1030).await.expect(200);
    let body = config_map("new", "1").to_string().into();
    let json = [("content-type", "application/json")];
    let new = admin.send_bytes(Method::POST, MAPS, body, &json).await.expect(201);
    assert!(rv(&new).parse::<u64>().unwrap() > first.parse().unwrap());
}

async fn server_store(admin: &Client) -> String {
    let state = admin.get("/yurt/v1/feed").await.expect(200);
    state["store"].as_str().unwrap().to_owned()
}
