//! Golden bytes of reads: lists, objects, and frames of watches, in every representation. Clients and hubs of other
//! versions read these bytes; see `yurt_test_support::golden` for a wanted change.

use http::HeaderMap;
use serde_json::{Value, json};
use yurt_test_support::golden::Recording;

use crate::feeding::{Leader, event};
use crate::golden_feed::{STORE, led_pool, play};
use crate::harness::{Client, Server, rv};

const SERVICES: &str = "/api/v1/services";
const WEB: &str = "/api/v1/namespaces/shop/services/web";

const JSON: &str = "application/json";
const YAML: &str = "application/yaml";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const TABLE: &str = "application/json;as=Table;g=meta.k8s.io;v=v1";
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
const METADATA_LIST_PROTOBUF: &str =
    "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

/// A pool that was fed the recorded calls of a hub.
async fn fed_pool() -> (Server, Leader) {
    let (server, leader) = led_pool().await;
    play(&leader, STORE, &mut Recording::default()).await;
    (server, leader)
}

/// Headers whose value does not depend on time, as part of a title.
fn described(headers: &HeaderMap) -> String {
    let shown = ["content-type", "yurt-generation", "retry-after"];
    let value = |name: &&str| Some(format!("{name}: {}", headers.get(*name)?.to_str().unwrap()));
    shown.iter().filter_map(value).collect::<Vec<_>>().join(", ")
}

/// Adds the answer to a GET.
async fn get(recording: &mut Recording, client: &Client, path: &str, accept: &str) -> Value {
    let answer = client.get_with(path, &[("accept", accept)]).await;
    let title = format!("GET {path} {accept} -> {} {}", answer.code, described(&answer.headers));
    recording.add(title, &answer.bytes);
    answer.body
}

/// Adds the first `count` frames of a watch.
async fn watch(recording: &mut Recording, client: &Client, query: &str, headers: &[(&str, &str)], count: usize) {
    let path = format!("{SERVICES}?watch=1&{query}");
    let (answered, frames) = client.frames(&path, headers, count).await;
    let sent: Vec<_> = headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    recording.add(
        format!("WATCH {query} {} -> {}", sent.join(", "), described(&answered)),
        frames,
    );
}

#[tokio::test]
async fn golden_lists_and_objects_are_answered() {
    let (server, _leader) = fed_pool().await;
    let (reader, mut recording) = (server.node("n2"), Recording::default());
    for accept in [JSON, YAML, PROTOBUF, TABLE, METADATA_LIST, METADATA_LIST_PROTOBUF] {
        get(&mut recording, &reader, SERVICES, accept).await;
    }
    for accept in [JSON, PROTOBUF, TABLE, METADATA] {
        get(&mut recording, &reader, WEB, accept).await;
    }
    for accept in [JSON, PROTOBUF] {
        get(&mut recording, &reader, "/api/v1/namespaces/shop/services/none", accept).await;
        get(&mut recording, &reader, "/api/v1/namespaces/none/services", accept).await;
    }
    for query in ["labelSelector=app%3Dweb", "fieldSelector=metadata.name%3Dweb"] {
        get(&mut recording, &reader, &format!("{SERVICES}?{query}"), JSON).await;
    }
    let page = get(&mut recording, &reader, &format!("{SERVICES}?limit=1"), JSON).await;
    let token = page["metadata"]["continue"].as_str().unwrap();
    let next = format!("{SERVICES}?limit=1&continue={token}");
    let rest = get(&mut recording, &reader, &next, JSON).await;
    assert_eq!(rest["items"].as_array().unwrap().len(), 1, "its own token");
    get(&mut recording, &reader, &format!("{SERVICES}?continue=%21"), JSON).await;
    for (version, rule) in [
        ("1", "Exact"),
        ("1006", "Exact"),
        ("4611686018427387905", "NotOlderThan"),
        ("0", "NotOlderThan"),
    ] {
        let query = format!("resourceVersion={version}&resourceVersionMatch={rule}");
        get(&mut recording, &reader, &format!("{SERVICES}?{query}"), JSON).await;
    }
    recording.check("reads/lists.txt");
}

#[tokio::test]
async fn golden_frames_of_watches_are_sent() {
    let (server, leader) = fed_pool().await;
    let (reader, mut recording) = (server.node("n2"), Recording::default());
    let list = reader.get(SERVICES).await.expect(200);
    let at = rv(&list);
    let position: u64 = at.parse().unwrap();
    // Before the three changes of the recording.
    let before = format!("resourceVersion={}", position - 3);
    for accept in [JSON, PROTOBUF, TABLE, METADATA] {
        watch(&mut recording, &reader, &before, &[("accept", accept)], 3).await;
    }
    let initial = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    for accept in [JSON, PROTOBUF] {
        watch(&mut recording, &reader, "", &[("accept", accept)], 2).await;
        watch(&mut recording, &reader, initial, &[("accept", accept)], 3).await;
        for expired in ["1", "4611686018427387905"] {
            let query = format!("resourceVersion={expired}");
            watch(&mut recording, &reader, &query, &[("accept", accept)], 1).await;
        }
        // The last bookmark of a stream comes before its end.
        let query = format!("resourceVersion={at}&allowWatchBookmarks=true&timeoutSeconds=3");
        watch(&mut recording, &reader, &query, &[("accept", accept)], 1).await;
    }
    let selected = format!("{before}&labelSelector=app%3Dweb");
    watch(&mut recording, &reader, &selected, &[], 1).await;

    // A difference goes as one step to a replica, and an object that leaves a selection is gone for its readers.
    let mut web = list["items"][1].clone();
    assert_eq!(web["metadata"]["name"], "web");
    web["metadata"]["labels"] = json!({});
    web["metadata"]["resourceVersion"] = json!((position + 1).to_string());
    let batch = json!({
        "after": at, "upTo": (position + 5).to_string(), "fresh": true, "step": true,
        "events": [event("MODIFIED", web)],
    });
    leader.call("services/events", batch).await.expect(200);
    let selected = format!("resourceVersion={at}&labelSelector=app%3Dweb");
    watch(&mut recording, &reader, &selected, &[], 1).await;
    for accept in [JSON, PROTOBUF] {
        let headers = [("accept", accept), ("yurt-replica", "1")];
        watch(
            &mut recording,
            &reader,
            &format!("{before}&allowWatchBookmarks=true"),
            &headers,
            6,
        )
        .await;
        let query = format!("resourceVersion={}", position + 5);
        watch(&mut recording, &reader, &query, &headers, 1).await;
    }
    recording.check("reads/watches.txt");
}
