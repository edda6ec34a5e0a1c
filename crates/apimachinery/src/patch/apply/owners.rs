//! Who owns what after a write: the algorithm of structured-merge-diff's updater.

use serde_json::Value;

use super::compare::{Comparison, compare};
use super::conflict::Conflicts;
use super::fields::{fields_of, fitted, with_named_fields};
use super::managers::{Manager, Managers, Owned};
use super::merge::merge;
use super::remove::without;
use super::set::FieldSet;
use super::types::Type;

/// The type and version of the objects that are written, and what is not stored of them.
pub(super) struct Target<'a> {
    pub(super) ty: Type<'a>,
    /// There is one version only: entries of another one are about a kind that is gone.
    pub(super) version: String,
    /// Fields that this way of writing never changes, each with everything below it.
    pub(super) ignored: FieldSet,
}

// === impl Target ===

impl Target<'_> {
    /// What `new` takes from its owners and gives to somebody who just wrote it; that is returned.
    pub(super) fn update(&self, managers: &mut Managers, old: &Value, new: &Value) -> FieldSet {
        self.fit(managers);
        let changed = compare(self.ty, old, new).without(&self.ignored);
        let taken = self.taken(managers, None, &changed);
        self.give_up(managers, None, taken, &changed.removed);
        changed.modified.union(&changed.added)
    }

    /// Lays `applied` over `live`, removes what its manager applied before and nobody else owns, and settles the owners.
    ///
    /// # Errors
    /// What others own and would have to change, unless `force`.
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

    /// What others than `writer` own of the changed fields.
    fn taken(&self, managers: &Managers, writer: Option<&Manager>, changed: &Comparison) -> Vec<(Manager, FieldSet)> {
        let written = changed.modified.clone().union(&changed.added);
        let others = managers
            .iter()
            .filter(|(manager, owned)| Some(*manager) != writer && owned.version == self.version);
        let taken = others.map(|(manager, owned)| (manager.clone(), owned.fields.intersection(&written)));
        taken.filter(|(_, fields)| !fields.is_empty()).collect()
    }

    /// Others than `writer` lose what was taken and what is gone; who owns nothing has no entry.
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

    /// Without what its manager applied last time and not now, unless somebody else owns it.
    fn pruned(&self, merged: &Value, managers: &Managers, last: &FieldSet) -> Value {
        let named = |set: &FieldSet| with_named_fields(set, Some(self.ty));
        let all = named(&fields_of(self.ty, merged));
        let last = named(last);
        let without_last = without(self.ty, merged, &last);
        let current = managers.values().filter(|owned| owned.version == self.version);
        let owned = current.fold(FieldSet::default(), |sum, owned| sum.union(&owned.fields));
        // What is owned comes back, with what it stands in.
        let kept = named(&fields_of(self.ty, &without_last)).union(&named(&owned));
        let with_owned = without(self.ty, merged, &all.difference(&kept));
        // So does what nobody had applied: it went only because it stood in something that did.
        let kept = named(&fields_of(self.ty, &with_owned));
        without(self.ty, merged, &all.difference(&kept).intersection(&last))
    }
}
