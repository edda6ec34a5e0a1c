//! Owners of fields after a write: the algorithm of structured-merge-diff's updater.

use serde_json::Value;

use super::compare::{Comparison, compare};
use super::conflict::Conflicts;
use super::fields::{fields_of, fitted, with_named_fields};
use super::managers::{Manager, Managers, Owned};
use super::merge::merge;
use super::remove::without;
use super::set::FieldSet;
use super::types::Type;

/// The type and version of the objects that are written, and the fields that are not stored.
pub(super) struct ApplyTarget<'a> {
    pub(super) ty: Type<'a>,
    /// There is one version only: entries of another one are about a version that no longer exists.
    pub(super) version: String,
    /// Fields that this kind of write never changes, each with everything below it.
    pub(super) ignored: FieldSet,
}

// === impl ApplyTarget ===

impl ApplyTarget<'_> {
    /// Removes the fields that `new` changes from their owners. Returns them, for the writer.
    pub(super) fn update(&self, managers: &mut Managers, old: &Value, new: &Value) -> FieldSet {
        self.fit(managers);
        let changed = compare(self.ty, old, new).without(&self.ignored);
        let taken = self.taken(managers, None, &changed);
        self.give_up(managers, None, taken, &changed.removed);
        changed.modified.union(&changed.added)
    }

    /// Merges `applied` into `live`, removes the fields that its manager applied before and no other manager owns, and
    /// updates the owners.
    ///
    /// # Errors
    /// Fields of other owners that would have to change, unless `force`.
    pub(super) fn apply(
        &self,
        managers: &mut Managers,
        manager: &Manager,
        live: &Value,
        applied: &Value,
        force: bool,
    ) -> Result<Value, Conflicts> {
        self.fit(managers);
        let merged = merge(self.ty, live, applied);
        let fields = fields_of(self.ty, applied).without_trees(&self.ignored);
        let version = self.version.clone();
        let last = managers.get(manager).cloned();
        let time = last.as_ref().and_then(|last| last.time);
        managers.insert(manager.clone(), Owned { fields, version, time });
        let new = match last {
            Some(last) if last.version == self.version && !last.fields.is_empty() => {
                self.pruned(&merged, managers, &last.fields)
            }
            _ => merged,
        };
        let changed = compare(self.ty, live, &new).without(&self.ignored);
        let taken = self.taken(managers, Some(manager), &changed);
        if !force && !taken.is_empty() {
            return Err(Conflicts(taken));
        }
        self.give_up(managers, Some(manager), taken, &changed.removed);
        Ok(new)
    }

    fn fit(&self, managers: &mut Managers) {
        for owned in managers.values_mut().filter(|owned| owned.version == self.version) {
            owned.fields = fitted(&owned.fields, self.ty);
        }
    }

    /// Owners other than `writer`, with the changed fields they own.
    fn taken(&self, managers: &Managers, writer: Option<&Manager>, changed: &Comparison) -> Vec<(Manager, FieldSet)> {
        let written = changed.modified.clone().union(&changed.added);
        let others = managers
            .iter()
            .filter(|(manager, owned)| Some(*manager) != writer && owned.version == self.version);
        let taken = others.map(|(manager, owned)| (manager.clone(), owned.fields.intersection(&written)));
        taken.filter(|(_, fields)| !fields.is_empty()).collect()
    }

    /// Removes taken and deleted fields from owners other than `writer`; an owner without fields has no entry.
    fn give_up(
        &self,
        managers: &mut Managers,
        writer: Option<&Manager>,
        taken: Vec<(Manager, FieldSet)>,
        removed: &FieldSet,
    ) {
        managers.retain(|manager, owned| Some(manager) == writer || owned.version == self.version);
        for (manager, fields) in taken {
            if let Some(owned) = managers.get_mut(&manager) {
                owned.fields = owned.fields.difference(&fields);
            }
        }
        for (_, owned) in managers.iter_mut().filter(|(manager, _)| Some(*manager) != writer) {
            owned.fields = owned.fields.difference(removed);
        }
        managers.retain(|_, owned| !owned.fields.is_empty());
    }

    /// Removes the fields that its manager applied last time and not now, unless another manager owns them.
    fn pruned(&self, merged: &Value, managers: &Managers, last: &FieldSet) -> Value {
        let named = |set: &FieldSet| with_named_fields(set, Some(self.ty));
        let all = named(&fields_of(self.ty, merged));
        let last = named(last);
        let without_last = without(self.ty, merged, &last);
        let current = managers.values().filter(|owned| owned.version == self.version);
        let owned = current.fold(FieldSet::default(), |sum, owned| sum.union(&owned.fields));
        // Owned fields return, with the fields that contain them.
        let kept = named(&fields_of(self.ty, &without_last)).union(&named(&owned));
        let with_owned = without(self.ty, merged, &all.difference(&kept));
        // Fields that were never applied return too: they were removed only because they are inside a removed field.
        let kept = named(&fields_of(self.ty, &with_owned));
        without(self.ty, merged, &all.difference(&kept).intersection(&last))
    }
}
