//! Lists and watches as clients see them, over collections of both RV spaces.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::kind::{ResourceKind, find_kind};
use yurt_apimachinery::watch::EventType;
use yurt_apimachinery::{ListOptions, Object, ObjectKey, ResourceVersion};
use yurt_codec::negotiation::Negotiated;
use yurt_collection::Collection;
use yurt_collection::generation::POSITION_END;
use yurt_runtime::Clock;
use yurt_storage::serve::{self, Selection, Unfiltered, View, WatchRequest};
use yurt_storage::{OnlyWriter as _, SharedCollection};

type Frames = Pin<Box<dyn Stream<Item = Bytes> + Send>>;

fn kind() -> &'static ResourceKind {
    find_kind("", "services").expect("services must be built in")
}

fn service(name: &str, rv: u64, label: &str) -> Object {
    let json = format!(
        r#"{{"metadata":{{"namespace":"shop","name":"{name}","uid":"u-{name}","resourceVersion":"{rv}","labels":{{"l":"{label}"}}}},"spec":{{"secret":"x"}}}}"#
    );
    Object::parse(Bytes::from(json), kind()).expect("fixture must parse")
}

fn rv(value: u64) -> ResourceVersion {
    ResourceVersion(value)
}

/// Two services at C = 10.
fn collection() -> Arc<SharedCollection> {
    let shared = SharedCollection::new(kind(), false);
    shared.update(|c| c.restart(0, vec![service("a", 5, "x"), service("b", 6, "y")], rv(10)));
    Arc::new(shared)
}

fn request(query: &str) -> WatchRequest {
    let options = ListOptions::parse(Some(query), true, kind()).expect("valid query");
    let selection = Selection {
        namespace: None,
        labels: options.label_selector.clone(),
        fields: options.field_selector.clone(),
    };
    WatchRequest {
        options,
        selection,
        view: Arc::new(Unfiltered),
        how: Negotiated::default(),
        clock: Clock::system(),
        replica: false,
        lasts: Duration::from_secs(600),
        least: ResourceVersion::ZERO,
        is_fresh: Arc::new(|| true),
        shutdown: CancellationToken::new(),
        on_initial_end: None,
        lingers: Duration::ZERO,
    }
}

fn watch(shared: &Arc<SharedCollection>, request: WatchRequest) -> Frames {
    Box::pin(serve::watch(shared.clone(), request).expect("a complete collection can be watched"))
}

/// The next event as "TYPE name@rv", with "!" for the end of the initial events; "end" for the end of the stream.
async fn next(frames: &mut Frames) -> String {
    let Some(frame) = frames.next().await else {
        return "end".into();
    };
    let event: Value = serde_json::from_slice(&frame).expect("a frame must be JSON");
    let object = &event["object"];
    let kind = event["type"].as_str().unwrap_or_default();
    if kind == "ERROR" {
        return format!("ERROR {}", object["code"]);
    }
    let name = object["metadata"]["name"].as_str().unwrap_or("");
    let rv = object["metadata"]["resourceVersion"].as_str().unwrap_or("");
    let note = object["metadata"]["annotations"]
        .as_object()
        .map(|a| a.keys().cloned().collect::<Vec<_>>().join(","));
    format!(
        "{kind} {name}@{rv}{}",
        note.map(|note| format!(" {note}")).unwrap_or_default()
    )
}

async fn is_silent(frames: &mut Frames) -> bool {
    tokio::time::timeout(Duration::from_millis(500), frames.next())
        .await
        .is_err()
}

#[tokio::test(start_paused = true)]
async fn watch_from_nothing_sends_the_state_the_end_bookmark_and_then_changes() {
    let shared = collection();
    let mut frames = watch(&shared, request("watch=1&allowWatchBookmarks=true"));
    assert_eq!(next(&mut frames).await, "ADDED a@5");
    assert_eq!(next(&mut frames).await, "ADDED b@6");
    assert_eq!(next(&mut frames).await, "BOOKMARK @10 k8s.io/initial-events-end");
    shared.update(|c| c.apply(EventType::Modified, service("a", 11, "x")));
    assert_eq!(next(&mut frames).await, "MODIFIED a@11");
    shared.update(|c| c.apply(EventType::Deleted, service("b", 12, "y")));
    assert_eq!(next(&mut frames).await, "DELETED b@12");
}

/// Conformance: 3.F42, 7.51
#[tokio::test(start_paused = true)]
async fn watch_resumes_after_its_rv_and_is_held_above_c() {
    let shared = collection();
    shared.update(|c| c.apply(EventType::Modified, service("a", 11, "x")));
    let mut frames = watch(&shared, request("watch=1&resourceVersion=10"));
    assert_eq!(next(&mut frames).await, "MODIFIED a@11");
    let mut ahead = watch(&shared, request("watch=1&resourceVersion=20"));
    shared.update(|c| c.apply(EventType::Modified, service("a", 15, "x")));
    assert!(
        is_silent(&mut ahead).await,
        "nothing older than its position may be sent"
    );
    shared.update(|c| c.apply(EventType::Modified, service("a", 25, "x")));
    assert_eq!(next(&mut ahead).await, "MODIFIED a@25");
}

/// Conformance: 3.F02, 3.F40, 7.31
#[tokio::test(start_paused = true)]
async fn too_old_and_foreign_positions_get_410_in_the_stream() {
    let shared = collection();
    for query in [
        "watch=1&resourceVersion=3",
        "watch=1&resourceVersion=4611686018427387999",
    ] {
        let mut frames = watch(&shared, request(query));
        assert_eq!(next(&mut frames).await, "ERROR 410", "{query}");
        assert_eq!(next(&mut frames).await, "end");
    }
}

/// The message of the ERROR event that comes next.
async fn refusal(frames: &mut Frames) -> String {
    let frame = frames.next().await.expect("an event");
    let event: Value = serde_json::from_slice(&frame).expect("a frame must be JSON");
    assert_eq!(
        (&event["type"], &event["object"]["code"]),
        (&"ERROR".into(), &410.into())
    );
    event["object"]["message"].as_str().unwrap_or_default().to_owned()
}

/// The number in brackets is the oldest one that the client could resume from.
///
/// Conformance: 3.F40
#[tokio::test(start_paused = true)]
async fn refusal_names_the_version_that_was_asked_for() {
    let shared = collection();
    let mut old = watch(&shared, request("watch=1&resourceVersion=9"));
    assert_eq!(refusal(&mut old).await, "too old resource version: 9 (10)");

    let mut running = watch(&shared, request("watch=1&resourceVersion=10"));
    shared.update(|c| c.apply(EventType::Modified, service("a", 15, "x")));
    assert_eq!(next(&mut running).await, "MODIFIED a@15");
    let b_is_gone = vec![service("a", 15, "x")];
    shared
        .update(|c| c.replace(b_is_gone, rv(30)))
        .expect("a later list must be taken");
    let mut inside = watch(&shared, request("watch=1&resourceVersion=20"));
    assert_eq!(refusal(&mut inside).await, "too old resource version: 20 (30)");

    shared.update(|c| c.restart(1, vec![service("a", 40, "x")], rv(50)));
    assert_eq!(refusal(&mut running).await, "too old resource version: 10 (50)");
}

/// Conformance: 3.F32
#[tokio::test(start_paused = true)]
async fn selector_transitions_follow_what_the_client_saw() {
    let shared = collection();
    let mut frames = watch(&shared, request("watch=1&resourceVersion=10&labelSelector=l%3Dx"));
    shared.update(|c| c.apply(EventType::Modified, service("b", 11, "x")));
    assert_eq!(next(&mut frames).await, "ADDED b@11", "it enters the selection");
    shared.update(|c| c.apply(EventType::Modified, service("b", 12, "x")));
    assert_eq!(next(&mut frames).await, "MODIFIED b@12");
    shared.update(|c| c.apply(EventType::Modified, service("b", 13, "z")));
    assert_eq!(next(&mut frames).await, "DELETED b@13", "it leaves the selection");
    shared.update(|c| c.apply(EventType::Modified, service("b", 14, "q")));
    assert!(is_silent(&mut frames).await);
}

/// Many changes of `busy`: the log does not reach back to a reader that was there before.
fn overrun(shared: &SharedCollection, from: u64) {
    for at in from..from + 10_000 {
        shared.update(|c| c.apply(EventType::Modified, service("busy", at, "z")));
    }
}

/// Conformance: 3.F32
#[tokio::test(start_paused = true)]
async fn object_that_left_the_selection_while_nobody_watched_is_gone_for_who_may_know_it() {
    let shared = collection();
    shared.update(|c| c.apply(EventType::Modified, service("a", 11, "y")));
    shared.update(|c| c.apply(EventType::Added, service("new", 12, "x")));
    shared.update(|c| c.apply(EventType::Modified, service("new", 13, "y")));
    overrun(&shared, 20);
    let mut resumed = watch(&shared, request("watch=1&resourceVersion=10&labelSelector=l%3Dx"));
    assert_eq!(next(&mut resumed).await, "DELETED a@11", "it was selected at 10");
    assert!(
        is_silent(&mut resumed).await,
        "\"new\" was created after 10: no reader there knows it"
    );
    let mut resumed = watch(&shared, request("watch=1&resourceVersion=12&labelSelector=l%3Dx"));
    assert_eq!(next(&mut resumed).await, "DELETED new@13", "it was selected at 12");
}

/// More services than a watch takes at a time, all selected by l=x.
fn many(from: u64) -> Vec<Object> {
    let service = |n: u64| service(&format!("n{n:02}"), from + n, "x");
    (0..100).map(service).collect()
}

/// The next events up to `last`, or up to the end of the stream.
async fn until(frames: &mut Frames, last: &str) -> Vec<String> {
    let mut events = vec![next(frames).await];
    while events.last().is_some_and(|event| event != last && event != "end") {
        events.push(next(frames).await);
    }
    events
}

/// Conformance: 3.F32
#[tokio::test(start_paused = true)]
async fn object_that_leaves_the_selection_during_a_catch_up_is_gone_for_who_received_it() {
    let shared = collection();
    for object in many(11) {
        shared.update(|c| c.apply(EventType::Added, object));
    }
    overrun(&shared, 200);
    let mut resumed = watch(&shared, request("watch=1&resourceVersion=10&labelSelector=l%3Dx"));
    assert_eq!(next(&mut resumed).await, "ADDED n00@11");
    shared.update(|c| c.apply(EventType::Modified, service("n00", 20_000, "y")));
    shared.update(|c| c.apply(EventType::Added, service("end", 20_001, "x")));
    let rest = until(&mut resumed, "ADDED end@20001").await;
    assert_eq!(rest.len(), 101, "99 services, the deletion, the end: {rest:?}");
    assert_eq!(rest[99], "DELETED n00@20000");
}

/// Conformance: 3.F16, 3.F32
#[tokio::test(start_paused = true)]
async fn object_that_leaves_the_selection_after_a_stalled_initial_state_is_gone() {
    let shared = collection();
    shared.update(|c| c.restart(0, many(1), rv(100)));
    let mut stalled = watch(&shared, request("watch=1&labelSelector=l%3Dx"));
    assert_eq!(next(&mut stalled).await, "ADDED n00@1");
    shared.update(|c| c.apply(EventType::Added, service("z-new", 101, "x")));
    overrun(&shared, 200);
    let initial = until(&mut stalled, "ADDED z-new@101").await;
    assert_eq!(initial.len(), 100, "the present state, as the log does not reach back");
    shared.update(|c| c.apply(EventType::Modified, service("z-new", 20_000, "y")));
    let rest = until(&mut stalled, "DELETED z-new@20000").await;
    assert_eq!(rest.last().map(String::as_str), Some("DELETED z-new@20000"), "{rest:?}");
}

/// The next event's type and object.
async fn body(frames: &mut Frames) -> (String, Value) {
    let frame = frames.next().await.expect("an event");
    let mut event: Value = serde_json::from_slice(&frame).expect("a frame must be JSON");
    (
        event["type"].as_str().unwrap_or_default().to_owned(),
        event["object"].take(),
    )
}

/// Shows everything, and shares no frames.
struct Everything;

impl View for Everything {
    fn show(&self, object: &Object) -> Object {
        object.clone()
    }
}

/// Holds for exact history and one step, for the whole collection and a part of it.
#[tokio::test(start_paused = true)]
async fn deletion_shows_the_last_state_to_everybody() {
    let state = |rv: u64, spec: &str| {
        let text = service("a", rv, "x").bytes().to_vec();
        let text = String::from_utf8(text).expect("JSON is text");
        Object::parse(text.replace("\"secret\":\"x\"", spec).into(), kind()).expect("fixture must parse")
    };
    let exact = collection();
    let step = collection();
    let mut watches = Vec::new();
    for shared in [&exact, &step] {
        let filtered = WatchRequest {
            view: Arc::new(Everything),
            ..request("watch=1&resourceVersion=10")
        };
        let selecting = request("watch=1&resourceVersion=10&labelSelector=l%3Dx");
        let plain = request("watch=1&resourceVersion=10");
        watches.extend([plain, selecting, filtered].map(|request| watch(shared, request)));
    }
    let (changed, last) = (state(12, "\"secret\":\"y\""), state(14, "\"secret\":\"y\""));
    exact.update(|c| c.apply(EventType::Modified, changed));
    exact.update(|c| c.apply(EventType::Deleted, last.clone()));
    step.update(|c| c.catch_up_to(rv(14), vec![(EventType::Deleted, last.clone())]));
    let wanted: Value = serde_json::from_slice(&last.bytes()).expect("JSON");
    for (n, frames) in watches.iter_mut().enumerate() {
        if n < 3 {
            assert_eq!(body(frames).await.0, "MODIFIED");
        }
        assert_eq!(body(frames).await, ("DELETED".to_owned(), wanted.clone()), "{n}");
    }
    let mut late = watch(&step, request("watch=1&resourceVersion=10&labelSelector=l%3Dx"));
    assert_eq!(body(&mut late).await, ("DELETED".to_owned(), wanted));
}

/// As in kube-apiserver if the change was watched: selectors of the handlers still match. Inside of a step the state
/// before the last of several changes is unknown.
#[tokio::test(start_paused = true)]
async fn object_that_left_the_selection_is_shown_as_it_was_before_if_that_is_known() {
    let shared = collection();
    let label = |(kind, object): (String, Value)| {
        let metadata = &object["metadata"];
        (
            kind,
            metadata["labels"]["l"].clone(),
            metadata["resourceVersion"].clone(),
        )
    };
    let deleted = |label: &str, rv: &str| ("DELETED".to_owned(), label.into(), rv.into());
    let mut exact = watch(&shared, request("watch=1&resourceVersion=10&labelSelector=l%3Dx"));
    shared.update(|c| c.apply(EventType::Modified, service("a", 12, "y")));
    assert_eq!(label(body(&mut exact).await), deleted("x", "12"));

    let step = collection();
    let mut live = watch(&step, request("watch=1&resourceVersion=10&labelSelector=l%3Dx"));
    step.update(|c| c.catch_up_to(rv(20), vec![(EventType::Modified, service("a", 15, "y"))]));
    overrun(&step, 30);
    let mut late = watch(&step, request("watch=1&resourceVersion=10&labelSelector=l%3Dx"));
    for frames in [&mut live, &mut late] {
        assert_eq!(label(body(frames).await), deleted("y", "15"));
    }
}

/// A client that was away receives deletions of known objects, a copy receives all.
#[tokio::test(start_paused = true)]
async fn what_came_and_went_while_a_client_was_away_is_no_deletion_for_it() {
    let shared = collection();
    for n in 0..60 {
        shared.update(|c| c.apply(EventType::Added, service(&format!("n{n}"), 11 + n, "x")));
    }
    shared.update(|c| c.apply(EventType::Deleted, service("a", 80, "x")));
    for n in 0..60 {
        shared.update(|c| c.apply(EventType::Deleted, service(&format!("n{n}"), 100 + n, "x")));
    }
    overrun(&shared, 200);
    let mut client = watch(&shared, request("watch=1&resourceVersion=10"));
    assert_eq!(next(&mut client).await, "DELETED a@80");
    assert_eq!(next(&mut client).await, "ADDED busy@10199");
    let mut copy = request("watch=1&resourceVersion=10&allowWatchBookmarks=true");
    copy.replica = true;
    let mut copy = watch(&shared, copy);
    let mut deleted = 0;
    while !next(&mut copy).await.ends_with("busy@10199") {
        deleted += 1;
    }
    assert_eq!(deleted, 62, "the begin of the step, a, and all the others");
}

/// Conformance: 3.F20, 3.F50
#[tokio::test(start_paused = true)]
async fn stream_ends_cleanly_at_its_timeout_after_a_last_bookmark() {
    let shared = collection();
    let short = WatchRequest {
        lasts: Duration::from_secs(5),
        ..request("watch=1&resourceVersion=10&allowWatchBookmarks=true")
    };
    let mut frames = watch(&shared, short);
    assert_eq!(next(&mut frames).await, "BOOKMARK @10");
    assert_eq!(next(&mut frames).await, "end");
}

#[tokio::test(start_paused = true)]
async fn replica_hears_at_once_of_its_position_a_diff_and_staleness() {
    let shared = collection();
    let fresh = Arc::new(AtomicBool::new(true));
    let told = fresh.clone();
    let replica = WatchRequest {
        replica: true,
        is_fresh: Arc::new(move || told.load(Ordering::Relaxed)),
        ..request("watch=1&resourceVersion=10&allowWatchBookmarks=true")
    };
    let mut frames = watch(&shared, replica);
    assert_eq!(next(&mut frames).await, "BOOKMARK @10");
    shared
        .update(|c| c.replace(vec![service("a", 15, "x")], rv(20)))
        .expect("a newer list");
    assert_eq!(next(&mut frames).await, "BOOKMARK @10 openyurt.io/diff-to");
    assert_eq!(next(&mut frames).await, "DELETED b@10");
    assert_eq!(next(&mut frames).await, "MODIFIED a@15");
    assert_eq!(next(&mut frames).await, "BOOKMARK @20 openyurt.io/diff-done");
    fresh.store(false, Ordering::Relaxed);
    shared.update(|_| ());
    assert_eq!(next(&mut frames).await, "BOOKMARK @20 openyurt.io/stale");
}

/// The last event of a list's difference is older than the list: a client that is cut after it must not have to list.
///
/// Conformance: 7.54
#[tokio::test(start_paused = true)]
async fn client_that_was_told_a_difference_stands_at_its_end() {
    let shared = collection();
    let mut frames = watch(&shared, request("watch=1&resourceVersion=10&allowWatchBookmarks=true"));
    shared
        .update(|c| c.replace(vec![service("a", 15, "x")], rv(20)))
        .expect("a newer list");
    assert_eq!(next(&mut frames).await, "DELETED b@10");
    assert_eq!(next(&mut frames).await, "MODIFIED a@15");
    let told = tokio::time::timeout(Duration::from_secs(1), next(&mut frames)).await;
    assert_eq!(told.as_deref(), Ok("BOOKMARK @20"), "at once");
    shared.update(|c| c.apply(EventType::Added, service("c", 21, "x")));
    let mut resumed = watch(&shared, request("watch=1&resourceVersion=20"));
    assert_eq!(next(&mut resumed).await, "ADDED c@21");
    assert_eq!(
        next(&mut watch(&shared, request("watch=1&resourceVersion=15"))).await,
        "ERROR 410"
    );
}

/// The cloud came back from a backup. A client whose number may be of either history receives everything, and the
/// deletions.
///
/// Conformance: 7.55
#[tokio::test(start_paused = true)]
async fn client_of_an_older_generation_is_told_everything_that_is_there_and_what_is_gone() {
    let shared = collection();
    shared.update(|c| c.advance(ResourceVersion(30)));
    shared.update(|c| c.restart(1, vec![service("a", 4, "x"), service("n", 7, "x")], rv(10)));
    let mut frames = watch(&shared, request("watch=1&resourceVersion=10&allowWatchBookmarks=true"));
    assert_eq!(next(&mut frames).await, "DELETED b@10");
    assert_eq!(next(&mut frames).await, "MODIFIED a@4");
    assert_eq!(next(&mut frames).await, "MODIFIED n@7");
    assert_eq!(next(&mut frames).await, "BOOKMARK @10");
    shared.update(|c| c.apply(EventType::Deleted, service("n", 11, "x")));
    assert_eq!(next(&mut frames).await, "DELETED n@11");
    for query in [
        "watch=1&resourceVersion=9",
        "watch=1&resourceVersion=20",
        "watch=1&resourceVersion=31",
    ] {
        assert_eq!(next(&mut watch(&shared, request(query))).await, "ERROR 410", "{query}");
    }
    let replica = WatchRequest {
        replica: true,
        ..request("watch=1&resourceVersion=10&allowWatchBookmarks=true")
    };
    assert_eq!(next(&mut watch(&shared, replica)).await, "DELETED n@11");
}

/// A hostile leader fed a position that no cloud reaches; its successor began a generation at the cloud's.
///
/// Conformance: 7.55
#[tokio::test(start_paused = true)]
async fn clients_resume_by_their_number_some_time_after_a_generation_whose_numbers_no_cloud_reaches() {
    let (shared, top) = (collection(), POSITION_END.0 - 1);
    shared.update(|c| c.advance(rv(top)));
    shared.update(|c| c.restart(1, vec![service("a", 4, "x"), service("n", 7, "x")], rv(10)));
    let mut frames = watch(&shared, request("watch=1&resourceVersion=10"));
    assert_eq!(
        next(&mut frames).await,
        "DELETED b@10",
        "it may be of the other generation"
    );
    let at_rv = |at: u64| watch(&shared, request(&format!("watch=1&resourceVersion={at}")));
    let some_time = 1 << 30;
    shared.update(|c| c.advance(rv(some_time)));
    let (mut resumed, mut ahead) = (at_rv(some_time), at_rv(some_time + 100));
    assert!(is_silent(&mut resumed).await && is_silent(&mut ahead).await);
    shared.update(|c| c.apply(EventType::Modified, service("n", some_time + 50, "x")));
    assert_eq!(next(&mut resumed).await, format!("MODIFIED n@{}", some_time + 50));
    assert!(is_silent(&mut ahead).await, "another copy has shown it this change");
    shared.update(|c| c.apply(EventType::Modified, service("a", some_time + 101, "x")));
    assert_eq!(next(&mut ahead).await, format!("MODIFIED a@{}", some_time + 101));
    assert_eq!(next(&mut at_rv(top)).await, "ERROR 410", "its state never existed");
}

/// Below the log's reach a reader receives the last state of each key as one step. So a replica that is cut in the
/// middle never has a position at which a key's first change is missing.
#[tokio::test(start_paused = true)]
async fn replica_that_resumes_below_the_log_is_told_one_step() {
    let shared = collection();
    shared.update(|c| {
        c.apply(EventType::Modified, service("a", 11, "x"));
        c.apply(EventType::Deleted, service("b", 12, "x"));
        let recovered = c.to_recovered();
        c.recover(recovered);
    });
    let replica = WatchRequest {
        replica: true,
        ..request("watch=1&resourceVersion=10&allowWatchBookmarks=true")
    };
    let mut frames = watch(&shared, replica);
    assert_eq!(next(&mut frames).await, "BOOKMARK @10 openyurt.io/diff-to");
    assert_eq!(next(&mut frames).await, "MODIFIED a@11");
    assert_eq!(next(&mut frames).await, "DELETED b@12");
    assert_eq!(
        next(&mut frames).await,
        "BOOKMARK @12 openyurt.io/diff-done,openyurt.io/diff-watched"
    );
    let mut client = watch(&shared, request("watch=1&resourceVersion=10&allowWatchBookmarks=true"));
    assert_eq!(next(&mut client).await, "MODIFIED a@11");
    assert_eq!(next(&mut client).await, "DELETED b@12");
}

/// A view of [`collection`] at C = 10 that hides b. Another view of it was served up to `shown_to`.
fn derived(shown_to: u64) -> Arc<SharedCollection> {
    let source = collection();
    let mut recovered = source.read(Collection::to_recovered);
    let hidden = recovered.objects.pop().expect("there are two objects");
    let view = SharedCollection::view_of(&source);
    view.update(|held| *held = Collection::derived(recovered, rv(shown_to), vec![hidden]));
    Arc::new(view)
}

fn revise(view: &SharedCollection, name: &str, state: Option<Object>) {
    let key = ObjectKey::new(Some("shop"), name);
    view.update(|held| held.revise(vec![(key, state)]));
}

/// Conformance: 7.73
#[tokio::test(start_paused = true)]
async fn revision_reaches_open_watches_and_clients_that_resume() {
    let view = derived(0);
    view.update(|held| held.advance(rv(20)));
    let mut open = [
        watch(&view, request("watch=1&resourceVersion=20")),
        watch(&view, request("watch=1&resourceVersion=20&labelSelector=l%3Dy")),
    ];
    for frames in &mut open {
        assert!(is_silent(frames).await);
    }
    revise(&view, "b", Some(service("b", 6, "y")));
    for frames in &mut open {
        assert_eq!(next(frames).await, "ADDED b@20");
    }
    revise(&view, "b", None);
    for frames in &mut open {
        assert_eq!(next(frames).await, "DELETED b@20");
        assert!(is_silent(frames).await, "a deletion needs no repetition");
    }
    // The client knows b from the list at 20, before it was hidden; or from before it was shown.
    for at in [15, 20] {
        let mut resumed = watch(
            &view,
            request(&format!("watch=1&resourceVersion={at}&allowWatchBookmarks=true")),
        );
        assert_eq!(next(&mut resumed).await, format!("DELETED b@{at}"));
        assert_eq!(next(&mut resumed).await, "MODIFIED a@5");
        assert_eq!(next(&mut resumed).await, "BOOKMARK @20");
    }
    view.update(|held| held.apply(EventType::Modified, service("a", 21, "x")));
    let mut resumed = watch(&view, request("watch=1&resourceVersion=21"));
    assert!(
        is_silent(&mut resumed).await,
        "a client above the revision resumes by its number"
    );
}

#[tokio::test(start_paused = true)]
async fn revision_under_a_used_number_is_repeated_under_the_next_one() {
    let view = derived(0);
    view.update(|held| held.apply(EventType::Modified, service("a", 21, "x")));
    let mut frames = watch(&view, request("watch=1&resourceVersion=21"));
    assert!(is_silent(&mut frames).await);
    revise(&view, "a", Some(service("a", 21, "z")));
    assert_eq!(next(&mut frames).await, "MODIFIED a@21");
    view.update(|held| held.advance(rv(30)));
    assert_eq!(next(&mut frames).await, "MODIFIED a@30");
    view.update(|held| held.advance(rv(40)));
    assert!(is_silent(&mut frames).await);
}

#[tokio::test(start_paused = true)]
async fn client_ahead_of_a_view_waits_silently_and_then_receives_everything() {
    let view = derived(1000);
    let mut frames = watch(
        &view,
        request("watch=1&resourceVersion=15&allowWatchBookmarks=true&timeoutSeconds=600"),
    );
    assert!(is_silent(&mut frames).await);
    view.update(|held| held.advance(rv(14)));
    assert!(is_silent(&mut frames).await);
    view.update(|held| held.advance(rv(16)));
    assert_eq!(next(&mut frames).await, "DELETED b@15");
    assert_eq!(next(&mut frames).await, "MODIFIED a@5");
    assert_eq!(next(&mut frames).await, "BOOKMARK @16");
    let mut late = watch(&view, request("watch=1&resourceVersion=50"));
    tokio::time::sleep(Duration::from_secs(500)).await;
    assert!(is_silent(&mut late).await, "it waits as long as its stream lasts");
    assert_eq!(next(&mut late).await, "end");
}

/// Conformance: 3.F03, 7.58, 7.76
#[tokio::test(start_paused = true)]
async fn incomplete_collection_is_429_and_never_empty() {
    let shared = Arc::new(SharedCollection::new(kind(), false));
    let refused = serve::watch(shared.clone(), request("watch=1"))
        .map(drop)
        .expect_err("nothing is known yet");
    assert_eq!((refused.code(), refused.retry_after()), (429, Some(1)));
    let listed = serve::list(
        &shared,
        &ListOptions::default(),
        &Selection::default(),
        &Unfiltered,
        ResourceVersion::ZERO,
    )
    .await;
    assert_eq!(listed.expect_err("nothing is known yet").code(), 429);
}
