//! RBAC: decides by Role, ClusterRole, RoleBinding and ClusterRoleBinding objects, with exactly the semantics of
//! kube-apiserver.
//!
//! Pure. Rules only add up: a request is denied unless a rule of a binding that names the caller allows it. In reading
//! order: this file (queries of a [`Policy`]), `parse` (objects to rules), `aggregation` (roles made of roles). Then
//! `bootstrap` (the roles that every control plane has), `files` (the operator's objects).

use std::collections::BTreeMap;
use std::sync::Arc;

use yurt_apimachinery::{LabelSelector, Labels};

use super::{Attributes, Decision};
use crate::authn::{SERVICE_ACCOUNT_PREFIX, User};

mod aggregation;
pub(crate) mod bootstrap;
pub(crate) mod files;
pub(crate) mod parse;
#[cfg(test)]
mod tests;

/// Rights of one rule of a role. A rule covers resources or paths, never both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PolicyRule {
    /// Verbs, or `*`.
    pub(crate) verbs: Vec<String>,
    /// API groups, or `*`.
    pub(crate) api_groups: Vec<String>,
    /// `resource`, `resource/subresource`, `*/subresource`, or `*`.
    pub(crate) resources: Vec<String>,
    /// Object names; an empty list means all.
    pub(crate) resource_names: Vec<String>,
    /// Paths; a star at the end matches any rest.
    pub(crate) paths: Vec<String>,
}

/// A Role or ClusterRole.
#[derive(Clone, Debug, Default)]
pub(crate) struct Role {
    /// Its rules. Those of a role with an aggregation come from the selected roles.
    pub(crate) rules: Vec<PolicyRule>,
    /// Labels that aggregations select by.
    pub(crate) labels: Labels,
    /// Selectors of the ClusterRoles whose rules it has. If empty, it has its own rules.
    pub(crate) aggregation: Vec<LabelSelector>,
}

/// Subject of a binding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    /// A user's name. Service accounts are the users `system:serviceaccount:<namespace>:<name>`.
    User(String),
    /// A group.
    Group(String),
    /// No user: a service account without a namespace in a binding that has none either.
    Nobody,
}

/// One subject of a binding, with the reason for messages.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    /// The user or group.
    pub(crate) who: Who,
    /// Reason of an admission, for reviews.
    pub(crate) reason: Arc<str>,
}

/// Role that a binding grants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RoleRef {
    /// A Role of the binding's own namespace.
    Role(String),
    /// A ClusterRole.
    ClusterRole(String),
}

/// A RoleBinding or ClusterRoleBinding.
#[derive(Clone, Debug)]
pub(crate) struct Binding {
    pub(crate) role: RoleRef,
    pub(crate) subjects: Vec<Subject>,
}

/// Namespace and name; the namespace of cluster-wide objects is empty.
type Key = (String, String);

/// All roles and bindings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Policy {
    roles: BTreeMap<Key, Role>,
    bindings: BTreeMap<Key, Binding>,
}

/// The rules that apply to a caller, and errors of missing ones.
#[derive(Debug, Default)]
pub(crate) struct Rules<'a> {
    /// In the order of the bindings.
    pub(crate) rules: Vec<&'a PolicyRule>,
    /// Bindings to roles that do not exist.
    pub(crate) errors: Vec<String>,
}

impl From<Vec<PolicyRule>> for Role {
    fn from(rules: Vec<PolicyRule>) -> Self {
        Self {
            rules,
            ..Self::default()
        }
    }
}

// === impl PolicyRule ===

impl PolicyRule {
    /// True if this rule alone allows the request.
    #[must_use]
    pub(crate) fn allows(&self, attributes: &Attributes<'_>) -> bool {
        let any = |words: &[String], wanted: &str| words.iter().any(|word| word == "*" || word == wanted);
        if !any(&self.verbs, attributes.verb) {
            return false;
        }
        match attributes.path {
            Some(path) => self.paths.iter().any(|pattern| path_matches(pattern, path)),
            None => {
                any(&self.api_groups, attributes.group)
                    && self.resources.iter().any(|rule| resource_matches(rule, attributes))
                    && (self.resource_names.is_empty() || self.resource_names.iter().any(|one| one == attributes.name))
            }
        }
    }
}

fn resource_matches(rule: &str, attributes: &Attributes<'_>) -> bool {
    let (resource, subresource) = (attributes.resource, attributes.subresource);
    if rule == "*" {
        return true;
    }
    if subresource.is_empty() {
        return rule == resource;
    }
    rule.split_once('/')
        .is_some_and(|(rule, rest)| rest == subresource && (rule == "*" || rule == resource))
}

fn path_matches(pattern: &str, path: &str) -> bool {
    pattern == path || (pattern.ends_with('*') && path.starts_with(pattern.trim_end_matches('*')))
}

// === impl Who ===

impl Who {
    fn is(&self, user: &User) -> bool {
        match self {
            Self::User(name) => *name == user.name,
            Self::Group(group) => user.is_in(group),
            Self::Nobody => false,
        }
    }

    /// A service account as a user.
    pub(crate) fn service_account(namespace: &str, name: &str) -> Self {
        if namespace.is_empty() {
            Self::Nobody
        } else {
            Self::User(format!("{SERVICE_ACCOUNT_PREFIX}{namespace}:{name}"))
        }
    }
}

// === impl Policy ===

impl Policy {
    /// Adds a role; false if one of that name exists.
    pub(crate) fn add_role(&mut self, namespace: &str, name: &str, role: Role) -> bool {
        self.roles
            .insert((namespace.to_owned(), name.to_owned()), role)
            .is_none()
    }

    /// Adds a binding; false if one of that name exists.
    pub(crate) fn add_binding(&mut self, namespace: &str, name: &str, binding: Binding) -> bool {
        self.bindings
            .insert((namespace.to_owned(), name.to_owned()), binding)
            .is_none()
    }

    /// `self` with all objects of `other`, which win over objects of the same name.
    pub(crate) fn overlaid(mut self, other: Self) -> Self {
        self.roles.extend(other.roles);
        self.bindings.extend(other.bindings);
        self
    }

    /// `self` with the rules of aggregated roles recomputed.
    pub(crate) fn aggregated(mut self) -> Self {
        aggregation::settle(&mut self.roles);
        self
    }

    /// Numbers of roles and bindings.
    pub(crate) fn len(&self) -> (usize, usize) {
        (self.roles.len(), self.bindings.len())
    }

    /// Decides about a request. The text of a denial names bindings of the caller to roles that do not exist.
    #[must_use]
    pub(crate) fn authorize(&self, user: &User, attributes: &Attributes<'_>) -> Decision {
        let mut errors = Vec::new();
        for (subject, rules) in self.granted(user, attributes.namespace) {
            match rules {
                Ok(rules) if rules.iter().any(|rule| rule.allows(attributes)) => {
                    return Decision::Allowed(subject.reason.clone());
                }
                Ok(_) => {}
                Err(error) => errors.push(error),
            }
        }
        Decision::Denied(describe_errors(&errors))
    }

    /// Every rule that applies to `user` in a namespace.
    pub(crate) fn rules_for(&self, user: &User, namespace: &str) -> Rules<'_> {
        let mut found = Rules::default();
        for (_, rules) in self.granted(user, namespace) {
            match rules {
                Ok(rules) => found.rules.extend(rules),
                Err(error) => found.errors.push(error),
            }
        }
        found
    }

    /// The bindings that name `user`, cluster-wide ones first, with the rules of their roles.
    fn granted<'p, 'q>(
        &'p self,
        user: &'q User,
        namespace: &'q str,
    ) -> impl Iterator<Item = (&'p Subject, Result<&'p [PolicyRule], String>)> + use<'p, 'q> {
        let scopes = std::iter::once("").chain((!namespace.is_empty()).then_some(namespace));
        scopes
            .flat_map(|scope| {
                self.bindings
                    .range((scope.to_owned(), String::new())..)
                    .take_while(move |((namespace, _), _)| namespace == scope)
            })
            .filter_map(|((scope, _), binding)| {
                let subject = binding.subjects.iter().find(|subject| subject.who.is(user))?;
                Some((subject, self.rules_of(scope, &binding.role)))
            })
    }

    fn rules_of(&self, namespace: &str, role: &RoleRef) -> Result<&[PolicyRule], String> {
        let (key, what) = match role {
            RoleRef::Role(name) => ((namespace.to_owned(), name.clone()), "role"),
            RoleRef::ClusterRole(name) => ((String::new(), name.clone()), "clusterrole"),
        };
        let missing = || format!("{what}.rbac.authorization.k8s.io \"{}\" not found", key.1);
        self.roles
            .get(&key)
            .map(|role| role.rules.as_slice())
            .ok_or_else(missing)
    }
}

/// Formats errors as kube-apiserver lists them in a reason.
fn describe_errors(errors: &[String]) -> String {
    match errors {
        [] => String::new(),
        [one] => format!("RBAC: {one}"),
        many => {
            let mut seen: Vec<&str> = Vec::new();
            for error in many {
                if !seen.contains(&error.as_str()) {
                    seen.push(error);
                }
            }
            if seen.len() == 1 {
                return format!("RBAC: {}", seen[0]);
            }
            format!("RBAC: [{}]", seen.join(", "))
        }
    }
}
