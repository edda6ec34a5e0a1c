//! Golden bytes of reads: a hub copies the recorded list and watch of a coordinator, and serves the recorded bytes.
//! Coordinators of other versions send such frames; see `yurt_test_support::golden` for a wanted change.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::{HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;
use serde_json::json;
use yurt_runtime::http::{Body, full, respond, stream as body_of};
use yurt_test_support::golden::Recording;

use super::pool::Pool;

const SERVICES: &str = "/api/v1/services";
const JSON: &str = "application/json";
/// Titles in the recordings of a coordinator, without the headers of the answers.
const LIST: &str = "GET /api/v1/services?resourceVersion=1006&resourceVersionMatch=Exact application/json ";
const WATCH: &str = "WATCH resourceVersion=1006&allowWatchBookmarks=true accept: application/json, yurt-replica: 1 ";

/// Bytes of the section whose title begins like this.
fn recorded(name: &str, title: &str) -> Bytes {
    let recording = Recording::read(name);
    let found = recorded_in(&recording, title);
    Bytes::copy_from_slice(found.unwrap_or_else(|| panic!("golden/{name} has no {title:?}")))
}

fn recorded_in<'a>(recording: &'a Recording, title: &str) -> Option<&'a [u8]> {
    let mut sections = recording.sections();
    sections.find(|(one, _)| one.starts_with(title)).map(|(_, bytes)| bytes)
}

/// Answers as the recorded coordinator: a list, then the watch of a replica, which stays open.
fn answer(request: &Request<Incoming>, list: &Bytes, frames: &Bytes) -> Response<Body> {
    let query = request.uri().query().unwrap_or_default();
    let json = HeaderValue::from_static(JSON);
    let mut response = if query.contains("watch=1") {
        let is_replica = request.headers().get("yurt-replica").is_some_and(|value| value == "1");
        assert!(is_replica && query.contains("allowWatchBookmarks=true"), "{request:?}");
        let first = match query.contains("resourceVersion=1006&") {
            true => frames.clone(),
            false => Bytes::new(),
        };
        let first = stream::iter([Ok::<_, Infallible>(first)]);
        respond(StatusCode::OK, json, body_of(first.chain(stream::pending())))
    } else {
        respond(StatusCode::OK, json, full(list.clone()))
    };
    response
        .headers_mut()
        .insert("yurt-generation", HeaderValue::from_static("0"));
    response
}

#[tokio::test]
async fn golden_frames_are_copied_and_served() {
    let pool = Pool::start().await;
    // The cloud is ahead of the recording.
    for number in 0..20 {
        let map = json!({"metadata": {"namespace": "shop", "name": format!("map-{number}")}});
        pool.cloud.put("configmaps", map);
    }
    let list = recorded("reads/lists.txt", LIST);
    let frames = recorded("reads/watches.txt", WATCH);
    let script = Arc::new((list, frames));
    pool.coordinator.on(SERVICES, move |request| {
        let answered = answer(&request, &script.0, &script.1);
        async move { answered }
    });
    let flags = ["--leader-elect=false", "--pool-data-verify-period=24h"];
    let hub = pool.hub("n1", &flags).await;
    hub.until("the recorded frames must be applied", |state| {
        state["collections"]["services"]["rv"] == "1014"
    })
    .await;
    let (reader, mut served) = (hub.component("flanneld"), Recording::default());
    for accept in [JSON, "application/vnd.kubernetes.protobuf"] {
        let answer = reader.get_with(SERVICES, &[("accept", accept)]).await;
        served.add(format!("GET {SERVICES} {accept} -> {}", answer.code), &answer.body);
    }
    // A step without a difference list: readers get each change.
    let mut watch = reader.watch(&format!("{SERVICES}?resourceVersion=1006")).await;
    let mut told = Vec::new();
    for _ in 0..4 {
        let event = watch.next().await.expect("the stream must go on");
        told.push(format!("{} {}", event.kind, String::from_utf8_lossy(&event.bytes)));
    }
    served.add("WATCH resourceVersion=1006", told.join("\n"));
    served.check("reads/hub.txt");
}
