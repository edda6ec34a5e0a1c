//! A pool collection of one coordinator process, with the rules by which it takes the calls of the feed, in memory.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::FutureExt as _;
use serde_json::{Value, json};
use yurt_apimachinery::{Object, ResourceKind, ResourceVersion, Status};
use yurt_collection::{Collection, Recovered};
use yurt_pool_protocol::feed::snapshot::{Arriving, Pending};
use yurt_pool_protocol::feed::{BodiesCall, EventsCall, Progress, Refusal, SnapshotCall, decode, events, snapshot};
use yurt_pool_protocol::fence::{Claim, Fence};
// The simulation makes one call at a time.
use yurt_storage::{OnlyWriter as _, Replica, Replicas, SharedCollection};

/// One collection and its feed.
pub struct Pool {
    fence: Fence,
    replicas: Replicas,
    replica: Arc<Replica>,
    arriving: RefCell<Arriving<Bodies>>,
}

/// Bodies in memory.
#[derive(Default)]
struct Bodies(BTreeMap<String, Object>);

/// Reason for which a call changed nothing.
enum Failure {
    Refused(Refusal),
    Status(Status),
}

// === impl Pool ===

impl Pool {
    /// A process that found this epoch record and this copy of the collection of `kind` in the store called `store`.
    ///
    /// # Panics
    /// When the parts do not fit together, which is an error of the simulation.
    #[must_use]
    pub fn open(
        store: &str,
        kind: &'static ResourceKind,
        record: Option<(ResourceVersion, &[u8])>,
        found: Option<Recovered>,
    ) -> Self {
        let fence = Fence::new(store);
        if let Some((rv, record)) = record {
            fence.published(rv, record).expect("the record was encoded here");
        }
        let name = kind.group_resource().to_string();
        let replicas = Replicas::open(&[(name.clone(), kind)], None).expect("memory must open");
        let replica = replicas.named(&name).expect("the kind was given");
        if let Some(found) = found {
            replica.collection().update(|held| held.recover(found));
        }
        let pool = Self {
            fence,
            replicas,
            replica,
            arriving: RefCell::default(),
        };
        pool.persist();
        pool
    }

    /// Makes the copy durable.
    fn persist(&self) {
        let persisted = self.replicas.persist(None).now_or_never();
        persisted.expect("memory does not wait").expect("memory does not fail");
    }

    /// Stores a mark that covers `to`.
    fn cover(&self, generation: u64, to: ResourceVersion) {
        let covered = self.replicas.cover(&self.replica, generation, to, None).now_or_never();
        covered.expect("memory does not wait").expect("memory does not fail");
    }

    /// Elects `holder`; returns the epoch and the record to keep.
    ///
    /// # Panics
    /// When the record cannot be read.
    pub fn elect(&self, holder: &str, rv: ResourceVersion) -> (u64, Vec<u8>) {
        let next = self.fence.election().next(holder, None);
        let record = next.encode();
        self.fence.published(rv, &record).expect("the record was encoded here");
        (next.epoch, record)
    }

    /// A feed call of `node`: `<resource>/events`, `<resource>/snapshot` or `<resource>/snapshot/bodies`.
    ///
    /// # Errors
    /// The body of the refusal.
    pub fn take(&self, node: &str, path: &str, body: &[u8]) -> Result<Value, Value> {
        let taken = match path.split_once('/') {
            Some((_, "events")) => self.take_events(node, body),
            Some((_, "snapshot")) => self.take_index(node, body),
            Some((_, "snapshot/bodies")) => self.take_bodies(node, body),
            _ => Err(Status::bad_request(path).into()),
        };
        taken.map_err(|failure| match failure {
            Failure::Refused(refusal) => refusal.to_json(),
            Failure::Status(status) => json!({ "reason": status.message() }),
        })
    }

    fn take_events(&self, node: &str, body: &[u8]) -> Result<Value, Failure> {
        let call: EventsCall<'_> = decode(body)?;
        Refusal::check_position("upTo", call.up_to)?;
        let read = events::read_events(&call, self.objects().kind())?;
        if self.objects().read(|held| events::next(held, &call))?.is_none() {
            self.cover(call.generation, call.up_to);
        }
        let _election = self.enter(&call.claim(), node)?;
        let applied = self
            .objects()
            .update(|held| events::apply(held, &call, read, |_, _| Ok(())))?;
        self.arriving.take();
        let durable = self.replica.durable().position.min(applied);
        Ok(Progress { applied, durable }.to_json())
    }

    fn take_index(&self, node: &str, body: &[u8]) -> Result<Value, Failure> {
        let mut call: SnapshotCall<'_> = decode(body)?;
        Refusal::check_position("at", call.at)?;
        let history = call.history(self.objects().kind())?;
        let claim = call.claim();
        let _election = self.enter(&claim, node)?;
        let applied = self.objects().read(|held| {
            snapshot::check(held, (call.generation, call.at))?;
            Ok::<_, Refusal>(held.position())
        })?;
        let mut arriving = self.arriving.borrow_mut();
        let (index, keys) = arriving.announce(&mut call, applied)?;
        let Some(index) = index else {
            return Ok(json!({ "announced": keys }));
        };
        let before = arriving.pending.take();
        let pending = self
            .objects()
            .read(|held| Pending::of(&call, index, history, held, before));
        let missing: Vec<String> = pending.missing().iter().cloned().collect();
        arriving.pending = Some(pending);
        drop(arriving);
        if missing.is_empty() {
            return self.settle();
        }
        Ok(json!({ "missing": missing }))
    }

    fn take_bodies(&self, node: &str, body: &[u8]) -> Result<Value, Failure> {
        let call: BodiesCall<'_> = decode(body)?;
        let kind = self.objects().kind();
        let objects = call.objects.iter().map(|raw| events::read_object(raw.get(), kind));
        let objects = objects.collect::<Result<Vec<_>, _>>().map_err(Status::bad_request)?;
        let _election = self.enter(&call.claim(), node)?;
        let mut arriving = self.arriving.borrow_mut();
        let Some(pending) = arriving.pending_of(&call) else {
            let at = self.objects().read(|held| snapshot::already_applied(held, &call))?;
            return Ok(self.answer(at));
        };
        for (key, object) in pending.wanted(objects)? {
            pending.has_arrived(&key);
            pending.bodies.0.insert(key, object);
        }
        let left = pending.missing().len();
        drop(arriving);
        if left == 0 {
            return self.settle();
        }
        Ok(json!({ "missing": left }))
    }

    /// Applies the pending snapshot, which is complete.
    fn settle(&self) -> Result<Value, Failure> {
        let arriving = self.arriving.borrow();
        let applied = self.objects().read(Collection::position);
        let pending = arriving.pending.as_ref().ok_or(Refusal::Gap { applied })?;
        let (generation, at) = pending.place();
        self.cover(generation, at);
        let bodies = pending.bodies.0.clone();
        let at = self.objects().update(|held| snapshot::apply(held, pending, bodies))?;
        drop(arriving);
        self.arriving.take();
        Ok(self.answer(at))
    }

    /// Makes the data durable, and only then shows it to readers.
    fn answer(&self, applied: ResourceVersion) -> Value {
        self.persist();
        self.objects().update(|_| ());
        let durable = self.replica.durable().position;
        let mut answer = Progress { applied, durable }.to_json();
        answer["missing"] = json!([]);
        answer
    }

    fn enter(&self, claim: &Claim, node: &str) -> Result<impl Sized + use<'_>, Refusal> {
        let fenced = |_| Refusal::Fenced {
            store: self.fence.store().to_owned(),
        };
        self.fence.enter(claim, Some(node)).map_err(fenced)
    }

    /// The collection of the objects.
    #[must_use]
    pub fn objects(&self) -> &SharedCollection {
        self.replica.collection()
    }

    /// True if readers may have it.
    #[must_use]
    pub fn is_served(&self) -> bool {
        self.replica.is_served()
    }
}

// === impl Bodies ===

impl snapshot::Bodies for Bodies {
    fn retain(&mut self, is_wanted: impl Fn(&str, ResourceVersion) -> bool) {
        self.0.retain(|key, object| is_wanted(key, object.resource_version()));
    }

    fn keys(&self) -> impl Iterator<Item = &String> {
        self.0.keys()
    }

    fn bytes(&self) -> usize {
        self.0.values().map(Object::size).sum()
    }
}

// === impl Failure ===

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}
