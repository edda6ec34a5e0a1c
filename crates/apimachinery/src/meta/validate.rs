//! Validation of a whole `metadata`, on create and on update.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::access;
use super::manager::check_field_manager;
use super::names::{dns_label_errors, label_key_errors, label_value_errors, name_errors};
use crate::kind::{NameRule, ResourceKind};
use crate::status::{ErrorList, FieldError};

/// Most bytes of all annotations of an object, keys and values.
pub const TOTAL_ANNOTATION_SIZE_LIMIT: usize = 256 * 1024;

/// Most entries of each list of metadata that every reader of an object compares, merges or counts.
pub const LIST_ITEMS_MAX: usize = 1000;

/// Those lists.
const BOUNDED_LISTS: [&str; 3] = ["ownerReferences", "finalizers", "managedFields"];

/// Owners that a fault about all of them shows.
const OWNERS_SHOWN_MAX: usize = 10;

/// kube-apiserver's limit for the subresource of an entry of managed fields, in bytes.
const SUBRESOURCE_MAX_LEN: usize = 256;

/// Fields of `metadata` that no update may change.
const IMMUTABLE: [&str; 6] = [
    "name",
    "namespace",
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
];

/// Rejects a body with more entries than [`LIST_ITEMS_MAX`] in a list of its metadata. Call it before any other code
/// reads these lists.
///
/// # Errors
/// The list, and its number of entries.
pub fn check_list_lengths(object: &Value) -> Result<(), FieldError> {
    let metadata = access::metadata(object);
    for name in BOUNDED_LISTS {
        let list = metadata
            .and_then(|metadata| metadata.get(name))
            .and_then(Value::as_array);
        if let Some(list) = list.filter(|list| list.len() > LIST_ITEMS_MAX) {
            return Err(FieldError::too_many(
                format!("metadata.{name}"),
                list.len(),
                LIST_ITEMS_MAX,
            ));
        }
    }
    Ok(())
}

/// Errors in the metadata of a new object. Its name must have been generated and its namespace settled.
pub fn validate_create(object: &Value, kind: &ResourceKind) -> ErrorList {
    let is_named = !access::text(object, "name").is_empty();
    validate_new(object, kind.name_rule, kind.namespaced, is_named)
}

/// Errors in the metadata of an object within another one. Its name and namespace are optional.
pub fn validate_embedded(object: &Value) -> ErrorList {
    let is_namespaced = !access::text(object, "namespace").is_empty();
    validate_new(object, NameRule::PathSegment, is_namespaced, true)
}

fn validate_new(object: &Value, name_rule: NameRule, is_namespaced: bool, is_named: bool) -> ErrorList {
    let mut errors = ErrorList::default();
    let mut check = |field: &str, text: &str, faults: Vec<String>| {
        let errors_of = faults
            .into_iter()
            .map(|fault| FieldError::invalid(format!("metadata.{field}"), text, &fault));
        errors.extend(errors_of);
    };
    let base = access::text(object, "generateName");
    if !base.is_empty() {
        check("generateName", base, name_errors(name_rule, base, true));
    }
    let name = access::text(object, "name");
    if !name.is_empty() {
        check("name", name, name_errors(name_rule, name, false));
    }
    let namespace = access::text(object, "namespace");
    if is_namespaced && !namespace.is_empty() {
        check("namespace", namespace, dns_label_errors(namespace));
    }
    if !is_named {
        errors.push(FieldError::required(
            "metadata.name",
            "name or generateName is required",
        ));
    }
    if is_namespaced && namespace.is_empty() {
        errors.push(FieldError::required("metadata.namespace", ""));
    }
    if !is_namespaced && !namespace.is_empty() {
        errors.push(FieldError::forbidden("metadata.namespace", "not allowed on this type"));
    }
    errors.append(validate_common(object));
    check_finalizers(
        access::metadata(object).and_then(|metadata| metadata.get("finalizers")),
        &mut errors,
    );
    errors
}

/// Errors in the metadata of an updated object. Fields that the server keeps must have been carried over.
pub fn validate_update(object: &Value, old: &Value) -> ErrorList {
    let mut errors = ErrorList::default();
    if !access::text(old, "deletionTimestamp").is_empty() {
        let before: HashSet<&str> = access::finalizers(old).into_iter().collect();
        let mut added: Vec<String> = access::finalizers(object)
            .into_iter()
            .filter(|name| !before.contains(name))
            .map(go_string)
            .collect();
        added.sort_unstable();
        added.dedup();
        if !added.is_empty() {
            let list = added.join(", ");
            let why = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{list}}}"
            );
            errors.push(FieldError::forbidden("metadata.finalizers", &why));
        }
    }
    if access::generation(object) < access::generation(old) {
        let generation = access::generation(object);
        errors.push(FieldError::invalid(
            "metadata.generation",
            generation,
            "must not be decremented",
        ));
    }
    let field_of = |object: &Value, field: &str| {
        access::metadata(object)
            .and_then(|metadata| metadata.get(field))
            .cloned()
            .unwrap_or_default()
    };
    for field in IMMUTABLE {
        let (new, old) = (field_of(object, field), field_of(old, field));
        if new != old {
            errors.push(FieldError::invalid(
                format!("metadata.{field}"),
                new,
                "field is immutable",
            ));
        }
    }
    errors.append(validate_common(object));
    errors
}

fn go_string(text: &str) -> String {
    crate::text::go_quote(text)
}

fn validate_common(object: &Value) -> ErrorList {
    let mut errors = ErrorList::default();
    let Some(metadata) = access::metadata(object) else {
        return errors;
    };
    errors.extend(check_list_lengths(object).err());
    let generation = access::generation(object);
    if generation < 0 {
        errors.push(FieldError::invalid(
            "metadata.generation",
            generation,
            "must be greater than or equal to 0",
        ));
    }
    check_strings("metadata.labels", metadata.get("labels"), &mut errors, check_labels);
    check_strings(
        "metadata.annotations",
        metadata.get("annotations"),
        &mut errors,
        check_annotations,
    );
    check_owners(metadata.get("ownerReferences"), &mut errors);
    check_managers(metadata.get("managedFields"), &mut errors);
    errors
}

/// Checks the names in managed fields; empty entries are dropped before.
fn check_managers(entries: Option<&Value>, errors: &mut ErrorList) {
    for (index, entry) in entries.and_then(Value::as_array).into_iter().flatten().enumerate() {
        let text = |name: &str| entry.get(name).and_then(Value::as_str).unwrap_or_default();
        let field = |name: &str| format!("metadata.managedFields[{index}].{name}");
        check_field_manager(&field("manager"), text("manager"), errors);
        if text("subresource").len() > SUBRESOURCE_MAX_LEN {
            errors.push(FieldError::too_long(field("subresource"), SUBRESOURCE_MAX_LEN));
        }
    }
}

type Pairs<'a> = Vec<(&'a str, &'a str)>;

/// Checks a map of strings with the given rule; anything else is a fault of its own.
fn check_strings(
    field: &str,
    value: Option<&Value>,
    errors: &mut ErrorList,
    check: fn(&str, &Pairs<'_>, &mut ErrorList),
) {
    let pairs: Option<Pairs<'_>> = match value {
        None | Some(Value::Null) => return,
        Some(Value::Object(map)) => map
            .iter()
            .map(|(key, value)| Some((key.as_str(), value.as_str()?)))
            .collect(),
        Some(_) => None,
    };
    match pairs {
        Some(pairs) => check(field, &pairs, errors),
        None => errors.push(FieldError::type_invalid(field, "object", "must be a map of strings")),
    }
}

fn check_labels(field: &str, labels: &Pairs<'_>, errors: &mut ErrorList) {
    for (key, value) in labels {
        errors.extend(
            label_key_errors(key)
                .iter()
                .map(|fault| FieldError::invalid(field, *key, fault)),
        );
        errors.extend(
            label_value_errors(value)
                .iter()
                .map(|fault| FieldError::invalid(field, *value, fault)),
        );
    }
}

fn check_annotations(field: &str, annotations: &Pairs<'_>, errors: &mut ErrorList) {
    for (key, _) in annotations {
        // Case does not matter here, not even in the prefix.
        let faults = label_key_errors(&key.to_lowercase());
        errors.extend(faults.iter().map(|fault| FieldError::invalid(field, *key, fault)));
    }
    let size: usize = annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
    if size > TOTAL_ANNOTATION_SIZE_LIMIT {
        errors.push(FieldError::too_long(field, TOTAL_ANNOTATION_SIZE_LIMIT));
    }
}

fn check_owners(owners: Option<&Value>, errors: &mut ErrorList) {
    const FIELD: &str = "metadata.ownerReferences";
    let mut controllers = Vec::new();
    for owner in items(FIELD, owners, errors) {
        let Value::Object(owner) = owner else {
            errors.push(FieldError::type_invalid(FIELD, owner.clone(), "must be an object"));
            continue;
        };
        let text = |field: &str| owner.get(field).and_then(Value::as_str).unwrap_or_default();
        // kube-apiserver 1.36 names the field without the index of the item.
        for field in ["apiVersion", "kind", "name", "uid"]
            .into_iter()
            .filter(|field| text(field).is_empty())
        {
            let why = if field == "apiVersion" {
                "version must not be empty"
            } else {
                "must not be empty"
            };
            errors.push(FieldError::invalid(format!("{FIELD}.{field}"), "", why));
        }
        check_owner_version(text("apiVersion"), owner, errors);
        if owner.get("controller") == Some(&Value::Bool(true)) {
            controllers.push(format!("{}/{}", text("kind"), text("name")));
        }
    }
    if let [first, second, others @ ..] = controllers.as_slice() {
        let more = match others.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let why = format!(
            "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {second}{more}"
        );
        let shown: Vec<String> = items(FIELD, owners, &mut ErrorList::default())
            .iter()
            .take(OWNERS_SHOWN_MAX)
            .map(show_owner)
            .collect();
        errors.push(FieldError::invalid_shown(
            FIELD,
            &format!("[{}]", shown.join(",")),
            &why,
        ));
    }
}

/// An owner with its members in the order that Go writes them.
fn show_owner(owner: &Value) -> String {
    const ORDER: [&str; 6] = ["apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion"];
    let members = ORDER
        .iter()
        .filter_map(|name| Some(format!("\"{name}\":{}", owner.get(name)?)));
    format!("{{{}}}", members.collect::<Vec<_>>().join(","))
}

fn check_owner_version(api_version: &str, owner: &Map<String, Value>, errors: &mut ErrorList) {
    const FIELD: &str = "metadata.ownerReferences";
    let parts: Vec<&str> = api_version.split('/').collect();
    if parts.len() > 2 || (!api_version.is_empty() && parts.last() == Some(&"")) {
        let field = format!("{FIELD}.apiVersion");
        errors.push(FieldError::invalid(field, api_version, "version must not be empty"));
    }
    if api_version == "v1" && owner.get("kind").and_then(Value::as_str) == Some("Event") {
        let why = "/v1, Kind=Event is disallowed from being an owner";
        errors.push(FieldError::invalid(FIELD, Value::Object(owner.clone()), why));
    }
}

/// Finalizers that are neither qualified nor among the three standard ones.
pub fn unqualified_finalizers(object: &Value) -> ErrorList {
    let names = access::finalizers(object);
    let odd = names
        .iter()
        .enumerate()
        .filter(|(_, name)| !is_qualified_finalizer(name));
    let why = "name is neither a standard finalizer name nor is it fully qualified";
    odd.map(|(index, name)| FieldError::invalid(format!("metadata.finalizers[{index}]"), *name, why))
        .collect()
}

/// True if a finalizer names a domain and a path, or is one of the three standard ones.
pub fn is_qualified_finalizer(name: &str) -> bool {
    name.contains('/') || ["kubernetes", "orphan", "foregroundDeletion"].contains(&name)
}

fn check_finalizers(finalizers: Option<&Value>, errors: &mut ErrorList) {
    const FIELD: &str = "metadata.finalizers";
    let mut names = Vec::new();
    for item in items(FIELD, finalizers, errors) {
        match item.as_str() {
            Some(name) => names.push(name),
            None => errors.push(FieldError::type_invalid(FIELD, item.clone(), "must be a string")),
        }
    }
    for name in &names {
        errors.extend(
            label_key_errors(name)
                .iter()
                .map(|fault| FieldError::invalid(FIELD, *name, fault)),
        );
    }
    if names.contains(&"orphan") && names.contains(&"foregroundDeletion") {
        let why = "finalizer orphan and foregroundDeletion cannot be both set";
        errors.push(FieldError::invalid(FIELD, names, why));
    }
}

/// The items of a list; anything else but null is a fault.
fn items<'a>(field: &str, value: Option<&'a Value>, errors: &mut ErrorList) -> &'a [Value] {
    match value {
        None | Some(Value::Null) => &[],
        Some(Value::Array(items)) => items,
        Some(other) => {
            errors.push(FieldError::type_invalid(field, other.clone(), "must be a list"));
            &[]
        }
    }
}
