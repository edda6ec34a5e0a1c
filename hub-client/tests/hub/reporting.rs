//! Reports of the hub to its operator, and its stop.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::StatusCode;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::watch::EventType;
use yurt_codec::protobuf::{self, Envelope};
use yurt_runtime::http::{APPLICATION_JSON, json as answer_json, respond, stream as body_of};
use yurt_test_support::eventually;

use super::cloud::Cloud;
use super::harness::{NODE, TestHub};
use super::pool::{ELECTION_LEASES, NODE_LEASES, Pool, STORE};

const SERVICES: &str = "/api/v1/services";
const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
/// Keys of `state.json`, at the top and per collection; tools read it by these names.
const STATE: [&str; 17] = [
    "node",
    "nodePool",
    "hubState",
    "leader",
    "leaderSilentSince",
    "epoch",
    "generation",
    "cloudReachable",
    "coordinatorReachable",
    "cutOff",
    "forwardsHeartbeats",
    "relay",
    "electionsWon",
    "conditions",
    "troubles",
    "feedLag",
    "collections",
];
const COLLECTION: [&str; 12] = [
    "source",
    "complete",
    "fresh",
    "rv",
    "generation",
    "objects",
    "bytes",
    "durableRv",
    "stalenessSeconds",
    "oversized",
    "sourceSwitches",
    "relistsForced",
];

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[tokio::test]
async fn state_has_every_key() {
    let mut cloud = Cloud::start().await;
    cloud.put("services", json!({"metadata": {"namespace": "shop", "name": "web"}}));
    cloud.put(
        "nodes",
        json!({"metadata": {"name": NODE, "labels": {"apps.openyurt.io/nodepool": "hangzhou"}}}),
    );
    let hub = TestHub::start(&cloud, &["--nodepool-name=hangzhou"]).await;
    let state = hub
        .until("the cloud must be found", |state| state["cloudReachable"] == true)
        .await;
    assert!(keys(&state).is_superset(&BTreeSet::from(STATE)), "{state}");
    assert_eq!((&state["node"], &state["nodePool"]), (&json!("n1"), &json!("hangzhou")));
    assert_eq!(
        (&state["hubState"], &state["coordinatorReachable"]),
        (&json!("PendingHub"), &json!(false))
    );
    let collections = ["endpoints", "endpointslices.discovery.k8s.io", "members", "services"];
    assert_eq!(keys(&state["collections"]), BTreeSet::from(collections));
    for name in collections {
        assert_eq!(keys(&state["collections"][name]), BTreeSet::from(COLLECTION), "{name}");
    }
    let services = &state["collections"]["services"];
    assert_eq!(
        (&services["source"], &services["objects"], &services["fresh"]),
        (&json!("cloud"), &json!(1), &json!(true))
    );
    assert_eq!(services["rv"], cloud.version());
    cloud.go_away().await;
    let state = hub
        .until("the loss must be reported", |state| {
            state["collections"]["services"]["fresh"] == false
        })
        .await;
    assert_eq!(state["collections"]["services"]["source"], "none");
    assert_eq!(state["collections"]["services"]["complete"], true);
}

#[tokio::test]
async fn leader_whose_lease_has_expired_is_reported_as_silent() {
    let pool = Pool::start().await;
    pool.give_lease_to("n2_1");
    let since = "2026-11-30T00:00:00Z";
    let feed = json!({"store": STORE, "versions": [1], "holder": "n2_1", "holderSilentSince": since}).to_string();
    pool.coordinator.on("/yurt/v1/feed", move |_| {
        let feed = feed.clone();
        async move { answer_json(StatusCode::OK, feed) }
    });
    let hub = pool.hub("n1", &[]).await;
    let is_silent = |state: &Value| state["leaderSilentSince"] == since && state["leader"] == "n2_1";
    let state = hub.until("the silence must be reported", is_silent).await;
    let conditions = state["conditions"].as_array().unwrap();
    let leading = conditions.iter().find(|one| one["type"] == "Leading").unwrap();
    assert_eq!(leading["reason"], "NobodyLeads");
}

#[tokio::test]
async fn metrics_tell_where_requests_were_answered() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    hub.kube_proxy().get(SERVICES).await.expect(200);
    hub.kubelet()
        .get("/apis/coordination.k8s.io/v1/leases")
        .await
        .expect(200);
    hub.component("curl").get("/api/v1/pods").await.expect(401);
    hub.until("the cloud must be found", |state| state["cloudReachable"] == true)
        .await;
    let answer = hub.admin().get("/metrics").await;
    assert!(
        answer
            .header("content-type")
            .unwrap()
            .starts_with("text/plain; version=0.0.4")
    );
    let text = String::from_utf8(answer.expect(200).to_vec()).unwrap();
    let server = format!("node_yurthub_server_healthy_status{{server=\"{}\"}} 1", cloud.addr());
    for line in [
        server.as_str(),
        r#"node_yurthub_requests_total{by="replica"} 1"#,
        r#"node_yurthub_requests_total{by="cloud"} 1"#,
        r#"node_yurthub_requests_total{by="refused"} 1"#,
        r#"node_yurthub_collection_fresh{collection="services"} 1"#,
        "node_yurthub_yurt_coordinator_yurthub_role 3",
        r#"node_yurthub_collection_complete{collection="services"} 1"#,
        r#"node_yurthub_collection_source{collection="services",source="cloud"} 1"#,
        r#"node_yurthub_collection_source{collection="services",source="coordinator"} 0"#,
        r#"node_yurthub_collection_source_switches_total{collection="services"} 0"#,
        r#"node_yurthub_collection_relists_forced_total{collection="services"} 0"#,
        r#"leader_election_master_status{name="yurthub"} 0"#,
        "node_yurthub_elections_won_total 0",
        "node_yurthub_cut_off 0",
        "node_yurthub_troubles 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    for (component, resource) in [("kubelet", "leases"), ("yurthub", "services")] {
        let name = "node_yurthub_cloud_bytes_total";
        let labels = format!("component=\"{component}\",direction=\"received\",resource=\"{resource}\"");
        let begin = format!("{name}{{{labels}}} ");
        let bytes = text.lines().find_map(|line| line.strip_prefix(&begin));
        assert!(bytes.is_some_and(|bytes| bytes != "0"), "{begin}\n{text}");
    }
    let lag = text.contains("node_yurthub_feed_lag_seconds{");
    assert!(!lag, "only a leader knows how far the coordinator is behind");
    let staleness = r#"node_yurthub_collection_staleness_seconds{collection="services"} "#;
    let seconds: f64 = text
        .lines()
        .find_map(|line| line.strip_prefix(staleness))
        .unwrap()
        .parse()
        .unwrap();
    assert!(seconds < 60.0, "{seconds}");
}

/// The hub refuses what the cloud alone can answer, and answers the rest itself.
#[tokio::test]
async fn request_is_counted_once_by_what_answered_it_in_the_end() {
    const POD: &str = "/api/v1/namespaces/shop/pods/web";
    let mut cloud = Cloud::start().await;
    cloud.on(POD, async |_| {
        let pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"namespace": "shop", "name": "web"}});
        yurt_runtime::http::json(StatusCode::OK, pod.to_string())
    });
    let hub = TestHub::start(&cloud, &[]).await;
    hub.kubelet().get(POD).await.expect(200);
    hub.until("the pod must be kept", |state| {
        state["offline"]["answers"]["records"] == 1
    })
    .await;
    cloud.go_away().await;
    hub.component("flanneld").get("/api/v1/pods").await.expect(503);
    hub.kubelet().get(POD).await.expect(200);
    let lease = format!("{NODE_LEASES}/{NODE}");
    hub.kubelet().put(&lease, "application/json", "{}").await;
    let text = String::from_utf8(hub.admin().get("/metrics").await.expect(200).to_vec()).unwrap();
    let counts = text
        .lines()
        .filter_map(|line| line.strip_prefix("node_yurthub_requests_total"));
    let counts: Vec<_> = counts.collect();
    assert_eq!(counts, [r#"{by="cloud"} 1"#, r#"{by="hub"} 2"#, r#"{by="refused"} 1"#]);
}

/// Conformance: 7.61
#[tokio::test]
async fn number_of_a_coordinator_never_reaches_the_cloud() {
    let cloud = Cloud::start().await;
    cloud.put("services", json!({"metadata": {"namespace": "shop", "name": "web"}}));
    let hub = TestHub::start(&cloud, &[]).await;
    let foreign = format!("resourceVersion={}", (1_u64 << 62) + 5);
    let proxy = hub.kube_proxy();
    let listed = proxy.get(&format!("{SERVICES}?{foreign}")).await;
    assert_eq!((listed.code, listed.json()["reason"].as_str()), (410, Some("Expired")));
    let stream = proxy.get(&format!("{SERVICES}?watch=1&{foreign}")).await;
    let told = String::from_utf8_lossy(&stream.expect(200)).into_owned();
    assert!(
        told.contains(r#""type":"ERROR""#) && told.contains(r#""code":410"#),
        "{told}"
    );
    let seen = cloud.seen(SERVICES);
    let reached = seen.iter().filter_map(|seen| seen.query.as_deref());
    assert_eq!(reached.filter(|query| query.contains(&foreign)).count(), 0);
}

#[tokio::test]
async fn error_event_is_a_frame_of_the_encoding_of_its_watch() {
    const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
    let cloud = Cloud::start().await;
    cloud.put("services", json!({"metadata": {"namespace": "shop", "name": "web"}}));
    let hub = TestHub::start(&cloud, &[]).await;
    let foreign = format!("{SERVICES}?watch=1&resourceVersion={}", 1_u64 << 62);
    for client in [hub.kubelet(), hub.component("flanneld")] {
        let watch = async |accept: &str| client.get_with(&foreign, &[("accept", accept)]).await;
        let answer = watch("application/json").await;
        assert_eq!(answer.header("content-type"), Some("application/json"));
        let event: Value = serde_json::from_slice(answer.body.strip_suffix(b"\n").unwrap()).unwrap();
        assert_eq!(
            (&event["type"], &event["object"]["code"]),
            (&json!("ERROR"), &json!(410))
        );
        let answer = watch(PROTOBUF).await;
        let content_type = format!("{PROTOBUF};stream=watch");
        assert_eq!(answer.header("content-type"), Some(content_type.as_str()));
        let at = answer.body.windows(4).position(|bytes| bytes == protobuf::PREFIX);
        let body = &answer.body[at.expect("the object must have an envelope")..];
        assert_eq!(
            answer.body,
            protobuf::frame(EventType::Error, body),
            "one frame and no more"
        );
        let envelope = Envelope::parse(body).unwrap();
        let status = protobuf::decode(envelope.message().unwrap(), envelope.raw).unwrap();
        let status: Value = serde_json::from_slice(&status).unwrap();
        assert_eq!(
            (envelope.kind, &status["code"], &status["reason"]),
            ("Status", &json!(410), &json!("Expired"))
        );
    }
}

#[tokio::test]
async fn a_loss_is_told_as_a_condition_and_a_forced_relist_is_counted() {
    let mut cloud = Cloud::start().await;
    cloud.put("services", json!({"metadata": {"namespace": "shop", "name": "web"}}));
    let hub = TestHub::start(&cloud, &[]).await;
    let foreign = format!("{SERVICES}?watch=1&resourceVersion={}", 1_u64 << 62);
    let told = hub.kube_proxy().get(&foreign).await;
    assert!(String::from_utf8_lossy(&told.expect(200)).contains(r#""code":410"#));
    let status = |state: &Value, kind: &str| {
        let conditions = state["conditions"].as_array().unwrap();
        let found = conditions.iter().find(|one| one["type"] == kind).unwrap();
        found["status"].as_str().unwrap().to_owned()
    };
    let state = hub
        .until("the cloud must be found", |state| {
            status(state, "CloudReachable") == "True"
        })
        .await;
    assert_eq!(state["collections"]["services"]["relistsForced"], 1);
    for (kind, expected) in [
        ("CoordinatorReachable", "Unknown"),
        ("PoolDataComplete", "True"),
        ("PoolDataFresh", "True"),
        ("Leading", "False"),
        ("HeartbeatDelegated", "False"),
    ] {
        assert_eq!(status(&state, kind), expected, "{kind}");
    }
    cloud.go_away().await;
    let state = hub
        .until("the loss must be reported", |state| {
            status(state, "PoolDataFresh") == "False"
        })
        .await;
    assert_eq!(status(&state, "PoolDataComplete"), "True", "what is held is served");
}

#[tokio::test]
async fn what_the_cloud_refuses_is_told_in_its_words_until_it_is_granted() {
    const REFUSAL: &str = "endpointslices.discovery.k8s.io is forbidden: User \"system:node:n1\" cannot list";
    let cloud = Cloud::start().await;
    cloud.on(SLICES, async |_| {
        let status = json!({"kind": "Status", "status": "Failure", "code": 403, "message": REFUSAL});
        let json = "application/json".parse().unwrap();
        respond(
            StatusCode::FORBIDDEN,
            json,
            yurt_runtime::http::full(status.to_string()),
        )
    });
    let hub = TestHub::start_at_once(&cloud, &[]).await;
    let name = "endpointslices.discovery.k8s.io";
    let state = hub
        .until("the refusal must be reported", |state| {
            state["troubles"][name].is_object()
        })
        .await;
    let why = state["troubles"][name]["why"].as_str().unwrap();
    assert_eq!(why, format!("cloud: 403 Forbidden: {REFUSAL}"));
    let conditions = state["conditions"].as_array().unwrap();
    let complete = conditions.iter().find(|one| one["type"] == "PoolDataComplete").unwrap();
    assert!(complete["message"].as_str().unwrap().contains(REFUSAL), "{complete}");

    cloud.off(SLICES);
    let state = hub
        .until("what is granted must come", |state| state["troubles"] == json!({}))
        .await;
    assert_eq!(state["collections"][name]["complete"], true);
}

#[tokio::test]
async fn a_cloud_that_does_not_answer_is_told_with_the_reason() {
    let mut cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    hub.until("the cloud must be found", |state| state["cloudReachable"] == true)
        .await;
    cloud.go_away().await;
    let state = hub
        .until("the loss must be reported", |state| state["cloudReachable"] == false)
        .await;
    let why = state["troubles"]["cloud"]["why"].as_str().unwrap();
    assert!(why.starts_with(&cloud.url()), "{why}");
    let conditions = state["conditions"].as_array().unwrap();
    let reachable = conditions.iter().find(|one| one["type"] == "CloudReachable").unwrap();
    assert_eq!(reachable["message"], why);
}

#[tokio::test]
async fn health_is_answered() {
    let cloud = Cloud::start().await;
    let hub = TestHub::start(&cloud, &[]).await;
    for path in ["/healthz", "/livez", "/readyz"] {
        assert_eq!(hub.admin().get(path).await.expect(200), "ok", "{path}");
    }
    for path in ["/v1/healthz", "/v1/readyz"] {
        assert_eq!(hub.admin().get(path).await.expect(200), "OK", "{path}: OpenYurt's text");
    }
}

/// Conformance: 3.F53, 7.22
#[tokio::test]
async fn stop_is_quick_and_ends_open_watches_cleanly() {
    let cloud = Cloud::start().await;
    cloud.put("services", json!({"metadata": {"namespace": "shop", "name": "web"}}));
    let mut hub = TestHub::start(&cloud, &[]).await;
    let mut local: Vec<_> = vec![
        hub.kube_proxy().watch(SERVICES).await,
        hub.kubelet().watch(SERVICES).await,
    ];
    for watch in &mut local {
        assert_eq!(watch.told().await, "ADDED web");
    }
    cloud.on("/api/v1/pods", async |_| {
        let silence = futures_util::stream::pending::<Result<bytes::Bytes, std::convert::Infallible>>();
        respond(
            StatusCode::OK,
            "application/json".parse().unwrap(),
            yurt_runtime::http::stream(silence),
        )
    });
    let http2 = hub.pod(&cloud, "token");
    let passed_on = [
        hub.component("flanneld").watch("/api/v1/pods").await,
        http2.watch("/api/v1/pods").await,
    ];
    tokio::time::timeout(Duration::from_secs(5), hub.stop())
        .await
        .expect("a stop with open watches must be quick");
    for mut watch in local.into_iter().chain(passed_on) {
        assert!(watch.next().await.is_none(), "clients resume at their position");
    }
}

#[tokio::test]
async fn stop_stores_what_is_known() {
    let mut cloud = Cloud::start().await;
    let mut hub = TestHub::start(&cloud, &[]).await;
    cloud.put("services", json!({"metadata": {"namespace": "shop", "name": "web"}}));
    hub.until("the copy must follow", |state| {
        state["collections"]["services"]["objects"] == 1
    })
    .await;
    hub.stop().await;
    assert!(hub.folder().path().join("cache/replicas.redb").exists());
    cloud.go_away().await;
    hub.restart().await;
    let services = hub.state().await["collections"]["services"].clone();
    assert_eq!(
        (&services["objects"], &services["durableRv"]),
        (&json!(1), &services["rv"])
    );
}

/// Makes the coordinator refuse requests for this path.
fn refuse(pool: &Pool, path: &str, message: &'static str) {
    pool.coordinator.on(path, move |_| {
        let status = json!({"kind": "Status", "status": "Failure", "code": 403, "message": message});
        let json = "application/json".parse().unwrap();
        let body = yurt_runtime::http::full(status.to_string());
        std::future::ready(respond(StatusCode::FORBIDDEN, json, body))
    });
}

#[tokio::test]
async fn refusal_of_a_candidate_is_no_trouble_once_another_hub_leads() {
    let (pool, lease) = (Pool::start().await, format!("{ELECTION_LEASES}/yurthub"));
    refuse(&pool, &lease, "the disk is full");
    let hub = pool.hub(NODE, &[]).await;
    hub.until("the refusal must be shown", |state| {
        state["troubles"]["election"].is_object()
    })
    .await;
    pool.give_lease_to("n2_x");
    pool.coordinator.off(&lease);
    let state = hub.until("another hub leads", |state| state["leader"] == "n2_x").await;
    assert_eq!(state["troubles"]["election"], Value::Null);
}

#[tokio::test]
async fn what_the_coordinator_refuses_is_told_in_its_words() {
    let pool = Pool::start().await;
    refuse(
        &pool,
        &format!("{ELECTION_LEASES}/yurthub"),
        "no candidate of this pool",
    );
    refuse(&pool, NODE_LEASES, "no member of this pool");
    let hub = pool.hub(NODE, &[]).await;
    let beat = format!(r#"{{"metadata":{{"name":"{NODE}"}},"spec":{{"holderIdentity":"{NODE}"}}}}"#);
    hub.kubelet()
        .put(&format!("{NODE_LEASES}/{NODE}"), "application/json", beat)
        .await;
    let state = hub
        .until("both must be reported", |state| {
            state["troubles"].as_object().is_some_and(|troubles| {
                troubles.contains_key("election") && troubles.contains_key("node lease in the pool")
            })
        })
        .await;
    let why = |what: &str| state["troubles"][what]["why"].as_str().unwrap().to_owned();
    assert_eq!(why("election"), "coordinator: 403 Forbidden: no candidate of this pool");
    assert_eq!(
        why("node lease in the pool"),
        "coordinator: 403 Forbidden: no member of this pool"
    );
}

#[tokio::test]
async fn what_a_leader_was_refused_is_no_trouble_of_a_hub_that_does_not_lead() {
    const FEED: &str = "feed of services";
    let mut pool = Pool::start().await;
    for call in ["events", "snapshot", "snapshot/bodies"] {
        pool.coordinator
            .on(&format!("/yurt/v1/feed/services/{call}"), async |_| {
                let status = json!({"kind": "Status", "status": "Failure", "code": 503, "message": "the disk is full"});
                let json = "application/json".parse().unwrap();
                let body = yurt_runtime::http::full(status.to_string());
                respond(StatusCode::SERVICE_UNAVAILABLE, json, body)
            });
    }
    let hub = pool.hub(NODE, &[]).await;
    let state = hub
        .until("the refusal must be reported", |state| {
            state["troubles"][FEED].is_object()
        })
        .await;
    let why = state["troubles"][FEED]["why"].as_str().unwrap();
    assert_eq!(why, "503 Service Unavailable: the disk is full");

    pool.cloud.go_away().await;
    hub.until("it leads no more and has no feed", |state| {
        state["hubState"] == "FollowerHub" && state["troubles"][FEED].is_null()
    })
    .await;
}

/// A watch that ends as it should is no loss, but its successor is refused.
#[tokio::test]
async fn leader_whose_next_watch_is_refused_reports_no_fresh_data() {
    let pool = Pool::start().await;
    let (over, at) = (CancellationToken::new(), pool.cloud.version());
    let ends = over.clone();
    pool.cloud.on(SERVICES, move |request| {
        let is_watch = request.uri().query().is_some_and(|query| query.contains("watch="));
        let metadata = json!({"resourceVersion": at});
        let list = json!({"apiVersion": "v1", "kind": "ServiceList", "metadata": metadata, "items": []});
        let ends = ends.clone();
        async move {
            match is_watch {
                false => answer_json(StatusCode::OK, list.to_string()),
                true if ends.is_cancelled() => answer_json(StatusCode::SERVICE_UNAVAILABLE, "{}"),
                true => {
                    let end = stream::once(async move {
                        ends.cancelled_owned().await;
                        Ok::<_, Infallible>(Bytes::new())
                    });
                    respond(StatusCode::OK, APPLICATION_JSON, body_of(end))
                }
            }
        }
    });
    let _hub = pool.leader("n1").await;
    let is_fed = async |fresh: bool| {
        let calls = pool.fed("services/events");
        calls.last().filter(|call| call["fresh"] == fresh).map(|_| ())
    };
    eventually("the watch is open", async || is_fed(true).await).await;
    over.cancel();
    eventually("the data is reported as stale", async || is_fed(false).await).await;
}
