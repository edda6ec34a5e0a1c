//! Memory, disk and files of the hub under answers and requests made to exhaust them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::future::select_all;
use futures_util::{StreamExt as _, stream};
use http::{HeaderValue, Response, StatusCode};
use serde_json::json;
use yurt_runtime::http::{Body, BoxError, empty, gzip_bytes, json as json_answer, respond, stream as stream_body};
use yurt_test_support::eventually;

use super::client::request;
use super::cloud::Cloud;
use super::configuring::configure;
use super::harness::TestHub;

const PODS: &str = "/api/v1/namespaces/shop/pods";
const SECRET: &str = "/api/v1/namespaces/shop/secrets?fieldSelector=metadata.name%3Ddb";
/// Plain bytes of one piece of the bomb.
const PIECE: usize = 1 << 20;
/// Pieces of the bomb.
const PIECES: usize = 512;

/// A piece that has about a thousandth of its bytes when compressed.
fn spaces() -> Bytes {
    gzip_bytes(&[b' '; PIECE])
}

/// A piece that has about a twentieth, so that few fit into the buffers of a connection.
fn white_space() -> Bytes {
    let mut random = fastrand::Rng::with_seed(1);
    let bytes: Vec<u8> = (0..PIECE)
        .map(|at| {
            if at % 4 == 0 {
                b" \n\t\r"[random.usize(..4)]
            } else {
                b' '
            }
        })
        .collect();
    gzip_bytes(&bytes)
}

/// An endless list in gzip; `taken` is the most pieces that one reader took.
fn bomb(taken: &Arc<AtomicUsize>, space: &Bytes) -> Response<Body> {
    let begin = gzip_bytes(br#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"5"},"items":["#);
    let (space, taken) = (space.clone(), taken.clone());
    let pieces = stream::iter(0..PIECES).map(move |piece| {
        taken.fetch_max(piece, Ordering::SeqCst);
        Ok::<_, BoxError>(if piece == 0 { begin.clone() } else { space.clone() })
    });
    let json = HeaderValue::from_static("application/json");
    let mut response = respond(StatusCode::OK, json, stream_body(pieces));
    let gzip = HeaderValue::from_static("gzip");
    response.headers_mut().insert("content-encoding", gzip);
    response
}

#[tokio::test]
async fn compressed_list_without_an_end_is_cut_at_the_limit_of_the_cache() {
    let cloud = Cloud::start().await;
    let taken = Arc::<AtomicUsize>::default();
    let (of_script, space) = (taken.clone(), white_space());
    assert!(space.len() > PIECE / 40, "{} bytes", space.len());
    cloud.on(PODS, move |request| {
        let is_of_hub = request.uri().query().unwrap_or_default().contains("limit=");
        let answer = match is_of_hub {
            true => bomb(&of_script, &space),
            false => json_answer(
                StatusCode::OK,
                r#"{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[]}"#,
            ),
        };
        async move { answer }
    });
    let limit = 4 << 20;
    let hub = TestHub::start(&cloud, &[&format!("--max-cache-bytes={limit}")]).await;
    // The cloud may be busy with its own answer.
    drop(hub.kubelet().get(PODS).await);
    hub.until("the selection must be refused", |state| {
        let selection = &state["cache"]["selections"][PODS];
        selection["complete"] == false && state["troubles"].to_string().contains("max-cache-bytes")
    })
    .await;
    // Those below the limit, and those in the buffers of both ends.
    let (taken, most) = (taken.load(Ordering::SeqCst), limit / PIECE + 12);
    assert!(taken < most, "{taken} pieces of {PIECE} bytes were taken");
    eventually("clients without a filter read at the cloud", async || {
        Some(hub.component("flanneld").get(PODS).await).filter(|answer| answer.code == 200)
    })
    .await;
}

/// The kubelet reads pods through a filter, so the hub has to decompress them.
#[tokio::test]
async fn compressed_object_without_an_end_is_refused_to_a_filtered_reader() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    let pod = |padding: usize| {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": {},
            "metadata": {"namespace": "shop", "name": "web", "resourceVersion": "5"}});
        let zipped = gzip_bytes(format!("{pod}{}", " ".repeat(padding)).as_bytes());
        let mut response = json_answer(StatusCode::OK, zipped);
        let gzip = HeaderValue::from_static("gzip");
        response.headers_mut().insert("content-encoding", gzip);
        response
    };
    for (padding, code) in [(0, 200), (16 * PIECE, 503)] {
        cloud.on(&format!("{PODS}/web"), move |_| std::future::ready(pod(padding)));
        let answer = hub
            .kubelet()
            .get_with(&format!("{PODS}/web"), &[("accept-encoding", "gzip")])
            .await;
        assert_eq!(
            answer.code,
            code,
            "{padding}: {:?}",
            String::from_utf8_lossy(&answer.body)
        );
    }
}

/// Objects that never end hold their bytes in plain text while they arrive, so that the limit of all of them holds.
#[tokio::test]
async fn objects_for_filtered_readers_are_counted_while_they_arrive() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    let pieces: Vec<Bytes> = std::iter::repeat_n(spaces(), 3).collect();
    cloud.on(&format!("{PODS}/web"), move |_| {
        let pieces = stream::iter(pieces.clone()).map(Ok::<_, BoxError>);
        let json = HeaderValue::from_static("application/json");
        let mut response = respond(StatusCode::OK, json, stream_body(pieces.chain(stream::pending())));
        let gzip = HeaderValue::from_static("gzip");
        response.headers_mut().insert("content-encoding", gzip);
        std::future::ready(response)
    });
    // Eight of these have all bytes that the node's components may hold.
    let reads = (0..9).map(|_| {
        let kubelet = hub.kubelet();
        Box::pin(async move { kubelet.get(&format!("{PODS}/web")).await })
    });
    let (first, ..) = select_all(reads).await;
    assert_eq!(first.code, 429, "{:?}", String::from_utf8_lossy(&first.body));
}

/// A client that accepts gzip receives the bytes of the cloud; nothing is decompressed for it.
#[tokio::test]
async fn compressed_answer_passes_as_it_is_and_takes_no_memory() {
    let cloud = Cloud::start().await;
    let path = "/api/v1/namespaces/shop/replicationcontrollers";
    let taken = Arc::<AtomicUsize>::default();
    let space = spaces();
    cloud.on(path, move |_| {
        let answer = bomb(&taken, &space);
        async move { answer }
    });
    let hub = TestHub::start(&cloud, &[]).await;
    let answer = hub
        .bearer("agent/1", "t")
        .get_with(path, &[("accept-encoding", "gzip")])
        .await;
    assert_eq!((answer.code, answer.header("content-encoding")), (200, Some("gzip")));
    assert!(answer.body.len() < PIECES * PIECE / 100, "{} bytes", answer.body.len());
}

#[tokio::test]
async fn one_pod_with_many_names_selections_and_objects_stays_within_the_bounds() {
    let cloud = Cloud::start().await;
    configure(&cloud, &json!({"cache_agents": "*"}));
    cloud.allow("pod", true);
    cloud.put("secrets", json!({"metadata": {"namespace": "shop", "name": "db"}}));
    let hub = TestHub::start(&cloud, &[]).await;
    hub.until("the configuration", |state| {
        state["hubConfig"]["keys"] == json!(["cache_agents"])
    })
    .await;
    cloud.on("/api/v1/namespaces/shop/configmaps/c", |_| async {
        json_answer(StatusCode::OK, "{}")
    });
    let before = metrics_lines(&hub).await;
    for round in 0..400_usize {
        let pod = hub.bearer(&format!("agent-{round}/v1"), "pod");
        pod.get("/api/v1/namespaces/shop/configmaps/c").await.expect(200);
        if round % 20 == 0 {
            let path = format!("/api/v1/namespaces/n{round}/secrets");
            pod.get(&path).await.expect(200);
        }
    }
    let state = hub.state().await;
    let selections = state["cache"]["selections"].as_object().unwrap().len();
    assert!((1..=64).contains(&selections), "{selections} selections");
    let state = hub
        .until("answers must be kept", |state| {
            state["offline"]["answers"]["records"].as_u64() > Some(10)
        })
        .await;
    let records = state["offline"]["answers"]["records"].as_u64().unwrap();
    let files = std::fs::read_dir(hub.folder().path().join("cache/answers"))
        .unwrap()
        .count();
    // One more file may be on its way.
    assert!(records <= 2048 && files <= 2049, "{records} records, {files} files");
    assert!(
        metrics_lines(&hub).await <= before + 20,
        "no metric grows with the names of clients"
    );
    // The node's own selections have their places.
    hub.kubelet().get(SECRET).await.expect(200);
    hub.until("the node's selection", |state| {
        state["cache"]["selections"][SECRET]["complete"] == true
    })
    .await;
}

async fn metrics_lines(hub: &TestHub) -> usize {
    let metrics = hub.admin().get("/metrics").await.expect(200);
    String::from_utf8_lossy(&metrics).lines().count()
}

#[tokio::test]
async fn secret_that_one_token_may_read_is_never_an_answer_to_another() {
    let mut cloud = Cloud::start().await;
    cloud.put(
        "secrets",
        json!({"metadata": {"namespace": "shop", "name": "db"}, "data": {"a": "Yg=="}}),
    );
    cloud.allow("mine", true);
    cloud.allow("denied", false);
    let mut hub = TestHub::start(&cloud, &[]).await;
    let get = "/api/v1/namespaces/shop/secrets/db";
    hub.bearer("coredns/1", "mine").get(SECRET).await.expect(200);
    hub.bearer("coredns/1", "mine").get(get).await.expect(200);
    hub.until("the selection", |state| {
        state["cache"]["selections"][format!("{SECRET}#tokens")]["complete"] == true
    })
    .await;
    let is_refused = async |hub: &TestHub, when: &str| {
        for token in ["denied", "unknown", "mine2", "min"] {
            for path in [SECRET, get] {
                for more in [
                    "",
                    "&watch=1",
                    "&resourceVersion=0",
                    "&resourceVersion=1&resourceVersionMatch=NotOlderThan",
                ] {
                    let path = format!("{path}{}{more}", if path.contains('?') { "" } else { "?a=b" });
                    let asked = request(http::Method::GET, &path, &[], empty());
                    let answer = hub.bearer("coredns/1", token).send(asked).await;
                    let body = String::from_utf8_lossy(&answer.body).into_owned();
                    assert!(
                        matches!(answer.code, 401 | 403 | 429 | 503),
                        "{when}, {token}, {path}: {}",
                        answer.code
                    );
                    assert!(!body.contains("Yg=="), "{when}, {token}, {path}");
                }
            }
        }
    };
    cloud.refuse_token("unknown");
    cloud.refuse_token("mine2");
    cloud.refuse_token("min");
    is_refused(&hub, "online").await;
    cloud.go_away().await;
    hub.until("the loss", |state| state["cloudReachable"] == false).await;
    let mine = hub
        .bearer("coredns/1", "mine")
        .get(&format!("{SECRET}&resourceVersion=0"))
        .await;
    assert_eq!(mine.json()["items"][0]["data"]["a"], "Yg==");
    is_refused(&hub, "offline").await;
    hub.restart().await;
    is_refused(&hub, "after a restart").await;
}
