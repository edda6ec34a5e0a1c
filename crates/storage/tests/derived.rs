//! Filtered views against a model: whatever happens to objects, inputs, streams and the process, every client ends with
//! the view that a fresh list shows, and never receives what its filter removes.
//!
//! Source and view are real collections, clients read them through real watches. The filter and the task of the view
//! are small models: an object names the input that it depends on, and the input says whether the object is hidden, or
//! which part of it is removed.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{FutureExt as _, Stream, StreamExt as _};
use proptest::prelude::*;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::kind::{ResourceKind, find_kind};
use yurt_apimachinery::watch::EventType;
use yurt_apimachinery::{ListOptions, Object, ResourceVersion};
use yurt_codec::negotiation::Negotiated;
use yurt_collection::{Collection, Delivery, Expired, Filtered, Limits, Reader, outline};
use yurt_runtime::Clock;
use yurt_storage::serve::{self, Selection, Unfiltered, WatchRequest};
use yurt_storage::{OnlyWriter as _, SharedCollection};

type Frames = Pin<Box<dyn Stream<Item = Bytes> + Send>>;
/// Content by key.
type Content = BTreeMap<String, String>;
/// RV and content by key.
type Store = BTreeMap<String, (String, String)>;

/// Number of keys; key `k` depends on input `k % INPUTS`.
const KEYS: u64 = 5;
const INPUTS: usize = 2;
const CLIENTS: usize = 3;
/// Text that a filter with input 1 removes.
const SECRET: &str = "raw";

/// One thing that happens.
#[derive(Clone, Debug)]
enum Op {
    /// The source changes or creates an object.
    Put(u64),
    /// The source deletes an object.
    Delete(u64),
    /// The source moves without a change.
    Advance,
    /// The source lists again after a break: these keys are gone, these changed.
    Relist(Vec<u64>, Vec<u64>),
    /// An input changes: 0 hides, 1 removes the secret, 2 shows everything.
    Input(usize, u8),
    /// A client takes some events.
    Take(usize, usize),
    /// A client's stream is cut; it resumes where it is, or as it was some resumes ago.
    Cut(usize, usize),
    /// The process stops, or is killed after its last commit.
    Restart(bool),
    /// The source commits.
    Commit,
}

fn op() -> impl Strategy<Value = Op> {
    let keys = || prop::collection::vec(0..KEYS, 0..3);
    prop_oneof![
        6 => (0..KEYS).prop_map(Op::Put),
        2 => (0..KEYS).prop_map(Op::Delete),
        2 => Just(Op::Advance),
        1 => (keys(), keys()).prop_map(|(gone, changed)| Op::Relist(gone, changed)),
        6 => (0..INPUTS, 0..3_u8).prop_map(|(input, to)| Op::Input(input, to)),
        8 => (0..CLIENTS, 1..6_usize).prop_map(|(client, count)| Op::Take(client, count)),
        3 => (0..CLIENTS, 0..4_usize).prop_map(|(client, back)| Op::Cut(client, back)),
        1 => any::<bool>().prop_map(Op::Restart),
        1 => Just(Op::Commit),
    ]
}

fn kind() -> &'static ResourceKind {
    find_kind("", "services").expect("services must be built in")
}

fn object(key: u64, rv: u64, content: &str) -> Object {
    let json = format!(
        r#"{{"metadata":{{"namespace":"shop","name":"k{key}","uid":"u{key}","resourceVersion":"{rv}"}},"spec":{{"a":"{content}"}}}}"#
    );
    Object::parse(Bytes::from(json), kind()).expect("fixture must parse")
}

fn content_of(object: &Value) -> String {
    object["spec"]["a"].as_str().unwrap_or_default().to_owned()
}

fn input_of(object: &Object) -> usize {
    let number: u64 = object.name()[1..].parse().expect("a number");
    number as usize % INPUTS
}

/// The inputs, and everything that the filter has returned so far.
struct Filter {
    inputs: [u8; INPUTS],
    shown: RefCell<BTreeSet<String>>,
}

impl Filter {
    fn show(&self, object: &Object) -> Option<Object> {
        let shown = match self.inputs[input_of(object)] {
            0 => None,
            1 => {
                let text = String::from_utf8(object.bytes().to_vec()).expect("JSON is text");
                Some(Object::parse(text.replace(SECRET, "cut").into(), kind()).expect("still an object"))
            }
            _ => Some(object.clone()),
        };
        self.shown
            .borrow_mut()
            .extend(shown.as_ref().map(|shown| content_of(&shown.to_value())));
        shown
    }
}

/// A hub: source, view, and the reader between them.
struct Hub {
    source: SharedCollection,
    view: Arc<SharedCollection>,
    reader: Reader,
    limits: Limits,
    /// True if there was another view before.
    is_another: bool,
}

impl Hub {
    /// Begins a view of `source`, as the hub's task does.
    fn start(source: SharedCollection, filter: &Filter, limits: Limits, is_another: bool) -> Self {
        let (mut state, reader, shown_to, was_served) = source.read(|held| {
            let state = (held.to_recovered(), held.follow(), held.shown_to());
            (state.0, state.1, state.2, held.was_served_before())
        });
        let is_another = is_another || was_served;
        let objects = std::mem::take(&mut state.objects);
        let hidden = objects.iter().filter(|object| filter.show(object).is_none());
        let hidden = hidden.map(|object| outline(object, kind())).collect();
        state.objects = objects.iter().filter_map(|object| filter.show(object)).collect();
        state.tombstones = state.tombstones.iter().map(|gone| outline(gone, kind())).collect();
        for range in &mut state.ranges {
            range.object = outline(&range.object, kind());
        }
        let keys = state.objects.iter().map(|object| object.key().clone()).collect();
        let view = SharedCollection::view_of(&source);
        view.update(|held| {
            *held = Collection::derived(state, shown_to, hidden);
            held.set_limits(limits);
            if is_another {
                held.restamp(keys);
            }
        });
        Self {
            source,
            view: Arc::new(view),
            reader,
            limits,
            is_another,
        }
    }

    /// The source has repeated what an earlier process may have served.
    fn restamp(&mut self) {
        if std::mem::take(&mut self.is_another) {
            self.view.update(|held| {
                let keys = held.objects().map(|object| object.key().clone());
                held.restamp(keys.collect());
            });
        }
    }

    /// Takes everything from the source.
    fn pull(&mut self, filter: &Filter) {
        loop {
            let read = self.source.read(|held| take(held, &mut self.reader));
            let Ok(deliveries) = read else {
                let source = std::mem::replace(&mut self.source, SharedCollection::new(kind(), false));
                *self = Self::start(source, filter, self.limits, true);
                return;
            };
            let is_done = deliveries.is_empty();
            let changes = deliveries
                .into_iter()
                .map(|delivery| Filtered::new(delivery, |object| filter.show(object)));
            let (changes, to) = (changes.collect(), self.reader.position());
            self.view.update(|held| held.project(changes, kind(), to));
            if is_done {
                return;
            }
        }
    }

    /// Evaluates the objects of one input again.
    fn revise(&mut self, input: usize, filter: &Filter) {
        let at = self.view.read(Collection::position);
        let objects: Vec<Object> = self.source.read(|held| {
            let known = held.objects().filter(|object| object.resource_version() <= at);
            known.filter(|object| input_of(object) == input).cloned().collect()
        });
        let seen = objects.iter().map(|object| (object.key().clone(), filter.show(object)));
        let seen = seen.collect();
        let changes = self.view.read(|held| held.differences(seen));
        self.view.update(|held| held.revise(changes));
    }
}

fn take(held: &Collection, reader: &mut Reader) -> Result<Vec<Delivery>, Expired> {
    let mut deliveries = held.read(reader, 3)?;
    let is_step = matches!(deliveries.first(), Some(Delivery::DiffBegin(_)));
    while is_step && !matches!(deliveries.last(), Some(Delivery::DiffEnd { .. })) {
        deliveries.extend(held.read(reader, usize::MAX)?);
    }
    Ok(deliveries)
}

/// A client as client-go is one: a store, and handlers that ignore an update under the same RV.
struct Client {
    store: Store,
    handled: Content,
    at: u64,
    frames: Option<Frames>,
    /// States before earlier cuts.
    past: Vec<(Store, Content, u64)>,
    /// True from a resume until the next bookmark: a client that receives everything passes lower RVs.
    is_resuming: bool,
}

impl Client {
    async fn list(view: &Arc<SharedCollection>) -> Self {
        let mut client = Self {
            store: BTreeMap::new(),
            handled: Content::new(),
            at: 0,
            frames: None,
            past: Vec::new(),
            is_resuming: false,
        };
        client.relist(view).await;
        client
    }

    async fn relist(&mut self, view: &Arc<SharedCollection>) {
        let listed = fresh(view).await;
        let names: Vec<String> = listed.0.keys().cloned().collect();
        self.store.retain(|name, _| names.contains(name));
        self.handled.retain(|name, _| names.contains(name));
        for (name, (rv, content)) in listed.0 {
            self.put(name, rv, content);
        }
        self.at = listed.1;
        self.watch(view);
    }

    fn put(&mut self, name: String, rv: String, content: String) {
        let old = self.store.insert(name.clone(), (rv.clone(), content.clone()));
        if old.is_none_or(|(held, _)| held != rv) {
            self.handled.insert(name, content);
        }
    }

    fn watch(&mut self, view: &Arc<SharedCollection>) {
        let query = format!("watch=1&allowWatchBookmarks=true&resourceVersion={}", self.at);
        let options = ListOptions::parse(Some(&query), true, kind()).expect("valid query");
        let request = WatchRequest {
            options,
            selection: Selection::default(),
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
        };
        let frames = serve::watch(view.clone(), request).expect("the view is complete");
        self.frames = Some(Box::pin(frames));
        self.is_resuming = true;
    }

    /// Takes the next event without waiting for one; false if there is none.
    async fn take(&mut self, view: &Arc<SharedCollection>, filter: &Filter) -> bool {
        let frames = self.frames.as_mut().expect("a stream");
        let Some(frame) = frames.next().now_or_never() else {
            return false;
        };
        let Some(frame) = frame else {
            self.watch(view);
            return true;
        };
        let event: Value = serde_json::from_slice(&frame).expect("a frame must be JSON");
        let object = &event["object"];
        if event["type"] == "ERROR" {
            assert_eq!(object["code"], 410);
            self.relist(view).await;
            return true;
        }
        let rv = object["metadata"]["resourceVersion"]
            .as_str()
            .expect("an RV")
            .to_owned();
        let number: u64 = rv.parse().expect("a number");
        assert!(
            self.is_resuming || number >= self.at,
            "the RV went back from {} to {rv}",
            self.at
        );
        self.at = number;
        let content = content_of(object);
        let is_shown = content.is_empty() || filter.shown.borrow().contains(&content);
        assert!(is_shown, "the filter never returned {content:?}: {event}");
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        match event["type"].as_str() {
            Some("BOOKMARK") => self.is_resuming = false,
            Some("DELETED") => {
                self.store.remove(&name);
                self.handled.remove(&name);
            }
            _ => self.put(name, rv, content),
        }
        true
    }

    fn cut(&mut self, view: &Arc<SharedCollection>, back: usize) {
        self.past.push((self.store.clone(), self.handled.clone(), self.at));
        let index = self.past.len().saturating_sub(1 + back);
        (self.store, self.handled, self.at) = self.past[index].clone();
        self.watch(view);
    }
}

/// The list of a view, and its RV.
async fn fresh(view: &Arc<SharedCollection>) -> (Store, u64) {
    let options = ListOptions::default();
    let listed = serve::list(
        view,
        &options,
        &Selection::default(),
        &Unfiltered,
        ResourceVersion::ZERO,
    )
    .await;
    let listed = listed.expect("the view is complete");
    let entry = |object: &Object| {
        let value = object.to_value();
        (
            object.name().to_owned(),
            (object.resource_version().to_string(), content_of(&value)),
        )
    };
    let at = listed.meta.resource_version.0;
    (listed.objects.iter().map(entry).collect(), at)
}

/// The world: the cloud's objects, and one hub with its clients.
struct World {
    hub: Hub,
    filter: Filter,
    clients: Vec<Client>,
    /// The cloud's objects and its RV. Each change has a content of its own.
    cloud: BTreeMap<u64, Object>,
    rv: u64,
    committed: Collection,
    /// Changes since the commit.
    since: Vec<(EventType, Object)>,
    /// True while a killed process lacks the changes since its commit.
    lags: bool,
}

impl World {
    async fn new(limits: Limits) -> Self {
        let source = SharedCollection::new(kind(), false);
        let cloud: BTreeMap<u64, Object> = (0..3).map(|n| (n, object(n, 5 + n, &format!("{SECRET}{n}")))).collect();
        source.update(|held| held.restart(0, cloud.values().cloned().collect(), ResourceVersion(10)));
        let filter = Filter {
            inputs: [2, 1],
            shown: RefCell::default(),
        };
        let committed = copy(&source);
        let hub = Hub::start(source, &filter, limits, false);
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            clients.push(Client::list(&hub.view).await);
        }
        Self {
            hub,
            filter,
            clients,
            cloud,
            rv: 10,
            committed,
            since: Vec::new(),
            lags: false,
        }
    }

    fn next(&mut self) -> u64 {
        self.rv += 1;
        self.rv
    }

    fn event(&mut self, key: u64, is_gone: bool) -> Option<(EventType, Object)> {
        let rv = self.rv + 1;
        let event = if is_gone {
            let last = self.cloud.remove(&key)?;
            (EventType::Deleted, last.with_resource_version(ResourceVersion(rv)))
        } else {
            let object = object(key, rv, &format!("{SECRET}{rv}"));
            self.cloud.insert(key, object.clone());
            (EventType::Modified, object)
        };
        self.rv = rv;
        Some(event)
    }

    /// The source takes an event, once it has what it missed.
    fn send(&mut self, event: (EventType, Object)) {
        self.since.push(event.clone());
        if !self.lags {
            self.hub.source.update(|held| held.apply(event.0, event.1));
        }
    }

    /// A process that was killed receives everything since its commit as one step.
    fn catch_up(&mut self) {
        if std::mem::take(&mut self.lags) {
            let (to, step) = (ResourceVersion(self.next()), self.since.clone());
            self.hub.source.update(|held| held.catch_up_to(to, step));
        }
    }

    async fn apply(&mut self, op: Op) {
        match op {
            Op::Put(key) => {
                let event = self.event(key, false);
                event.into_iter().for_each(|event| self.send(event));
            }
            Op::Delete(key) => {
                let event = self.event(key, true);
                event.into_iter().for_each(|event| self.send(event));
            }
            Op::Advance => {
                self.catch_up();
                let to = ResourceVersion(self.next());
                self.hub.source.update(|held| held.advance(to));
            }
            Op::Relist(gone, changed) => {
                self.catch_up();
                for (keys, is_gone) in [(gone, true), (changed, false)] {
                    for key in keys {
                        let _ = self.event(key, is_gone);
                    }
                }
                let (list, at) = (self.cloud.values().cloned().collect(), ResourceVersion(self.next()));
                self.hub
                    .source
                    .update(|held| held.replace(list, at))
                    .expect("the list is newer");
                self.commit();
            }
            Op::Input(input, to) => {
                self.filter.inputs[input] = to;
                self.hub.revise(input, &self.filter);
            }
            Op::Take(client, count) => {
                for _ in 0..count {
                    self.clients[client].take(&self.hub.view, &self.filter).await;
                }
            }
            Op::Cut(client, back) => self.clients[client].cut(&self.hub.view, back),
            Op::Restart(is_kill) => self.restart(is_kill),
            Op::Commit if !self.lags => self.commit(),
            Op::Commit => {}
        }
        self.hub.pull(&self.filter);
    }

    fn commit(&mut self) {
        self.committed = copy(&self.hub.source);
        self.since.clear();
    }

    fn restart(&mut self, is_kill: bool) {
        if !is_kill && !self.lags {
            self.commit();
        }
        self.lags = !self.since.is_empty();
        let source = SharedCollection::new(kind(), false);
        let state = self.committed.to_recovered();
        source.update(|held| held.recover(state));
        self.hub = Hub::start(source, &self.filter, self.hub.limits, true);
        let view = self.hub.view.clone();
        self.clients.iter_mut().for_each(|client| client.watch(&view));
    }

    /// Everything arrives: then all clients have the same view.
    async fn settle(&mut self) {
        self.apply(Op::Advance).await;
        self.hub.restamp();
        self.apply(Op::Advance).await;
        let (wanted, at) = fresh(&self.hub.view).await;
        let expected: Content = self
            .cloud
            .values()
            .filter_map(|object| self.filter.show(object))
            .map(|object| (object.name().to_owned(), content_of(&object.to_value())))
            .collect();
        let content = |store: &Store| -> Content {
            store
                .iter()
                .map(|(name, (_, content))| (name.clone(), content.clone()))
                .collect()
        };
        assert_eq!(content(&wanted), expected, "the list shows what the filter returns");
        for (n, client) in self.clients.iter_mut().enumerate() {
            while client.take(&self.hub.view, &self.filter).await {}
            assert_eq!(client.store, wanted, "store of client {n} at {} of {at}", client.at);
            assert_eq!(
                client.handled, expected,
                "objects that the handlers of client {n} received"
            );
        }
    }
}

/// A view begins at the source's position, and a client below it may have read from the cloud: it receives everything.
/// No state at its bookmark is known here, so the client may not take that bookmark for one.
#[tokio::test(start_paused = true)]
async fn bookmark_after_everything_leaves_no_object_out() {
    let source = SharedCollection::new(kind(), false);
    source.update(|held| {
        let objects = vec![object(0, 5, "a"), object(1, 8, "older"), object(2, 6, "c")];
        held.restart(0, objects, ResourceVersion(10));
        assert!(held.apply(EventType::Modified, object(1, 20, "b")));
    });
    let view = Arc::new(SharedCollection::view_of(&source));
    let state = source.read(Collection::to_recovered);
    view.update(|held| *held = Collection::derived(state, ResourceVersion(19), Vec::new()));
    let filter = Filter {
        inputs: [2; INPUTS],
        shown: RefCell::new(["a", "b", "c"].map(str::to_owned).into()),
    };
    let mut client = Client::list(&view).await;
    // As it was in the cloud at 12.
    client.at = 12;
    client
        .store
        .insert("k1".to_owned(), ("8".to_owned(), "older".to_owned()));
    client.watch(&view);
    let mut bookmarks = 0;
    for _ in 0..3 {
        while client.take(&view, &filter).await {
            if !client.is_resuming {
                assert_eq!(client.store["k1"].0, "20", "at the bookmark {}", client.at);
                bookmarks += 1;
            }
        }
        tokio::time::advance(Duration::from_secs(61)).await;
    }
    assert!(bookmarks > 0, "the client has to be given a position");
    assert_eq!((client.store, client.at), fresh(&view).await);
}

/// The state as a store returns it.
fn copy(source: &SharedCollection) -> Collection {
    let mut copy = Collection::new(true);
    copy.recover(source.read(Collection::to_recovered));
    copy
}

fn run(ops: Vec<Op>, limits: Limits) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    runtime.expect("a runtime").block_on(async {
        let mut world = World::new(limits).await;
        for (step, op) in ops.into_iter().enumerate() {
            world.apply(op).await;
            if step % 8 == 7 {
                world.settle().await;
            }
        }
        world.settle().await;
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Conformance: 7.73
    #[test]
    fn every_client_ends_with_the_view_of_a_fresh_list(ops in prop::collection::vec(op(), 1..60)) {
        run(ops, Limits::default());
    }

    /// The tail holds nothing, so that readers which do not keep up are conflated.
    #[test]
    fn slow_readers_end_with_it_too(ops in prop::collection::vec(op(), 1..60)) {
        run(ops, Limits { bytes_min: 1, ..Limits::default() });
    }
}
