//! `/metrics`: requests, watches and objects.

use yurt_test_support::eventually;

use crate::harness::{Client, Server, config_map};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// Labels of config maps.
const OF_MAPS: &str = r#"group="",resource="configmaps""#;

async fn metrics(admin: &Client) -> String {
    let metrics = admin.get("/metrics").await.expect(200);
    let text = metrics.as_str().expect("metrics are text").to_owned();
    assert_eq!(yurt_test_support::misnamed_counters(&text), [""; 0]);
    text
}

/// Conformance: 1.72
#[tokio::test]
async fn metrics_count_requests_by_what_they_were() {
    let server = Server::standalone().await;
    let admin = server.admin();
    admin.get("/api/v1/namespaces").await.expect(200);
    admin.get("/api/v1/unheard-of").await.expect(404);
    admin
        .post(&format!("{MAPS}?dryRun=All"), &config_map("a", "1"))
        .await
        .expect(201);
    let text = metrics(&admin).await;
    let list = r#"component="apiserver",dry_run="",group="",resource="namespaces",scope="cluster",subresource="",verb="LIST",version="v1""#;
    let dry = format!(
        r#"component="apiserver",dry_run="All",{OF_MAPS},scope="resource",subresource="",verb="POST",version="v1""#
    );
    for line in [
        format!(r#"apiserver_request_total{{code="200",{list}}} 1"#),
        format!(r#"apiserver_request_total{{code="201",{dry}}} 1"#),
        format!("apiserver_request_duration_seconds_count{{{list}}} 1"),
        format!(
            "apiserver_response_sizes_count{{{}}} 1",
            list.replace(r#"dry_run="","#, "")
        ),
        r#"apiserver_storage_objects{resource="namespaces"} 4"#.to_owned(),
        r#"apiserver_resource_objects{group="coordination.k8s.io",resource="leases"} 0"#.to_owned(),
        "yurt_coordinator_feed_late_accepted_total 0".to_owned(),
        "yurt_coordinator_members 0".to_owned(),
        "process_resident_memory_bytes".to_owned(),
    ] {
        assert!(text.contains(&line), "{line}\n{text}");
    }
    assert!(!text.contains("unheard-of"), "strangers make no labels");
}

/// Conformance: 1.72
#[tokio::test]
async fn metrics_count_watches_and_what_they_were_told() {
    let server = Server::standalone().await;
    let admin = server.admin();
    admin.post(MAPS, &config_map("a", "1")).await.expect(201);
    let mut watch = admin.watch(&format!("{MAPS}?allowWatchBookmarks=true")).await;
    assert_eq!(watch.told().await, "ADDED a");
    assert_eq!(watch.next().await.unwrap().kind, "BOOKMARK");
    let of_watch =
        format!(r#"component="apiserver",{OF_MAPS},scope="namespace",subresource="",verb="WATCH",version="v1""#);
    let of_maps = format!(r#"{OF_MAPS},version="v1""#);
    let ended = format!(
        "apiserver_request_duration_seconds_count{{{}}}",
        of_watch.replace(r#"",group"#, r#"",dry_run="",group"#)
    );
    let text = metrics(&admin).await;
    for line in [
        format!("apiserver_longrunning_requests{{{of_watch}}} 1"),
        format!("apiserver_watch_events_total{{{of_maps}}} 2"),
        format!(r#"apiserver_watch_events_sizes_bucket{{{of_maps},le="1024"}} 2"#),
        format!(r#"apiserver_watch_list_duration_seconds_count{{{OF_MAPS},scope="namespace",version="v1"}} 1"#),
        format!("{ended} 0"),
    ] {
        assert!(text.contains(&line), "{line}\n{text}");
    }
    drop(watch);
    eventually("the watch must have ended", async || {
        let text = metrics(&admin).await;
        let is_gone = text.contains(&format!("apiserver_longrunning_requests{{{of_watch}}} 0"));
        (is_gone && text.contains(&format!("{ended} 1"))).then_some(())
    })
    .await;
}
