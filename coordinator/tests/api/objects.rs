//! Own objects: create, read, update, patch, delete, and their refusals.

use http::Method;
use serde_json::{Value, json};

use crate::harness::{Server, config_map, rv};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test]
async fn bytes_in_base64_are_one_value_however_they_are_written() {
    let server = Server::standalone().await;
    let admin = server.admin();
    for (name, text) in [("wrapped", "YW\nI="), ("bits", "YWJ=")] {
        let mut map = config_map(name, "1");
        map["binaryData"] = json!({"k": text});
        map["immutable"] = json!(true);
        let created = admin.post(MAPS, &map).await.expect(201);
        assert_eq!(created["binaryData"]["k"], "YWI=", "{name}");
        let path = format!("{MAPS}/{name}");
        for same in ["YWI=", text] {
            map["binaryData"]["k"] = json!(same);
            let updated = admin.put(&path, &map).await.expect(200);
            assert_eq!(rv(&updated), rv(&created), "nothing changed");
        }
    }
}

/// Conformance: 3.A01, 3.A10, 3.B02, 3.B06, 3.C01, 3.C02, 3.C04, 3.D01, 3.E02, 3.E04, 4.19
#[tokio::test]
async fn object_lives_from_create_to_delete() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let created = admin.post(MAPS, &config_map("a", "1")).await.expect(201);
    assert_eq!(
        (&created["kind"], &created["apiVersion"]),
        (&json!("ConfigMap"), &json!("v1"))
    );
    assert_eq!(created["metadata"]["uid"].as_str().unwrap().len(), 36);
    assert_eq!(admin.get(&format!("{MAPS}/a")).await.expect(200), created);
    assert_eq!(
        admin.post(MAPS, &config_map("a", "1")).await.expect(409)["reason"],
        "AlreadyExists"
    );

    let mut changed = created.clone();
    changed["data"]["key"] = json!("2");
    let updated = admin.put(&format!("{MAPS}/a"), &changed).await.expect(200);
    assert!(rv(&updated) > rv(&created) && updated["metadata"]["uid"] == created["metadata"]["uid"]);
    let conflict = admin.put(&format!("{MAPS}/a"), &changed).await.expect(409);
    assert_eq!(conflict["reason"], "Conflict", "the same resourceVersion a second time");
    let same = admin.put(&format!("{MAPS}/a"), &updated).await.expect(200);
    assert_eq!(rv(&same), rv(&updated), "nothing changed, nothing is written");

    let events = admin.get(&format!("{MAPS}?resourceVersion=0")).await.expect(200);
    assert_eq!(rv(&events["items"][0]), rv(&updated));
    let patched = admin
        .merge(&format!("{MAPS}/a"), &json!({"data": {"more": "x", "key": null}}))
        .await
        .expect(200);
    assert_eq!(patched["data"], json!({"more": "x"}));
    let stale = json!({"metadata": {"resourceVersion": rv(&created)}, "data": {"y": "1"}});
    assert_eq!(
        admin.merge(&format!("{MAPS}/a"), &stale).await.expect(409)["reason"],
        "Conflict"
    );
    let json_patch = json!([{"op": "replace", "path": "/data/more", "value": "z"}]);
    let headers = [("content-type", "application/json-patch+json")];
    let patched = admin
        .send(Method::PATCH, &format!("{MAPS}/a"), Some(&json_patch), &headers)
        .await
        .expect(200);
    assert_eq!(patched["data"]["more"], "z");

    let list = admin.get(MAPS).await.expect(200);
    assert_eq!(
        (
            &list["kind"],
            &list["apiVersion"],
            list["items"].as_array().unwrap().len()
        ),
        (&json!("ConfigMapList"), &json!("v1"), 1)
    );
    let gone = admin.delete(&format!("{MAPS}/a")).await.expect(200);
    assert_eq!(
        (&gone["status"], &gone["details"]["kind"]),
        (&json!("Success"), &json!("configmaps"))
    );
    assert_eq!(admin.get(&format!("{MAPS}/a")).await.expect(404)["reason"], "NotFound");
    assert_eq!(admin.get(MAPS).await.expect(200)["items"], json!([]));
}

/// Conformance: 3.A03, 3.A05, 3.A06, 3.A07, 3.A08, 3.A09, 3.A11, 4.10
#[tokio::test]
async fn create_refuses_what_it_must() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let with = |pointer: &str, value: Value| {
        let mut map = config_map("a", "1");
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        map.pointer_mut(parent).unwrap()[field] = value;
        map
    };
    for (body, code) in [
        (with("/metadata/resourceVersion", json!("5")), 400),
        (with("/metadata/namespace", json!("other")), 400),
        (with("/metadata/name", json!("Not_A_Name")), 422),
        (with("/apiVersion", json!("v99")), 400),
        (with("/metadata/labels", json!({"a": "not valid!"})), 422),
        (json!({"metadata": {}}), 422),
    ] {
        admin.post(MAPS, &body).await.expect(code);
    }
    for (body, why) in [
        (
            with("/metadata/resourceVersion", json!("5")),
            "resourceVersion should not be set on objects to be created",
        ),
        (
            with("/metadata/namespace", json!("other")),
            "the namespace of the provided object does not match the namespace sent on the request",
        ),
        (
            with("/kind", json!("Secret")),
            "Secret in version \"v1\" cannot be handled as a ConfigMap",
        ),
    ] {
        let refused = admin.post(MAPS, &body).await.expect(400);
        assert!(refused["message"].as_str().unwrap().starts_with(why), "{refused}");
    }
    let nowhere = "/api/v1/namespaces/nowhere/configmaps";
    let refused = admin.post(nowhere, &config_map("a", "1")).await.expect(404);
    assert_eq!(refused["message"], "namespaces \"nowhere\" not found");
    let missing = admin.send(Method::POST, MAPS, None, &[]).await.expect(400);
    assert!(missing["message"].as_str().unwrap().contains("(<empty>)"));
    let huge = config_map("a", &"x".repeat(3 << 20));
    admin.post(MAPS, &huge).await.expect(413);
    assert_eq!(admin.get(MAPS).await.expect(200)["items"], json!([]));
}

/// Conformance: 2.10, 3.A02, 3.A12, 3.A15, 3.B01, 3.B03, 3.B05, 3.B07, 3.B08, 3.E01, 3.E05, 3.E15
#[tokio::test]
async fn identity_is_the_servers_and_urls_name_one_object() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let empty = admin.get("/api/v1/configmaps/").await.expect(200);
    assert!(rv(&empty).parse::<u64>().unwrap() > 0, "an empty list has a version");
    admin.get("//api/v1/configmaps").await.expect(404);
    let mut foreign = config_map("a", "1");
    foreign["metadata"]["uid"] = json!("00000000-0000-0000-0000-000000000000");
    foreign["metadata"]["creationTimestamp"] = json!("2001-01-01T00:00:00Z");
    foreign["metadata"]["deletionTimestamp"] = json!("2001-01-01T00:00:00Z");
    let created = admin.post(MAPS, &foreign).await.expect(201);
    for field in ["uid", "creationTimestamp", "deletionTimestamp"] {
        assert_ne!(created["metadata"][field], foreign["metadata"][field], "{field}");
    }
    assert!(created["metadata"]["generation"].is_null());
    let path = format!("{MAPS}/a");
    admin.put(&path, &config_map("b", "1")).await.expect(400);
    let mut elsewhere = config_map("a", "1");
    elsewhere["metadata"]["namespace"] = json!("other");
    admin.put(&path, &elsewhere).await.expect(400);
    admin.put(&path, &foreign).await.expect(409);
    let unconditional = admin.put(&path, &config_map("a", "2")).await.expect(200);
    for field in ["uid", "creationTimestamp"] {
        assert_eq!(unconditional["metadata"][field], created["metadata"][field], "{field}");
    }
    admin.post(&format!("{path}/binding"), &json!({})).await.expect(404);
    for version in ["0", &rv(&unconditional)] {
        let read = admin.get(&format!("{path}?resourceVersion={version}")).await;
        assert_eq!(read.expect(200), unconditional);
    }
    let ahead = rv(&unconditional).parse::<u64>().unwrap() + 1_000_000_000_000;
    let early = admin.get(&format!("{path}?resourceVersion={ahead}")).await;
    assert_eq!(early.header("retry-after"), Some("1"), "waited for, and given up");
    assert_eq!(
        early.expect(504)["details"]["causes"][0]["reason"],
        "ResourceVersionTooLarge"
    );
    let list = admin
        .get("/api/v1/configmaps?fieldSelector=metadata.namespace%3Dother")
        .await
        .expect(200);
    assert_eq!(list["items"], json!([]));
    assert!(rv(&list).parse::<u64>().unwrap() >= rv(&unconditional).parse::<u64>().unwrap());
    let slice = json!({"metadata": {"name": "s"}, "addressType": "IPv4", "endpoints": []});
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    let mut slice = admin.post(slices, &slice).await.expect(201);
    assert_eq!(slice["metadata"]["generation"], 1);
    let path = format!("{slices}/s");
    slice["metadata"]["generation"] = json!(7);
    let same = admin.put(&path, &slice).await.expect(200);
    assert_eq!(same["metadata"]["generation"], 1, "it is the server's");
    slice["metadata"]["labels"] = json!({"a": "b"});
    let labelled = admin.put(&path, &slice).await.expect(200);
    assert_eq!(labelled["metadata"]["generation"], 2, "labels of a slice count");
}

/// Conformance: 2.38, 3.A04, 3.D10
#[tokio::test]
async fn generated_names_and_dry_runs() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let body = json!({"metadata": {"generateName": "web-"}});
    let first = admin.post(MAPS, &body).await.expect(201);
    let name = first["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("web-") && name.len() == 9, "{name}");
    assert!(
        name[4..].chars().all(|one| "bcdfghjklmnpqrstvwxz2456789".contains(one)),
        "{name}"
    );
    let both = json!({"metadata": {"name": "given", "generateName": "web-"}});
    let both = admin.post(&format!("{MAPS}?dryRun=All"), &both).await.expect(201);
    assert_eq!(
        (&both["metadata"]["name"], &both["metadata"]["generateName"]),
        (&json!("given"), &json!("web-"))
    );
    admin.post(MAPS, &json!({"metadata": {}})).await.expect(422);
    admin
        .post(&format!("{MAPS}?dryRun=All"), &config_map("dry", "1"))
        .await
        .expect(201);
    admin.delete(&format!("{MAPS}/{name}?dryRun=All")).await.expect(200);
    let changed = admin
        .merge(&format!("{MAPS}/{name}?dryRun=All"), &json!({"data": {"a": "b"}}))
        .await
        .expect(200);
    assert_eq!(changed["data"]["a"], "b", "a dry run shows what would be");
    let list = admin.get(MAPS).await.expect(200);
    assert_eq!(list["items"], json!([first]), "a dry run leaves nothing behind");
}

/// Conformance: 3.B10, 3.C11, 3.D03
#[tokio::test]
async fn finalizers_hold_a_delete_and_release_it() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let mut map = config_map("held", "1");
    map["metadata"]["finalizers"] = json!(["example.com/wait"]);
    admin.post(MAPS, &map).await.expect(201);
    let path = format!("{MAPS}/held");
    let marked = admin.delete(&path).await.expect(200);
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 0);
    let more = json!({"metadata": {"finalizers": ["example.com/wait", "example.com/more"]}});
    let refused = admin.merge(&path, &more).await.expect(422);
    assert_eq!(refused["details"]["causes"][0]["field"], "metadata.finalizers");
    let mut watch = admin.watch(&format!("{MAPS}?resourceVersion={}", rv(&marked))).await;
    let again = admin.delete(&path).await.expect(200);
    assert_eq!(rv(&again), rv(&marked));
    let exists = admin.post(MAPS, &map).await.expect(409);
    assert!(
        exists["message"]
            .as_str()
            .unwrap()
            .starts_with("object is being deleted: ")
    );
    let mut last = marked.clone();
    last["metadata"]["finalizers"] = json!([]);
    let gone = admin.put(&path, &last).await.expect(200);
    assert_eq!(gone["kind"], "ConfigMap", "the answer is the object");
    assert_eq!(watch.told().await, "DELETED held");
    admin.get(&path).await.expect(404);
}

/// Conformance: 3.B11
#[tokio::test]
async fn frozen_contents_stay_and_strings_become_data() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let secrets = "/api/v1/namespaces/default/secrets";
    for (path, mut object) in [
        (MAPS, json!({"metadata": {"name": "a"}, "data": {"k": "v"}})),
        (secrets, json!({"metadata": {"name": "a"}, "data": {"k": "dg=="}})),
    ] {
        object["immutable"] = json!(true);
        admin.post(path, &object).await.expect(201);
        let path = format!("{path}/a");
        for change in [json!({"data": {"k": "dw=="}}), json!({"immutable": false})] {
            let refused = admin.merge(&path, &change).await.expect(422);
            let cause = &refused["details"]["causes"][0]["message"];
            assert_eq!(cause, "Forbidden: field is immutable when `immutable` is set", "{path}");
        }
        let labels = json!({"metadata": {"labels": {"a": "b"}}});
        admin.merge(&path, &labels).await.expect(200);
    }
    let secret = json!({"metadata": {"name": "s"}, "data": {"a": "YQ==", "c": "YQ=="}, "stringData": {"a": "b"}});
    let created = admin.post(secrets, &secret).await.expect(201);
    assert_eq!(
        (&created["data"], created.get("stringData")),
        (&json!({"a": "Yg==", "c": "YQ=="}), None)
    );
    let change = json!({"stringData": {"c": "b"}});
    let changed = admin.merge(&format!("{secrets}/s"), &change).await.expect(200);
    assert_eq!(
        (&changed["data"], changed.get("stringData")),
        (&json!({"a": "Yg==", "c": "Yg=="}), None)
    );
}

/// Conformance: 3.D04
#[tokio::test]
async fn preconditions_guard_deletes() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let created = admin.post(MAPS, &config_map("a", "1")).await.expect(201);
    let path = format!("{MAPS}/a");
    let delete = |preconditions: Value| {
        let (admin, path) = (admin.clone(), path.clone());
        async move {
            let body = json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": preconditions});
            admin
                .send(
                    Method::DELETE,
                    &path,
                    Some(&body),
                    &[("content-type", "application/json")],
                )
                .await
                .code
        }
    };
    assert_eq!(delete(json!({"uid": "other"})).await, 409);
    let older = (rv(&created).parse::<u64>().unwrap() - 1).to_string();
    assert_eq!(delete(json!({ "resourceVersion": older })).await, 409);
    assert_eq!(
        delete(json!({"uid": created["metadata"]["uid"], "resourceVersion": rv(&created)})).await,
        200
    );
}

/// Conformance: 3.B09, 3.C10
#[tokio::test]
async fn status_is_written_apart_from_the_rest() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let node = json!({"metadata": {"name": "n1"}, "spec": {"podCIDR": "10.0.0.0/24"}, "status": {"phase": "new"}});
    admin.post("/api/v1/nodes", &node).await.expect(201);
    let main = admin
        .merge(
            "/api/v1/nodes/n1",
            &json!({"spec": {"providerID": "1"}, "status": {"phase": "main"}}),
        )
        .await
        .expect(200);
    assert_eq!(
        (&main["spec"]["providerID"], &main["status"]["phase"]),
        (&json!("1"), &json!("new"))
    );
    let body = json!({"spec": {"providerID": "2"}, "status": {"phase": "told"}});
    let status = admin.merge("/api/v1/nodes/n1/status", &body).await.expect(200);
    assert_eq!(
        (&status["spec"]["providerID"], &status["status"]["phase"]),
        (&json!("1"), &json!("told"))
    );
    let mut put = status.clone();
    put["spec"]["providerID"] = json!("1");
    put["metadata"]["labels"] = json!({"a": "b"});
    put["status"]["phase"] = json!("put");
    let main = admin.put("/api/v1/nodes/n1", &put).await.expect(200);
    assert_eq!(
        (&main["metadata"]["labels"], &main["status"]["phase"]),
        (&json!({"a": "b"}), &json!("told"))
    );
    let mut put = main.clone();
    put["spec"]["unschedulable"] = json!(true);
    put["status"]["phase"] = json!("put");
    let status = admin.put("/api/v1/nodes/n1/status", &put).await.expect(200);
    assert_eq!(
        (&status["spec"], &status["status"]["phase"]),
        (&main["spec"], &json!("put"))
    );
    admin
        .get("/api/v1/namespaces/default/configmaps/a/status")
        .await
        .expect(404);
}

/// Conformance: 3.B12, 3.C04
#[tokio::test]
async fn one_of_many_racing_updates_wins_and_patches_never_conflict() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let created = admin.post(MAPS, &config_map("a", "0")).await.expect(201);
    let path = format!("{MAPS}/a");
    let puts = (1..=30).map(|n| {
        let (admin, path, mut body) = (admin.clone(), path.clone(), created.clone());
        body["data"]["key"] = json!(n.to_string());
        async move { admin.put(&path, &body).await.code }
    });
    let codes = futures_util::future::join_all(puts).await;
    assert_eq!(codes.iter().filter(|code| **code == 200).count(), 1, "{codes:?}");
    let patches = (0..8).map(|n| {
        let (admin, path) = (admin.clone(), path.clone());
        async move {
            admin
                .merge(&path, &json!({"data": {(format!("k{n}")): "x"}}))
                .await
                .code
        }
    });
    assert!(
        futures_util::future::join_all(patches)
            .await
            .iter()
            .all(|code| *code == 200)
    );
    assert_eq!(admin.get(&path).await.expect(200)["data"].as_object().unwrap().len(), 9);
}

/// Conformance: 3.D08
#[tokio::test]
async fn collections_and_namespaces_are_emptied() {
    let server = Server::standalone().await;
    let admin = server.admin();
    admin
        .post("/api/v1/namespaces", &json!({"metadata": {"name": "n"}}))
        .await
        .expect(201);
    for (name, data) in [("a", "1"), ("b", "1"), ("c", "2")] {
        admin
            .post("/api/v1/namespaces/n/configmaps", &config_map(name, data))
            .await
            .expect(201);
    }
    let none = admin
        .delete("/api/v1/namespaces/n/configmaps?fieldSelector=metadata.name%3Dnone")
        .await
        .expect(200);
    assert_eq!((&none["kind"], &none["items"]), (&json!("ConfigMapList"), &json!([])));
    let deleted = admin
        .delete("/api/v1/namespaces/n/configmaps?labelSelector=app%3D1")
        .await
        .expect(200);
    assert_eq!(deleted["items"].as_array().unwrap().len(), 2);
    let held = admin.get("/api/v1/namespaces").await.expect(200);
    let mut watch = admin
        .watch(&format!("/api/v1/namespaces?resourceVersion={}", rv(&held)))
        .await;
    admin.delete("/api/v1/namespaces/n").await.expect(200);
    while watch.told().await != "DELETED n" {}
    assert_eq!(admin.get("/api/v1/configmaps").await.expect(200)["items"], json!([]));
}

/// Conformance: 2.04, 2.12, 4.05
#[tokio::test]
async fn paths_and_methods_that_are_not_offered() {
    let server = Server::standalone().await;
    let admin = server.admin();
    for (method, path, code) in [
        (Method::POST, "/api/v1/configmaps", 405),
        (Method::PUT, MAPS, 405),
        (Method::HEAD, MAPS, 405),
        (Method::GET, "/api/v1/gadgets", 404),
        (Method::GET, "/apis/nowhere/v1/gadgets", 404),
        (Method::GET, "/api/v1/namespaces/default/nodes", 404),
        (Method::GET, "/nowhere", 404),
        (
            Method::GET,
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            405,
        ),
    ] {
        let answer = admin.send(method.clone(), path, None, &[]).await;
        assert_eq!(answer.code, code, "{method} {path}");
    }
}

/// Conformance: 2.26, 2.33, 2.34, 2.55, 7.14, 7.41
#[tokio::test]
async fn lists_obey_resource_versions_and_selectors() {
    let server = Server::standalone().await;
    let admin = server.admin();
    for (name, data) in [("a", "1"), ("b", "2")] {
        admin.post(MAPS, &config_map(name, data)).await.expect(201);
    }
    let list = admin.get(MAPS).await.expect(200);
    let at = rv(&list);
    let code = |query: String| {
        let admin = admin.clone();
        async move { admin.get(&format!("{MAPS}?{query}")).await }
    };
    assert_eq!(
        rv(&code(format!("resourceVersion={at}&resourceVersionMatch=Exact"))
            .await
            .expect(200)),
        at
    );
    code(format!("resourceVersion={at}&resourceVersionMatch=NotOlderThan"))
        .await
        .expect(200);
    assert_eq!(
        code("resourceVersion=4611686018427387999".into()).await.expect(410)["reason"],
        "Expired",
        "a number of the other space"
    );
    code("continue=abc".into()).await.expect(400);
    code("labelSelector=%3D%3D".into()).await.expect(400);
    let names = |list: Value| {
        let items = list["items"].as_array().unwrap().clone();
        items
            .iter()
            .map(|item| item["metadata"]["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(code("labelSelector=app%3D2".into()).await.expect(200)), ["b"]);
    assert_eq!(
        names(code("fieldSelector=metadata.name%3Da".into()).await.expect(200)),
        ["a"]
    );
    let partial = [(
        "accept",
        "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
    )];
    let list = admin.get_with(MAPS, &partial).await.expect(200);
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    assert!(list["items"][0]["data"].is_null() && list["items"][0]["metadata"]["name"] == "a");
}

#[tokio::test]
async fn large_lists_arrive_whole() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let data = "x".repeat(2000);
    let creates = (0..120).map(|n| {
        let (admin, body) = (
            admin.clone(),
            json!({"metadata": {"name": format!("m{n}")}, "data": {"k": data}}),
        );
        async move { admin.post(MAPS, &body).await.code }
    });
    assert!(
        futures_util::future::join_all(creates)
            .await
            .iter()
            .all(|code| *code == 201)
    );
    let list = admin.get(MAPS).await.expect(200);
    assert_eq!(list["items"].as_array().unwrap().len(), 120);
}
