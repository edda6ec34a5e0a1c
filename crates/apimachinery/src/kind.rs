//! Description of a resource: names, scope, selectable fields and the rules of its writes.

use std::borrow::Cow;

use crate::gvr::{self, GroupKind, GroupResource, GroupVersionKind, GroupVersionResource};
use crate::json_path::JsonPath;

mod builtin;
mod custom;

pub use custom::CustomKind;

/// A resource the API serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceKind {
    /// API group, empty for core.
    pub group: Cow<'static, str>,
    /// Served version.
    pub version: Cow<'static, str>,
    /// Plural name in URLs.
    pub plural: Cow<'static, str>,
    /// Singular name for kubectl.
    pub singular: Cow<'static, str>,
    /// Kind of one object.
    pub kind: Cow<'static, str>,
    /// Kind of a list.
    pub list_kind: Cow<'static, str>,
    /// True if objects live in namespaces.
    pub namespaced: bool,
    /// Short names for kubectl.
    pub short_names: &'static [&'static str],
    /// Categories for kubectl, such as `all`.
    pub categories: &'static [&'static str],
    /// Selectable fields in addition to `metadata.name` and `metadata.namespace`.
    pub fields: &'static [SelectableField],
    /// Columns of tables in addition to the name; empty for built-in kinds, which have printers of their own.
    pub columns: &'static [PrinterColumn],
    /// True if `/status` is a subresource.
    pub has_status: bool,
    /// True if an update may come without a resource version.
    pub unconditional_update: bool,
    /// True if an update of a missing object creates it.
    pub create_on_update: bool,
    /// True if a delete answers with the object instead of a Status.
    pub delete_returns_object: bool,
    /// Syntax of object names.
    pub name_rule: NameRule,
}

/// A field that field selectors may name.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct SelectableField {
    /// Name in selectors, such as `spec.nodeName`.
    pub label: &'static str,
    /// Path of the value in the object.
    pub path: &'static [&'static str],
    /// Path of the value if `path` is unset or empty; empty if there is none.
    pub alternative: &'static [&'static str],
    /// The value if neither path has one.
    pub default: &'static str,
}

/// A column that the manifest of a custom resource declares.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PrinterColumn {
    /// Heading.
    pub name: String,
    /// Type of the cells.
    pub ty: ColumnType,
    /// OpenAPI format of the cells, for tools.
    pub format: String,
    /// Description of the column, for tools.
    pub description: String,
    /// Columns above 0 are shown on `-o wide`.
    pub priority: i32,
    /// Path of the cell in an object.
    pub path: JsonPath,
}

/// Type of the cells of a column.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum ColumnType {
    /// Any value, as text.
    String,
    /// A whole number.
    Integer,
    /// Any number.
    Number,
    /// True or false.
    Boolean,
    /// A time, shown as the age it has.
    Date,
}

/// Syntax of the names of a kind.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum NameRule {
    /// Dots allowed, 253 bytes.
    DnsSubdomain,
    /// No dots, 63 bytes.
    DnsLabel,
    /// Any valid path segment.
    PathSegment,
}

/// Kinds that can be served without configuration.
pub fn builtin_kinds() -> &'static [ResourceKind] {
    &builtin::KINDS
}

/// The built-in kind of a group and plural name.
pub fn find_kind(group: &str, resource: &str) -> Option<&'static ResourceKind> {
    builtin_kinds()
        .iter()
        .find(|kind| kind.group == group && kind.plural == resource)
}

// === impl ColumnType ===

impl ColumnType {
    const ALL: [(&'static str, Self); 5] = [
        ("boolean", Self::Boolean),
        ("date", Self::Date),
        ("integer", Self::Integer),
        ("number", Self::Number),
        ("string", Self::String),
    ];

    /// The type of a name in a manifest.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, ty)| *ty)
    }

    /// The name in manifests and tables.
    pub fn as_str(self) -> &'static str {
        Self::ALL
            .iter()
            .find(|(_, ty)| *ty == self)
            .map_or("", |(name, _)| name)
    }
}

// === impl ResourceKind ===

impl ResourceKind {
    /// Group, version and plural.
    pub fn gvr(&self) -> GroupVersionResource {
        GroupVersionResource::new(&*self.group, &*self.version, &*self.plural)
    }

    /// Group, version and kind.
    pub fn gvk(&self) -> GroupVersionKind {
        GroupVersionKind::new(&*self.group, &*self.version, &*self.kind)
    }

    /// Group and plural: the name of the collection.
    pub fn group_resource(&self) -> GroupResource {
        GroupResource::new(&*self.group, &*self.plural)
    }

    /// Group and kind, as validation errors name it.
    pub fn group_kind(&self) -> GroupKind {
        GroupKind::new(&*self.group, &*self.kind)
    }

    /// `apiVersion` of an object.
    pub fn api_version(&self) -> String {
        gvr::api_version(&self.group, &self.version)
    }

    /// Text of kube-apiserver's warning about the kind; `None` if it is not deprecated.
    pub fn deprecation(&self) -> Option<&'static str> {
        let is_deprecated = self.group.is_empty() && self.plural == "endpoints";
        is_deprecated.then_some("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice")
    }

    /// Path of the collection in all namespaces, such as `/api/v1/services`.
    pub fn collection_path(&self) -> String {
        self.path(None)
    }

    /// Path of the collection in one namespace.
    pub fn namespaced_path(&self, namespace: &str) -> String {
        self.path(Some(namespace))
    }

    fn path(&self, namespace: Option<&str>) -> String {
        let (version, plural) = (&self.version, &self.plural);
        let mut path = if self.group.is_empty() {
            format!("/api/{version}")
        } else {
            format!("/apis/{}/{version}", self.group)
        };
        if let Some(namespace) = namespace {
            path.push_str("/namespaces/");
            path.push_str(namespace);
        }
        path + "/" + plural
    }

    /// True for kinds that are declared at runtime.
    pub fn is_custom(&self) -> bool {
        !self.columns.is_empty()
    }

    /// Index in [`ResourceKind::fields`] of a field that selectors may name.
    pub fn field_index(&self, label: &str) -> Option<usize> {
        self.fields.iter().position(|field| field.label == label)
    }

    /// Rejects a field that selectors of this kind may not name, with kube-apiserver's text.
    ///
    /// # Errors
    ///
    /// The text of the 400.
    pub fn check_field_label(&self, label: &str) -> Result<(), String> {
        let has_default_rule = self.fields.is_empty() && !self.is_custom();
        let known = match label {
            "metadata.name" => true,
            // Built-in kinds without fields of their own take kube-apiserver's default rule, which knows both.
            "metadata.namespace" => self.namespaced || has_default_rule,
            _ => self.field_index(label).is_some(),
        };
        if known {
            Ok(())
        } else if has_default_rule {
            let label = crate::text::go_quote(label);
            Err(format!(
                "{label} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
            ))
        } else {
            Err(format!("field label not supported: {label}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_builtin_is_found_under_its_names() {
        for kind in builtin_kinds() {
            assert_eq!(find_kind(&kind.group, &kind.plural), Some(kind));
            assert_eq!(kind.list_kind, format!("{}List", kind.kind));
            assert_eq!(kind.singular, kind.kind.to_lowercase());
            assert!(kind.fields.len() <= 32, "extraction keeps two bits per field in 64");
        }
        assert_eq!(find_kind("apps", "services"), None);
    }

    #[test]
    fn paths_follow_the_group() {
        let services = find_kind("", "services").unwrap();
        assert_eq!(services.collection_path(), "/api/v1/services");
        let leases = find_kind("coordination.k8s.io", "leases").unwrap();
        assert_eq!(
            leases.namespaced_path("ns"),
            "/apis/coordination.k8s.io/v1/namespaces/ns/leases"
        );
    }

    /// Conformance: 2.35
    #[test]
    fn unknown_fields_are_refused_in_the_words_of_the_kind() {
        let pods = find_kind("", "pods").unwrap();
        assert_eq!(pods.check_field_label("spec.nodeName"), Ok(()));
        assert_eq!(
            pods.check_field_label("spec.x"),
            Err("field label not supported: spec.x".into())
        );
        let nodes = find_kind("", "nodes").unwrap();
        assert!(nodes.check_field_label("metadata.namespace").is_err());
        let leases = find_kind("coordination.k8s.io", "leases").unwrap();
        assert_eq!(leases.check_field_label("metadata.namespace"), Ok(()));
        assert_eq!(
            leases.check_field_label("spec.x"),
            Err("\"spec.x\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"".into())
        );
    }

    /// Conformance: 2.36
    #[test]
    fn every_supported_field_is_known() {
        for (group, resource, fields) in [
            (
                "",
                "pods",
                "metadata.name metadata.namespace spec.nodeName spec.host spec.restartPolicy spec.schedulerName \
                 spec.serviceAccountName spec.hostNetwork status.phase status.podIP status.podIPs status.nominatedNodeName",
            ),
            ("", "nodes", "metadata.name spec.unschedulable"),
            ("", "namespaces", "metadata.name status.phase"),
            ("", "secrets", "metadata.name metadata.namespace type"),
            (
                "",
                "services",
                "metadata.name metadata.namespace spec.clusterIP spec.type",
            ),
            (
                "",
                "events",
                "involvedObject.kind involvedObject.uid reason reportingComponent source type",
            ),
            (
                "events.k8s.io",
                "events",
                "regarding.kind regarding.uid reason reportingController type",
            ),
        ] {
            let kind = find_kind(group, resource).unwrap();
            for field in fields.split_whitespace() {
                assert_eq!(kind.check_field_label(field), Ok(()), "{group} {resource}");
            }
        }
    }
}
