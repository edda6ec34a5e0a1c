//! The names of API types: group, version and resource or kind, in the combinations the API uses.

use std::fmt;

/// Group, version and plural resource: what a URL names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupVersionResource {
    /// API group, empty for the core group.
    pub group: String,
    /// Version inside the group.
    pub version: String,
    /// Plural, lower-case resource name.
    pub resource: String,
}

/// Group, version and kind: what a body names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupVersionKind {
    /// API group, empty for the core group.
    pub group: String,
    /// Version inside the group.
    pub version: String,
    /// CamelCase singular kind.
    pub kind: String,
}

/// Group and plural resource: what errors name, and the name of a collection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupResource {
    /// API group, empty for the core group.
    pub group: String,
    /// Plural, lower-case resource name.
    pub resource: String,
}

/// Group and kind: what validation errors name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupKind {
    /// API group, empty for the core group.
    pub group: String,
    /// CamelCase singular kind.
    pub kind: String,
}

// === impl GroupVersionResource ===

impl GroupVersionResource {
    /// Builds one from its three parts.
    pub fn new(group: impl Into<String>, version: impl Into<String>, resource: impl Into<String>) -> Self {
        Self {
            group: group.into(),
            version: version.into(),
            resource: resource.into(),
        }
    }

    /// The same without the version.
    pub fn group_resource(&self) -> GroupResource {
        GroupResource {
            group: self.group.clone(),
            resource: self.resource.clone(),
        }
    }
}

impl fmt::Display for GroupVersionResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_qualified(f, &self.resource, &self.group)
    }
}

// === impl GroupVersionKind ===

impl GroupVersionKind {
    /// Builds one from its three parts.
    pub fn new(group: impl Into<String>, version: impl Into<String>, kind: impl Into<String>) -> Self {
        Self {
            group: group.into(),
            version: version.into(),
            kind: kind.into(),
        }
    }

    /// The `apiVersion` of a body: `v1` or `discovery.k8s.io/v1`.
    pub fn api_version(&self) -> String {
        api_version(&self.group, &self.version)
    }

    /// The same without the version.
    pub fn group_kind(&self) -> GroupKind {
        GroupKind {
            group: self.group.clone(),
            kind: self.kind.clone(),
        }
    }
}

// === impl GroupResource ===

impl GroupResource {
    /// Builds one from its two parts.
    pub fn new(group: impl Into<String>, resource: impl Into<String>) -> Self {
        Self {
            group: group.into(),
            resource: resource.into(),
        }
    }

    /// Reads the display form back: `services` or `leases.coordination.k8s.io`.
    pub fn parse(text: &str) -> Self {
        let (resource, group) = text.split_once('.').unwrap_or((text, ""));
        Self::new(group, resource)
    }
}

impl fmt::Display for GroupResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_qualified(f, &self.resource, &self.group)
    }
}

// === impl GroupKind ===

impl GroupKind {
    /// Builds one from its two parts.
    pub fn new(group: impl Into<String>, kind: impl Into<String>) -> Self {
        Self {
            group: group.into(),
            kind: kind.into(),
        }
    }
}

impl fmt::Display for GroupKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_qualified(f, &self.kind, &self.group)
    }
}

/// Joins group and version as `apiVersion` does.
pub(crate) fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    }
}

/// Group and version of an `apiVersion`.
pub fn split_api_version(text: &str) -> (&str, &str) {
    text.split_once('/').unwrap_or(("", text))
}

fn write_qualified(f: &mut fmt::Formatter<'_>, name: &str, group: &str) -> fmt::Result {
    f.write_str(name)?;
    if group.is_empty() {
        Ok(())
    } else {
        write!(f, ".{group}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn core_group_is_not_shown() {
        assert_eq!(GroupResource::new("", "services").to_string(), "services");
        assert_eq!(GroupKind::new("", "Pod").to_string(), "Pod");
        assert_eq!(GroupVersionKind::new("", "v1", "Pod").api_version(), "v1");
    }

    #[test]
    fn named_groups_follow_the_name() {
        assert_eq!(
            GroupVersionResource::new("discovery.k8s.io", "v1", "endpointslices").to_string(),
            "endpointslices.discovery.k8s.io"
        );
        let leases = GroupResource::new("coordination.k8s.io", "leases");
        assert_eq!(GroupResource::parse(&leases.to_string()), leases);
        assert_eq!(GroupVersionKind::new("a.b", "v1", "K").api_version(), "a.b/v1");
    }
}
