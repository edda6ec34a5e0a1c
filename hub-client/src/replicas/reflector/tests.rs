//! One stream and its replica, without a server: the test supplies the events in order.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::FutureExt as _;
use http::StatusCode;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use yurt_apimachinery::watch::{EventType, RawEvent};
use yurt_runtime::http::client::{Dial, Duplex, Protocol};
use yurt_runtime::http::json as answer_json;
use yurt_runtime::http::server::{Server, handler};
use yurt_runtime::tls::install_crypto_provider;
use yurt_runtime::{Clock, TaskGroup};
use yurt_storage::serve::{ANNOTATION_DIFF_DONE, ANNOTATION_DIFF_TO};
use yurt_test_support::{LOOPBACK, TestDir};

use super::*;
use crate::metrics::traffic::Traffic;
use crate::replicas::history_check::Opened;
use crate::upstream::Cloud;
use crate::upstream::json_watch::{JsonWatch, NotOpened, WatchBroken};
use crate::upstream::watch_body::{CLOUD_SILENCE, OVERDUE};

pub(crate) const SERVICES: &str = "services";

/// A replica that holds `web` at 1001 and has position 1006.
pub(crate) struct HeldServices {
    pub(crate) data: Arc<PoolData>,
    pub(crate) replica: Arc<Replica>,
    folder: TestDir,
}

fn rv(value: u64) -> ResourceVersion {
    ResourceVersion(value)
}

fn object(name: &str, version: u64) -> Value {
    let metadata = json!({"namespace": "shop", "name": name, "uid": name, "resourceVersion": version.to_string()});
    json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata})
}

fn service(name: &str, version: u64) -> Object {
    let text = object(name, version).to_string();
    Object::parse(text.into(), find_kind("", SERVICES).unwrap()).unwrap()
}

fn event(event_type: EventType, object: &Value) -> RawEvent {
    RawEvent {
        event_type,
        object: object.to_string().into(),
    }
}

fn bookmark(at: u64, annotations: &[&str]) -> RawEvent {
    let annotations: serde_json::Map<_, _> = annotations
        .iter()
        .map(|name| ((*name).to_owned(), json!("1")))
        .collect();
    let metadata = json!({"resourceVersion": at.to_string(), "annotations": annotations});
    event(EventType::Bookmark, &json!({"metadata": metadata}))
}

impl HeldServices {
    pub(crate) fn new() -> Self {
        Self::within(usize::MAX)
    }

    /// As [`Self::new`], with this limit of pool data, bytes.
    pub(crate) fn within(limit: usize) -> Self {
        install_crypto_provider();
        let folder = TestDir::new();
        let data = PoolData::open(folder.path(), "hangzhou", limit, Clock::system()).unwrap();
        let replica = data.replicas().named(SERVICES).unwrap();
        let first = |held: &mut Collection| held.restart(0, vec![service("web", 1001)], rv(1006));
        replica.collection().update_of(0, rv(1006), first).unwrap();
        Self {
            data: Arc::new(data),
            replica,
            folder,
        }
    }

    /// As [`Self::new`], with its data and mark on the disk.
    async fn stored() -> Self {
        let held = Self::new();
        held.data.replicas().persist(None).await.unwrap();
        held
    }

    /// A stream of the replica's current generation.
    pub(crate) fn stream(&self, source: Source) -> Reflector {
        let client = HttpClient::new("http://127.0.0.1:9".parse().unwrap(), None, Protocol::Http1, IDLE);
        Reflector {
            source,
            client: client.unwrap(),
            traffic: Traffic::default(),
            place: 0,
            replica: self.replica.clone(),
            data: self.data.clone(),
            pool: "hangzhou".to_owned(),
            random: 5,
            confirmed: None,
            opened: None,
            generation: self.look(Collection::generation),
            has_fallback: false,
            selected: None,
        }
    }

    fn look<T>(&self, look: impl FnOnce(&Collection) -> T) -> T {
        self.replica.collection().read(look)
    }

    /// Returns `C` and the names.
    fn state(&self) -> (u64, Vec<String>) {
        let names = |c: &Collection| c.objects().map(|object| object.name().to_owned()).collect();
        self.look(|c| (c.position().0, names(c)))
    }
}

/// Applies the events in turn, as the stream of a server does.
async fn told(stream: &mut Reflector, events: Vec<RawEvent>) -> Result<(), StreamEnd> {
    let mut step = None;
    for event in events {
        stream.take_event(event, &mut step, rv(1006)).await?;
    }
    Ok(())
}

/// After a crash nothing else shows that readers know these RVs.
#[tokio::test]
async fn mark_of_what_is_served_is_on_the_disk_before_it_is_served() {
    let held = HeldServices::stored().await;
    let mut stream = held.stream(Source::Cloud);
    // Far above the mark of that commit.
    let after_a_day = 1_000_000_000_000;
    let changes = [
        event(EventType::Added, &object("late", after_a_day)),
        bookmark(2 * after_a_day, &[]),
        bookmark(3 * after_a_day, &[ANNOTATION_DIFF_TO]),
        event(EventType::Added, &object("later", 3 * after_a_day)),
        bookmark(4 * after_a_day, &[ANNOTATION_DIFF_DONE]),
    ];
    for change in changes {
        told(&mut stream, vec![change]).await.unwrap();
        let served = held.state().0;
        let copy = TestDir::new();
        for file in std::fs::read_dir(held.folder.path()).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
        }
        let crashed = PoolData::open(copy.path(), "hangzhou", usize::MAX, Clock::system()).unwrap();
        let services = crashed.replicas().named(SERVICES).unwrap();
        let back = |held: &mut Collection| held.restart(7, Vec::new(), rv(1005));
        services.collection().update_of(0, rv(1005), back).unwrap();
        let high = services.collection().read(Collection::high);
        assert!(high.0 >= served, "{high} is below {served}, which was served");
    }
}

#[tokio::test]
async fn stream_changes_only_the_generation_it_was_opened_for() {
    let held = HeldServices::stored().await;
    let mut old = held.stream(Source::Coordinator);
    // The cloud was restored from a backup. Its stream lists it while the coordinator's is still up.
    let begin = |held: &mut Collection| held.restart(7_000_000, vec![service("web", 1001)], rv(1004));
    held.replica.collection().update_of(0, rv(1004), begin).unwrap();
    let of_the_lost_history = [
        vec![bookmark(1006, &[])],
        vec![event(EventType::Added, &object("late", 1007))],
        vec![
            bookmark(1007, &[ANNOTATION_DIFF_TO]),
            event(EventType::Added, &object("late", 1007)),
            bookmark(1007, &[ANNOTATION_DIFF_DONE]),
        ],
    ];
    for events in of_the_lost_history {
        let ended = told(&mut old, events.clone()).await;
        assert!(matches!(ended, Err(StreamEnd::Overtaken)), "{events:?}: {ended:?}");
    }
    let listed = old.take_list(vec![service("late", 1006)], rv(1006), Some(0)).await;
    assert!(matches!(listed, Err(StreamEnd::Overtaken)), "{listed:?}");
    assert_eq!(held.state(), (1004, vec!["web".to_owned()]));
}

#[tokio::test]
async fn stream_goes_on_in_the_generation_that_its_list_began() {
    let held = HeldServices::new();
    let mut stream = held.stream(Source::Coordinator);
    let listed = stream.take_list(vec![service("web", 1001)], rv(1004), Some(7_000_000));
    listed.await.unwrap();
    assert_eq!(held.look(Collection::generation), 7_000_000);
    told(&mut stream, vec![event(EventType::Added, &object("new", 1005))])
        .await
        .unwrap();
    assert_eq!(held.state(), (1005, vec!["new".to_owned(), "web".to_owned()]));
}

#[tokio::test]
async fn list_of_a_coordinator_that_is_behind_is_refused_and_begins_no_generation() {
    let held = HeldServices::new();
    let listed = held
        .stream(Source::Coordinator)
        .take_list(vec![service("web", 1001)], rv(1004), Some(0))
        .await;
    assert!(matches!(listed, Err(StreamEnd::Failed(_))), "{listed:?}");
    assert_eq!(held.look(Collection::generation), 0);
    assert_eq!(held.state(), (1006, vec!["web".to_owned()]));
    // The cloud is never behind its own events: it lost its history.
    let listed = held
        .stream(Source::Cloud)
        .take_list(vec![service("web", 1001)], rv(1004), None)
        .await;
    listed.unwrap();
    assert_eq!(held.look(Collection::generation), next_generation(0, 5));
}

/// A cloud with another schema completes, prunes or converts an object in another way. No event says so.
#[tokio::test]
async fn list_of_a_selection_with_another_form_of_an_object_is_taken_and_its_readers_start_over() {
    let held = HeldServices::stored().await;
    let mut reader = held.look(Collection::follow);
    let mut read = || held.look(|held| held.read(&mut reader, 9)).map(drop);
    let mut stream = held.stream(Source::Cloud);
    stream.selected = Some(Selected {
        path: "/api/v1/services".to_owned(),
        query: String::new(),
        authorization: None,
        lane: Cloud::for_test("http://127.0.0.1:9").server().selections.clone(),
    });
    let (mut item, mut changed) = (object("web", 1001), object("web", 1001));
    item.as_object_mut().unwrap().remove("kind");
    changed["spec"] = json!({"type": "ClusterIP"});
    let mut list = async |item: &Value, at: u64| {
        let item = Object::parse(item.to_string().into(), find_kind("", SERVICES).unwrap()).unwrap();
        stream.take_list(vec![item], rv(at), None).await.unwrap();
    };
    list(&item, 1010).await;
    read().expect("items of a list lack their type");
    list(&changed, 1020).await;
    assert!(read().is_err());
    let key = service("web", 1001).key().clone();
    let shown = held.look(|held| held.object(&key).map(Object::to_value));
    assert_eq!(shown, Some(changed));
    assert_eq!(held.look(|held| (held.generation(), held.position())), (0, rv(1020)));
}

/// A list gap that a coordinator announces at 1000 or 1003 and ends at 1010. It omits objects that were created and
/// deleted in between.
#[tokio::test]
async fn jump_of_the_coordinator_over_our_position_is_not_taken() {
    for from in [1000, 1003] {
        let held = HeldServices::new();
        let jump = vec![
            bookmark(from, &[ANNOTATION_DIFF_TO]),
            event(EventType::Added, &object("late", 1009)),
            bookmark(1010, &[ANNOTATION_DIFF_DONE]),
        ];
        let ended = told(&mut held.stream(Source::Coordinator), jump).await;
        assert!(matches!(ended, Err(StreamEnd::Expired)), "from {from}: {ended:?}");
        assert_eq!(held.state(), (1006, vec!["web".to_owned()]));
    }
    for from in [1006, 1008] {
        let held = HeldServices::new();
        let jump = vec![
            bookmark(from, &[ANNOTATION_DIFF_TO]),
            event(EventType::Added, &object("late", 1009)),
            bookmark(1010, &[ANNOTATION_DIFF_DONE]),
        ];
        told(&mut held.stream(Source::Coordinator), jump).await.unwrap();
        assert_eq!(held.state(), (1010, vec!["late".to_owned(), "web".to_owned()]));
    }
}

#[tokio::test]
async fn bookmark_inside_a_step_says_nothing_of_the_position() {
    let held = HeldServices::new();
    let step = vec![
        bookmark(1006, &[ANNOTATION_DIFF_TO]),
        event(EventType::Added, &object("late", 1009)),
        bookmark(1008, &[]),
    ];
    told(&mut held.stream(Source::Coordinator), step).await.unwrap();
    assert_eq!(held.state(), (1006, vec!["web".to_owned()]), "the step has not ended");
}

/// Runs a stream of the cloud at a server that answers every request with `status` and `body`. Also returns whether the
/// earlier proof is still valid.
async fn is_proven_after(status: StatusCode, body: &'static str) -> (StreamEnd, bool) {
    let held = HeldServices::new();
    let mut stream = held.stream(Source::Cloud);
    let server = Server::bind(LOOPBACK, "no flag").await.unwrap();
    let url = format!("http://{}", server.local_addr());
    let answer = handler(move |_, _| async move { answer_json(status, body) });
    let _serving = server.serve(&TaskGroup::new(), answer);
    stream.client = HttpClient::new(url.parse().unwrap(), None, Protocol::Http1, IDLE).unwrap();
    held.data.history().prove(Opened {
        pool: 1,
        ..Opened::default()
    });
    let ended = stream.run(Begin::Resume).await;
    (ended, held.data.history().holds(SERVICES, 0))
}

/// No number follows the highest ones: a hub that held one could begin no generation.
#[tokio::test]
async fn number_of_the_coordinator_that_nothing_follows_is_not_taken() {
    let held = HeldServices::new();
    for told in [GENERATION_END, u64::MAX] {
        let forged = vec![service("forged", 1008)];
        let mut stream = held.stream(Source::Coordinator);
        let taken = stream.take_list(forged, rv(1009), Some(told)).await;
        assert!(matches!(taken, Err(StreamEnd::Refused(_))), "{taken:?}");
        assert_eq!(held.state(), (1006, vec!["web".to_owned()]));
    }
    // Many steps are accepted: otherwise a leader that begins often would shut out a hub that was off.
    let mut stream = held.stream(Source::Coordinator);
    stream
        .take_list(vec![service("db", 1008)], rv(1009), Some(GENERATION_END - 1))
        .await
        .unwrap();
    assert_eq!(held.state(), (1009, vec!["db".to_owned()]));
    let next = next_generation(GENERATION_END - 1, 5);
    assert!(0 < next && next < GENERATION_END);
}

/// A list of the coordinator may be applied during a proof: its history may be one that the cloud has lost.
#[tokio::test]
async fn stream_of_the_cloud_waits_for_a_proof_about_the_copy_that_is_held() {
    let held = HeldServices::stored().await;
    let history = held.data.history();
    history.prove(Opened {
        pool: 1,
        ..Opened::default()
    });
    let coordinators = |held: &mut Collection| held.restart(7, vec![service("web", 1001)], rv(1006));
    held.replica.collection().update_of(0, rv(1006), coordinators).unwrap();
    let mut stream = Box::pin(held.stream(Source::Cloud).run(Begin::Resume));
    assert!(stream.as_mut().now_or_never().is_none());
    assert!(history.proven().now_or_never().is_none(), "another one is asked for");
}

/// A resource that is refused, or cannot be read, fails for days; other streams would wait for a proof each time.
#[tokio::test]
async fn what_a_server_refuses_puts_no_proof_in_doubt() {
    let refused = is_proven_after(StatusCode::FORBIDDEN, r#"{"kind":"Status","code":403}"#).await;
    assert!(matches!(refused, (StreamEnd::Denied(..), true)), "{refused:?}");
    let unreadable = is_proven_after(StatusCode::OK, "{\"type\":\"ADDED\",\"object\":{\"metadata\":{}}}\n").await;
    assert!(matches!(unreadable, (StreamEnd::Unreadable(_), true)), "{unreadable:?}");
    let cut = is_proven_after(StatusCode::OK, "").await;
    assert!(matches!(cut, (StreamEnd::Closed, false)), "{cut:?}");
}

/// A server that answers watches with the given events, one connection each.
pub(crate) fn server_of(told: &'static [(u64, &'static str)]) -> (HttpClient, Arc<AtomicUsize>) {
    let connections = Arc::<AtomicUsize>::default();
    let opened = connections.clone();
    let dial: Dial = Arc::new(move || {
        opened.fetch_add(1, Ordering::SeqCst);
        let (near, far) = tokio::io::duplex(64 << 10);
        let serve = async move {
            let (mut read, mut write) = tokio::io::split(far);
            let mut asked = [0; 4096];
            assert!(read.read(&mut asked).await.unwrap() > 0);
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
            write.write_all(head.as_bytes()).await.unwrap();
            for (after, line) in told {
                tokio::time::sleep(Duration::from_secs(*after)).await;
                let chunk = match *line {
                    END => "0\r\n\r\n".to_owned(),
                    line => format!("{:x}\r\n{line}\n\r\n", line.len() + 1),
                };
                if write.write_all(chunk.as_bytes()).await.is_err() || *line == END {
                    return;
                }
            }
            // The connection stays up.
            std::future::pending::<()>().await;
        };
        let near: Box<dyn Duplex> = Box::new(near);
        #[allow(clippy::disallowed_methods, reason = "ends with the test's runtime")]
        drop(tokio::spawn(serve));
        Box::pin(async move { Ok(near) })
    });
    let base = "http://cloud".parse().unwrap();
    let client = HttpClient::over(base, None, Protocol::Http1, IDLE, Some(dial)).unwrap();
    (client, connections)
}

/// Normal end of a watch, and of its connection.
pub(crate) const END: &str = "";
pub(crate) const BOOKMARK: &str = r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"1006"}}}"#;

/// A load balancer keeps the connection to a dead server open.
#[tokio::test(start_paused = true)]
async fn source_that_falls_silent_is_left_for_another_connection() {
    let held = HeldServices::new();
    let (client, connections) = server_of(&[(10, BOOKMARK), (10, BOOKMARK)]);
    let mut stream = held.stream(Source::Coordinator);
    stream.client = client.clone();
    let began = Instant::now();
    let watched = tokio::time::timeout(Duration::from_secs(3600), stream.watch()).await;
    let ended = watched.expect("it is left");
    assert!(
        matches!(&ended, Err(StreamEnd::Silent(why)) if why.contains("30 s")),
        "{ended:?}"
    );
    assert_eq!(began.elapsed().as_secs(), 10 + 10 + 30);
    assert!(StreamEnd::Silent(String::new()).may_be_of_the_history());

    assert_eq!(connections.load(Ordering::SeqCst), 1);
    let again = tokio::time::timeout(Duration::from_secs(3600), stream.watch()).await;
    assert!(matches!(again, Ok(Err(StreamEnd::Silent(_)))), "{again:?}");
    assert_eq!(connections.load(Ordering::SeqCst), 2, "not the same one again");
}

#[tokio::test(start_paused = true)]
async fn watch_that_outlives_its_time_is_left() {
    const ALIVE: [(u64, &str); 80] = [(10, BOOKMARK); 80];
    let held = HeldServices::new();
    let (client, _) = server_of(&ALIVE);
    let mut stream = held.stream(Source::Coordinator);
    stream.client = client;
    let began = Instant::now();
    let watched = tokio::time::timeout(Duration::from_secs(3600), stream.watch()).await;
    assert!(matches!(watched, Ok(Err(StreamEnd::Silent(_)))), "{watched:?}");
    assert_eq!(began.elapsed(), stream.lasts() + OVERDUE);
}

/// The NodePool and the hub's configuration are followed with watches of their own.
#[tokio::test(start_paused = true)]
async fn small_watch_of_a_silent_cloud_is_left_too() {
    const LASTS: Duration = Duration::from_secs(1800);
    const ALIVE: [(u64, &str); 80] = [(60, BOOKMARK); 80];
    for (sent, broken_after) in [
        (&[(10, BOOKMARK)][..], Duration::from_secs(10) + CLOUD_SILENCE),
        (&[][..], LASTS + OVERDUE),
        (&ALIVE[..], LASTS + OVERDUE),
    ] {
        let (client, connections) = server_of(sent);
        let began = Instant::now();
        let mut events = JsonWatch::open(&client, "/watch", LASTS).await.unwrap();
        let ended = tokio::time::timeout(Duration::from_secs(7200), events.next()).await;
        assert_eq!(ended, Ok(Err(WatchBroken)));
        assert_eq!(began.elapsed(), broken_after);
        JsonWatch::open(&client, "/watch", LASTS).await.unwrap();
        assert_eq!(connections.load(Ordering::SeqCst), 2, "not the same one again");
    }
}

#[tokio::test(start_paused = true)]
async fn watch_beside_a_list_of_a_silent_source_is_left_too() {
    const ALIVE: [(u64, &str); 80] = [(60, BOOKMARK); 80];
    let held = HeldServices::new();
    for source in [Source::Coordinator, Source::Cloud] {
        let lists = held.data.partial_lists();
        let slot = lists.slot(SERVICES, held.replica.collection().kind(), source);
        let whole = held.stream(source).lasts() + OVERDUE;
        for (sent, left_after) in [
            (&[(10, BOOKMARK)][..], Duration::from_secs(10) + CLOUD_SILENCE),
            (&[][..], whole),
            (&ALIVE[..], whole),
        ] {
            let mut stream = held.stream(source);
            let (client, connections) = server_of(sent);
            stream.client = client;
            held.data.history().prove(Opened {
                pool: u64::MAX,
                ..Opened::default()
            });
            let began = Instant::now();
            let watching = stream.watch_beside(&slot, rv(1006), None);
            let ended = tokio::time::timeout(Duration::from_secs(7200), watching).await;
            assert!(matches!(ended, Ok(StreamEnd::Silent(_))), "{sent:?}: {ended:?}");
            assert_eq!(began.elapsed(), left_after);
            stream.get(&stream.watch_query(rv(1006))).await.unwrap();
            assert_eq!(connections.load(Ordering::SeqCst), 2, "not the same one again");
        }
    }
}

/// A load balancer accepts the request for a dead server.
#[tokio::test(start_paused = true)]
async fn small_watch_that_is_not_answered_is_not_awaited_for_ever() {
    let dial: Dial = Arc::new(|| {
        let (near, far) = tokio::io::duplex(64 << 10);
        let silent = async move {
            // The connection stays up.
            let _far = far;
            std::future::pending::<()>().await;
        };
        let near: Box<dyn Duplex> = Box::new(near);
        #[allow(clippy::disallowed_methods, reason = "ends with the test's runtime")]
        drop(tokio::spawn(silent));
        Box::pin(async move { Ok(near) })
    });
    let base = "http://cloud".parse().unwrap();
    let client = HttpClient::over(base, None, Protocol::Http1, IDLE, Some(dial)).unwrap();
    let opening = JsonWatch::open(&client, "/watch", Duration::from_secs(1800));
    let opened = tokio::time::timeout(Duration::from_secs(7200), opening).await;
    assert_eq!(opened.expect("it is left").err(), Some(NotOpened::Unanswered));
}

const STALE: &str = r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"1006","annotations":{"openyurt.io/stale":"true"}}}}"#;
const CHANGE: &str = r#"{"type":"ADDED","object":{"apiVersion":"v1","kind":"Service","metadata":{"namespace":"shop","name":"new","uid":"new","resourceVersion":"1007"}}}"#;

/// Watches at a coordinator that sends `told` and falls silent.
async fn watch_until_silent(held: &HeldServices, told: &'static [(u64, &'static str)]) {
    let mut stream = held.stream(Source::Coordinator);
    stream.client = server_of(told).0;
    let ended = stream.watch().await;
    assert!(matches!(ended, Err(StreamEnd::Silent(_))), "{ended:?}");
}

/// The coordinator restarted without what this hub already holds: it accepts the watch, and waits.
#[tokio::test(start_paused = true)]
async fn coordinator_that_only_accepts_a_watch_does_not_make_the_data_fresh() {
    let held = HeldServices::new();
    watch_until_silent(&held, &[]).await;
    assert!(!held.data.is_fresh(SERVICES));
    assert_eq!(held.data.staleness(SERVICES), None, "it never was");
}

#[tokio::test(start_paused = true)]
async fn only_a_bookmark_of_the_coordinator_changes_the_freshness() {
    let held = HeldServices::new();
    watch_until_silent(&held, &[(0, CHANGE)]).await;
    assert!(!held.data.is_fresh(SERVICES), "a change does not");
    watch_until_silent(&held, &[(0, BOOKMARK), (0, CHANGE)]).await;
    assert!(held.data.is_fresh(SERVICES));
    watch_until_silent(&held, &[(0, STALE), (0, CHANGE)]).await;
    assert!(!held.data.is_fresh(SERVICES), "nor does one after a stale bookmark");
    let fresh_at = held.data.sources().of(SERVICES).fresh_at;
    let mut stream = held.stream(Source::Coordinator);
    let listed = stream.take_list(vec![service("web", 1001)], rv(1008), None);
    listed.await.unwrap();
    assert!(!held.data.is_fresh(SERVICES), "nor does a list");
    watch_until_silent(&held, &[]).await;
    assert_eq!(
        held.data.sources().of(SERVICES).fresh_at,
        fresh_at,
        "nor does the next watch"
    );
}

/// The source may be another one by then.
#[tokio::test]
async fn data_whose_source_was_lost_is_stale_until_the_coordinator_reports_otherwise() {
    let held = HeldServices::new();
    let mut stream = held.stream(Source::Coordinator);
    told(&mut stream, vec![bookmark(1006, &[])]).await.unwrap();
    assert!(held.data.is_fresh(SERVICES));
    held.data.sources().lost(SERVICES);
    told(&mut stream, vec![event(EventType::Added, &object("new", 1007))])
        .await
        .unwrap();
    assert!(!held.data.is_fresh(SERVICES));
    told(&mut stream, vec![bookmark(1007, &[])]).await.unwrap();
    assert!(held.data.is_fresh(SERVICES));
}
