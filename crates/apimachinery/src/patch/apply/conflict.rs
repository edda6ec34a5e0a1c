//! Why an apply is refused: fields that others own.

use super::managers::Manager;
use super::path::display;
use super::set::FieldSet;
use crate::status::{Status, StatusDetails, reason};

/// What an apply would take, from whom; never empty.
#[derive(Debug)]
pub(super) struct Conflicts(pub(super) Vec<(Manager, FieldSet)>);

// === impl Conflicts ===

impl Conflicts {
    /// What is left when taking the fields of `allowed` is no conflict; `None` when nothing is.
    pub(super) fn beyond(self, allowed: &FieldSet) -> Option<Self> {
        let left = self.0.into_iter().filter_map(|(manager, fields)| {
            let fields = fields.difference(allowed);
            (!fields.is_empty()).then_some((manager, fields))
        });
        let left: Vec<_> = left.collect();
        (!left.is_empty()).then_some(Self(left))
    }

    /// The answer: 409 with one cause per field.
    pub(super) fn into_status(self) -> Status {
        let mut causes: Vec<(String, String)> = Vec::new();
        let mut groups = Vec::new();
        for (manager, fields) in &self.0 {
            let who = manager.describe();
            let paths: Vec<String> = fields.paths().iter().map(|path| display(path)).collect();
            groups.push(format!("conflicts with {who}:"));
            groups.extend(paths.iter().map(|path| format!("- {path}")));
            causes.extend(paths.into_iter().map(|path| (format!("conflict with {who}"), path)));
        }
        let message = match causes.as_slice() {
            [(who, path)] => format!("Apply failed with 1 conflict: {who}: {path}"),
            many => format!("Apply failed with {} conflicts: {}", many.len(), groups.join("\n")),
        };
        let status = Status::failure(409, reason::CONFLICT, message).with_details(StatusDetails::default());
        causes.into_iter().fold(status, |status, (message, field)| {
            status.with_cause(reason::CAUSE_FIELD_MANAGER_CONFLICT, &message, &field)
        })
    }
}
