//! Parses Role, ClusterRole, RoleBinding and ClusterRoleBinding objects, strictly: an unknown field is an error,
//! because a misspelt `resourceNames` would otherwise allow more than its author meant.

use std::sync::Arc;

use serde_json::{Map, Value};
use yurt_apimachinery::LabelSelector;

use super::{Binding, Policy, PolicyRule, Role, RoleRef, Subject, Who};

/// API group of all four kinds.
pub(crate) const GROUP: &str = "rbac.authorization.k8s.io";
const API_VERSION: &str = "rbac.authorization.k8s.io/v1";

/// The field and its fault, without the file.
pub(crate) type Fault = String;

/// Adds an object, or all items of a list, to `policy`. Objects of other API groups are skipped: a file may hold the
/// rest of an installation, too.
///
/// # Errors
/// The object, the field, and its fault.
pub(crate) fn add(policy: &mut Policy, object: &Value) -> Result<(), Fault> {
    let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    if kind == "List" || (api_version == API_VERSION && kind.ends_with("List")) {
        let items = object.get("items").and_then(Value::as_array);
        let items = items.ok_or_else(|| "items: must be a list of objects".to_owned())?;
        return items.iter().try_for_each(|item| add(policy, item));
    }
    if !object.is_object() || api_version.is_empty() || kind.is_empty() {
        return Err("apiVersion, kind: every object needs both".to_owned());
    }
    if api_version.split('/').next() != Some(GROUP) {
        return Ok(());
    }
    let place = ObjectPlace::of(object, kind);
    if api_version != API_VERSION {
        return Err(place.fault("apiVersion", &format!("only {API_VERSION} is understood")));
    }
    match kind {
        "Role" | "ClusterRole" => place.add_role(policy, object),
        "RoleBinding" | "ClusterRoleBinding" => place.add_binding(policy, object),
        _ => Err(place.fault("kind", "must be Role, ClusterRole, RoleBinding or ClusterRoleBinding")),
    }
}

/// Position of an object, for messages.
struct ObjectPlace<'a> {
    kind: &'a str,
    namespace: &'a str,
    name: &'a str,
    namespaced: bool,
}

// === impl ObjectPlace ===

impl<'a> ObjectPlace<'a> {
    fn of(object: &'a Value, kind: &'a str) -> Self {
        let metadata = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
        Self {
            kind,
            namespace: metadata("namespace"),
            name: metadata("name"),
            namespaced: matches!(kind, "Role" | "RoleBinding"),
        }
    }

    fn fault(&self, field: &str, why: &str) -> Fault {
        format!("{} \"{}\": {field}: {why}", self.kind, self.name)
    }

    fn check_metadata(&self) -> Result<(), Fault> {
        if self.name.is_empty() {
            return Err(self.fault("metadata.name", "Required value"));
        }
        match (self.namespaced, self.namespace.is_empty()) {
            (true, true) => Err(self.fault("metadata.namespace", "Required value")),
            (false, false) => Err(self.fault("metadata.namespace", "a cluster-wide object has none")),
            _ => Ok(()),
        }
    }

    fn twice(&self) -> Fault {
        self.fault("metadata.name", "defined twice")
    }

    fn add_role(&self, policy: &mut Policy, object: &Value) -> Result<(), Fault> {
        self.check_metadata()?;
        let known = ["apiVersion", "kind", "metadata", "rules", "aggregationRule"];
        let known = if self.namespaced { &known[..4] } else { &known[..] };
        let members = self.members(object, "", known)?;
        let aggregation = match members.get("aggregationRule") {
            None | Some(Value::Null) => Vec::new(),
            Some(rule) => self.aggregation(rule)?,
        };
        let rules = self.list(members.get("rules"), "rules")?;
        let rules = rules
            .iter()
            .enumerate()
            .map(|(at, rule)| self.rule(rule, &format!("rules[{at}]")));
        let rules = rules.collect::<Result<Vec<_>, _>>()?;
        let labels = object["metadata"]["labels"].as_object().into_iter().flatten();
        let role = Role {
            rules,
            labels: labels
                .filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)))
                .collect(),
            aggregation,
        };
        if policy.add_role(self.namespace, self.name, role) {
            Ok(())
        } else {
            Err(self.twice())
        }
    }

    /// Selectors of the roles whose rules a ClusterRole aggregates.
    fn aggregation(&self, rule: &Value) -> Result<Vec<LabelSelector>, Fault> {
        const FIELD: &str = "aggregationRule.clusterRoleSelectors";
        let members = self.members(rule, "aggregationRule", &["clusterRoleSelectors"])?;
        let selectors = self.list(members.get("clusterRoleSelectors"), FIELD)?;
        if selectors.is_empty() {
            let why = "at least one clusterRoleSelector required if aggregationRule is non-nil";
            return Err(self.fault(FIELD, why));
        }
        let selector = |(at, selector): (usize, &Value)| self.selector(selector, &format!("{FIELD}[{at}]"));
        selectors.iter().enumerate().map(selector).collect()
    }

    /// A selector in its long form. An empty one selects everything.
    fn selector(&self, selector: &Value, field: &str) -> Result<LabelSelector, Fault> {
        let members = self.members(selector, field, &["matchLabels", "matchExpressions"])?;
        let mut parts = Vec::new();
        if let Some(labels) = members.get("matchLabels").filter(|labels| !labels.is_null()) {
            let field = format!("{field}.matchLabels");
            let labels = labels
                .as_object()
                .ok_or_else(|| self.fault(&field, "must be an object"))?;
            for key in labels.keys() {
                parts.push(format!("{key}={}", self.text(labels, &field, key)?));
            }
        }
        let expressions = self.list(members.get("matchExpressions"), &format!("{field}.matchExpressions"))?;
        for (at, expression) in expressions.iter().enumerate() {
            parts.push(self.requirement(expression, &format!("{field}.matchExpressions[{at}]"))?);
        }
        LabelSelector::parse(&parts.join(",")).map_err(|error| self.fault(field, &error.to_string()))
    }

    fn requirement(&self, expression: &Value, field: &str) -> Result<String, Fault> {
        let members = self.members(expression, field, &["key", "operator", "values"])?;
        let (key, operator) = (
            self.text(members, field, "key")?,
            self.text(members, field, "operator")?,
        );
        let values = self.words(members.get("values"), &format!("{field}.values"))?;
        let word = match (operator, values.is_empty()) {
            ("In", false) => "in",
            ("NotIn", false) => "notin",
            ("Exists", true) => return Ok(key.to_owned()),
            ("DoesNotExist", true) => return Ok(format!("!{key}")),
            ("In" | "NotIn", true) => {
                let why = "must be specified when `operator` is 'In' or 'NotIn'";
                return Err(self.fault(&format!("{field}.values"), why));
            }
            ("Exists" | "DoesNotExist", false) => {
                let why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                return Err(self.fault(&format!("{field}.values"), why));
            }
            _ => return Err(self.fault(&format!("{field}.operator"), "not a valid selector operator")),
        };
        Ok(format!("{key} {word} ({})", values.join(",")))
    }

    fn rule(&self, rule: &Value, field: &str) -> Result<PolicyRule, Fault> {
        const FIELDS: [&str; 5] = ["verbs", "apiGroups", "resources", "resourceNames", "nonResourceURLs"];
        let members = self.members(rule, field, &FIELDS)?;
        let words = |name: &str| self.words(members.get(name), &format!("{field}.{name}"));
        let [verbs, api_groups, resources, resource_names, paths] = FIELDS.map(words);
        let rule = PolicyRule {
            verbs: verbs?,
            api_groups: api_groups?,
            resources: resources?,
            resource_names: resource_names?,
            paths: paths?,
        };
        let required = |name: &str, why: &str| Err(self.fault(&format!("{field}.{name}"), why));
        if rule.verbs.is_empty() {
            return required("verbs", "verbs must contain at least one value");
        }
        if !rule.paths.is_empty() {
            if self.namespaced {
                return required("nonResourceURLs", "namespaced rules cannot apply to non-resource URLs");
            }
            if !(rule.api_groups.is_empty() && rule.resources.is_empty() && rule.resource_names.is_empty()) {
                return required(
                    "nonResourceURLs",
                    "rules cannot apply to both regular resources and non-resource URLs",
                );
            }
            return Ok(rule);
        }
        if rule.api_groups.is_empty() {
            return required("apiGroups", "resource rules must supply at least one api group");
        }
        if rule.resources.is_empty() {
            return required("resources", "resource rules must supply at least one resource");
        }
        Ok(rule)
    }

    fn add_binding(&self, policy: &mut Policy, object: &Value) -> Result<(), Fault> {
        self.check_metadata()?;
        let members = self.members(object, "", &["apiVersion", "kind", "metadata", "roleRef", "subjects"])?;
        let (role, described) = self.role_ref(members.get("roleRef").unwrap_or(&Value::Null))?;
        let subjects = self.list(members.get("subjects"), "subjects")?;
        let subjects = subjects
            .iter()
            .enumerate()
            .map(|(at, subject)| self.subject(subject, &format!("subjects[{at}]"), &described));
        let subjects = subjects.collect::<Result<Vec<_>, _>>()?;
        if policy.add_binding(self.namespace, self.name, Binding { role, subjects }) {
            Ok(())
        } else {
            Err(self.twice())
        }
    }

    /// The role, and the name of this binding in reasons.
    fn role_ref(&self, role: &Value) -> Result<(RoleRef, String), Fault> {
        let members = self.members(role, "roleRef", &["apiGroup", "kind", "name"])?;
        let text = |name: &str| self.text(members, "roleRef", name);
        let (group, kind, name) = (text("apiGroup")?, text("kind")?, text("name")?);
        if !matches!(group, "" | GROUP) {
            return Err(self.fault("roleRef.apiGroup", &format!("must be {GROUP}")));
        }
        if name.is_empty() {
            return Err(self.fault("roleRef.name", "Required value"));
        }
        let whole_name = if self.namespaced {
            format!("{}/{}", self.name, self.namespace)
        } else {
            self.name.to_owned()
        };
        let described = format!("RBAC: allowed by {} \"{whole_name}\" of {kind} \"{name}\"", self.kind);
        match kind {
            "ClusterRole" => Ok((RoleRef::ClusterRole(name.to_owned()), described)),
            "Role" if self.namespaced => Ok((RoleRef::Role(name.to_owned()), described)),
            "Role" => Err(self.fault("roleRef.kind", "must be ClusterRole")),
            _ => Err(self.fault("roleRef.kind", "must be Role or ClusterRole")),
        }
    }

    fn subject(&self, subject: &Value, field: &str, binding: &str) -> Result<Subject, Fault> {
        let members = self.members(subject, field, &["apiGroup", "kind", "name", "namespace"])?;
        let text = |name: &str| self.text(members, field, name);
        let (group, kind, name, namespace) = (text("apiGroup")?, text("kind")?, text("name")?, text("namespace")?);
        let fault = |name: &str, why: &str| Err(self.fault(&format!("{field}.{name}"), why));
        if name.is_empty() {
            return fault("name", "Required value");
        }
        let is_account = kind == "ServiceAccount";
        if !group.is_empty() && (is_account || group != GROUP) {
            return fault("apiGroup", &format!("must be empty or, for users and groups, {GROUP}"));
        }
        let (who, shown) = match kind {
            "User" => (Who::User(name.to_owned()), name.to_owned()),
            "Group" => (Who::Group(name.to_owned()), name.to_owned()),
            "ServiceAccount" if namespace.is_empty() && !self.namespaced => {
                return fault("namespace", "Required value");
            }
            "ServiceAccount" => {
                let namespace = if namespace.is_empty() {
                    self.namespace
                } else {
                    namespace
                };
                (Who::service_account(namespace, name), format!("{name}/{namespace}"))
            }
            _ => return fault("kind", "must be User, Group or ServiceAccount"),
        };
        let reason = Arc::from(format!("{binding} to {kind} \"{shown}\""));
        Ok(Subject { who, reason })
    }

    // --- reading

    /// The members of an object, all of which must be known.
    fn members<'v>(&self, value: &'v Value, field: &str, known: &[&str]) -> Result<&'v Map<String, Value>, Fault> {
        let at = |name: &str| {
            if field.is_empty() {
                name.to_owned()
            } else {
                format!("{field}.{name}")
            }
        };
        let Some(members) = value.as_object() else {
            return Err(self.fault(field, "must be an object"));
        };
        match members.keys().find(|name| !known.contains(&name.as_str())) {
            Some(unknown) => Err(self.fault(&at(unknown), "unknown field")),
            None => Ok(members),
        }
    }

    /// A list; a missing one and `null` are empty.
    fn list<'v>(&self, value: Option<&'v Value>, field: &str) -> Result<&'v [Value], Fault> {
        match value {
            None | Some(Value::Null) => Ok(&[]),
            Some(Value::Array(items)) => Ok(items),
            Some(_) => Err(self.fault(field, "must be a list")),
        }
    }

    fn words(&self, value: Option<&Value>, field: &str) -> Result<Vec<String>, Fault> {
        let word = |item: &Value| match item {
            Value::String(word) => Ok(word.clone()),
            _ => Err(self.fault(field, "must be a list of strings")),
        };
        self.list(value, field)?.iter().map(word).collect()
    }

    fn text<'v>(&self, members: &'v Map<String, Value>, field: &str, name: &str) -> Result<&'v str, Fault> {
        match members.get(name) {
            None | Some(Value::Null) => Ok(""),
            Some(Value::String(text)) => Ok(text),
            Some(_) => Err(self.fault(&format!("{field}.{name}"), "must be a string")),
        }
    }
}
