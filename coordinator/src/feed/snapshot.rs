//! Takes everything there is in a collection, by difference: first keys and RVs, then only the bodies that are missing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::MutexGuard;
use serde_json::{Value, json};
use yurt_apimachinery::{Object, ObjectKey, ResourceVersion, Status};
use yurt_storage::collection::{History, WriteError};
// Whoever feeds holds the fence: there is no other writer, and `check` compares the generation.
use yurt_storage::{Collection, OnlyWriter as _, Op};

use super::collection::PoolCollection;
use super::events::read_object;
use super::fence::{Claim, Election};
use super::wire::{BodiesCall, Progress, SnapshotCall};
use super::{Feed, FeedError, Refusal, decode, members};
use crate::authn::User;

/// Bytes of bodies that all snapshots together may hold back until they are complete.
const PENDING_BYTES_MAX: usize = 256 << 20;

/// A snapshot whose bodies are still arriving.
#[derive(Debug)]
pub(super) struct Pending {
    claim: Claim,
    generation: u64,
    at: ResourceVersion,
    index: BTreeMap<String, ResourceVersion>,
    missing: BTreeSet<String>,
    bodies: BTreeMap<String, Object>,
    bytes: usize,
    /// What the leader remembers of the time before.
    history: Option<History>,
}

// === impl Pending ===

impl Pending {
    /// What `call` announces. Bodies of an unfinished snapshot before it are not asked for again, whoever sent them: on one
    /// timeline an RV of a key stands for one content.
    fn of(call: SnapshotCall<'_>, history: Option<History>, held: &Collection, before: Option<Self>) -> Self {
        let claim = call.claim();
        let index: BTreeMap<String, ResourceVersion> = call.index.into_iter().collect();
        // On a new timeline an old RV may stand for another content.
        let may_reuse = call.generation == held.generation();
        let is_held = |key: &str, rv: ResourceVersion| {
            may_reuse && find(held, key).is_some_and(|object| object.resource_version() == rv)
        };
        let missing = index
            .iter()
            .filter(|(key, rv)| !is_held(key, **rv))
            .map(|(key, _)| key.clone())
            .collect();
        let (generation, at) = (call.generation, call.at);
        let mut pending = Self {
            claim,
            generation,
            at,
            index,
            missing,
            bodies: BTreeMap::new(),
            bytes: 0,
            history,
        };
        let before = before.filter(|before| before.generation == generation);
        for (key, object) in before.map(|before| before.bodies).unwrap_or_default() {
            if pending.index.get(&key) == Some(&object.resource_version()) {
                pending.keep(key, object);
            }
        }
        pending
    }

    fn keep(&mut self, key: String, object: Object) {
        if self.missing.remove(&key) {
            self.bytes += object.size();
            self.bodies.insert(key, object);
        }
    }

    fn add(&mut self, object: Object) -> Result<(), Status> {
        let key = object.key().to_string();
        let listed = self.index.get(&key).copied();
        if listed != Some(object.resource_version()) {
            let rv = object.resource_version();
            return Err(Status::bad_request(format!(
                "{key} at {rv} is not what the snapshot announced"
            )));
        }
        self.keep(key, object);
        Ok(())
    }

    /// The whole list, from the bodies and from what is held.
    fn into_list(mut self, held: &Collection) -> Option<Vec<Object>> {
        let bodies = &mut self.bodies;
        let object = |(key, rv): (&String, &ResourceVersion)| {
            bodies.remove(key).or_else(|| {
                find(held, key)
                    .filter(|object| object.resource_version() == *rv)
                    .cloned()
            })
        };
        self.index.iter().map(object).collect()
    }
}

fn find<'a>(held: &'a Collection, key: &str) -> Option<&'a Object> {
    held.object(&object_key(key))
}

fn object_key(key: &str) -> ObjectKey {
    match key.split_once('/') {
        Some((namespace, name)) => ObjectKey::new(Some(namespace), name),
        None => ObjectKey::new(None, key),
    }
}

// === impl Feed ===

impl Feed {
    /// Keys and RVs of a snapshot; the answer names the bodies to send.
    pub(super) async fn take_snapshot(
        &self,
        collection: &Arc<PoolCollection>,
        user: &User,
        body: &[u8],
    ) -> Result<Value, FeedError> {
        let call: SnapshotCall<'_> = decode(body)?;
        if call.at.is_own() || call.at.is_zero() {
            return Err(Status::bad_request(format!("{} is not a resourceVersion of the cloud", call.at)).into());
        }
        let history = call.history(collection.objects().kind())?;
        self.require_members(collection)?;
        self.require_caller(collection, user, &call)?;
        let (claim, fresh) = (call.claim(), call.fresh);
        let (outcome, guard) = {
            let election = self.fence.enter(&claim, user).map_err(|_| self.fenced())?;
            collection
                .objects()
                .read(|held| check(held, call.generation, call.at))?;
            let before = self.pending.lock().remove(collection.name());
            let pending = collection
                .objects()
                .read(|held| Pending::of(call, history, held, before));
            (self.keep_or_apply(collection, &election, pending)?, election.guard())
        };
        self.answer(collection, guard, fresh, outcome).await
    }

    /// Some of the missing bodies; with the last one the snapshot is applied.
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
        let (outcome, guard) = {
            let election = self.fence.enter(&call.claim(), user).map_err(|_| self.fenced())?;
            let outcome = match self.pending_of(collection, &call) {
                Some(pending) => self.add_bodies(collection, &election, pending, objects)?,
                None => collection.objects().read(|held| already_applied(held, &call))?,
            };
            (outcome, election.guard())
        };
        if let Outcome::Missing(keys) = outcome {
            return Ok(json!({ "missing": keys.len() }));
        }
        self.answer(collection, guard, call.fresh, outcome).await
    }

    /// Who tells the membership must belong to it: a wrong pool's leader stops here, and no pool shuts itself out.
    fn require_caller(&self, collection: &PoolCollection, user: &User, call: &SnapshotCall<'_>) -> Result<(), Refusal> {
        if collection.name() != members::COLLECTION {
            return Ok(());
        }
        let names = call.index.iter().map(|(key, _)| key.as_str());
        self.members.judge(user.node_name(), names)
    }

    fn pending_of(&self, collection: &PoolCollection, call: &BodiesCall<'_>) -> Option<Pending> {
        let mut all = self.pending.lock();
        let pending = all.remove(collection.name())?;
        let is_it = (&pending.claim, pending.generation, pending.at) == (&call.claim(), call.generation, call.at);
        is_it.then_some(pending)
    }

    fn add_bodies(
        &self,
        collection: &PoolCollection,
        election: &MutexGuard<'_, Election>,
        mut pending: Pending,
        objects: Vec<Object>,
    ) -> Result<Outcome, FeedError> {
        for object in objects {
            pending.add(object)?;
        }
        let others: usize = self.pending.lock().values().map(|other| other.bytes).sum();
        if others + pending.bytes > PENDING_BYTES_MAX {
            let message = format!("the bodies of unfinished snapshots exceed {PENDING_BYTES_MAX} bytes");
            return Err(Status::too_large(&message).into());
        }
        self.keep_or_apply(collection, election, pending)
    }

    /// Applies a snapshot that has everything, keeps any other. The fence is held by the caller.
    fn keep_or_apply(
        &self,
        collection: &PoolCollection,
        election: &MutexGuard<'_, Election>,
        pending: Pending,
    ) -> Result<Outcome, FeedError> {
        if !pending.missing.is_empty() {
            let missing = pending.missing.iter().cloned().collect();
            self.pending.lock().insert(collection.name().to_owned(), pending);
            return Ok(Outcome::Missing(missing));
        }
        self.pending.lock().remove(collection.name());
        let applied = collection.objects().update(|held| apply(held, pending))?;
        self.metrics.batch(collection.name(), self.is_late(&election.holder));
        tracing::info!(collection = collection.name(), at = %applied, leader = election.holder, "Snapshot applied");
        Ok(Outcome::Applied(applied))
    }

    /// Tells the leader. What was applied is made durable first, and only then shown to readers.
    async fn answer(
        &self,
        collection: &Arc<PoolCollection>,
        guard: Option<Op>,
        fresh: Option<bool>,
        outcome: Outcome,
    ) -> Result<Value, FeedError> {
        let applied = match outcome {
            Outcome::Missing(keys) => return Ok(json!({ "missing": keys })),
            Outcome::Applied(applied) => applied,
        };
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

/// What became of a call.
enum Outcome {
    /// Keys of bodies that have to come yet.
    Missing(Vec<String>),
    /// `C` after the snapshot.
    Applied(ResourceVersion),
}

/// Whether a snapshot may be taken at all.
fn check(held: &Collection, generation: u64, at: ResourceVersion) -> Result<(), Refusal> {
    let applied = held.position();
    if generation < held.generation() {
        return Err(Refusal::Generation {
            generation: held.generation(),
            applied,
        });
    }
    if generation == held.generation() && at < applied {
        return Err(Refusal::Behind { applied });
    }
    Ok(())
}

fn apply(held: &mut Collection, mut pending: Pending) -> Result<ResourceVersion, Refusal> {
    check(held, pending.generation, pending.at)?;
    // Whoever followed this pool before its store was lost goes on here, too. A copy that is there remembers for itself.
    let history = pending.history.take().filter(|_| !held.is_complete());
    let (generation, at) = (pending.generation, pending.at);
    // Events may have replaced an object since the index came; the leader sends another snapshot then.
    let Some(list) = pending.into_list(held) else {
        return Err(Refusal::Gap {
            applied: held.position(),
        });
    };
    if generation > held.generation() {
        held.restart(generation, list, at);
    } else {
        held.replace(list, at).map_err(|error| match error {
            WriteError::Behind { position, .. } => Refusal::Behind { applied: position },
            WriteError::Backwards { .. } | WriteError::CameBack { .. } => Refusal::Backwards {
                message: error.to_string(),
            },
        })?;
    }
    if let Some(history) = history {
        held.remember(history);
    }
    Ok(held.position())
}

/// The answer to bodies of a snapshot that is not pending: applied already (the answer was lost), or unknown.
fn already_applied(held: &Collection, call: &BodiesCall<'_>) -> Result<Outcome, Refusal> {
    let applied = held.position();
    if held.is_complete() && held.generation() == call.generation && applied >= call.at {
        return Ok(Outcome::Applied(applied));
    }
    Err(Refusal::Gap { applied })
}

#[cfg(test)]
mod tests;
