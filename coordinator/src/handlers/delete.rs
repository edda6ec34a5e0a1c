//! DELETE and DELETECOLLECTION: at once, or by marking an object that has finalizers.

use http::{Response, StatusCode};
use serde_json::Value;
use yurt_apimachinery::negotiation::{Shape, body_format};
use yurt_apimachinery::time::Time;
use yurt_apimachinery::{DeleteOptions, ListOptions, Object, ObjectKey, Status, meta};
use yurt_runtime::http::{self as web, Body};

use super::{Call, list, watch};
use crate::admission;
use crate::registry::own::{Change, Intent, Outcome, without_version};
use crate::registry::{Authority, Resource, namespaces};

/// Answers a delete.
///
/// # Errors
/// The answer to give.
pub(crate) async fn handle(call: &Call) -> Result<Response<Body>, Status> {
    let negotiated = call.negotiate(Shape::Object)?;
    let options = options(call)?;
    let intent = call.intent(None, options.dry_run);
    if call.resource.name == "namespaces" {
        empty_namespace(call, &intent).await?;
    }
    let outcome = delete(call, &call.resource, &call.key(), &options, &intent).await?;
    match outcome {
        Outcome::Deleted(object) if !call.resource.kind.delete_returns_object => {
            let resource = call.resource.kind.group_resource();
            let status = Status::success_deleted(&resource, object.name(), object.uid());
            Ok(web::json(
                StatusCode::OK,
                super::finish(status.to_json(), negotiated.pretty),
            ))
        }
        Outcome::Deleted(object) | Outcome::Changed(object) | Outcome::Unchanged(object) => {
            Ok(call.object(StatusCode::OK, &object, negotiated))
        }
    }
}

/// Answers a deletecollection: every item the selectors match, in key order; items gone meanwhile are ignored.
///
/// # Errors
/// The answer to give.
pub(crate) async fn handle_collection(call: &Call) -> Result<Response<Body>, Status> {
    let selection = ListOptions::parse(call.query.as_deref(), false, call.resource.kind)?;
    let negotiated = call.negotiate(Shape::List)?;
    let options = options(call)?;
    let intent = call.intent(None, options.dry_run);
    let snapshot = call.resource.objects().read(|held| held.snapshot(call.namespace()));
    let selected = watch::selection(call, &selection);
    let objects: Vec<Object> = snapshot
        .objects
        .into_iter()
        .filter(|object| selected.matches(object))
        .collect();
    for object in &objects {
        match delete(call, &call.resource, object.key(), &options, &intent).await {
            Ok(_) => {}
            Err(status) if status.is_not_found() => {}
            Err(status) => return Err(status),
        }
    }
    Ok(list::encode(call, &objects, snapshot.position, negotiated))
}

fn options(call: &Call) -> Result<DeleteOptions, Status> {
    if !call.body.is_empty() {
        body_format(call.header(http::header::CONTENT_TYPE))?;
    }
    DeleteOptions::parse(call.query.as_deref(), &call.body)
}

async fn delete(
    call: &Call,
    resource: &Resource,
    key: &ObjectKey,
    options: &DeleteOptions,
    intent: &Intent,
) -> Result<Outcome, Status> {
    let is_conditional = options.preconditions.resource_version.is_some();
    let now = Time::from_unix(call.app.clock.unix().secs);
    let change = |current: &Object| {
        check_preconditions(resource, current, options)?;
        admission::delete(call, resource, current)?;
        let last = without_version(current);
        if meta::finalizers(&last).is_empty() {
            return Ok(Change::Delete { last, is_conditional });
        }
        if current.is_deleting() {
            return Ok(Change::Keep);
        }
        Ok(Change::Put {
            new: mark(last, now),
            is_conditional,
        })
    };
    call.app.own.update(resource, key, intent, change).await
}

/// The object waits for those who put finalizers on it.
fn mark(mut object: Value, now: Time) -> Value {
    meta::set_deletion(&mut object, now, 0);
    let generation = meta::generation(&object);
    if generation > 0 {
        meta::set_generation(&mut object, generation + 1);
    }
    object
}

fn check_preconditions(resource: &Resource, current: &Object, options: &DeleteOptions) -> Result<(), Status> {
    let wanted = &options.preconditions;
    let conflict = |what: &str, wanted: &str, found: &str| {
        let why = format!(
            "the {what} in the precondition ({wanted}) does not match the {what} in record ({found}). The object might \
             have been deleted and then recreated"
        );
        Err(Status::conflict(&resource.kind.group_resource(), current.name(), &why))
    };
    if let Some(uid) = wanted.uid.as_deref().filter(|uid| *uid != current.uid()) {
        return conflict("UID", uid, current.uid());
    }
    let version = current.resource_version().to_string();
    if let Some(wanted) = wanted.resource_version.as_deref().filter(|wanted| *wanted != version) {
        return conflict("ResourceVersion", wanted, &version);
    }
    Ok(())
}

/// Deletes what is in a namespace before the namespace itself: nobody else would.
async fn empty_namespace(call: &Call, intent: &Intent) -> Result<(), Status> {
    let name = call.name();
    if namespaces::IMMORTAL.contains(&name) {
        let resource = call.resource.kind.group_resource();
        return Err(Status::forbidden_because(
            &resource,
            name,
            "this namespace may not be deleted",
        ));
    }
    if call.resource.objects().read(|held| held.object(&call.key()).is_none()) {
        return Ok(());
    }
    let own = |resource: &&std::sync::Arc<Resource>| {
        resource.kind.namespaced && matches!(resource.authority, Authority::Own(_))
    };
    for resource in call.app.registry.iter().filter(own) {
        for object in resource.objects().read(|held| held.snapshot(Some(name))).objects {
            match delete(call, resource, object.key(), &DeleteOptions::default(), intent).await {
                Ok(_) => {}
                Err(status) if status.is_not_found() => {}
                Err(status) => return Err(status),
            }
        }
    }
    Ok(())
}
