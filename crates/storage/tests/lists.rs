//! Lists in pages and at chosen versions, as clients see them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use yurt_apimachinery::kind::{ResourceKind, find_kind};
use yurt_apimachinery::options::ContinueToken;
use yurt_apimachinery::watch::EventType;
use yurt_apimachinery::{ListOptions, Object, ObjectKey, ResourceVersion, Status};
use yurt_collection::Collection;
use yurt_storage::serve::{self, Listed, Selection, Unfiltered, View};
use yurt_storage::{OnlyWriter as _, SharedCollection};

fn kind() -> &'static ResourceKind {
    find_kind("", "services").expect("services must be built in")
}

fn service(key: &str, rv: u64, label: &str) -> Object {
    let (namespace, name) = key.split_once('/').expect("a key with a namespace");
    let json = format!(
        r#"{{"metadata":{{"namespace":"{namespace}","name":"{name}","uid":"u-{name}","resourceVersion":"{rv}","labels":{{"l":"{label}"}}}}}}"#
    );
    Object::parse(Bytes::from(json), kind()).expect("fixture must parse")
}

fn rv(value: u64) -> ResourceVersion {
    ResourceVersion(value)
}

/// `s00` … `s09` in namespace `shop`, labelled `even` and `odd`, at C = 20.
fn ten() -> SharedCollection {
    let shared = SharedCollection::new(kind(), false);
    let label = |i: u64| if i.is_multiple_of(2) { "even" } else { "odd" };
    let list = (0..10).map(|i| service(&format!("shop/s{i:02}"), 10 + i, label(i)));
    shared.update(|c| c.restart(0, list.collect(), rv(20)));
    shared
}

async fn list_in(shared: &SharedCollection, namespace: Option<&str>, query: &str) -> Result<Listed, Status> {
    let options = ListOptions::parse(Some(query), false, kind())?;
    let selection = Selection {
        namespace: namespace.map(str::to_owned),
        labels: options.label_selector.clone(),
        fields: options.field_selector.clone(),
    };
    serve::list(shared, &options, &selection, &Unfiltered, ResourceVersion::ZERO).await
}

async fn list(shared: &SharedCollection, query: &str) -> Result<Listed, Status> {
    list_in(shared, None, query).await
}

fn names(listed: &Listed) -> Vec<&str> {
    listed.objects.iter().map(Object::name).collect()
}

fn token(listed: &Listed) -> &str {
    listed.meta.continue_token.as_deref().expect("there is another page")
}

fn modify(shared: &SharedCollection, key: &str, rv: u64) {
    shared.update(|c| c.apply(EventType::Modified, service(key, rv, "even")));
}

/// A read of the latest state returns the state committed here: it sends no request and waits for nothing.
///
/// Conformance: 8.25
#[tokio::test]
async fn consistent_list_does_not_wait() {
    let shared = ten();
    for at in [21, 22] {
        modify(&shared, "shop/s00", at);
        for query in ["", &format!("resourceVersion={at}"), "limit=3"] {
            let at_once = list(&shared, query).now_or_never().expect("it must not wait");
            assert_eq!(at_once.expect("a list").meta.resource_version, rv(at), "{query}");
        }
    }
    assert!(list(&shared, "resourceVersion=23").now_or_never().is_none(), "not yet");
}

/// Conformance: 3.E08, 3.E06, 2.32
#[tokio::test]
async fn every_page_shows_the_state_of_the_first_while_others_write() {
    for namespace in [None, Some("shop")] {
        let shared = ten();
        let whole: Vec<Object> = list(&shared, "").await.expect("a list").objects;
        let mut query = "limit=3".to_owned();
        let mut seen = Vec::new();
        for turn in 0.. {
            let page = list_in(&shared, namespace, &query).await.expect("a page");
            assert_eq!(page.meta.resource_version, rv(20));
            seen.extend(page.objects);
            let Some(token) = page.meta.continue_token else { break };
            query = format!("limit=3&continue={token}");
            // Changes before the next page and in it: updates, a new object, a deletion.
            let at = 100 + 10 * turn;
            modify(&shared, "shop/s00", at);
            modify(&shared, "shop/s05", at + 1);
            modify(&shared, &format!("shop/s05-{turn}"), at + 2);
            shared.update(|c| c.apply(EventType::Deleted, service("shop/s08", at + 3, "even")));
        }
        assert_eq!(seen, whole, "nothing twice, nothing lost, nothing new");
    }
}

/// "-" sorts before "/": a list by (namespace, name) would lose objects at a page's edge.
///
/// Conformance: 3.E06
#[tokio::test]
async fn pages_follow_the_order_of_keys_across_namespaces() {
    let shared = SharedCollection::new(kind(), false);
    let list_of = ["a/x", "a-b/y", "a/z", "b/x"].map(|key| service(key, 5, "l"));
    shared.update(|c| c.restart(0, list_of.into(), rv(9)));
    let first = list(&shared, "limit=2").await.expect("a page");
    let rest = list(&shared, &format!("continue={}", token(&first)))
        .await
        .expect("the rest");
    let keys: Vec<&str> = first
        .objects
        .iter()
        .chain(&rest.objects)
        .map(|o| o.key().as_str())
        .collect();
    assert_eq!(keys, ["a-b/y", "a/x", "a/z", "b/x"]);
    // The namespace of a field selector narrows like that of a path.
    let narrow = list(&shared, "fieldSelector=metadata.namespace%3Da&limit=2")
        .await
        .expect("a page");
    assert_eq!(
        (names(&narrow), narrow.meta.continue_token.clone()),
        (vec!["x", "z"], None)
    );
}

/// Conformance: 3.E11, 3.E12
#[tokio::test]
async fn the_limit_counts_matches_and_the_rest_is_counted_only_without_selectors() {
    let shared = ten();
    let page = list(&shared, "limit=4").await.expect("a page");
    assert_eq!((page.objects.len(), page.meta.remaining_item_count), (4, Some(6)));
    let last = list(&shared, &format!("limit=6&continue={}", token(&page)))
        .await
        .expect("the last page");
    assert_eq!(
        (
            last.objects.len(),
            last.meta.continue_token,
            last.meta.remaining_item_count
        ),
        (6, None, None)
    );
    let odd = list(&shared, "limit=3&labelSelector=l%3Dodd").await.expect("a page");
    assert_eq!(
        (names(&odd), odd.meta.remaining_item_count),
        (vec!["s01", "s03", "s05"], None)
    );
    let rest = list(
        &shared,
        &format!("limit=3&labelSelector=l%3Dodd&continue={}", token(&odd)),
    )
    .await;
    let rest = rest.expect("the rest");
    assert_eq!(
        (names(&rest), rest.meta.continue_token.clone()),
        (vec!["s07", "s09"], None)
    );
}

/// One row per line of the table: query, then the version the list is at, or its code.
///
/// Conformance: 3.E07, 3.E09, 3.E13, 3.E14, 2.23
#[tokio::test(start_paused = true)]
async fn version_match_and_limit_follow_the_table() {
    let shared = ten();
    modify(&shared, "shop/s00", 30);
    modify(&shared, "shop/s00", 40);
    let exactly = |at: u64| Ok((at, 10));
    let rows = [
        ("", exactly(40)),
        ("limit=20", exactly(40)),
        ("resourceVersion=0", exactly(40)),
        ("resourceVersion=0&limit=3", exactly(40)),
        (
            "resourceVersion=0&limit=3&resourceVersionMatch=NotOlderThan",
            exactly(40),
        ),
        ("resourceVersion=30", exactly(40)),
        ("resourceVersion=30&limit=20", exactly(30)),
        ("resourceVersion=30&resourceVersionMatch=NotOlderThan", exactly(40)),
        (
            "resourceVersion=30&resourceVersionMatch=NotOlderThan&limit=20",
            exactly(40),
        ),
        ("resourceVersion=30&resourceVersionMatch=Exact", exactly(30)),
        ("resourceVersion=30&resourceVersionMatch=Exact&limit=20", exactly(30)),
        ("resourceVersion=20&resourceVersionMatch=Exact", exactly(20)),
        ("resourceVersion=25&resourceVersionMatch=Exact", exactly(25)),
        ("resourceVersion=19&resourceVersionMatch=Exact", Err(410)),
        ("resourceVersion=41", Err(504)),
        ("resourceVersion=41&resourceVersionMatch=Exact", Err(504)),
        ("resourceVersion=4611686018427387999", Err(410)),
        ("resourceVersion=0&resourceVersionMatch=Exact", Err(422)),
        ("resourceVersionMatch=Exact", Err(422)),
    ];
    for (query, want) in rows {
        let listed = list(&shared, query).await;
        let got = listed.map(|listed| (listed.meta.resource_version.0, listed.objects.len()));
        assert_eq!(got.map_err(|status| status.code()), want, "{query}");
    }
    let then = list(&shared, "resourceVersion=30&resourceVersionMatch=Exact")
        .await
        .expect("the past");
    assert_eq!(then.objects[0].resource_version(), rv(30));
    let future = list(&shared, "resourceVersion=41").await.expect_err("it never comes");
    assert_eq!(
        (future.causes()[0].reason.as_str(), future.retry_after()),
        ("ResourceVersionTooLarge", Some(1))
    );
    let started = tokio::time::Instant::now();
    let _ = list(&shared, "resourceVersion=4611686018427387999").await;
    assert_eq!(started.elapsed(), Duration::ZERO, "foreign numbers need no wait");
}

/// Conformance: 3.E09, 3.E10, 4.09
#[tokio::test(start_paused = true)]
async fn token_of_a_forgotten_state_gets_410_and_a_token_for_the_rest() {
    let shared = ten();
    let page = list(&shared, "limit=3").await.expect("a page");
    for i in 0..10_000 {
        modify(&shared, "shop/s07", 100 + i);
    }
    let query = format!("limit=3&continue={}", token(&page));
    let expired = list(&shared, &query).await.expect_err("the log was overrun");
    assert_eq!(
        (expired.code(), expired.reason(), expired.retry_after()),
        (410, "Expired", None)
    );
    assert!(
        expired
            .message()
            .starts_with("The provided continue parameter is too old to display")
    );
    let rest = expired.continue_token().expect("a token that lists the rest");
    let rest = list(&shared, &format!("limit=5&continue={rest}"))
        .await
        .expect("the rest as it is now");
    assert_eq!(rest.meta.resource_version, rv(10_099));
    assert_eq!(names(&rest), ["s03", "s04", "s05", "s06", "s07"]);
    let foreign = ContinueToken::after(Some(rv(ResourceVersion::OWN_BIT + 5)), "shop/s03").encode();
    assert_eq!(
        list(&shared, &format!("continue={foreign}"))
            .await
            .expect_err("another space")
            .code(),
        410
    );
    let malformed = list(&shared, "continue=x").await.expect_err("no token");
    assert_eq!(malformed.code(), 400);
    assert!(
        malformed
            .message()
            .starts_with("invalid continue token: continue key is not valid")
    );
}

/// Conformance: 3.E13
#[tokio::test(start_paused = true)]
async fn list_waits_for_a_version_that_arrives_in_time() {
    let shared = ten();
    let write = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        modify(&shared, "shop/s00", 31);
    };
    let (listed, ()) = tokio::join!(list(&shared, "resourceVersion=30"), write);
    let listed = listed.expect("it came");
    assert_eq!(listed.meta.resource_version, rv(31));
}

/// Conformance: 3.E13
#[tokio::test(start_paused = true)]
async fn list_not_older_than_a_version_waits_for_it_and_gives_up() {
    let shared = ten();
    let query = |at: u64| format!("resourceVersion={at}&resourceVersionMatch=NotOlderThan");
    let write = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        modify(&shared, "shop/s00", 31);
    };
    let until_30 = query(30);
    let (listed, ()) = tokio::join!(list(&shared, &until_30), write);
    assert_eq!(listed.expect("it came").meta.resource_version, rv(31));
    for limit in ["", "&limit=3"] {
        let late = list(&shared, &(query(32) + limit)).await.expect_err("it never comes");
        assert_eq!(late.code(), 504, "{limit}");
    }
}

#[tokio::test]
async fn page_after_a_revision_is_of_another_state() {
    let source = ten();
    let view = SharedCollection::view_of(&source);
    let recovered = source.read(Collection::to_recovered);
    view.update(|held| *held = Collection::derived(recovered, ResourceVersion::ZERO, Vec::new()));
    let revise = |key: &str| {
        let key = ObjectKey::parse(key);
        let state = view.read(|held| held.object(&key).cloned());
        view.update(|held| held.revise(vec![(key, state)]));
    };
    let first = async || {
        list(&view, "limit=2")
            .await
            .expect("a page")
            .meta
            .continue_token
            .expect("more")
    };
    let next = async |token: &str| list(&view, &format!("limit=2&continue={token}")).await;
    let before = first().await;
    next(&before).await.expect("nothing was revised");
    revise("shop/s00");
    let late = next(&before).await.expect_err("the state of the first page is gone");
    assert_eq!(late.code(), 410);
    let latest = late.continue_token().expect("a token of the present state").to_owned();
    next(&latest).await.expect("the present state");
    let between = first().await;
    assert_eq!(next(&between).await.expect("a page").objects[0].name(), "s02");
    revise("shop/s09");
    assert_eq!(next(&between).await.expect_err("revised again").code(), 410);
    let at = first().await;
    view.update(|held| held.advance(ResourceVersion(1000)));
    next(&at).await.expect("nothing was revised since");
}

/// Counts the objects that it shows.
#[derive(Default)]
struct Counting(AtomicUsize);

impl View for Counting {
    fn show(&self, object: &Object) -> Object {
        self.0.fetch_add(1, Ordering::Relaxed);
        object.clone()
    }
}

#[tokio::test]
async fn objects_of_a_long_list_are_shown_a_few_at_a_time() {
    let shared = SharedCollection::new(kind(), false);
    let all: Vec<Object> = (0..1000)
        .map(|i| service(&format!("shop/s{i:04}"), 10 + i, "l"))
        .collect();
    shared.update(|c| c.restart(0, all.clone(), rv(2000)));
    let options = ListOptions::parse(None, false, kind()).expect("no options");
    let view = Counting::default();
    let (selection, least) = (Selection::default(), ResourceVersion::ZERO);
    let mut listed = std::pin::pin!(serve::list(&shared, &options, &selection, &view, least));
    assert!(listed.as_mut().now_or_never().is_none());
    let shown = view.0.load(Ordering::Relaxed);
    assert!((1..=100).contains(&shown), "{shown} in one turn");
    assert_eq!(listed.await.expect("a list").objects, all);
}
