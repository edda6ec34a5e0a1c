//! Rules about `metadata`: reading and setting its fields in a body, and validating them as kube-apiserver does.

mod access;
mod generate;
mod identity;
mod manager;
mod names;
mod validate;

pub use access::{
    clear_resource_version, drop_repeated_owners, finalizers, generation, metadata, metadata_mut,
    set_creation_timestamp, set_deletion, set_generation, set_name, set_namespace, set_resource_version, set_uid, text,
    wipe_system_fields,
};
pub use generate::{GENERATED_SUFFIX_LEN, apply_generate_name, generate_name, generates_name, suffix_from_random};
pub use identity::{check_name, check_no_resource_version, settle_namespace};
pub(crate) use manager::{FIELD_MANAGER_MAX_LEN, check_field_manager};
pub use names::{
    dns_1035_label_errors, dns_label_errors, dns_subdomain_errors, domain_prefixed_path_errors, label_key_errors,
    label_value_errors, name_errors,
};
pub use validate::{
    LIST_ITEMS_MAX, TOTAL_ANNOTATION_SIZE_LIMIT, check_list_lengths, is_qualified_finalizer, unqualified_finalizers,
    validate_create, validate_embedded, validate_update,
};

#[cfg(test)]
mod tests;
