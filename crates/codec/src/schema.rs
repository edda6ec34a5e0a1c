//! Fields of the built-in types: their protobuf numbers, and the rules by which patches merge them.
//!
//! One table serves the protobuf transcoder, strategic merge patches, server-side apply, field validation and OpenAPI.
//! It is generated from the Go types (`interop/cmd/schema`) and checked in; objects are never decoded into structs.
//!
//! ```
//! use yurt_codec::schema::{self, FieldType};
//!
//! let pod = schema::find("", "v1", "Pod").unwrap();
//! let spec = pod.field("spec").unwrap().message().unwrap();
//! let containers = spec.field("containers").unwrap();
//! assert_eq!((containers.number(), containers.ty()), (2, FieldType::Message));
//! assert_eq!(containers.merge_key(), Some("name"));
//! ```

mod packed;
mod table;

use packed::{PackedField, PackedMessage, Word};

/// A structured type, such as `PodSpec`. A number: copy it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Message(u16);

/// A field of a [`Message`]. A number: copy it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Field(u16);

/// Type of a field's value, or of each element of a list or map. Keys of maps are always strings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldType {
    /// `true` or `false`.
    Bool,
    /// 32 bits, signed; varint.
    Int32,
    /// 64 bits, signed; varint.
    Int64,
    /// UTF-8 text.
    String,
    /// Bytes; base64 in JSON.
    Bytes,
    /// metav1.Time: RFC 3339 with whole seconds in JSON, `{1: seconds, 2: nanos}` in protobuf. Null when zero.
    Time,
    /// metav1.MicroTime: RFC 3339 with six digits in JSON, as `Time` in protobuf.
    MicroTime,
    /// metav1.Duration: Go's notation (`1h30m0s`) in JSON, `{1: nanoseconds}` in protobuf.
    Duration,
    /// resource.Quantity: text (or a number, on input) in JSON, `{1: text}` in protobuf.
    Quantity,
    /// Number or text in JSON, `{1: type (0 number, 1 text), 2: number, 3: text}` in protobuf.
    IntOrString,
    /// metav1.FieldsV1: any JSON object, `{1: its bytes}` in protobuf.
    FieldsV1,
    /// runtime.RawExtension: any JSON, `{1: its bytes}` in protobuf.
    RawExtension,
    /// A list of strings that is a message of its own in protobuf: `{1: repeated string}`.
    StringList,
    /// A structured type: [`Field::message`].
    Message,
}

/// Rule of server-side apply for a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApplyRule {
    /// A scalar, or a structure or map whose members are owned one by one.
    Granular,
    /// Owned and replaced as a whole.
    Atomic,
    /// A list of scalars, each owned for itself.
    Set,
    /// A list of structures identified by [`Field::apply_keys`].
    Keyed,
}

/// The type of an outermost object; kinds of `meta.k8s.io` (Status, DeleteOptions, ListMeta …) are found under that
/// group.
pub fn find(group: &str, version: &str, kind: &str) -> Option<Message> {
    let found = table::ROOTS
        .iter()
        .find(|root| (root.0, root.1, root.2) == (group, version, kind));
    found.map(|root| Message(root.3))
}

/// The field `metadata` of every object.
pub fn metadata() -> Field {
    let metadata = find("", "v1", "ConfigMap").and_then(|message| message.field("metadata"));
    metadata.expect("the table has the metadata of built-in kinds")
}

/// All outermost kinds: group, version, kind, type.
pub fn roots() -> impl Iterator<Item = (&'static str, &'static str, &'static str, Message)> {
    table::ROOTS
        .iter()
        .map(|root| (root.0, root.1, root.2, Message(root.3)))
}

fn text(word: Word) -> &'static str {
    let at = usize::from(word.at);
    &table::NAMES[at..at + usize::from(word.len)]
}

// === impl Message ===

impl Message {
    fn packed(self) -> &'static PackedMessage {
        &table::MESSAGES[usize::from(self.0)]
    }

    /// Name as in OpenAPI, such as `io.k8s.api.core.v1.PodSpec`.
    pub fn name(self) -> &'static str {
        text(self.packed().name)
    }

    /// True if server-side apply owns and replaces it as a whole at every place.
    pub fn is_atomic(self) -> bool {
        self.packed().is_atomic
    }

    /// The fields as declared. One that [is inlined](Field::is_inline) represents the fields of its message.
    pub fn fields(self) -> impl Iterator<Item = Field> {
        let packed = self.packed();
        (packed.first..packed.first + packed.count).map(Field)
    }

    /// The fields as JSON shows them: those of inlined messages in their place.
    pub fn json_fields(self) -> Vec<Field> {
        let mut all = Vec::new();
        for field in self.fields() {
            match field.message() {
                Some(inner) if field.is_inline() => all.extend(inner.json_fields()),
                _ => all.push(field),
            }
        }
        all
    }

    /// The field with a JSON name, also one of an inlined message.
    pub fn field(self, name: &str) -> Option<Field> {
        let inlined = |field: Field| field.message().filter(|_| field.is_inline())?.field(name);
        let direct = self
            .fields()
            .find(|field| field.is_named(name.as_bytes()) && !field.is_inline());
        direct.or_else(|| self.fields().find_map(inlined))
    }

    /// The field with a protobuf number; inlined messages have one, too.
    pub fn field_numbered(self, number: u32) -> Option<Field> {
        self.fields().find(|field| field.number() == number)
    }
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

// === impl Field ===

impl Field {
    fn packed(self) -> &'static PackedField {
        &table::FIELDS[usize::from(self.0)]
    }

    fn has(self, flag: u16) -> bool {
        self.packed().flags & flag != 0
    }

    /// JSON name; empty for an inlined message.
    pub fn name(self) -> &'static str {
        text(self.packed().name)
    }

    /// True if this is the JSON name. Much cheaper than comparing [`Field::name`].
    pub(crate) fn is_named(self, name: &[u8]) -> bool {
        let word = self.packed().name;
        let at = usize::from(word.at);
        usize::from(word.len) == name.len() && table::NAMES.as_bytes().get(at..at + name.len()) == Some(name)
    }

    /// Protobuf field number.
    pub fn number(self) -> u32 {
        u32::from(self.packed().number)
    }

    /// Type of the value, or of each element.
    pub fn ty(self) -> FieldType {
        self.packed().ty
    }

    /// The structured type of the value or of each element.
    pub fn message(self) -> Option<Message> {
        let packed = self.packed();
        (packed.ty == FieldType::Message).then_some(Message(packed.message))
    }

    /// True for a JSON array; a repeated field.
    pub fn is_list(self) -> bool {
        self.has(packed::LIST)
    }

    /// True for a JSON object with free keys; repeated `{1: key, 2: value}` in protobuf.
    pub fn is_map(self) -> bool {
        self.has(packed::MAP)
    }

    /// True if unset differs from zero.
    pub fn is_pointer(self) -> bool {
        self.has(packed::POINTER)
    }

    /// True if nested in protobuf, but flattened into the outer object in JSON.
    pub fn is_inline(self) -> bool {
        self.has(packed::INLINE)
    }

    /// True if kube-apiserver writes the field to JSON even when it is unset: `""`, `0`, `false`, `{}` or `null`.
    pub fn emits_zero(self) -> bool {
        self.has(packed::EMITS_ZERO)
    }

    /// True if a strategic merge patch merges the list instead of replacing it.
    pub fn is_patch_merged(self) -> bool {
        self.has(packed::PATCH_MERGE)
    }

    /// True if a strategic merge patch honours `$retainKeys` here (tag `patchStrategy: retainKeys`).
    pub fn is_patch_retaining_keys(self) -> bool {
        self.has(packed::PATCH_RETAIN_KEYS)
    }

    /// True if a strategic merge patch replaces the structure as a whole (tag `patchStrategy: replace`).
    pub fn is_patch_replaced(self) -> bool {
        self.has(packed::PATCH_REPLACE)
    }

    /// Member that identifies the elements of a list in a strategic merge patch; none for lists of scalars.
    pub fn merge_key(self) -> Option<&'static str> {
        Some(text(self.packed().merge_key)).filter(|key| !key.is_empty())
    }

    /// Rule of server-side apply for the field. Lists without a rule are atomic.
    pub fn apply_rule(self) -> ApplyRule {
        if self.has(packed::APPLY_KEYED) {
            ApplyRule::Keyed
        } else if self.has(packed::APPLY_SET) {
            ApplyRule::Set
        } else if self.has(packed::APPLY_ATOMIC) || self.is_list() {
            ApplyRule::Atomic
        } else {
            ApplyRule::Granular
        }
    }

    /// The keys of a [`ApplyRule::Keyed`] list, each with the default for a missing value, as JSON.
    pub fn apply_keys(self) -> impl Iterator<Item = (&'static str, Option<&'static str>)> {
        let keys = text(self.packed().keys).split(',').filter(|key| !key.is_empty());
        keys.map(|key| match key.split_once('=') {
            Some((name, default)) => (name, Some(default)),
            None => (key, None),
        })
    }
}

impl std::fmt::Debug for Field {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}={}", self.name(), self.number())
    }
}

#[cfg(test)]
mod tests;
