//! Bodies whose lists are as long as a client likes: they are refused, and the answers are small.

use serde_json::{Value, json};

use crate::harness::Server;

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
/// No answer to a wide body is longer.
const ANSWER_BYTES_MAX: usize = 64 << 10;

fn lease(list: &str, n: usize, item: impl Fn(usize) -> Value) -> Value {
    let items: Value = (0..n).map(item).collect();
    json!({"metadata": {"name": "n1", list: items}, "spec": {"holderIdentity": "n1"}})
}

fn controller(at: usize) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "name": format!("p{at}"), "uid": format!("u{at}"), "controller": true})
}

/// A node writes its own lease, its only right.
#[tokio::test]
async fn faults_of_wide_bodies_are_counted() {
    let server = Server::standalone().await;
    let node = server.node("n1");
    let refused = async |body: &Value, code: u16| {
        let answer = node.post(LEASES, body).await;
        assert!(answer.bytes.len() < ANSWER_BYTES_MAX, "{} bytes", answer.bytes.len());
        answer.expect(code)
    };
    for (list, body) in [
        ("ownerReferences", lease("ownerReferences", 2_000, controller)),
        ("finalizers", lease("finalizers", 200_000, |_| json!(""))),
        (
            "managedFields",
            lease("managedFields", 2_000, |_| json!({"manager": "m"})),
        ),
    ] {
        let refused = refused(&body, 400).await;
        let message = refused["message"].as_str().unwrap();
        let want = format!("metadata.{list}: Too many: ");
        assert!(
            message.contains(&want) && message.ends_with("must have at most 1000 items"),
            "{message}"
        );
    }
    let controllers = refused(&lease("ownerReferences", 1_000, controller), 422).await;
    let causes = controllers["details"]["causes"].as_array().unwrap();
    assert_eq!(causes.len(), 1);
    assert!(
        causes[0]["message"]
            .as_str()
            .unwrap()
            .ends_with("Pod/p0 and Pod/p1 and 998 more")
    );
    let empty = refused(&lease("finalizers", 1_000, |at| json!(format!("{at} "))), 422).await;
    assert_eq!(empty["details"]["causes"].as_array().unwrap().len(), 100);
    assert!(empty["message"].as_str().unwrap().ends_with(", and 900 more]"));
}

/// A patch, and an apply, can make a list longer than any body.
#[tokio::test]
async fn lists_of_metadata_do_not_grow_by_patches() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let path = format!("{LEASES}/n1");
    let owner = |at: usize| json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": format!("u{at}")});
    admin
        .post(LEASES, &lease("ownerReferences", 600, owner))
        .await
        .expect(201);
    let more = json!({"metadata": {"ownerReferences": (600..1_200).map(owner).collect::<Value>()}});
    let refused = admin.patch("strategic-merge", &path, &more).await.expect(422);
    let field = &refused["details"]["causes"][0]["field"];
    assert_eq!(field, "metadata.ownerReferences", "{}", refused["message"]);
    let mut config = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"});
    config["metadata"] = more["metadata"].clone();
    let applied = admin.patch("apply", &format!("{path}?fieldManager=m"), &config).await;
    let refused = applied.expect(422);
    assert_eq!(refused["details"]["causes"][0]["field"], "metadata.ownerReferences");
    let held = admin.get(&path).await.expect(200);
    assert_eq!(held["metadata"]["ownerReferences"].as_array().unwrap().len(), 600);
}

/// The work of a patch of a long list grows with both.
#[tokio::test]
async fn patches_that_move_long_lists_are_refused() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let path = "/api/v1/namespaces/kube-system/endpoints";
    let addresses: Value = (0..20_000)
        .map(|at| json!({"ip": format!("10.1.{}.{}", at / 250, at % 250)}))
        .collect();
    let endpoints = json!({"metadata": {"name": "e"}, "subsets": [{"addresses": addresses, "ports": [{"port": 1}]}]});
    admin.post(path, &endpoints).await.expect(201);
    let operations: Value = (0..9_999)
        .map(|_| json!({"op": "remove", "path": "/subsets/0/addresses/0"}))
        .collect();
    let refused = admin.patch("json", &format!("{path}/e"), &operations).await.expect(413);
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("replace the list instead"), "{message}");
}
