//! Events: one store under two groups, and their expiry.

use serde_json::{Value, json};

use crate::harness::{Server, rv};

const CORE: &str = "/api/v1/namespaces/default/events";
const NEW: &str = "/apis/events.k8s.io/v1/namespaces/default/events";

fn core_event(name: &str) -> Value {
    json!({"metadata": {"name": name}, "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"},
        "reason": "Started", "message": "m", "type": "Normal", "count": 1, "source": {"component": "kubelet"}})
}

fn new_event(name: &str) -> Value {
    json!({"metadata": {"name": name}, "regarding": {"kind": "Pod", "name": "p", "namespace": "default"},
        "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "example.com/c", "reportingInstance": "i",
        "action": "Act", "reason": "R", "note": "n", "type": "Normal"})
}

/// Conformance: 5.13
#[tokio::test]
async fn both_groups_show_the_same_events() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let first = admin.post(CORE, &core_event("a")).await.expect(201);
    let mut watch = admin
        .watch(&format!(
            "{NEW}?allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
        ))
        .await;
    let seen = watch.next().await.unwrap().object;
    assert_eq!(seen, admin.get(&format!("{NEW}/a")).await.expect(200));
    assert_eq!(
        (&seen["apiVersion"], rv(&seen)),
        (&json!("events.k8s.io/v1"), rv(&first))
    );
    assert_eq!((&seen["note"], &seen["deprecatedCount"]), (&json!("m"), &json!(1)));
    let bookmark = watch.next().await.unwrap();
    assert_eq!(
        (bookmark.kind.as_str(), &bookmark.object["apiVersion"]),
        ("BOOKMARK", &json!("events.k8s.io/v1")),
        "readers of one kind ignore events of another"
    );

    admin.post(NEW, &new_event("b")).await.expect(201);
    let stored = admin.get(&format!("{CORE}/b")).await.expect(200);
    assert_eq!((&stored["apiVersion"], &stored["message"]), (&json!("v1"), &json!("n")));
    assert_eq!(stored["involvedObject"]["name"], "p");
    let patch = json!({"series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:01.000000Z"}});
    let patched = admin.merge(&format!("{NEW}/b"), &patch).await.expect(200);
    assert_eq!(
        (&patched["series"]["count"], &patched["note"]),
        (&json!(2), &json!("n"))
    );
    let refused = admin
        .merge(&format!("{NEW}/b"), &json!({"note": "other"}))
        .await
        .expect(422);
    assert_eq!(refused["details"]["causes"][0]["field"], "message");
    for told in ["ADDED b", "MODIFIED b"] {
        assert_eq!(watch.told().await, told);
    }
    let list = admin
        .get(&format!(
            "{NEW}?fieldSelector=regarding.name=p,reportingController=example.com/c"
        ))
        .await;
    let list = list.expect(200);
    assert_eq!(
        (&list["apiVersion"], &list["items"][0]["metadata"]["name"]),
        (&json!("events.k8s.io/v1"), &json!("b"))
    );
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
    for (source, name) in [("kubelet", "a"), ("example.com/c", "b")] {
        for path in [CORE, NEW] {
            let list = admin.get(&format!("{path}?fieldSelector=source={source}")).await;
            let list = list.expect(200);
            let names: Vec<&Value> = list["items"]
                .as_array()
                .unwrap()
                .iter()
                .map(|item| &item["metadata"]["name"])
                .collect();
            assert_eq!(names, [name], "{path} {source}");
        }
    }
    let refused = admin
        .get(&format!("{NEW}?fieldSelector=involvedObject.name=p"))
        .await
        .expect(400);
    assert_eq!(refused["message"], "field label not supported: involvedObject.name");
    admin.delete(&format!("{NEW}/a")).await.expect(200);
    admin.get(&format!("{CORE}/a")).await.expect(404);
}

/// Conformance: 3.F62, 5.14
#[tokio::test]
async fn an_event_ends_some_time_after_its_last_change() {
    let server = Server::start(&["--profile", "standalone", "--event-ttl", "2s"]).await;
    let admin = server.admin();
    let created = admin.put(&format!("{CORE}/a"), &core_event("a")).await.expect(201);
    let mut watch = admin.watch(&format!("{CORE}?resourceVersion={}", rv(&created))).await;
    admin.put(&format!("{CORE}/a"), &core_event("a")).await.expect(200);
    let mut changed = core_event("a");
    changed["count"] = json!(2);
    let changed = admin.put(&format!("{CORE}/a"), &changed).await.expect(200);
    let event = watch.next().await.unwrap();
    assert_eq!(
        (event.kind.as_str(), rv(&event.object)),
        ("MODIFIED", rv(&changed)),
        "the same again is no change"
    );
    let event = watch.next().await.unwrap();
    assert_eq!((event.kind.as_str(), &event.object["count"]), ("DELETED", &json!(2)));
    let micros = |rv: &str| rv.parse::<u64>().unwrap();
    assert!(
        micros(&rv(&event.object)) - micros(&rv(&changed)) >= 1_000_000,
        "RVs here are times in microseconds"
    );
    admin.get(&format!("{CORE}/a")).await.expect(404);
}
