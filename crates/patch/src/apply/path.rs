//! One step of the path to a field: the name of a member, or the element of a list.

use std::cmp::Ordering;
use std::fmt;

use serde_json::{Map, Value};

use yurt_apimachinery::json_text;
use yurt_apimachinery::text::go_quote;

/// A step. The order is that of structured-merge-diff: it determines the order of FieldsV1 and of conflicts.
#[derive(Clone, Debug)]
pub(super) enum PathElement {
    /// A member of a structure or map.
    Field(String),
    /// The element of a keyed list with these values, sorted by name.
    Key(Vec<(String, Value)>),
    /// The element of a set.
    Value(Value),
    /// The element at an index; only read, never made.
    Index(i64),
}

/// The path from the root.
pub(super) type Path = Vec<PathElement>;

/// A key of FieldsV1 that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("parsing key as path element: {0}")]
pub(super) struct BadElement(String);

/// Equal values compare as equal whether a number is written as an integer or not.
pub(super) fn compare(a: &Value, b: &Value) -> Ordering {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => match (a.as_i64(), b.as_i64()) {
            (Some(a), Some(b)) => a.cmp(&b),
            _ => a
                .as_f64()
                .unwrap_or_default()
                .total_cmp(&b.as_f64().unwrap_or_default()),
        },
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Array(a), Value::Array(b)) => in_order(a.iter().zip(b).map(|(a, b)| compare(a, b)), a.len(), b.len()),
        (Value::Object(a), Value::Object(b)) => {
            let pairs = a
                .iter()
                .zip(b)
                .map(|((a, x), (b, y))| a.cmp(b).then_with(|| compare(x, y)));
            in_order(pairs, a.len(), b.len())
        }
        _ => rank(a).cmp(&rank(b)),
    }
}

fn in_order(mut pairs: impl Iterator<Item = Ordering>, a: usize, b: usize) -> Ordering {
    pairs.find(|order| order.is_ne()).unwrap_or_else(|| a.cmp(&b))
}

fn rank(value: &Value) -> u8 {
    match value {
        Value::Number(_) => 0,
        Value::String(_) => 1,
        Value::Bool(_) => 2,
        Value::Array(_) => 3,
        Value::Object(_) => 4,
        Value::Null => 5,
    }
}

/// A path as messages show it: `.spec.ports[port=80,protocol="TCP"].name`.
pub(super) fn display(path: &[impl std::borrow::Borrow<PathElement>]) -> String {
    path.iter().map(|element| element.borrow().to_string()).collect()
}

// === impl PathElement ===

impl PathElement {
    /// The step for a key of FieldsV1; `None` for an unknown sort, which is skipped.
    ///
    /// # Errors
    /// Text without a sort, or whose rest is not of that sort.
    pub(super) fn parse(key: &str) -> Result<Option<Self>, BadElement> {
        let bad = |why: &str| BadElement(format!("{why}: {key}"));
        let Some((sort, rest)) = key.split_once(':').filter(|(sort, _)| sort.len() == 1) else {
            return Err(bad("missing colon"));
        };
        let json = |error: serde_json::Error| bad(&error.to_string());
        Ok(Some(match sort {
            "f" => Self::Field(rest.to_owned()),
            "v" => Self::Value(json_text::parse(rest.as_bytes()).map_err(json)?),
            "k" => {
                let keys = json_text::parse_object(rest.as_bytes()).map_err(json)?;
                let mut keys: Vec<_> = keys.into_iter().collect();
                keys.sort_by(|(a, _), (b, _)| a.cmp(b));
                Self::Key(keys)
            }
            "i" => Self::Index(rest.parse().map_err(|_| bad("no index"))?),
            _ => return Ok(None),
        }))
    }

    /// The key of FieldsV1.
    pub(super) fn to_key(&self) -> String {
        match self {
            Self::Field(name) => format!("f:{name}"),
            Self::Key(keys) => {
                let keys: Map<String, Value> = keys.iter().cloned().collect();
                format!("k:{}", Value::Object(keys))
            }
            Self::Value(value) => format!("v:{value}"),
            Self::Index(index) => format!("i:{index}"),
        }
    }

    fn sort(&self) -> u8 {
        match self {
            Self::Field(_) => 0,
            Self::Key(_) => 1,
            Self::Value(_) => 2,
            Self::Index(_) => 3,
        }
    }
}

impl Ord for PathElement {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Field(a), Self::Field(b)) => a.cmp(b),
            (Self::Key(a), Self::Key(b)) => {
                let pairs = a
                    .iter()
                    .zip(b)
                    .map(|((a, x), (b, y))| a.cmp(b).then_with(|| compare(x, y)));
                in_order(pairs, a.len(), b.len())
            }
            (Self::Value(a), Self::Value(b)) => compare(a, b),
            (Self::Index(a), Self::Index(b)) => a.cmp(b),
            _ => self.sort().cmp(&other.sort()),
        }
    }
}

impl PartialOrd for PathElement {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for PathElement {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for PathElement {}

impl fmt::Display for PathElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |value: &Value| match value {
            Value::String(text) => go_quote(text),
            other => other.to_string(),
        };
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Key(keys) => {
                let keys: Vec<String> = keys
                    .iter()
                    .map(|(name, value)| format!("{name}={}", text(value)))
                    .collect();
                write!(f, "[{}]", keys.join(","))
            }
            Self::Value(value) => write!(f, "[={}]", text(value)),
            Self::Index(index) => write!(f, "[{index}]"),
        }
    }
}
