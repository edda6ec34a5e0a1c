//! The bootstrap roles and bindings of every Kubernetes control plane, limited to kinds served here.
//!
//! Taken from kube-apiserver 1.36: `system:*` roles, and the user-facing `admin`, `edit` and `view`, to which an
//! operator's roles add by their labels. Rights on kinds that are not served are left out, which can only deny more.
//! The roles of single controllers are left out: no such controller runs with this server.

use std::sync::Arc;

use yurt_apimachinery::LabelSelector;

use super::{Binding, Policy, PolicyRule, Role, RoleRef, Subject, Who};

/// Verbs, API groups (`core` for the empty one) and resources (`resource=name` for one object), separated by spaces.
/// Without API groups, the last part is paths.
type Rule = (&'static str, &'static str, &'static str);

/// Key of the label that aggregates a ClusterRole's rules to `admin`, `edit` or `view`.
const AGGREGATE_TO: &str = "rbac.authorization.k8s.io/aggregate-to-";
const READ: &str = "get list watch";
const CHANGE: &str = "create delete deletecollection patch update";
const REVIEWS: Rule = ("create", "authorization.k8s.io", "subjectaccessreviews");
const TOKEN_REVIEWS: Rule = ("create", "authentication.k8s.io", "tokenreviews");
const REPORT: Rule = ("create patch update", "core events.k8s.io", "events");
const CREATE_LEASES: Rule = ("create", "coordination.k8s.io", "leases");

/// Rights of `view`; `edit` and `admin` have them, too.
const VIEW: [Rule; 4] = [
    (
        READ,
        "core",
        "configmaps endpoints pods serviceaccounts services services/status namespaces",
    ),
    (READ, "core", "namespaces/status pods/log pods/status"),
    (READ, "core events.k8s.io", "events"),
    (READ, "discovery.k8s.io", "endpointslices"),
];
/// Rights of `edit` beyond `view`; `admin` has them, too.
const EDIT: [Rule; 7] = [
    (READ, "core", "secrets"),
    ("impersonate", "core", "serviceaccounts"),
    (CHANGE, "core", "pods configmaps secrets serviceaccounts services"),
    ("create", "core", "pods/eviction serviceaccounts/token"),
    (CHANGE, "core events.k8s.io", "events"),
    (CHANGE, "coordination.k8s.io", "leases"),
    (READ, "coordination.k8s.io", "leases"),
];
/// Rights of `admin` beyond `edit`.
const ADMIN: [Rule; 2] = [
    ("create", "authorization.k8s.io", "localsubjectaccessreviews"),
    (
        "create delete deletecollection get list patch update watch",
        "rbac.authorization.k8s.io",
        "rolebindings roles",
    ),
];

/// Cluster roles that have bindings from the start, or that an operator may bind.
const CLUSTER_ROLES: [(&str, &[Rule]); 14] = [
    ("cluster-admin", &[("*", "*", "*"), ("*", "", "*")]),
    ("system:auth-delegator", &[TOKEN_REVIEWS, REVIEWS]),
    (
        "system:basic-user",
        &[
            (
                "create",
                "authorization.k8s.io",
                "selfsubjectaccessreviews selfsubjectrulesreviews",
            ),
            ("create", "authentication.k8s.io", "selfsubjectreviews"),
        ],
    ),
    (
        "system:discovery",
        &[(
            "get",
            "",
            "/api /api/* /apis /apis/* /healthz /livez /openapi /openapi/* /readyz /version /version/",
        )],
    ),
    (
        "system:public-info-viewer",
        &[("get", "", "/healthz /livez /readyz /version /version/")],
    ),
    (
        "system:monitoring",
        &[
            (
                "get",
                "",
                "/healthz /healthz/* /livez /livez/* /metrics /metrics/slis /readyz /readyz/*",
            ),
            ("get", "core", "nodes/metrics"),
        ],
    ),
    (
        "system:service-account-issuer-discovery",
        &[(
            "get",
            "",
            "/.well-known/openid-configuration /.well-known/openid-configuration/ /openid/v1/jwks /openid/v1/jwks/",
        )],
    ),
    ("system:heapster", &[(READ, "core", "events namespaces nodes pods")]),
    ("system:kube-aggregator", &[(READ, "core", "endpoints services")]),
    ("system:kube-dns", &[("list watch", "core", "endpoints services")]),
    (
        "system:node-problem-detector",
        &[("get", "core", "nodes"), ("patch", "core", "nodes/status"), REPORT],
    ),
    (
        "system:node-proxier",
        &[
            ("list watch", "core", "endpoints services"),
            (READ, "core", "nodes"),
            REPORT,
            ("list watch", "discovery.k8s.io", "endpointslices"),
        ],
    ),
    (
        "system:kube-controller-manager",
        &[
            REPORT,
            CREATE_LEASES,
            ("get update", "coordination.k8s.io", "leases=kube-controller-manager"),
            ("create update", "core", "secrets serviceaccounts"),
            ("delete", "core", "secrets"),
            ("get", "core", "configmaps namespaces secrets serviceaccounts"),
            TOKEN_REVIEWS,
            REVIEWS,
            ("list watch", "*", "*"),
            ("create", "core", "serviceaccounts/token"),
        ],
    ),
    (
        "system:kube-scheduler",
        &[
            REPORT,
            CREATE_LEASES,
            ("get list update watch", "coordination.k8s.io", "leases=kube-scheduler"),
            (READ, "core", "nodes services namespaces"),
            ("delete get list watch", "core", "pods"),
            ("patch update", "core", "pods/status"),
            TOKEN_REVIEWS,
            REVIEWS,
        ],
    ),
];

/// Cluster role and its subjects: `g:` a group, `u:` a user, `s:namespace/name` a service account.
const CLUSTER_BINDINGS: [(&str, &[&str]); 10] = [
    ("cluster-admin", &["g:system:masters"]),
    ("system:basic-user", &["g:system:authenticated"]),
    ("system:discovery", &["g:system:authenticated"]),
    (
        "system:public-info-viewer",
        &["g:system:authenticated", "g:system:unauthenticated"],
    ),
    ("system:monitoring", &["g:system:monitoring"]),
    ("system:service-account-issuer-discovery", &["g:system:serviceaccounts"]),
    ("system:kube-dns", &["s:kube-system/kube-dns"]),
    ("system:node-proxier", &["u:system:kube-proxy"]),
    ("system:kube-controller-manager", &["u:system:kube-controller-manager"]),
    ("system:kube-scheduler", &["u:system:kube-scheduler"]),
];

const LOCK: Rule = ("create get list update watch", "coordination.k8s.io", "leases");

/// Name of a role of kube-system and its binding, its rule, and its subjects.
const KUBE_SYSTEM: [(&str, &str, Rule, &[&str]); 3] = [
    (
        "extension-apiserver-authentication-reader",
        "system::extension-apiserver-authentication-reader",
        (READ, "core", "configmaps=extension-apiserver-authentication"),
        &["u:system:kube-controller-manager", "u:system:kube-scheduler"],
    ),
    (
        "system::leader-locking-kube-controller-manager",
        "system::leader-locking-kube-controller-manager",
        LOCK,
        &[
            "u:system:kube-controller-manager",
            "s:kube-system/kube-controller-manager",
            "s:kube-system/leader-election-controller",
        ],
    ),
    (
        "system::leader-locking-kube-scheduler",
        "system::leader-locking-kube-scheduler",
        LOCK,
        &["u:system:kube-scheduler", "s:kube-system/kube-scheduler"],
    ),
];

/// Rights of a node for kinds that the node authorizer does not check more closely.
const NODE: [Rule; 5] = [
    TOKEN_REVIEWS,
    (
        "create",
        "authorization.k8s.io",
        "subjectaccessreviews localsubjectaccessreviews",
    ),
    (READ, "core", "services"),
    REPORT,
    ("get", "core", "endpoints"),
];

/// The policy of an unmodified control plane.
pub(crate) fn policy() -> Policy {
    let mut policy = Policy::default();
    for (name, rules) in CLUSTER_ROLES {
        policy.add_role("", name, rules.iter().map(rule).collect::<Vec<_>>().into());
    }
    for (name, rules, larger) in [
        ("view", &VIEW[..], Some("edit")),
        ("edit", &EDIT, Some("admin")),
        ("admin", &ADMIN, None),
    ] {
        add_aggregated(&mut policy, name, rules, larger);
    }
    for (role, holders) in CLUSTER_BINDINGS {
        let described = format!("ClusterRoleBinding \"{role}\" of ClusterRole \"{role}\"");
        let role_ref = RoleRef::ClusterRole(role.to_owned());
        policy.add_binding("", role, binding(role_ref, &described, holders));
    }
    for (role, name, rules, holders) in KUBE_SYSTEM {
        policy.add_role("kube-system", role, vec![rule(&rules)].into());
        let described = format!("RoleBinding \"{name}/kube-system\" of Role \"{role}\"");
        policy.add_binding(
            "kube-system",
            name,
            binding(RoleRef::Role(role.to_owned()), &described, holders),
        );
    }
    policy.aggregated()
}

/// Adds a user-facing role with the rules of all roles that have its label. One of these holds its initial rules; the
/// role's own label adds all of them to the next `larger` one.
fn add_aggregated(policy: &mut Policy, name: &str, rules: &[Rule], larger: Option<&str>) {
    let label = |name: &str| (format!("{AGGREGATE_TO}{name}"), "true");
    let (key, value) = label(name);
    let source = Role {
        rules: rules.iter().map(rule).collect(),
        labels: [(key.clone(), value)].into_iter().collect(),
        aggregation: Vec::new(),
    };
    policy.add_role("", &format!("system:aggregate-to-{name}"), source);
    let selector = LabelSelector::parse(&format!("{key}={value}")).expect("the label must be one");
    let role = Role {
        rules: Vec::new(),
        labels: larger.map(label).into_iter().collect(),
        aggregation: vec![selector],
    };
    policy.add_role("", name, role);
}

/// The uniform rights of nodes.
pub(crate) fn node_rules() -> Vec<PolicyRule> {
    NODE.iter().map(rule).collect()
}

fn rule((verbs, groups, what): &Rule) -> PolicyRule {
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let mut rule = PolicyRule {
        verbs: words(verbs),
        ..PolicyRule::default()
    };
    if groups.is_empty() {
        rule.paths = words(what);
        return rule;
    }
    let group = |group: String| if group == "core" { String::new() } else { group };
    rule.api_groups = words(groups).into_iter().map(group).collect();
    for resource in words(what) {
        match resource.split_once('=') {
            Some((resource, name)) => {
                rule.resources.push(resource.to_owned());
                rule.resource_names.push(name.to_owned());
            }
            None => rule.resources.push(resource),
        }
    }
    rule
}

fn binding(role: RoleRef, described: &str, holders: &[&str]) -> Binding {
    let subject = |holder: &&str| {
        let (kind, name) = holder.split_once(':').unwrap_or(("", holder));
        let (who, kind, shown) = match kind {
            "g" => (Who::Group(name.to_owned()), "Group", name.to_owned()),
            "u" => (Who::User(name.to_owned()), "User", name.to_owned()),
            _ => {
                let (namespace, name) = name.split_once('/').unwrap_or_default();
                let shown = format!("{name}/{namespace}");
                (Who::service_account(namespace, name), "ServiceAccount", shown)
            }
        };
        Subject {
            who,
            reason: Arc::from(format!("RBAC: allowed by {described} to {kind} \"{shown}\"")),
        }
    };
    Binding {
        role,
        subjects: holders.iter().map(subject).collect(),
    }
}
