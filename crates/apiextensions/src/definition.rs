//! Custom resources: what the manifest of a kind says (`CustomResourceDefinition` of `apiextensions.k8s.io/v1`).
//!
//! A manifest is validated by kube-apiserver's rules as far as they concern names, versions, columns and selectable
//! fields. [`crate::structural`] applies its schemas to objects. Conversion is `None`: versions differ in `apiVersion`
//! alone. The subresource `scale` is not served.

use std::collections::BTreeSet;

use serde_json::Value;

use yurt_apimachinery::gvr::GroupResource;
use yurt_apimachinery::kind::{CustomKind, builtin_kinds};

mod manifest;
mod versions;

pub use manifest::{is_manifest, parse};
pub use versions::compare as compare_versions;

/// API group and version of the manifests.
pub const API_VERSION: &str = "apiextensions.k8s.io/v1";
/// Kind of the manifests.
pub const KIND: &str = "CustomResourceDefinition";
/// Most versions of one kind.
pub const VERSIONS_MAX: usize = 16;
/// Most selectable fields of one version, as in kube-apiserver.
pub const SELECTABLE_FIELDS_MAX: usize = 8;
/// Most selectable fields of all versions of one kind together: all of them are extracted in one pass over an object.
pub const STORED_FIELDS_MAX: usize = 32;

/// A kind as its manifest declares it.
#[derive(Clone, Debug, PartialEq)]
pub struct Definition {
    /// The version that is stored, with the selectable fields of every version.
    pub stored: CustomKind,
    /// The versions that are served, the preferred one first.
    pub served: Vec<ServedVersion>,
}

/// One served version.
#[derive(Clone, Debug, PartialEq)]
pub struct ServedVersion {
    /// The kind in the form the server uses.
    pub kind: CustomKind,
    /// OpenAPI v3 schema of an object, to be published and enforced.
    pub schema: Option<Value>,
}

/// Checks conditions across manifests: names that two kinds of a group share, and the number of kinds.
///
/// # Errors
///
/// One line naming both kinds, or the limit.
pub fn check_all(definitions: &[Definition], kinds_max: usize) -> Result<(), String> {
    if definitions.len() > kinds_max {
        return Err(format!(
            "{} custom resources are declared, at most {kinds_max} can be",
            definitions.len()
        ));
    }
    let mut plurals = BTreeSet::new();
    let mut taken: BTreeSet<(&str, &str)> = BTreeSet::new();
    for definition in definitions {
        let stored = &definition.stored;
        let name = definition.name();
        if !plurals.insert(name.clone()) {
            return Err(format!("{name}: declared twice"));
        }
        let short_names = stored.short_names.iter().map(String::as_str);
        let kinds = [&stored.kind, &stored.list_kind].map(String::as_str);
        let mut own: BTreeSet<&str> = [&stored.plural, &stored.singular].map(String::as_str).into();
        own.extend(short_names.chain(kinds));
        if let Some(shared) = own.iter().find(|own| !taken.insert((&stored.group, own))) {
            return Err(format!(
                "{name}: another kind of {} has the name {shared}",
                stored.group
            ));
        }
    }
    Ok(())
}

/// True for Kubernetes' own groups: manifests cannot declare kinds in them.
fn is_reserved(group: &str) -> bool {
    matches!(group, "authentication.k8s.io" | "authorization.k8s.io")
        || builtin_kinds().iter().any(|kind| kind.group == group)
}

// === impl Definition ===

impl Definition {
    /// `plural.group`: the name of the manifest, and of the collection.
    pub fn name(&self) -> String {
        GroupResource::new(&*self.stored.group, &*self.stored.plural).to_string()
    }
}

#[cfg(test)]
mod tests;
