//! Types that apply uses: those of the schema table, those of a custom resource's schema, and the deduced type of
//! values without a description.

use serde_json::Value;

use super::path::PathElement;
use yurt_apiextensions::structural::{Additional, Node, Structural};
use yurt_apimachinery::json_text;
use yurt_apimachinery::kind::ResourceKind;
use yurt_codec::schema::{self, ApplyRule, Field, FieldType, Message};

/// A type. A number or a reference: copy it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Type<'a>(Repr<'a>);

#[derive(Clone, Copy, Debug)]
enum Repr<'a> {
    /// The outermost object of a built-in kind.
    Root(Message),
    /// The outermost object of another kind without a schema: its metadata is known.
    Custom,
    /// A place that the schema of a custom resource describes.
    Described(Described<'a>),
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

/// A schema, and whether an enclosing one preserves unlisted members.
#[derive(Clone, Copy, Debug)]
struct Described<'a> {
    node: &'a Node,
    keeps: bool,
}

/// Form of a value of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Scalar(Scalar),
    Map { is_atomic: bool },
    List { is_atomic: bool },
}

/// Set of scalars that are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scalar {
    Numeric,
    String,
    Boolean,
    Any,
}

// === impl Type ===

impl<'a> Type<'a> {
    /// The type of objects of a kind; `described` is the schema of a custom kind.
    pub(super) fn of(kind: &ResourceKind, described: Option<&'a Structural>) -> Self {
        let built_in = schema::find(&kind.group, &kind.version, &kind.kind);
        Self(match (built_in, described) {
            (Some(message), _) => Repr::Root(message),
            (None, Some(schema)) => Repr::Described(Described::within(schema.root(), false)),
            (None, None) => Repr::Custom,
        })
    }

    /// True if nothing is known about it: field sets are not fitted to it.
    pub(super) fn is_deduced(self) -> bool {
        matches!(self.0, Repr::Deduced | Repr::Opaque)
    }

    /// Form of a value. A deduced type takes the form of the value; null and absent are maps there.
    pub(super) fn shape(self, value: Option<&Value>) -> Shape {
        let deduced = |is_atomic| match value {
            Some(Value::Array(_)) => Shape::List { is_atomic: true },
            Some(Value::Bool(_) | Value::Number(_) | Value::String(_)) => Shape::Scalar(Scalar::Any),
            Some(Value::Object(_) | Value::Null) | None => Shape::Map { is_atomic },
        };
        match self.0 {
            Repr::Root(_) | Repr::Custom => Shape::Map { is_atomic: false },
            Repr::Described(described) => described.shape(value),
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

    /// The type of a member; `None` if there is none.
    pub(super) fn member(self, name: &str) -> Option<Self> {
        if let Some(declared) = self.declared(name) {
            return Some(declared);
        }
        match self.0 {
            Repr::Custom | Repr::Deduced => Some(Self(Repr::Deduced)),
            Repr::Described(described) => described.unlisted().map(Self),
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
        match self.0 {
            Repr::Root(message) => type_meta(name).or_else(|| of_field(message, name)),
            Repr::Custom => of_any_object(name),
            Repr::Described(described) => described.member(name),
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
            Repr::Described(described) => Self(described.item()),
            _ => Self(Repr::Opaque),
        }
    }

    /// Identifies an element of a list that is not atomic.
    ///
    /// # Errors
    /// An element without identity, with upstream's text.
    pub(super) fn item(self, item: &Value) -> Result<PathElement, String> {
        let keys: Vec<(&str, Option<Value>)> = match self.0 {
            Repr::Field(field) => {
                let parsed = |default: Option<&str>| json_text::parse(default?.as_bytes()).ok();
                field
                    .apply_keys()
                    .map(|(key, default)| (key, parsed(default)))
                    .collect()
            }
            Repr::Described(described) => described.item_keys().collect(),
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
        let of_key = |(key, default): &(&str, Option<Value>)| {
            let value = members.get(*key).or(default.as_ref())?;
            Some(((*key).to_owned(), value.clone()))
        };
        let mut found: Vec<_> = keys.iter().filter_map(of_key).collect();
        if found.is_empty() {
            let names: Vec<String> = keys
                .iter()
                .map(|(key, _)| yurt_apimachinery::text::go_quote(key))
                .collect();
            let names = names.join(" ");
            return Err(format!(
                "associative list with keys has an element that omits all key fields [{names}] (and doesn't have default \
                 values for any key fields)"
            ));
        }
        found.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        Ok(PathElement::Key(found))
    }
}

// === impl Described ===

impl<'a> Described<'a> {
    fn within(node: &'a Node, keeps: bool) -> Self {
        let keeps = keeps || node.preserves;
        Self { node, keeps }
    }

    /// A schema that allows several types, or any, takes the form of the value.
    fn shape(self, value: Option<&Value>) -> Shape {
        let list = Shape::List {
            is_atomic: self.node.limits.item_keys().is_none(),
        };
        let map = Shape::Map {
            is_atomic: self.node.is_atomic_map,
        };
        match self.node.types.as_slice() {
            ["object"] => map,
            ["array"] => list,
            ["integer" | "number"] => Shape::Scalar(Scalar::Numeric),
            ["boolean"] => Shape::Scalar(Scalar::Boolean),
            ["string"] if !self.node.limits.has_format() => Shape::Scalar(Scalar::String),
            ["string"] => Shape::Scalar(Scalar::Any),
            _ => match value {
                Some(Value::Array(_)) => list,
                Some(Value::Bool(_) | Value::Number(_) | Value::String(_)) => Shape::Scalar(Scalar::Any),
                Some(Value::Object(_) | Value::Null) | None => map,
            },
        }
    }

    fn member(self, name: &str) -> Option<Type<'a>> {
        if let Some(known) = of_any_object(name).filter(|_| self.node.embedded) {
            return Some(known);
        }
        let property = self.node.properties.get(name)?;
        Some(Type(Repr::Described(Self::within(property, self.keeps))))
    }

    /// The type of members that are not listed.
    fn unlisted(self) -> Option<Repr<'a>> {
        match &self.node.additional {
            Additional::Each(each) => Some(Repr::Described(Self::within(each, self.keeps))),
            Additional::Any => Some(Repr::Deduced),
            Additional::None => {
                let is_free = self.keeps || (self.node.properties.is_empty() && !self.node.embedded);
                is_free.then_some(Repr::Deduced)
            }
        }
    }

    fn item(self) -> Repr<'a> {
        match &self.node.items {
            Some(item) => Repr::Described(Self::within(item, self.keeps)),
            None => Repr::Opaque,
        }
    }

    /// The members that identify items, with their defaults.
    fn item_keys(self) -> impl Iterator<Item = (&'a str, Option<Value>)> {
        let default = move |key: &str| self.node.items.as_ref()?.properties.get(key)?.default.clone();
        let keys = self.node.limits.item_keys().unwrap_or_default().iter();
        keys.map(move |key| (key.as_str(), default(key)))
    }
}

fn of_field<'a>(message: Message, name: &str) -> Option<Type<'a>> {
    message.field(name).map(|field| Type(Repr::Field(field)))
}

fn type_meta<'a>(name: &str) -> Option<Type<'a>> {
    matches!(name, "apiVersion" | "kind").then_some(Type(Repr::Text))
}

/// Members of every object: its type, and metadata.
fn of_any_object<'a>(name: &str) -> Option<Type<'a>> {
    type_meta(name).or_else(|| (name == "metadata").then(|| Type(Repr::Field(schema::metadata()))))
}

fn set_item(item: &Value) -> Result<PathElement, String> {
    match item {
        Value::Object(_) => Err("associative list without keys has an element that's a map type".to_owned()),
        Value::Array(_) => Err("not supported: associative list with lists as elements".to_owned()),
        Value::Null => Err("associative list without keys has an element that's an explicit null".to_owned()),
        scalar => Ok(PathElement::Value(scalar.clone())),
    }
}
