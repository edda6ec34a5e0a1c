//! Creates: of an object that must not exist yet, in a namespace that is not being deleted.

use yurt_apimachinery::{Object, Status};
use yurt_storage::{Action, Durability, Expect, Op};

use super::{Failure, Intent, OwnStore, Write, published, store_key, wait_for_winner};
use crate::registry::Resource;

/// Outcome of a create.
pub(crate) enum CreateOutcome {
    /// The new object.
    Created(Object),
    /// An object with this key exists already.
    Exists,
    /// The namespace has changed or is gone since it was read: nothing was written.
    NamespaceChanged,
}

// === impl OwnStore ===

impl OwnStore {
    /// Creates an object that must not exist yet. If a `namespace` of the collection of namespaces is given, it must still
    /// be in this very state when the object is committed. So no object is created in a namespace after the deletion of
    /// the namespace has begun, also if another coordinator deletes it.
    ///
    /// # Errors
    /// The error to return.
    pub(crate) async fn create(
        &self,
        resource: &Resource,
        new: &Object,
        intent: &Intent,
        namespace: Option<(&Resource, &Object)>,
    ) -> Result<CreateOutcome, Status> {
        let key = new.key().clone();
        let exists = || resource.objects().read(|held| held.object(&key).is_some());
        if exists() {
            self.catch_up(resource).await?;
            if exists() {
                return Ok(CreateOutcome::Exists);
            }
        }
        let action = Action::Put(new.into(), Durability::Durable);
        let check = namespace.map(|(namespaces, held)| Op {
            key: store_key(namespaces, held.key()),
            expect: Expect::At(held.resource_version()),
            action: Action::Check,
        });
        let write = Write {
            resource,
            key: &key,
            old: None,
            new: Some(new),
            expect: Expect::Absent,
            action,
            check,
            is_conditional: false,
        };
        match self.write(write, intent).await {
            Ok(Some(rv)) => Ok(CreateOutcome::Created(published(resource, new.clone(), rv))),
            Ok(None) => Ok(CreateOutcome::Created(new.clone())),
            Err(Failure::Raced { key, found }) => match namespace {
                Some((namespaces, held)) if key == store_key(namespaces, held.key()) => {
                    wait_for_winner(namespaces, held.key(), found).await;
                    Ok(CreateOutcome::NamespaceChanged)
                }
                _ => Ok(CreateOutcome::Exists),
            },
            Err(Failure::Status(status)) => Err(status),
        }
    }
}
