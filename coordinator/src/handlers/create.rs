//! CREATE: a new object under a free name.

use http::{Response, StatusCode};
use serde_json::Value;
use yurt_apimachinery::status::reason;
use yurt_apimachinery::{Object, ObjectKey, Status, Verb, WriteOptions, meta};
use yurt_codec::negotiation::Shape;
use yurt_codec::type_meta;
use yurt_runtime::http::Body;

use super::reading;
use crate::admission;
use crate::config::Profile;
use crate::registry::namespaces;
use crate::registry::own::{Intent, Namespace};
use crate::registry::prepare::{self, Account};
use crate::request::Call;

/// Maximum number of names tried for one generateName; then the client has to retry.
const GENERATED_NAMES_MAX: usize = 8;

/// Answers a create.
///
/// # Errors
/// The error to return.
pub(crate) async fn handle(call: &Call) -> Result<Response<Body>, Status> {
    let negotiated = call.negotiate(Shape::Object)?;
    let options = WriteOptions::parse(call.query.as_deref(), Verb::Create)?;
    let body = reading::body(call, options.field_validation)?;
    let manager = call.manager(&options);
    let account = Account::Writer {
        manager: &manager,
        now: call.now(),
    };
    let intent = call.intent(options.field_manager, options.dry_run);
    if !meta::generates_name(&body) {
        let name = meta::text(&body, "name").to_owned();
        let is_prefixed = !meta::text(&body, "generateName").is_empty();
        return match create(call, body, account, &intent).await? {
            Some(created) => call.object(StatusCode::CREATED, &created, negotiated),
            None if is_prefixed => Err(Status::generate_name_conflict(
                &call.resource.kind.group_resource(),
                &name,
            )),
            None => Err(exists(call, &name)),
        };
    }
    let mut last_name = String::new();
    for _ in 0..GENERATED_NAMES_MAX {
        let mut object = body.clone();
        let random = uuid::Uuid::new_v4().as_u64_pair().0;
        meta::apply_generate_name(&mut object, &meta::suffix_from_random(random));
        last_name = meta::text(&object, "name").to_owned();
        if let Some(created) = create_as(call, object, meta::text(&body, "generateName"), account, &intent).await? {
            return call.object(StatusCode::CREATED, &created, negotiated);
        }
    }
    Err(Status::generate_name_conflict(
        &call.resource.kind.group_resource(),
        &last_name,
    ))
}

/// Creates the object of a body; `None` when the name is taken.
///
/// # Errors
/// The error to return.
pub(super) async fn create(
    call: &Call,
    object: Value,
    account: Account<'_>,
    intent: &Intent,
) -> Result<Option<Object>, Status> {
    let name = meta::text(&object, "name").to_owned();
    create_as(call, object, &name, account, intent).await
}

/// [`create`] of an object that errors of its namespace name as `shown`: they do not reveal a generated name.
async fn create_as(
    call: &Call,
    mut object: Value,
    shown: &str,
    account: Account<'_>,
    intent: &Intent,
) -> Result<Option<Object>, Status> {
    let namespace = call.namespace();
    call.authorize(Verb::Create, meta::text(&object, "name"))?;
    admission::create(call, &object)?;
    if let Err(refused) = require_namespace(call, namespace, shown).await {
        // A terminating namespace refuses invalid objects, too, but after checks of kind and place.
        type_meta::complete(&mut object, call.resource.kind)?;
        meta::settle_namespace(&mut object, call.resource.kind, namespace)?;
        return Err(refused);
    }
    let uid = uuid::Uuid::new_v4().to_string();
    let object = prepare::created(&call.resource, object, namespace, call.now(), &uid, account)?;
    call.warnings.extend(call.resource.strategy.warnings(&object, None));
    let object = call.app.own.fitting(object, &call.resource, intent)?;
    let read_namespace = || require_namespace(call, namespace, shown);
    call.app
        .own
        .create(&call.resource, &object, intent, read_namespace)
        .await
}

fn exists(call: &Call, name: &str) -> Status {
    let resource = call.resource.kind.group_resource();
    let key = ObjectKey::new(call.namespace(), name);
    let is_deleting = call
        .resource
        .objects()
        .read(|held| held.object(&key).is_some_and(Object::is_deleting));
    if is_deleting {
        return Status::already_exists_deleting(&resource, name);
    }
    Status::already_exists(&resource, name)
}

/// Requires that the namespace exists, and returns it with its collection. In a pool, leases and events need none:
/// their namespaces are the cloud's.
async fn require_namespace(call: &Call, namespace: Option<&str>, name: &str) -> Result<Option<Namespace>, Status> {
    let Some(namespace) = namespace else { return Ok(None) };
    let is_needed = call.app.settings.profile == Profile::Standalone || call.resource.strategy.needs_namespace();
    let served = call.app.served();
    let namespaces = served.registry.find("", namespaces::COLLECTION);
    let Some(namespaces) = namespaces.filter(|_| is_needed) else {
        return Ok(None);
    };
    let key = ObjectKey::new(None, namespace);
    let find = || namespaces.objects().read(|held| held.object(&key).cloned());
    let mut found = find();
    if found.is_none() {
        // Another coordinator may have created it.
        call.app.own.catch_up(namespaces).await?;
        found = find();
    }
    match found {
        None => Err(Status::not_found(&namespaces.kind.group_resource(), namespace)),
        Some(found) if found.is_deleting() => {
            let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
            let status = Status::forbidden_because(&call.resource.kind.group_resource(), name, &why);
            let message = format!("namespace {namespace} is being terminated");
            Err(status.with_cause(reason::CAUSE_NAMESPACE_TERMINATING, &message, "metadata.namespace"))
        }
        Some(found) => Ok(Some((namespaces.clone(), found))),
    }
}
