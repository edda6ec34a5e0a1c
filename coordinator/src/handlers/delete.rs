//! DELETE and DELETECOLLECTION. An object is deleted directly, or marked while another component has to finish with it:
//! the owner of a finalizer, the kubelet of a pod, the emptier of a namespace.
//!
//! The direct deletion of a pod is two commits. A delete of an object that is left between them completes it.
//!
//! `propagationPolicy` is accepted and has no effect: without a garbage collector, its finalizer would never be
//! removed.

use http::{HeaderValue, Response, StatusCode};
use serde_json::Value;
use yurt_apimachinery::time::Time;
use yurt_apimachinery::{DeleteOptions, GroupResource, ListOptions, Object, ObjectKey, ResourceVersion, Status, meta};
use yurt_codec::negotiation::{Shape, body_format, body_json};
use yurt_runtime::http::{self as web, Body};
use yurt_storage::serve;

use super::{list, watch};
use crate::admission;
use crate::app::App;
use crate::registry::own::{Change, ChangeOutcome, Current, Intent};
use crate::registry::strategy::Strategy;
use crate::registry::{Resource, namespaces};
use crate::request::Call;

/// Answers a delete.
///
/// # Errors
/// The error to return.
pub(crate) async fn handle(call: &Call) -> Result<Response<Body>, Status> {
    let negotiated = call.negotiate(Shape::Object)?;
    let options = options(call)?;
    let intent = call.intent(None, options.dry_run);
    let outcome = if call.resource.name == namespaces::COLLECTION {
        delete_namespace(call, &options, &intent).await?
    } else {
        delete(&call.app, &call.resource, &call.key(), &options, &intent, &judge(call)).await?
    };
    match outcome {
        ChangeOutcome::Deleted(object) if !call.resource.kind.delete_returns_object => {
            let resource = call.resource.kind.group_resource();
            let status = Status::success_deleted(&resource, object.name(), object.uid());
            let content_type = HeaderValue::from_static(negotiated.format.content_type());
            let body = negotiated.status(&status);
            Ok(web::respond(StatusCode::OK, content_type, web::full(body)))
        }
        ChangeOutcome::Deleted(object) | ChangeOutcome::Changed(object) | ChangeOutcome::Unchanged(object) => {
            call.object(StatusCode::OK, &object, negotiated)
        }
    }
}

/// Answers a deletecollection: every item the selectors match, in key order; items that are already deleted are
/// skipped.
///
/// # Errors
/// The error to return.
pub(crate) async fn handle_collection(call: &Call) -> Result<Response<Body>, Status> {
    let list_options = ListOptions::parse(call.query.as_deref(), false, call.resource.kind)?;
    let negotiated = call.negotiate(Shape::List)?;
    let options = options(call)?;
    let intent = call.intent(None, options.dry_run);
    let selection = watch::selection(call, &list_options);
    call.catch_up(list_options.resource_version).await?;
    let held = call.resource.objects();
    let look = call.resource.look();
    let listed = serve::list(held, &list_options, &selection, &*look, ResourceVersion::ZERO).await?;
    for object in &listed.objects {
        match delete(&call.app, &call.resource, object.key(), &options, &intent, &judge(call)).await {
            Ok(_) => {}
            Err(status) if status.is_not_found() => {}
            Err(status) => return Err(status),
        }
    }
    list::encode(call, listed.objects, &listed.meta, negotiated).await
}

fn options(call: &Call) -> Result<DeleteOptions, Status> {
    if call.body.is_empty() {
        return DeleteOptions::parse(call.query.as_deref(), &call.body);
    }
    let format = body_format(call.header(http::header::CONTENT_TYPE))?;
    let body = body_json(format, "v1", "DeleteOptions", &call.body)?;
    DeleteOptions::parse(call.query.as_deref(), &body)
}

/// Admission of a client's delete.
pub(crate) fn judge(call: &Call) -> impl Fn(&Object) -> Result<(), Status> + Sync {
    |current| admission::delete(call, &call.resource, current)
}

/// Deletes one object, or begins to. `judge` sees the present state and may refuse.
///
/// # Errors
/// The error to return.
pub(crate) async fn delete(
    app: &App,
    resource: &Resource,
    key: &ObjectKey,
    options: &DeleteOptions,
    intent: &Intent,
    judge: &(dyn Fn(&Object) -> Result<(), Status> + Sync),
) -> Result<ChangeOutcome, Status> {
    let is_conditional = options.preconditions.resource_version.is_some();
    let now = Time::from_unix(app.clock.unix().secs);
    let mut ends = false;
    let change = |current: &Current| {
        check_preconditions(resource, current, options)?;
        judge(current)?;
        let step = next_step(resource.strategy, current.stored(), options.grace_period_seconds, now);
        ends = matches!(step, Step::End(_));
        Ok(match step {
            Step::Delete => Change::Delete {
                last: None,
                is_conditional,
            },
            Step::Wait(new) | Step::End(new) => Change::Put { new, is_conditional },
            Step::Nothing => Change::Keep,
        })
    };
    let outcome = app.own.update(resource, key, intent, change).await?;
    let marked = match &outcome {
        ChangeOutcome::Changed(object) | ChangeOutcome::Unchanged(object) if ends && !intent.dry_run => {
            object.uid().to_owned()
        }
        _ => return Ok(outcome),
    };
    // Watchers have seen that it is ending. The second step deletes it, if it is still the same object.
    let change = |current: &Current| {
        if current.uid() != marked || !meta::finalizers(current.stored()).is_empty() {
            return Ok(Change::Keep);
        }
        Ok(Change::Delete {
            last: None,
            is_conditional: false,
        })
    };
    match app.own.update(resource, key, intent, change).await {
        Err(status) if status.is_not_found() => Ok(outcome),
        ended => ended,
    }
}

/// Effect of a delete on an object.
#[derive(Debug, PartialEq)]
enum Step {
    /// It is deleted directly.
    Delete,
    /// It is marked, and another component completes the deletion.
    Wait(Value),
    /// It is marked with no grace period, and deleted.
    End(Value),
    /// A deletion is already waiting for another component.
    Nothing,
}

fn next_step(strategy: &dyn Strategy, object: &Value, wanted: Option<i64>, now: Time) -> Step {
    let has_finalizers = !meta::finalizers(object).is_empty();
    let is_deleting = !meta::text(object, "deletionTimestamp").is_empty();
    let held = object["metadata"]["deletionGracePeriodSeconds"].as_i64();
    // A deletion whose grace period is over may have been interrupted after the mark.
    let has_ended = is_deleting && held.unwrap_or_default() == 0;
    let Some(grace) = strategy.grace_seconds(object, wanted).filter(|_| !has_ended) else {
        return match (has_finalizers, is_deleting) {
            (false, _) => Step::Delete,
            (true, true) => Step::Nothing,
            (true, false) => Step::Wait(mark(object.clone(), now, 0)),
        };
    };
    let marked = if is_deleting {
        match shortened(object, wanted, now) {
            Some(marked) => marked,
            None => return Step::Nothing,
        }
    } else {
        mark(object.clone(), Time::from_unix(now.unix().saturating_add(grace)), grace)
    };
    let is_over = marked["metadata"]["deletionGracePeriodSeconds"] == 0;
    if is_over && !has_finalizers {
        Step::End(marked)
    } else {
        Step::Wait(marked)
    }
}

/// The object with a shorter grace period. A deletion under way can only be shortened. Its end never moves into the
/// past: of a period that would be over, the least remains.
fn shortened(object: &Value, wanted: Option<i64>, now: Time) -> Option<Value> {
    let held = object["metadata"]["deletionGracePeriodSeconds"]
        .as_i64()
        .unwrap_or_default();
    // A negative value means immediately, as one second.
    let wanted = wanted.map(|wanted| if wanted < 0 { 1 } else { wanted });
    let wanted = wanted.filter(|wanted| *wanted < held)?;
    let end = Time::parse(meta::text(object, "deletionTimestamp")).ok()?;
    let end = end.unix().saturating_sub(held).saturating_add(wanted);
    let mut object = object.clone();
    // `now` is the second that has begun.
    if end > now.unix() {
        meta::set_deletion(&mut object, Time::from_unix(end), wanted);
    } else {
        meta::set_deletion(&mut object, now, wanted.min(1));
    }
    Some(object)
}

/// Marks the object as deleting, for the components that have to finish with it.
fn mark(mut object: Value, end: Time, grace: i64) -> Value {
    meta::set_deletion(&mut object, end, grace);
    let generation = meta::generation(&object);
    if generation > 0 {
        // A client may have created it with the greatest one.
        meta::set_generation(&mut object, generation.saturating_add(1));
    }
    object
}

/// Refuses a delete whose preconditions name another object, or another state of it.
pub(crate) fn check_preconditions(
    resource: &Resource,
    current: &Object,
    options: &DeleteOptions,
) -> Result<(), Status> {
    let wanted = &options.preconditions;
    let conflict = |what: &str, wanted: &str, found: &str, end: &str| {
        let why = format!(
            "the {what} in the precondition ({wanted}) does not match the {what} in record ({found}). The object might \
             have been {end}"
        );
        // The kind appears where other conflicts name the resource.
        let stored = resource.stored_kind();
        let kind = GroupResource::new(&*stored.group, &*stored.kind);
        Err(Status::conflict(&kind, current.name(), &why))
    };
    if let Some(uid) = wanted.uid.as_deref().filter(|uid| *uid != current.uid()) {
        return conflict("UID", uid, current.uid(), "deleted and then recreated");
    }
    let version = current.resource_version().to_string();
    if let Some(wanted) = wanted.resource_version.as_deref().filter(|wanted| *wanted != version) {
        return conflict("ResourceVersion", wanted, &version, "modified");
    }
    Ok(())
}

/// Marks a namespace; it is deleted once it is empty.
async fn delete_namespace(call: &Call, options: &DeleteOptions, intent: &Intent) -> Result<ChangeOutcome, Status> {
    let (resource, name) = (call.resource.kind.group_resource(), call.name());
    if namespaces::IMMORTAL.contains(&name) {
        let why = "this namespace may not be deleted";
        return Err(Status::forbidden_because(&resource, name, why));
    }
    let now = Time::from_unix(call.app.clock.unix().secs);
    let is_conditional = options.preconditions.resource_version.is_some();
    let change = |current: &Current| {
        let version = current.resource_version().to_string();
        for (what, wanted, found) in [
            ("UID", &options.preconditions.uid, current.uid()),
            ("ResourceVersion", &options.preconditions.resource_version, &version),
        ] {
            if let Some(wanted) = wanted.as_deref().filter(|wanted| *wanted != found) {
                let why =
                    format!("Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {found}");
                return Err(Status::conflict(&resource, name, &why));
            }
        }
        admission::delete(call, &call.resource, current)?;
        let stored = current.stored();
        Ok(if !current.is_deleting() {
            Change::Put {
                new: namespaces::terminating(stored.clone(), now),
                is_conditional,
            }
        } else if call.resource.strategy.may_go(stored) {
            Change::Delete {
                last: None,
                is_conditional,
            }
        } else {
            Change::Keep
        })
    };
    call.app.own.update(&call.resource, &call.key(), intent, change).await
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::registry::strategy::DefaultStrategy;
    use crate::standalone::pods::Pods;

    /// Time of the deletes.
    const NOW: i64 = 1_800_000_000;

    /// A pod on a node, with members of its metadata.
    fn pod(metadata: Value) -> Value {
        json!({"metadata": metadata, "spec": {"nodeName": "n", "terminationGracePeriodSeconds": 30}})
    }

    fn time(offset: i64) -> String {
        Time::from_unix(NOW + offset).to_string()
    }

    fn step(strategy: &dyn Strategy, object: &Value, wanted: Option<i64>) -> Step {
        next_step(strategy, object, wanted, Time::from_unix(NOW))
    }

    #[test]
    fn object_without_a_grace_period_is_deleted_unless_it_has_finalizers() {
        let mut object = json!({"metadata": {"name": "a"}});
        assert_eq!(step(&DefaultStrategy, &object, None), Step::Delete);
        object["metadata"]["finalizers"] = json!(["f"]);
        let mut marked = object.clone();
        marked["metadata"]["deletionTimestamp"] = json!(time(0));
        marked["metadata"]["deletionGracePeriodSeconds"] = json!(0);
        assert_eq!(step(&DefaultStrategy, &object, None), Step::Wait(marked.clone()));
        assert_eq!(step(&DefaultStrategy, &marked, None), Step::Nothing);
    }

    #[test]
    fn interrupted_deletion_of_a_pod_is_completed() {
        for grace in [None, Some(0)] {
            let mut marked = pod(json!({"name": "a", "deletionTimestamp": time(-9)}));
            if let Some(grace) = grace {
                marked["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
            }
            for wanted in [None, Some(-1), Some(0), Some(5)] {
                assert_eq!(step(&Pods, &marked, wanted), Step::Delete, "{grace:?} {wanted:?}");
                let mut held = marked.clone();
                held["metadata"]["finalizers"] = json!(["f"]);
                assert_eq!(step(&Pods, &held, wanted), Step::Nothing, "{grace:?} {wanted:?}");
            }
        }
    }

    #[test]
    fn grace_period_of_a_deletion_is_only_shortened_and_never_into_the_past() {
        // The deletion began `ago` seconds before, with 30 seconds of grace.
        for (ago, wanted, end, grace) in [
            (10, Some(20), 10, 20),
            (10, Some(11), 1, 11),
            // `now` is a second that has begun.
            (10, Some(10), 0, 1),
            (10, Some(5), 0, 1),
            (10, Some(1), 0, 1),
            (10, Some(-1), 0, 1),
            (0, Some(-1), 1, 1),
            (0, Some(1), 1, 1),
            (10, Some(0), 0, 0),
            (40, Some(29), 0, 1),
            (40, Some(0), 0, 0),
        ] {
            let before = pod(json!({
                "name": "a", "deletionTimestamp": time(30 - ago), "deletionGracePeriodSeconds": 30,
            }));
            let after = pod(json!({
                "name": "a", "deletionTimestamp": time(end), "deletionGracePeriodSeconds": grace,
            }));
            let want = if grace == 0 {
                Step::End(after)
            } else {
                Step::Wait(after)
            };
            assert_eq!(step(&Pods, &before, wanted), want, "{ago} {wanted:?}");
            for wanted in [None, Some(30), Some(31)] {
                assert_eq!(step(&Pods, &before, wanted), Step::Nothing, "{ago} {wanted:?}");
            }
        }
    }

    #[test]
    fn end_of_a_pod_with_finalizers_is_left_to_their_owners() {
        let marked = json!({
            "name": "a", "finalizers": ["f"], "deletionTimestamp": time(30), "deletionGracePeriodSeconds": 30,
        });
        let ended = json!({
            "name": "a", "finalizers": ["f"], "deletionTimestamp": time(0), "deletionGracePeriodSeconds": 0,
        });
        assert_eq!(step(&Pods, &pod(marked), Some(0)), Step::Wait(pod(ended)));
    }
}
