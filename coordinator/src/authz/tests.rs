//! One cell per line: identity × verb × object.

use super::*;
use crate::authn::NODES;

const POOL_KINDS: [&str; 3] = ["services", "endpoints", "endpointslices.discovery.k8s.io"];

fn decide(user: &User, profile: Profile, is_member: bool, leads: bool, cell: &str) -> Decision {
    let pool_kinds = POOL_KINDS.map(str::to_owned);
    let facts = Facts {
        profile,
        nodepool: "hangzhou",
        pool_kinds: &pool_kinds,
        is_member,
        leads,
    };
    let mut words = cell.split(' ');
    let (verb, what) = (words.next().unwrap(), words.next().unwrap());
    if what.starts_with('/') {
        return authorize(
            user,
            &Attributes {
                verb,
                path: Some(what),
                ..Attributes::default()
            },
            &facts,
        );
    }
    let (resource, group) = what.split_once('.').unwrap_or((what, ""));
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let place = words.next().unwrap_or_default();
    let (namespace, name) = place.split_once('/').unwrap_or(("", place));
    authorize(
        user,
        &Attributes {
            verb,
            path: None,
            group,
            resource,
            subresource,
            namespace,
            name,
        },
        &facts,
    )
}

fn node() -> User {
    User::new("system:node:n1", &[NODES])
}

fn check(user: &User, profile: Profile, is_member: bool, leads: bool, allowed: &[&str], denied: &[&str]) {
    for cell in allowed {
        assert_eq!(
            decide(user, profile, is_member, leads, cell),
            Decision::Allowed,
            "{} {cell}",
            user.name
        );
    }
    for cell in denied {
        let decision = decide(user, profile, is_member, leads, cell);
        assert!(matches!(decision, Decision::Denied(_)), "{} {cell}", user.name);
    }
}

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
            "create leases.coordination.k8s.io kube-system/yurthub-direct-0",
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
            "update leases.coordination.k8s.io default/yurthub",
            "update leases.coordination.k8s.io kube-system/leader-informer-sync",
            "get services/status ns/x",
        ],
    );
}

#[test]
fn leader_keeps_the_sync_lease() {
    let lease = "update leases.coordination.k8s.io kube-system/leader-informer-sync";
    assert_eq!(decide(&node(), Profile::Pool, true, true, lease), Decision::Allowed);
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

#[test]
fn standalone_plays_the_cloud_for_nodes_and_delegates() {
    check(
        &node(),
        Profile::Standalone,
        false,
        false,
        &[
            "list services",
            "watch nodes",
            "list nodepools.apps.openyurt.io",
            "get configmaps kube-system/yurt-hub-cfg",
            "update leases.coordination.k8s.io kube-node-lease/n1",
            "patch nodes/status n1",
            "create events ns/",
        ],
        &[
            "patch nodes n2",
            "get configmaps kube-system/other",
            "list configmaps",
            "patch services ns/x",
            "delete nodes n1",
        ],
    );
    let delegate = User::new("delegate", &["openyurt:yurt-coordinator"]);
    let allowed = [
        "get leases.coordination.k8s.io kube-node-lease/n1",
        "patch leases.coordination.k8s.io kube-node-lease/n7",
    ];
    let denied = [
        "update leases.coordination.k8s.io kube-node-lease/n1",
        "patch leases.coordination.k8s.io default/n1",
    ];
    check(&delegate, Profile::Standalone, false, false, &allowed, &denied);
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
