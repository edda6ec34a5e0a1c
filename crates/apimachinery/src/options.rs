//! The options of requests, read from the query or the body and validated as kube-apiserver does.

use crate::gvr::GroupKind;
use crate::status::{ErrorList, FieldError, Status};

mod continue_token;
mod delete;
mod list;
mod raw;
mod write;

pub use continue_token::{ContinueToken, TOKEN_BYTES_MAX};
pub use delete::{DeleteOptions, Preconditions, PropagationPolicy};
pub use list::{ListOptions, ResourceVersionMatch};
pub(crate) use raw::required_name;
pub use write::{FieldValidation, WriteOptions};

/// Group of the option kinds in 422 answers.
const META_GROUP: &str = "meta.k8s.io";

/// The 422 of options that break a rule.
fn invalid_options(kind: &str, errors: &ErrorList) -> Result<(), Status> {
    if errors.is_empty() {
        Ok(())
    } else {
        Err(Status::invalid(&GroupKind::new(META_GROUP, kind), "", errors))
    }
}

/// Rejects every dry run except `All`.
fn check_dry_run(values: &[&str], errors: &mut ErrorList) -> bool {
    if values.iter().any(|value| *value != "All") {
        errors.push(FieldError::not_supported("dryRun", values.to_vec(), &["All"]));
    }
    !values.is_empty()
}

#[cfg(test)]
mod tests;
