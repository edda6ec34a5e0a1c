//! The variables of a container: one by one, and whole sets of them.

use serde_json::Value;
use yurt_apimachinery::meta::label_key_errors;
use yurt_apimachinery::status::{ErrorList, FieldError};
use yurt_apimachinery::values::env_name_errors;

use crate::registry::fields::{at, invalid, is_set, items, text};

/// Fields of a pod that a variable may show.
const FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
/// Fields with a name in the API that no variable may show.
const OTHER_FIELDS: [&str; 5] = [
    "metadata.annotations",
    "metadata.labels",
    "spec.restartPolicy",
    "spec.schedulerName",
    "status.phase",
];
/// Resources that a variable may show.
const RESOURCES: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];

/// The faults of a container's variables.
pub(super) fn check(container: &Value, path: &str, errors: &mut ErrorList) {
    for (index, variable) in items(container, &["env"]).iter().enumerate() {
        let (path, name) = (format!("{path}.env[{index}]"), text(variable, &["name"]));
        if name.is_empty() {
            errors.push(FieldError::required(format!("{path}.name"), ""));
        } else {
            invalid(errors, format!("{path}.name"), &name.into(), env_name_errors(name));
        }
        if is_set(variable, &["valueFrom"]) {
            check_source(variable, &format!("{path}.valueFrom"), errors);
        }
    }
    let sets = format!("{path}.envFrom");
    for (index, set) in items(container, &["envFrom"]).iter().enumerate() {
        check_set(set, &sets, index, errors);
    }
}

fn check_source(variable: &Value, path: &str, errors: &mut ErrorList) {
    let source = at(variable, &["valueFrom"]);
    check_field(at(source, &["fieldRef"]), &format!("{path}.fieldRef"), errors);
    let resource = at(source, &["resourceFieldRef"]);
    if resource.is_object() {
        check_resource(
            text(resource, &["resource"]),
            &format!("{path}.resourceFieldRef.resource"),
            errors,
        );
    }
    for name in ["configMapKeyRef", "secretKeyRef"] {
        let reference = at(source, &[name]);
        if reference.is_object() && text(reference, &["key"]).is_empty() {
            errors.push(FieldError::required(format!("{path}.{name}.key"), ""));
        }
    }
    let members = source.as_object().into_iter().flatten();
    let sources = members.filter(|(_, value)| !value.is_null()).count();
    let why = if sources == 0 {
        "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
    } else if !text(variable, &["value"]).is_empty() {
        "may not be specified when `value` is not empty"
    } else if sources > 1 {
        "may not have more than one field specified at a time"
    } else {
        return;
    };
    errors.push(FieldError::invalid(path, "", why));
}

fn check_field(reference: &Value, path: &str, errors: &mut ErrorList) {
    if !reference.is_object() {
        return;
    }
    let (shown, field) = (text(reference, &["fieldPath"]), format!("{path}.fieldPath"));
    if shown.is_empty() {
        return errors.push(FieldError::required(field, ""));
    }
    let mut convert = |why: &str| {
        let why = format!("error converting fieldPath: {why}: {shown}");
        errors.push(FieldError::invalid(field.as_str(), shown, &why));
    };
    if let Some((map, key)) = shown.strip_suffix("']").and_then(|rest| rest.split_once("['")) {
        match map {
            "metadata.labels" => invalid(errors, path, &key.into(), label_key_errors(key)),
            "metadata.annotations" => {
                let key = key.to_lowercase();
                invalid(errors, path, &key.as_str().into(), label_key_errors(&key));
            }
            _ => convert("field label does not support subscript"),
        }
    } else if OTHER_FIELDS.contains(&shown) {
        errors.push(FieldError::not_supported(field, shown, &FIELDS));
    } else if !FIELDS.contains(&shown) && shown != "spec.host" {
        convert("field label not supported");
    }
}

fn check_resource(name: &str, field: &str, errors: &mut ErrorList) {
    let is_page = name.starts_with("limits.hugepages-") || name.starts_with("requests.hugepages-");
    if name.is_empty() {
        errors.push(FieldError::required(field, ""));
    } else if !is_page && !RESOURCES.contains(&name) {
        errors.push(FieldError::not_supported(field, name, &RESOURCES));
    }
}

fn check_set(set: &Value, path: &str, index: usize, errors: &mut ErrorList) {
    let prefix = text(set, &["prefix"]);
    if !prefix.is_empty() {
        let field = format!("{path}[{index}].prefix");
        invalid(errors, field, &prefix.into(), env_name_errors(prefix));
    }
    let given = ["configMapRef", "secretRef"].map(|name| (name, at(set, &[name])));
    for (name, reference) in given {
        if reference.is_object() && text(reference, &["name"]).is_empty() {
            errors.push(FieldError::required(format!("{path}[{index}].{name}.name"), ""));
        }
    }
    // The path of the next two is kube-apiserver's own: without the index.
    match given.iter().filter(|(_, reference)| reference.is_object()).count() {
        0 => errors.push(FieldError::invalid(
            path,
            "",
            "must specify one of: `configMapRef` or `secretRef`",
        )),
        1 => {}
        _ => {
            let why = "may not have more than one field specified at a time";
            errors.push(FieldError::invalid(path, "", why));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_exists_can_be_shown() {
        let of = |path: &str| json!({"name": "A", "valueFrom": {"fieldRef": {"fieldPath": path}}});
        let container = json!({"env": [of("metadata.name"), of("metadata.labels['a/b']"), of("metadata.annotations['A']"), of("spec.host"),
            of("metadata.nope"), of("status.phase"), of("metadata.labels['a b']"), of("spec.x['a']"), of("")],
            "envFrom": [{"prefix": "a", "secretRef": {"name": "s"}}, {"prefix": "a=", "configMapRef": {"name": ""}}, {}]});
        let mut errors = ErrorList::default();
        check(&container, "c", &mut errors);
        let fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
        let want = [
            "c.env[4].valueFrom.fieldRef.fieldPath",
            "c.env[5].valueFrom.fieldRef.fieldPath",
            "c.env[6].valueFrom.fieldRef",
            "c.env[7].valueFrom.fieldRef.fieldPath",
            "c.env[8].valueFrom.fieldRef.fieldPath",
            "c.envFrom[1].prefix",
            "c.envFrom[1].configMapRef.name",
            "c.envFrom",
        ];
        assert_eq!(fields, want);
    }
}
