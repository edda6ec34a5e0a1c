//! Reads one manifest and reports its faults: the field, and why.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::Value;

use super::{API_VERSION, Definition, KIND, SELECTABLE_FIELDS_MAX, STORED_FIELDS_MAX, ServedVersion, VERSIONS_MAX};
use crate::structural;
use yurt_apimachinery::collecting::inserted;
use yurt_apimachinery::json_path::JsonPath;
use yurt_apimachinery::kind::{ColumnType, CustomKind, PrinterColumn};
use yurt_apimachinery::meta;

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Manifest {
    metadata: Metadata,
    spec: Spec,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    group: String,
    names: Names,
    scope: String,
    versions: Vec<Version>,
    conversion: Conversion,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Names {
    plural: String,
    singular: String,
    kind: String,
    list_kind: String,
    short_names: Vec<String>,
    categories: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Conversion {
    strategy: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Version {
    name: String,
    served: bool,
    storage: bool,
    schema: Schema,
    subresources: Subresources,
    selectable_fields: Vec<Selectable>,
    additional_printer_columns: Vec<Column>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Schema {
    #[serde(rename = "openAPIV3Schema")]
    open_api_v3: Option<Value>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Subresources {
    status: Option<Value>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Selectable {
    json_path: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Column {
    name: String,
    #[serde(rename = "type")]
    ty: String,
    format: String,
    description: String,
    priority: i32,
    json_path: String,
}

/// Name of the member that holds a schema.
const SCHEMA: &str = "openAPIV3Schema";

/// A fault of a manifest: the field and why.
type Fault = String;

/// Reads a manifest. Fields that have no meaning here are left alone.
///
/// # Errors
///
/// One line: the name of the manifest, the field, and what is wrong with it.
pub fn parse(document: &Value) -> Result<Definition, String> {
    let manifest = serde_json::from_value::<Manifest>(without_nulls(document));
    let named = document["metadata"]["name"].as_str().unwrap_or("(no name)").to_owned();
    let manifest = manifest.map_err(|error| format!("{named}: {error}"))?;
    definition(manifest).map_err(|fault| format!("{named}: {fault}"))
}

/// Removes null members, which are unset. Schemas stay as they are: a null may be a value there.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            let set = members.iter().filter(|(_, value)| !value.is_null());
            let kept = set.map(|(name, value)| match name.as_str() {
                SCHEMA => (name.clone(), value.clone()),
                _ => (name.clone(), without_nulls(value)),
            });
            Value::Object(inserted(kept))
        }
        Value::Array(items) => Value::Array(items.iter().map(without_nulls).collect()),
        scalar => scalar.clone(),
    }
}

/// True if a document is a manifest. Documents of other kinds may be in the same file.
///
/// # Errors
///
/// When it is a manifest of an unsupported version.
pub fn is_manifest(document: &Value) -> Result<bool, String> {
    if document["kind"] != KIND {
        return Ok(false);
    }
    if document["apiVersion"] == API_VERSION {
        return Ok(true);
    }
    Err(format!("apiVersion: only {API_VERSION} is understood"))
}

fn definition(manifest: Manifest) -> Result<Definition, Fault> {
    let Manifest { metadata, spec } = manifest;
    let names = checked_names(&spec)?;
    if metadata.name != format!("{}.{}", names.plural, spec.group) {
        return Err("metadata.name: must be spec.names.plural+\".\"+spec.group".to_owned());
    }
    let namespaced = match spec.scope.as_str() {
        "Namespaced" => true,
        "Cluster" => false,
        _ => return Err("spec.scope: must be Cluster or Namespaced".to_owned()),
    };
    if !matches!(spec.conversion.strategy.as_str(), "" | "None") {
        return Err("spec.conversion.strategy: only None can be served here".to_owned());
    }
    check_versions(&spec.versions)?;
    let kind_of = |version: &Version, at: &str| -> Result<CustomKind, Fault> {
        Ok(CustomKind {
            group: spec.group.clone(),
            version: version.name.clone(),
            plural: names.plural.clone(),
            singular: names.singular.clone(),
            kind: names.kind.clone(),
            list_kind: names.list_kind.clone(),
            namespaced,
            short_names: names.short_names.clone(),
            categories: names.categories.clone(),
            fields: fields(version, at)?,
            columns: columns(version, at)?,
            has_status: version.subresources.status.is_some(),
        })
    };
    let (mut served, mut stored, mut all_fields) = (Vec::new(), None, BTreeSet::new());
    for (index, version) in spec.versions.iter().enumerate() {
        let kind = kind_of(version, &format!("spec.versions[{index}]"))?;
        all_fields.extend(kind.fields.clone());
        if version.storage {
            stored = Some(kind.clone());
        }
        if version.served {
            let schema = version.schema.open_api_v3.clone();
            served.push(ServedVersion { kind, schema });
        }
    }
    served.sort_by(|a, b| super::compare_versions(&a.kind.version, &b.kind.version));
    let mut stored = stored.ok_or_else(|| "spec.versions: one must have storage: true".to_owned())?;
    if all_fields.len() > STORED_FIELDS_MAX {
        return Err(format!(
            "spec.versions: more than {STORED_FIELDS_MAX} selectable fields in all"
        ));
    }
    stored.fields = all_fields.into_iter().collect();
    Ok(Definition { stored, served })
}

/// The names, with defaults for those that may be omitted.
fn checked_names(spec: &Spec) -> Result<Names, Fault> {
    let given = &spec.names;
    let faults = meta::dns_subdomain_errors(&spec.group);
    if spec.group.is_empty() || !faults.is_empty() {
        return Err(format!(
            "spec.group: {:?} is no group: {}",
            spec.group,
            faults.join(", ")
        ));
    }
    if !spec.group.contains('.') {
        return Err("spec.group: should be a domain with at least one dot".to_owned());
    }
    if super::is_reserved(&spec.group) {
        return Err(format!("spec.group: {} is a group of Kubernetes itself", spec.group));
    }
    let or = |text: &str, default: String| if text.is_empty() { default } else { text.to_owned() };
    let names = Names {
        plural: given.plural.clone(),
        singular: or(&given.singular, given.kind.to_lowercase()),
        kind: given.kind.clone(),
        list_kind: or(&given.list_kind, format!("{}List", given.kind)),
        short_names: given.short_names.clone(),
        categories: given.categories.clone(),
    };
    check_label("spec.names.plural", &names.plural)?;
    check_label("spec.names.kind", &names.kind.to_lowercase())?;
    check_label("spec.names.singular", &names.singular)?;
    check_label("spec.names.listKind", &names.list_kind.to_lowercase())?;
    for (what, list) in [("shortNames", &names.short_names), ("categories", &names.categories)] {
        for (index, name) in list.iter().enumerate() {
            check_label(&format!("spec.names.{what}[{index}]"), name)?;
        }
    }
    if names.kind == names.list_kind {
        return Err("spec.names.listKind: kind and listKind may not be the same".to_owned());
    }
    Ok(names)
}

fn check_label(field: &str, text: &str) -> Result<(), Fault> {
    let starts_with_letter = text.starts_with(|c: char| c.is_ascii_lowercase());
    if starts_with_letter && meta::dns_label_errors(text).is_empty() {
        return Ok(());
    }
    Err(format!(
        "{field}: {text:?} must be 1 to 63 lower case letters, digits and dashes, with a letter first and no dash last"
    ))
}

fn check_versions(versions: &[Version]) -> Result<(), Fault> {
    if versions.is_empty() || versions.len() > VERSIONS_MAX {
        return Err(format!("spec.versions: must hold 1 to {VERSIONS_MAX} versions"));
    }
    let mut seen = BTreeSet::new();
    for (index, version) in versions.iter().enumerate() {
        let at = format!("spec.versions[{index}]");
        check_label(&format!("{at}.name"), &version.name)?;
        if !seen.insert(&version.name) {
            return Err(format!("{at}.name: {} is there twice", version.name));
        }
        if version
            .schema
            .open_api_v3
            .as_ref()
            .is_some_and(|schema| !schema.is_object())
        {
            return Err(format!("{at}.schema.openAPIV3Schema: must be an object"));
        }
        if let Some(schema) = &version.schema.open_api_v3 {
            structural::check(schema).map_err(|why| format!("{at}.schema.openAPIV3Schema.{why}"))?;
        }
    }
    if versions.iter().filter(|version| version.storage).count() != 1 {
        return Err("spec.versions: must have exactly one version marked as storage version".to_owned());
    }
    Ok(())
}

fn fields(version: &Version, at: &str) -> Result<Vec<String>, Fault> {
    let at = format!("{at}.selectableFields");
    let mut labels = BTreeSet::new();
    for (index, field) in version.selectable_fields.iter().enumerate() {
        let fault = |why: &str| Err(format!("{at}[{index}].jsonPath: {:?} {why}", field.json_path));
        let path = JsonPath::parse(&field.json_path);
        let Some(names) = path.as_ref().ok().and_then(JsonPath::members) else {
            return fault("must be a path of names");
        };
        if names.is_empty() || names.iter().any(|name| name.contains('.')) {
            return fault("must be a path of names without dots");
        }
        if names[0] == "metadata" {
            return fault("must not point to fields in metadata");
        }
        if !labels.insert(names.join(".")) {
            return fault("is there twice");
        }
    }
    if labels.len() > SELECTABLE_FIELDS_MAX {
        return Err(format!("{at}: must have at most {SELECTABLE_FIELDS_MAX} items"));
    }
    Ok(labels.into_iter().collect())
}

fn columns(version: &Version, at: &str) -> Result<Vec<PrinterColumn>, Fault> {
    let age = Column {
        name: "Age".to_owned(),
        ty: "date".to_owned(),
        description: "Time since the object was created.".to_owned(),
        json_path: ".metadata.creationTimestamp".to_owned(),
        ..Column::default()
    };
    let declared = version.additional_printer_columns.iter();
    let default = declared.len() == 0;
    let columns = declared.chain(default.then_some(&age)).enumerate();
    let column = |(index, column): (usize, &Column)| {
        let at = format!("{at}.additionalPrinterColumns[{index}]");
        if column.name.is_empty() {
            return Err(format!("{at}.name: must be given"));
        }
        let ty = ColumnType::parse(&column.ty)
            .ok_or_else(|| format!("{at}.type: must be one of boolean,date,integer,number,string"))?;
        let path = JsonPath::parse(&column.json_path).map_err(|why| format!("{at}.jsonPath: {why}"))?;
        let default = || {
            format!(
                "Custom resource definition column (in JSONPath format): {}",
                column.json_path
            )
        };
        Ok(PrinterColumn {
            name: column.name.clone(),
            ty,
            format: column.format.clone(),
            description: if column.description.is_empty() {
                default()
            } else {
                column.description.clone()
            },
            priority: column.priority,
            path,
        })
    };
    columns.map(column).collect()
}
