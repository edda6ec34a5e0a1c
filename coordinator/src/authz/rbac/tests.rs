//! Roles and bindings in an operator's files, and the rights they grant.

use std::path::PathBuf;

use super::super::tests::attributes;
use super::*;
use crate::authz::rbac::files::Rbac;

const POLICY: &str = r#"
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: reader}
rules:
- {apiGroups: [""], resources: [pods, "*/status"], verbs: [get, list]}
- {apiGroups: [coordination.k8s.io], resources: [leases], resourceNames: [lock], verbs: ["*"]}
- {nonResourceURLs: [/metrics, "/logs/*"], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: readers}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: reader}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: Group, name: readers}
- {kind: ServiceAccount, name: probe, namespace: tools}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: editor, namespace: shop}
rules:
- {apiGroups: ["*"], resources: ["*"], verbs: [create, update]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: editors, namespace: shop}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: editor}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: jane}
- {kind: ServiceAccount, name: robot}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: readers, namespace: shop}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: reader}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: jane}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: dangling, namespace: shop}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: gone}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: jane}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: not-ours}
"#;

/// A folder with one file of policy.
struct Folder(tempfile::TempDir);

impl Folder {
    fn with(text: &str) -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        folder.write("policy.yaml", text);
        folder
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.path().join(name), text).unwrap();
    }

    fn open(&self) -> Result<Rbac, String> {
        Rbac::open(Policy::default(), vec![self.0.path().to_owned()])
    }
}

fn policy() -> Arc<Policy> {
    Folder::with(POLICY).open().unwrap().current()
}

fn check(user: &User, allowed: &[&str], denied: &[&str]) {
    let policy = policy();
    for (cells, expected) in [(allowed, true), (denied, false)] {
        for cell in cells {
            let decision = policy.authorize(user, &attributes(cell));
            assert_eq!(decision.is_allowed(), expected, "{} {cell}: {decision:?}", user.name);
        }
    }
}

/// Conformance: 6.20
#[test]
fn rules_match_verbs_groups_resources_names_and_paths() {
    check(
        &User::new("x", &["readers"]),
        &[
            "get pods ns/a",
            "list pods",
            "get pods/status ns/a",
            "get nodes/status a",
            "delete leases.coordination.k8s.io ns/lock",
            "watch leases.coordination.k8s.io ns/lock",
            "get /metrics",
            "get /logs/",
            "get /logs/a/b",
        ],
        &[
            "watch pods",
            "get pods.metrics ns/a",
            "get pods/log ns/a",
            "get services ns/a",
            "get leases/status.coordination.k8s.io ns/a",
            "list leases.coordination.k8s.io ns/",
            "create leases.coordination.k8s.io ns/",
            "get leases.coordination.k8s.io ns/other",
            "get /logs",
            "post /metrics",
            "get /metrics/slis",
        ],
    );
}

/// Conformance: 6.20, 6.21
#[test]
fn bindings_reach_as_far_as_their_kind_and_their_subjects() {
    let jane = User::new("jane", &[]);
    check(
        &jane,
        &["create services shop/", "update pods/status shop/a", "get pods shop/a"],
        &[
            "create services other/",
            "create nodes",
            "get pods other/a",
            "list pods",
            "get /metrics",
        ],
    );
    let robot = User::new("system:serviceaccount:shop:robot", &["system:serviceaccounts"]);
    check(&robot, &["create pods shop/"], &["get pods shop/a"]);
    let probe = User::new("system:serviceaccount:tools:probe", &[]);
    check(&probe, &["get /metrics", "list pods"], &[]);
    let others = ["probe", "system:serviceaccount:shop:probe", "readers", "Jane"];
    for other in others {
        check(
            &User::new(other, &["jane"]),
            &[],
            &["get /metrics", "create pods shop/"],
        );
    }
}

/// Conformance: 6.21
#[test]
fn missing_role_takes_nothing_from_other_bindings_and_is_named() {
    let (policy, jane) = (policy(), User::new("jane", &[]));
    let Decision::Allowed(why) = policy.authorize(&jane, &attributes("create pods shop/")) else {
        panic!("allowed")
    };
    assert_eq!(
        &*why,
        "RBAC: allowed by RoleBinding \"editors/shop\" of Role \"editor\" to User \"jane\""
    );
    let denied = policy.authorize(&jane, &attributes("delete pods shop/a"));
    let why = "RBAC: role.rbac.authorization.k8s.io \"gone\" not found";
    assert_eq!(denied, Decision::Denied(why.to_owned()));
    let elsewhere = policy.authorize(&jane, &attributes("delete pods other/a"));
    assert_eq!(elsewhere, Decision::Denied(String::new()));
}

#[test]
fn every_mistake_names_its_file_object_and_field() {
    let role = |rest: &str| {
        format!(
            "{{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {{name: r, namespace: shop}}, {rest}}}"
        )
    };
    let binding = |rest: &str| {
        format!("{{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {{name: b}}, {rest}}}")
    };
    for (text, part) in [
        (
            role("rules: [{verbs: [get], apiGroups: [''], resources: [pods], resourceName: [a]}]"),
            "Role \"r\": rules[0].resourceName: unknown field",
        ),
        (
            role("rules: [{apiGroups: [''], resources: [pods]}]"),
            "rules[0].verbs: ",
        ),
        (
            role("rules: [{verbs: get, apiGroups: [''], resources: [pods]}]"),
            "rules[0].verbs: must be a list",
        ),
        (
            role("rules: [{verbs: [get], resources: [pods]}]"),
            "rules[0].apiGroups: ",
        ),
        (
            role("rules: [{verbs: [get], nonResourceURLs: [/x]}]"),
            "rules[0].nonResourceURLs: ",
        ),
        (role("rule: []"), "Role \"r\": rule: unknown field"),
        (binding("subjects: []"), "roleRef"),
        (
            binding("roleRef: {kind: Role, name: r}"),
            "roleRef.kind: must be ClusterRole",
        ),
        (
            binding("roleRef: {kind: ClusterRole, name: r}, subjects: [{kind: Users, name: a}]"),
            "subjects[0].kind: ",
        ),
        (
            binding("roleRef: {kind: ClusterRole, name: r}, subjects: [{kind: ServiceAccount, name: a}]"),
            "subjects[0].namespace: ",
        ),
        (
            "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: r}, aggregationRule: {}}"
                .to_owned(),
            "aggregationRule.clusterRoleSelectors: at least one",
        ),
        (
            "{apiVersion: rbac.authorization.k8s.io/v1beta1, kind: ClusterRole, metadata: {name: r}}".to_owned(),
            "apiVersion: only",
        ),
        ("kind: ClusterRole".to_owned(), "apiVersion, kind: "),
        ("a: [".to_owned(), "not YAML"),
        (
            format!("{}\n---\n{}", role("rules: []"), role("rules: []")),
            "defined twice",
        ),
    ] {
        let folder = Folder::with(&text);
        let error = folder.open().map(|_| ()).unwrap_err();
        assert!(
            error.contains("policy.yaml: ") && error.contains(part) && !error.contains('\n'),
            "{error}"
        );
    }
    let nowhere = Rbac::open(Policy::default(), vec![PathBuf::from("/nowhere/x.yaml")]);
    assert!(nowhere.map(|_| ()).unwrap_err().starts_with("/nowhere/x.yaml: "));
}

#[test]
fn reload_takes_all_files_or_none() {
    let folder = Folder::with(POLICY);
    let rbac = folder.open().unwrap();
    let may = |cell: &str| {
        let user = User::new("jane", &["readers"]);
        rbac.current().authorize(&user, &attributes(cell)).is_allowed()
    };
    assert!(!rbac.reload().unwrap());
    folder.write(
        "more.yaml",
        &POLICY
            .replace("name: reader", "name: reader2")
            .replace("[get, list]", "[watch]"),
    );
    folder.write("ignored.txt", "nonsense");
    assert!(
        rbac.reload().unwrap_err().contains("defined twice"),
        "the role editor is in both"
    );
    assert!(may("list pods") && !may("watch pods"));
    assert!(rbac.reload().is_err(), "a mistake is reported until it is corrected");
    std::fs::remove_file(folder.0.path().join("more.yaml")).unwrap();
    folder.write("policy.yaml", &POLICY.replace("[get, list]", "[watch]"));
    assert!(rbac.reload().unwrap());
    assert!(may("watch pods") && !may("list pods"));
}

#[test]
fn operators_object_replaces_the_built_in_one() {
    let base = bootstrap::policy();
    let text = "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: view}, rules: []}";
    let folder = Folder::with(text);
    let rbac = Rbac::open(base.clone(), vec![folder.0.path().to_owned()]).unwrap();
    assert_eq!(base.len(), rbac.current().len());
}

/// Roles are found by their labels, also through others. A new role adds to the roles that users have.
#[test]
fn aggregated_roles_have_the_rules_of_those_they_select() {
    let text = r#"
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: widgets, labels: {rbac.authorization.k8s.io/aggregate-to-view: "true", team: blue}}
rules: [{verbs: [get], apiGroups: [example.com], resources: [widgets]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: outer, labels: {team: green}}
aggregationRule: {clusterRoleSelectors: [{matchLabels: {layer: inner}}]}
rules: [{verbs: ["*"], apiGroups: ["*"], resources: ["*"]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: inner, labels: {layer: inner}}
aggregationRule:
  clusterRoleSelectors:
  - {matchLabels: {team: red}}
  - matchExpressions: [{key: team, operator: In, values: [blue, green]}, {key: odd, operator: DoesNotExist}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: b}
roleRef: {kind: ClusterRole, name: ROLE}
subjects: [{kind: User, name: jane}]
"#;
    let jane = User::new("jane", &[]);
    for (role, allowed) in [
        ("view", &["get widgets.example.com", "list pods"][..]),
        ("edit", &["get widgets.example.com", "create pods"]),
        (
            "admin",
            &["get widgets.example.com", "create roles.rbac.authorization.k8s.io"],
        ),
        ("outer", &["get widgets.example.com"]),
        ("inner", &["get widgets.example.com"]),
    ] {
        let folder = Folder::with(&text.replace("ROLE", role));
        let rbac = Rbac::open(bootstrap::policy(), vec![folder.0.path().to_owned()]).unwrap();
        let may = |cell: &str| rbac.current().authorize(&jane, &attributes(cell)).is_allowed();
        assert!(allowed.iter().all(|cell| may(cell)), "{role}");
        assert!(
            !may("delete widgets.example.com") && !may("get secrets.none.example"),
            "{role}"
        );
    }
    // Without it, the roles are as they were.
    let folder = Folder::with("{apiVersion: v1, kind: ConfigMap}");
    let rbac = Rbac::open(bootstrap::policy(), vec![folder.0.path().to_owned()]).unwrap();
    assert_eq!(rbac.current().len(), bootstrap::policy().len());
}

/// The rights that a cloud gives to pools, as shipped, on top of the bootstrap roles.
#[test]
fn shipped_manifest_gives_hubs_what_they_read() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/pool-rbac.yaml");
    let rbac = Rbac::open(bootstrap::policy(), vec![path]).unwrap();
    let may = |user: &User, cell: &str| rbac.current().authorize(user, &attributes(cell)).is_allowed();
    let hub = User::new("system:node:n1", &["system:nodes"]);
    for cell in [
        "watch endpointslices.discovery.k8s.io",
        "list nodepools.apps.openyurt.io",
        "get configmaps kube-system/yurt-hub-cfg",
        "get namespaces kube-system/kube-system",
    ] {
        assert!(may(&hub, cell), "{cell}");
    }
    assert!(
        !may(&hub, "get configmaps kube-system/other")
            && !may(&hub, "get namespaces shop/shop")
            && !may(&hub, "patch leases.coordination.k8s.io kube-node-lease/n2")
    );
    let delegate = User::new("delegate", &["openyurt:yurt-coordinator"]);
    assert!(may(&delegate, "patch leases.coordination.k8s.io kube-node-lease/n2"));
    assert!(!may(&delegate, "update leases.coordination.k8s.io kube-node-lease/n2"));
}
