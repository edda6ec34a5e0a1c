//! Server-side apply: merging an applied configuration into the live object, and maintaining `metadata.managedFields`.
//!
//! A pure function of objects, names and a time. In reading order:
//! * `path` and `set`: fields and sets of them;
//! * `types`: the types that the schema table has for a place;
//! * `fields`, `compare`, `merge`, `remove`: the walks over values;
//! * `managers`: the entries;
//! * `owners`: the algorithm;
//! * `conflict`;
//! * `last_applied`: the annotation of client-side apply;
//! * this file.
//!
//! The rules are those of structured-merge-diff and of the field managers of k8s.io/apimachinery. There is one version
//! per kind. An entry of another version is dropped with the next write, as upstream drops those of versions that no
//! longer exist.

mod compare;
mod conflict;
mod fields;
mod last_applied;
mod managers;
mod merge;
mod owners;
mod path;
mod remove;
mod set;
mod types;
mod validate;

use serde_json::Value;

use conflict::Conflicts;
use managers::{Manager, Managers, Operation, Owned};
use owners::ApplyTarget;
use set::FieldSet;
use types::Type;

use yurt_apiextensions::structural::Structural;
use yurt_apimachinery::kind::ResourceKind;
use yurt_apimachinery::meta;
use yurt_apimachinery::status::Status;
use yurt_apimachinery::time::Time;

/// Owner of the fields that an object had before its first apply.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";
/// Manager of a write without a name.
const UNKNOWN: &str = "unknown";

/// Fields without an owner, although they are written.
const UNOWNED: &[&[&str]] = &[
    &["apiVersion"],
    &["kind"],
    &["metadata"],
    &["metadata", "name"],
    &["metadata", "namespace"],
    &["metadata", "creationTimestamp"],
    &["metadata", "selfLink"],
    &["metadata", "uid"],
    &["metadata", "clusterName"],
    &["metadata", "generation"],
    &["metadata", "managedFields"],
    &["metadata", "resourceVersion"],
];

/// A write whose fields get an owner.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// Kind of the object.
    pub kind: &'a ResourceKind,
    /// Schema of a custom resource; without one, lists are owned as a whole.
    pub schema: Option<&'a Structural>,
    /// Subresource of the write, or empty.
    pub subresource: &'a str,
    /// Fields that this kind of write never changes, each with everything below it.
    pub ignored: &'a [&'a [&'a str]],
    /// Manager of the write: option `fieldManager`, or the name in the User-Agent.
    pub manager: &'a str,
    /// Time of the write.
    pub now: Time,
}

/// True if an object has managed fields. Writes to other objects are not tracked.
pub fn is_tracked(object: &Value) -> bool {
    entries(object).is_some_and(|entries| !entries.is_null())
}

/// Two states whose only difference are times in their managed fields are the same: `new` then gets the times of `old`.
pub fn settle_times(old: &Value, new: &mut Value) {
    if !managers::differ_in_time_only(entries(old), entries(new)) {
        return;
    }
    let (kept, given) = (entries(old).cloned(), entries(new).cloned());
    set_entries(new, kept);
    if old != new {
        set_entries(new, given);
    }
}

// === impl Write ===

impl Write<'_> {
    /// Applies a configuration to `live`, which is `empty` for an object to be created. `empty` is an object of the
    /// kind in which nothing is set.
    ///
    /// Returns `live` with the applied fields, and the owners in its managed fields; it may hold nulls.
    ///
    /// # Errors
    /// 400 for a configuration of another kind or with managed fields, 409 with the conflicts unless `force`. 500 for a
    /// configuration that does not fit the kind, which is kube-apiserver's answer.
    pub fn apply(&self, live: &Value, empty: &Value, config: &Value, force: bool) -> Result<Value, Status> {
        self.check(config)?;
        let mut managers =
            managers::read(entries(live)).map_err(|why| failed(format!("failed to decode managed fields: {why}")))?;
        let live = &without_entries(live);
        if managers.is_empty() {
            self.record(&mut managers, empty, live, BEFORE_FIRST_APPLY);
        }
        let (mut object, managers) = match self.try_apply(managers.clone(), live, config, force) {
            Ok(applied) => applied,
            Err(conflicts) => {
                let allowed = self.owned_by_client_side_apply(live);
                if let Some(conflicts) = conflicts.beyond(&allowed) {
                    return Err(conflicts.into_status());
                }
                let forced = self.try_apply(managers, live, config, true);
                forced.map_err(Conflicts::into_status)?
            }
        };
        if self.manager == last_applied::MANAGER {
            last_applied::refresh(&mut object, config);
        }
        set_entries(&mut object, managers::write(&managers));
        Ok(object)
    }

    /// Checks that a configuration may be applied to objects of the kind.
    ///
    /// # Errors
    /// Those of [`Write::apply`] except conflicts.
    pub fn check(&self, config: &Value) -> Result<(), Status> {
        let text = |name: &str| config.get(name).and_then(Value::as_str).unwrap_or_default();
        let (group, version) = match text("apiVersion").split_once('/') {
            Some((_, version)) if version.contains('/') => ("", ""),
            Some(parts) => parts,
            None => ("", text("apiVersion")),
        };
        let kind = if version.is_empty() && text("apiVersion").contains('/') {
            ""
        } else {
            text("kind")
        };
        if (group, version, kind) != (&*self.kind.group, &*self.kind.version, &*self.kind.kind) {
            let why = format!("invalid object type: {group}/{version}, Kind={kind}");
            return Err(Status::bad_request(why));
        }
        if entries(config).is_some_and(Value::is_array) {
            return Err(Status::bad_request("metadata.managedFields must be nil"));
        }
        validate::validate(self.target().ty, config, false).map_err(|why| {
            let (namespace, name) = (meta::text(config, "namespace"), meta::text(config, "name"));
            let kind = format!("{group}/{version}, Kind={kind}");
            failed(format!(
                "failed to create typed patch object ({namespace}/{name}; {kind}): {why}"
            ))
        })
    }

    /// Tracks an update from `live` to `new`, if either has managed fields. Those of `new` are the owners that its
    /// writer wants before this write; it cannot change them through a subresource.
    pub fn update(&self, live: &Value, new: &mut Value) {
        if !is_tracked(live) && !is_tracked(new) {
            return set_entries(new, None);
        }
        let mut managers = self.before_update(live, new);
        set_entries(new, None);
        if managers.is_empty() {
            return;
        }
        self.record(&mut managers, &without_entries(live), new, self.manager);
        set_entries(new, managers::write(&managers));
    }

    fn before_update(&self, live: &Value, new: &Value) -> Managers {
        let given = entries(new).filter(|_| self.subresource.is_empty());
        if given.is_some_and(managers::is_reset) {
            return Managers::new();
        }
        // A client that does not know managed fields omits them, and does not intend to delete them.
        let given = managers::read(given).ok().filter(|managers| !managers.is_empty());
        given.unwrap_or_else(|| managers::read(entries(live)).unwrap_or_default())
    }

    /// Gives the fields that differ to `manager`.
    fn record(&self, managers: &mut Managers, old: &Value, new: &Value, manager: &str) {
        let fields = self
            .target()
            .update(managers, old, new)
            .difference(&FieldSet::of_names(UNOWNED));
        if !fields.is_empty() {
            let manager = self.named(manager, Operation::Update);
            let version = self.kind.api_version();
            let time = Some(self.now);
            let before = managers.remove(&manager).map(|owned| owned.fields);
            let fields = fields.union(&before.unwrap_or_default());
            managers.insert(manager, Owned { fields, version, time });
        }
        managers::cap(managers);
    }

    fn try_apply(
        &self,
        mut managers: Managers,
        live: &Value,
        config: &Value,
        force: bool,
    ) -> Result<(Value, Managers), Conflicts> {
        let manager = self.named(self.manager, Operation::Apply);
        let new = self.target().apply(&mut managers, &manager, live, config, force)?;
        let is_changed = !compare::is_same(live, &new);
        if let Some(owned) = managers.get_mut(&manager) {
            owned.fields = owned.fields.difference(&FieldSet::of_names(UNOWNED));
            if is_changed {
                owned.time = Some(self.now);
            }
        }
        managers.retain(|_, owned| !owned.fields.is_empty());
        Ok((if is_changed { new } else { live.clone() }, managers))
    }

    /// Fields set by client-side apply and unchanged since; only kubectl takes them over.
    fn owned_by_client_side_apply(&self, live: &Value) -> FieldSet {
        if self.manager != last_applied::MANAGER {
            return FieldSet::default();
        }
        last_applied::unchanged(self.target().ty, &self.kind.api_version(), live)
    }

    fn named(&self, manager: &str, operation: Operation) -> Manager {
        let manager = if manager.is_empty() { UNKNOWN } else { manager };
        Manager::new(manager, operation, &self.kind.api_version(), self.subresource)
    }

    fn target(&self) -> ApplyTarget<'_> {
        ApplyTarget {
            ty: Type::of(self.kind, self.schema),
            version: self.kind.api_version(),
            ignored: FieldSet::of_names(self.ignored),
        }
    }
}

fn failed(why: String) -> Status {
    Status::failure(500, "", why)
}

fn entries(object: &Value) -> Option<&Value> {
    meta::metadata(object)?.get("managedFields")
}

fn set_entries(object: &mut Value, entries: Option<Value>) {
    let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
    match (entries, metadata) {
        (Some(entries), _) => drop(meta::metadata_mut(object).insert("managedFields".to_owned(), entries)),
        (None, Some(metadata)) => drop(metadata.remove("managedFields")),
        (None, None) => {}
    }
}

fn without_entries(object: &Value) -> Value {
    let mut object = object.clone();
    set_entries(&mut object, None);
    object
}

#[cfg(test)]
mod tests;
