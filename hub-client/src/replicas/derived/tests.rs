//! Number, life and memory of views, on paused time.

use futures_util::FutureExt as _;
use yurt_apimachinery::Object;
use yurt_collection::Limits;
use yurt_runtime::Clock;
use yurt_storage::OnlyWriter as _;
use yurt_test_support::TestDir;

use super::inputs::NodeFacts;
use super::*;
use crate::filter::HubAddress;
use crate::filter::context::FilterOptions;
use crate::filter::masterservice::MasterService;
use crate::replicas::PoolData;

/// Views of a replica with one Service.
struct World {
    _folder: TestDir,
    _data: Arc<PoolData>,
    replica: Arc<Replica>,
    derived: Derived,
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
        let node = NodeFacts {
            node: "n1".to_owned(),
            pool: String::new(),
            hub: HubAddress {
                host: [169, 254, 2, 1].into(),
                secure_port: 10268,
            },
            options: FilterOptions::default(),
        };
        let local_pods = tokio::sync::watch::Sender::default().subscribe();
        let inputs = LiveInputs::new(node, data.clone(), local_pods);
        Self {
            _folder: folder,
            _data: data,
            replica,
            derived: Derived::new(inputs, TaskGroup::new()),
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
