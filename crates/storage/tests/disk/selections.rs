//! Collections of the node's cache that come, change and go: kill and power loss at every write point, and media that
//! fill up.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use yurt_apimachinery::kind::find_kind;
use yurt_apimachinery::watch::EventType;
use yurt_apimachinery::{Object, ResourceKind, ResourceVersion};
use yurt_runtime::{Clock, FakeClock};
use yurt_storage::embedded::Disk;
use yurt_storage::embedded::replicas::ReplicaStore;
use yurt_storage::{OnlyWriter as _, Replicas};

use crate::crash::{Replay, runtime};
use crate::history::NAME;
use crate::medium::{Fault, Hits, Lent, Tape};
use crate::random::{Random, seeds};

/// Number of steps in one life.
const STEPS: u64 = 30;
/// Number of names.
const NAMES: u64 = 6;
/// First character of the names of the cache.
const CACHED: &str = "/";
/// Write points at which the medium begins to fail, per seed.
const FAULTS: u64 = 10;

/// Position of a collection, true if it is complete, and the RV of each object.
type Held = (ResourceVersion, bool, BTreeMap<String, ResourceVersion>);
/// Everything of the cache in a file.
type Content = BTreeMap<String, Held>;

/// A node's cache on a tape, and the cloud's clock.
struct Node {
    tape: Arc<Tape>,
    replicas: Replicas,
    hand: FakeClock,
    cloud: u64,
}

fn kind() -> &'static ResourceKind {
    find_kind("", "configmaps").expect("built in")
}

fn name(of: u64) -> String {
    format!("/api/v1/namespaces/n{of}/configmaps")
}

fn config_map(name: u64, rv: u64) -> Object {
    // Some objects take several pages.
    let filler = "x".repeat(usize::try_from(rv % 7).expect("small") * 900);
    let metadata =
        serde_json::json!({"namespace": "n", "name": name.to_string(), "uid": "u", "resourceVersion": rv.to_string()});
    let value = serde_json::json!({"metadata": metadata, "data": {"rv": rv.to_string(), "filler": filler}});
    Object::from_value(value, kind()).expect("an object")
}

fn open_store(tape: &Arc<Tape>, clock: Clock) -> Result<ReplicaStore, String> {
    let disk =
        Disk::open_on(Path::new(NAME), Arc::new(Lent(tape.clone())), clock).map_err(|error| error.to_string())?;
    ReplicaStore::open(disk).map_err(|error| error.to_string())
}

/// Everything of the cache that a start with this medium finds.
fn content_of(image: Vec<u8>) -> Result<Content, String> {
    content(&open_store(&Tape::holding(image), Clock::fake().0)?)
}

fn content(store: &ReplicaStore) -> Result<Content, String> {
    let names = store.names(CACHED).map_err(|error| error.to_string())?;
    let mut content = Content::new();
    for name in names {
        let found = store.load(&name, kind()).map_err(|error| error.to_string())?;
        let found = found.ok_or_else(|| format!("{name} has a name and no state"))?;
        let mut objects = BTreeMap::new();
        for object in &found.objects {
            let value = object.to_value();
            let rv = object.resource_version();
            if value["data"]["rv"] != rv.to_string() {
                return Err(format!("{name}: {} is garbled", object.name()));
            }
            objects.insert(object.name().to_owned(), rv);
        }
        content.insert(name, (found.position, found.complete, objects));
    }
    Ok(content)
}

// === impl Node ===

impl Node {
    async fn start(tape: &Arc<Tape>, cloud: u64) -> Result<Self, String> {
        let (clock, hand) = Clock::fake();
        let store = open_store(tape, clock)?;
        let replicas = Replicas::open(&[], Some(store.clone())).map_err(|error| error.to_string())?;
        for name in store.names(CACHED).map_err(|error| error.to_string())? {
            replicas.add(&name, kind()).await.map_err(|error| error.to_string())?;
        }
        Ok(Self {
            tape: tape.clone(),
            replicas,
            hand,
            cloud,
        })
    }

    /// Everything in memory.
    fn held(&self) -> Content {
        let held = |replica: Arc<yurt_storage::Replica>| {
            let held = replica.collection().read(|held| {
                let objects = held
                    .objects()
                    .map(|object| (object.name().to_owned(), object.resource_version()));
                (held.position(), held.is_complete(), objects.collect())
            });
            (replica.name().to_owned(), held)
        };
        self.replicas.iter().map(held).collect()
    }

    /// Changes several selections, all of which become durable in one commit.
    fn change(&mut self, random: &mut Random) {
        for _ in 0..=random.below(3) {
            let replica = self.replicas.create(&name(random.below(NAMES)), kind());
            replica.collection().update(|held| {
                self.cloud += 1 + random.below(3);
                if !held.is_complete() || random.one_in(6) {
                    let list = (0..random.below(8)).map(|of| config_map(of, self.cloud - 1)).collect();
                    let generation = held.generation() + random.below(2);
                    held.restart(generation, list, ResourceVersion(self.cloud));
                }
                for _ in 0..random.below(5) {
                    self.cloud += 1;
                    let event = [EventType::Modified, EventType::Deleted][random.index(2)];
                    held.apply(event, config_map(random.below(8), self.cloud));
                }
            });
        }
    }

    /// One step: selections change, one goes, or the hub starts again. Returns false if the disk refused it.
    async fn step(&mut self, random: &mut Random) -> bool {
        match random.below(10) {
            0..7 => {
                self.change(random);
                self.replicas.persist(None).await.is_ok()
            }
            7..9 => self.replicas.remove(&name(random.below(NAMES))).await.is_ok(),
            _ => {
                // The file has one owner at a time.
                self.replicas = Replicas::open(&[], None).expect("in memory");
                let again = Self::start(&self.tape, self.cloud).await;
                again.is_ok_and(|again| {
                    *self = again;
                    true
                })
            }
        }
    }
}

/// Any state of the disk after a kill or a power loss holds all selections as before one commit, or all as after it.
#[test]
fn selections_survive_kill_and_power_loss_at_every_write_point() {
    for seed in seeds(1) {
        let mut random = Random::new(seed);
        let tape = Arc::new(Tape::default());
        let mut node = runtime().block_on(Node::start(&tape, 100)).expect("it starts");
        let (mut replay, mut points, mut gone) = (Replay::default(), 0, 0);
        for step in 0..STEPS {
            let before = node.held();
            assert!(runtime().block_on(node.step(&mut random)), "step {step}");
            let after = node.held();
            gone += before.len().saturating_sub(after.len());
            for entry in tape.take_entries() {
                replay.apply(&entry);
                points += 1;
                for (how, image) in replay.images(&mut random) {
                    let context = |why: String| format!("seed {seed}, step {step}, write point {points}, {how}: {why}");
                    let found = content_of(image).unwrap_or_else(|why| panic!("{}", context(why)));
                    let is_known = found == before || found == after || (step == 0 && found.is_empty());
                    assert!(
                        is_known,
                        "{}",
                        context(format!("{found:?} is neither {before:?} nor {after:?}"))
                    );
                }
            }
            let found = content_of(replay.stable().to_vec()).expect("it opens");
            assert_eq!(found, after, "step {step} was acknowledged");
        }
        assert!(points > 150 && gone > 1, "{points} write points, {gone} gone");
    }
}

/// A life in which the disk fills up from one write on, and has space again later.
async fn fill_and_clear(fault: Fault, random: &mut Random) -> Result<usize, String> {
    let tape = Arc::new(Tape::default());
    let mut node = Node::start(&tape, 100).await?;
    while node.held().len() < 3 {
        node.change(random);
    }
    node.replicas.persist(None).await.map_err(|error| error.to_string())?;
    // The last commit that the disk accepted, and later ones that it did not acknowledge.
    let mut stored = vec![node.held()];
    tape.set_fault(Some(Fault {
        from: tape.done() + fault.from,
        ..fault
    }));
    let mut refused = 0;
    for _ in 0..10 {
        node.change(random);
        match node.replicas.persist(None).await {
            Ok(()) => stored = vec![node.held()],
            Err(_) => {
                refused += 1;
                stored.push(node.held());
            }
        }
        let found = content_of(tape.bytes())?;
        if !stored.contains(&found) {
            return Err(format!("{found:?} is none of {stored:?}"));
        }
    }
    tape.set_fault(None);
    // The database is opened again a second after a failure.
    node.hand.advance(Duration::from_secs(2));
    node.change(random);
    node.replicas
        .persist(None)
        .await
        .map_err(|error| format!("does not recover: {error}"))?;
    let found = content_of(tape.bytes())?;
    if found != node.held() {
        return Err(format!(
            "{found:?} is stored after the disk was cleared, not {:?}",
            node.held()
        ));
    }
    Ok(refused)
}

#[test]
fn full_disk_keeps_the_selections_that_it_has_and_takes_more_once_it_is_cleared() {
    let mut refused = 0;
    for seed in seeds(2) {
        let mut random = Random::new(seed);
        for _ in 0..FAULTS {
            let fault = Fault {
                from: random.below(40),
                error: ErrorKind::StorageFull,
                tears: random.one_in(2),
                hits: [Hits::All, Hits::Growth, Hits::Flushes][random.index(3)],
            };
            let outcome = runtime().block_on(fill_and_clear(fault, &mut random));
            refused += outcome.unwrap_or_else(|why| panic!("seed {seed}, {fault:?}: {why}"));
        }
    }
    assert!(refused > 30, "only {refused} commits met a fault");
}
