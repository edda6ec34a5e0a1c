//! Kinds that are declared at runtime.

use std::borrow::Cow;

use super::{NameRule, PrinterColumn, ResourceKind, SelectableField};

/// One version of a kind; [`ResourceKind`] with owned names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CustomKind {
    /// API group.
    pub group: String,
    /// Version.
    pub version: String,
    /// Plural name in URLs.
    pub plural: String,
    /// Singular name for kubectl.
    pub singular: String,
    /// Kind of one object.
    pub kind: String,
    /// Kind of a list.
    pub list_kind: String,
    /// True if objects live in namespaces.
    pub namespaced: bool,
    /// Short names for kubectl.
    pub short_names: Vec<String>,
    /// Categories for kubectl.
    pub categories: Vec<String>,
    /// Selectable fields, by their paths without the first dot.
    pub fields: Vec<String>,
    /// Columns of tables in addition to the name; never empty.
    pub columns: Vec<PrinterColumn>,
    /// True if `/status` is a subresource.
    pub has_status: bool,
}

// === impl CustomKind ===

impl CustomKind {
    /// The kind as a `'static` reference. Its memory is never freed: the caller keeps the reference and bounds the
    /// number of calls.
    pub fn leak(&self) -> &'static ResourceKind {
        let owned = |text: &str| Cow::Owned(text.to_owned());
        Box::leak(Box::new(ResourceKind {
            group: owned(&self.group),
            version: owned(&self.version),
            plural: owned(&self.plural),
            singular: owned(&self.singular),
            kind: owned(&self.kind),
            list_kind: owned(&self.list_kind),
            namespaced: self.namespaced,
            short_names: leak_all(self.short_names.iter().map(|name| leak_text(name))),
            categories: leak_all(self.categories.iter().map(|name| leak_text(name))),
            fields: leak_all(self.fields.iter().map(|label| SelectableField {
                label: leak_text(label),
                path: leak_all(label.split('.').map(leak_text)),
                alternative: &[],
                default: "",
            })),
            columns: leak_all(self.columns.iter().cloned()),
            has_status: self.has_status,
            unconditional_update: false,
            create_on_update: false,
            delete_returns_object: false,
            name_rule: NameRule::DnsSubdomain,
        }))
    }
}

fn leak_text(text: &str) -> &'static str {
    Box::leak(text.into())
}

fn leak_all<T>(items: impl Iterator<Item = T>) -> &'static [T] {
    Box::leak(items.collect())
}
