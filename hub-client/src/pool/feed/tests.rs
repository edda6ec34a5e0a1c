//! Reads of the feeder from a collection, and the requests that follow.

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::sync::mpsc;
use yurt_apimachinery::kind::find_kind;
use yurt_pool_protocol::election::Input;
use yurt_pool_protocol::source::Source;
use yurt_runtime::http::client::{Dial, Duplex, Protocol};
use yurt_runtime::http::json as answer_json;
use yurt_runtime::http::server::{Server, handler};
use yurt_runtime::tls::install_crypto_provider;
use yurt_runtime::{Clock, TaskGroup};
use yurt_storage::OnlyWriter as _;
use yurt_test_support::{LOOPBACK, TestDir};

use super::*;
use crate::replicas::history_check::Opened;

/// Creates a feeder of services for a coordinator at `server`.
fn feeder(folder: &TestDir, server: &str, name: &str) -> (Feeder, tokio::sync::mpsc::Receiver<Input>) {
    let data = Arc::new(PoolData::open(folder.path(), "p", usize::MAX, Clock::system()).unwrap());
    let (leadership, told) = Leadership::for_test(true, Clock::system());
    let feeder = Feeder {
        replica: data.replicas().named(name).unwrap(),
        client: HttpClient::new(server.parse().unwrap(), None, Protocol::Http1, TIMEOUT).unwrap(),
        cloud: Arc::new(Cloud::for_test(server)),
        leadership: Arc::new(leadership),
        metrics: Arc::new(Metrics::new().unwrap()),
        progress: Arc::new(FeedProgress::new(Clock::system())),
        token: CancellationToken::new(),
        gzip: AtomicBool::default(),
        is_no_member: AtomicBool::default(),
        data,
    };
    (feeder, told)
}

const NOWHERE: &str = "http://127.0.0.1:1";

fn service(name: &str, rv: u64, padding: usize) -> Object {
    let metadata = json!({"namespace": "shop", "name": name, "uid": name, "resourceVersion": rv.to_string()});
    let object = json!({"metadata": metadata, "data": "x".repeat(padding)});
    Object::from_value(object, find_kind("", "services").unwrap()).unwrap()
}

/// Returns the events of a step with one RV each.
fn step(from: u64, count: u64, padding: usize) -> Vec<(EventType, Object)> {
    let change = |n: u64| (EventType::Added, service(&format!("s{n}"), from + n, padding));
    (1..=count).map(change).collect()
}

/// Creates a feeder whose collection is at 10, and a reader there.
fn at_ten(folder: &TestDir) -> (Feeder, Reader) {
    let (feeder, _) = feeder(folder, NOWHERE, "services");
    let collection = feeder.replica.collection();
    collection.update(|held| held.restart(0, Vec::new(), ResourceVersion(10)));
    let reader = feeder.reader_at(ResourceVersion(10), 0).unwrap();
    (feeder, reader)
}

/// A coordinator that accepts every feed call, and the bodies of the calls in their order. It needs no time of a paused
/// clock.
fn accepting() -> (HttpClient, mpsc::Receiver<Value>) {
    install_crypto_provider();
    let (calls, received) = mpsc::channel(16);
    let dial: Dial = Arc::new(move || {
        let (near, far) = tokio::io::duplex(64 << 10);
        #[allow(clippy::disallowed_methods, reason = "ends with the test's runtime")]
        drop(tokio::spawn(accept(BufReader::new(far), calls.clone())));
        let near: Box<dyn Duplex> = Box::new(near);
        Box::pin(async move { Ok(near) })
    });
    let base = "http://coordinator".parse().unwrap();
    let client = HttpClient::over(base, None, Protocol::Http1, TIMEOUT, Some(dial)).unwrap();
    (client, received)
}

/// Answers the calls of one connection.
async fn accept(mut stream: BufReader<tokio::io::DuplexStream>, calls: mpsc::Sender<Value>) {
    let mut length = 0;
    let mut line = String::new();
    while stream.read_line(&mut line).await.unwrap() > 0 {
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line == "\r\n" {
            let mut body = vec![0; length];
            stream.read_exact(&mut body).await.unwrap();
            calls.send(serde_json::from_slice(&body).unwrap()).await.unwrap();
            let answer = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
        line.clear();
    }
}

/// Returns the `fresh` of the next call while `feeder` follows from `reader`.
async fn next_fresh(
    feeding: &mut (impl Future<Output = Interrupted> + Unpin),
    calls: &mut mpsc::Receiver<Value>,
) -> bool {
    tokio::select! {
        interrupted = feeding => panic!("{interrupted:?}"),
        call = calls.recv() => call.unwrap()["fresh"].as_bool().unwrap(),
    }
}

/// The cloud refuses the lists of a new leader, whose stream of the coordinator is still up.
#[tokio::test(start_paused = true)]
async fn leader_that_the_cloud_has_not_confirmed_reports_no_fresh_data() {
    let folder = TestDir::new();
    let (mut feeder, reader) = at_ten(&folder);
    let (client, mut calls) = accepting();
    feeder.client = client;
    let sources = feeder.data.sources().clone();
    sources.confirmed("services", Source::Coordinator);
    sources.heard("services", Source::Coordinator, Some(false));
    let mut feeding = std::pin::pin!(feeder.follow(reader, 0));
    for _ in 0..3 {
        assert!(
            !next_fresh(&mut feeding, &mut calls).await,
            "nothing came from the cloud"
        );
    }
    sources.confirmed("services", Source::Cloud);
    assert!(next_fresh(&mut feeding, &mut calls).await);
}

#[tokio::test(start_paused = true)]
async fn data_does_not_turn_stale_while_the_cloud_confirms_a_new_leader() {
    let folder = TestDir::new();
    let (mut feeder, reader) = at_ten(&folder);
    let (client, mut calls) = accepting();
    feeder.client = client;
    let sources = feeder.data.sources().clone();
    sources.heard("services", Source::Coordinator, Some(false));
    let confirmed = async {
        tokio::time::sleep(KEEP_ALIVE / 2).await;
        sources.confirmed("services", Source::Cloud);
        std::future::pending::<Interrupted>().await
    };
    let mut feeding = std::pin::pin!(async {
        tokio::select! {
            interrupted = feeder.follow(reader, 0) => interrupted,
            never = confirmed => never,
        }
    });
    assert!(
        next_fresh(&mut feeding, &mut calls).await,
        "nothing was reported before"
    );
}

/// The replica changes a moment before its source counts as heard.
#[tokio::test(start_paused = true)]
async fn leader_that_becomes_fresh_feeds_what_came_with_it_before_it_reports() {
    let folder = TestDir::new();
    let (feeder, _) = at_ten(&folder);
    let collection = feeder.replica.collection();
    let mut changes = collection.subscribe();
    let sources = feeder.data.sources();
    sources.heard("services", Source::Cloud, None);
    sources.confirmed("services", Source::Cloud);
    assert!(matches!(feeder.has_changed(&mut changes, false).await, Ok(false)));
    collection.update(|held| held.catch_up_to(ResourceVersion(11), step(10, 1, 0)));
    assert!(matches!(feeder.has_changed(&mut changes, false).await, Ok(true)));
}

/// A change that arrives during a keep-alive call is as old as the call.
#[tokio::test(start_paused = true)]
async fn wait_before_a_keep_alive_call_is_no_time_of_delivery() {
    let folder = TestDir::new();
    let (mut feeder, reader) = at_ten(&folder);
    let (client, mut calls) = accepting();
    feeder.client = client;
    let (clock, time) = Clock::fake();
    feeder.progress = Arc::new(FeedProgress::new(clock));
    let sources = feeder.data.sources().clone();
    sources.heard("services", Source::Cloud, None);
    sources.confirmed("services", Source::Cloud);
    let metrics = feeder.metrics.clone();
    let waiting = async {
        tokio::time::sleep(KEEP_ALIVE / 2).await;
        time.advance(KEEP_ALIVE);
        std::future::pending::<Interrupted>().await
    };
    let mut feeding = std::pin::pin!(async {
        tokio::select! {
            interrupted = feeder.follow(reader, 0) => interrupted,
            never = waiting => never,
        }
    });
    for _ in 0..3 {
        assert!(next_fresh(&mut feeding, &mut calls).await);
    }
    assert!(metrics.feed_delivery.get_sample_count() >= 2);
    assert_eq!(
        metrics.feed_delivery.get_sample_sum(),
        0.0,
        "the clock stood still during the calls"
    );
}

#[test]
fn what_does_not_follow_in_the_log_is_fed_as_a_snapshot() {
    let at = |rv: u64| Delivery::Current {
        object: service("web", rv, 0),
        created: false,
        known: true,
    };
    let told = |fed, deliveries: &[Delivery]| as_events(ResourceVersion(fed), deliveries).map(|events| events.len());
    assert_eq!(told(4, &[at(5), at(7)]), Some(2));
    assert_eq!(told(4, &[]), Some(0));
    assert_eq!(told(5, &[at(5)]), None);
    assert_eq!(told(4, &[at(7), at(6)]), None);
}

#[tokio::test]
async fn step_is_read_whole_however_many_changes_it_has() {
    let folder = TestDir::new();
    let (feeder, mut reader) = at_ten(&folder);
    let count = 3 * BATCH as u64;
    let collection = feeder.replica.collection();
    collection.update(|held| held.catch_up_to(ResourceVersion(10 + count), step(10, count, 0)));
    let (deliveries, is_step) = feeder
        .read(&mut reader)
        .unwrap_or_else(|_| panic!("the reader can go on"));
    assert!(is_step);
    assert!(
        matches!(deliveries.last(), Some(Delivery::DiffEnd { .. })),
        "a part of it"
    );
    assert_eq!(deliveries.len(), 3 * BATCH + 2);
    assert_eq!(reader.position(), ResourceVersion(10 + count));
}

#[tokio::test]
async fn step_that_needs_more_than_one_request_is_fed_as_a_snapshot() {
    let folder = TestDir::new();
    let (feeder, reader) = at_ten(&folder);
    let collection = feeder.replica.collection();
    collection.update(|held| held.catch_up_to(ResourceVersion(14), step(10, 4, CHUNK_BYTES / 2)));
    let outcome = feeder.follow(reader, 0).await;
    assert!(matches!(outcome, Interrupted::Snapshot), "{outcome:?}");
}

#[tokio::test]
async fn timeline_that_began_after_the_question_is_not_fed_as_the_one_before() {
    let folder = TestDir::new();
    let (feeder, _) = at_ten(&folder);
    let here = feeder.here();
    let collection = feeder.replica.collection();
    collection.update(|held| held.restart(7, vec![service("web", 10, 0)], ResourceVersion(10)));
    assert!(feeder.reader_at(ResourceVersion(10), here.generation).is_none());
    assert!(feeder.reader_at(ResourceVersion(10), 7).is_some());
}

/// Starts a coordinator that returns `status` as its state, and `refusal` for every feed call.
async fn coordinator(tasks: &TaskGroup, status: serde_json::Value, refusal: serde_json::Value) -> String {
    let server = Server::bind(LOOPBACK, "port").await.unwrap();
    let url = format!("http://{}", server.local_addr());
    let answer = handler(move |request, _| {
        let is_question = request.method() == Method::GET;
        let (status, refusal) = (status.to_string(), refusal.to_string());
        async move {
            match is_question {
                true => answer_json(StatusCode::OK, status),
                false => answer_json(StatusCode::CONFLICT, refusal),
            }
        }
    });
    server.serve(tasks, answer);
    url
}

#[tokio::test(start_paused = true)]
async fn coordinator_that_is_ahead_is_waited_for() {
    let folder = TestDir::new();
    let (feeder, _) = at_ten(&folder);
    let there = CopyState {
        position: ResourceVersion(20),
        generation: 0,
        complete: true,
    };
    let outcome = feeder.open_at(there, false).await;
    assert!(matches!(outcome, Err(Interrupted::Reopen(_))), "nothing is fed");
}

/// A former leader fed a position far from the cloud's, under the generation that all copies have.
#[tokio::test]
async fn coordinator_that_is_ahead_of_the_cloud_itself_gets_a_new_generation() {
    let (tasks, leap) = (TaskGroup::new(), 1_u64 << 52);
    for (head, is_left) in [(15, true), (leap, false), (leap + 1, false)] {
        let folder = TestDir::new();
        let list = json!({"kind": "ServiceList", "apiVersion": "v1", "metadata": {"resourceVersion": head.to_string()}, "items": []});
        let url = coordinator(&tasks, list, json!({})).await;
        let (feeder, _) = feeder(&folder, &url, "services");
        let held = feeder.replica.collection();
        held.update(|held| held.restart(0, vec![service("web", 9, 0)], ResourceVersion(10)));
        let there = CopyState {
            position: ResourceVersion(leap),
            generation: 0,
            complete: true,
        };
        feeder.leave_behind(there).await;
        assert_eq!(feeder.here().generation, 0, "nothing is proved");
        feeder.data.history().prove(Opened {
            pool: 1,
            ..Opened::default()
        });
        feeder.leave_behind(there).await;
        assert_eq!(feeder.here().generation > 0, is_left, "the cloud is at {head}");
        assert!(
            feeder
                .data
                .failures()
                .why("feed of services")
                .unwrap()
                .contains("ahead of")
        );
        drop(feeder);
    }
}

/// Every resource may have an etcd of its own. The members come from the NodePool, or from Nodes.
#[tokio::test]
async fn coordinator_that_is_ahead_is_compared_with_the_resource_that_the_data_comes_from() {
    let tasks = TaskGroup::new();
    let ahead = "/apis/apps.openyurt.io/v1beta1/nodepools?fieldSelector=metadata.name%3D";
    for (is_named, asked) in [(true, ahead), (false, "/api/v1/nodes?limit=1")] {
        let server = Server::bind(LOOPBACK, "port").await.unwrap();
        let url = format!("http://{}", server.local_addr());
        let answer = handler(move |request, _| async move {
            let path = request.uri().to_string();
            // Everything else is far ahead.
            let rv = if path.starts_with(asked) { "15" } else { "90000" };
            let kind = if path.contains("nodepools") {
                "NodePoolList"
            } else {
                "NodeList"
            };
            let list = json!({"kind": kind, "apiVersion": "v1", "metadata": {"resourceVersion": rv}, "items": []});
            match path.contains("v1beta2") {
                true => answer_json(StatusCode::NOT_FOUND, "{}".to_owned()),
                false => answer_json(StatusCode::OK, list.to_string()),
            }
        });
        server.serve(&tasks, answer);
        let folder = TestDir::new();
        let (feeder, _) = feeder(&folder, &url, "members");
        let uid = if is_named { "" } else { "u" };
        let member = json!({"metadata": {"name": "n1", "uid": uid, "resourceVersion": "9"}});
        let member = Object::from_value(member, yurt_pool_protocol::members::kind()).unwrap();
        let held = feeder.replica.collection();
        held.update(|held| held.restart(0, vec![member], ResourceVersion(10)));
        feeder.data.history().prove(Opened {
            pool: 1,
            ..Opened::default()
        });
        let there = CopyState {
            position: ResourceVersion(2_000),
            generation: 0,
            complete: true,
        };
        feeder.leave_behind(there).await;
        let why = feeder.data.failures().why("feed of members").unwrap();
        assert!(why.contains("the cloud is at 15"), "{asked}: {why}");
    }
}

/// The leader lists the cloud first: its replica may be a copy of the void data.
#[tokio::test]
async fn voided_collection_is_not_fed_from_the_copy_that_is_held() {
    let folder = TestDir::new();
    let (feeder, _) = at_ten(&folder);
    let history = feeder.data.history();
    history.prove(Opened {
        pool: 1,
        ..Opened::default()
    });
    let there = CopyState {
        generation: 8_000_001,
        ..CopyState::default()
    };
    let outcome = feeder.open_at(there, false).await;
    assert!(matches!(outcome, Err(Interrupted::Reopen(_))), "nothing is fed");
    assert!(history.is_gone("services", feeder.here().generation));
    assert_eq!(history.last_generation("services", 0), there.generation);
    let outcome = feeder.open_at(there, false).await;
    assert!(
        matches!(outcome, Err(Interrupted::Reopen(_))),
        "nor before the list is there"
    );
}

/// The leader ends between the void and its list.
#[tokio::test]
async fn restart_does_not_make_void_data_the_clouds() {
    let folder = TestDir::new();
    let there = CopyState {
        generation: 8_000_001,
        ..CopyState::default()
    };
    let mut feeder = at_ten(&folder).0;
    for start in ["first", "second"] {
        let (name, generation) = (feeder.replica.name(), feeder.here().generation);
        let history = feeder.data.history();
        history.prove(Opened {
            pool: 1,
            ..Opened::default()
        });
        history.extend(name, generation);
        let outcome = feeder.open_at(there, false).await;
        assert!(matches!(outcome, Err(Interrupted::Reopen(_))), "nothing is fed");
        assert!(history.is_gone(name, feeder.here().generation), "{start} start");
        feeder.data.replicas().persist(None).await.unwrap();
        drop(feeder);
        feeder = self::feeder(&folder, NOWHERE, "services").0;
        assert!(feeder.here().complete);
    }
}

#[tokio::test]
async fn one_refused_membership_does_not_end_a_leadership() {
    let (folder, tasks) = (TestDir::new(), TaskGroup::new());
    let refusal = json!({"reason": "members", "message": "n1 would be no member"});
    let url = coordinator(&tasks, json!({"store": "s1"}), refusal).await;
    for (name, gives_up) in [("members", true), ("services", false)] {
        let (feeder, mut told) = feeder(&folder, &url, name);
        let refused = feeder.post("snapshot", feeder.pack(Bytes::from_static(b"{}")).await.unwrap());
        match refused.await.unwrap_err() {
            Interrupted::NotMember(why) => assert!(gives_up && why.contains("no member")),
            Interrupted::Reopen(_) => assert!(
                !gives_up,
                "members come first, then the coordinator's state is read again"
            ),
            other => panic!("{other:?}"),
        }
        // Labels may be set one after the other.
        assert!(told.try_recv().is_err(), "{name}: once is not enough");
    }
}
