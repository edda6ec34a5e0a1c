//! The types that apply walks by: those of the schema table, and the deduced one of values nobody described.

use serde_json::Value;

use super::path::PathElement;
use crate::kind::ResourceKind;
use crate::schema::{self, ApplyRule, Field, FieldType, Message};

/// A type. A number: copy it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Type(Repr);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Repr {
    /// The outermost object of a built-in kind.
    Root(Message),
    /// The outermost object of another kind: its metadata is known.
    Custom,
    /// Maps are granular, lists atomic.
    Deduced,
    /// Everything is atomic.
    Opaque,
    /// A string.
    Text,
    /// The value of a field.
    Field(Field),
    /// One element of a list or map.
    Element(Field),
}

/// What a value of a type is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Scalar(Scalar),
    Map { is_atomic: bool },
    List { is_atomic: bool },
}

/// Which scalars are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scalar {
    Numeric,
    String,
    Boolean,
    Any,
}

// === impl Type ===

impl Type {
    /// The type of a kind's objects.
    pub(super) fn of(kind: &ResourceKind) -> Self {
        let found = schema::find(&kind.group, &kind.version, &kind.kind);
        Self(found.map_or(Repr::Custom, Repr::Root))
    }

    /// Whether nothing is known about it: field sets are not fitted to it.
    pub(super) fn is_deduced(self) -> bool {
        matches!(self.0, Repr::Deduced | Repr::Opaque)
    }

    /// What a value is. A deduced type takes the form of the value; null and nothing are maps there.
    pub(super) fn shape(self, value: Option<&Value>) -> Shape {
        let deduced = |is_atomic| match value {
            Some(Value::Array(_)) => Shape::List { is_atomic: true },
            Some(Value::Bool(_) | Value::Number(_) | Value::String(_)) => Shape::Scalar(Scalar::Any),
            Some(Value::Object(_) | Value::Null) | None => Shape::Map { is_atomic },
        };
        match self.0 {
            Repr::Root(_) | Repr::Custom => Shape::Map { is_atomic: false },
            Repr::Deduced => deduced(false),
            Repr::Opaque => deduced(true),
            Repr::Text => Shape::Scalar(Scalar::String),
            Repr::Field(field) if field.is_list() => Shape::List {
                is_atomic: field.apply_rule() == ApplyRule::Atomic,
            },
            Repr::Field(field) if field.is_map() => Shape::Map {
                is_atomic: field.apply_rule() == ApplyRule::Atomic,
            },
            Repr::Field(field) if field.apply_rule() == ApplyRule::Atomic => Shape::Map { is_atomic: true },
            Repr::Field(field) | Repr::Element(field) => match field.ty() {
                FieldType::Message => Shape::Map {
                    is_atomic: field.message().is_some_and(Message::is_atomic),
                },
                FieldType::FieldsV1 | FieldType::RawExtension => deduced(false),
                FieldType::StringList => Shape::List { is_atomic: true },
                FieldType::Bool => Shape::Scalar(Scalar::Boolean),
                FieldType::Int32 | FieldType::Int64 => Shape::Scalar(Scalar::Numeric),
                FieldType::String | FieldType::Bytes | FieldType::Duration => Shape::Scalar(Scalar::String),
                FieldType::Time | FieldType::MicroTime | FieldType::Quantity | FieldType::IntOrString => {
                    Shape::Scalar(Scalar::Any)
                }
            },
        }
    }

    /// The type of a member; `None` where it has none.
    pub(super) fn member(self, name: &str) -> Option<Self> {
        if let Some(declared) = self.declared(name) {
            return Some(declared);
        }
        match self.0 {
            Repr::Custom | Repr::Deduced => Some(Self(Repr::Deduced)),
            Repr::Opaque => Some(self),
            Repr::Field(field) if field.is_map() => Some(Self(Repr::Element(field))),
            Repr::Field(field) | Repr::Element(field) => match field.ty() {
                FieldType::FieldsV1 | FieldType::RawExtension => Some(Self(Repr::Deduced)),
                _ => None,
            },
            Repr::Root(_) | Repr::Text => None,
        }
    }

    /// The type of a member that the type names, unlike the entries of a map.
    pub(super) fn declared(self, name: &str) -> Option<Self> {
        let type_meta = matches!(name, "apiVersion" | "kind").then_some(Self(Repr::Text));
        match self.0 {
            Repr::Root(message) => type_meta.or_else(|| of_field(message, name)),
            Repr::Custom => type_meta.or_else(|| (name == "metadata").then(metadata).flatten()),
            Repr::Field(field) if field.is_list() || field.is_map() => None,
            Repr::Field(field) | Repr::Element(field) => of_field(field.message()?, name),
            Repr::Deduced | Repr::Opaque | Repr::Text => None,
        }
    }

    /// The type of a list's elements.
    pub(super) fn element(self) -> Self {
        match self.0 {
            Repr::Field(field) if field.is_list() => Self(Repr::Element(field)),
            Repr::Field(field) | Repr::Element(field) if field.ty() == FieldType::StringList => Self(Repr::Text),
            _ => Self(Repr::Opaque),
        }
    }

    /// What tells an element of a list that is not atomic from the others.
    ///
    /// # Errors
    /// An element that has no such thing, in upstream's words.
    pub(super) fn item(self, item: &Value) -> Result<PathElement, String> {
        let keys: Vec<_> = match self.0 {
            Repr::Field(field) => field.apply_keys().collect(),
            _ => Vec::new(),
        };
        if keys.is_empty() {
            return set_item(item);
        }
        let Value::Object(members) = item else {
            let what = if item.is_null() {
                "a null element"
            } else {
                "non-map elements"
            };
            return Err(format!("associative list with keys may not have {what}"));
        };
        let of_key = |(key, default): &(&str, Option<&str>)| {
            let default = || serde_json::from_str(default.as_ref()?).ok();
            let value = members.get(*key).cloned().or_else(default)?;
            Some(((*key).to_owned(), value))
        };
        let mut found: Vec<_> = keys.iter().filter_map(of_key).collect();
        if found.is_empty() {
            let names: Vec<String> = keys.iter().map(|(key, _)| crate::text::go_quote(key)).collect();
            let names = names.join(" ");
            return Err(format!(
                "associative list with keys has an element that omits all key fields [{names}] (and doesn't have default \
                 values for any key fields)"
            ));
        }
        found.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(PathElement::Key(found))
    }
}

fn of_field(message: Message, name: &str) -> Option<Type> {
    message.field(name).map(|field| Type(Repr::Field(field)))
}

/// The metadata of every object.
fn metadata() -> Option<Type> {
    of_field(schema::find("", "v1", "ConfigMap")?, "metadata")
}

fn set_item(item: &Value) -> Result<PathElement, String> {
    match item {
        Value::Object(_) => Err("associative list without keys has an element that's a map type".to_owned()),
        Value::Array(_) => Err("not supported: associative list with lists as elements".to_owned()),
        Value::Null => Err("associative list without keys has an element that's an explicit null".to_owned()),
        scalar => Ok(PathElement::Value(scalar.clone())),
    }
}
