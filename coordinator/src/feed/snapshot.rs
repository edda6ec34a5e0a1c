//! Applies the whole state of a collection by difference: first keys and RVs, then only the missing bodies.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};
use yurt_apimachinery::{Object, ResourceVersion, Status};
use yurt_collection::Collection;
use yurt_pool_protocol::feed::decode;
use yurt_pool_protocol::feed::events::read_object;
use yurt_pool_protocol::feed::snapshot::{Arriving, Pending, already_applied, apply, check};
use yurt_pool_protocol::members;
// The feeding call holds the fence: there is no other writer, and `check` compares the generation.
use yurt_pool_protocol::feed::{BodiesCall, Progress, Refusal, SnapshotCall};
use yurt_pool_protocol::fence::Claim;
use yurt_storage::{OnlyWriter as _, Op, StorageError};

use super::bodies::{Bodies, Spilled, Spilling};
use super::collection::PoolCollection;
use super::{Feed, FeedError, fence};
use crate::authn::User;
use crate::status_error;

/// Maximum number of missing keys in one answer. Later answers name the others.
const MISSING_MAX: usize = 50_000;

// === impl Feed ===

impl Feed {
    /// Takes keys and RVs of a snapshot, or a part of them; the answer to the last part names the bodies to send.
    pub(super) async fn take_snapshot(
        &self,
        collection: &Arc<PoolCollection>,
        user: &User,
        body: &[u8],
    ) -> Result<Value, FeedError> {
        let mut call: SnapshotCall<'_> = decode(body)?;
        if call.at.is_own() || call.at.is_zero() {
            return Err(Status::bad_request(format!("{} is not a resourceVersion of the cloud", call.at)).into());
        }
        call.check_positions()?;
        let history = call.history(collection.objects().kind())?;
        self.require_members(collection)?;
        let claim = call.claim();
        {
            let _election = self.enter(collection, &claim, user)?;
            let applied = collection.objects().read(|held| {
                check(held, (call.generation, call.at))?;
                Ok::<_, Refusal>(held.position())
            })?;
            let (index, keys) = collection.arriving().announce(&mut call, applied)?;
            let is_whole = index.is_some();
            if let Some(index) = index {
                self.require_caller(collection, user, &index)?;
                let mut arriving = collection.arriving();
                let before = arriving.pending.take();
                let pending = |held: &Collection| Pending::of(&call, index, history, held, before);
                arriving.pending = Some(collection.objects().read(pending));
            }
            if let Err(status) = self.require_room_to_arrive(collection, &claim, 0) {
                // A repetition finds the room that this took, and that of the snapshot which it replaces.
                *collection.arriving() = Arriving::default();
                return Err(status.into());
            }
            if !is_whole {
                return Ok(json!({ "announced": keys }));
            }
        }
        self.give_back_disk(collection).await;
        if let Some(applied) = self.settle(collection, user, &claim).await? {
            return self.answer(collection, call.fresh, applied).await;
        }
        let named = self.pending_here(collection, |pending| {
            let keys: Vec<&String> = pending.missing().iter().take(MISSING_MAX).collect();
            json!({ "missing": keys })
        });
        Ok(named.ok_or_else(|| self.gap(collection))?)
    }

    /// Takes some of the missing bodies; with the last one the snapshot is applied. A refusal keeps the bodies that
    /// came before.
    pub(super) async fn take_bodies(
        &self,
        collection: &Arc<PoolCollection>,
        user: &User,
        body: &[u8],
    ) -> Result<Value, FeedError> {
        let call: BodiesCall<'_> = decode(body)?;
        let kind = collection.objects().kind();
        let objects = call
            .objects
            .iter()
            .map(|raw| read_object(raw.get(), kind))
            .collect::<Result<Vec<_>, _>>();
        let objects = objects.map_err(|why| Status::bad_request(format!("body of a snapshot: {why}")))?;
        self.admit(collection, objects.iter())?;
        let claim = call.claim();
        let begun = {
            let election = self.enter(collection, &claim, user)?;
            let bytes = objects.iter().map(Object::size).sum();
            self.require_room_to_arrive(collection, &claim, bytes)?;
            match collection.arriving().pending_of(&call) {
                Some(pending) => Ok(Arrival::of(pending, objects, self.spill_path(collection))?),
                None => Err(fence::guard(&election)),
            }
        };
        let arrival = match begun {
            Ok(arrival) => arrival,
            Err(guard) => {
                let at = collection.objects().read(|held| already_applied(held, &call))?;
                return self.answer(collection, call.fresh, Applied { at, guard }).await;
            }
        };
        let arrived = arrival.stored().await?;
        {
            let mut arriving = collection.arriving();
            let pending = arriving.pending_of(&call);
            arrived.keep(pending.ok_or_else(|| self.gap(collection))?);
        }
        if let Some(applied) = self.settle(collection, user, &claim).await? {
            return self.answer(collection, call.fresh, applied).await;
        }
        let left = self.pending_here(collection, |pending| json!({ "missing": pending.missing().len() }));
        Ok(left.ok_or_else(|| self.gap(collection))?)
    }

    /// Applies the pending snapshot when it is complete. If it cannot be applied, it stays pending for its bodies.
    async fn settle(
        &self,
        collection: &Arc<PoolCollection>,
        user: &User,
        claim: &Claim,
    ) -> Result<Option<Applied>, FeedError> {
        let reading = self.pending_here(collection, |pending| {
            pending.missing().is_empty().then(|| pending.bodies.reading())
        });
        let Some(reading) = reading.ok_or_else(|| self.gap(collection))? else {
            return Ok(None);
        };
        let kind = collection.objects().kind();
        let bodies = if reading.blocks() {
            blocking(move || reading.read(kind)).await?
        } else {
            reading.read(kind).map_err(|error| of_disk(&error))?
        };
        let place = self.pending_here(collection, |pending| pending.place());
        let (generation, at) = place.ok_or_else(|| self.gap(collection))?;
        self.cover(collection, generation, at).await?;
        let election = self.enter(collection, claim, user)?;
        let mut arriving = collection.arriving();
        let pending = arriving.pending.as_ref().ok_or_else(|| self.gap(collection))?;
        self.require_room_of(collection, pending, &bodies)?;
        let at = collection.objects().update(|held| apply(held, pending, bodies))?;
        *arriving = Arriving::default();
        self.metrics.batch(collection.name(), self.is_late(&election.holder));
        tracing::info!(collection = collection.name(), %at, leader = election.holder, "Snapshot applied");
        let guard = fence::guard(&election);
        Ok(Some(Applied { at, guard }))
    }

    /// Copies the bodies that are still wanted when most of their file is obsolete.
    async fn give_back_disk(&self, collection: &Arc<PoolCollection>) {
        let wasted = self.pending_here(collection, |pending| pending.bodies.wasted());
        let Some(wasted) = wasted.flatten() else { return };
        let path = self.spill_path(collection);
        match blocking(move || wasted.copy(path)).await {
            Ok(copied) => drop(self.pending_here(collection, |pending| pending.bodies.keep_spilled(copied))),
            Err(error) => tracing::debug!(
                error = error.message(),
                "Failed to remove obsolete bodies from the disk"
            ),
        }
    }

    fn pending_here<T>(&self, collection: &PoolCollection, look: impl FnOnce(&mut Pending<Bodies>) -> T) -> Option<T> {
        collection.arriving().pending.as_mut().map(look)
    }

    fn spill_path(&self, collection: &PoolCollection) -> PathBuf {
        self.folder.join(format!("{}.bodies", collection.name()))
    }

    fn gap(&self, collection: &PoolCollection) -> Refusal {
        let applied = collection.objects().read(Collection::position);
        Refusal::Gap { applied }
    }

    /// Checks that a leader feeds only a membership it belongs to: this stops the leader of another pool, and a pool
    /// cannot lock itself out.
    fn require_caller(
        &self,
        collection: &PoolCollection,
        user: &User,
        index: &BTreeMap<String, ResourceVersion>,
    ) -> Result<(), Refusal> {
        if collection.name() != members::COLLECTION {
            return Ok(());
        }
        self.members.judge(user.node_name(), index.keys().map(String::as_str))
    }

    /// Answers the leader. Makes the applied data durable first, and only then shows it to readers.
    async fn answer(
        &self,
        collection: &Arc<PoolCollection>,
        fresh: Option<bool>,
        Applied { at: applied, guard }: Applied,
    ) -> Result<Value, FeedError> {
        self.persist(guard.as_ref()).await?;
        collection.announce();
        if let Some(fresh) = fresh {
            self.tell_freshness(collection, fresh).await;
            collection.heard(fresh, self.clock.boot());
        }
        let mut answer = Progress {
            applied,
            durable: collection.replica().durable().position,
        }
        .to_json();
        answer["missing"] = json!([]);
        Ok(answer)
    }
}

/// A snapshot that has been applied.
struct Applied {
    /// `C` after it.
    at: ResourceVersion,
    /// Precondition: no other node has been elected.
    guard: Option<Op>,
}

/// Bodies that are missing, and their destination.
enum Arrival {
    Memory(Vec<(String, Object)>),
    Disk(Vec<(String, Object)>, Spilling),
}

/// Stored bodies, which the leader need not send again.
enum Arrived {
    Memory(Vec<(String, Object)>),
    Disk(Vec<String>, Spilled),
}

// === impl Arrival, Arrived ===

impl Arrival {
    fn of(pending: &Pending<Bodies>, objects: Vec<Object>, path: PathBuf) -> Result<Self, Status> {
        let wanted = pending.wanted(objects)?;
        let bytes = wanted.iter().map(|(_, object)| object.size()).sum();
        Ok(match pending.bodies.have_room(bytes) {
            true => Self::Memory(wanted),
            false => Self::Disk(wanted, pending.bodies.spilling(path)),
        })
    }

    async fn stored(self) -> Result<Arrived, Status> {
        let (objects, spilling) = match self {
            Self::Memory(objects) => return Ok(Arrived::Memory(objects)),
            Self::Disk(objects, spilling) => (objects, spilling),
        };
        let write = move || {
            let spilled = spilling.write(&objects)?;
            let keys = objects.into_iter().map(|(key, _)| key).collect();
            Ok(Arrived::Disk(keys, spilled))
        };
        blocking(write).await
    }
}

impl Arrived {
    fn keep(self, pending: &mut Pending<Bodies>) {
        match self {
            Self::Memory(objects) => {
                for (key, object) in objects {
                    pending.has_arrived(&key);
                    pending.bodies.keep(key, object);
                }
            }
            Self::Disk(keys, spilled) => {
                pending.bodies.keep_spilled(spilled);
                keys.iter().for_each(|key| pending.has_arrived(key));
            }
        }
    }
}

/// Runs work that may wait for the disk.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> Result<T, Status> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|lost| Err(io::Error::other(lost)))
        .map_err(|error| of_disk(&error))
}

fn of_disk(error: &io::Error) -> Status {
    let why = format!("bodies of a snapshot, below --data-dir: {error}");
    status_error::of_storage(&match error.kind() {
        io::ErrorKind::StorageFull => StorageError::Full(why),
        _ => StorageError::Unavailable(why),
    })
}

#[cfg(test)]
mod tests;
