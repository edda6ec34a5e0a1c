//! Resources that a pool shares in addition to those every pool shares: the entries an operator may list, and the
//! description of each.
//!
//! The list is key `pool_scope_resources` of ConfigMap `kube-system/yurt-hub-cfg`: a JSON array of objects with members
//! `Group`, `Version` and `Resource`, in upper or lower case. An entry that cannot be used is a [`Problem`] and costs
//! no other entry.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use yurt_apimachinery::json_path::JsonPath;
use yurt_apimachinery::kind::{ColumnType, CustomKind, PrinterColumn, ResourceKind, find_kind};
use yurt_apimachinery::meta::{dns_label_errors, dns_subdomain_errors};
use yurt_apimachinery::{GroupResource, GroupVersionResource, json_text};

/// Key of the ConfigMap.
pub const CONFIG_KEY: &str = "pool_scope_resources";

/// Most additional resources: each is a stream from the cloud and a copy on every node.
pub const RESOURCES_MAX: usize = 32;

/// A listed resource, with the description that every component copying it needs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SharedResource {
    /// API group, empty for the core group.
    #[serde(default)]
    pub group: String,
    /// The version that is copied.
    pub version: String,
    /// Plural name in URLs.
    pub resource: String,
    /// Singular name, for kubectl.
    #[serde(default)]
    pub singular: String,
    /// Kind of one object.
    pub kind: String,
    /// Kind of a list.
    pub list_kind: String,
    /// True if objects live in namespaces.
    pub namespaced: bool,
}

/// An entry that is not used, and why.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Problem {
    /// `resource.group`, or the position of the entry.
    pub entry: String,
    /// Reason for the rejection.
    pub why: String,
}

/// The usable entries of the list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Each resource once.
    pub resources: Vec<GroupVersionResource>,
    /// The entries that are not usable.
    pub problems: Vec<Problem>,
}

/// Built-in resources that may be copied: proxies and DNS servers read them, and nothing runs or is granted because of
/// them.
const BUILT_IN: [&str; 3] = ["services", "endpoints", "endpointslices.discovery.k8s.io"];
/// Suffixes of the groups that Kubernetes keeps for its own kinds.
const KUBERNETES_GROUPS: [&str; 2] = ["k8s.io", "kubernetes.io"];

/// Returns the reason why a resource cannot be pool-scope; `None` if it can.
///
/// The leader of a pool determines the contents of the copies, so only two sorts are allowed: services, endpoints and
/// slices, and custom kinds. Kubelets, schedulers and controllers act on all other Kubernetes resources.
#[must_use]
pub fn why_not(resource: &GroupResource) -> Option<&'static str> {
    let name = resource.to_string();
    match name.as_str() {
        name if BUILT_IN.contains(&name) => None,
        "events" | "events.events.k8s.io" => {
            Some("events are written by every node and have no single source to replicate from")
        }
        "leases.coordination.k8s.io" => {
            Some("leases belong to the coordinator itself: elections and heartbeats need its own copy")
        }
        "secrets" => Some("secrets must not be copied to a whole pool"),
        _ if is_of_kubernetes(&resource.group) => Some(
            "of the kinds of Kubernetes only services, endpoints and endpointslices.discovery.k8s.io can be copied: \
             kubelets, schedulers and controllers act on the others",
        ),
        _ => None,
    }
}

/// True for Kubernetes' own groups: without a dot, or below a domain of Kubernetes.
fn is_of_kubernetes(group: &str) -> bool {
    let is_below = |domain: &&str| {
        let prefix = group.strip_suffix(domain);
        prefix.is_some_and(|prefix| prefix.is_empty() || prefix.ends_with('.'))
    };
    !group.contains('.') || KUBERNETES_GROUPS.iter().any(is_below)
}

/// Reads the list. An absent or empty one adds no resources.
///
/// # Errors
/// One line, when the text is no list. The previous list then stays in force.
pub fn parse(text: &str) -> Result<Wanted, String> {
    if text.trim().is_empty() {
        return Ok(Wanted::default());
    }
    let entries = json_text::parse(text.as_bytes()).map_err(|error| format!("{CONFIG_KEY} is not JSON: {error}"))?;
    let Value::Array(entries) = entries else {
        return Err(format!(
            "{CONFIG_KEY} must be a JSON array of Group, Version and Resource"
        ));
    };
    let mut wanted = Wanted::default();
    for (index, entry) in entries.iter().enumerate() {
        if let Err(problem) = wanted.add(index, entry) {
            wanted.problems.push(problem);
        }
    }
    Ok(wanted)
}

// === impl Wanted ===

impl Wanted {
    fn add(&mut self, index: usize, entry: &Value) -> Result<(), Problem> {
        let unreadable = |why: &str| Problem {
            entry: format!("{CONFIG_KEY}[{index}]"),
            why: why.to_owned(),
        };
        let members =
            members(entry).ok_or_else(|| unreadable("must be an object with texts Group, Version, Resource"))?;
        let member = |name: &str| members.get(name).copied().unwrap_or_default();
        let (group, version, resource) = (member("group"), member("version"), member("resource"));
        if version.is_empty() || resource.is_empty() {
            return Err(unreadable("must name a Version and a Resource"));
        }
        let asked = GroupVersionResource::new(group, version, resource);
        let refused = |why: String| Problem {
            entry: asked.to_string(),
            why,
        };
        check_names(&asked).map_err(refused)?;
        let name = asked.group_resource();
        if let Some(why) = why_not(&name) {
            return Err(refused(why.to_owned()));
        }
        if let Some(kind) = find_kind(group, resource).filter(|kind| kind.version != version) {
            return Err(refused(format!(
                "is known in version {} only, not {version}",
                kind.version
            )));
        }
        if let Some(other) = self.resources.iter().find(|other| other.group_resource() == name) {
            let same = other.version == version;
            let why = format!("is listed in version {} already", other.version);
            return if same { Ok(()) } else { Err(refused(why)) };
        }
        if self.resources.len() == RESOURCES_MAX {
            return Err(refused(format!("at most {RESOURCES_MAX} resources can be listed")));
        }
        self.resources.push(asked);
        Ok(())
    }
}

/// The members of an entry by their names in lower case; `None` when it is no object of strings.
fn members(entry: &Value) -> Option<BTreeMap<String, &str>> {
    let entry = entry.as_object()?;
    let mut members = BTreeMap::new();
    for (name, value) in entry {
        members.insert(name.to_lowercase(), value.as_str()?);
    }
    Some(members)
}

fn check_names(asked: &GroupVersionResource) -> Result<(), String> {
    let group = if asked.group.is_empty() {
        Vec::new()
    } else {
        dns_subdomain_errors(&asked.group)
    };
    for (what, faults) in [
        ("Group", group),
        ("Version", dns_label_errors(&asked.version)),
        ("Resource", dns_label_errors(&asked.resource)),
    ] {
        if let Some(fault) = faults.first() {
            return Err(format!("{what}: {fault}"));
        }
    }
    Ok(())
}

// === impl SharedResource ===

impl SharedResource {
    /// Describes `kind` for the components that copy it.
    #[must_use]
    pub fn of(kind: &ResourceKind) -> Self {
        Self {
            group: kind.group.to_string(),
            version: kind.version.to_string(),
            resource: kind.plural.to_string(),
            singular: kind.singular.to_string(),
            kind: kind.kind.to_string(),
            list_kind: kind.list_kind.to_string(),
            namespaced: kind.namespaced,
        }
    }

    /// Group, version and resource.
    #[must_use]
    pub fn gvr(&self) -> GroupVersionResource {
        GroupVersionResource::new(&*self.group, &*self.version, &*self.resource)
    }

    /// `resource.group`: the name of its collection.
    #[must_use]
    pub fn name(&self) -> String {
        self.gvr().to_string()
    }

    /// Checks that the resource may be copied, regardless of its source.
    ///
    /// # Errors
    /// One line with the reason.
    pub fn check(&self) -> Result<(), String> {
        let entry = serde_json::json!({ "group": self.group, "version": self.version, "resource": self.resource });
        Wanted::default().add(0, &entry).map_err(|problem| problem.why)?;
        let names = [&self.kind, &self.list_kind].map(|name| name.to_lowercase());
        for name in names
            .iter()
            .chain((!self.singular.is_empty()).then_some(&self.singular))
        {
            if let Some(fault) = dns_label_errors(name).first() {
                return Err(format!("{name:?}: {fault}"));
            }
        }
        Ok(())
    }

    /// Minimal description of a kind that is not built-in: names and scope, and only a column for the age in its
    /// tables.
    #[must_use]
    pub fn custom_kind(&self) -> CustomKind {
        let age = JsonPath::parse(".metadata.creationTimestamp").expect("a constant path must parse");
        CustomKind {
            group: self.group.clone(),
            version: self.version.clone(),
            plural: self.resource.clone(),
            singular: self.singular.clone(),
            kind: self.kind.clone(),
            list_kind: self.list_kind.clone(),
            namespaced: self.namespaced,
            short_names: Vec::new(),
            categories: Vec::new(),
            fields: Vec::new(),
            columns: vec![PrinterColumn {
                name: "Age".to_owned(),
                ty: ColumnType::Date,
                format: String::new(),
                description: "Time since the object was created.".to_owned(),
                priority: 0,
                path: age,
            }],
            has_status: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(wanted: &Wanted) -> Vec<String> {
        wanted.resources.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn lists_are_read_in_either_case_and_an_absent_one_is_empty() {
        let text = r#"[{"Group":"example.com","Version":"v1","Resource":"widgets"},
            {"group":"apps.openyurt.io","version":"v1beta2","resource":"nodepools"}, {"Version":"v1","Resource":"services"}]"#;
        let wanted = parse(text).unwrap();
        let expected = ["widgets.example.com", "nodepools.apps.openyurt.io", "services"];
        assert_eq!(names(&wanted), expected);
        assert!(wanted.problems.is_empty());
        assert_eq!(parse(" \n").unwrap(), Wanted::default());
        assert_eq!(parse("[]").unwrap(), Wanted::default());
    }

    #[test]
    fn nothing_that_kubernetes_acts_on_can_be_copied() {
        let refused = "pods nodes serviceaccounts persistentvolumes persistentvolumeclaims secrets configmaps events \
            namespaces limitranges resourcequotas replicationcontrollers anything \
            deployments.apps jobs.batch horizontalpodautoscalers.autoscaling poddisruptionbudgets.policy \
            csinodes.storage.k8s.io csidrivers.storage.k8s.io csistoragecapacities.storage.k8s.io \
            volumeattachments.storage.k8s.io storageclasses.storage.k8s.io runtimeclasses.node.k8s.io \
            certificatesigningrequests.certificates.k8s.io clustertrustbundles.certificates.k8s.io \
            clusterroles.rbac.authorization.k8s.io rolebindings.rbac.authorization.k8s.io leases.coordination.k8s.io \
            events.events.k8s.io resourceclaims.resource.k8s.io priorityclasses.scheduling.k8s.io \
            customresourcedefinitions.apiextensions.k8s.io apiservices.apiregistration.k8s.io \
            widgets.k8s.io widgets.kubernetes.io widgets.node.kubernetes.io";
        for name in refused.split_whitespace() {
            assert!(why_not(&GroupResource::parse(name)).is_some(), "{name}");
        }
        let allowed = "services endpoints endpointslices.discovery.k8s.io nodepools.apps.openyurt.io \
            widgets.example.com pods.example.com widgets.notk8s.io";
        for name in allowed.split_whitespace() {
            assert_eq!(why_not(&GroupResource::parse(name)), None, "{name}");
        }
    }

    #[test]
    fn bad_entry_is_reported_and_costs_no_other() {
        let entry = |group: &str, version: &str, resource: &str| serde_json::json!({ "Group": group, "Version": version, "Resource": resource });
        let text = serde_json::json!([
            "widgets",
            entry("example.com", "", "widgets"),
            entry("example.com", "v1", "../x"),
            entry("", "v1", "secrets"),
            entry("events.k8s.io", "v1", "events"),
            entry("coordination.k8s.io", "v1", "leases"),
            entry("discovery.k8s.io", "v1beta1", "endpointslices"),
            entry("", "v1", "persistentvolumes"),
            entry("example.com", "v1", "widgets"),
            entry("example.com", "v1", "widgets"),
            entry("example.com", "v2", "widgets"),
        ]);
        let wanted = parse(&text.to_string()).unwrap();
        assert_eq!(names(&wanted), ["widgets.example.com"]);
        let entries: Vec<&str> = wanted.problems.iter().map(|problem| problem.entry.as_str()).collect();
        let expected = [
            "pool_scope_resources[0]",
            "pool_scope_resources[1]",
            "../x.example.com",
            "secrets",
            "events.events.k8s.io",
            "leases.coordination.k8s.io",
            "endpointslices.discovery.k8s.io",
            "persistentvolumes",
            "widgets.example.com",
        ];
        assert_eq!(entries, expected);
    }

    #[test]
    fn text_that_is_no_list_is_an_error_and_the_list_is_bounded() {
        for text in ["{}", "[", "widgets", "null"] {
            assert!(parse(text).is_err(), "{text}");
        }
        let many: Vec<Value> = (0..=RESOURCES_MAX)
            .map(|n| serde_json::json!({ "Group": "a.b", "Version": "v1", "Resource": format!("w{n}") }))
            .collect();
        let wanted = parse(&Value::Array(many).to_string()).unwrap();
        assert_eq!((wanted.resources.len(), wanted.problems.len()), (RESOURCES_MAX, 1));
    }

    #[test]
    fn what_others_say_of_a_kind_is_checked() {
        let widget = SharedResource {
            group: "example.com".into(),
            version: "v1".into(),
            resource: "widgets".into(),
            singular: "widget".into(),
            kind: "Widget".into(),
            list_kind: "WidgetList".into(),
            namespaced: true,
        };
        assert_eq!(widget.check(), Ok(()));
        let secret = SharedResource {
            group: String::new(),
            resource: "secrets".into(),
            ..widget.clone()
        };
        assert!(secret.check().unwrap_err().contains("must not be copied"));
        for bad in ["", "a/b", "\"", "Widget\n"] {
            let kind = SharedResource {
                kind: bad.into(),
                ..widget.clone()
            };
            assert!(kind.check().is_err(), "{bad:?}");
        }
        let kind = widget.custom_kind().leak();
        assert!(kind.is_custom());
        assert_eq!(kind.namespaced_path("x"), "/apis/example.com/v1/namespaces/x/widgets");
    }
}
