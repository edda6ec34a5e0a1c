//! Rejection of an apply: fields that others own.

use super::managers::Manager;
use super::path::display;
use super::set::FieldSet;
use yurt_apimachinery::status::{Status, StatusDetails, reason};
use yurt_apimachinery::text::cut;

/// Most conflicts that are listed; the others are counted.
const TOLD_MAX: usize = 100;
/// Most bytes of a path that are shown.
const PATH_BYTES_MAX: usize = 1024;

/// Fields that an apply would take, by their owners; never empty.
#[derive(Debug)]
pub(super) struct Conflicts(pub(super) Vec<(Manager, FieldSet)>);

// === impl Conflicts ===

impl Conflicts {
    /// The conflicts outside `allowed`; `None` if there are none.
    pub(super) fn beyond(self, allowed: &FieldSet) -> Option<Self> {
        let left = self.0.into_iter().filter_map(|(manager, fields)| {
            let fields = fields.difference(allowed);
            (!fields.is_empty()).then_some((manager, fields))
        });
        let left: Vec<_> = left.collect();
        (!left.is_empty()).then_some(Self(left))
    }

    /// The answer: 409 with one cause per field, [`TOLD_MAX`] at most.
    pub(super) fn into_status(self) -> Status {
        let mut causes: Vec<(String, String)> = Vec::new();
        let mut groups = Vec::new();
        let mut count = 0;
        for (manager, fields) in &self.0 {
            let who = manager.describe();
            let paths = fields.paths();
            count += paths.len();
            let told = paths.iter().take(TOLD_MAX - causes.len());
            let paths: Vec<String> = told
                .map(|path| cut(&display(path), PATH_BYTES_MAX).into_owned())
                .collect();
            if paths.is_empty() {
                continue;
            }
            groups.push(format!("conflicts with {who}:"));
            groups.extend(paths.iter().map(|path| format!("- {path}")));
            causes.extend(paths.into_iter().map(|path| (format!("conflict with {who}"), path)));
        }
        if count > causes.len() {
            groups.push(format!("and {} more", count - causes.len()));
        }
        let message = match causes.as_slice() {
            [(who, path)] if count == 1 => format!("Apply failed with 1 conflict: {who}: {path}"),
            _ => format!("Apply failed with {count} conflicts: {}", groups.join("\n")),
        };
        let status = Status::failure(409, reason::CONFLICT, message).with_details(StatusDetails::default());
        causes.into_iter().fold(status, |status, (message, field)| {
            status.with_cause(reason::CAUSE_FIELD_MANAGER_CONFLICT, &message, &field)
        })
    }
}
