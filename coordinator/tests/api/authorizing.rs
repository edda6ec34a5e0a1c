//! Roles and bindings from files, and reads and writes of nodes in profile standalone.

use http::Method;
use serde_json::{Value, json};

use crate::harness::{Client, Server, TRUSTING, config_map, rv};

const PODS: &str = "/api/v1/namespaces/default/pods";
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Makes an object invalid.
type Change<'a> = &'a dyn Fn(&mut Value);

async fn node_with(admin: &Client, name: &str, metadata: Value) -> String {
    let mut node = json!({ "metadata": metadata });
    node["metadata"]["name"] = json!(name);
    let created = admin.post("/api/v1/nodes", &node).await.expect(201);
    created["metadata"]["uid"].as_str().unwrap().to_owned()
}

fn pod(name: &str, node: &str) -> Value {
    json!({ "metadata": { "name": name, "labels": { "app": name } },
            "spec": { "nodeName": node, "serviceAccountName": "runner",
                      "containers": [{ "name": "c", "image": "i",
                                       "envFrom": [{ "configMapRef": { "name": "settings" } }] }],
                      "volumes": [{ "name": "v", "secret": { "secretName": "key" } }] } })
}

/// Conformance: 5.20, 6.24
#[tokio::test]
async fn node_reads_by_name_what_its_pods_refer_to() {
    let server = Server::standalone().await;
    let (admin, n1, n2) = (server.admin(), server.node("n1"), server.node("n2"));
    let secrets = "/api/v1/namespaces/default/secrets";
    let maps = "/api/v1/namespaces/default/configmaps";
    admin
        .post(secrets, &json!({ "metadata": { "name": "key" } }))
        .await
        .expect(201);
    admin.post(maps, &config_map("settings", "1")).await.expect(201);
    let key = format!("{secrets}/key");
    n1.get(&key).await.expect(403);
    admin.post(PODS, &pod("web", "n1")).await.expect(201);
    n1.get(&key).await.expect(200);
    n1.get(&format!("{maps}/settings")).await.expect(200);
    n1.get(&format!("{secrets}?fieldSelector=metadata.name%3Dkey"))
        .await
        .expect(200);
    let refused = n2.get(&key).await.expect(403);
    let why = "secrets \"key\" is forbidden: User \"system:node:n2\" cannot get resource \"secrets\" in API group \"\" in the \
               namespace \"default\": no relationship found between node 'n2' and this object";
    assert_eq!(refused["message"], why);
    n1.get(secrets).await.expect(403);
    n1.get("/api/v1/pods").await.expect(403);
    let mine = n1
        .get("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1")
        .await
        .expect(200);
    assert_eq!(mine["items"].as_array().unwrap().len(), 1);
    n2.get(&format!("{PODS}/web")).await.expect(403);
    admin.delete(&format!("{PODS}/web?gracePeriodSeconds=0")).await;
    n1.get(&key).await.expect(403);
}

/// Conformance: 6.25
#[tokio::test]
async fn node_changes_only_its_own_node_and_no_taints_or_reserved_labels() {
    let server = Server::standalone().await;
    let (admin, n1) = (server.admin(), server.node("n1"));
    node_with(&admin, "n2", json!({})).await;
    let create = |labels: Value| json!({ "metadata": { "name": "n1", "labels": labels } });
    let refused = n1
        .post(
            "/api/v1/nodes",
            &create(json!({ "node-restriction.kubernetes.io/a": "1", "x.k8s.io/b": "" })),
        )
        .await
        .expect(403);
    let why = "nodes \"n1\" is forbidden: node \"n1\" is not allowed to set the following labels: \
               node-restriction.kubernetes.io/a, x.k8s.io/b";
    assert_eq!(refused["message"], why);
    let labels = json!({ "kubernetes.io/hostname": "n1", "kubelet.kubernetes.io/x": "y", "mine": "z" });
    n1.post("/api/v1/nodes", &create(labels)).await.expect(201);
    n1.post("/api/v1/nodes", &json!({ "metadata": { "name": "n3" } }))
        .await
        .expect(403);
    n1.merge(
        "/api/v1/nodes/n1",
        &json!({ "metadata": { "labels": { "mine": "2" } } }),
    )
    .await
    .expect(200);
    let status = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }] } });
    n1.merge("/api/v1/nodes/n1/status", &status).await.expect(200);
    for (path, change, why) in [
        (
            "/api/v1/nodes/n2",
            json!({ "metadata": { "labels": { "a": "b" } } }),
            "not allowed to modify node \"n2\"",
        ),
        (
            "/api/v1/nodes/n2/status",
            status.clone(),
            "not allowed to modify node \"n2\"",
        ),
        (
            "/api/v1/nodes/n1",
            json!({ "spec": { "taints": [{ "key": "a", "effect": "NoSchedule" }] } }),
            "modify taints",
        ),
        (
            "/api/v1/nodes/n1",
            json!({ "metadata": { "labels": { "kubernetes.io/role": "m" } } }),
            "modify labels: kubernetes.io/role",
        ),
    ] {
        let refused = n1.merge(path, &change).await.expect(403);
        assert!(refused["message"].as_str().unwrap().contains(why), "{refused}");
    }
}

/// Conformance: 6.25
#[tokio::test]
async fn node_creates_mirror_pods_and_deletes_its_own_only() {
    let server = Server::standalone().await;
    let (admin, n1) = (server.admin(), server.node("n1"));
    let uid = node_with(&admin, "n1", json!({})).await;
    let mirror = |change: Change<'_>| {
        let owner = json!({ "apiVersion": "v1", "kind": "Node", "name": "n1", "uid": uid, "controller": true });
        let mut pod = json!({
            "metadata": { "name": "static", "annotations": { MIRROR: "x" }, "ownerReferences": [owner] },
            "spec": { "nodeName": "n1", "containers": [{ "name": "c", "image": "i" }] },
        });
        change(&mut pod);
        pod
    };
    let bad: [(Change<'_>, &str); 7] = [
        (
            &|pod| pod["metadata"]["annotations"] = json!({}),
            "can only create mirror pods",
        ),
        (
            &|pod| pod["spec"]["nodeName"] = json!("n2"),
            "spec.nodeName set to itself",
        ),
        (
            &|pod| pod["metadata"]["ownerReferences"] = json!([]),
            "with an owner reference set to itself",
        ),
        (
            &|pod| pod["metadata"]["ownerReferences"][0]["controller"] = json!(false),
            "controller owner reference",
        ),
        (
            &|pod| pod["metadata"]["ownerReferences"][0]["uid"] = json!("other"),
            "UID mismatch",
        ),
        (
            &|pod| pod["spec"]["serviceAccountName"] = json!("a"),
            "can not create pods that reference serviceaccounts",
        ),
        (
            &|pod| {
                pod["spec"]["volumes"] =
                    json!([{ "name": "v", "projected": { "sources": [{ "secret": { "name": "s" } }] } }])
            },
            "can not create pods that reference secrets",
        ),
    ];
    for (change, why) in bad {
        let refused = n1.post(PODS, &mirror(change)).await.expect(403);
        assert!(refused["message"].as_str().unwrap().contains(why), "{refused}");
    }
    n1.post(PODS, &mirror(&|_| {})).await.expect(201);
    admin.post(PODS, &pod("web", "n2")).await.expect(201);
    let running = json!({ "status": { "phase": "Running" } });
    n1.merge(&format!("{PODS}/static/status"), &running).await.expect(200);
    n1.merge(&format!("{PODS}/web/status"), &running).await.expect(403);
    let relabelled = json!({ "metadata": { "labels": { "a": "b" } } });
    n1.merge(&format!("{PODS}/static/status"), &relabelled)
        .await
        .expect(403);
    n1.delete(&format!("{PODS}/web")).await.expect(403);
    assert_eq!(n1.delete(&format!("{PODS}/static")).await.code, 200);
}

/// Conformance: 6.20, 6.23, 6.28
#[tokio::test]
async fn roles_from_files_hold_in_both_profiles() {
    let folder = tempfile::tempdir().unwrap();
    let policy = json!({ "apiVersion": "v1", "kind": "List", "items": [
        { "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": "writer" },
          "rules": [{ "apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "update", "list"] },
                    { "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["update", "patch"] }] },
        { "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": "writers" },
          "roleRef": { "kind": "ClusterRole", "name": "writer", "apiGroup": "rbac.authorization.k8s.io" },
          "subjects": [{ "kind": "User", "name": "jane", "apiGroup": "rbac.authorization.k8s.io" }] },
    ]});
    std::fs::write(folder.path().join("policy.json"), policy.to_string()).unwrap();
    let path = folder.path().to_str().unwrap();
    for profile in ["standalone", "pool"] {
        let server = Server::start(&["--profile", profile, "--rbac-path", path, TRUSTING]).await;
        let jane = server.user("jane", &[]);
        jane.get("/api/v1/configmaps").await.expect(200);
        jane.get("/api/v1/namespaces").await.expect(403);
        let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/new";
        let body = json!({ "metadata": { "name": "new" }, "spec": { "holderIdentity": "jane" } });
        let refused = jane.put(lease, &body).await.expect(403);
        let why = "cannot create resource \"leases\"";
        assert!(
            refused["message"].as_str().unwrap().contains(why),
            "a PUT that creates needs create: {refused}"
        );
        let mut config = body.clone();
        config["apiVersion"] = "coordination.k8s.io/v1".into();
        config["kind"] = "Lease".into();
        let apply = format!("{lease}?fieldManager=jane");
        let refused = jane.patch("apply", &apply, &config).await.expect(403);
        assert!(
            refused["message"].as_str().unwrap().contains(why),
            "so does an apply: {refused}"
        );
        server.admin().put(lease, &body).await.expect(201);
        jane.merge(lease, &json!({ "spec": { "leaseDurationSeconds": 9 } }))
            .await
            .expect(200);
        let rules = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
        let mine = jane
            .post(rules, &json!({ "spec": { "namespace": "default" } }))
            .await
            .expect(201);
        let listed = mine["status"]["resourceRules"].as_array().unwrap();
        assert!(
            listed.iter().any(|rule| rule["resources"] == json!(["configmaps"])),
            "{mine}"
        );
        assert_eq!(mine["status"]["incomplete"], json!(profile == "pool"));
        jane.post(rules, &json!({})).await.expect(400);
    }
}

/// A pod moves while its former node is offline. When that node is back, its delete refers to the pod that it had.
#[tokio::test]
async fn late_deletion_by_the_former_node_leaves_the_new_pod() {
    let server = Server::standalone().await;
    let admin = server.admin();
    for node in ["n1", "n2"] {
        node_with(&admin, node, json!({})).await;
    }
    let path = format!("{PODS}/sts-0");
    let delete = async |client: &Client, preconditions: Value| {
        let options = json!({ "gracePeriodSeconds": 0, "preconditions": preconditions });
        let json_body = [("content-type", "application/json")];
        client
            .send(Method::DELETE, &path, Some(&options), &json_body)
            .await
            .code
    };
    let pod = |node: &str| {
        json!({
            "metadata": { "name": "sts-0" },
            "spec": { "nodeName": node, "containers": [{ "name": "c", "image": "i" }] },
        })
    };
    let old = admin.post(PODS, &pod("n1")).await.expect(201);
    assert_eq!(delete(&admin, json!({})).await, 200);
    let new = admin.post(PODS, &pod("n2")).await.expect(201);
    let former_uid = json!({ "uid": old["metadata"]["uid"] });
    let former = server.node("n1");
    for preconditions in [json!({}), json!({ "uid": new["metadata"]["uid"] })] {
        assert_eq!(delete(&former, preconditions).await, 403, "it is not on this node");
    }
    assert_eq!(delete(&former, former_uid.clone()).await, 409, "it is another pod");
    for preconditions in [former_uid, json!({ "resourceVersion": rv(&old) })] {
        assert_eq!(
            delete(&server.node("n2"), preconditions).await,
            409,
            "it is another pod"
        );
    }
    let found = admin.get(&path).await.expect(200);
    assert_eq!(found, new, "untouched");
}
