//! Effect of a custom resource's schema on its objects: unknown fields are removed, absent fields get their defaults,
//! and forbidden values are reported.
//!
//! Supported are types, members, items, limits, `pattern`, `format`, `enum`, `nullable`, `default`, `allOf`, `anyOf`,
//! `oneOf`, `not`, and the extensions for unknown fields, lists and embedded objects. Not enforced are rules in CEL and
//! a few formats, which [`not_enforced`] lists. [`check`] rejects patterns that cannot be compiled.
//!
//! ```
//! use serde_json::json;
//! use yurt_apiextensions::structural::Structural;
//!
//! let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "required": ["color"], "properties": {
//!     "color": {"type": "string"}, "size": {"type": "integer", "maximum": 9, "default": 3}}}}});
//! let schema = Structural::of(&schema);
//! let mut object = json!({"spec": {"odd": 1}});
//! assert_eq!(schema.shape(&mut object), ["spec.odd"]);
//! assert_eq!(object, json!({"spec": {"size": 3}}));
//! assert_eq!(schema.validate(&object, None).len(), 1, "a color is required");
//! ```

use std::collections::BTreeMap;

use serde_json::Value;

use yurt_apimachinery::json_text;
use yurt_apimachinery::status::{ErrorList, FieldError};

mod combined;
mod embedded;
mod formats;
mod lists;
mod numbers;
mod path;
mod pattern;
mod shape;
mod unsupported;
mod validate;
mod visit;

use combined::Combined;
use path::Path;
pub use unsupported::{check, not_enforced};
pub use validate::Limits;

/// The schema of one version of a kind.
#[derive(Debug)]
pub struct Structural {
    root: Node,
    /// True if there are objects within its objects.
    has_embedded: bool,
}

/// The schema of one value.
#[derive(Debug, Default)]
pub struct Node {
    /// JSON types it may have; empty: any.
    pub types: Vec<&'static str>,
    nullable: bool,
    /// Members without a schema stay.
    pub preserves: bool,
    /// An object with a type and metadata of its own.
    pub embedded: bool,
    /// Schemas of the members that are listed.
    pub properties: BTreeMap<String, Node>,
    /// Members that are not listed.
    pub additional: Additional,
    /// Schema of the items of a list.
    pub items: Option<Box<Node>>,
    /// The value if it is absent.
    pub default: Option<Value>,
    /// Constraints in addition to the type.
    pub limits: Limits,
    combined: Option<Box<Combined>>,
    /// True if the map is owned and replaced as a whole.
    pub is_atomic_map: bool,
}

/// Members that are not listed.
#[derive(Debug, Default)]
pub enum Additional {
    /// There are none.
    #[default]
    None,
    /// Any key, with any value.
    Any,
    /// Any key, with values of this schema.
    Each(Box<Node>),
}

/// All JSON types.
const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];

/// The texts of a list.
fn words(list: &Value) -> Vec<String> {
    let words = list.as_array().into_iter().flatten();
    words.filter_map(|word| word.as_str().map(str::to_owned)).collect()
}

// === impl Structural ===

impl Structural {
    /// Reads an OpenAPI v3 schema. Parts that are not supported, and those that [`check`] rejects, are not enforced.
    pub fn of(schema: &Value) -> Self {
        // The numbers of objects are settled, too: enumerations and defaults have to equal them.
        let mut schema = schema.clone();
        json_text::settle_numbers(&mut schema);
        let mut root = Node::of(&schema);
        let has_embedded = root.inner().any(Node::has_embedded);
        // The outermost object has a type and metadata, regardless of its schema.
        root.embedded = true;
        Self { root, has_embedded }
    }

    /// Removes fields that the schema does not know and fills in its defaults. Returns the paths of the removed fields,
    /// sorted, 100 at most. Of the type and the metadata of objects within the object, values of another type and
    /// unknown fields are removed as well, and not returned.
    pub fn shape(&self, object: &mut Value) -> Vec<String> {
        let unknown = self.prune(object);
        if self.has_embedded {
            embedded::repair(&self.root, object);
        }
        shape::fill(object, &self.root);
        unknown
    }

    /// As [`shape`](Self::shape), for an object that a client wrote. Returns its faults: `unknown field "…"`.
    ///
    /// # Errors
    /// The type or the metadata of an object within it has a value of another type.
    pub fn read(&self, object: &mut Value) -> Result<Vec<String>, FieldError> {
        let unknown = self.prune(object).into_iter();
        let mut faults: Vec<String> = unknown.map(|path| format!("unknown field \"{path}\"")).collect();
        if self.has_embedded {
            faults.extend(embedded::read(&self.root, object)?);
        }
        shape::fill(object, &self.root);
        Ok(faults)
    }

    fn prune(&self, object: &mut Value) -> Vec<String> {
        let unknown = shape::prune(object, &self.root);
        shape::drop_nulls(object, &self.root);
        unknown
    }

    /// Errors in the values of an object, with kube-apiserver's texts. Values that an update leaves as they were in
    /// `old` are accepted. Items that occur twice are accepted if `old` has any such items.
    pub fn validate(&self, object: &Value, old: Option<&Value>) -> ErrorList {
        let mut errors = ErrorList::default();
        validate::check(&self.root, &mut Path::default(), object, old, &mut errors);
        let repeated = lists::repeated(&self.root, object);
        let is_new = |old| lists::repeated(&self.root, old).is_empty();
        if !repeated.is_empty() && old.is_none_or(is_new) {
            errors.append(repeated);
        }
        errors
    }

    /// Errors in the type and metadata of objects within the object. An update answers for those that it keeps, too.
    pub fn validate_embedded(&self, object: &Value) -> ErrorList {
        embedded::faults(&self.root, object)
    }

    /// The schema of the whole object.
    pub fn root(&self) -> &Node {
        &self.root
    }
}

// === impl Node ===

impl Node {
    fn of(schema: &Value) -> Self {
        let is = |name: &str| schema[name] == true;
        let types = if is("x-kubernetes-int-or-string") {
            vec!["integer", "string"]
        } else {
            TYPES.into_iter().filter(|name| schema["type"] == *name).collect()
        };
        let properties = schema["properties"].as_object().into_iter().flatten();
        Self {
            types,
            nullable: is("nullable"),
            preserves: is("x-kubernetes-preserve-unknown-fields"),
            embedded: is("x-kubernetes-embedded-resource"),
            properties: properties
                .map(|(name, schema)| (name.clone(), Self::of(schema)))
                .collect(),
            additional: match &schema["additionalProperties"] {
                Value::Object(_) => Additional::Each(Box::new(Self::of(&schema["additionalProperties"]))),
                Value::Bool(true) => Additional::Any,
                _ => Additional::None,
            },
            items: schema["items"]
                .is_object()
                .then(|| Box::new(Self::of(&schema["items"]))),
            default: schema.get("default").filter(|default| !default.is_null()).cloned(),
            limits: Limits::of(schema),
            combined: Combined::of(schema).map(Box::new),
            is_atomic_map: schema["x-kubernetes-map-type"] == "atomic",
        }
    }

    /// Schemas of its members and items.
    fn inner(&self) -> impl Iterator<Item = &Self> {
        let each = match &self.additional {
            Additional::Each(each) => Some(&**each),
            Additional::None | Additional::Any => None,
        };
        self.properties.values().chain(each).chain(self.items.as_deref())
    }

    fn has_embedded(&self) -> bool {
        self.embedded || self.inner().any(Self::has_embedded)
    }

    /// True if a null here counts as an absent value.
    fn takes_null_for_nothing(&self, value: &Value) -> bool {
        value.is_null() && !self.nullable
    }
}

#[cfg(test)]
mod tests;
