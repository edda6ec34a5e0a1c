//! How an object of our own is written: compare-and-write in a loop, with the lease guard and the epoch record where they
//! apply.
//!
//! Values are stored without resourceVersion; the RV of an object is that of the commit that wrote it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use yurt_apimachinery::{Object, ObjectKey, ResourceVersion, Status};
use yurt_runtime::Clock;
use yurt_storage::{Action, Durability, Expect, Op, Storage, StorageError};

use super::Resource;
use super::leases::{self, Attempt, Author, Guard};
use crate::authn::NODE_PREFIX;
use crate::feed::fence::{EPOCH_KEY, Fence};
use crate::feed::members::Members;
use crate::status_error;

/// Writes own objects.
pub(crate) struct OwnStore {
    storage: Arc<dyn Storage>,
    fence: Arc<Fence>,
    guard: Guard,
    /// Who may hold the election lease; everybody in profile standalone.
    electorate: Option<Arc<Members>>,
    clock: Clock,
}

/// On whose behalf, and whether for real.
#[derive(Clone, Debug)]
pub(crate) struct Intent {
    /// Who writes.
    pub(crate) author: Author,
    /// Only pretend.
    pub(crate) dry_run: bool,
}

/// What shall become of an object.
pub(crate) enum Change {
    /// This state, without resourceVersion.
    Put {
        /// New state.
        new: Value,
        /// The request names the RV it is based on: a race is the caller's to resolve.
        is_conditional: bool,
    },
    /// Nothing: it is gone. `last` is its last state.
    Delete {
        /// Last state without resourceVersion.
        last: Value,
        /// As for `Put`.
        is_conditional: bool,
    },
    /// It stays as it is.
    Keep,
}

/// What became of it.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    /// Nothing was written; the object as it is.
    Unchanged(Object),
    /// The new state.
    Changed(Object),
    /// The last state, with the RV of the deletion.
    Deleted(Object),
}

/// One compare-and-write.
struct Write<'a> {
    resource: &'a Resource,
    key: &'a ObjectKey,
    old: Option<&'a Object>,
    new: Option<&'a Object>,
    expect: Expect,
    action: Action,
    is_conditional: bool,
}

enum Failure {
    /// Somebody was faster; `found` is the RV there is now.
    Raced {
        found: Option<ResourceVersion>,
    },
    Status(Status),
}

/// A patch without resourceVersion is tried again this often when it loses a race.
const ATTEMPTS_MAX: usize = 10;
/// A race is lost to a commit that is published within this time, or that failed itself.
const PUBLISH_WAIT: Duration = Duration::from_secs(1);

// === impl OwnStore ===

impl OwnStore {
    /// Writes to `storage`; the election is that of `fence`, and only nodes of the `electorate` may win it.
    pub(crate) fn new(
        storage: Arc<dyn Storage>,
        fence: Arc<Fence>,
        electorate: Option<Arc<Members>>,
        clock: Clock,
    ) -> Self {
        let guard = Guard::new(clock.boot());
        if let Some(owner) = fence.election().owner {
            guard.restore(leases::ELECTION_KEY, owner);
        }
        Self {
            storage,
            fence,
            guard,
            electorate,
            clock,
        }
    }

    /// Creates an object that must not exist yet. `Ok(None)` when it does.
    ///
    /// # Errors
    /// The answer to give.
    pub(crate) async fn create(
        &self,
        resource: &Resource,
        new: Value,
        intent: &Intent,
    ) -> Result<Option<Object>, Status> {
        let new = object(new, resource)?;
        let key = new.key().clone();
        if resource.objects().read(|held| held.object(&key).is_some()) {
            return Ok(None);
        }
        let action = Action::Put(new.bytes().clone(), Durability::Durable);
        let write = Write {
            resource,
            key: &key,
            old: None,
            new: Some(&new),
            expect: Expect::Absent,
            action,
            is_conditional: false,
        };
        match self.write(write, intent).await {
            Ok(Some(rv)) => Ok(Some(new.with_resource_version(rv))),
            Ok(None) => Ok(Some(new)),
            Err(Failure::Raced { .. }) => Ok(None),
            Err(Failure::Status(status)) => Err(status),
        }
    }

    /// Changes an existing object: reads it, lets `change` decide, writes if nobody was faster, else starts over.
    ///
    /// # Errors
    /// 404 when it does not exist, 409 when a conditional change lost a race, whatever `change` answers.
    pub(crate) async fn update(
        &self,
        resource: &Resource,
        key: &ObjectKey,
        intent: &Intent,
        mut change: impl FnMut(&Object) -> Result<Change, Status>,
    ) -> Result<Outcome, Status> {
        let group_resource = resource.kind.group_resource();
        for _ in 0..ATTEMPTS_MAX {
            let current = resource.objects().read(|held| held.object(key).cloned());
            let Some(current) = current else {
                return Err(Status::not_found(&group_resource, key.name()));
            };
            let change = change(&current)?;
            let is_conditional = match &change {
                Change::Put { is_conditional, .. } | Change::Delete { is_conditional, .. } => *is_conditional,
                Change::Keep => false,
            };
            match self.try_change(resource, &current, change, intent).await {
                Ok(outcome) => return Ok(outcome),
                Err(Failure::Status(status)) => return Err(status),
                Err(Failure::Raced { .. }) if is_conditional => break,
                Err(Failure::Raced { found }) => wait_for_winner(resource, key, found).await,
            }
        }
        Err(Status::conflict_modified(&group_resource, key.name()))
    }

    async fn try_change(
        &self,
        resource: &Resource,
        current: &Object,
        change: Change,
        intent: &Intent,
    ) -> Result<Outcome, Failure> {
        let expect = Expect::At(current.resource_version());
        let (old, key) = (Some(current), current.key());
        match change {
            Change::Keep => Ok(Outcome::Unchanged(current.clone())),
            Change::Put { new, is_conditional } => {
                let before = without_version(current);
                if before == new {
                    self.judge_repeat(resource, current, is_conditional, intent)?;
                    return Ok(Outcome::Unchanged(current.clone()));
                }
                let durability = resource.strategy.durability(&before, &new);
                let new = object(new, resource).map_err(Failure::Status)?;
                if new.key() != key {
                    let message = "the name of the object does not match the name on the URL";
                    return Err(Failure::Status(Status::bad_request(message)));
                }
                let action = Action::Put(new.bytes().clone(), durability);
                let write = Write {
                    resource,
                    key,
                    old,
                    new: Some(&new),
                    expect,
                    action,
                    is_conditional,
                };
                let rv = self.write(write, intent).await?.unwrap_or(current.resource_version());
                Ok(Outcome::Changed(new.with_resource_version(rv)))
            }
            Change::Delete { last, is_conditional } => {
                let last = object(last, resource).map_err(Failure::Status)?;
                let action = Action::Delete {
                    last: last.bytes().clone(),
                };
                let write = Write {
                    resource,
                    key,
                    old,
                    new: None,
                    expect,
                    action,
                    is_conditional,
                };
                let rv = self.write(write, intent).await?.unwrap_or(current.resource_version());
                Ok(Outcome::Deleted(last.with_resource_version(rv)))
            }
        }
    }

    /// Writes, guarded where it must be; `None` for a dry run.
    async fn write(&self, write: Write<'_>, intent: &Intent) -> Result<Option<ResourceVersion>, Failure> {
        if leases::is_guarded(write.resource, write.key) {
            return self.write_guarded(write, intent).await;
        }
        if intent.dry_run {
            return Ok(None);
        }
        self.commit(vec![op(&write)]).await.map(Some)
    }

    /// A write of an election lease: judged, and with the epoch record in the same transaction when the holder changes.
    async fn write_guarded(&self, write: Write<'_>, intent: &Intent) -> Result<Option<ResourceVersion>, Failure> {
        let _turn = self.guard.turn.lock().await;
        let key = write.key.as_str();
        let (before, duration) = leases::standing(write.old);
        let (after, _) = leases::standing(write.new);
        if key == leases::ELECTION_KEY && before != after {
            self.check_candidate(&write, &intent.author, &after)?;
        }
        let attempt = Attempt {
            author: &intent.author,
            has_resource_version: write.is_conditional,
            holder: write.new.map(|_| after.as_str()),
        };
        self.judge(write.resource, write.key, (&before, duration), attempt)?;
        if intent.dry_run {
            return Ok(None);
        }
        let mut ops = vec![op(&write)];
        if key == leases::ELECTION_KEY && before != after {
            let owner = self.guard.owner_after(key, &intent.author, &before, &after);
            ops.push(self.next_epoch(&after, owner));
        }
        let rv = self.commit(ops).await?;
        self.guard
            .accepted(key, &intent.author, &before, &after, self.clock.boot());
        Ok(Some(rv))
    }

    /// A write that changes nothing is judged all the same: its author would take the answer for a renewal.
    fn judge_repeat(
        &self,
        resource: &Resource,
        current: &Object,
        is_conditional: bool,
        intent: &Intent,
    ) -> Result<(), Status> {
        if !leases::is_guarded(resource, current.key()) {
            return Ok(());
        }
        let (holder, duration) = leases::standing(Some(current));
        let attempt = Attempt {
            author: &intent.author,
            has_resource_version: is_conditional,
            holder: Some(holder.as_str()),
        };
        self.judge(resource, current.key(), (&holder, duration), attempt)
    }

    fn judge(
        &self,
        resource: &Resource,
        key: &ObjectKey,
        standing: (&str, Duration),
        attempt: Attempt<'_>,
    ) -> Result<(), Status> {
        let judged = self.guard.judge(key.as_str(), standing, attempt, self.clock.boot());
        judged.map_err(|why| Status::conflict(&resource.kind.group_resource(), key.name(), &why))
    }

    /// Only members may be elected, and a node only under its own name.
    fn check_candidate(&self, write: &Write<'_>, author: &Author, holder: &str) -> Result<(), Status> {
        let Some(members) = self.electorate.as_ref().filter(|_| !holder.is_empty()) else {
            return Ok(());
        };
        let candidate = holder.split_once('_').map(|(node, _)| node);
        let caller = author.user.strip_prefix(NODE_PREFIX);
        let why = match candidate {
            Some(node) if caller.is_some_and(|caller| caller != node) => {
                "a node may only be elected under its own name"
            }
            Some(node) if members.contains(node) => return Ok(()),
            Some(_) => "only members of the NodePool may be elected",
            None => "holderIdentity must be <node>_<process>",
        };
        Err(Status::forbidden_because(
            &write.resource.kind.group_resource(),
            write.key.name(),
            why,
        ))
    }

    fn next_epoch(&self, holder: &str, owner: Option<Author>) -> Op {
        let election = self.fence.election();
        let record = election.next(holder, owner).encode();
        let expect = election.record.map_or(Expect::Absent, Expect::At);
        Op {
            key: EPOCH_KEY.to_owned(),
            expect,
            action: Action::Put(record.into(), Durability::Durable),
        }
    }

    async fn commit(&self, ops: Vec<Op>) -> Result<ResourceVersion, Failure> {
        self.storage.write(ops).await.map_err(|error| match error {
            StorageError::Conflict { found, .. } => Failure::Raced { found },
            other => Failure::Status(status_error::of_storage(&other)),
        })
    }
}

// === impl Outcome ===

impl Outcome {
    /// The object as it is afterwards, or was last.
    pub(crate) fn into_object(self) -> Object {
        match self {
            Self::Unchanged(object) | Self::Changed(object) | Self::Deleted(object) => object,
        }
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

/// A race is decided before it is published: the next attempt has to see the winner's state.
async fn wait_for_winner(resource: &Resource, key: &ObjectKey, found: Option<ResourceVersion>) {
    let mut changes = resource.objects().subscribe();
    let is_published = || {
        let held = resource
            .objects()
            .read(|held| held.object(key).map(Object::resource_version));
        match found {
            Some(rv) => held.is_none_or(|held| held >= rv),
            None => held.is_none(),
        }
    };
    let published = async {
        while !is_published() {
            if changes.changed().await.is_err() {
                return;
            }
        }
    };
    // A winner whose commit failed is never published: then the old state stands and the attempt is repeated.
    let _ = tokio::time::timeout(PUBLISH_WAIT, published).await;
}

fn op(write: &Write<'_>) -> Op {
    let key = format!("/{}/{}", write.resource.name, write.key);
    Op {
        key,
        expect: write.expect,
        action: write.action.clone(),
    }
}

fn object(value: Value, resource: &Resource) -> Result<Object, Status> {
    let bytes = serde_json::to_vec(&value).map_err(|error| Status::internal(&error.to_string()))?;
    Object::parse(Bytes::from(bytes), resource.kind).map_err(|error| Status::bad_request(error.to_string()))
}

/// An object as a value, as it is stored.
pub(crate) fn without_version(object: &Object) -> Value {
    let mut value = object.to_value();
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("resourceVersion");
    }
    value
}
