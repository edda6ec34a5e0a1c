//! Turns a client's object into the stored one: fills in what the server owns, keeps immutable fields, validates the
//! result.

use serde_json::{Value, json};
use yurt_apimachinery::status::ErrorList;
use yurt_apimachinery::time::Time;
use yurt_apimachinery::{Status, meta};
use yurt_codec::canonical::canonicalize;
use yurt_codec::{schema, type_meta};
use yurt_patch::apply;

use super::Resource;
use super::fields::carry;
use super::strategy::{Generation, MetaPass};

/// Part of an object that an update changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Everything but the status, if that is a subresource.
    Main,
    /// The status, and metadata.
    Status,
    /// The finalizers of a namespace, and metadata.
    Finalize,
}

/// Treatment of the managed fields.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Account<'a> {
    /// Changed fields become this manager's, if the object has managed fields.
    Writer {
        /// Option `fieldManager`, or the name in the User-Agent.
        manager: &'a str,
        /// Time of the write.
        now: Time,
    },
    /// They are final in the new object: an apply has computed them.
    Settled,
}

/// The object to store for a create; its name is settled.
///
/// # Errors
/// 400 for a body of another kind, namespace or name, 422 with every other fault.
pub(crate) fn created(
    resource: &Resource,
    mut object: Value,
    namespace: Option<&str>,
    now: Time,
    uid: &str,
    account: Account<'_>,
) -> Result<Value, Status> {
    type_meta::complete(&mut object, resource.kind)?;
    meta::settle_namespace(&mut object, resource.kind, namespace)?;
    meta::check_no_resource_version(&object)?;
    meta::wipe_system_fields(&mut object);
    meta::clear_resource_version(&mut object);
    meta::set_uid(&mut object, uid);
    meta::set_creation_timestamp(&mut object, now);
    if let Some(view) = resource.view {
        view.to_stored(&mut object);
    }
    resource.strategy.default(&mut object);
    keep_account(resource, None, &mut object, Part::Main, account);
    resource.strategy.prepare_create(&mut object);
    if resource.strategy.generation() != Generation::None {
        meta::set_generation(&mut object, 1);
    }
    complete(resource, &mut object);
    let mut own = resource.strategy.validate(&object, None)?;
    own.append(schema_errors(resource, &object, None, Part::Main));
    if resource.strategy.meta_passes().is_empty() {
        // This kind does not validate metadata itself: metadata's faults are reported when there are no others.
        reject(resource, &object, &own)?;
    }
    let mut errors = meta::validate_create(&object, resource.kind);
    errors.append(finalizer_errors(resource, &object));
    errors.append(own);
    reject(resource, &object, &errors)?;
    Ok(object)
}

/// The object to store for an update of `old` (stored form, without resourceVersion) to `new`.
///
/// # Errors
/// 400 for a body of another kind, namespace or name, 422 with every other fault.
pub(crate) fn updated(
    resource: &Resource,
    old: &Value,
    mut new: Value,
    part: Part,
    account: Account<'_>,
) -> Result<Value, Status> {
    type_meta::complete(&mut new, resource.kind)?;
    let namespace = meta::metadata(old)
        .and_then(|metadata| metadata.get("namespace"))
        .and_then(Value::as_str);
    meta::check_name(&new, meta::text(old, "name"))?;
    meta::settle_namespace(&mut new, resource.kind, namespace)?;
    if let Some(view) = resource.view {
        view.to_stored(&mut new);
    }
    keep_metadata(old, &mut new);
    let strategy = resource.strategy;
    strategy.default(&mut new);
    keep_account(resource, Some(old), &mut new, part, account);
    if part != Part::Status && resource.kind.has_status {
        carry(old, &mut new, "status");
    }
    match part {
        Part::Main => strategy.prepare_update(old, &mut new),
        Part::Finalize => {}
        Part::Status => {
            for member in outside_status(old, &new) {
                carry(old, &mut new, &member);
            }
            strategy.prepare_status(old, &mut new);
        }
    }
    complete(resource, &mut new);
    if strategy.generation().is_raised(old, &new) {
        meta::set_generation(&mut new, meta::generation(old).saturating_add(1));
    }
    let mut errors = meta_errors(resource, &new, old);
    errors.append(match part {
        Part::Main => strategy.validate(&new, Some(old))?,
        Part::Status => strategy.validate_status(&new, old)?,
        Part::Finalize => strategy.validate_finalize(&new),
    });
    errors.append(schema_errors(resource, &new, Some(old), part));
    reject(resource, &new, &errors)?;
    apply::settle_times(old, &mut new);
    Ok(new)
}

/// An empty object of the kind.
pub(crate) fn empty(resource: &Resource) -> Value {
    let kind = resource.stored_kind();
    let mut object = json!({"apiVersion": kind.api_version(), "kind": &*kind.kind});
    complete(resource, &mut object);
    object
}

/// A write of a part by a manager, for the managed fields of the stored object.
pub(crate) fn write<'a>(resource: &'a Resource, part: Part, manager: &'a str, now: Time) -> apply::Write<'a> {
    let kind = resource.stored_kind();
    let is_custom = schema::find(&kind.group, &kind.version, &kind.kind).is_none();
    let ignored: &[&[&str]] = match part {
        Part::Main | Part::Finalize if kind.has_status => &[&["status"]],
        Part::Main | Part::Finalize => &[],
        Part::Status if is_custom => &[&["metadata"], &["spec"]],
        Part::Status if resource.name == "pods" => &[
            &["spec"],
            &["metadata", "deletionTimestamp"],
            &["metadata", "ownerReferences"],
        ],
        Part::Status => &[&["spec"]],
    };
    let subresource = match part {
        Part::Main => "",
        Part::Status => "status",
        Part::Finalize => "finalize",
    };
    apply::Write {
        kind,
        schema: resource.structural.as_deref(),
        subresource,
        ignored,
        manager,
        now,
    }
}

/// Updates the managed fields. Objects without an apply have none, and their writes cost nothing extra.
fn keep_account(resource: &Resource, old: Option<&Value>, new: &mut Value, part: Part, account: Account<'_>) {
    let Account::Writer { manager, now } = account else {
        return;
    };
    if !old.is_some_and(apply::is_tracked) && !apply::is_tracked(new) {
        meta::metadata_mut(new).remove("managedFields");
        return;
    }
    // The stored forms are compared: an unset field is absent. But an empty list of managers is a request.
    let wished = meta::metadata_mut(new).remove("managedFields");
    complete(resource, new);
    if let Some(wished) = wished {
        meta::metadata_mut(new).insert("managedFields".to_owned(), wished);
    }
    let write = write(resource, part, manager, now);
    match old {
        Some(old) => write.update(old, new),
        None => write.update(&empty(resource), new),
    }
}

/// Keeps every field that a client may not change; a missing uid means the stored one.
fn keep_metadata(old: &Value, new: &mut Value) {
    let kept = |field: &str| meta::metadata(old).and_then(|metadata| metadata.get(field)).cloned();
    let generation = kept("generation");
    let uid = kept("uid");
    let metadata = meta::metadata_mut(new);
    for field in ["resourceVersion", "selfLink"] {
        metadata.remove(field);
    }
    replace(metadata, "creationTimestamp", kept("creationTimestamp"));
    // Validation reports a client's value for a live object as a fault.
    if let Some(deleted) = kept("deletionTimestamp") {
        metadata.insert("deletionTimestamp".to_owned(), deleted);
    }
    if let Some(grace) = kept("deletionGracePeriodSeconds") {
        metadata
            .entry("deletionGracePeriodSeconds")
            .and_modify(|given| {
                if given.is_null() {
                    *given = grace.clone();
                }
            })
            .or_insert(grace);
    }
    replace(metadata, "generation", generation);
    if metadata.get("uid").is_none_or(|uid| uid.is_null() || uid == "") {
        replace(metadata, "uid", uid);
    }
}

fn replace(members: &mut serde_json::Map<String, Value>, name: &str, value: Option<Value>) {
    match value {
        Some(value) => drop(members.insert(name.to_owned(), value)),
        None => drop(members.remove(name)),
    }
}

/// Completes every object: removes repeated owners, and converts it to the stored form of its kind.
pub(crate) fn complete(resource: &Resource, object: &mut Value) {
    meta::drop_repeated_owners(object);
    let kind = resource.stored_kind();
    if let Some(message) = schema::find(&kind.group, &kind.version, &kind.kind) {
        canonicalize(object, message);
    }
}

/// Errors of an update's metadata: two checks that every kind gets, and those of its own.
fn meta_errors(resource: &Resource, new: &Value, old: &Value) -> ErrorList {
    let mut errors = meta::validate_create(new, resource.kind);
    errors.append(meta::validate_update(new, old));
    for pass in resource.strategy.meta_passes() {
        errors.append(match pass {
            MetaPass::Whole => meta::validate_create(new, resource.kind),
            MetaPass::Change => meta::validate_update(new, old),
        });
        errors.append(finalizer_errors(resource, new));
    }
    errors
}

/// Kinds of the groups that share the core's validation require qualified finalizers.
fn finalizer_errors(resource: &Resource, object: &Value) -> ErrorList {
    let is_core_event = resource.kind.group.is_empty() && resource.kind.plural == "events";
    if matches!(&*resource.kind.group, "" | "discovery.k8s.io" | "events.k8s.io") && !is_core_event {
        meta::unqualified_finalizers(object)
    } else {
        ErrorList::default()
    }
}

/// Errors of a new state by the schema of a custom resource.
fn schema_errors(resource: &Resource, object: &Value, old: Option<&Value>, part: Part) -> ErrorList {
    let Some(schema) = &resource.structural else {
        return ErrorList::default();
    };
    let mut errors = schema.validate(object, old);
    if part != Part::Status {
        errors.append(schema.validate_embedded(object));
    }
    errors
}

/// Members that an update of the status does not change.
fn outside_status(old: &Value, new: &Value) -> Vec<String> {
    let names = [old, new]
        .into_iter()
        .filter_map(Value::as_object)
        .flat_map(|members| members.keys());
    let outside = names.filter(|name| !matches!(name.as_str(), "metadata" | "status" | "apiVersion" | "kind"));
    outside.cloned().collect()
}

fn reject(resource: &Resource, object: &Value, errors: &ErrorList) -> Result<(), Status> {
    if errors.is_empty() {
        return Ok(());
    }
    Err(Status::invalid(
        &resource.stored_kind().group_kind(),
        meta::text(object, "name"),
        errors,
    ))
}
