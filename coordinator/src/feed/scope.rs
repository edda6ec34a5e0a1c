//! Resources that the pool shares: those of the command line, and those that the leader sent.
//!
//! The leader's resources are a record of the store. It outlives a restart and reaches the other coordinators of an
//! etcd. The record is written in a transaction that also compares the epoch record; only the present leader changes
//! it. Over etcd the transaction also deletes the data of every resource that enters or leaves the scope.

use std::sync::Arc;

use serde::Deserialize;
use tokio::sync::watch;
use yurt_apimachinery::Status;
use yurt_pool_protocol::feed::{Refusal, ScopeStatus, decode};
use yurt_pool_protocol::fence::Claim;
use yurt_pool_protocol::members;
use yurt_pool_protocol::pool_scope::{Problem, RESOURCES_MAX, SharedResource};
use yurt_storage::kinds::Kinds;
use yurt_storage::{Action, Durability, Expect, Op, StorageError};

use super::collection::PoolCollection;
use super::fence;
use super::{Feed, FeedError};
use crate::authn::User;
use crate::status_error;

/// Storage key of the record. `~` keeps it apart from every collection.
pub(crate) const SCOPE_KEY: &str = "/~scope/pool";

/// Resources that the pool shares; see the module header.
#[derive(Debug)]
pub(crate) struct Scope {
    /// Resources of the command line.
    configured: Vec<SharedResource>,
    /// Resources sent by the leader; `None` until the first call.
    told: watch::Sender<Option<Vec<SharedResource>>>,
    /// Names of unshared resources whose data the file still has.
    leftovers: parking_lot::Mutex<Vec<String>>,
    /// Serializes changes.
    changing: tokio::sync::Mutex<()>,
    /// Serializes calls.
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// `POST scope`: all shared resources in addition to those every pool shares.
#[derive(Debug, Deserialize)]
struct ScopeCall {
    store: String,
    epoch: u64,
    resources: Vec<SharedResource>,
}

/// Result of a leader's `scope` call.
pub(crate) struct ScopeChange {
    /// Rejected resources.
    pub(crate) refused: Vec<Problem>,
    /// Names of collections that are no longer shared.
    pub(crate) gone: Vec<String>,
}

// === impl Scope ===

impl Scope {
    /// The scope of a coordinator that has `configured` by its command line, before the store is read.
    pub(crate) fn new(configured: &[Arc<PoolCollection>]) -> Self {
        let shared = configured.iter().filter(|one| one.name() != members::COLLECTION);
        Self {
            configured: shared.map(|one| SharedResource::of(one.objects().kind())).collect(),
            told: watch::Sender::default(),
            leftovers: parking_lot::Mutex::default(),
            changing: tokio::sync::Mutex::default(),
            turn: Arc::default(),
        }
    }

    /// Follows the record in the store; `None` leaves the scope unset.
    pub(crate) fn published(&self, record: Option<&[u8]>) {
        let Some(record) = record else { return };
        match serde_json::from_slice::<Vec<SharedResource>>(record) {
            Ok(told) => {
                let may_be_shared = |one: &SharedResource| one.check().is_ok();
                let told = told.into_iter().filter(may_be_shared).collect();
                drop(self.told.send_replace(Some(told)));
            }
            Err(error) => {
                tracing::error!(%error, "Failed to read the record of pool-scope resources, keeping the present ones")
            }
        }
    }

    /// Resolves when the leader sends another scope, also through another coordinator.
    pub(crate) fn changes(&self) -> watch::Receiver<Option<Vec<SharedResource>>> {
        self.told.subscribe()
    }

    /// Resolves when no other change of the collections runs.
    ///
    /// # Cancel safety
    /// Safe: a dropped future loses only its place in the queue.
    pub(super) async fn changing(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.changing.lock().await
    }

    /// Resolves when no other call runs.
    ///
    /// # Cancel safety
    /// Safe: a dropped future loses only its place in the queue.
    pub(crate) async fn turn(&self) -> tokio::sync::OwnedMutexGuard<()> {
        self.turn.clone().lock_owned().await
    }

    /// The scope in the answer to `GET` of the feed.
    pub(super) fn state(&self) -> ScopeStatus {
        ScopeStatus {
            configured: self.configured.clone(),
            told: self.told.borrow().clone(),
        }
    }

    /// Resources sent by the leader that are not on the command line.
    fn added(&self) -> Vec<SharedResource> {
        let told = self.told.borrow().clone().unwrap_or_default();
        let is_new = |one: &SharedResource| self.configured.iter().all(|other| other.name() != one.name());
        told.into_iter().filter(is_new).collect()
    }

    /// Names that leave and names that enter the scope if `after` follows `before`. Those of the command line do
    /// neither.
    fn moved(&self, before: &[SharedResource], after: &[SharedResource]) -> (Vec<String>, Vec<String>) {
        let is_in = |all: &[SharedResource], name: &str| all.iter().any(|one| one.name() == name);
        let without = |all: &[SharedResource], others: &[SharedResource]| {
            let names = all.iter().map(SharedResource::name);
            names
                .filter(|name| !is_in(others, name) && !is_in(&self.configured, name))
                .collect()
        };
        (without(before, after), without(after, before))
    }
}

// === impl Feed ===

impl Feed {
    /// Resources that the pool shares.
    pub(crate) fn scope(&self) -> &Scope {
        &self.scope
    }

    /// Accepts the leader's resources, except those that `judge` refuses, and makes them durable.
    ///
    /// # Errors
    /// [`FeedError`]; nothing has changed then.
    pub(crate) async fn take_scope(
        &self,
        user: &User,
        body: &[u8],
        judge: impl Fn(&SharedResource) -> Result<(), String>,
    ) -> Result<ScopeChange, FeedError> {
        let ScopeCall {
            store,
            epoch,
            resources,
        } = decode(body)?;
        if resources.len() > RESOURCES_MAX {
            return Err(Status::bad_request(format!("at most {RESOURCES_MAX} resources can be shared")).into());
        }
        if self.members.on_trust() {
            let message = "the first feed call must be a snapshot of members".to_owned();
            return Err(Refusal::Members { message }.into());
        }
        let (mut taken, mut refused): (Vec<SharedResource>, Vec<Problem>) = Default::default();
        for resource in resources {
            let entry = resource.name();
            match resource.check().and_then(|()| judge(&resource)) {
                Ok(()) if taken.iter().any(|other| other.name() == entry) => {}
                Ok(()) => taken.push(resource),
                Err(why) => refused.push(Problem { entry, why }),
            }
        }
        let claim = Claim { store, epoch };
        let guard = {
            let election = self.fence.enter(&claim, user.node_name()).map_err(|_| self.fenced())?;
            fence::guard(&election)
        };
        let before = self.scope.told.borrow().clone();
        let (gone, new) = self.scope.moved(before.as_deref().unwrap_or_default(), &taken);
        // An earlier deletion may have failed, or a coordinator may have ended before it.
        let moved = gone.iter().chain(&new);
        let deletions: Vec<Op> = moved.filter_map(|name| self.replicas.deletion(name)).collect();
        let told = ScopeChange { refused, gone };
        if before.as_ref() == Some(&taken) {
            return Ok(told);
        }
        let record = serde_json::to_vec(&taken).map_err(|error| Status::internal(&error.to_string()))?;
        let put = Op {
            key: SCOPE_KEY.to_owned(),
            expect: Expect::Any,
            action: Action::Put(bytes::Bytes::from(record).into(), Durability::Durable),
        };
        let ops = guard.into_iter().chain([put]).chain(deletions);
        match self.storage.write(ops.collect()).await {
            Ok(_) => Ok(told),
            Err(StorageError::Conflict { key, .. }) if key == fence::EPOCH_KEY => Err(self.fenced().into()),
            Err(error) => Err(status_error::of_storage(&error).into()),
        }
    }

    /// Creates and removes collections so that they match the shared resources, and calls `serve` to show them to
    /// readers.
    ///
    /// # Errors
    /// Reason for which one could not be created or removed; a repetition continues with it.
    pub(crate) async fn follow_scope(&self, kinds: &Kinds, serve: impl Fn()) -> Result<(), String> {
        let _one = self.scope.changing().await;
        let (mut wanted, mut failed) = (Vec::new(), Vec::new());
        for resource in self.scope.added() {
            match kinds.shared(&resource.custom_kind()) {
                Ok(kind) => wanted.push(kind),
                Err(error) => failed.push(format!("{}: {error}", resource.name())),
            }
        }
        let told = self.collections().filter(|collection| collection.is_from_leader());
        let stays = |one: &Arc<PoolCollection>| wanted.iter().any(|kind| std::ptr::eq(*kind, one.objects().kind()));
        for one in told.filter(|one| !stays(one)) {
            let name = one.name();
            match self.replicas.remove(name).await {
                Ok(()) => {
                    tracing::info!(collection = name, "Collection removed from pool scope");
                    self.collections.remove(name);
                }
                Err(error) => failed.push(format!("{name}: its data could not be deleted: {error}")),
            }
        }
        let leftovers = self.forget_leftovers().await;
        for kind in wanted {
            let name = kind.group_resource().to_string();
            let is_left = leftovers.iter().any(|(left, _)| *left == name);
            if is_left || self.collections.named(&name).is_some() {
                continue;
            }
            match self.replicas.add(&name, kind).await {
                Ok(replica) => {
                    tracing::info!(collection = name, "Collection added to pool scope");
                    let feeders = self.voids.feeders(&name);
                    let collection = PoolCollection::from_leader(replica).with_feeders(feeders);
                    self.voids.apply(&collection);
                    self.collections.insert(collection);
                }
                Err(error) => failed.push(format!("{name}: {error}")),
            }
        }
        let of_leftover = |(name, why)| format!("{name}: its old data could not be deleted: {why}");
        failed.extend(leftovers.into_iter().map(of_leftover));
        serve();
        match failed.is_empty() {
            true => Ok(()),
            false => Err(failed.join(", ")),
        }
    }

    /// Finds what the file has of resources that are not shared, before a leader shares one again: the disk may have
    /// failed when the resource left the scope, and its old data would be served. Blocks.
    ///
    /// # Errors
    /// [`StorageError`].
    pub(crate) fn find_leftovers(&self) -> Result<(), StorageError> {
        let added = self.scope.added();
        let keeps = |name: &str| added.iter().any(|resource| resource.name() == name);
        *self.scope.leftovers.lock() = self.replicas.leftovers(keeps)?;
        Ok(())
    }

    /// Deletes what [`Self::find_leftovers`] found. Returns the names whose data is still there, with reasons.
    async fn forget_leftovers(&self) -> Vec<(String, String)> {
        let found = std::mem::take(&mut *self.scope.leftovers.lock());
        let mut failed = Vec::new();
        for name in found {
            let (replicas, one) = (self.replicas.clone(), name.clone());
            let forgotten = tokio::task::spawn_blocking(move || replicas.forget_stored(&one)).await;
            let why = match forgotten {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => error.to_string(),
                Err(lost) => lost.to_string(),
            };
            self.scope.leftovers.lock().push(name.clone());
            failed.push((name, why));
        }
        failed
    }

    /// Deletes the data of removed collections that several coordinators share.
    pub(crate) async fn forget(&self, names: &[String]) {
        for name in names {
            if let Err(error) = self.replicas.forget(name, None).await {
                tracing::warn!(%error, collection = name, "Failed to delete the data of a resource that is no longer shared");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(name: &str) -> SharedResource {
        let fields = serde_json::json!({
            "group": "example.com", "version": "v1", "resource": name, "singular": name,
            "kind": name, "listKind": format!("{name}List"), "namespaced": true,
        });
        serde_json::from_value(fields).unwrap()
    }

    #[test]
    fn resources_of_the_command_line_neither_enter_nor_leave_the_scope() {
        let scope = Scope {
            configured: vec![resource("a")],
            ..Scope::new(&[])
        };
        let all = |names: &[&str]| names.iter().map(|name| resource(name)).collect::<Vec<_>>();
        let moved = |before, after| scope.moved(&all(before), &all(after));
        let names = |names: &[&str]| {
            names
                .iter()
                .map(|name| format!("{name}.example.com"))
                .collect::<Vec<_>>()
        };
        assert_eq!(moved(&["a", "b", "c"], &["c", "d"]), (names(&["b"]), names(&["d"])));
        assert_eq!(moved(&["c"], &["a", "c"]), (names(&[]), names(&[])));
    }
}
