//! The volumes of a pod: a name of its own each, and one source.

use std::collections::BTreeSet;

use serde_json::Value;
use yurt_apimachinery::meta::dns_label_faults;
use yurt_apimachinery::status::FieldError;

use crate::registry::fields::{at, invalid, is_set, items, text};

/// Sources that need to say one thing: the source, and the member that says it.
const REQUIRED: [(&str, &str); 5] = [
    ("hostPath", "path"),
    ("secret", "secretName"),
    ("configMap", "name"),
    ("persistentVolumeClaim", "claimName"),
    ("csi", "driver"),
];

/// The faults of the volumes, and the names of those without any: those can be mounted.
pub(super) fn check<'a>(spec: &'a Value, errors: &mut Vec<FieldError>) -> BTreeSet<&'a str> {
    let mut names = BTreeSet::new();
    for (index, volume) in items(spec, &["volumes"]).iter().enumerate() {
        let path = format!("spec.volumes[{index}]");
        let faults = &mut Vec::new();
        check_source(volume, &path, faults);
        let name = text(volume, &["name"]);
        let field = format!("{path}.name");
        if name.is_empty() {
            faults.push(FieldError::required(field.as_str(), ""));
        } else {
            invalid(faults, &field, &name.into(), dns_label_faults(name));
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
pub(super) fn check_tokens(spec: &Value, errors: &mut Vec<FieldError>) {
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

fn check_source(volume: &Value, path: &str, errors: &mut Vec<FieldError>) {
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
}
