//! What is wrong with values, in the words of kube-apiserver's validator.

use regex_lite::Regex;
use serde_json::Value;

use super::shape::join;
use super::{Additional, Node};
use crate::status::FieldError;

/// What a value has to be like beside its type.
#[derive(Debug, Default)]
pub(super) struct Limits {
    required: Vec<String>,
    allowed: Vec<Value>,
    minimum: Option<f64>,
    exclusive_minimum: bool,
    maximum: Option<f64>,
    exclusive_maximum: bool,
    multiple_of: Option<f64>,
    min_length: Option<u64>,
    max_length: Option<u64>,
    pattern: Option<Regex>,
    min_items: Option<u64>,
    max_items: Option<u64>,
    min_properties: Option<u64>,
    max_properties: Option<u64>,
    unique: Unique,
}

/// Which items of a list may not occur twice.
#[derive(Debug, Default)]
enum Unique {
    #[default]
    No,
    /// Equal ones.
    Items,
    /// Those with equal values of these members.
    Keys(Vec<String>),
}

/// Longest pattern that is compiled, bytes.
const PATTERN_BYTES_MAX: usize = 16 << 10;

// === impl Limits ===

impl Limits {
    pub(super) fn of(schema: &Value) -> Self {
        let count = |name: &str| schema[name].as_u64();
        let words = |name: &str| {
            let words = schema[name].as_array().into_iter().flatten();
            words.filter_map(|word| word.as_str().map(str::to_owned)).collect()
        };
        let pattern = schema["pattern"].as_str();
        let pattern = pattern.filter(|pattern| !pattern.is_empty() && pattern.len() <= PATTERN_BYTES_MAX);
        Self {
            required: words("required"),
            allowed: schema["enum"].as_array().cloned().unwrap_or_default(),
            minimum: schema["minimum"].as_f64(),
            exclusive_minimum: schema["exclusiveMinimum"] == true,
            maximum: schema["maximum"].as_f64(),
            exclusive_maximum: schema["exclusiveMaximum"] == true,
            multiple_of: schema["multipleOf"].as_f64().filter(|factor| *factor > 0.0),
            min_length: count("minLength"),
            max_length: count("maxLength"),
            pattern: pattern.and_then(|pattern| Regex::new(pattern).ok()),
            min_items: count("minItems"),
            max_items: count("maxItems"),
            min_properties: count("minProperties"),
            max_properties: count("maxProperties"),
            unique: match schema["x-kubernetes-list-type"].as_str() {
                Some("set") => Unique::Items,
                Some("map") => Unique::Keys(words("x-kubernetes-list-map-keys")),
                _ => Unique::No,
            },
        }
    }
}

/// Adds what is wrong with `value` at `path`; `old` is the value in its place before.
pub(super) fn check(node: &Node, path: &str, value: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    if old == Some(value) {
        return;
    }
    check_type(node, path, value, errors);
    match value {
        Value::String(text) => check_text(&node.limits, path, text, errors),
        Value::Number(_) => check_number(&node.limits, path, value, errors),
        Value::Array(items) => check_items(node, path, items, errors),
        _ => {}
    }
    check_allowed(&node.limits, path, value, errors);
    if let Value::Object(members) = value {
        check_members(node, path, members, old, errors);
    }
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

fn check_type(node: &Node, path: &str, value: &Value, errors: &mut Vec<FieldError>) {
    let found = type_of(value);
    let is_whole = || value.as_f64().is_some_and(|number| number.fract() == 0.0);
    let fits = |wanted: &&str| match (*wanted, found) {
        ("number", "integer") => true,
        ("integer", "number") => is_whole(),
        (wanted, found) => wanted == found,
    };
    if node.types.is_empty() || (value.is_null() && node.nullable) || node.types.iter().any(fits) {
        return;
    }
    let why = format!("{path} in body must be of type {}: \"{found}\"", node.types.join(","));
    errors.push(FieldError::type_invalid(path, found, &why));
}

fn check_text(limits: &Limits, path: &str, text: &str, errors: &mut Vec<FieldError>) {
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
}

fn check_number(limits: &Limits, path: &str, value: &Value, errors: &mut Vec<FieldError>) {
    let number = value.as_f64().unwrap_or_default();
    let mut refuse = |what: String| {
        let why = format!("{path} in body should be {what}");
        errors.push(FieldError::invalid(path, value.clone(), &why));
    };
    if let Some(factor) = limits.multiple_of.filter(|factor| (number / factor).fract() != 0.0) {
        refuse(format!("a multiple of {factor}"));
    }
    match limits.maximum {
        Some(most) if limits.exclusive_maximum && number >= most => refuse(format!("less than {most}")),
        Some(most) if number > most => refuse(format!("less than or equal to {most}")),
        _ => {}
    }
    match limits.minimum {
        Some(least) if limits.exclusive_minimum && number <= least => refuse(format!("greater than {least}")),
        Some(least) if number < least => refuse(format!("greater than or equal to {least}")),
        _ => {}
    }
}

fn check_items(node: &Node, path: &str, items: &[Value], errors: &mut Vec<FieldError>) {
    if let Some(inner) = &node.items {
        for (index, item) in items.iter().enumerate() {
            check(inner, &format!("{path}[{index}]"), item, None, errors);
        }
    }
    let count = items.len() as u64;
    if let Some(least) = node.limits.min_items.filter(|least| count < *least) {
        let why = format!("{path} in body should have at least {least} items");
        errors.push(FieldError::invalid(path, count, &why));
    }
    if let Some(most) = node.limits.max_items.filter(|most| count > *most) {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        errors.push(FieldError::too_many(path, items.len(), most));
    }
    let id = |item: &Value| match &node.limits.unique {
        Unique::No => None,
        Unique::Items => Some(item.clone()),
        Unique::Keys(keys) => {
            let members = keys
                .iter()
                .filter_map(|key| Some((key.clone(), item.get(key)?.clone())));
            Some(Value::Object(members.collect()))
        }
    };
    let mut seen = std::collections::HashSet::new();
    for (index, item) in items.iter().enumerate() {
        if let Some(id) = id(item).filter(|id| !seen.insert(id.to_string())) {
            errors.push(FieldError::duplicate(format!("{path}[{index}]"), id));
        }
    }
}

fn check_allowed(limits: &Limits, path: &str, value: &Value, errors: &mut Vec<FieldError>) {
    if limits.allowed.is_empty() || limits.allowed.contains(value) {
        return;
    }
    let shown: Vec<String> = limits
        .allowed
        .iter()
        .map(|allowed| allowed.as_str().map_or_else(|| allowed.to_string(), str::to_owned))
        .collect();
    let shown: Vec<&str> = shown.iter().map(String::as_str).collect();
    errors.push(FieldError::not_supported(path, value.clone(), &shown));
}

fn check_members(
    node: &Node,
    path: &str,
    members: &serde_json::Map<String, Value>,
    old: Option<&Value>,
    errors: &mut Vec<FieldError>,
) {
    let count = members.len() as u64;
    if let Some(least) = node.limits.min_properties.filter(|least| count < *least) {
        let why = format!("{path} in body should have at least {least} properties");
        errors.push(FieldError::invalid(path, count, &why));
    }
    if let Some(most) = node.limits.max_properties.filter(|most| count > *most) {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        errors.push(FieldError::too_many(path, members.len(), most));
    }
    for (name, value) in members {
        let inner = match (node.properties.get(name), &node.additional) {
            (Some(property), _) => property,
            (None, Additional::Each(each)) => each,
            (None, Additional::Any | Additional::None) => continue,
        };
        let old = old.and_then(|old| old.get(name));
        check(inner, &join(path, name), value, old, errors);
    }
    for name in &node.limits.required {
        if !members.contains_key(name) {
            errors.push(FieldError::required(join(path, name), ""));
        }
    }
}
