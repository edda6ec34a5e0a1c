//! Every right of profile `pool`, compared with a reviewed file: `pool_cells.txt`.
//!
//! A cell is identity × verb × resource × place. The file lists the allowed cells, those of one identity, resource and
//! place on a line. `UPDATE_POOL_CELLS=1 cargo test -p yurt-coordinator --lib pool_cells` writes it; read the
//! difference.

use std::collections::BTreeMap;

use super::rbac::Policy;
use super::tests::{PODS, attributes};
use super::{Authorizer, Basis, Facts};
use crate::authn::{MASTERS, NODES, User};
use crate::config::Profile;

const GOLDEN: &str = include_str!("pool_cells.txt");
const CELLS_MIN: usize = 10_000;

const VERBS: [&str; 12] = [
    "get",
    "list",
    "watch",
    "create",
    "update",
    "patch",
    "delete",
    "deletecollection",
    "impersonate",
    "bind",
    "escalate",
    "approve",
];
const METHODS: [&str; 7] = ["get", "head", "post", "put", "patch", "delete", "options"];
const RESOURCES: [&str; 40] = [
    "pods",
    "pods/exec",
    "pods/log",
    "pods/eviction",
    "pods/status",
    "nodes",
    "nodes/status",
    "nodes/proxy",
    "services",
    "services/status",
    "services/proxy",
    "endpoints",
    "endpointslices.discovery.k8s.io",
    "endpointslices/status.discovery.k8s.io",
    "services.example.com",
    "secrets",
    "configmaps",
    "serviceaccounts",
    "serviceaccounts/token",
    "namespaces",
    "namespaces/finalize",
    "events",
    "events.events.k8s.io",
    "events.example.com",
    "leases.coordination.k8s.io",
    "leases/status.coordination.k8s.io",
    "leases.example.com",
    "persistentvolumes",
    "certificatesigningrequests.certificates.k8s.io",
    "certificatesigningrequests/approval.certificates.k8s.io",
    "clusterrolebindings.rbac.authorization.k8s.io",
    "tokenreviews.authentication.k8s.io",
    "subjectaccessreviews.authorization.k8s.io",
    "selfsubjectaccessreviews.authorization.k8s.io",
    "selfsubjectrulesreviews.authorization.k8s.io",
    "selfsubjectreviews.authentication.k8s.io",
    "validatingadmissionpolicies.admissionregistration.k8s.io",
    "members.yurt.openyurt.io",
    "users",
    "groups",
];
const PLACES: [&str; 9] = [
    "",
    "shop/web",
    "shop/n1",
    "kube-system/yurthub",
    "kube-system/yurthub-direct-n1",
    "kube-system/leader-informer-sync",
    "kube-system/n1",
    "kube-node-lease/n1",
    "kube-node-lease/n2",
];
const PATHS: [&str; 27] = [
    "/",
    "/api",
    "/api/v1",
    "/apis",
    "/apis/apps",
    "/openapi/v2",
    "/openapi/v3",
    "/version",
    "/healthz",
    "/healthz/ping",
    "/livez",
    "/readyz",
    "/readyz/store",
    "/metrics",
    "/metrics/slis",
    "/debug/pprof",
    "/logs",
    "/yurt",
    "/yurt/v1/feed",
    "/yurt/v1/feed/services/events",
    "/yurt/v1/feed/services",
    "/yurt/v1/feed/scope",
    "/yurt/v1/members",
    "/yurt/v1/members/n1",
    "/yurt/v1/reports",
    "/yurt/v1/bars",
    "/yurt/v1/bars/n1",
];

/// An identity and the server's facts about it.
struct Identity {
    name: &'static str,
    user: User,
    is_member: bool,
    leads: bool,
}

fn identities() -> Vec<Identity> {
    let one = |name, user, is_member, leads| Identity {
        name,
        user,
        is_member,
        leads,
    };
    let node = || User::new("system:node:n1", &[NODES]);
    let other = |name, user, groups: &[&str]| one(name, User::new(user, groups), false, false);
    vec![
        one("stranger", User::anonymous(), false, false),
        one("pod", User::service_account("shop", "web"), false, false),
        other("certificate without a group", "jane", &[]),
        other(
            "bootstrapping node",
            "system:bootstrap:abcdef",
            &["system:bootstrappers"],
        ),
        other("forwarder of heartbeats", "delegate", &["openyurt:yurt-coordinator"]),
        one("node of another pool", node(), false, false),
        one(
            "node's name without its group",
            User::new("system:node:n1", &[]),
            true,
            true,
        ),
        one("node's group without a name", User::new("n1", &[NODES]), true, true),
        one("member", node(), true, false),
        one("leader", node(), true, true),
        other("observer", "observer", &["openyurt:coordinators"]),
        other("administrator", "admin", &[MASTERS]),
    ]
}

/// Returns the allowed cells as lines, and the number of checked cells.
fn decide() -> (Vec<String>, usize) {
    let (authorizer, policy) = (Authorizer::new(), Policy::default());
    let kinds = ["services", "endpoints", "endpointslices.discovery.k8s.io"].map(str::to_owned);
    let (mut lines, mut cells) = (Vec::new(), 0);
    for identity in identities() {
        let facts = Facts {
            profile: Profile::Pool,
            nodepool: "shore",
            pool_kinds: &kinds,
            is_member: identity.is_member,
            membership: Basis::Leader,
            leads: identity.leads,
            policy: &policy,
            pods: &PODS,
        };
        let mut allowed = |verbs: &[&'static str], what: &str| -> Vec<&'static str> {
            cells += verbs.len();
            let may = |verb: &&&str| {
                let cell = format!("{verb} {what}");
                let attributes = attributes(&cell);
                authorizer.authorize(&identity.user, &attributes, &facts).is_allowed()
            };
            verbs.iter().filter(may).copied().collect()
        };
        for resource in RESOURCES {
            let mut places = BTreeMap::<Vec<&str>, Vec<&str>>::new();
            for place in PLACES {
                let verbs = allowed(&VERBS, &format!("{resource} {place}"));
                places
                    .entry(verbs)
                    .or_default()
                    .push(if place.is_empty() { "(all)" } else { place });
            }
            for (verbs, places) in places.iter().filter(|(verbs, _)| !verbs.is_empty()) {
                let places = if places.len() == PLACES.len() {
                    "everywhere".to_owned()
                } else {
                    places.join(" ")
                };
                lines.push(format!(
                    "{}: {resource} [{}] {places}",
                    identity.name,
                    join(verbs, &VERBS)
                ));
            }
        }
        for path in PATHS {
            let verbs = allowed(&METHODS, path);
            if !verbs.is_empty() {
                lines.push(format!("{}: {path} [{}]", identity.name, join(&verbs, &METHODS)));
            }
        }
    }
    (lines, cells)
}

fn join(verbs: &[&str], all: &[&str]) -> String {
    if verbs.len() == all.len() {
        "*".to_owned()
    } else {
        verbs.join(",")
    }
}

#[test]
fn rights_are_those_of_the_reviewed_pool_cells() {
    let (lines, cells) = decide();
    assert!(cells >= CELLS_MIN, "{cells} cells are too few");
    if std::env::var_os("UPDATE_POOL_CELLS").is_some() {
        let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/authz/pool_cells.txt");
        std::fs::write(file, lines.join("\n") + "\n").unwrap();
        return;
    }
    let golden: Vec<&str> = GOLDEN.lines().collect();
    let is_new = |line: &&String| !golden.contains(&line.as_str());
    let more: Vec<&String> = lines.iter().filter(is_new).collect();
    let fewer: Vec<&&str> = golden
        .iter()
        .filter(|line| !lines.contains(&(**line).to_owned()))
        .collect();
    assert!(
        more.is_empty() && fewer.is_empty(),
        "of {cells} cells; only here: {more:#?}\nonly in pool_cells.txt: {fewer:#?}\nUPDATE_POOL_CELLS=1 writes the file"
    );
}

/// Entries of the file that would be a hole, regardless of other changes.
#[test]
fn strangers_and_pods_have_no_right_to_objects() {
    for line in GOLDEN.lines().filter(|line| {
        ["stranger", "pod", "forwarder", "node of another pool", "bootstrapping"]
            .iter()
            .any(|who| line.starts_with(who))
    }) {
        let what = line.split_once(": ").unwrap().1;
        assert!(what.starts_with('/') || what.starts_with("selfsubject"), "{line}");
        assert!(!what.starts_with("/yurt") && !what.starts_with("/metrics"), "{line}");
    }
    let writes = |line: &str| {
        ["create", "update", "patch", "delete", "post", "put"]
            .iter()
            .any(|verb| line.contains(verb))
    };
    for line in GOLDEN.lines().filter(|line| line.starts_with("member") && writes(line)) {
        let what = line.split_once(": ").unwrap().1;
        let own = [
            "leases.coordination.k8s.io",
            "events",
            "selfsubject",
            "/yurt/v1/feed/",
            "/yurt/v1/reports",
        ];
        assert!(own.iter().any(|one| what.starts_with(one)), "{line}");
    }
}
