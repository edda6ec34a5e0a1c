//! Validation of a value against a type: undeclared members, scalars of another sort, list elements without a unique
//! identity.

use std::collections::BTreeSet;

use serde_json::Value;

use super::path::PathElement;
use super::types::{Scalar, Shape, Type};
use yurt_apimachinery::text::go_value;

/// Most faults that are listed; further ones add no information.
const ERRORS_MAX: usize = 100;
/// Most bytes of faults: each fault repeats its path, so no further one is listed beyond it.
const FAULTS_BYTES_MAX: usize = 64 << 10;

/// Checks a value; duplicate elements of lists are faults unless `allow_duplicates`.
///
/// # Errors
/// The faults, with structured-merge-diff's texts.
pub(super) fn validate(ty: Type<'_>, value: &Value, allow_duplicates: bool) -> Result<(), String> {
    let mut walk = Walk {
        allow_duplicates,
        path: Vec::new(),
        faults: Vec::new(),
    };
    walk.value(ty, value);
    match walk.faults.as_slice() {
        [] => Ok(()),
        [one] => Err(one.clone()),
        many => Err(format!("errors:\n  {}", many.join("\n  "))),
    }
}

struct Walk {
    allow_duplicates: bool,
    path: Vec<String>,
    faults: Vec<String>,
}

// === impl Walk ===

impl Walk {
    fn fault(&mut self, what: &str) {
        let told: usize = self.faults.iter().map(String::len).sum();
        if self.faults.len() >= ERRORS_MAX || told >= FAULTS_BYTES_MAX {
            return;
        }
        let path = self.path.concat();
        let separator = if path.is_empty() { "" } else { ": " };
        self.faults.push(format!("{path}{separator}{what}"));
    }

    fn below(&mut self, element: &PathElement, check: impl FnOnce(&mut Self)) {
        self.path.push(element.to_string());
        check(self);
        self.path.pop();
    }

    fn value(&mut self, ty: Type<'_>, value: &Value) {
        match (ty.shape(Some(value)), value) {
            (_, Value::Null) => {}
            (Shape::Scalar(scalar), value) => {
                if let Some(what) = scalar_fault(scalar, value) {
                    self.fault(&what);
                }
            }
            (Shape::List { is_atomic }, Value::Array(items)) => self.items(ty, is_atomic, items),
            (Shape::List { .. }, other) => self.fault(&format!("expected list, got &{{{}}}", go_value(other))),
            (Shape::Map { .. }, Value::Object(members)) => {
                for (name, member) in members {
                    let inner = ty.member(name);
                    self.below(&PathElement::Field(name.clone()), |walk| match inner {
                        Some(inner) => walk.value(inner, member),
                        None => walk.fault("field not declared in schema"),
                    });
                }
            }
            (Shape::Map { .. }, other) => self.fault(&format!("expected map, got &{{{}}}", go_value(other))),
        }
    }

    fn items(&mut self, ty: Type<'_>, is_atomic: bool, items: &[Value]) {
        let mut seen = BTreeSet::new();
        for (index, item) in items.iter().enumerate() {
            let element = if is_atomic {
                Ok(PathElement::Index(i64::try_from(index).unwrap_or(i64::MAX)))
            } else {
                ty.item(item)
            };
            let element = match element {
                Ok(element) => element,
                Err(why) => return self.fault(&format!("element {index}: {why}")),
            };
            if !is_atomic && !seen.insert(element.clone()) && !self.allow_duplicates {
                self.fault(&format!("duplicate entries for key {element}"));
            }
            self.below(&element, |walk| walk.value(ty.element(), item));
        }
    }
}

fn scalar_fault(scalar: Scalar, value: &Value) -> Option<String> {
    let shown = go_value(value);
    match (scalar, value) {
        (Scalar::Numeric, Value::Number(_))
        | (Scalar::String, Value::String(_))
        | (Scalar::Boolean, Value::Bool(_)) => None,
        (Scalar::Any, Value::Number(_) | Value::String(_) | Value::Bool(_)) => None,
        (Scalar::Numeric, other) => {
            let sort = match other {
                Value::String(_) => "string",
                Value::Bool(_) => "bool",
                Value::Array(_) => "[]interface {}",
                _ => "map[string]interface {}",
            };
            Some(format!("expected numeric (int or float), got {sort}"))
        }
        (Scalar::String, _) => Some(format!(
            "expected string, got &value.valueUnstructured{{Value:{shown}}}"
        )),
        (Scalar::Boolean, _) => Some(format!("expected boolean, got &{{{shown}}}")),
        (Scalar::Any, _) => Some(format!("expected any scalar, got &{{{shown}}}")),
    }
}
