//! Creates: of an object that must not exist yet, in a namespace that is not being deleted.

use std::sync::Arc;

use yurt_apimachinery::{Object, Status};
use yurt_storage::{Action, Durability, Expect, Op};

use super::{Failure, Intent, OwnStore, Write, published, store_key, wait_for_winner};
use crate::registry::Resource;

/// A namespace as it was read, and the collection of namespaces.
pub(crate) type Namespace = (Arc<Resource>, Object);

/// Maximum number of times that a create reads its namespace; each further time another write has changed it.
const NAMESPACE_READS_MAX: usize = 8;

// === impl OwnStore ===

impl OwnStore {
    /// Creates an object; `None` if one with its key exists already. `read_namespace` reads the namespace that the
    /// object requires, if it requires one, and refuses one that is being deleted. The namespace must still be in the
    /// state that was read when the object is committed, else it is read again. So no object is created in a namespace
    /// after the deletion of the namespace has begun, also if another coordinator deletes it.
    ///
    /// # Errors
    /// The error to return: also those of `read_namespace`, and 429 if the namespace changes too often.
    pub(crate) async fn create<F: Future<Output = Result<Option<Namespace>, Status>>>(
        &self,
        resource: &Resource,
        new: &Object,
        intent: &Intent,
        read_namespace: impl Fn() -> F,
    ) -> Result<Option<Object>, Status> {
        let exists = || resource.objects().read(|held| held.object(new.key()).is_some());
        if exists() {
            self.catch_up(resource).await?;
            if exists() {
                return Ok(None);
            }
        }
        for _ in 0..NAMESPACE_READS_MAX {
            let namespace = read_namespace().await?;
            let write = creation(resource, new, namespace.as_ref());
            let (raced, found) = match self.write(write, intent).await {
                Ok(Some(rv)) => return Ok(Some(published(resource, new.clone(), rv))),
                Ok(None) => return Ok(Some(new.clone())),
                Err(Failure::Status(status)) => return Err(status),
                Err(Failure::Raced { key, found }) => (key, found),
            };
            match namespace {
                Some((namespaces, read)) if raced == store_key(&namespaces, read.key()) => {
                    wait_for_winner(&namespaces, read.key(), found).await;
                    // The winner may have written through another coordinator.
                    self.catch_up(&namespaces).await?;
                }
                _ => return Ok(None),
            }
        }
        let why = format!("namespace {} changes too often", new.namespace().unwrap_or_default());
        Err(Status::too_many_requests(why, 1))
    }
}

/// Write of an object that must not exist yet, in a namespace that must not have changed.
fn creation<'a>(resource: &'a Resource, new: &'a Object, namespace: Option<&Namespace>) -> Write<'a> {
    Write {
        resource,
        key: new.key(),
        old: None,
        new: Some(new),
        expect: Expect::Absent,
        action: Action::Put(new.into(), Durability::Durable),
        check: namespace.map(|(namespaces, read)| Op {
            key: store_key(namespaces, read.key()),
            expect: Expect::At(read.resource_version()),
            action: Action::Check,
        }),
        is_conditional: false,
    }
}
