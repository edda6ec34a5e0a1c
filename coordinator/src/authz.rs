//! Authorization: decides if a caller may do something.
//!
//! Administrators may do everything. Profile `pool` has one table of rules for its nodes (`rules`); profile
//! `standalone` has kube-apiserver's Node authorizer ([`node`]). In both, roles and bindings ([`rbac`]) may allow more;
//! nothing removes a right.
//!
//! Pure, `rbac::files` aside: facts about the moment (is this node a member, does it lead, which pods run on it) come
//! in as [`Facts`]. In profile `pool` a create whose URL has no name yet passes a rule that is bound to a name. The
//! handler authorizes again once the body has supplied it.

use std::sync::Arc;

use yurt_apimachinery::query::Query;
use yurt_apimachinery::selector::{FieldOperator, FieldSelector};
use yurt_apimachinery::{RequestInfo, Verb};

use crate::authn::{MASTERS, User};
use crate::config::Profile;
use crate::feed::members::Basis;

pub(crate) mod node;
pub(crate) mod rbac;
pub(crate) mod references;
mod rules;

use node::{BoundPods, NodeAuthorizer};
use rbac::Policy;

/// Attributes of a request that authorization looks at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attributes<'a> {
    /// Lower-case verb, of the API or of HTTP for other paths.
    pub(crate) verb: &'a str,
    /// Path of a request that names no resource.
    pub(crate) path: Option<&'a str>,
    /// API group, empty for core.
    pub(crate) group: &'a str,
    /// Plural resource.
    pub(crate) resource: &'a str,
    /// Subresource, empty for the object itself.
    pub(crate) subresource: &'a str,
    /// Namespace, empty for none or all.
    pub(crate) namespace: &'a str,
    /// Name, empty when unknown.
    pub(crate) name: &'a str,
    /// Fields that the selector of a list, watch or deletecollection requires to have one value.
    pub(crate) fields: Vec<(String, String)>,
}

/// Inputs of the decision apart from the request.
#[derive(Clone, Copy)]
pub(crate) struct Facts<'a> {
    /// Profile of this server.
    pub(crate) profile: Profile,
    /// Name of the pool, for messages.
    pub(crate) nodepool: &'a str,
    /// Pool-scope collections, as `resource.group`.
    pub(crate) pool_kinds: &'a [String],
    /// True if the caller is a node of the pool (or trusted, before membership is known).
    pub(crate) is_member: bool,
    /// Source of the membership.
    pub(crate) membership: Basis,
    /// True if the caller's node holds the election lease.
    pub(crate) leads: bool,
    /// Roles and bindings.
    pub(crate) policy: &'a Policy,
    /// The pods of this server.
    pub(crate) pods: &'a dyn BoundPods,
}

/// Result of authorization.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// The request goes on. The text names the binding that allows it, or is empty.
    Allowed(Arc<str>),
    /// 403; the text is the reason, or empty when no rule mentions the request at all.
    Denied(String),
}

/// The authorizers, built once.
pub(crate) struct Authorizer {
    nodes: NodeAuthorizer,
}

// === impl Attributes ===

impl<'a> Attributes<'a> {
    /// The attributes of the request `info`.
    #[must_use]
    pub(crate) fn of(info: &'a RequestInfo) -> Self {
        let text = |value: &'a Option<String>| value.as_deref().unwrap_or_default();
        Self {
            verb: info.verb.as_str(),
            path: (!info.is_resource).then_some(info.path.as_str()),
            group: &info.group,
            resource: &info.resource,
            subresource: text(&info.subresource),
            namespace: text(&info.namespace),
            name: text(&info.name),
            fields: Vec::new(),
        }
    }

    /// Adds the fields that the query of a list, watch or deletecollection selects by. A selector that cannot be parsed
    /// adds none: it narrows no right.
    #[must_use]
    pub(crate) fn selecting(mut self, info: &RequestInfo, query: Option<&str>) -> Self {
        let selects = matches!(info.verb, Verb::List | Verb::Watch | Verb::DeleteCollection);
        if info.is_resource && selects && query.is_some_and(|query| query.contains("fieldSelector")) {
            let query = Query::parse(query);
            let selector = query
                .get("fieldSelector")
                .and_then(|text| FieldSelector::parse(text).ok());
            self.fields = selector.map(|selector| exact_fields(&selector)).unwrap_or_default();
        }
        self
    }

    /// Name of the resource's collection.
    fn collection(&self) -> String {
        if self.group.is_empty() {
            self.resource.to_owned()
        } else {
            format!("{}.{}", self.resource, self.group)
        }
    }
}

/// The fields that the selector requires to have one value.
pub(crate) fn exact_fields(selector: &FieldSelector) -> Vec<(String, String)> {
    let requirements = selector.requirements().iter();
    requirements
        .filter(|requirement| requirement.operator == FieldOperator::Equals)
        .map(|requirement| (requirement.field.clone(), requirement.value.clone()))
        .collect()
}

// === impl Decision ===

impl Decision {
    /// Allowed, without a reason.
    #[must_use]
    pub(crate) fn allowed() -> Self {
        Self::Allowed(Arc::default())
    }

    /// True if the request may go on.
    #[must_use]
    pub(crate) fn is_allowed(&self) -> bool {
        matches!(self, Self::Allowed(_))
    }
}

// === impl Authorizer ===

impl Authorizer {
    pub(crate) fn new() -> Self {
        Self {
            nodes: NodeAuthorizer::new(),
        }
    }

    /// Decides if `user` may do what `attributes` describe.
    #[must_use]
    pub(crate) fn authorize(&self, user: &User, attributes: &Attributes<'_>, facts: &Facts<'_>) -> Decision {
        if user.is_in(MASTERS) {
            return Decision::allowed();
        }
        let first = match facts.profile {
            Profile::Pool => rules::authorize(user, attributes, facts),
            Profile::Standalone => match user.node_name() {
                Some(node) => self.nodes.authorize(node, attributes, facts.pods),
                None => Decision::Denied(unnamed_node(user)),
            },
        };
        let Decision::Denied(first) = first else { return first };
        match facts.policy.authorize(user, attributes) {
            Decision::Denied(second) if first.is_empty() || second.is_empty() => Decision::Denied(first + &second),
            Decision::Denied(second) => Decision::Denied(format!("{first}\n{second}")),
            allowed => allowed,
        }
    }
}

/// Reason for refusing a node certificate that names no node.
fn unnamed_node(user: &User) -> String {
    if user.is_unnamed_node() {
        return format!("unknown node for user {:?}", user.name);
    }
    String::new()
}

#[cfg(test)]
mod cells;
#[cfg(test)]
mod tests;
