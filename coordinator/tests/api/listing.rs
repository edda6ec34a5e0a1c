//! Lists over HTTP: pages, versions, tokens.

use std::io::Read as _;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Server, config_map, rv};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn names(list: &Value) -> Vec<&str> {
    let items = list["items"].as_array().expect("items are never null");
    items
        .iter()
        .filter_map(|item| item["metadata"]["name"].as_str())
        .collect()
}

/// Conformance: 3.E02, 3.E04, 3.E07, 3.E08, 3.E11, 2.32, 7.06
#[tokio::test]
async fn pages_are_one_state_and_the_last_one_says_so() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let empty = admin.get(&format!("{MAPS}?labelSelector=none")).await.expect(200);
    assert_eq!((&empty["kind"], &empty["items"]), (&json!("ConfigMapList"), &json!([])));
    for name in ["a", "b", "c", "d", "e"] {
        admin.post(MAPS, &config_map(name, "1")).await.expect(201);
    }
    let first = admin.get(&format!("{MAPS}?limit=2")).await.expect(200);
    assert_eq!(names(&first), ["a", "b"]);
    assert_eq!(first["metadata"]["remainingItemCount"], 3);
    let token = first["metadata"]["continue"].as_str().unwrap();
    admin.delete(&format!("{MAPS}/c")).await.expect(200);
    admin.post(MAPS, &config_map("cc", "1")).await.expect(201);
    let second = admin.get(&format!("{MAPS}?limit=2&continue={token}")).await.expect(200);
    assert_eq!((names(&second), rv(&second)), (vec!["c", "d"], rv(&first)));
    let token = second["metadata"]["continue"].as_str().unwrap();
    let last = admin.get(&format!("{MAPS}?limit=2&continue={token}")).await.expect(200);
    assert_eq!((names(&last), rv(&last)), (vec!["e"], rv(&first)));
    assert!(last["metadata"].get("continue").is_none() && last["metadata"].get("remainingItemCount").is_none());
    let cached = admin
        .get(&format!("{MAPS}?limit=2&resourceVersion=0"))
        .await
        .expect(200);
    assert_eq!(
        names(&cached),
        ["a", "b", "cc", "d", "e"],
        "who accepts any state gets all of it"
    );
    let exact = format!("{MAPS}?resourceVersionMatch=Exact&resourceVersion={}", rv(&first));
    assert_eq!(names(&admin.get(&exact).await.expect(200)), ["a", "b", "c", "d", "e"]);
}

#[tokio::test]
async fn the_most_recent_list_is_as_new_as_what_was_written_of_another_kind() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let written = admin.post(MAPS, &config_map("a", "1")).await.expect(201);
    let secrets = admin.get("/api/v1/secrets?limit=1").await.expect(200);
    assert!(rv(&secrets) >= rv(&written), "{secrets} after {written}");
}

/// Conformance: 2.24, 2.26, 3.E09, 4.09
#[tokio::test]
async fn tokens_that_cannot_go_on_are_refused() {
    let mut server = Server::standalone().await;
    let admin = server.admin();
    for name in ["a", "b", "c"] {
        admin.post(MAPS, &config_map(name, "1")).await.expect(201);
    }
    let bad = admin.get(&format!("{MAPS}?continue=x")).await.expect(400);
    assert_eq!(bad["reason"], "BadRequest");
    assert!(
        bad["message"]
            .as_str()
            .unwrap()
            .starts_with("invalid continue token: continue key is not valid")
    );
    let first = admin.get(&format!("{MAPS}?limit=1")).await.expect(200);
    let token = first["metadata"]["continue"].as_str().unwrap();
    let both = admin
        .get(&format!("{MAPS}?continue={token}&resourceVersion=5"))
        .await
        .expect(400);
    assert_eq!(
        both["message"],
        "specifying resource version is not allowed when using continue"
    );
    admin.post(MAPS, &config_map("d", "1")).await.expect(201);
    server.stop();
    server.start_again().await;
    // The state from before the restart is gone, but its token is understood.
    let admin = server.admin();
    let expired = admin.get(&format!("{MAPS}?limit=1&continue={token}")).await;
    assert_eq!(expired.header("retry-after"), None);
    let expired = expired.expect(410);
    assert_eq!(expired["reason"], "Expired");
    let fresh = expired["metadata"]["continue"].as_str().unwrap();
    let rest = admin.get(&format!("{MAPS}?continue={fresh}")).await.expect(200);
    assert_eq!(names(&rest), ["b", "c", "d"]);
}

/// Conformance: 3.D08
#[tokio::test]
async fn a_collection_is_deleted_up_to_the_limit() {
    let server = Server::standalone().await;
    let admin = server.admin();
    for name in ["a", "b", "c"] {
        admin.post(MAPS, &config_map(name, "1")).await.expect(201);
    }
    let deleted = admin
        .delete(&format!("{MAPS}?limit=2&labelSelector=app%3D1"))
        .await
        .expect(200);
    assert_eq!(
        (&deleted["kind"], names(&deleted)),
        (&json!("ConfigMapList"), vec!["a", "b"])
    );
    assert_eq!(
        names(&admin.get(&format!("{MAPS}?labelSelector=app")).await.expect(200)),
        ["c"]
    );
}

/// Conformance: 2.31, 4.17
#[tokio::test]
async fn a_request_takes_no_longer_than_its_client_allows() {
    let server = Server::standalone().await;
    let admin = server.admin();
    let bad = admin.get(&format!("{MAPS}?timeout=5")).await.expect(400);
    assert_eq!(
        bad["message"],
        "invalid timeout specified in the request URL - time: missing unit in duration \"5\""
    );
    // A read waits for an RV that does not come, 3 s if nothing else ends the wait.
    let far = "resourceVersion=4000000000000000000";
    let path = format!("{MAPS}?{far}&timeout=200ms");
    let late = tokio::time::timeout(Duration::from_secs(2), admin.get(&path))
        .await
        .unwrap()
        .expect(504);
    assert_eq!((&late["reason"], &late["details"]), (&json!("Timeout"), &json!({})));
    assert_eq!(
        late["message"],
        "Timeout: request did not complete within the allotted timeout"
    );
    let too_large = admin.get(&format!("{MAPS}?{far}&timeout=20s")).await;
    assert_eq!(too_large.header("retry-after"), Some("1"));
    assert_eq!(
        too_large.expect(504)["details"]["causes"][0]["reason"],
        "ResourceVersionTooLarge"
    );
}

/// Conformance: 2.70, 2.71
#[tokio::test]
async fn large_answers_are_compressed_for_who_asks_and_watches_never() {
    let server = Server::standalone().await;
    let admin = server.admin();
    for name in ["a", "b", "c"] {
        admin.post(MAPS, &config_map(name, &"x".repeat(50))).await.expect(201);
        let data = json!({"data": {"key": "y".repeat(60_000)}});
        admin.merge(&format!("{MAPS}/{name}"), &data).await.expect(200);
    }
    let gzip = [("accept-encoding", "gzip")];
    let plain = admin.get(MAPS).await;
    assert!(plain.header("content-encoding").is_none());
    let (headers, bytes) = admin.get_bytes(MAPS, &gzip).await;
    assert_eq!(
        (&headers["content-encoding"], &headers["vary"]),
        (&"gzip".parse().unwrap(), &"Accept-Encoding".parse().unwrap())
    );
    assert!(bytes.len() < 20_000, "{}", bytes.len());
    let mut text = String::new();
    flate2::read::GzDecoder::new(&bytes[..])
        .read_to_string(&mut text)
        .unwrap();
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), plain.expect(200));
    let small = admin.get_with(&format!("{MAPS}/a"), &gzip).await;
    assert!(small.header("content-encoding").is_none());
    let mut watch = admin.watch_with(MAPS, &gzip).await;
    assert_eq!(watch.told().await, "ADDED a", "not compressed, without delay");
}
