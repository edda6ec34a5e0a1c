//! Watches with clients that stall, collections that move on, and wake-ups of other readers.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{FutureExt as _, Stream, StreamExt as _};
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::kind::{ResourceKind, find_kind};
use yurt_apimachinery::watch::EventType;
use yurt_apimachinery::{ListOptions, Object, ResourceVersion};
use yurt_codec::negotiation::Negotiated;
use yurt_runtime::Clock;
use yurt_storage::serve::{self, Selection, Unfiltered, WatchRequest};
use yurt_storage::shared::{Progress, START_PERMIT_TIME, STARTING_WATCHES_MAX};
use yurt_storage::{OnlyWriter as _, SharedCollection};

type Frames = Pin<Box<dyn Stream<Item = Bytes> + Send>>;

fn kind() -> &'static ResourceKind {
    find_kind("", "services").expect("services must be built in")
}

fn service(key: &str, rv: u64) -> Object {
    let (namespace, name) = key.split_once('/').expect("a key with a namespace");
    let json = format!(
        r#"{{"metadata":{{"namespace":"{namespace}","name":"{name}","uid":"u-{name}","resourceVersion":"{rv}"}}}}"#
    );
    Object::parse(Bytes::from(json), kind()).expect("fixture must parse")
}

fn rv(value: u64) -> ResourceVersion {
    ResourceVersion(value)
}

/// `n` services `shop/s0000` … at C = 10,000.
fn collection(n: u64) -> Arc<SharedCollection> {
    let shared = SharedCollection::new(kind(), false);
    let list = (0..n).map(|i| service(&format!("shop/s{i:04}"), 1 + i)).collect();
    shared.update(|c| c.restart(0, list, rv(10_000)));
    Arc::new(shared)
}

fn put(shared: &SharedCollection, key: &str, rv: u64) {
    shared.update(|c| c.apply(EventType::Modified, service(key, rv)));
}

fn delete(shared: &SharedCollection, key: &str, rv: u64) {
    shared.update(|c| c.apply(EventType::Deleted, service(key, rv)));
}

fn request(namespace: Option<&str>, options: ListOptions) -> WatchRequest {
    WatchRequest {
        selection: Selection {
            namespace: namespace.map(str::to_owned),
            labels: options.label_selector.clone(),
            fields: options.field_selector.clone(),
        },
        options,
        view: Arc::new(Unfiltered),
        how: Negotiated::default(),
        clock: Clock::system(),
        replica: false,
        lasts: Duration::from_secs(1800),
        least: ResourceVersion::ZERO,
        is_fresh: Arc::new(|| true),
        shutdown: CancellationToken::new(),
        on_initial_end: None,
        lingers: Duration::ZERO,
    }
}

fn watch_in(shared: &Arc<SharedCollection>, namespace: Option<&str>, query: &str) -> Frames {
    let options = ListOptions::parse(Some(&format!("watch=1&{query}")), true, kind()).expect("valid query");
    let request = request(namespace, options);
    Box::pin(serve::watch(shared.clone(), request).expect("a complete collection can be watched"))
}

fn watch(shared: &Arc<SharedCollection>, query: &str) -> Frames {
    watch_in(shared, None, query)
}

fn describe(frame: &[u8]) -> String {
    let event: Value = serde_json::from_slice(frame).expect("a frame must be JSON");
    let object = &event["object"];
    let kind = event["type"].as_str().unwrap_or_default();
    assert!(["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"].contains(&kind));
    assert_eq!(object["apiVersion"], "v1");
    assert_eq!(object["kind"], if kind == "ERROR" { "Status" } else { "Service" });
    if kind == "ERROR" {
        return format!(
            "ERROR {} {}",
            object["code"],
            object["message"].as_str().unwrap_or_default()
        );
    }
    let name = object["metadata"]["name"].as_str().unwrap_or("");
    let end = if object["metadata"]["annotations"]["k8s.io/initial-events-end"] == "true" {
        " end"
    } else {
        ""
    };
    format!(
        "{kind} {name}@{}{end}",
        object["metadata"]["resourceVersion"].as_str().unwrap_or("")
    )
}

async fn next(frames: &mut Frames) -> String {
    match frames.next().await {
        Some(frame) => describe(&frame),
        None => "end".to_owned(),
    }
}

/// The frames that are available without waiting.
fn frames_ready(frames: &mut Frames) -> Vec<Bytes> {
    let now = |frames: &mut Frames| tokio::task::coop::unconstrained(frames.next()).now_or_never().flatten();
    std::iter::from_fn(|| now(frames)).collect()
}

/// The events that are available without waiting.
fn ready(frames: &mut Frames) -> Vec<String> {
    frames_ready(frames).iter().map(|frame| describe(frame)).collect()
}

/// Conformance: 3.F05, 3.F06, 3.F10
#[tokio::test(start_paused = true)]
async fn initial_state_is_that_of_its_bookmark_whatever_happens_while_it_is_sent() {
    let shared = collection(300);
    let mut frames = watch(&shared, "allowWatchBookmarks=true");
    for i in 0..70 {
        assert_eq!(next(&mut frames).await, format!("ADDED s{i:04}@{}", i + 1));
    }
    // Changes before and after the sent part: an update, a new object, a deletion.
    put(&shared, "shop/s0000", 10_001);
    put(&shared, "shop/s0299", 10_002);
    put(&shared, "shop/s0299-new", 10_003);
    delete(&shared, "shop/s0298", 10_004);
    for i in 70..300 {
        assert_eq!(next(&mut frames).await, format!("ADDED s{i:04}@{}", i + 1));
    }
    assert_eq!(next(&mut frames).await, "BOOKMARK @10000 end");
    let then = [
        "MODIFIED s0000@10001",
        "MODIFIED s0299@10002",
        "ADDED s0299-new@10003",
        "DELETED s0298@10004",
    ];
    assert_eq!(ready(&mut frames), then);
}

/// A client so slow that the history of its initial state is gone: it gets the rest in its present state, then every
/// change since.
///
/// Conformance: 3.F16
#[tokio::test(start_paused = true)]
async fn initial_state_of_a_stalled_client_ends_with_the_truth() {
    let shared = collection(200);
    let mut frames = watch(&shared, "allowWatchBookmarks=true");
    let mut events = vec![next(&mut frames).await];
    for i in 0..20_000_u64 {
        put(&shared, &format!("shop/s{:04}", 50 + i % 100), 20_000 + i);
    }
    delete(&shared, "shop/s0001", 50_000);
    delete(&shared, "shop/s0199", 50_001);
    events.extend(ready(&mut frames));
    let mut known = BTreeMap::new();
    for event in &events {
        let (kind, object) = event.split_once(' ').expect("an event");
        let (name, version) = object.split_once('@').expect("a version");
        match kind {
            "ADDED" | "MODIFIED" => drop(known.insert(name.to_owned(), version.to_owned())),
            "DELETED" => drop(known.remove(name)),
            "BOOKMARK" => assert_eq!(version, "10000 end", "what follows is newer"),
            other => panic!("unexpected {other}"),
        }
    }
    let truth = shared.read(|c| {
        let pairs = c
            .objects()
            .map(|o| (o.name().to_owned(), o.resource_version().to_string()));
        pairs.collect::<BTreeMap<_, _>>()
    });
    assert_eq!(known, truth);
    let before_the_bookmark = events.iter().take_while(|event| !event.starts_with("BOOKMARK"));
    assert!(before_the_bookmark.into_iter().all(|event| event.starts_with("ADDED")));
}

/// Start states: resourceVersion and sendInitialEvents, then the first events.
///
/// Conformance: 3.F01, 3.F04, 3.F13, 3.F14, 3.F43
#[tokio::test(start_paused = true)]
async fn start_states_follow_the_table() {
    let state = ["ADDED s0000@1", "ADDED s0001@2"];
    let with_end = [state[0], state[1], "BOOKMARK @10000 end"];
    let list = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    let none = "sendInitialEvents=false&resourceVersionMatch=NotOlderThan";
    let bookmarks = "allowWatchBookmarks=true";
    let rows: [(String, &[&str]); 13] = [
        (String::new(), &state),
        ("resourceVersion=0".into(), &state),
        (format!("resourceVersion=0&{bookmarks}"), &with_end),
        (bookmarks.into(), &with_end),
        (list.into(), &state),
        (format!("{list}&{bookmarks}"), &with_end),
        (format!("{list}&{bookmarks}&resourceVersion=0"), &with_end),
        (format!("{list}&{bookmarks}&resourceVersion=9000"), &with_end),
        (none.into(), &[]),
        (format!("{none}&resourceVersion=0"), &[]),
        (format!("{none}&resourceVersion=10000"), &[]),
        ("resourceVersion=10000".into(), &[]),
        (format!("{none}&resourceVersion=10000&{bookmarks}"), &[]),
    ];
    for (query, want) in rows {
        let shared = collection(2);
        let mut frames = watch(&shared, &query);
        assert_eq!(ready(&mut frames), want, "{query}");
        put(&shared, "shop/s0001", 10_001);
        assert_eq!(ready(&mut frames), ["MODIFIED s0001@10001"], "{query}");
    }
    let mut empty = watch(&collection(0), &format!("{list}&{bookmarks}"));
    assert_eq!(
        next(&mut empty).await,
        "BOOKMARK @10000 end",
        "the first and only event"
    );
    let mut ahead = watch(&collection(2), &format!("{list}&{bookmarks}&resourceVersion=10001"));
    let too_large = "ERROR 504 Timeout: Too large resource version: 10001, current: 10000";
    assert_eq!(
        (next(&mut ahead).await.as_str(), next(&mut ahead).await.as_str()),
        (too_large, "end")
    );
}

/// Conformance: 3.F20, 3.F21, 3.F22
#[tokio::test(start_paused = true)]
async fn bookmarks_come_every_minute_also_where_nothing_matches() {
    let shared = collection(2);
    for query in [
        "labelSelector=no%3Dsuch",
        "fieldSelector=metadata.name%3Dnone,metadata.namespace%3Dshop",
    ] {
        let at = shared.read(|c| c.position()).0;
        let mut frames = watch(
            &shared,
            &format!("{query}&resourceVersion={at}&allowWatchBookmarks=true"),
        );
        assert_eq!(ready(&mut frames), [""; 0]);
        let started = tokio::time::Instant::now();
        for turn in 1..=3 {
            put(&shared, "shop/s0000", at + turn);
            assert_eq!(next(&mut frames).await, format!("BOOKMARK @{}", at + turn), "{query}");
            assert_eq!(started.elapsed().as_secs(), 60 * turn);
        }
    }
    // A bookmark covers only sent events: an unread change comes first.
    let at = shared.read(|c| c.position()).0;
    let mut late = watch(&shared, &format!("resourceVersion={at}&allowWatchBookmarks=true"));
    assert_eq!(ready(&mut late), [""; 0]);
    put(&shared, "shop/s0000", at + 1);
    tokio::time::advance(Duration::from_secs(61)).await;
    put(&shared, "shop/s0001", at + 2);
    let told = [next(&mut late).await, next(&mut late).await, next(&mut late).await];
    let want = [
        format!("MODIFIED s0000@{}", at + 1),
        format!("MODIFIED s0001@{}", at + 2),
        format!("BOOKMARK @{}", at + 2),
    ];
    assert_eq!(told, want);
    let mut quiet = watch(&shared, "resourceVersion=10000&labelSelector=no%3Dsuch");
    assert!(
        tokio::time::timeout(Duration::from_secs(300), quiet.next())
            .await
            .is_err(),
        "only for who asked"
    );
}

/// Its source crashed and is behind its earlier position: a bookmark must not take the client back.
///
/// Conformance: 3.F42
#[tokio::test(start_paused = true)]
async fn client_ahead_of_its_source_hears_of_no_position_below_its_own() {
    let shared = collection(2);
    let mut frames = watch(&shared, "resourceVersion=10005&allowWatchBookmarks=true");
    let five_minutes = Duration::from_secs(300);
    assert!(
        tokio::time::timeout(five_minutes, frames.next()).await.is_err(),
        "C has not passed it"
    );
    put(&shared, "shop/s0000", 10_005);
    assert_eq!(next(&mut frames).await, "BOOKMARK @10005");
    put(&shared, "shop/s0000", 10_006);
    assert_eq!(next(&mut frames).await, "MODIFIED s0000@10006");
}

/// Conformance: 3.F40, 3.F41
#[tokio::test(start_paused = true)]
async fn a_hundred_thousand_updates_later_a_watch_still_resumes() {
    let shared = collection(100);
    for i in 0..100_000_u64 {
        put(&shared, &format!("shop/s{:04}", i % 50), 10_001 + i);
    }
    let mut frames = watch(&shared, "resourceVersion=10000");
    let events = ready(&mut frames);
    assert_eq!(events.len(), 50, "the last state of each, and nothing of the others");
    assert_eq!(events[49], "MODIFIED s0049@110000");
    let mut old = watch(&shared, "resourceVersion=9999");
    assert_eq!(next(&mut old).await, "ERROR 410 too old resource version: 9999 (10000)");
    assert_eq!(next(&mut old).await, "end");
}

/// Conformance: 3.F51, 3.F52, 8.23
#[tokio::test(start_paused = true)]
async fn a_stalled_reader_delays_nobody_and_goes_on_where_it_was() {
    let shared = collection(20);
    let mut stalled = watch(&shared, "resourceVersion=10000");
    let mut others: Vec<Frames> = (0..999).map(|_| watch(&shared, "resourceVersion=10000")).collect();
    put(&shared, "shop/s0000", 10_001);
    assert_eq!(next(&mut stalled).await, "MODIFIED s0000@10001");
    // More than the log holds, so that the stalled reader keeps nothing alive.
    for i in 2..5000_u64 {
        put(&shared, &format!("shop/s{:04}", i % 20), 10_000 + i);
        if i % 500 == 0 {
            for frames in &mut others {
                assert_eq!(frames_ready(frames).len(), 500, "everything, in time");
            }
        }
    }
    delete(&shared, "shop/s0007", 20_000);
    let late = ready(&mut stalled);
    assert_eq!(late.len(), 20, "the last state of each: {late:?}");
    assert_eq!(late[19], "DELETED s0007@20000");
}

/// Conformance: 3.F60, 3.F61
#[tokio::test(start_paused = true)]
async fn a_watch_of_one_object_or_namespace_hears_of_nothing_else() {
    let shared = collection(3);
    let one = "fieldSelector=metadata.name%3Dlater";
    let mut by_path = watch_in(&shared, Some("shop"), &format!("{one}&resourceVersion=10000"));
    let mut by_field = watch(&shared, &format!("{one}&resourceVersion=10000"));
    let mut other = watch_in(&shared, Some("other"), "resourceVersion=10000");
    let mut everything = watch(&shared, "resourceVersion=10000");
    for frames in [&mut by_path, &mut by_field, &mut other, &mut everything] {
        assert_eq!(ready(frames), [""; 0]);
    }
    put(&shared, "shop/s0001", 10_001);
    delete(&shared, "shop/s0002", 10_002);
    put(&shared, "shop/later", 10_003);
    put(&shared, "shop/later", 10_004);
    delete(&shared, "shop/later", 10_005);
    put(&shared, "other/x", 10_006);
    let later = ["ADDED later@10003", "MODIFIED later@10004", "DELETED later@10005"];
    assert_eq!(ready(&mut by_path), later);
    assert_eq!(ready(&mut by_field), later);
    assert_eq!(ready(&mut other), ["ADDED x@10006"]);
    assert_eq!(ready(&mut everything).len(), 6);
    // The same for readers that come back when the log is gone.
    for i in 0..5000 {
        put(&shared, "shop/s0001", 10_010 + i);
    }
    for frames in [
        &mut watch_in(
            &shared,
            Some("shop"),
            "fieldSelector=metadata.name%3Ds0000&resourceVersion=10002",
        ),
        &mut watch(&shared, "fieldSelector=metadata.name%3Ds0000&resourceVersion=10002"),
        &mut watch_in(&shared, Some("elsewhere"), "resourceVersion=10002"),
    ] {
        assert_eq!(ready(frames), [""; 0]);
    }
}

/// Counts how often a stream is woken.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn poll(frames: &mut Frames, wakes: &Arc<Wakes>) -> Option<String> {
    let waker = Waker::from(wakes.clone());
    match frames.as_mut().poll_next(&mut Context::from_waker(&waker)) {
        Poll::Ready(frame) => Some(frame.map_or_else(|| "end".to_owned(), |frame| describe(&frame))),
        Poll::Pending => None,
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_one_object_is_not_woken_by_the_others() {
    let shared = collection(0);
    let one = "fieldSelector=metadata.name%3Dmine&resourceVersion=10000";
    let mut frames = watch_in(&shared, Some("shop"), one);
    let wakes = Arc::new(Wakes::default());
    assert_eq!(poll(&mut frames, &wakes), None);
    for i in 0..1000 {
        put(&shared, &format!("shop/{i}"), 10_001 + i);
    }
    let by_chance = wakes.0.load(Ordering::Relaxed);
    assert!(by_chance <= 1, "at most once until it looks: {by_chance}");
    let other = Arc::new(SharedCollection::new(kind(), false));
    other.update(|c| c.restart(0, vec![], rv(1)));
    while poll(&mut frames, &wakes).is_some() {}
    let before = wakes.0.load(Ordering::Relaxed);
    put(&other, "shop/mine", 2);
    assert_eq!(wakes.0.load(Ordering::Relaxed), before, "another collection");
    put(&shared, "shop/mine", 20_000);
    assert_eq!(wakes.0.load(Ordering::Relaxed), before + 1);
    assert_eq!(poll(&mut frames, &wakes).as_deref(), Some("ADDED mine@20000"));
}

/// It sleeps through the deletions of other objects. Its position must still be known when they are forgotten.
#[tokio::test(start_paused = true)]
async fn who_waits_for_one_object_keeps_up_with_what_is_forgotten() {
    let shared = collection(0);
    let mut frames = watch_in(
        &shared,
        Some("shop"),
        "fieldSelector=metadata.name%3Dmine&resourceVersion=10000",
    );
    let wakes = Arc::new(Wakes::default());
    assert_eq!(poll(&mut frames, &wakes), None);
    let mut seen = 0;
    for i in 0..30_000_u64 {
        put(&shared, "shop/a", 20_000 + 2 * i);
        delete(&shared, "shop/a", 20_001 + 2 * i);
        let woken = wakes.0.load(Ordering::Relaxed);
        if woken > std::mem::replace(&mut seen, woken) {
            assert_eq!(poll(&mut frames, &wakes), None);
        }
    }
    assert!(shared.read(|c| c.floor()) > rv(20_000), "deletions were forgotten");
    assert!(seen < 3000, "woken {seen} times by 60,000 changes");
    put(&shared, "shop/mine", 100_000);
    assert_eq!(poll(&mut frames, &wakes).as_deref(), Some("ADDED mine@100000"));
}

/// A pool has thousands of streams, and nearly all of them wait.
#[tokio::test]
async fn a_waiting_stream_is_small() {
    let shared = collection(500);
    let mut frames = watch(&shared, "allowWatchBookmarks=true");
    assert_eq!(frames_ready(&mut frames).len(), 501);
    assert!(
        std::mem::size_of_val(&*frames) <= 800,
        "{}",
        std::mem::size_of_val(&*frames)
    );
}

/// Holds for changes of many objects, with few of them read at a time.
///
/// Conformance: 3.F30, 3.F33, 3.F34, 3.F12
#[tokio::test(start_paused = true)]
async fn versions_rise_within_a_stream_and_every_event_is_complete() {
    let shared = collection(10);
    let mut frames = watch(&shared, "resourceVersion=10000&allowWatchBookmarks=true");
    let mut last = 10_000;
    for i in 0..3000_u64 {
        let key = format!("shop/s{:04}", i * 7 % 13);
        if i.is_multiple_of(5) {
            delete(&shared, &key, 10_001 + i);
        } else {
            put(&shared, &key, 10_001 + i);
        }
        // Long pauses in between: the log overflows, and the stream catches up.
        if i < 10 || i % 1500 == 1499 {
            for event in ready(&mut frames) {
                let version = event.rsplit('@').next().and_then(|v| v.parse().ok());
                let version: u64 = version.expect("a version");
                assert!(version > last, "{event} after {last}");
                last = version;
            }
        }
    }
    assert_eq!(last, 13_000);
    assert_eq!(next(&mut frames).await, "BOOKMARK @13000");
}

/// The kubelet waits a second for a Secret.
///
/// Conformance: 3.F17, 3.F10
#[tokio::test(start_paused = true)]
async fn the_bookmark_of_a_single_object_comes_at_once() {
    let shared = collection(3);
    let query = "fieldSelector=metadata.name%3Ds0001&allowWatchBookmarks=true&sendInitialEvents=true\
                 &resourceVersionMatch=NotOlderThan";
    let mut frames = watch_in(&shared, Some("shop"), query);
    assert_eq!(ready(&mut frames), ["ADDED s0001@2", "BOOKMARK @10000 end"]);
    let mut absent = watch_in(&shared, Some("shop"), &query.replace("s0001", "none"));
    assert_eq!(ready(&mut absent), ["BOOKMARK @10000 end"]);
}

/// Conformance: 6.33
#[tokio::test(start_paused = true)]
async fn watches_that_start_are_bounded_and_others_are_not_counted() {
    let shared = collection(2);
    let try_watch = |query: &str| {
        let options = ListOptions::parse(Some(query), true, kind()).expect("valid query");
        serve::watch(shared.clone(), request(None, options)).map(|frames| Box::pin(frames) as Frames)
    };
    let mut starting: Vec<Frames> = (0..STARTING_WATCHES_MAX)
        .map(|_| try_watch("watch=1").expect("there is room"))
        .collect();
    let refused = try_watch("watch=1").map(drop).expect_err("one too many");
    assert_eq!((refused.code(), refused.retry_after()), (429, Some(1)));
    assert!(try_watch("watch=1&resourceVersion=10000").is_ok(), "it resumes");
    assert_eq!(ready(&mut starting[0]).len(), 2, "all it had to be sent");
    let next = try_watch("watch=1").expect("a place was given back");
    drop((next, starting));
    // A client that hangs up leaves nothing behind.
    assert_eq!(Arc::strong_count(&shared), 1);
}

/// Clients that read nothing: nothing polls their watches.
///
/// Conformance: 6.33
#[tokio::test(start_paused = true)]
async fn stalled_watches_keep_others_from_starting_for_a_short_time_only() {
    let shared = collection(2);
    let start = || {
        let options = ListOptions::parse(Some("watch=1"), true, kind()).expect("valid query");
        serve::watch(shared.clone(), request(None, options)).map(|frames| Box::pin(frames) as Frames)
    };
    let start_all = || -> Vec<Frames> { std::iter::from_fn(|| start().ok()).collect() };
    let mut stalled = start_all();
    assert_eq!(stalled.len(), STARTING_WATCHES_MAX);
    tokio::time::advance(START_PERMIT_TIME - Duration::from_millis(1)).await;
    assert!(start().is_err());
    tokio::time::advance(Duration::from_millis(1)).await;
    let others = start_all();
    assert_eq!(others.len(), STARTING_WATCHES_MAX, "no more than before");
    let refused = "ERROR 429 too many watches are starting, please try again";
    assert_eq!(ready(&mut stalled[0]), [refused], "its permit is in use");
    drop(others);
    assert_eq!(ready(&mut stalled[1]), ["ADDED s0000@1", "ADDED s0001@2"]);
}

#[tokio::test(start_paused = true)]
async fn watch_ends_at_its_time_before_it_has_sent_the_whole_state() {
    let shared = collection(300);
    let mut frames = watch(&shared, "timeoutSeconds=1800");
    assert_eq!(next(&mut frames).await, "ADDED s0000@1");
    tokio::time::advance(Duration::from_secs(1800)).await;
    let rest = frames.map(|frame| describe(&frame)).collect::<Vec<_>>().await;
    assert!(rest.len() < 100, "{} more frames", rest.len());
    assert!(rest.iter().all(|event| event.starts_with("ADDED ")), "a clean end");
}

/// A server that stops need not end all of its watches at the same moment.
///
/// Conformance: 3.F53
#[tokio::test(start_paused = true)]
async fn watch_that_lingers_goes_on_for_a_while_and_ends_cleanly() {
    let shared = collection(0);
    let (shutdown, lingers) = (CancellationToken::new(), Duration::from_millis(300));
    let options = ListOptions::parse(Some("watch=1&resourceVersion=10000"), true, kind()).expect("valid query");
    let request = WatchRequest {
        shutdown: shutdown.clone(),
        lingers,
        ..request(None, options)
    };
    let mut frames: Frames = Box::pin(serve::watch(shared.clone(), request).expect("a complete collection"));
    assert!(ready(&mut frames).is_empty());
    let began = tokio::time::Instant::now();
    shutdown.cancel();
    put(&shared, "shop/late", 10_001);
    assert_eq!(ready(&mut frames), ["ADDED late@10001"]);
    assert!(frames.next().await.is_none());
    assert_eq!(began.elapsed(), lingers);
}

/// A collection without changes, in a store with others: its watchers are not left behind the floor of the others.
///
/// Conformance: 3.F10
#[tokio::test(start_paused = true)]
async fn bookmarks_of_a_quiet_collection_follow_its_store() {
    let progress = Progress::default();
    let shared = Arc::new(SharedCollection::within(kind(), progress.clone()));
    shared.update(|c| c.restart(0, vec![service("shop/a", 5)], rv(10_000)));
    let mut frames = watch(&shared, "resourceVersion=10000&allowWatchBookmarks=true");
    for turn in 1..=3 {
        progress.reached(rv(10_000 + turn));
        assert!(ready(&mut frames).is_empty(), "it is nothing to wake up for");
        assert_eq!(next(&mut frames).await, format!("BOOKMARK @{}", 10_000 + turn));
    }
    put(&shared, "shop/a", 10_009);
    progress.reached(rv(10_020));
    assert_eq!(next(&mut frames).await, "MODIFIED a@10009");
    assert_eq!(next(&mut frames).await, "BOOKMARK @10020");
    let resumed = ready(&mut watch(&shared, "resourceVersion=10003"));
    assert_eq!(resumed, ["MODIFIED a@10009"]);
}

/// The header of the answer names the generation that the collection had at the request.
#[tokio::test]
async fn generation_that_begins_before_the_first_event_ends_the_watch() {
    for query in [
        "resourceVersion=10000",
        "sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
        "",
    ] {
        for replica in [true, false] {
            let shared = collection(3);
            let options = ListOptions::parse(Some(&format!("watch=1&{query}")), true, kind()).expect("valid query");
            let request = WatchRequest {
                replica,
                ..request(None, options)
            };
            let mut frames: Frames = Box::pin(serve::watch(shared.clone(), request).expect("it is complete"));
            shared.update(|c| c.restart(7, vec![service("shop/other", 5)], rv(10_000)));
            assert!(next(&mut frames).await.starts_with("ERROR 410 "), "{query}, {replica}");
            assert_eq!(next(&mut frames).await, "end");
        }
    }
}
