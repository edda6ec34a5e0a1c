//! Watches: initial events, live events, resume, selectors, bookmarks, ends.

use std::time::Duration;

use serde_json::json;

use crate::harness::{Server, config_map, rv};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const NAMESPACES: &str = "/api/v1/namespaces";

/// Conformance: 3.A14, 3.D09, 3.F10, 3.F11, 3.F12, 3.F31, 7.24
#[tokio::test]
async fn present_state_comes_first_then_a_bookmark_then_changes() {
    let server = Server::standalone().await;
    let admin = server.admin();
    admin.post(MAPS, &config_map("a", "1")).await.expect(201);
    let mut watch = admin.watch(&format!("{MAPS}?allowWatchBookmarks=true")).await;
    assert_eq!(watch.told().await, "ADDED a");
    let bookmark = watch.next().await.unwrap();
    assert_eq!(bookmark.kind, "BOOKMARK");
    assert_eq!(
        bookmark.object["metadata"]["annotations"]["k8s.io/initial-events-end"],
        "true"
    );
    assert_eq!(
        (&bookmark.object["kind"], &bookmark.object["apiVersion"]),
        (&json!("ConfigMap"), &json!("v1"))
    );
    assert!(!rv(&bookmark.object).is_empty());
    let created = admin.post(MAPS, &config_map("b", "1")).await.expect(201);
    let event = watch.next().await.unwrap();
    assert_eq!((event.kind.as_str(), &event.object), ("ADDED", &created));
    let changed = admin
        .merge(&format!("{MAPS}/b"), &json!({"data": {"key": "2"}}))
        .await
        .expect(200);
    assert_eq!(watch.told().await, "MODIFIED b");
    admin.delete(&format!("{MAPS}/b")).await.expect(200);
    let gone = watch.next().await.unwrap();
    assert_eq!(
        (gone.kind.as_str(), &gone.object["data"]["key"]),
        ("DELETED", &json!("2"))
    );
    let number = |object: &serde_json::Value| rv(object).parse::<u64>().unwrap();
    assert!(
        number(&created) < number(&changed) && number(&changed) < number(&gone.object),
        "a deletion has its own resourceVersion"
    );
}

/// Conformance: 3.F53, 7.43
#[tokio::test]
async fn watch_resumes_after_a_version_and_across_a_restart() {
    let mut server = Server::standalone().await;
    let admin = server.admin();
    let first = admin.post(MAPS, &config_map("a", "1")).await.expect(201);
    admin.post(MAPS, &config_map("b", "1")).await.expect(201);
    admin.delete(&format!("{MAPS}/a")).await.expect(200);
    let path = format!("{MAPS}?resourceVersion={}", rv(&first));
    let mut watch = admin.watch(&path).await;
    assert_eq!(
        (watch.told().await, watch.told().await),
        ("ADDED b".into(), "DELETED a".into())
    );
    server.stop();
    assert!(watch.next().await.is_none(), "a shutdown ends the stream cleanly");
    server.start_again().await;
    let mut watch = server.admin().watch(&path).await;
    let told = [watch.told().await, watch.told().await];
    assert!(
        told.contains(&"DELETED a".into()) && told.iter().any(|event| event.ends_with(" b")),
        "{told:?}"
    );
}

/// Conformance: 3.F02, 3.F15, 3.F42, 7.31, 7.32, 7.33, 7.41
#[tokio::test]
async fn foreign_and_future_versions_end_in_one_410_event() {
    // In profile pool own numbers have bit 62; one above C comes from a history that was lost.
    let server = Server::pool().await;
    let admin = server.admin();
    for version in ["12", "9000000000000000000"] {
        let mut watch = admin.watch(&format!("{MAPS}?resourceVersion={version}")).await;
        let event = watch.next().await.unwrap();
        assert_eq!(
            (event.kind.as_str(), &event.object["code"]),
            ("ERROR", &json!(410)),
            "{version}"
        );
        assert!(watch.next().await.is_none());
    }
    admin
        .get(&format!("{MAPS}?watch=1&sendInitialEvents=true"))
        .await
        .expect(422);
    admin
        .get(&format!("{MAPS}?watch=1&resourceVersion=x"))
        .await
        .expect(400);
}

/// More than a thousand objects, a kill, and every watch resumes at its position: there is no relist and no repeated
/// event.
///
/// Conformance: 7.43, 8.28
#[tokio::test]
async fn restart_with_many_objects_resumes_watches_where_they_were() {
    const OBJECTS: usize = 1500;
    let mut server = Server::standalone().await;
    let admin = server.admin();
    let name = |n: usize| format!("map-{n:04}");
    let mut middle = String::new();
    for first in (0..OBJECTS).step_by(50) {
        let bodies: Vec<_> = (first..first + 50).map(|n| config_map(&name(n), "1")).collect();
        let created = bodies.iter().map(|body| admin.post(MAPS, body));
        for answer in futures_util::future::join_all(created).await {
            answer.expect(201);
        }
        if first + 50 == OBJECTS / 2 {
            middle = rv(&admin.get(MAPS).await.expect(200));
        }
    }
    let end = rv(&admin.get(MAPS).await.expect(200));
    server.kill();
    server.start_again().await;
    let admin = server.admin();
    let [mut from_middle, mut from_end] = [
        admin.watch(&format!("{MAPS}?resourceVersion={middle}")).await,
        admin.watch(&format!("{MAPS}?resourceVersion={end}")).await,
    ];
    let list = admin.get(MAPS).await.expect(200);
    assert_eq!(list["items"].as_array().unwrap().len(), OBJECTS);
    admin.post(MAPS, &config_map("late", "1")).await.expect(201);
    assert_eq!(from_end.told().await, "ADDED late");
    let mut told = std::collections::BTreeSet::new();
    for _ in OBJECTS / 2..OBJECTS {
        let event = from_middle.next().await.unwrap();
        assert_ne!(event.kind, "ERROR", "{event:?}");
        told.insert(event.object["metadata"]["name"].as_str().unwrap().to_owned());
    }
    assert_eq!(told, (OBJECTS / 2..OBJECTS).map(name).collect());
    assert_eq!(from_middle.told().await, "ADDED late");
}

/// One store issues the numbers of all its collections, and a client may carry them from one to another.
///
/// Conformance: 3.E13, 3.F42
#[tokio::test]
async fn number_learned_from_another_collection_is_served() {
    for server in [Server::standalone().await, Server::pool().await] {
        let admin = server.admin();
        let mut bystander = admin.watch(NAMESPACES).await;
        while !bystander.told().await.starts_with("ADDED kube-system") {}
        let made = admin.post(MAPS, &config_map("a", "1")).await.expect(201);
        let version = made["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
        for matched in ["NotOlderThan", "Exact"] {
            let path = format!("{NAMESPACES}?resourceVersion={version}&resourceVersionMatch={matched}");
            let list = admin.get(&path).await.expect(200);
            assert!(!list["items"].as_array().unwrap().is_empty(), "{list}");
        }
        let mut watch = admin.watch(&format!("{NAMESPACES}?resourceVersion={version}")).await;
        let added = json!({"metadata": {"name": "late"}});
        admin.post(NAMESPACES, &added).await.expect(201);
        assert_eq!(watch.told().await, "ADDED late");
        assert_eq!(bystander.told().await, "ADDED late", "there was no event in between");
    }
}

/// Conformance: 3.F32, 3.F60
#[tokio::test]
async fn objects_enter_and_leave_a_selection() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let mut watch = admin.watch(&format!("{MAPS}?labelSelector=app%3D1")).await;
    admin.post(MAPS, &config_map("other", "2")).await.expect(201);
    admin.post(MAPS, &config_map("a", "1")).await.expect(201);
    assert_eq!(watch.told().await, "ADDED a");
    let out = admin
        .merge(&format!("{MAPS}/a"), &json!({"metadata": {"labels": {"app": "2"}}}))
        .await
        .expect(200);
    let left = watch.next().await.unwrap();
    assert_eq!(
        (left.kind.as_str(), &left.object["metadata"]["labels"]["app"]),
        ("DELETED", &json!("1"))
    );
    assert_eq!(
        rv(&left.object),
        rv(&out),
        "the state it had inside, at the version it left"
    );
    admin
        .merge(&format!("{MAPS}/a"), &json!({"metadata": {"labels": {"app": "1"}}}))
        .await
        .expect(200);
    assert_eq!(watch.told().await, "ADDED a");
    let mut single = admin
        .watch(&format!("{MAPS}?fieldSelector=metadata.name%3Dlater"))
        .await;
    admin.post(MAPS, &config_map("later", "1")).await.expect(201);
    assert_eq!(single.told().await, "ADDED later");
}

/// Conformance: 2.30, 2.95, 3.F20, 3.F50
#[tokio::test]
async fn stream_ends_cleanly_at_its_timeout_after_a_last_bookmark() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let mut watch = admin
        .watch(&format!("{MAPS}?timeoutSeconds=3&allowWatchBookmarks=true"))
        .await;
    assert_eq!(watch.told().await, "BOOKMARK", "the end of the initial events");
    assert_eq!(watch.told().await, "BOOKMARK", "shortly before the end");
    assert!(watch.next().await.is_none());
}

/// Conformance: 3.F11
#[tokio::test]
async fn metadata_clients_get_metadata_only() {
    let server = Server::standalone().await;
    let admin = server.admin();
    admin.post(MAPS, &config_map("a", "1")).await.expect(201);
    let accept = [("accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")];
    let mut watch = admin
        .watch_with(&format!("{MAPS}?allowWatchBookmarks=true"), &accept)
        .await;
    let added = watch.next().await.unwrap();
    assert_eq!(
        (&added.object["kind"], &added.object["data"]),
        (&json!("PartialObjectMetadata"), &json!(null))
    );
    assert_eq!(
        watch.next().await.unwrap().object["kind"],
        "PartialObjectMetadata",
        "bookmarks too"
    );
    let one = admin.get_with(&format!("{MAPS}/a"), &accept).await.expect(200);
    assert_eq!(one["kind"], "PartialObjectMetadata");
}

/// Conformance: 2.94, 3.B06, 3.F62
#[tokio::test]
async fn unchanged_objects_are_not_told() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let created = admin.post(MAPS, &config_map("a", "1")).await.expect(201);
    let mut watch = admin.watch(&format!("{MAPS}?resourceVersion={}", rv(&created))).await;
    admin.put(&format!("{MAPS}/a"), &created).await.expect(200);
    admin.merge(&format!("{MAPS}/a"), &json!({})).await.expect(200);
    assert!(watch.within(Duration::from_millis(300)).await.is_err(), "silence");
}
