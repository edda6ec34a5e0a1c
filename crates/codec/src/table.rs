//! Tables: one row per object, in the columns kubectl shows.
//!
//! The server defines columns and cells; kubectl only lays them out. Built-in kinds have the columns of kube-apiserver,
//! custom resources those of their manifest.

use bytes::Bytes;
use serde_json::{Value, json};

use crate::negotiation::{Include, TableOptions};
use crate::partial;
use yurt_apimachinery::json_text;
use yurt_apimachinery::kind::{PrinterColumn, ResourceKind};
use yurt_apimachinery::time::Time;

mod cells;
mod custom;
mod human;
mod pod;

/// A column: name, type, priority. Those of priority 1 are shown on `-o wide`.
type Column = (&'static str, &'static str, u8);

/// Columns and cells of one kind.
#[derive(Clone, Copy)]
pub(crate) enum Printer {
    /// Printer of a built-in kind.
    BuiltIn {
        columns: &'static [Column],
        cells: fn(&Value, Time) -> Vec<Value>,
        /// Conditions of a row, in addition to its cells.
        conditions: fn(&Value) -> Option<Value>,
    },
    /// Printer from a manifest.
    Custom(&'static [PrinterColumn]),
}

const fn text(name: &'static str) -> Column {
    (name, "string", 0)
}

const fn wide(name: &'static str) -> Column {
    (name, "string", 1)
}

const NAME: Column = text("Name");
const AGE: Column = text("Age");

const PODS: &[Column] = &[
    NAME,
    text("Ready"),
    text("Status"),
    text("Restarts"),
    AGE,
    wide("IP"),
    wide("Node"),
    wide("Nominated Node"),
    wide("Readiness Gates"),
];
const SERVICES: &[Column] = &[
    NAME,
    text("Type"),
    text("Cluster-IP"),
    text("External-IP"),
    text("Port(s)"),
    AGE,
    wide("Selector"),
];
const NODES: &[Column] = &[
    NAME,
    text("Status"),
    text("Roles"),
    AGE,
    text("Version"),
    wide("Internal-IP"),
    wide("External-IP"),
    wide("OS-Image"),
    wide("Kernel-Version"),
    wide("Container-Runtime"),
];
const EVENTS: &[Column] = &[
    text("Last Seen"),
    text("Type"),
    text("Reason"),
    text("Object"),
    wide("Subobject"),
    wide("Source"),
    text("Message"),
    wide("First Seen"),
    wide("Count"),
    wide("Name"),
];
const ENDPOINTS: &[Column] = &[NAME, text("Endpoints"), AGE];
const NAMESPACES: &[Column] = &[NAME, text("Status"), AGE];
const SECRETS: &[Column] = &[NAME, text("Type"), text("Data"), AGE];
const CONFIG_MAPS: &[Column] = &[NAME, text("Data"), AGE];
const LEASES: &[Column] = &[NAME, text("Holder"), AGE];
const ENDPOINT_SLICES: &[Column] = &[NAME, text("AddressType"), text("Ports"), text("Endpoints"), AGE];

// === impl Printer ===

impl Printer {
    pub(crate) fn of(kind: &ResourceKind) -> Self {
        if kind.is_custom() {
            return Self::Custom(kind.columns);
        }
        let plain = |columns, cells| Self::BuiltIn {
            columns,
            cells,
            conditions: |_| None,
        };
        match (&*kind.group, &*kind.plural) {
            ("", "pods") => Self::BuiltIn {
                columns: PODS,
                cells: pod::cells,
                conditions: pod::conditions,
            },
            ("", "services") => plain(SERVICES, cells::service),
            ("", "endpoints") => plain(ENDPOINTS, cells::endpoints),
            ("", "nodes") => plain(NODES, cells::node),
            ("" | "events.k8s.io", "events") => plain(EVENTS, cells::event),
            ("", "namespaces") => plain(NAMESPACES, cells::namespace),
            ("", "secrets") => plain(SECRETS, cells::secret),
            ("", "configmaps") => plain(CONFIG_MAPS, cells::config_map),
            ("", "serviceaccounts") => plain(&[NAME, AGE], cells::name_and_age),
            ("coordination.k8s.io", "leases") => plain(LEASES, cells::lease),
            ("discovery.k8s.io", "endpointslices") => plain(ENDPOINT_SLICES, cells::endpoint_slice),
            _ => plain(&[NAME, ("Age", "date", 0)], cells::name_and_age),
        }
    }

    /// The columns as JSON.
    pub(crate) fn columns(&self) -> Value {
        let column = |(name, ty, priority): &Column| {
            let format = if *name == "Name" { "name" } else { "" };
            json!({ "name": name, "type": ty, "format": format, "description": describe(name), "priority": priority })
        };
        match self {
            Self::BuiltIn { columns, .. } => columns.iter().map(column).collect(),
            Self::Custom(columns) => std::iter::once(column(&NAME))
                .chain(columns.iter().map(custom::column))
                .collect(),
        }
    }

    fn cells(&self, object: &Value, now: Time) -> Vec<Value> {
        match self {
            Self::BuiltIn { cells, .. } => cells(object, now),
            Self::Custom(columns) => custom::cells(columns, object, now),
        }
    }

    fn conditions(&self, object: &Value) -> Option<Value> {
        match self {
            Self::BuiltIn { conditions, .. } => conditions(object),
            Self::Custom(_) => None,
        }
    }

    /// One row as JSON text; `object` is an object's JSON, or a bookmark's.
    pub(crate) fn row(&self, options: TableOptions, object: &Bytes, now: Time) -> Bytes {
        let value = json_text::parse(object).unwrap_or_default();
        let cells = Value::Array(self.cells(&value, now));
        let conditions = self
            .conditions(&value)
            .map_or_else(String::new, |found| format!(",\"conditions\":{found}"));
        let ends_initial = &value["metadata"]["annotations"][yurt_apimachinery::watch::INITIAL_EVENTS_END] == "true";
        let shown = match options.include {
            Include::Object => Some(object.clone()),
            Include::None if !ends_initial => None,
            Include::None | Include::Metadata => partial::reduce(object, options.version),
        };
        let shown = shown.as_deref().unwrap_or(b"null");
        let head = format!("{{\"cells\":{cells}{conditions},\"object\":");
        [head.as_bytes(), shown, b"}"].concat().into()
    }

    /// A table of one row: the answer to a get, or the object of an event. Only the first event names the columns.
    pub(crate) fn table(&self, options: TableOptions, object: &Bytes, now: Time, has_columns: bool) -> Bytes {
        let columns = if has_columns { self.columns() } else { Value::Null };
        let metadata = partial::reduce(object, options.version);
        let metadata: Value = metadata
            .and_then(|json| json_text::parse(&json).ok())
            .unwrap_or_default();
        let version = match &metadata["metadata"]["resourceVersion"] {
            Value::Null => json!({}),
            version => json!({ "resourceVersion": version }),
        };
        let head = format!(
            r#"{{"kind":"Table","apiVersion":"{}","metadata":{version},"columnDefinitions":{columns},"rows":["#,
            options.version.api_version()
        );
        let row = self.row(options, object, now);
        [head.as_bytes(), &row, b"]}"].concat().into()
    }
}

/// Description of a column, for tools that show it.
fn describe(column: &str) -> &'static str {
    match column {
        "Name" => "Name of the object, unique among its kind in a namespace.",
        "Age" => "Time since the object was created.",
        "Status" => "State of the object as a whole.",
        "Ready" => "Containers that are ready, of all that shall run.",
        "Restarts" => "How often containers were restarted, and when last.",
        "Holder" => "Who holds the lease.",
        "Data" => "Number of entries.",
        _ => "",
    }
}

#[cfg(test)]
mod tests;
