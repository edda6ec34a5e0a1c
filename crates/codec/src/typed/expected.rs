//! Type of value that a field, an element or the outermost object takes, and its name in Go.

use crate::schema::{Field, FieldType, Message};

/// Type of value expected at one place.
#[derive(Clone, Copy)]
pub(super) enum Expected {
    /// The outermost object, which also has the members of its type.
    Root(Message),
    /// The value of a field.
    Field(Field),
    /// One element of a list or map.
    Element(Field),
    /// One text of a list of texts that is an element itself.
    Text,
}

// === impl Expected ===

impl Expected {
    /// The structure whose members are allowed here.
    pub(super) fn message(self) -> Option<Message> {
        match self {
            Self::Root(message) => Some(message),
            Self::Field(field) if field.is_list() || field.is_map() => None,
            Self::Field(field) | Self::Element(field) => field.message(),
            Self::Text => None,
        }
    }

    pub(super) fn list(self) -> Option<Field> {
        match self {
            Self::Field(field) if field.is_list() => Some(field),
            _ => None,
        }
    }

    pub(super) fn map(self) -> Option<Field> {
        match self {
            Self::Field(field) if field.is_map() => Some(field),
            _ => None,
        }
    }

    /// The type of a single value; `None` for lists, maps or structures.
    pub(super) fn scalar(self) -> Option<FieldType> {
        let field = match self {
            Self::Root(_) => return None,
            Self::Text => return Some(FieldType::String),
            Self::Field(field) if field.is_list() || field.is_map() => return None,
            Self::Field(field) | Self::Element(field) => field,
        };
        Some(field.ty()).filter(|ty| *ty != FieldType::Message)
    }

    /// True if any JSON is allowed here.
    pub(super) fn is_free(self) -> bool {
        matches!(self.scalar(), Some(FieldType::FieldsV1 | FieldType::RawExtension))
    }

    /// The Go type.
    pub(super) fn go_type(self) -> String {
        let element = |field: Field| match field.ty() {
            FieldType::Bool => "bool".to_owned(),
            FieldType::Int32 => "int32".to_owned(),
            FieldType::Int64 => "int64".to_owned(),
            FieldType::String | FieldType::Time | FieldType::MicroTime | FieldType::Duration => "string".to_owned(),
            FieldType::Bytes => "[]uint8".to_owned(),
            FieldType::Quantity => "resource.Quantity".to_owned(),
            FieldType::IntOrString => "int32".to_owned(),
            FieldType::FieldsV1 => "v1.FieldsV1".to_owned(),
            FieldType::RawExtension => "runtime.RawExtension".to_owned(),
            FieldType::StringList => "[]string".to_owned(),
            FieldType::Message => format!("v1.{}", field.message().map(short).unwrap_or_default()),
        };
        match self {
            Self::Root(message) => format!("v1.{}", short(message)),
            Self::Text => "string".to_owned(),
            Self::Field(field) if field.is_list() => format!("[]{}", element(field)),
            Self::Field(field) if field.is_map() => format!("map[string]{}", element(field)),
            Self::Field(field) | Self::Element(field) => element(field),
        }
    }
}

/// The last part of a type's name: `PodSpec`.
pub(super) fn short(message: Message) -> &'static str {
    message.name().rsplit('.').next().unwrap_or_default()
}
