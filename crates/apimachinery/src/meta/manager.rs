//! Names of field managers.

use crate::status::{ErrorList, FieldError};
use crate::text::is_printable;

/// kube-apiserver's limit for the name of a field manager, in bytes.
pub(crate) const FIELD_MANAGER_MAX_LEN: usize = 128;

/// Checks a manager's name in the given field.
pub(crate) fn check_field_manager(field: &str, manager: &str, errors: &mut ErrorList) {
    if manager.len() > FIELD_MANAGER_MAX_LEN {
        errors.push(FieldError::too_long(field, FIELD_MANAGER_MAX_LEN));
    }
    for (position, c) in manager.char_indices().filter(|(_, c)| !is_printable(*c)) {
        let detail = format!("invalid character U+{:04X} (at position {position})", c as u32);
        errors.push(FieldError::invalid(field, manager, &detail));
    }
}
