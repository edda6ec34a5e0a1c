//! Types of a group's kinds as OpenAPI 3 schemas, made from the table of types. Custom resources have the schema of
//! their manifest; without one they are objects of any shape.

use serde_json::{Map, Value, json};
use yurt_codec::schema::{self, ApplyRule, Field, FieldType, Message};

use crate::discovery::model::{Entry, Group};

/// Types that are not structures in JSON.
const TIME: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Time";
const MICRO_TIME: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime";
const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";
const INT_OR_STRING: &str = "io.k8s.apimachinery.pkg.util.intstr.IntOrString";

/// Every schema that the kinds of a group version need.
pub(super) fn of(group: &Group) -> Map<String, Value> {
    let mut schemas = Map::new();
    for entry in &group.resources {
        let Some(message) = schema::find(&group.name, &group.version, &entry.kind) else {
            let name = format!("{}.{}.{}", reversed(&group.name), group.version, entry.kind);
            let described = custom(&mut schemas, group, entry);
            schemas.insert(name, described);
            continue;
        };
        add(&mut schemas, message);
        if let Some(Value::Object(root)) = schemas.get_mut(message.name()) {
            describe_root(root, group, entry);
        }
    }
    schemas
}

/// Reverses a group as Go packages are named: `apps.openyurt.io` → `io.openyurt.apps`.
fn reversed(group: &str) -> String {
    group.rsplit('.').collect::<Vec<_>>().join(".")
}

/// The schema of the manifest, with the metadata that every object has.
fn custom(schemas: &mut Map<String, Value>, group: &Group, entry: &Entry) -> Value {
    let mut root = match entry.schema.as_deref() {
        Some(Value::Object(root)) => root.clone(),
        _ => Map::from_iter([("x-kubernetes-preserve-unknown-fields".to_owned(), json!(true))]),
    };
    root.insert("type".into(), json!("object"));
    let properties = root.entry("properties").or_insert_with(|| json!({}));
    if let Some(properties) = properties.as_object_mut() {
        let described = match object_meta() {
            Some(message) => {
                add(schemas, message);
                let reference = json!({ "$ref": format!("#/components/schemas/{}", message.name()) });
                json!({ "allOf": [reference], "description": "What every object has: name, labels, owners and more." })
            }
            None => json!({ "type": "object" }),
        };
        properties.insert("metadata".into(), described);
    }
    describe_root(&mut root, group, entry);
    Value::Object(root)
}

/// The type of `metadata`.
fn object_meta() -> Option<Message> {
    schema::find("meta.k8s.io", "v1", "PartialObjectMetadata")?
        .field("metadata")?
        .message()
}

/// Adds the members that only top-level objects have.
fn describe_root(root: &mut Map<String, Value>, group: &Group, entry: &Entry) {
    if let Some(Value::Object(properties)) = root.get_mut("properties") {
        properties.insert(
            "apiVersion".into(),
            json!({ "type": "string", "description": "Group and version of the object" }),
        );
        properties.insert(
            "kind".into(),
            json!({ "type": "string", "description": "Kind of the object" }),
        );
    }
    let kind = json!({ "group": group.name, "version": group.version, "kind": entry.kind });
    root.insert("x-kubernetes-group-version-kind".into(), json!([kind]));
}

/// Adds a type and all types it refers to. Types may refer to themselves.
fn add(schemas: &mut Map<String, Value>, message: Message) {
    if schemas.contains_key(message.name()) {
        return;
    }
    schemas.insert(message.name().into(), Value::Null);
    let fields = message.json_fields();
    let mut properties = Map::new();
    for field in &fields {
        if let Some(inner) = field.message() {
            add(schemas, inner);
        }
        add_named_scalar(schemas, field.ty());
        properties.insert(field.name().into(), property(*field));
    }
    let mut described = json!({ "type": "object", "properties": properties });
    let required: Vec<&str> = fields
        .iter()
        .filter(|field| is_required(**field))
        .map(|field| field.name())
        .collect();
    if !required.is_empty() {
        described["required"] = json!(required);
    }
    schemas.insert(message.name().into(), described);
}

/// True for fields that Go's types always write; structures are always written and do not count.
fn is_required(field: Field) -> bool {
    let is_structure = field.ty() == FieldType::Message && !field.is_list() && !field.is_map();
    field.emits_zero()
        && !field.is_pointer()
        && !is_structure
        && !matches!(field.ty(), FieldType::Time | FieldType::MicroTime)
}

fn property(field: Field) -> Value {
    let element = element(field);
    let mut described = if field.is_list() {
        json!({ "type": "array", "items": element })
    } else if field.is_map() {
        json!({ "type": "object", "additionalProperties": element })
    } else {
        element
    };
    match field.apply_rule() {
        ApplyRule::Granular => {}
        ApplyRule::Atomic if field.is_list() => described["x-kubernetes-list-type"] = json!("atomic"),
        ApplyRule::Atomic => described["x-kubernetes-map-type"] = json!("atomic"),
        ApplyRule::Set => described["x-kubernetes-list-type"] = json!("set"),
        ApplyRule::Keyed => {
            let keys: Vec<&str> = field.apply_keys().map(|(key, _)| key).collect();
            described["x-kubernetes-list-type"] = json!("map");
            described["x-kubernetes-list-map-keys"] = json!(keys);
        }
    }
    if let Some(key) = field.merge_key() {
        described["x-kubernetes-patch-merge-key"] = json!(key);
    }
    let strategies = [
        (field.is_patch_merged(), "merge"),
        (field.is_patch_retaining_keys(), "retainKeys"),
        (field.is_patch_replaced(), "replace"),
    ];
    let strategies: Vec<&str> = strategies
        .iter()
        .filter(|(is_set, _)| *is_set)
        .map(|(_, name)| *name)
        .collect();
    if !strategies.is_empty() {
        described["x-kubernetes-patch-strategy"] = json!(strategies.join(","));
    }
    described
}

fn element(field: Field) -> Value {
    let reference = |name: &str| json!({ "allOf": [{ "$ref": format!("#/components/schemas/{name}") }] });
    match field.ty() {
        FieldType::Bool => json!({ "type": "boolean" }),
        FieldType::Int32 => json!({ "type": "integer", "format": "int32" }),
        FieldType::Int64 => json!({ "type": "integer", "format": "int64" }),
        FieldType::String | FieldType::Duration => json!({ "type": "string" }),
        FieldType::Bytes => json!({ "type": "string", "format": "byte" }),
        FieldType::Time => reference(TIME),
        FieldType::MicroTime => reference(MICRO_TIME),
        FieldType::Quantity => reference(QUANTITY),
        FieldType::IntOrString => reference(INT_OR_STRING),
        FieldType::FieldsV1 | FieldType::RawExtension => json!({ "type": "object" }),
        FieldType::StringList => json!({ "type": "array", "items": { "type": "string" } }),
        FieldType::Message => field.message().map_or(Value::Null, |message| reference(message.name())),
    }
}

fn add_named_scalar(schemas: &mut Map<String, Value>, ty: FieldType) {
    let (name, described) = match ty {
        FieldType::Time => (TIME, json!({ "type": "string", "format": "date-time" })),
        FieldType::MicroTime => (MICRO_TIME, json!({ "type": "string", "format": "date-time" })),
        FieldType::Quantity => (
            QUANTITY,
            json!({ "oneOf": [{ "type": "string" }, { "type": "number" }] }),
        ),
        FieldType::IntOrString => (
            INT_OR_STRING,
            json!({ "format": "int-or-string", "oneOf": [{ "type": "integer" }, { "type": "string" }] }),
        ),
        _ => return,
    };
    schemas.insert(name.into(), described);
}
