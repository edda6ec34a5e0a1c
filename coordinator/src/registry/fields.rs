//! Reads and fills members of an object that is being processed. Bodies may have any shape: a missing value reads as
//! empty, and a value of another type is never replaced by a default.

use serde_json::{Map, Value};
use yurt_apimachinery::status::{ErrorList, FieldError};

/// The value at a path; null when there is none.
pub(crate) fn at<'a>(object: &'a Value, path: &[&str]) -> &'a Value {
    path.iter()
        .fold(object, |value, name| value.get(name).unwrap_or(&Value::Null))
}

/// The text at a path; empty when there is none.
pub(crate) fn text<'a>(object: &'a Value, path: &[&str]) -> &'a str {
    at(object, path).as_str().unwrap_or_default()
}

/// The items of the list at a path; empty when there is no list.
pub(crate) fn items<'a>(object: &'a Value, path: &[&str]) -> &'a [Value] {
    at(object, path).as_array().map(Vec::as_slice).unwrap_or_default()
}

/// True if there is anything but null at a path.
pub(crate) fn is_set(object: &Value, path: &[&str]) -> bool {
    !at(object, path).is_null()
}

/// The structure at a path, created where it is missing; `None` when a value of another type is in its place.
pub(crate) fn members<'a>(object: &'a mut Value, path: &[&str]) -> Option<&'a mut Map<String, Value>> {
    let mut members = object.as_object_mut()?;
    for name in path {
        let value = members.entry(*name).or_insert(Value::Null);
        if value.is_null() {
            *value = Value::Object(Map::new());
        }
        members = value.as_object_mut()?;
    }
    Some(members)
}

/// The structures in the list at a path.
pub(crate) fn each<'a>(object: &'a mut Value, path: &[&str]) -> impl Iterator<Item = &'a mut Map<String, Value>> {
    let list = path.iter().try_fold(object, |value, name| value.get_mut(name));
    let items = list.and_then(Value::as_array_mut).into_iter().flatten();
    items.filter_map(Value::as_object_mut)
}

/// Sets a member that is missing, null or the empty text.
pub(crate) fn fill(members: &mut Map<String, Value>, name: &str, value: impl Into<Value>) {
    if members.get(name).is_none_or(|held| held.is_null() || held == "") {
        members.insert(name.to_owned(), value.into());
    }
}

/// Copies the member `name` of `from` to `to`; removes it when `from` has none.
pub(crate) fn carry(from: &Value, to: &mut Value, name: &str) {
    let Some(members) = to.as_object_mut() else { return };
    match from.get(name) {
        Some(value) => drop(members.insert(name.to_owned(), value.clone())),
        None => drop(members.remove(name)),
    }
}

/// Records the faults of one value.
pub(crate) fn invalid(errors: &mut ErrorList, field: impl std::fmt::Display, value: &Value, faults: Vec<String>) {
    errors.extend(
        faults
            .iter()
            .map(|fault| FieldError::invalid(field.to_string(), value.clone(), fault)),
    );
}

/// Records a value outside an enumeration; a missing one is recorded as required.
pub(crate) fn one_of(errors: &mut ErrorList, field: &str, value: &str, supported: &[&str]) {
    if value.is_empty() {
        errors.push(FieldError::required(field, ""));
    } else if !supported.contains(&value) {
        errors.push(FieldError::not_supported(field, value, supported));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn any_shape_is_survived() {
        for mut odd in [
            json!(null),
            json!([1]),
            json!("x"),
            json!({"spec": 5}),
            json!({"spec": {"list": [1]}}),
        ] {
            assert_eq!(text(&odd, &["spec", "name"]), "");
            assert!(items(&odd, &["spec", "x"]).is_empty());
            assert_eq!(each(&mut odd, &["spec", "list"]).count(), 0, "a number is no structure");
            if let Some(members) = members(&mut odd, &["spec"]) {
                fill(members, "a", 1);
            }
        }
        let mut object = json!({"spec": null});
        fill(members(&mut object, &["spec", "inner"]).unwrap(), "a", "b");
        assert_eq!(object, json!({"spec": {"inner": {"a": "b"}}}));
    }
}
