//! Deletion of objects that takes time: namespaces, pods, objects with finalizers.

use http::Method;
use serde_json::{Value, json};

use crate::harness::{Answer, Client, Server, config_map, rv};

async fn delete(client: &Client, path: &str, options: &Value) -> Answer {
    let headers = [("content-type", "application/json")];
    client.send(Method::DELETE, path, Some(options), &headers).await
}

/// Conformance: 3.A11, 3.D02
#[tokio::test]
async fn a_namespace_waits_for_its_content() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let path = "/api/v1/namespaces/blue";
    let maps = format!("{path}/configmaps");
    let created = admin
        .post("/api/v1/namespaces", &json!({"metadata": {"name": "blue"}}))
        .await
        .expect(201);
    assert_eq!(created["spec"]["finalizers"], json!(["kubernetes"]));
    assert_eq!(created["status"], json!({"phase": "Active"}));
    let mut held = config_map("held", "1");
    held["metadata"]["finalizers"] = json!(["example.com/wait"]);
    admin.post(&maps, &held).await.expect(201);
    admin.post(&maps, &config_map("free", "1")).await.expect(201);
    let mut watch = admin
        .watch(&format!("/api/v1/namespaces?resourceVersion={}", rv(&created)))
        .await;

    let marked = admin.delete(path).await.expect(200);
    assert_eq!(
        (&marked["kind"], &marked["status"]["phase"]),
        (&json!("Namespace"), &json!("Terminating"))
    );
    let again = admin.delete(path).await.expect(200);
    assert_eq!(again, marked, "a second delete changes nothing");
    let refused = admin.post(&maps, &config_map("late", "1")).await.expect(403);
    assert_eq!(refused["details"]["causes"][0]["reason"], "NamespaceTerminating");
    let exists = admin
        .post("/api/v1/namespaces", &json!({"metadata": {"name": "blue"}}))
        .await
        .expect(409);
    assert!(
        exists["message"]
            .as_str()
            .unwrap()
            .starts_with("object is being deleted: ")
    );

    assert_eq!(watch.told().await, "MODIFIED blue");
    admin
        .merge(&format!("{maps}/held"), &json!({"metadata": {"finalizers": null}}))
        .await
        .expect(200);
    assert_eq!(watch.told().await, "DELETED blue");
    admin.get(path).await.expect(404);
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    for (path, kind) in [(accounts, "ServiceAccount"), ("/api/v1/nodes", "Status")] {
        admin.post(path, &json!({"metadata": {"name": "x"}})).await.expect(201);
        assert_eq!(admin.delete(&format!("{path}/x")).await.expect(200)["kind"], kind);
    }
    for name in ["default", "kube-system", "kube-public"] {
        let refused = admin.delete(&format!("/api/v1/namespaces/{name}")).await.expect(403);
        assert!(
            refused["message"]
                .as_str()
                .unwrap()
                .ends_with("this namespace may not be deleted")
        );
    }
    let many = admin.delete("/api/v1/namespaces").await.expect(405);
    assert_eq!(
        many["message"],
        "the server does not allow this method on the requested resource"
    );
}

#[tokio::test]
async fn finalizers_of_a_namespace_have_a_path_of_their_own() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let path = "/api/v1/namespaces/blue";
    admin
        .post("/api/v1/namespaces", &json!({"metadata": {"name": "blue"}}))
        .await
        .expect(201);
    let of = |finalizers: Value| json!({"metadata": {"name": "blue"}, "spec": {"finalizers": finalizers}});
    let kept = admin.put(path, &of(json!([]))).await.expect(200);
    assert_eq!(kept["spec"]["finalizers"], json!(["kubernetes"]));
    let finalize = format!("{path}/finalize");
    let held = admin
        .put(&finalize, &of(json!(["kubernetes", "example.com/wait"])))
        .await
        .expect(200);
    assert_eq!(held["spec"]["finalizers"], json!(["kubernetes", "example.com/wait"]));
    let refused = admin.put(&finalize, &of(json!(["odd"]))).await.expect(422);
    assert_eq!(refused["details"]["causes"][0]["field"], "spec.finalizers[0]");
    admin.get(&finalize).await.expect(405);

    let mut watch = admin
        .watch(&format!("/api/v1/namespaces?resourceVersion={}", rv(&held)))
        .await;
    admin.delete(path).await.expect(200);
    assert_eq!(watch.told().await, "MODIFIED blue");
    let event = watch.next().await.unwrap();
    assert_eq!(
        event.object["spec"]["finalizers"],
        json!(["example.com/wait"]),
        "it is empty, and another finalizer is left"
    );
    admin.put(&finalize, &of(json!([]))).await.expect(200);
    assert_eq!(watch.told().await, "DELETED blue");
}

/// Conformance: 3.D06, 5.21
#[tokio::test]
async fn a_pod_gets_its_time_and_ends_in_two_steps() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let pods = "/api/v1/namespaces/default/pods";
    let pod = |name: &str, node: Value| {
        json!({"metadata": {"name": name}, "spec": {"nodeName": node, "terminationGracePeriodSeconds": 30,
            "containers": [{"name": "c", "image": "i"}]}})
    };
    let bound = admin.post(pods, &pod("bound", json!("n1"))).await.expect(201);
    admin.post(pods, &pod("free", json!(null))).await.expect(201);
    let mut watch = admin.watch(&format!("{pods}?resourceVersion={}", rv(&bound))).await;
    assert_eq!(watch.told().await, "ADDED free");

    let free = admin.delete(&format!("{pods}/free")).await.expect(200);
    assert_eq!(
        (&free["kind"], &free["metadata"]["deletionGracePeriodSeconds"]),
        (&json!("Pod"), &json!(0))
    );
    assert_eq!(watch.told().await, "MODIFIED free");
    assert_eq!(watch.told().await, "DELETED free");

    let path = format!("{pods}/bound");
    let marked = admin.delete(&path).await.expect(200);
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 30);
    assert_eq!(
        delete(&admin, &path, &json!({"gracePeriodSeconds": 40}))
            .await
            .expect(200),
        marked
    );
    let sooner = delete(&admin, &path, &json!({"gracePeriodSeconds": 10}))
        .await
        .expect(200);
    assert_eq!(sooner["metadata"]["deletionGracePeriodSeconds"], 10);
    assert!(sooner["metadata"]["deletionTimestamp"].as_str() < marked["metadata"]["deletionTimestamp"].as_str());
    let status = json!({"status": {"phase": "Running"}});
    admin.merge(&format!("{path}/status"), &status).await.expect(200);
    let uid = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": marked["metadata"]["uid"]}});
    delete(&admin, &path, &uid).await.expect(200);
    for told in [
        "MODIFIED bound",
        "MODIFIED bound",
        "MODIFIED bound",
        "MODIFIED bound",
        "DELETED bound",
    ] {
        assert_eq!(watch.told().await, told);
    }
    admin.get(&path).await.expect(404);
}

/// Conformance: 3.D04, 3.D05
#[tokio::test]
async fn preconditions_are_refused_in_the_servers_words() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let created = admin
        .post(leases, &json!({"metadata": {"name": "a"}}))
        .await
        .expect(201);
    let path = format!("{leases}/a");
    let uid = created["metadata"]["uid"].as_str().unwrap();
    let refused = delete(&admin, &path, &json!({"preconditions": {"uid": "x"}}))
        .await
        .expect(409);
    let want = format!(
        "Operation cannot be fulfilled on Lease.coordination.k8s.io \"a\": the UID in the precondition (x) does not match \
         the UID in record ({uid}). The object might have been deleted and then recreated"
    );
    assert_eq!(
        (&refused["message"], &refused["details"]["kind"]),
        (&json!(want), &json!("Lease"))
    );
    let refused = delete(&admin, &path, &json!({"preconditions": {"resourceVersion": "1"}}))
        .await
        .expect(409);
    assert!(
        refused["message"]
            .as_str()
            .unwrap()
            .ends_with("The object might have been modified")
    );
    let matching = json!({"preconditions": {"uid": uid, "resourceVersion": rv(&created)}});
    delete(&admin, &path, &matching).await.expect(200);
    assert_eq!(admin.delete(&path).await.expect(404)["reason"], "NotFound");
}

#[tokio::test]
async fn object_with_the_greatest_generation_is_deleted_like_any_other() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let maps = "/api/v1/namespaces/default/configmaps";
    let mut held = config_map("a", "1");
    held["metadata"]["finalizers"] = json!(["example.com/wait"]);
    held["metadata"]["generation"] = json!(i64::MAX);
    admin.post(maps, &held).await.expect(201);
    let marked = admin.delete(&format!("{maps}/a")).await.expect(200);
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
}

#[tokio::test]
async fn a_deletion_shows_watchers_what_was_stored_and_its_writer_what_was_wanted() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let maps = "/api/v1/namespaces/default/configmaps";
    let mut held = config_map("a", "1");
    held["metadata"]["finalizers"] = json!(["example.com/wait"]);
    let created = admin.post(maps, &held).await.expect(201);
    let mut watch = admin.watch(&format!("{maps}?resourceVersion={}", rv(&created))).await;
    let path = format!("{maps}/a");
    let marked = admin.delete(&path).await.expect(200);
    let change = json!({"metadata": {"finalizers": null}, "data": {"key": "2"}});
    let answer = admin.merge(&path, &change).await.expect(200);
    assert_eq!(answer["data"]["key"], "2");
    assert_eq!(answer["metadata"]["finalizers"], json!(null));
    assert_eq!(rv(&answer), rv(&marked), "nothing was stored after what it is based on");
    assert_eq!(watch.told().await, "MODIFIED a");
    let mut last = watch.next().await.unwrap();
    assert_eq!(last.kind, "DELETED");
    assert!(rv(&last.object) > rv(&marked), "the deletion has a version of its own");
    last.object["metadata"]["resourceVersion"] = marked["metadata"]["resourceVersion"].clone();
    assert_eq!(last.object, marked);
    // The same from the history.
    let mut late = admin.watch(&format!("{maps}?resourceVersion={}", rv(&marked))).await;
    let event = late.next().await.unwrap();
    assert_eq!(
        (event.kind.as_str(), &event.object["data"]["key"]),
        ("DELETED", &json!("1"))
    );
}
