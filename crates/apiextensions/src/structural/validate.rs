//! Validation of values against a schema, with the texts of kube-apiserver's validator.

use std::cmp::Ordering;

use serde_json::Value;

use super::formats::Format;
use super::lists::ListType;
use super::numbers::{compare, is_multiple};
use super::path::Path;
use super::pattern::Pattern;
use super::{Additional, Node};
use yurt_apimachinery::status::{ErrorList, FieldError};
use yurt_apimachinery::text::go_quote;

/// Constraints on a value in addition to its type.
#[derive(Debug, Default)]
pub struct Limits {
    required: Vec<String>,
    allowed: Vec<Value>,
    minimum: Option<f64>,
    exclusive_minimum: bool,
    maximum: Option<f64>,
    exclusive_maximum: bool,
    multiple_of: Option<f64>,
    min_length: Option<u64>,
    max_length: Option<u64>,
    pattern: Option<Pattern>,
    format: Option<Format>,
    /// A format is named, known or not; `byte` does not count.
    has_format: bool,
    min_items: Option<u64>,
    max_items: Option<u64>,
    min_properties: Option<u64>,
    max_properties: Option<u64>,
    list_type: ListType,
}

/// Field of faults that have no field in upstream: the message names the place.
pub(super) const NOWHERE: &str = "<nil>";

// === impl Limits ===

impl Limits {
    /// Identity of the items of a list: `None` if the list is atomic, no keys if items are their own identity.
    pub fn item_keys(&self) -> Option<&[String]> {
        match &self.list_type {
            ListType::Atomic => None,
            ListType::Set => Some(&[]),
            ListType::Map(keys) => Some(keys),
        }
    }

    pub(super) fn list_type(&self) -> &ListType {
        &self.list_type
    }

    /// True if the schema names a format for texts.
    pub fn has_format(&self) -> bool {
        self.has_format
    }

    pub(super) fn of(schema: &Value) -> Self {
        let count = |name: &str| schema[name].as_u64();
        Self {
            required: super::words(&schema["required"]),
            allowed: schema["enum"].as_array().cloned().unwrap_or_default(),
            minimum: schema["minimum"].as_f64(),
            exclusive_minimum: schema["exclusiveMinimum"] == true,
            maximum: schema["maximum"].as_f64(),
            exclusive_maximum: schema["exclusiveMaximum"] == true,
            multiple_of: schema["multipleOf"].as_f64().filter(|factor| *factor > 0.0),
            min_length: count("minLength"),
            max_length: count("maxLength"),
            pattern: Pattern::of(schema).and_then(Result::ok),
            format: Format::of(schema),
            has_format: !matches!(schema["format"].as_str(), None | Some("" | "byte")),
            min_items: count("minItems"),
            max_items: count("maxItems"),
            min_properties: count("minProperties"),
            max_properties: count("maxProperties"),
            list_type: ListType::of(schema),
        }
    }
}

/// Adds the faults of `value` at `path`; `old` is the previous value at that place. Returns the number of parts of the
/// schema that were checked successfully, counted as in kube-apiserver: of alternatives that all fail, the one with the
/// highest number is reported.
pub(super) fn check(node: &Node, path: &mut Path, value: &Value, old: Option<&Value>, errors: &mut ErrorList) -> usize {
    if old == Some(value) {
        return 0;
    }
    let is_typed = !node.types.is_empty() || node.limits.format.is_some();
    let type_fits = check_type(node, &path.shown(), value, errors);
    if value.is_null() {
        check_allowed(&node.limits, &path.shown(), value, errors);
        return usize::from(is_typed && type_fits);
    }
    // Rules for every value: the enumeration, alternatives (counted twice), and the schema itself.
    let mut count = 4 + usize::from(is_typed) + usize::from(is_typed && type_fits);
    if let Some(combined) = &node.combined {
        count += combined.check(path, value, errors);
    }
    count += match value {
        Value::String(text) => {
            check_text(&node.limits, &path.shown(), text, errors);
            1 + usize::from(node.limits.format.as_ref().is_some_and(Format::is_of_text))
        }
        Value::Number(_) => {
            check_number(node, &path.shown(), value, errors);
            2
        }
        Value::Array(items) => 2 + check_items(node, path, items, old, errors),
        _ => 0,
    };
    check_allowed(&node.limits, &path.shown(), value, errors);
    if let Value::Object(members) = value {
        count += 1 + check_members(node, path, members, old, errors);
    }
    count
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Checks that a value is of a type the schema allows; the name of its type depends on whether the schema has a format.
fn check_type(node: &Node, path: &str, value: &Value, errors: &mut ErrorList) -> bool {
    let found = type_of(value);
    let is_whole = || value.as_f64().is_some_and(|number| number.fract() == 0.0);
    let fits = |wanted: &&str| match (*wanted, found) {
        ("number", "integer") => true,
        ("integer", "number") => is_whole(),
        (wanted, found) => wanted == found,
    };
    if node.types.is_empty() || (value.is_null() && node.nullable) || node.types.iter().any(fits) {
        return true;
    }
    let mut wanted = node.types.join(",");
    let mut found = found;
    if let Some(format) = &node.limits.format {
        match value {
            Value::Array(_) if format.is_of_text() => return true,
            Value::Null | Value::Array(_) | Value::String(_) => {}
            Value::Number(number) => {
                wanted.clone_from(&format.name);
                found = if number.is_f64() { "float64" } else { "int64" };
            }
            Value::Bool(_) | Value::Object(_) => {
                wanted.clone_from(&format.name);
                found = "";
            }
        }
    }
    let why = format!("{path} in body must be of type {wanted}: \"{found}\"");
    errors.push(FieldError::type_invalid(path, found, &why));
    false
}

fn check_text(limits: &Limits, path: &str, text: &str, errors: &mut ErrorList) {
    let length = text.chars().count() as u64;
    if let Some(most) = limits.max_length.filter(|most| length > *most) {
        errors.push(FieldError::too_long(path, usize::try_from(most).unwrap_or(usize::MAX)));
    } else if let Some(least) = limits.min_length.filter(|least| length < *least) {
        let why = format!("{path} in body should be at least {least} chars long");
        errors.push(FieldError::invalid(path, text, &why));
    } else if let Some(pattern) = limits.pattern.as_ref().filter(|pattern| !pattern.is_match(text)) {
        let why = format!("{path} in body should match '{}'", pattern.as_str());
        errors.push(FieldError::invalid(path, text, &why));
    }
    if let Some(format) = limits.format.as_ref().filter(|format| !format.allows_text(text)) {
        let why = format!("{path} in body must be of type {}: {}", format.name, go_quote(text));
        errors.push(FieldError::type_invalid(path, text, &why));
    }
}

fn check_number(node: &Node, path: &str, value: &Value, errors: &mut ErrorList) {
    let limits = &node.limits;
    let number = value.as_f64().unwrap_or_default();
    if node.types == ["integer"] {
        let format = limits.format.as_ref();
        if number.fract() != 0.0 || format.is_some_and(|format| !format.allows_number(value)) {
            let format = format.map_or("(default format)".to_owned(), |format| {
                format!("with format {}", format.name)
            });
            let why = format!("Checked value must be of type integer {format} in {path}");
            errors.push(FieldError::invalid(NOWHERE, "", &why));
        }
    }
    let mut refuse = |what: String| {
        let why = format!("{path} in body should be {what}");
        errors.push(FieldError::invalid(path, value.clone(), &why));
    };
    if let Some(factor) = limits.multiple_of.filter(|factor| !is_multiple(value, *factor)) {
        refuse(format!("a multiple of {factor}"));
    }
    if let Some(most) = limits.maximum {
        match compare(value, most) {
            Some(Ordering::Greater | Ordering::Equal) if limits.exclusive_maximum => {
                refuse(format!("less than {most}"))
            }
            Some(Ordering::Greater) => refuse(format!("less than or equal to {most}")),
            _ => {}
        }
    }
    if let Some(least) = limits.minimum {
        match compare(value, least) {
            Some(Ordering::Less | Ordering::Equal) if limits.exclusive_minimum => {
                refuse(format!("greater than {least}"));
            }
            Some(Ordering::Less) => refuse(format!("greater than or equal to {least}")),
            _ => {}
        }
    }
}

fn check_items(node: &Node, path: &mut Path, items: &[Value], old: Option<&Value>, errors: &mut ErrorList) -> usize {
    let mut matched = 0;
    if let Some(inner) = &node.items {
        let list_type = node.limits.list_type();
        let before = list_type.before(old);
        for (index, item) in items.iter().enumerate() {
            let old = before.item(list_type, item);
            matched += path.item(index, |path| check(inner, path, item, old, errors));
        }
    }
    let shown = path.shown().into_owned();
    let count = items.len() as u64;
    if let Some(least) = node.limits.min_items.filter(|least| count < *least) {
        let why = format!("{shown} in body should have at least {least} items");
        errors.push(FieldError::invalid(shown.as_str(), count, &why));
    }
    if let Some(most) = node.limits.max_items.filter(|most| count > *most) {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        errors.push(FieldError::too_many(shown.as_str(), items.len(), most));
    }
    matched
}

fn check_allowed(limits: &Limits, path: &str, value: &Value, errors: &mut ErrorList) {
    if limits.allowed.is_empty() || limits.allowed.contains(value) {
        return;
    }
    errors.push_with(|| {
        let text = |allowed: &Value| allowed.as_str().map_or_else(|| allowed.to_string(), str::to_owned);
        let shown: Vec<String> = limits.allowed.iter().map(text).collect();
        let shown: Vec<&str> = shown.iter().map(String::as_str).collect();
        FieldError::not_supported(path, value.clone(), &shown)
    });
}

fn check_members(
    node: &Node,
    path: &mut Path,
    members: &serde_json::Map<String, Value>,
    old: Option<&Value>,
    errors: &mut ErrorList,
) -> usize {
    let mut matched = 0;
    let count = members.len() as u64;
    if let Some(least) = node.limits.min_properties.filter(|least| count < *least) {
        let shown = path.shown();
        let why = format!("{shown} in body should have at least {least} properties");
        errors.push(FieldError::invalid(shown, count, &why));
    }
    if let Some(most) = node.limits.max_properties.filter(|most| count > *most) {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        errors.push(FieldError::too_many(path.shown(), members.len(), most));
    }
    for (name, value) in members {
        let inner = match (node.properties.get(name), &node.additional) {
            (Some(property), _) => property,
            (None, Additional::Each(each)) => each,
            (None, Additional::Any | Additional::None) => continue,
        };
        let old = old.and_then(|old| old.get(name));
        matched += path.below(name, |path| check(inner, path, value, old, errors));
    }
    for name in &node.limits.required {
        if !members.contains_key(name) {
            errors.push(FieldError::required(path.shown_below(name), ""));
        }
    }
    matched
}
