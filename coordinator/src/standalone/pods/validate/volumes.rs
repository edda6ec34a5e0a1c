//! The volumes of a pod: each has a unique name and one source.

use std::collections::BTreeSet;

use serde_json::Value;
use yurt_apimachinery::meta::dns_label_errors;
use yurt_apimachinery::quantity::Quantity;
use yurt_apimachinery::status::{ErrorList, FieldError};

use super::{check_descending, check_no_steps_back};
use crate::registry::fields::{at, invalid, is_set, items, text};

/// Sources with one required member: the source, and the member.
const REQUIRED: [(&str, &str); 5] = [
    ("hostPath", "path"),
    ("secret", "secretName"),
    ("configMap", "name"),
    ("persistentVolumeClaim", "claimName"),
    ("csi", "driver"),
];

/// The faults of the volumes, and the names of valid ones: those can be mounted.
pub(super) fn check<'a>(spec: &'a Value, errors: &mut ErrorList) -> BTreeSet<&'a str> {
    let mut names = BTreeSet::new();
    for (index, volume) in items(spec, &["volumes"]).iter().enumerate() {
        let path = format!("spec.volumes[{index}]");
        let mut faults = ErrorList::default();
        check_source(volume, &path, &mut faults);
        let name = text(volume, &["name"]);
        let field = format!("{path}.name");
        if name.is_empty() {
            faults.push(FieldError::required(field.as_str(), ""));
        } else {
            invalid(&mut faults, &field, &name.into(), dns_label_errors(name));
        }
        if names.contains(name) {
            faults.push(FieldError::duplicate(field, name));
        }
        if faults.is_empty() {
            names.insert(name);
        }
        errors.append(faults);
    }
    names
}

/// A token of a service account needs a service account.
pub(super) fn check_tokens(spec: &Value, errors: &mut ErrorList) {
    if !text(spec, &["serviceAccountName"]).is_empty() {
        return;
    }
    for (at_volume, volume) in items(spec, &["volumes"]).iter().enumerate() {
        for (index, source) in items(volume, &["projected", "sources"]).iter().enumerate() {
            if is_set(source, &["serviceAccountToken"]) {
                let field = format!("spec.volumes[{at_volume}].projected.sources[{index}].serviceAccountToken");
                let why = "must not be specified when serviceAccountName is not set";
                errors.push(FieldError::forbidden(field, why));
            }
        }
    }
}

fn check_source(volume: &Value, path: &str, errors: &mut ErrorList) {
    let members = volume.as_object().into_iter().flatten();
    let sources: Vec<&String> = members
        .filter(|(name, value)| *name != "name" && !value.is_null())
        .map(|(name, _)| name)
        .collect();
    let [first, others @ ..] = sources.as_slice() else {
        return errors.push(FieldError::required(path, "must specify a volume type"));
    };
    for other in others {
        let why = "may not specify more than 1 volume type";
        errors.push(FieldError::forbidden(format!("{path}.{other}"), why));
    }
    for (source, member) in REQUIRED {
        if first.as_str() == source && text(at(volume, &[source]), &[member]).is_empty() {
            errors.push(FieldError::required(format!("{path}.{source}.{member}"), ""));
        }
    }
    match first.as_str() {
        "hostPath" => check_host_path(at(volume, &["hostPath"]), &format!("{path}.hostPath"), errors),
        source @ ("secret" | "configMap") => check_files(at(volume, &[source]), &format!("{path}.{source}"), errors),
        "emptyDir" => {
            let limit = text(volume, &["emptyDir", "sizeLimit"]);
            if Quantity::parse(limit).is_some_and(|limit| limit.nano() < 0) {
                let why = "SizeLimit field must be a valid resource quantity";
                errors.push(FieldError::forbidden(format!("{path}.emptyDir.sizeLimit"), why));
            }
        }
        _ => {}
    }
}

fn check_host_path(source: &Value, path: &str, errors: &mut ErrorList) {
    const TYPES: [&str; 8] = [
        "",
        "BlockDevice",
        "CharDevice",
        "Directory",
        "DirectoryOrCreate",
        "File",
        "FileOrCreate",
        "Socket",
    ];
    check_no_steps_back(text(source, &["path"]), &format!("{path}.path"), errors);
    let kind = text(source, &["type"]);
    if !TYPES.contains(&kind) {
        errors.push(FieldError::not_supported(format!("{path}.type"), kind, &TYPES));
    }
}

/// Files made of the keys of an object.
fn check_files(source: &Value, path: &str, errors: &mut ErrorList) {
    check_mode(at(source, &["defaultMode"]), &format!("{path}.defaultMode"), errors);
    for (index, item) in items(source, &["items"]).iter().enumerate() {
        let of = |name: &str| format!("{path}.items[{index}].{name}");
        for name in ["key", "path"] {
            if text(item, &[name]).is_empty() {
                errors.push(FieldError::required(of(name), ""));
            }
        }
        let file = text(item, &["path"]);
        check_descending(file, &of("path"), errors);
        if file.starts_with("..") && !file.starts_with("../") {
            errors.push(FieldError::invalid(of("path"), file, "must not start with '..'"));
        }
        check_mode(at(item, &["mode"]), &of("mode"), errors);
    }
}

fn check_mode(mode: &Value, field: &str, errors: &mut ErrorList) {
    if let Some(mode) = mode.as_i64().filter(|mode| !(0..=0o777).contains(mode)) {
        let why = "must be a number between 0 and 0777 (octal), both inclusive";
        errors.push(FieldError::invalid(field, mode, why));
    }
}
