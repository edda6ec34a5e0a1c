//! `metadata.managedFields`: the owners of fields, read and written.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::set::FieldSet;
use yurt_apimachinery::text::go_quote;
use yurt_apimachinery::time::Time;

/// Most entries of updates that are kept separately; older ones are merged.
const UPDATERS_MAX: usize = 10;
/// Manager of the merged entry.
const ANCIENT: &str = "ancient-changes";

/// Operation by which a manager came to own fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Operation {
    Apply,
    Update,
}

/// Key of an entry. One manager has an entry for its applied fields, and one per version for its updated fields.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Manager {
    pub(super) name: String,
    pub(super) operation: Operation,
    /// Empty for applied fields: there the version is not part of the key.
    pub(super) version: String,
    pub(super) subresource: String,
}

/// Fields that one manager owns.
#[derive(Clone, Debug)]
pub(super) struct Owned {
    pub(super) fields: FieldSet,
    /// Version of the fields.
    pub(super) version: String,
    pub(super) time: Option<Time>,
}

/// Entries of all managers.
pub(super) type Managers = BTreeMap<Manager, Owned>;

/// True if a client requests to remove all owners: an empty list, or one empty entry.
pub(super) fn is_reset(entries: &Value) -> bool {
    match entries.as_array().map(Vec::as_slice) {
        Some([]) => true,
        Some([one]) => one.as_object().is_some_and(Map::is_empty),
        _ => false,
    }
}

/// Reads the entries; empty if there are none.
///
/// # Errors
/// An entry that is not valid, with upstream's text.
pub(super) fn read(entries: Option<&Value>) -> Result<Managers, String> {
    let mut managers = Managers::new();
    for (index, entry) in entries.and_then(Value::as_array).into_iter().flatten().enumerate() {
        let text = |name: &str| entry.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let operation = match text("operation").as_str() {
            "Apply" => Operation::Apply,
            "Update" => Operation::Update,
            _ => return Err("operation must be `Apply` or `Update`".to_owned()),
        };
        let version = text("apiVersion");
        if version.is_empty() {
            return Err("apiVersion must not be empty".to_owned());
        }
        match text("fieldsType").as_str() {
            "FieldsV1" => {}
            "" => return Err(format!("missing fieldsType in managed fields entry {index}")),
            other => {
                let other = go_quote(other);
                return Err(format!("invalid fieldsType {other} in managed fields entry {index}"));
            }
        }
        let fields = entry.get("fieldsV1").unwrap_or(&Value::Null);
        let fields = FieldSet::from_fields_v1(fields).map_err(|error| format!("error decoding set: {error}"))?;
        let manager = Manager::new(&text("manager"), operation, &version, &text("subresource"));
        let time = Time::parse(&text("time")).ok();
        managers.insert(manager, Owned { fields, version, time });
    }
    Ok(managers)
}

/// Writes the entries, applied ones first, then by time; `None` if there are no owners.
pub(super) fn write(managers: &Managers) -> Option<Value> {
    let mut sorted: Vec<_> = managers.iter().collect();
    sorted.sort_by_key(|(manager, owned)| (manager.operation, owned.seconds()));
    let entries: Vec<Value> = sorted
        .into_iter()
        .map(|(manager, owned)| entry(manager, owned))
        .collect();
    (!entries.is_empty()).then_some(Value::Array(entries))
}

fn entry(manager: &Manager, owned: &Owned) -> Value {
    let mut entry = json!({
        "operation": manager.operation.text(),
        "apiVersion": owned.version,
        "fieldsType": "FieldsV1",
        "fieldsV1": owned.fields.to_fields_v1(),
    });
    let time = owned.time.map(|time| time.to_string()).unwrap_or_default();
    for (name, text) in [
        ("manager", &manager.name),
        ("subresource", &manager.subresource),
        ("time", &time),
    ] {
        if !text.is_empty() {
            entry[name] = text.as_str().into();
        }
    }
    entry
}

/// Merges the oldest updates until no more than [`UPDATERS_MAX`] are left, each version separately.
pub(super) fn cap(managers: &mut Managers) {
    let mut updaters: Vec<_> = managers
        .iter()
        .filter(|(manager, _)| manager.operation == Operation::Update)
        .collect();
    updaters.sort_by_key(|(_, owned)| owned.seconds());
    let updaters: Vec<Manager> = updaters.into_iter().map(|(manager, _)| manager.clone()).collect();
    let mut count = updaters.len();
    let mut first_of_version: BTreeMap<String, Manager> = BTreeMap::new();
    for manager in updaters {
        if count <= UPDATERS_MAX {
            return;
        }
        let version = manager.version.clone();
        let bucket = Manager::new(ANCIENT, Operation::Update, &version, "");
        let Some(first) = first_of_version.get(&version) else {
            first_of_version.insert(version, manager);
            continue;
        };
        if manager == bucket {
            continue;
        }
        if !managers.contains_key(&bucket)
            && let Some(owned) = managers.remove(first)
        {
            managers.insert(bucket.clone(), owned);
        }
        if let (Some(owned), Some(sum)) = (managers.remove(&manager), managers.get_mut(&bucket)) {
            sum.fields = std::mem::take(&mut sum.fields).union(&owned.fields);
            sum.time = owned.time;
            count -= 1;
        }
    }
}

/// True if two lists of entries are equal except for their times, and these differ.
pub(super) fn differ_in_time_only(old: Option<&Value>, new: Option<&Value>) -> bool {
    let without_times = |entries: Option<&Value>| {
        let mut entries = entries.cloned();
        for entry in entries.iter_mut().filter_map(Value::as_array_mut).flatten() {
            entry.as_object_mut().map(|members| members.remove("time"));
        }
        entries
    };
    old.is_some() && old != new && without_times(old) == without_times(new)
}

// === impl Operation ===

impl Operation {
    fn text(self) -> &'static str {
        match self {
            Self::Apply => "Apply",
            Self::Update => "Update",
        }
    }
}

// === impl Manager ===

impl Manager {
    /// The entry of a manager.
    pub(super) fn new(name: &str, operation: Operation, version: &str, subresource: &str) -> Self {
        let version = if operation == Operation::Apply { "" } else { version };
        Self {
            name: name.to_owned(),
            operation,
            version: version.to_owned(),
            subresource: subresource.to_owned(),
        }
    }

    /// The name of the manager in conflicts.
    pub(super) fn describe(&self) -> String {
        let mut text = go_quote(&self.name);
        if !self.subresource.is_empty() {
            text.push_str(&format!(" with subresource {}", go_quote(&self.subresource)));
        }
        if self.operation == Operation::Update {
            text.push_str(&format!(" using {}", self.version));
        }
        text
    }
}

// === impl Owned ===

impl Owned {
    fn seconds(&self) -> i64 {
        self.time.map(Time::unix).unwrap_or_default()
    }
}
