//! Data on the links between hubs and coordinator: compressed, bounded, and not sent twice.

use std::io::{Read as _, Write as _};

use bytes::Bytes;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use http::Method;
use serde_json::{Value, json};

use crate::feeding::{Leader, event, fed_pool, service};
use crate::harness::Server;

const SERVICES: &str = "/api/v1/services";
const EVENTS: &str = "/yurt/v1/feed/services/events?version=1";

fn gzip(plain: &[u8]) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap().into()
}

#[tokio::test]
async fn bodies_of_an_unfinished_snapshot_are_not_asked_for_again() {
    let (server, first) = fed_pool().await;
    let objects: Vec<Value> = (0..6).map(|n| service(&format!("s{n}"), 101 + n)).collect();
    let index = |objects: &[Value]| -> Vec<Value> {
        let row = |object: &Value| {
            let metadata = &object["metadata"];
            json!([
                format!("x/{}", metadata["name"].as_str().unwrap()),
                metadata["resourceVersion"]
            ])
        };
        objects.iter().map(row).collect()
    };
    let body = json!({"after": "0", "at": "150", "index": index(&objects)});
    let announced = first.call("services/snapshot", body.clone()).await.expect(200);
    assert_eq!(announced["missing"].as_array().unwrap().len(), 6);
    let some = json!({"at": "150", "objects": objects[..3], "last": false});
    first.call("services/snapshot/bodies", some).await.expect(200);
    // The link broke; the same leader begins again.
    let missing = first.call("services/snapshot", body).await.expect(200)["missing"].clone();
    assert_eq!(missing, json!(["x/s3", "x/s4", "x/s5"]));
    // Another hub leads. In between the cloud has changed one of the objects that are here.
    first.release().await;
    let second = Leader::elect(&server, "n2").await;
    let mut now = objects.clone();
    now[1] = service("s1", 160);
    let body = json!({"after": "0", "at": "170", "index": index(&now)});
    let missing = second.call("services/snapshot", body).await.expect(200)["missing"].clone();
    assert_eq!(missing, json!(["x/s1", "x/s3", "x/s4", "x/s5"]));
    let rest = json!({"at": "170", "objects": [now[1], now[3], now[4], now[5]], "last": true, "fresh": true});
    let done = second.call("services/snapshot/bodies", rest).await.expect(200);
    assert_eq!(done["appliedUpTo"], "170");
    let listed = server.node("n1").get(SERVICES).await.expect(200);
    assert_eq!(listed["items"], json!(now));
    // In another generation an RV may have another content: nothing is reused.
    let body = json!({"after": "0", "at": "110", "generation": 1, "index": index(&now[..1])});
    let missing = second.call("services/snapshot", body).await.expect(200)["missing"].clone();
    assert_eq!(missing, json!(["x/s0"]));
}

/// An index of these objects.
fn index_of(objects: &[Value]) -> Vec<Value> {
    let row = |object: &Value| {
        let metadata = &object["metadata"];
        json!([
            format!("x/{}", metadata["name"].as_str().unwrap()),
            metadata["resourceVersion"]
        ])
    };
    objects.iter().map(row).collect()
}

/// Two concurrent first lists, larger than the limit in memory, with every fault in between.
#[tokio::test]
async fn large_snapshots_end_and_no_refusal_takes_back_what_was_sent() {
    /// Objects that etcd accepts, too; together more than 16 MiB.
    const EACH: usize = 14;
    const BYTES: usize = 1400 << 10;
    let server = Server::pool().await;
    let leader = Leader::elect(&server, "n1").await;
    leader.feed_members(&["n1", "n2"]).await;
    let large = |n: usize| {
        let mut object = service(&format!("big-{n:02}"), 100 + n as u64);
        object["metadata"]["annotations"] = json!({"blob": "x".repeat(BYTES)});
        object
    };
    let objects: Vec<Value> = (0..EACH).map(large).collect();
    let announce = json!({"at": "200", "index": index_of(&objects), "fresh": true});
    for collection in ["services", "endpoints"] {
        let answer = leader
            .call(&format!("{collection}/snapshot"), announce.clone())
            .await
            .expect(200);
        assert_eq!(answer["missing"].as_array().unwrap().len(), EACH);
    }
    let send = async |collection: &str, at: &str, object: &Value| {
        let body = json!({"at": at, "objects": [object], "fresh": true});
        leader.call(&format!("{collection}/snapshot/bodies"), body).await
    };
    let left = |n: usize| if n == EACH { json!([]) } else { json!(EACH - n) };
    for (n, object) in objects.iter().enumerate() {
        for collection in ["services", "endpoints"] {
            let path = format!("{collection}/snapshot/bodies");
            let late = send(collection, "199", object).await.expect(409);
            assert_eq!(late["reason"], "gap");
            send(collection, "200", &service("stranger", 7)).await.expect(400);
            let too_much = json!({"at": "200", "objects": vec![object; 6]});
            leader.call(&path, too_much).await.expect(413);
            let part = json!({"at": "210", "from": 3, "index": []});
            leader.call(&format!("{collection}/snapshot"), part).await.expect(409);
            let answer = send(collection, "200", object).await.expect(200);
            assert_eq!(answer["missing"], left(n + 1), "{collection}");
            if n + 1 < EACH {
                let again = leader.call(&format!("{collection}/snapshot"), announce.clone()).await;
                assert_eq!(again.expect(200)["missing"].as_array().unwrap().len(), EACH - n - 1);
            }
        }
    }
    let listed = server.node("n2").get(SERVICES).await.expect(200);
    assert!(listed["items"] == json!(objects), "as they were sent");
    let files = std::fs::read_dir(server.folder()).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    assert_eq!(names.filter(|name| name.ends_with(".bodies")).count(), 0);
}

/// An index larger than one body may be.
#[tokio::test]
async fn index_of_any_length_comes_in_parts() {
    const ALL: usize = 12_000;
    let server = Server::pool().await;
    let leader = Leader::elect(&server, "n1").await;
    leader.feed_members(&["n1", "n2"]).await;
    let name = |n: usize| format!("{n:06}-{}", "x".repeat(700));
    let slim = |n: usize| json!({"metadata": {"name": name(n), "namespace": "x", "uid": "u", "resourceVersion": "90"}});
    let objects: Vec<Value> = (0..ALL).map(slim).collect();
    let part = async |from: usize, to: usize, more: bool| {
        let index = index_of(&objects[from..to]);
        let body = json!({"at": "100", "from": from, "more": more, "index": index, "fresh": true});
        leader.call("services/snapshot", body).await
    };
    let whole = json!({"at": "100", "index": index_of(&objects)});
    leader.call("services/snapshot", whole).await.expect(413);
    assert_eq!(part(0, 6_000, true).await.expect(200), json!({"announced": 6_000}));
    // A part is lost on the way: the leader begins the index again.
    assert_eq!(part(9_000, ALL, false).await.expect(409)["reason"], "gap");
    part(0, 6_000, true).await.expect(200);
    let missing = part(6_000, ALL, false).await.expect(200)["missing"].clone();
    assert_eq!(missing.as_array().unwrap().len(), ALL);
    for (sent, chunk) in objects.chunks(6_000).enumerate() {
        let body = json!({"at": "100", "objects": chunk, "fresh": true});
        let answer = leader.call("services/snapshot/bodies", body).await.expect(200);
        assert_eq!(answer["missing"], [json!(6_000), json!([])][sent]);
    }
    let state = leader.client.get("/yurt/v1/feed").await.expect(200);
    let services = &state["collections"]["services"];
    assert_eq!(
        (&services["complete"], &services["appliedUpTo"]),
        (&json!(true), &json!("100"))
    );
}

#[tokio::test]
async fn bodies_of_the_feed_are_bounded_compressed_or_not() {
    let (_server, leader) = fed_pool().await;
    let state = leader.client.get("/yurt/v1/feed").await.expect(200);
    assert_eq!(state["encodings"], json!(["gzip"]));
    let changed = service("a", 110);
    let body = json!({"after": "100", "events": [event("MODIFIED", changed)], "upTo": "110", "fresh": true});
    let text = leader.claiming(body).to_string();
    let send = async |body: Bytes, encoding: &str| {
        let headers = [("content-type", "application/json"), ("content-encoding", encoding)];
        leader.client.send_bytes(Method::POST, EVENTS, body, &headers).await
    };
    send(gzip(text.as_bytes()), "br").await.expect(415);
    send(Bytes::from(text.clone()), "gzip").await.expect(400);
    send(gzip(text.as_bytes()).slice(..40), "gzip").await.expect(400);
    let taken = send(gzip(text.as_bytes()), "gzip").await.expect(200);
    assert_eq!(taken["appliedUpTo"], "110");
    // 8 MiB and a byte: refused as it is, and when it decompresses to that.
    let long = [text.as_bytes(), &vec![b' '; (8 << 20) + 1 - text.len()]].concat();
    // Not on the thread of both ends: they would take the silence for a dead connection.
    let plain = long.clone();
    let compressed = tokio::task::spawn_blocking(move || gzip(&plain)).await.unwrap();
    send(compressed, "gzip").await.expect(413);
    send(Bytes::from(long.clone()), "identity").await.expect(413);
    send(Bytes::from(long).slice(..8 << 20), "identity").await.expect(200);
}

/// In an unknown member, or in an object.
#[tokio::test]
async fn bodies_of_the_feed_are_nested_as_deeply_as_other_bodies() {
    let (_server, leader) = fed_pool().await;
    let arrays = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    let body = json!({"after": "100", "events": [event("MODIFIED", service("a", 110))], "upTo": "110", "fresh": true});
    let text = leader.claiming(body).to_string();
    let more = |levels: usize| text.replacen('{', &format!("{{\"more\":{},", arrays(levels)), 1);
    let inside = text.replacen("\"spec\":{", &format!("\"spec\":{{\"more\":{},", arrays(20_000)), 1);
    assert_ne!(inside, text);
    for body in [more(10_000), more(200_000), inside] {
        let answer = leader.client.send_bytes(Method::POST, EVENTS, body.into(), &[]).await;
        assert_eq!(answer.code, 400, "{}", answer.body);
    }
    let deepest = leader
        .client
        .send_bytes(Method::POST, EVENTS, more(9_999).into(), &[])
        .await;
    assert_eq!(deepest.expect(200)["appliedUpTo"], "110");
}

/// An object of about 11.6 KB as pods produce them: most of it repeats, ids do not.
fn slice_like(number: u64) -> Value {
    let noise = |n: u64| (number * 1_000 + n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let endpoint = |n: u64| {
        json!({
            "addresses": [format!("10.1.{}.{}", n / 8, noise(n) % 256)],
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": format!("node-{}", noise(n) % 1000),
            "targetRef": {
                "kind": "Pod", "namespace": "shop", "name": format!("web-{:05x}", noise(n + 50) >> 44),
                "uid": format!("{:016x}{:016x}", noise(n + 100), noise(n + 200)),
            },
            "zone": "z1",
        })
    };
    let mut object = service("a", 110 + number);
    object["endpoints"] = (0..45).map(endpoint).collect();
    object
}

#[tokio::test]
async fn replicas_that_ask_get_compressed_watches_and_nobody_else_does() {
    let (server, leader) = fed_pool().await;
    let events: Vec<Value> = (0..40).map(|n| event("MODIFIED", slice_like(n))).collect();
    leader.events(100, json!(events), 200).await.expect(200);
    let path = format!("{SERVICES}?watch=1&resourceVersion=100&timeoutSeconds=2");
    let node = server.node("n2");
    let (headers, plain) = node.get_bytes(&path, &[("accept-encoding", "gzip")]).await;
    assert!(
        headers.get("content-encoding").is_none(),
        "strangers are not asked to unpack a stream"
    );
    let replica = [("yurt-replica", "1"), ("accept-encoding", "gzip")];
    let (headers, compressed) = node.get_bytes(&path, &replica).await;
    assert_eq!(headers["content-encoding"], "gzip");
    assert_eq!(headers["vary"], "Accept-Encoding");
    let mut unpacked = Vec::new();
    GzDecoder::new(&compressed[..]).read_to_end(&mut unpacked).unwrap();
    let told = |text: &[u8]| {
        let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let read = lines.map(|line| serde_json::from_slice::<Value>(line).unwrap());
        read.filter(|event| event["type"] != "BOOKMARK").collect::<Vec<_>>()
    };
    assert!(told(&unpacked) == told(&plain) && told(&plain).len() == 40);
    let (of_plain, of_compressed) = (plain.len() / 40, compressed.len() / 40);
    assert!(
        of_plain > 10_000 && of_compressed < 2_000,
        "{of_compressed} of {of_plain} bytes an event"
    );
}

/// An index of `a` at 150, with this history.
fn with_history(history: &Value) -> Value {
    json!({"at": "200", "index": [["x/a", "150"]], "history": history})
}

/// The store is lost and fed again: its former readers resume, and receive the deletions since.
///
/// Conformance: 7.50
#[tokio::test]
async fn readers_go_on_at_a_store_that_was_fed_with_its_history() {
    let mut server = Server::pool().await;
    let leader = Leader::elect(&server, "n1").await;
    leader.feed_members(&["n1", "n2"]).await;
    let history = json!({
        "floor": "100",
        "gaps": [{"from": "120", "to": "130"}],
        "tombstones": [service("b", 140)],
        "ranges": [{"after": "120", "to": "130", "object": service("c", 110)}],
    });
    leader
        .call("services/snapshot", with_history(&history))
        .await
        .expect(200);
    let bodies = json!({"at": "200", "objects": [service("a", 150)], "fresh": true});
    leader.call("services/snapshot/bodies", bodies).await.expect(200);
    for stored in [false, true] {
        if stored {
            server.kill();
            server.start_again().await;
        }
        let reader = server.node("n2");
        let told = async |from: u64| {
            let mut watch = reader.watch(&format!("{SERVICES}?resourceVersion={from}")).await;
            let mut told = Vec::new();
            while told.last() != Some(&"MODIFIED a".to_owned()) {
                told.push(watch.told().await);
            }
            told
        };
        assert_eq!(told(110).await, ["DELETED c", "DELETED b", "MODIFIED a"]);
        assert_eq!(told(140).await, ["MODIFIED a"]);
        for from in [99, 125] {
            let mut watch = reader.watch(&format!("{SERVICES}?resourceVersion={from}")).await;
            let event = watch.next().await.unwrap();
            assert_eq!(
                (event.kind.as_str(), &event.object["code"]),
                ("ERROR", &json!(410)),
                "{from}"
            );
        }
    }
}

#[tokio::test]
async fn history_that_is_none_is_refused_and_a_copy_keeps_its_own() {
    let server = Server::pool().await;
    let leader = Leader::elect(&server, "n1").await;
    leader.feed_members(&["n1", "n2"]).await;
    let none = json!({"floor": "100", "gaps": [], "tombstones": [], "ranges": []});
    let changed = |field: &str, value: Value| {
        let mut history = none.clone();
        history[field] = value;
        history
    };
    let range = |after: &str, to: &str| json!([{"after": after, "to": to, "object": service("c", 110)}]);
    for wrong in [
        changed("floor", json!("201")),
        changed("gaps", json!([{"from": "130", "to": "130"}])),
        changed("gaps", json!([{"from": "130", "to": "201"}])),
        changed("tombstones", json!([service("b", 100)])),
        changed("tombstones", json!([service("b", 201)])),
        changed("tombstones", json!([{"kind": "Service"}])),
        changed("ranges", range("0", "130")),
        changed("ranges", range("130", "120")),
        changed("ranges", range("90", "100")),
    ] {
        leader.call("services/snapshot", with_history(&wrong)).await.expect(400);
    }
    leader
        .snapshot("services", 0, 180, &[service("a", 150)])
        .await
        .expect(200);
    // A coordinator with a copy has its own history.
    let done = leader.call("services/snapshot", with_history(&none)).await.expect(200);
    assert_eq!(done["missing"], json!([]));
    let mut watch = server
        .node("n2")
        .watch(&format!("{SERVICES}?resourceVersion=170"))
        .await;
    let event = watch.next().await.unwrap();
    assert_eq!((event.kind.as_str(), &event.object["code"]), ("ERROR", &json!(410)));
}
