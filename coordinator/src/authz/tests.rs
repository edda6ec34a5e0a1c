//! One cell per line: identity × verb × object.

use super::node::Reference;
use super::*;
use crate::authn::NODES;

const POOL_KINDS: [&str; 3] = ["services", "endpoints", "endpointslices.discovery.k8s.io"];

/// Pods of nodes: (node, namespace, pod), and the objects they refer to.
pub(super) struct Pods(&'static [(&'static str, Reference, &'static str, &'static str)]);

impl BoundPods for Pods {
    fn refer(&self, node: &str, reference: Reference, namespace: &str, name: &str) -> bool {
        self.0.contains(&(node, reference, namespace, name))
    }
}

pub(super) const PODS: Pods = Pods(&[
    ("n1", Reference::Pod, "ns", "web"),
    ("n1", Reference::Secret, "ns", "key"),
    ("n1", Reference::ConfigMap, "ns", "settings"),
    ("n1", Reference::ServiceAccount, "ns", "runner"),
    ("n2", Reference::Secret, "ns", "other"),
]);

fn decide(user: &User, profile: Profile, is_member: bool, leads: bool, cell: &str) -> Decision {
    let policy = match profile {
        Profile::Pool => Policy::default(),
        Profile::Standalone => rbac::bootstrap::policy(),
    };
    let pool_kinds = POOL_KINDS.map(str::to_owned);
    let facts = Facts {
        profile,
        nodepool: "hangzhou",
        pool_kinds: &pool_kinds,
        is_member,
        membership: Basis::Leader,
        leads,
        policy: &policy,
        pods: &PODS,
    };
    Authorizer::new().authorize(user, &attributes(cell), &facts)
}

/// `verb resource[/subresource][.group] [[namespace]/name] [field=value]`, or `verb /path`.
pub(super) fn attributes(cell: &str) -> Attributes<'_> {
    let mut words = cell.split(' ');
    let (verb, what) = (words.next().unwrap(), words.next().unwrap());
    if what.starts_with('/') {
        return Attributes {
            verb,
            path: Some(what),
            ..Attributes::default()
        };
    }
    let (resource, group) = what.split_once('.').unwrap_or((what, ""));
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let place = words.next().unwrap_or_default();
    let (namespace, name) = place.split_once('/').unwrap_or(("", place));
    let fields = words.filter_map(|word| word.split_once('='));
    Attributes {
        verb,
        path: None,
        group,
        resource,
        subresource,
        namespace,
        name,
        fields: fields
            .map(|(field, value)| (field.to_owned(), value.to_owned()))
            .collect(),
    }
}

fn node() -> User {
    User::new("system:node:n1", &[NODES])
}

fn check(user: &User, profile: Profile, is_member: bool, leads: bool, allowed: &[&str], denied: &[&str]) {
    for cell in allowed {
        let decision = decide(user, profile, is_member, leads, cell);
        assert!(decision.is_allowed(), "{} {cell}: {decision:?}", user.name);
    }
    for cell in denied {
        let decision = decide(user, profile, is_member, leads, cell);
        assert!(matches!(decision, Decision::Denied(_)), "{} {cell}", user.name);
    }
}

/// Conformance: 6.26
#[test]
fn member_reads_pool_data_and_writes_in_its_own_name() {
    check(
        &node(),
        Profile::Pool,
        true,
        false,
        &[
            "list services",
            "watch endpointslices.discovery.k8s.io",
            "list leases.coordination.k8s.io",
            "update leases.coordination.k8s.io kube-node-lease/n1",
            "create leases.coordination.k8s.io kube-node-lease/",
            "delete leases.coordination.k8s.io kube-node-lease/n1",
            "patch leases.coordination.k8s.io kube-system/yurthub",
            "create selfsubjectaccessreviews.authorization.k8s.io",
            "create events ns/",
            "get /yurt/v1/feed",
            "post /yurt/v1/feed/services/events",
            "get /metrics",
            "get /apis/discovery.k8s.io",
        ],
        &[
            "create services ns/",
            "list secrets",
            "list configmaps",
            "update leases.coordination.k8s.io kube-node-lease/n2",
            "create leases.coordination.k8s.io kube-node-lease/n2",
            "delete leases.coordination.k8s.io kube-system/yurthub",
            "update leases.coordination.k8s.io kube-system/other",
            "create leases.coordination.k8s.io kube-system/yurthub-direct-0",
            "update leases.coordination.k8s.io default/yurthub",
            "update leases.coordination.k8s.io kube-system/leader-informer-sync",
            "get services/status ns/x",
        ],
    );
}

#[test]
fn leader_keeps_the_sync_lease() {
    let lease = "update leases.coordination.k8s.io kube-system/leader-informer-sync";
    assert!(decide(&node(), Profile::Pool, true, true, lease).is_allowed());
    let Decision::Denied(why) = decide(&node(), Profile::Pool, true, false, lease) else {
        panic!("denied")
    };
    assert!(why.contains("does not hold the election lease"), "{why}");
}

#[test]
fn stranger_node_is_told_how_to_become_a_member() {
    let Decision::Denied(why) = decide(&node(), Profile::Pool, false, false, "list services") else {
        panic!("denied")
    };
    assert!(
        why.starts_with("node \"n1\" is not a member of NodePool \"hangzhou\""),
        "{why}"
    );
    let Decision::Denied(why) = decide(&node(), Profile::Pool, false, false, "list secrets") else {
        panic!("denied")
    };
    assert_eq!(why, "", "membership would not help");
}

#[test]
fn anonymous_sees_health_only() {
    let allowed = ["get /readyz", "get /livez/ping", "get /version"];
    let denied = [
        "get /api",
        "get /metrics",
        "list services",
        "create selfsubjectreviews.authentication.k8s.io",
    ];
    check(&User::anonymous(), Profile::Pool, true, true, &allowed, &denied);
}

#[test]
fn other_users_see_discovery_and_themselves() {
    let user = User::new("jane", &["dev"]);
    let allowed = [
        "get /api",
        "get /openapi/v3",
        "create selfsubjectreviews.authentication.k8s.io",
    ];
    check(
        &user,
        Profile::Pool,
        true,
        true,
        &allowed,
        &["list services", "get /yurt/v1/feed", "get /metrics"],
    );
}

#[test]
fn coordinators_read_what_is_not_secret() {
    let user = User::new("mirror", &["openyurt:coordinators"]);
    let allowed = [
        "list services",
        "watch leases.coordination.k8s.io",
        "get /metrics",
        "get /yurt/v1/feed",
    ];
    check(
        &user,
        Profile::Pool,
        false,
        false,
        &allowed,
        &["get secrets ns/x", "create events ns/"],
    );
}

/// Conformance: 6.24
#[test]
fn standalone_node_reads_what_its_pods_refer_to_and_writes_its_own() {
    check(
        &node(),
        Profile::Standalone,
        false,
        false,
        &[
            "get secrets ns/key",
            "list secrets ns/key",
            "watch secrets ns/key",
            "get configmaps ns/settings",
            "get serviceaccounts ns/runner",
            "create serviceaccounts/token ns/runner",
            "get pods ns/web",
            "watch pods ns/web",
            "list pods / spec.nodeName=n1",
            "create pods ns/",
            "delete pods ns/any",
            "patch pods/status ns/any",
            "get nodes n1",
            "watch nodes n1",
            "create nodes",
            "patch nodes/status n1",
            "patch nodes n2",
            "list services",
            "get endpoints ns/x",
            "update leases.coordination.k8s.io kube-node-lease/n1",
            "create leases.coordination.k8s.io kube-node-lease/",
            "create events ns/",
            "create subjectaccessreviews.authorization.k8s.io",
            "create selfsubjectaccessreviews.authorization.k8s.io",
            "get /api",
        ],
        &[
            "get secrets ns/other",
            "get secrets elsewhere/key",
            "list secrets ns/",
            "list secrets",
            "update secrets ns/key",
            "get secrets/status ns/key",
            "get configmaps ns/key",
            "list configmaps ns/",
            "list serviceaccounts ns/runner",
            "create serviceaccounts/token ns/",
            "create serviceaccounts/token ns/other",
            "get pods ns/other",
            "list pods ns/",
            "list pods / spec.nodeName=n2",
            "update pods ns/web",
            "deletecollection pods ns/ spec.nodeName=n1",
            "get nodes n2",
            "list nodes",
            "delete nodes n1",
            "get nodes/status n1",
            "list endpoints",
            "list endpointslices.discovery.k8s.io",
            "list leases.coordination.k8s.io kube-node-lease/",
            "update leases.coordination.k8s.io kube-node-lease/n2",
            "create leases.coordination.k8s.io default/",
            "list namespaces",
            "get /metrics",
            "get /yurt/v1/feed",
        ],
    );
}

#[test]
fn standalone_denials_give_the_reason_of_the_node_authorizer() {
    for (cell, why) in [
        ("get nodes n2", "node 'n1' cannot read 'n2', only its own Node object"),
        (
            "list nodes",
            "node 'n1' cannot read all nodes, only its own Node object",
        ),
        (
            "get secrets ns/other",
            "no relationship found between node 'n1' and this object",
        ),
        ("list secrets ns/", "No Object name found"),
        (
            "list pods",
            "can only list/watch pods with spec.nodeName field selector",
        ),
    ] {
        let decision = decide(&node(), Profile::Standalone, false, false, cell);
        assert_eq!(decision, Decision::Denied(why.to_owned()), "{cell}");
    }
}

/// Conformance: 6.22
#[test]
fn standalone_strangers_have_the_bootstrap_roles_and_no_more() {
    let cells = |user: &User, allowed: &[&str], denied: &[&str]| {
        check(user, Profile::Standalone, true, true, allowed, denied);
    };
    let info = ["get /version", "get /healthz"];
    cells(
        &User::anonymous(),
        &info,
        &["get /api", "get /livez/ping", "get /metrics"],
    );
    let jane = User::new("jane", &["openyurt:coordinators"]);
    cells(
        &jane,
        &["get /openapi/v3", "create selfsubjectrulesreviews.authorization.k8s.io"],
        &[
            "list services",
            "get /metrics",
            "get /yurt/v1/feed",
            "create tokenreviews.authentication.k8s.io",
        ],
    );
    let proxy = User::new("system:kube-proxy", &[]);
    cells(
        &proxy,
        &["watch endpointslices.discovery.k8s.io", "list services", "get nodes n7"],
        &["get endpointslices.discovery.k8s.io ns/x", "list secrets"],
    );
    let manager = User::new("system:kube-controller-manager", &[]);
    cells(
        &manager,
        &[
            "list secrets",
            "update leases.coordination.k8s.io kube-system/anything",
            "create events ns/",
        ],
        &[
            "delete pods ns/x",
            "update leases.coordination.k8s.io ns/x",
            "list /api",
        ],
    );
    cells(
        &User::new("root", &[MASTERS]),
        &["delete secrets ns/x", "get /metrics"],
        &[],
    );
}

#[test]
fn masters_do_everything() {
    let user = User::new("admin", &[MASTERS]);
    check(
        &user,
        Profile::Pool,
        false,
        false,
        &["delete secrets ns/x", "post /yurt/v1/feed/x/events"],
        &[],
    );
}
