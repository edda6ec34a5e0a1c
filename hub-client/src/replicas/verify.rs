//! Compares samples of the coordinator's data with the cloud, under this node's own identity.
//!
//! A leader can feed arbitrary data to its pool. Every hub with a link therefore reads one random object, or the
//! metadata of one namespace, from the cloud from time to time. [`truth`](super::truth) judges it. The members share
//! the work: the more members, the longer the pause of each. A sample that cannot be judged yet waits until the replica
//! has reached it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::list::ParsedList;
use yurt_apimachinery::{Object, ObjectKey, ResourceKind};
use yurt_collection::Collection;
use yurt_pool_protocol::members;
use yurt_pool_protocol::source::Source;
use yurt_runtime::Clock;
use yurt_storage::Replica;

use super::PoolData;
use super::alarm::{Alarm, Finding, failure};
use super::listing::escaped;
use super::questions::{self, get};
use super::truth::{HeldObject, ObjectState, Truth, TruthVerdict, judge};
use crate::health::CloudReach;
use crate::metrics::Metrics;
use crate::upstream::Cloud;

/// Bytes of an answer per period; a larger answer delays the next sample.
const BYTES_PER_PERIOD: usize = 4096;
/// Maximum objects of a namespace in one sample; no list of a whole collection has pages of this size.
const PAGE: usize = 20;
/// One in this many samples is of a namespace, which shows objects that a replica omits.
const NAMESPACES_OF: u64 = 4;
/// One in this many samples compares the members.
const MEMBERS_OF: u64 = 4;
/// Maximum samples that wait for the replica; the oldest is dropped first.
const WAITING_MAX: usize = 32;
/// Time between checks of waiting samples.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// Takes the samples and judges them.
pub struct Verifier {
    /// The replicas to judge.
    pub data: Arc<PoolData>,
    /// The cloud, which is authoritative.
    pub cloud: Arc<Cloud>,
    /// Reachability of the cloud.
    pub reach: watch::Receiver<CloudReach>,
    /// Reaction to forgeries.
    pub alarm: Alarm,
    /// Number of members of the pool.
    pub members: watch::Receiver<u32>,
    /// Name of the pool.
    pub pool: String,
    /// Time between two samples of the whole pool.
    pub period: Duration,
    /// Counts samples and forgeries.
    pub metrics: Arc<Metrics>,
    /// Clock.
    pub clock: Clock,
}

/// Answer of the cloud about an object that the replica has not reached yet.
struct Waiting {
    collection: String,
    generation: u64,
    key: ObjectKey,
    truth: Truth,
}

/// Objects to request.
enum Sample {
    Object(ObjectKey),
    /// `None`: the first objects of the whole collection.
    Namespace(Option<String>),
}

// === impl Verifier ===

impl Verifier {
    /// Runs until `token` is cancelled.
    pub async fn run(self, token: CancellationToken) {
        token.run_until_cancelled(self.keep_sampling()).await;
    }

    async fn keep_sampling(&self) {
        let mut waiting = VecDeque::new();
        let (mut cost, mut taken, mut members) = (1, 0_u64, None);
        loop {
            // Randomized, so that hubs do not sample at the same moment and samples cannot be predicted.
            let mean = self.period * (*self.members.borrow()).max(1) * cost;
            let pause = mean.mul_f64(0.5 + (fastrand::u64(..) % 1000) as f64 / 1000.0);
            self.wait(pause, &mut waiting).await;
            if !self.reach.borrow().is_up() {
                continue;
            }
            if taken.is_multiple_of(MEMBERS_OF)
                && let Err(why) = self.compare_members(&mut members).await
            {
                tracing::debug!(why, "Failed to compare the members");
            }
            taken += 1;
            let Some((replica, sample)) = self.choose() else {
                continue;
            };
            match self.compare(&replica, &sample, &mut waiting).await {
                Ok(bytes) => {
                    cost = u32::try_from(bytes.div_ceil(BYTES_PER_PERIOD))
                        .unwrap_or(u32::MAX)
                        .max(1)
                }
                Err(why) => tracing::debug!(collection = replica.name(), why, "Failed to compare a sample"),
            }
        }
    }

    /// Pauses, and judges waiting samples during the pause.
    async fn wait(&self, mut pause: Duration, waiting: &mut VecDeque<Waiting>) {
        while !pause.is_zero() {
            let step = pause.min(LOOK_AGAIN);
            tokio::time::sleep(step).await;
            pause -= step;
            for name in self.data.distrust().expire(self.clock.boot()) {
                tracing::info!(collection = name, "Following the coordinator again after a forgery");
                self.data.failures().forget(&failure(&name));
            }
            self.judge_waiting(waiting);
        }
    }

    fn judge_waiting(&self, waiting: &mut VecDeque<Waiting>) {
        waiting.retain(|one| {
            let Some(replica) = self.data.replicas().named(&one.collection) else {
                return false;
            };
            let held = replica.collection().read(|held| {
                (held.is_complete() && held.generation() == one.generation).then(|| HeldObject {
                    position: held.position(),
                    state: held.object(&one.key).map(|object| ObjectState::of(object, true)),
                    is_before: false,
                })
            });
            let version = held.as_ref().map(HeldObject::version).unwrap_or_default();
            match held.map(|held| judge(&held, &one.truth)) {
                Some(TruthVerdict::Behind) => true,
                Some(TruthVerdict::Honest) | None => false,
                Some(TruthVerdict::Forged(why)) => {
                    let finding = Finding {
                        collection: one.collection.clone(),
                        generation: one.generation,
                        key: one.key.clone(),
                        version,
                        reason: why.to_owned(),
                    };
                    self.alarm.raise(finding);
                    false
                }
            }
        });
    }

    /// Chooses the next sample; `None` while no data comes from the coordinator.
    fn choose(&self) -> Option<(Arc<Replica>, Sample)> {
        let is_fed = |replica: &&Arc<Replica>| {
            let name = replica.name();
            name != members::COLLECTION
                && self.data.sources().of(name).source == Source::Coordinator
                && replica.collection().read(Collection::is_complete)
        };
        let replicas = self.data.replicas();
        let all = replicas.iter();
        let fed: Vec<Arc<Replica>> = all.filter(|replica| is_fed(&replica)).collect();
        let any = |replica: &Replica| {
            replica.collection().read(|held| {
                let place = fastrand::u64(..) as usize % held.len().max(1);
                held.objects().nth(place).map(|object| object.key().clone())
            })
        };
        let replica = pick(&fed)?.clone();
        let object = any(&replica).filter(|_| !fastrand::u64(..).is_multiple_of(NAMESPACES_OF));
        let sample = match object {
            Some(key) => Sample::Object(key),
            // A namespace of any collection: this one may have been emptied.
            None => {
                let key = pick(&fed).and_then(|other| any(other));
                let namespace = key.and_then(|key| key.namespace().map(str::to_owned));
                Sample::Namespace(namespace.filter(|_| replica.collection().kind().namespaced))
            }
        };
        Some((replica, sample))
    }

    /// Takes a sample and judges it. Returns the bytes of the answer.
    async fn compare(
        &self,
        replica: &Arc<Replica>,
        sample: &Sample,
        waiting: &mut VecDeque<Waiting>,
    ) -> Result<usize, String> {
        let kind = replica.collection().kind();
        let (path, shape) = sample.question(kind);
        let before = |held: &Collection| (held.generation(), held.position(), states(held, sample));
        let (generation, position, mut ours) = replica.collection().read(before);
        let answer = get(self.cloud.server(), &path, shape)
            .await?
            .ok_or("the cloud did not return it")?;
        let bytes = answer.len();
        let list = ParsedList::parse(answer, kind).map_err(|error| error.to_string())?;
        let head = list.meta.resource_version;
        let items = list.items.iter().filter(|item| sample.has(item.key()));
        let mut theirs: BTreeMap<_, _> = items
            .map(|item| (item.key().clone(), ObjectState::of(item, shape.is_empty())))
            .collect();
        if list.meta.continue_token.is_some() {
            // Behind the end of a page nothing is known.
            let last = theirs.keys().next_back().ok_or("an empty page")?;
            ours.retain(|key, _| key <= last);
        }
        self.metrics
            .collections
            .samples
            .with_label_values(&[replica.name()])
            .inc();
        let keys: BTreeSet<ObjectKey> = ours.keys().chain(theirs.keys()).cloned().collect();
        for key in keys {
            let held = HeldObject {
                position,
                state: ours.remove(&key),
                is_before: true,
            };
            let truth = Truth {
                head,
                state: theirs.remove(&key),
            };
            match judge(&held, &truth) {
                TruthVerdict::Honest => {}
                TruthVerdict::Behind => waiting.push_back(Waiting {
                    collection: replica.name().to_owned(),
                    generation,
                    key,
                    truth,
                }),
                TruthVerdict::Forged(why) => {
                    self.alarm.raise(Finding {
                        collection: replica.name().to_owned(),
                        generation,
                        key,
                        version: held.version(),
                        reason: why.to_owned(),
                    });
                    break;
                }
            }
        }
        waiting.drain(..waiting.len().saturating_sub(WAITING_MAX));
        Ok(bytes)
    }
}

// === impl Sample ===

impl Sample {
    /// Path and shape of the list that shows the sample. A list of one object also returns the cloud's head.
    fn question(&self, kind: &ResourceKind) -> (String, &'static str) {
        let namespace = match self {
            Self::Object(key) => return (questions::one(kind, key), ""),
            Self::Namespace(namespace) => namespace.as_deref(),
        };
        let folder = match namespace {
            Some(namespace) => kind.namespaced_path(&escaped(namespace)),
            None => kind.collection_path(),
        };
        (format!("{folder}?limit={PAGE}"), "PartialObjectMetadataList")
    }

    /// True if `key` is part of the sample.
    fn has(&self, key: &ObjectKey) -> bool {
        match self {
            Self::Object(one) => key == one,
            Self::Namespace(namespace) => namespace.is_none() || key.namespace() == namespace.as_deref(),
        }
    }
}

/// Returns the replica's state of every object in the sample.
fn states(held: &Collection, sample: &Sample) -> BTreeMap<ObjectKey, ObjectState> {
    let state = |object: &Object, is_whole| (object.key().clone(), ObjectState::of(object, is_whole));
    match sample {
        Sample::Object(key) => held.object(key).map(|object| state(object, true)).into_iter().collect(),
        Sample::Namespace(_) => {
            let all = held.objects().filter(|object| sample.has(object.key()));
            all.map(|object| state(object, false)).collect()
        }
    }
}

fn pick<T>(items: &[T]) -> Option<&T> {
    items.get(fastrand::u64(..) as usize % items.len().max(1))
}
