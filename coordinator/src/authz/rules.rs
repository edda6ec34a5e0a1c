//! The rules of profile `pool`, as a table: subjects, verbs and objects.

use yurt_pool_protocol::members::POOL_LABEL;
use yurt_pool_protocol::names::{
    BARS_PATH, ELECTION_KEY, ELECTION_LEASE, ELECTION_NAMESPACE, FEED_PATH, INFORMER_SYNC_LEASE, MEMBERS_PATH,
    NODE_LEASES, REPORTS_PATH,
};

use super::{Attributes, Decision, Facts};
use crate::authn::User;
use crate::feed::members::Basis;

/// One line of a table: everything in it must hold.
struct Rule {
    who: Who,
    verbs: &'static [&'static str],
    what: What,
}

/// Subjects of a rule.
enum Who {
    /// A node certificate of a member of this pool.
    Member,
    /// A member that holds the election lease.
    Leader,
    /// A group.
    Group(&'static str),
    /// Every caller, also without credential.
    Everybody,
}

/// Objects of a rule.
enum What {
    /// The pool-scope collections.
    PoolKinds,
    /// Resources as (group, resource with subresource) in a namespace, by name.
    Objects(&'static [(&'static str, &'static str)], In, Named),
    /// Everything but secrets.
    NonSecret,
    /// Paths; a star at the end matches any rest.
    Paths(&'static [&'static str]),
    /// Every path below this one.
    Below(&'static str),
}

enum In {
    Any,
    Namespace(&'static str),
}

enum Named {
    Any,
    /// The caller's node name.
    OwnNode,
    Exactly(&'static str),
}

const READ: &[&str] = &["get", "list", "watch"];
const WRITE: &[&str] = &["get", "create", "update", "patch"];
const WRITE_AND_DELETE: &[&str] = &["get", "create", "update", "patch", "delete"];
const GET: &[&str] = &["get"];
const CREATE: &[&str] = &["create"];

const LEASES: &[(&str, &str)] = &[("coordination.k8s.io", "leases")];
const EVENTS: &[(&str, &str)] = &[("", "events"), ("events.k8s.io", "events")];
const SELF_REVIEWS: &[(&str, &str)] = &[
    ("authorization.k8s.io", "selfsubjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectrulesreviews"),
    ("authentication.k8s.io", "selfsubjectreviews"),
];
const HEALTH: &[&str] = &[
    "/healthz",
    "/healthz/*",
    "/livez",
    "/livez/*",
    "/readyz",
    "/readyz/*",
    "/version",
    "/version/",
];
const DISCOVERY: &[&str] = &["/", "/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*"];
/// State of the pool and of this server.
const STATE: &[&str] = &[FEED_PATH, MEMBERS_PATH, BARS_PATH, "/metrics"];

/// Rules for subjects other than the pool's nodes.
static COMMON: [Rule; 5] = [
    Rule {
        who: Who::Everybody,
        verbs: GET,
        what: What::Paths(HEALTH),
    },
    Rule {
        who: Who::Group("system:authenticated"),
        verbs: GET,
        what: What::Paths(DISCOVERY),
    },
    Rule {
        who: Who::Group("system:authenticated"),
        verbs: CREATE,
        what: What::Objects(SELF_REVIEWS, In::Any, Named::Any),
    },
    Rule {
        who: Who::Group("openyurt:coordinators"),
        verbs: READ,
        what: What::NonSecret,
    },
    Rule {
        who: Who::Group("openyurt:coordinators"),
        verbs: GET,
        what: What::Paths(STATE),
    },
];

/// Rules for nodes. They share the pool's data and vouch for each other; each writes in its own
/// name only.
static POOL: [Rule; 9] = [
    Rule {
        who: Who::Member,
        verbs: READ,
        what: What::PoolKinds,
    },
    Rule {
        who: Who::Member,
        verbs: READ,
        what: What::Objects(LEASES, In::Any, Named::Any),
    },
    Rule {
        who: Who::Member,
        verbs: WRITE_AND_DELETE,
        what: What::Objects(LEASES, In::Namespace(NODE_LEASES), Named::OwnNode),
    },
    Rule {
        who: Who::Member,
        verbs: WRITE,
        what: What::Objects(
            LEASES,
            In::Namespace(ELECTION_NAMESPACE),
            Named::Exactly(ELECTION_LEASE),
        ),
    },
    Rule {
        who: Who::Leader,
        verbs: WRITE,
        what: What::Objects(
            LEASES,
            In::Namespace(ELECTION_NAMESPACE),
            Named::Exactly(INFORMER_SYNC_LEASE),
        ),
    },
    Rule {
        who: Who::Member,
        verbs: &["create", "patch"],
        what: What::Objects(EVENTS, In::Any, Named::Any),
    },
    Rule {
        who: Who::Member,
        verbs: GET,
        what: What::Paths(STATE),
    },
    // The fence decides if the caller leads, in the same step as the data.
    Rule {
        who: Who::Member,
        verbs: &["post"],
        what: What::Below(FEED_PATH),
    },
    Rule {
        who: Who::Member,
        verbs: &["post"],
        what: What::Paths(&[REPORTS_PATH]),
    },
];

/// Decides about a request of a caller that is no administrator.
pub(super) fn authorize(user: &User, attributes: &Attributes<'_>, facts: &Facts<'_>) -> Decision {
    if allows(user, attributes, facts) {
        return Decision::allowed();
    }
    Decision::Denied(reason(user, attributes, facts))
}

fn allows(user: &User, attributes: &Attributes<'_>, facts: &Facts<'_>) -> bool {
    let mut rules = COMMON.iter().chain(&POOL);
    rules.any(|rule| rule.allows(user, attributes, facts))
}

/// Reason of a denial, for a node that lacks only membership or leadership.
fn reason(user: &User, attributes: &Attributes<'_>, facts: &Facts<'_>) -> String {
    let Some(node) = user.node_name() else {
        return String::new();
    };
    let would_pass = |facts: &Facts<'_>| allows(user, attributes, facts);
    if !facts.is_member
        && would_pass(&Facts {
            is_member: true,
            leads: true,
            ..*facts
        })
    {
        let pool = facts.nodepool;
        let how = match facts.membership {
            Basis::Nobody => "the pool has no members yet: start the coordinator with --initial-members, or with \
                 --trust-first-leader"
                .to_owned(),
            Basis::Initial => "--initial-members of the coordinator has to name it".to_owned(),
            Basis::FirstLeader | Basis::Leader | Basis::InitialAndLeader => format!(
                "it becomes one by label {POOL_LABEL} on its Node in the cloud, which the pool's leader feeds, \
                 or by --initial-members; if a leader has fed wrong members, void them with DELETE {MEMBERS_PATH}"
            ),
        };
        return format!("node \"{node}\" is not a member of NodePool \"{pool}\"; {how}");
    }
    if !facts.leads && would_pass(&Facts { leads: true, ..*facts }) {
        return format!("node \"{node}\" does not hold the election lease {ELECTION_KEY}");
    }
    String::new()
}

// === impl Rule ===

impl Rule {
    fn allows(&self, user: &User, attributes: &Attributes<'_>, facts: &Facts<'_>) -> bool {
        let who = match self.who {
            Who::Member => facts.is_member && user.node_name().is_some(),
            Who::Leader => facts.is_member && facts.leads && user.node_name().is_some(),
            Who::Group(group) => user.is_in(group),
            Who::Everybody => true,
        };
        who && self.verbs.contains(&attributes.verb) && self.what.covers(user, attributes, facts)
    }
}

// === impl What ===

impl What {
    fn covers(&self, user: &User, attributes: &Attributes<'_>, facts: &Facts<'_>) -> bool {
        match (self, attributes.path) {
            (Self::Paths(paths), Some(path)) => paths.iter().any(|pattern| path_matches(pattern, path)),
            (Self::Below(root), Some(path)) => path.strip_prefix(root).is_some_and(|rest| rest.starts_with('/')),
            (Self::Paths(_) | Self::Below(_), None) | (_, Some(_)) => false,
            (Self::PoolKinds, None) => {
                attributes.subresource.is_empty() && facts.pool_kinds.contains(&attributes.collection())
            }
            (Self::NonSecret, None) => !(attributes.group.is_empty() && attributes.resource == "secrets"),
            (Self::Objects(resources, namespace, named), None) => {
                resources.iter().any(|resource| is_resource(*resource, attributes))
                    && namespace.covers(attributes.namespace)
                    && named.covers(user, attributes)
            }
        }
    }
}

fn is_resource((group, resource): (&str, &str), attributes: &Attributes<'_>) -> bool {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    attributes.group == group && attributes.resource == resource && attributes.subresource == subresource
}

fn path_matches(pattern: &str, path: &str) -> bool {
    pattern
        .strip_suffix('*')
        .map_or(path == pattern, |prefix| path.starts_with(prefix))
}

// === impl In ===

impl In {
    fn covers(&self, namespace: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Namespace(one) => namespace == *one,
        }
    }
}

// === impl Named ===

impl Named {
    /// True if the rule covers the name. A create's name is unknown until the body is read; the
    /// handler then authorizes again.
    fn covers(&self, user: &User, attributes: &Attributes<'_>) -> bool {
        if attributes.name.is_empty() && attributes.verb == "create" {
            return true;
        }
        match self {
            Self::Any => true,
            Self::OwnNode => user.node_name() == Some(attributes.name),
            Self::Exactly(name) => attributes.name == *name,
        }
    }
}
