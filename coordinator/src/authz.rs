//! Decides whether a caller may do something: one table of rules per profile, no state.
//!
//! Pure: what depends on the moment (is this node a member, does it lead) comes in as [`Facts`]. A create whose URL has no
//! name yet passes a rule that is bound to a name; the handler asks again once the body has told it.

use yurt_apimachinery::RequestInfo;

use crate::authn::{MASTERS, User};
use crate::config::Profile;

mod rules;

/// What somebody wants to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes<'a> {
    /// Lower-case verb, of the API or of HTTP for other paths.
    pub verb: &'a str,
    /// Path of a request that names no resource.
    pub path: Option<&'a str>,
    /// API group, empty for core.
    pub group: &'a str,
    /// Plural resource.
    pub resource: &'a str,
    /// Subresource, empty for the object itself.
    pub subresource: &'a str,
    /// Namespace, empty for none or all.
    pub namespace: &'a str,
    /// Name, empty when unknown.
    pub name: &'a str,
}

/// What the decision depends on beside the request.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// Profile of this server.
    pub profile: Profile,
    /// Name of the pool, for messages.
    pub nodepool: &'a str,
    /// Pool-scope collections, as `resource.group`.
    pub pool_kinds: &'a [String],
    /// The caller is a node of the pool (or trusted, before membership is known).
    pub is_member: bool,
    /// The caller's node holds the election lease.
    pub leads: bool,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Go on.
    Allowed,
    /// 403; the text says why, or is empty when no rule speaks of the request at all.
    Denied(String),
}

// === impl Attributes ===

impl<'a> Attributes<'a> {
    /// What `info` asks for.
    #[must_use]
    pub fn of(info: &'a RequestInfo) -> Self {
        let text = |value: &'a Option<String>| value.as_deref().unwrap_or_default();
        Self {
            verb: info.verb.as_str(),
            path: (!info.is_resource).then_some(info.path.as_str()),
            group: &info.group,
            resource: &info.resource,
            subresource: text(&info.subresource),
            namespace: text(&info.namespace),
            name: text(&info.name),
        }
    }

    /// The resource as a collection is named.
    fn collection(&self) -> String {
        if self.group.is_empty() {
            self.resource.to_owned()
        } else {
            format!("{}.{}", self.resource, self.group)
        }
    }
}

/// Decides.
#[must_use]
pub fn authorize(user: &User, attributes: &Attributes<'_>, facts: &Facts<'_>) -> Decision {
    if user.is_in(MASTERS) || rules::of(facts.profile).any(|rule| rule.allows(user, attributes, facts)) {
        return Decision::Allowed;
    }
    Decision::Denied(reason(user, attributes, facts))
}

/// Tells a node what is missing when membership or leadership alone would have let it in.
fn reason(user: &User, attributes: &Attributes<'_>, facts: &Facts<'_>) -> String {
    let Some(node) = user.node_name() else {
        return String::new();
    };
    let would_pass = |facts: &Facts<'_>| rules::of(facts.profile).any(|rule| rule.allows(user, attributes, facts));
    if !facts.is_member
        && would_pass(&Facts {
            is_member: true,
            leads: true,
            ..*facts
        })
    {
        return format!(
            "node \"{node}\" is not a member of NodePool \"{}\"; it becomes one when the cloud says so (label \
             apps.openyurt.io/nodepool on the Node, told by the pool's leader) or by --initial-members",
            facts.nodepool
        );
    }
    if !facts.leads && would_pass(&Facts { leads: true, ..*facts }) {
        return format!("node \"{node}\" does not hold the election lease kube-system/yurthub");
    }
    String::new()
}

#[cfg(test)]
mod tests;
