//! Writes of own objects: compare-and-write in a loop, with the lease guard and the epoch record where they apply.
//!
//! Values are stored without resourceVersion; the RV of an object is that of the commit that wrote it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use yurt_apimachinery::{Object, ObjectKey, ResourceVersion, Status, meta};
use yurt_pool_protocol::fence::Fence;
use yurt_pool_protocol::guard::{Author, Caller, Guard};
use yurt_pool_protocol::names::ELECTION_KEY;
use yurt_runtime::Clock;
use yurt_storage::{Action, Expect, Op, Storage, StorageError};

use super::{Authority, Resource, leases};
use crate::feed::members::Members;
use crate::status_error;

mod create;
mod current;
#[cfg(test)]
pub(crate) mod fake_storage;
mod guarded;
mod lease_turns;
mod room;
mod shares;

pub(crate) use create::Namespace;
pub(crate) use current::Current;
use lease_turns::LeaseTurns;
pub(crate) use room::Room;
pub(crate) use shares::Shares;

/// Writes own objects.
pub(crate) struct OwnStore {
    storage: Arc<dyn Storage>,
    fence: Arc<Fence>,
    guard: Arc<Guard>,
    /// Serializes guarded writes of one lease: the guard records a write before it judges the next one.
    lease_turns: LeaseTurns,
    /// True if other coordinators write to the same store: objects published here may lag behind the writes
    /// acknowledged there.
    is_shared: bool,
    /// Members that may hold the election lease; any caller in profile standalone.
    electorate: Option<Arc<Members>>,
    clock: Clock,
    object_bytes_max: usize,
    /// Limits of everything together; none in a standalone control plane.
    room: Option<Room>,
}

/// The writer of a request and its options.
#[derive(Clone, Debug)]
pub(crate) struct Intent {
    /// Author of the write.
    pub(crate) author: Author,
    /// Right by which the caller writes.
    pub(crate) caller: Caller,
    /// True if nothing is to be stored.
    pub(crate) dry_run: bool,
    /// Bytes of the body, which is parsed again at each attempt.
    pub(crate) body_bytes: usize,
    /// True for an apply: it has to keep its managed fields.
    pub(crate) is_apply: bool,
}

/// Requested change of an object.
pub(crate) enum Change {
    /// This state, without resourceVersion.
    Put {
        /// New state.
        new: Value,
        /// True if the request names the RV it is based on: the caller resolves a conflict.
        is_conditional: bool,
    },
    /// Deletes the object.
    Delete {
        /// The state that ended it, without resourceVersion, when it differs from the stored one. Its writer gets this
        /// state; watchers get the stored one.
        last: Option<Value>,
        /// As for `Put`.
        is_conditional: bool,
    },
    /// Leaves the object unchanged.
    Keep,
}

/// Result of a change.
#[derive(Clone, Debug)]
pub(crate) enum ChangeOutcome {
    /// Nothing was written; the present object.
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
    /// Second precondition of the transaction.
    check: Option<Op>,
    is_conditional: bool,
}

enum Failure {
    /// Another write was committed first; `found` is the present RV of this key of the store.
    Raced {
        key: String,
        found: Option<ResourceVersion>,
    },
    Status(Status),
}

/// Author of objects that the coordinator writes itself.
const SELF: &str = "system:yurt-coordinator";
/// Maximum number of attempts of a patch without resourceVersion that loses conflicts. Each round has one winner, so
/// this many can race without an error; an attempt costs microseconds.
const ATTEMPTS_MAX: usize = 200;
/// Attempts that every write gets, at any size; as many as kube-apiserver's patches.
const ATTEMPTS_LEAST: usize = 5;
/// Maximum bytes of bodies and objects that the attempts of one request may read.
const ATTEMPTED_BYTES_MAX: usize = 16 << 20;
/// Longest wait for the winner of a conflict: its commit is published within this time, or has failed.
const PUBLISH_WAIT: Duration = Duration::from_secs(1);

// === impl Intent ===

impl Intent {
    /// Intent of the coordinator's own writes: never a dry run.
    pub(crate) fn of_coordinator() -> Self {
        Self {
            author: Author {
                user: SELF.to_owned(),
                manager: None,
            },
            caller: Caller::Other,
            dry_run: false,
            body_bytes: 0,
            is_apply: false,
        }
    }
}

// === impl OwnStore ===

impl OwnStore {
    /// Guard of the elections.
    pub(crate) fn guard(&self) -> &Guard {
        &self.guard
    }

    /// True if other coordinators write to the same store, an etcd.
    pub(crate) fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Writes to `storage`. The election is that of `fence`; only nodes of the `electorate` may win it.
    pub(crate) fn new(
        storage: Arc<dyn Storage>,
        fence: Arc<Fence>,
        guard: Arc<Guard>,
        electorate: Option<Arc<Members>>,
        clock: Clock,
    ) -> Self {
        let election = fence.election();
        if let Some(owner) = election.owner {
            guard.restore(ELECTION_KEY, &election.holder, owner);
        }
        let is_shared = storage.caught_up().is_some();
        Self {
            is_shared,
            storage,
            fence,
            guard,
            lease_turns: LeaseTurns::default(),
            electorate,
            clock,
            object_bytes_max: usize::MAX,
            room: None,
        }
    }

    /// Adds limits: bytes of one stored object, and of all objects together.
    pub(crate) fn with_limits(self, object_bytes_max: usize, room: Option<Room>) -> Self {
        Self {
            object_bytes_max,
            room,
            ..self
        }
    }

    /// Waits until every acknowledged write is published here, also those of other coordinators over the same store.
    ///
    /// # Errors
    /// 503 when the store does not answer, or cannot be followed.
    pub(crate) async fn catch_up(&self, resource: &Resource) -> Result<(), Status> {
        let Authority::Own(objects) = &resource.authority else {
            return Ok(());
        };
        if let Some(reached) = self.storage.caught_up() {
            let rv = reached.await.map_err(|error| status_error::of_storage_read(&error))?;
            objects.store_reached(rv);
        }
        objects.catch_up().await;
        Ok(())
    }

    /// Changes an existing object: reads it, lets `change` decide, and writes. Starts over after a conflict.
    ///
    /// # Errors
    /// 404 when it does not exist, 409 when a conditional change lost a race, and the errors of `change`.
    pub(crate) async fn update(
        &self,
        resource: &Resource,
        key: &ObjectKey,
        intent: &Intent,
        mut change: impl FnMut(&Current) -> Result<Change, Status>,
    ) -> Result<ChangeOutcome, Status> {
        let group_resource = resource.kind.group_resource();
        // A write proves that it was based on the present state; a refusal, or an unchanged object, has to be checked
        // twice.
        let mut is_current = !self.is_shared;
        let mut bytes = 0;
        for attempt in 0..ATTEMPTS_MAX {
            let current = resource.objects().read(|held| held.object(key).cloned());
            bytes += intent.body_bytes + current.as_ref().map_or(0, Object::size);
            if !may_attempt(attempt, bytes) {
                break;
            }
            let current = current.map(|object| Current::new(object, resource));
            let decided = match current {
                None => Err(Status::not_found(&group_resource, key.name())),
                Some(current) => change(&current).map(|change| (current, change)),
            };
            let (current, change) = match decided {
                Ok(decided) => decided,
                Err(status) if is_current => return Err(status),
                Err(_) => {
                    self.catch_up(resource).await?;
                    is_current = true;
                    continue;
                }
            };
            let is_conditional = match &change {
                Change::Put { is_conditional, .. } | Change::Delete { is_conditional, .. } => *is_conditional,
                Change::Keep => false,
            };
            match self.try_change(resource, &current, change, intent).await {
                Ok(ChangeOutcome::Unchanged(_)) if !is_current => {
                    self.catch_up(resource).await?;
                    is_current = true;
                }
                Ok(outcome) => return Ok(outcome),
                Err(Failure::Status(status)) => return Err(status),
                Err(Failure::Raced { .. }) if is_conditional => break,
                Err(Failure::Raced { found, .. }) => wait_for_winner(resource, key, found).await,
            }
        }
        Err(Status::conflict_modified(&group_resource, key.name()))
    }

    /// Deletes an object if it is still in this very state. Returns true if it did.
    pub(crate) async fn delete_unchanged(&self, resource: &Resource, object: Object, intent: &Intent) -> bool {
        let change = Change::Delete {
            last: None,
            is_conditional: true,
        };
        let current = Current::new(object, resource);
        self.try_change(resource, &current, change, intent).await.is_ok()
    }

    async fn try_change(
        &self,
        resource: &Resource,
        current: &Current,
        change: Change,
        intent: &Intent,
    ) -> Result<ChangeOutcome, Failure> {
        let expect = Expect::At(current.resource_version());
        let (old, key): (Option<&Object>, _) = (Some(current), current.key());
        let unchanged = || ChangeOutcome::Unchanged(Object::clone(current));
        match change {
            Change::Keep => Ok(unchanged()),
            Change::Put { new, is_conditional } => {
                let before = current.stored();
                if *before == new {
                    self.judge_repeat(resource, current, is_conditional, intent)?;
                    return Ok(unchanged());
                }
                let durability = resource.strategy.durability(before, &new);
                let new = self.fitting(new, resource, intent).map_err(Failure::Status)?;
                if new.key() != key {
                    let message = "the name of the object does not match the name on the URL";
                    return Err(Failure::Status(Status::bad_request(message)));
                }
                let action = Action::Put((&new).into(), durability);
                let write = Write {
                    resource,
                    key,
                    old,
                    new: Some(&new),
                    expect,
                    action,
                    check: None,
                    is_conditional,
                };
                Ok(ChangeOutcome::Changed(match self.write(write, intent).await? {
                    Some(rv) => published(resource, new, rv),
                    // The result of a dry run: readers have the old state, at this very RV.
                    None => new.with_resource_version(current.resource_version()),
                }))
            }
            Change::Delete { last, is_conditional } => {
                let stored = object(current.stored().clone(), resource).map_err(Failure::Status)?;
                let last = match last {
                    Some(last) => object(last, resource).map_err(Failure::Status)?,
                    None => stored.clone(),
                };
                let action = Action::Delete { last: (&stored).into() };
                let write = Write {
                    resource,
                    key,
                    old,
                    new: None,
                    expect,
                    action,
                    check: None,
                    is_conditional,
                };
                let rv = self.write(write, intent).await?.unwrap_or(current.resource_version());
                Ok(ChangeOutcome::Deleted(last.with_resource_version(rv)))
            }
        }
    }

    /// An object as it is stored. One that is too large is stored without its managed fields, as by kube-apiserver.
    ///
    /// # Errors
    /// As [`object`].
    pub(crate) fn fitting(&self, value: Value, resource: &Resource, intent: &Intent) -> Result<Object, Status> {
        let whole = object(value, resource)?;
        if whole.bytes().len() <= self.object_bytes_max || intent.dry_run || intent.is_apply {
            return Ok(whole);
        }
        let mut value = without_version(&whole);
        meta::metadata_mut(&mut value).remove("managedFields");
        object(value, resource)
    }

    /// Writes, with the guard where required; `None` for a dry run.
    async fn write(&self, write: Write<'_>, intent: &Intent) -> Result<Option<ResourceVersion>, Failure> {
        let bytes = write.new.map_or(0, |new| new.bytes().len());
        if bytes > self.object_bytes_max && !intent.dry_run {
            let why = format!(
                "the object has {bytes} bytes as it is stored, limit is {}",
                self.object_bytes_max
            );
            return Err(Failure::Status(Status::too_large(&why)));
        }
        self.require_room(&write, intent).map_err(Failure::Status)?;
        if leases::is_guarded(write.resource, write.key) {
            return self.write_guarded(write, intent).await;
        }
        self.count(&write, intent).map_err(Failure::Status)?;
        if intent.dry_run {
            return Ok(None);
        }
        self.commit(ops(write)).await.map(Some)
    }

    async fn commit(&self, ops: Vec<Op>) -> Result<ResourceVersion, Failure> {
        self.storage.write(ops).await.map_err(|error| match error {
            StorageError::Conflict { key, found } => Failure::Raced { key, found },
            other => Failure::Status(status_error::of_storage(&other)),
        })
    }
}

// === impl ChangeOutcome ===

impl ChangeOutcome {
    /// The object after the change, or its last state.
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

/// True if a write gets another attempt, after so many attempts that have read so many bytes.
fn may_attempt(attempts: usize, bytes: usize) -> bool {
    attempts < ATTEMPTS_LEAST || bytes <= ATTEMPTED_BYTES_MAX
}

/// The object written at `rv` as readers get it, if it is still there.
fn published(resource: &Resource, written: Object, rv: ResourceVersion) -> Object {
    let held = resource.objects().read(|held| held.object(written.key()).cloned());
    let held = held.filter(|held| held.resource_version() == rv);
    held.unwrap_or_else(|| written.with_resource_version(rv))
}

/// Waits until the winner of a conflict is published: the next attempt has to see its state.
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
    // A winner whose commit failed is never published: the old state remains and the attempt is repeated.
    let _ = tokio::time::timeout(PUBLISH_WAIT, published).await;
}

/// The operations of a write, in one transaction.
fn ops(write: Write<'_>) -> Vec<Op> {
    let op = Op {
        key: store_key(write.resource, write.key),
        expect: write.expect,
        action: write.action,
    };
    std::iter::once(op).chain(write.check).collect()
}

fn store_key(resource: &Resource, key: &ObjectKey) -> String {
    format!("/{}/{key}", resource.name)
}

/// An object as it is stored.
///
/// # Errors
/// 400 for a value that is no object of the kind.
pub(crate) fn object(value: Value, resource: &Resource) -> Result<Object, Status> {
    Object::from_value(value, resource.stored_kind()).map_err(|error| Status::bad_request(error.to_string()))
}

/// An object as a value, as it is stored.
fn without_version(object: &Object) -> Value {
    let mut value = object.to_value();
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("resourceVersion");
    }
    value
}

#[cfg(test)]
mod tests {
    use super::fake_storage::FakeStorage;
    use super::*;
    use crate::lease_objects::RESOURCE;

    #[test]
    fn large_writes_are_repeated_a_few_times_and_small_ones_often() {
        let attempts = |bytes: usize| {
            (0..ATTEMPTS_MAX)
                .take_while(|at| may_attempt(*at, (at + 1) * bytes))
                .count()
        };
        assert_eq!(attempts(3 << 20), 5);
        assert_eq!(attempts(512 << 10), 32);
        assert_eq!(attempts(2 << 10), ATTEMPTS_MAX);
    }

    #[tokio::test]
    async fn refused_read_does_not_say_that_reads_go_on() {
        let away = || StorageError::Unavailable("etcdserver: no leader".into());
        let storage = FakeStorage {
            write: Box::new(move |_| Box::pin(std::future::ready(Err(away())))),
            caught_up: Box::new(move || Err(away())),
        };
        let (own, registry) = storage.open();
        let leases = registry.find(RESOURCE.0, RESOURCE.1).expect("a built-in kind");
        let refused = own.catch_up(leases).await.expect_err("the store is away");
        assert_eq!((refused.code(), refused.retry_after()), (503, Some(5)));
        let why = "the server's store is not available: its present state is unknown (etcdserver: no leader)";
        assert_eq!(refused.message(), why);
    }

    /// The deletion of a namespace may begin at any time before the commit, also at another coordinator.
    #[tokio::test]
    async fn object_is_created_only_in_a_namespace_as_it_was_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let data_dir = format!("--data-dir={}", folder.path().display());
        let args = [
            "yurt-coordinator",
            "--profile=standalone",
            "--bind-address=127.0.0.1",
            "--secure-port=0",
            &data_dir,
        ];
        let config = crate::config::Config::parse(args).expect("valid flags");
        let coordinator = crate::build(config).await.expect("a coordinator");
        let app = &coordinator.app;
        let served = app.served();
        let find = |name| served.registry.find("", name).expect("a built-in kind");
        let (namespaces, config_maps) = (find("namespaces"), find("configmaps"));
        let key = ObjectKey::new(None, "default");
        let namespace = || {
            namespaces
                .objects()
                .read(|held| held.object(&key).cloned())
                .expect("a namespace")
        };
        let intent = Intent::of_coordinator();
        // The first reads of the namespace return `stale`, further ones its present state. Returns the number of reads,
        // too.
        let create = async |name: &str, stale: &Object, stale_reads: usize| {
            let value = serde_json::json!({"metadata": {"namespace": "default", "name": name, "uid": "u"}});
            let new = object(value, config_maps).expect("an object");
            let reads = std::cell::Cell::new(0);
            let read = || {
                reads.set(reads.get() + 1);
                let read = if reads.get() > stale_reads {
                    namespace()
                } else {
                    stale.clone()
                };
                std::future::ready(match read.is_deleting() {
                    true => Err(Status::bad_request("terminating")),
                    false => Ok(Some((namespaces.clone(), read))),
                })
            };
            let created = app.own.create(config_maps, &new, &intent, read).await;
            let created = created.map(|created| created.is_some());
            (created.map_err(|refused| refused.code()), reads.get())
        };
        let change = async |name: &str, value: Value| {
            let changed = |current: &Current| {
                let mut new = current.stored().clone();
                new["metadata"][name] = value.clone();
                Ok(Change::Put {
                    new,
                    is_conditional: false,
                })
            };
            let changed = app.own.update(namespaces, &key, &intent, changed).await;
            changed.expect("a changed namespace");
        };

        let read = namespace();
        assert_eq!(create("early", &read, 1).await, (Ok(true), 1));
        change("labels", serde_json::json!({"a": "b"})).await;
        assert_eq!(create("repeated", &read, 1).await, (Ok(true), 2));
        assert_eq!(create("repeated", &read, 1).await, (Ok(false), 0));
        let (refused, reads) = create("refused", &read, usize::MAX).await;
        assert!(refused == Err(429) && reads > 1);
        let read = namespace();
        change("deletionTimestamp", "2026-01-01T00:00:00Z".into()).await;
        assert_eq!(create("late", &read, 1).await, (Err(400), 2));
        let is_held = |name: &str| {
            let key = ObjectKey::new(Some("default"), name);
            config_maps.objects().read(|held| held.object(&key).is_some())
        };
        assert!(is_held("early") && is_held("repeated") && !is_held("refused") && !is_held("late"));
    }
}
