//! Number, life and memory of views, on paused time.

use futures_util::FutureExt as _;
use tokio::sync::watch;
use yurt_apimachinery::Object;
use yurt_collection::Limits;
use yurt_runtime::Clock;
use yurt_storage::OnlyWriter as _;
use yurt_test_support::TestDir;

use super::inputs::NodeFacts;
use super::*;
use crate::filter::context::FilterOptions;
use crate::filter::masterservice::MasterService;
use crate::filter::{HubAddress, PodTrust};
use crate::replicas::PoolData;

/// Views of a replica with one Service.
struct World {
    _folder: TestDir,
    _data: Arc<PoolData>,
    replica: Arc<Replica>,
    derived: Derived,
    trust: watch::Sender<PodTrust>,
}

// === impl World ===

impl World {
    fn new() -> Self {
        let folder = TestDir::new();
        let data = Arc::new(PoolData::open(folder.path(), "p", usize::MAX, Clock::fake().0).unwrap());
        let replica = data.replicas().named("services").unwrap();
        let web = br#"{"metadata":{"namespace":"shop","name":"web","resourceVersion":"5"}}"#;
        let object = Object::parse(web.as_slice().into(), replica.collection().kind()).unwrap();
        let restart = |held: &mut Collection| held.restart(0, vec![object], ResourceVersion(10));
        replica.collection().update(restart);
        let trust = watch::Sender::new(PodTrust::Missing);
        let node = NodeFacts {
            node: "n1".to_owned(),
            pool: watch::channel(Some(String::new())).1,
            hub: HubAddress {
                host: [169, 254, 2, 1].into(),
                secure_port: 10268,
            },
            trust: trust.subscribe(),
            options: FilterOptions::default(),
        };
        let local_pods = watch::Sender::default().subscribe();
        let inputs = LiveInputs::new(node, data.clone(), local_pods);
        Self {
            _folder: folder,
            _data: data,
            replica,
            derived: Derived::new(inputs, TaskGroup::new()),
            trust,
        }
    }

    /// The view of an edition, requested a second after the last request.
    async fn view(&self, edition: usize) -> Result<Arc<View>, Status> {
        tokio::time::sleep(Duration::from_secs(1)).await;
        self.derived
            .of(&self.replica, &Chain::default(), edition as u64, false)
            .await
    }

    /// The same for a caller with a token.
    async fn view_of_token(&self, edition: usize) -> Result<Arc<View>, Status> {
        tokio::time::sleep(Duration::from_secs(1)).await;
        self.derived
            .of(&self.replica, &Chain::default(), edition as u64, true)
            .await
    }

    fn count(&self) -> usize {
        self.derived.0.views.lock().len()
    }
}

#[tokio::test(start_paused = true)]
async fn view_that_is_unused_for_longest_gives_way_to_a_further_one() {
    let world = World::new();
    let mut views = Vec::new();
    for edition in 0..VIEWS_MAX {
        views.push(world.view(edition).await.unwrap());
    }
    // The oldest one has a reader, and the second one a new request.
    let reader = views[0].collection().clone();
    assert!(
        Arc::ptr_eq(&world.view(1).await.unwrap(), &views[1]),
        "one view for all"
    );
    let further = world.view(VIEWS_MAX).await.unwrap();
    assert!(further.collection().read(Collection::is_complete));
    let ended: Vec<usize> = (0..VIEWS_MAX).filter(|at| views[*at].ended().is_cancelled()).collect();
    assert_eq!((ended, world.count()), (vec![2], VIEWS_MAX));
    // Its clients get another view, in which everything has a new number.
    let again = world.view(2).await.unwrap();
    assert!(!Arc::ptr_eq(&again, &views[2]));
    let version = again
        .collection()
        .read(|held| held.objects().next().unwrap().resource_version());
    assert_eq!(version, ResourceVersion(10));
    drop(reader);
}

#[tokio::test(start_paused = true)]
async fn request_at_a_change_of_generation_gets_a_view_of_the_new_one() {
    let world = World::new();
    let source = world.replica.collection();
    let begin = |generation: u64| source.update(|held| held.restart(generation, Vec::new(), ResourceVersion(20)));
    let chain = Chain::default();
    let mut request = Box::pin(world.derived.of(&world.replica, &chain, 0, false));
    assert!(
        request.as_mut().now_or_never().is_none(),
        "its view is not evaluated yet"
    );
    tokio::task::yield_now().await;
    begin(7);
    let view = request.await.unwrap();
    let generation = view.collection().read(Collection::generation);
    assert_eq!((generation, view.source_position()), (7, ResourceVersion(20)));
    // The reader of a view whose source has moved on gets what the view has, at once.
    begin(8);
    assert_eq!(view.source_position(), ResourceVersion::ZERO);
}

#[tokio::test(start_paused = true)]
async fn long_objects_of_a_view_are_held_deflated() {
    let world = World::new();
    let source = world.replica.collection();
    let text = format!(
        r#"{{"metadata":{{"namespace":"shop","name":"long","resourceVersion":"6"}},"spec":{{"x":"{}"}}}}"#,
        "again ".repeat(1000)
    );
    let long = Object::parse(text.into(), source.kind()).unwrap();
    source.update(|held| held.restart(0, vec![long], ResourceVersion(10)));
    let view = world.view(0).await.unwrap();
    let reader = view.collection().clone();
    let is_packed = || reader.read(|held| held.objects().all(Object::is_packed));
    assert!(!is_packed());
    tokio::time::sleep(Duration::from_secs(700)).await;
    assert!(is_packed());
}

#[tokio::test(start_paused = true)]
async fn view_remembers_as_many_changes_as_its_source() {
    let world = World::new();
    let limits = Limits::of_a_selection();
    world.replica.collection().set_limits(limits);
    let view = world.view(0).await.unwrap();
    assert_eq!(view.collection().read(Collection::limits), limits);
}

#[tokio::test(start_paused = true)]
async fn no_view_with_a_reader_gives_way() {
    let world = World::new();
    let mut readers = Vec::new();
    for edition in 0..VIEWS_MAX {
        readers.push(world.view(edition).await.unwrap().collection().clone());
    }
    let refused = world.view(VIEWS_MAX).await.err().unwrap();
    assert_eq!((refused.code(), world.count()), (503, VIEWS_MAX));
    assert!(refused.message().contains("64 filtered views"), "{}", refused.message());
    world.view(7).await.unwrap();
    readers.pop();
    world.view(VIEWS_MAX).await.unwrap();
    assert_eq!(world.count(), VIEWS_MAX);
}

#[tokio::test(start_paused = true)]
async fn callers_with_tokens_leave_views_for_the_node() {
    let world = World::new();
    let of_node = world.view(0).await.unwrap();
    let mut readers = Vec::new();
    for edition in 1..=VIEWS_OF_TOKENS_MAX {
        readers.push(world.view_of_token(edition).await.unwrap().collection().clone());
    }
    let refused = world.view_of_token(VIEWS_MAX).await.err().unwrap();
    assert_eq!((refused.code(), world.count()), (503, VIEWS_OF_TOKENS_MAX + 1));
    readers.pop();
    world.view_of_token(VIEWS_MAX).await.unwrap();
    assert_eq!(
        world.count(),
        VIEWS_OF_TOKENS_MAX + 1,
        "an unused one of a token gave way"
    );
    for edition in VIEWS_MAX + 1..2 * VIEWS_MAX - VIEWS_OF_TOKENS_MAX {
        world.view(edition).await.unwrap();
    }
    assert!((world.count(), of_node.ended().is_cancelled()) == (VIEWS_MAX, false));
}

#[tokio::test(start_paused = true)]
async fn view_that_the_node_uses_gives_way_to_none_of_a_token() {
    let world = World::new();
    let shared = world.view_of_token(0).await.unwrap();
    world.view(0).await.unwrap();
    let mut readers = Vec::new();
    for edition in 1..VIEWS_MAX {
        readers.push(world.view(edition).await.unwrap().collection().clone());
    }
    let refused = world.view_of_token(VIEWS_MAX).await.err().unwrap();
    assert_eq!((refused.code(), shared.ended().is_cancelled()), (503, false));
}

#[tokio::test(start_paused = true)]
async fn view_without_readers_ends_after_an_hour_and_frees_its_memory() {
    let world = World::new();
    let view = world.view(0).await.unwrap();
    let reader = view.collection().clone();
    tokio::time::sleep(2 * IDLE_MAX).await;
    assert_eq!(world.count(), 1, "it has a reader");
    drop(reader);
    tokio::time::sleep(IDLE_MAX).await;
    assert!(view.ended().is_cancelled());
    assert_eq!(world.count(), 0);
    let weak = Arc::downgrade(&view);
    drop(view);
    assert!(weak.upgrade().is_none(), "nothing else keeps it");
}

#[tokio::test(start_paused = true)]
async fn object_that_the_filters_keep_is_shared_with_the_source() {
    let world = World::new();
    let chain = Chain::new(vec![&MasterService]);
    let view = world.derived.of(&world.replica, &chain, 0, false).await.unwrap();
    let bytes = |held: &Collection| held.objects().next().unwrap().bytes().as_ptr().addr();
    assert_eq!(view.collection().read(bytes), world.replica.collection().read(bytes));
}

/// A world whose replica has Services `default/kubernetes` and `shop/web`.
fn world_with_kubernetes() -> World {
    let world = World::new();
    let objects = [
        r#"{"metadata":{"namespace":"default","name":"kubernetes","resourceVersion":"6"},"spec":{"clusterIP":"10.96.0.1"}}"#,
        r#"{"metadata":{"namespace":"shop","name":"web","resourceVersion":"5"},"spec":{"clusterIP":"10.96.0.2"}}"#,
    ];
    let source = world.replica.collection();
    let parsed = objects.map(|text| Object::parse(text.into(), source.kind()).unwrap());
    source.update(|held| held.restart(0, parsed.to_vec(), ResourceVersion(10)));
    world
}

/// Addresses of the Services, in order of their keys, and whether the view gave them another RV.
fn shown(view: &View) -> Vec<(String, bool)> {
    let of = |object: &Object| {
        let address = object.to_value()["spec"]["clusterIP"].as_str().unwrap().to_owned();
        (address, object.resource_version() >= ResourceVersion(10))
    };
    view.collection().read(|held| held.objects().map(of).collect())
}

#[tokio::test(start_paused = true)]
async fn open_view_shows_the_hubs_address_once_pods_trust_its_certificate() {
    let world = world_with_kubernetes();
    let chain = Chain::new(vec![&MasterService]);
    let view = world.derived.of(&world.replica, &chain, 0, false).await.unwrap();
    let kept = [("10.96.0.1".to_owned(), false), ("10.96.0.2".to_owned(), false)];
    assert_eq!(shown(&view), kept);
    let mut changes = view.collection().subscribe();
    world.trust.send_replace(PodTrust::Given);
    changes.changed().await.unwrap();
    let led = ("169.254.2.1".to_owned(), true);
    assert_eq!(shown(&view), [led, kept[1].clone()], "no other object is sent again");
}

/// An earlier process may have led pods to the hub, under the RVs of now.
#[tokio::test(start_paused = true)]
async fn view_after_a_restart_sends_again_what_the_trust_of_pods_may_have_changed() {
    for (trust, expected) in [
        (PodTrust::Given, [("169.254.2.1", true), ("10.96.0.2", false)]),
        (PodTrust::Missing, [("10.96.0.1", true), ("10.96.0.2", true)]),
    ] {
        let world = world_with_kubernetes();
        let recover = |held: &mut Collection| held.recover(held.to_recovered());
        world.replica.collection().update(recover);
        world.trust.send_replace(trust);
        let chain = Chain::new(vec![&MasterService]);
        let view = world.derived.of(&world.replica, &chain, 0, false).await.unwrap();
        let expected = expected.map(|(address, is_again)| (address.to_owned(), is_again));
        assert_eq!(shown(&view), expected, "{trust:?}");
    }
}
