//! The cloud is restored from a backup unseen by the hub, and clients get no wrong data.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::{HeaderValue, StatusCode};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use yurt_runtime::http::{json as answer_json, read_body, respond, stream as body_of};
use yurt_test_support::eventually;

use super::client::{Answer, Watch};
use super::cloud::{Backup, Cloud, IDENTITY};
use super::harness::TestHub;
use super::pool::Pool;

const SERVICES: &str = "/api/v1/services";
/// Path at which the coordinator is fed a snapshot of its Services.
const SNAPSHOT: &str = "/yurt/v1/feed/services/snapshot";
const WEB: &str = "/api/v1/namespaces/shop/services/web";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1";

fn service(name: &str, port: u16) -> serde_json::Value {
    json!({"metadata": {"namespace": "shop", "name": name}, "spec": {"ports": [{"port": port}]}})
}

/// Stops the hub while the cloud is restored from `backup` and continues with `meanwhile`.
async fn restored_unseen(cloud: &mut Cloud, hub: &mut TestHub, backup: Backup, meanwhile: impl FnOnce(&Cloud)) {
    hub.stop().await;
    cloud.go_away().await;
    cloud.restore(backup);
    meanwhile(cloud);
    cloud.come_back().await;
    hub.restart().await;
}

/// Advances the numbers of the cloud by `count`.
fn pass_numbers(cloud: &Cloud, count: usize) {
    for number in 0..count {
        let name = format!("p{number}");
        cloud.put("pods", json!({"metadata": {"namespace": "shop", "name": name}}));
    }
}

/// Lists of the replicas, without those of the proof.
fn lists(cloud: &Cloud) -> usize {
    let seen = cloud.seen(SERVICES).into_iter();
    let is_list = |query: &str| query.starts_with("limit=") && query != "limit=1";
    seen.filter(|seen| seen.query.as_deref().is_some_and(is_list)).count()
}

/// Returns the code of the next ERROR.
async fn refused(watch: &mut Watch) -> u64 {
    let event = watch.next().await.expect("the stream must go on");
    assert_eq!(event.kind, "ERROR");
    event.object["code"].as_u64().unwrap()
}

/// Returns the ordinal number of an answer's generation.
fn generation(answer: &Answer) -> Option<u64> {
    let number: u64 = answer.header("yurt-generation")?.parse().ok()?;
    Some(number / 1_000_000)
}

/// Returns the list once it is of the `count`-th generation.
async fn list_of_generation(hub: &TestHub, count: u64) -> Answer {
    eventually("the generation must be served", async || {
        let listed = hub.kube_proxy().get(SERVICES).await;
        (generation(&listed) == Some(count) && listed.code == 200).then_some(listed)
    })
    .await
}

/// Conformance: 7.55
#[tokio::test]
async fn cloud_that_came_back_from_a_backup_begins_a_new_generation() {
    let mut cloud = Cloud::start().await;
    cloud.put("services", service("web", 80));
    let backup = cloud.backup();
    cloud.put("services", service("web", 81));
    let late = cloud.put("services", service("late", 90));
    let hub = TestHub::start(&cloud, &[]).await;
    let seen = late["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let mut client = hub
        .component("flanneld")
        .watch(&format!("{SERVICES}?watch=1&resourceVersion={seen}"))
        .await;
    cloud.go_away().await;
    cloud.restore(backup);
    cloud.come_back().await;
    assert_eq!(refused(&mut client).await, 410, "its number has another meaning");
    let listed = list_of_generation(&hub, 1).await;
    assert_eq!((listed.names(), generation(&listed)), (vec!["web".to_owned()], Some(1)));
    assert_eq!(listed.json()["items"][0]["spec"]["ports"][0]["port"], 80);
    // Ahead of the replica: certainly of the earlier history.
    let mut ahead = hub
        .component("flanneld")
        .watch(&format!("{SERVICES}?watch=1&resourceVersion={seen}"))
        .await;
    assert_eq!(refused(&mut ahead).await, 410);
    // A number that both histories have.
    let at = listed.json()["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .to_owned();
    let mut either = hub
        .component("flanneld")
        .watch(&format!("{SERVICES}?watch=1&resourceVersion={at}"))
        .await;
    assert_eq!(either.told().await, "DELETED late");
    assert_eq!(either.told().await, "MODIFIED web");
    cloud.put("services", service("new", 1));
    assert_eq!(either.told().await, "ADDED new");
}

/// The restored cloud has passed the known position: only its objects show it.
#[tokio::test]
async fn restored_cloud_is_noticed_after_it_has_passed_what_was_seen_and_across_a_restart() {
    let mut cloud = Cloud::start().await;
    cloud.put("services", service("web", 80));
    let backup = cloud.backup();
    cloud.put("services", service("web", 81));
    let mut hub = TestHub::start(&cloud, &[]).await;
    restored_unseen(&mut cloud, &mut hub, backup, |cloud| pass_numbers(cloud, 20)).await;
    let listed = list_of_generation(&hub, 1).await;
    assert_eq!(
        listed.json()["items"][0]["spec"]["ports"][0]["port"],
        80,
        "nothing stale remains"
    );
    // The new history is recorded: the next start proves that one.
    hub.restart().await;
    hub.wait_until_complete().await;
    cloud.put("services", service("new", 1));
    eventually("the hub must follow", async || {
        let listed = hub.kube_proxy().get(SERVICES).await;
        (listed.names() == ["new", "web"] && generation(&listed) == Some(1)).then_some(())
    })
    .await;
}

/// Writes both objects again, so that none is as in the backup, and passes our numbers.
fn write_both_again(cloud: &Cloud) {
    for port in 0..5 {
        cloud.put("services", service("web", port));
    }
    cloud.put("services", service("kept", 3));
}

/// Everything that the proof checks was written again with numbers above ours; the server still has its state at our
/// `C`.
#[tokio::test]
async fn restored_cloud_that_wrote_everything_again_is_noticed_by_its_past() {
    let mut cloud = Cloud::start().await;
    cloud.put("services", service("web", 80));
    cloud.put("services", service("kept", 1));
    let backup = cloud.backup();
    cloud.put("services", service("kept", 2));
    cloud.put("services", service("web", 81));
    let mut hub = TestHub::start(&cloud, &[]).await;
    restored_unseen(&mut cloud, &mut hub, backup, write_both_again).await;
    let listed = list_of_generation(&hub, 1).await;
    assert_eq!(listed.names(), ["kept", "web"]);
}

/// The same while the hub runs, and too fast for a failed probe: the proof itself opens the new connection.
#[tokio::test]
async fn restored_cloud_that_was_away_for_a_moment_is_asked_for_its_past() {
    let mut cloud = Cloud::start().await;
    cloud.put("services", service("web", 80));
    cloud.put("services", service("kept", 1));
    let backup = cloud.backup();
    cloud.put("services", service("kept", 2));
    cloud.put("services", service("web", 81));
    let hub = TestHub::start(&cloud, &[]).await;
    hub.wait_until_complete().await;
    cloud.go_away().await;
    cloud.restore(backup);
    write_both_again(&cloud);
    cloud.come_back().await;
    let listed = list_of_generation(&hub, 1).await;
    assert_eq!(listed.names(), ["kept", "web"]);
}

/// The hub turns to the cloud twice, over the connection of its probes. The first proof covers its replicas, so the
/// second one reads nothing of the past.
#[tokio::test]
async fn past_is_not_asked_for_over_a_connection_as_old_as_the_last_proof() {
    let mut pool = Pool::start_fed().await;
    let hub = pool.hub("n1", &["--leader-elect=false"]).await;
    hub.wait_until_complete().await;
    // Each source counts once it has sent something.
    let told_by = async |pool: &Pool, switches: u64, port: u16| {
        let put = pool.cloud.put("services", service("web", port));
        hub.until("the hub must follow the other source", |state| {
            let services = &state["collections"]["services"];
            services["sourceSwitches"] == switches && services["rv"] == put["metadata"]["resourceVersion"]
        })
        .await;
    };
    let at_cloud = |pool: &Pool, path: &str| {
        let seen = pool.cloud.seen(path).into_iter();
        seen.filter(|seen| seen.at == pool.cloud.addr()).count()
    };
    let past = "/api/v1/namespaces/shop/services";
    told_by(&pool, 0, 80).await;
    pool.coordinator.go_away().await;
    told_by(&pool, 1, 81).await;
    assert!(at_cloud(&pool, WEB) > 0, "it was proved");
    pool.coordinator.come_back().await;
    hub.until("the coordinator must get a request", |state| {
        state["collections"]["services"]["source"] == "coordinator"
    })
    .await;
    told_by(&pool, 2, 82).await;
    let before = (at_cloud(&pool, WEB), at_cloud(&pool, past));
    pool.coordinator.go_away().await;
    told_by(&pool, 3, 83).await;
    assert!(at_cloud(&pool, WEB) > before.0, "it was proved again");
    assert_eq!(at_cloud(&pool, past), before.1);
}

/// Nothing that the proof checks shows the restored cloud. The first event that contradicts a replica does.
#[tokio::test]
async fn restored_cloud_is_noticed_by_an_event_that_cannot_follow() {
    let mut cloud = Cloud::start().await;
    cloud.put("services", service("kept", 1));
    let backup = cloud.backup();
    cloud.put("services", service("stale", 80));
    for number in 0..3 {
        cloud.put("services", service(&format!("newer{number}"), 1));
    }
    let mut hub = TestHub::start(&cloud, &[]).await;
    restored_unseen(&mut cloud, &mut hub, backup, |cloud| {
        // The newest objects came again before our `C`, under the same numbers.
        pass_numbers(cloud, 1);
        for number in 0..3 {
            cloud.put("services", service(&format!("newer{number}"), 1));
        }
    })
    .await;
    hub.wait_until_complete().await;
    let believed = hub.kube_proxy().get(SERVICES).await;
    assert_eq!(
        (believed.names().len(), generation(&believed)),
        (5, None),
        "not detectable yet"
    );
    cloud.put(
        "services",
        json!({"metadata": {"namespace": "shop", "name": "kept", "uid": "another"}}),
    );
    let listed = list_of_generation(&hub, 1).await;
    assert_eq!(
        listed.names(),
        ["kept", "newer0", "newer1", "newer2"],
        "nothing stale remains"
    );
}

/// A coordinator in the role of the cloud keeps renewals in memory only. After a kill it has an older renewTime under a
/// later version.
#[tokio::test]
async fn cloud_that_lost_renewals_is_the_same() {
    let mut cloud = Cloud::start().await;
    cloud.put("services", service("web", 80));
    let told = Arc::new(Mutex::new((5, "2026-01-01T00:00:09.000000Z")));
    let says = told.clone();
    cloud.on(LEASE, move |_| {
        let (version, renewed) = *says.lock();
        let lease =
            json!({"metadata": {"name": "n1", "resourceVersion": version.to_string()}, "spec": {"renewTime": renewed}});
        async move { answer_json(StatusCode::OK, lease.to_string()) }
    });
    let hub = TestHub::start(&cloud, &[]).await;
    hub.wait_until_complete().await;
    let beat = r#"{"metadata":{"name":"n1"},"spec":{"renewTime":"2026-01-01T00:00:09.000000Z"}}"#;
    hub.kubelet().put(LEASE, "application/json", beat).await.expect(200);
    let before = lists(&cloud);
    cloud.go_away().await;
    *told.lock() = (9, "2026-01-01T00:00:01.000000Z");
    cloud.put("services", service("meanwhile", 1));
    cloud.come_back().await;
    eventually("the hub must follow", async || {
        let listed = hub.kube_proxy().get(SERVICES).await;
        (listed.names() == ["meanwhile", "web"]).then_some(())
    })
    .await;
    assert_eq!(lists(&cloud), before, "nothing is fetched again");
}

/// An object deleted in the lost part of the history exists again.
#[tokio::test]
async fn restored_cloud_is_noticed_by_what_was_deleted() {
    let mut cloud = Cloud::start().await;
    cloud.put("services", service("kept", 1));
    cloud.put("services", service("web", 80));
    let mut hub = TestHub::start(&cloud, &[]).await;
    let backup = cloud.backup();
    cloud.delete("services", "shop", "web");
    eventually("the hub must have heard", async || {
        let listed = hub.kube_proxy().get(SERVICES).await;
        (listed.names() == ["kept"]).then_some(())
    })
    .await;
    restored_unseen(&mut cloud, &mut hub, backup, |cloud| pass_numbers(cloud, 9)).await;
    assert_eq!(list_of_generation(&hub, 1).await.names(), ["kept", "web"]);
}

#[tokio::test]
async fn cloud_that_was_only_away_is_resumed() {
    let mut cloud = Cloud::start().await;
    cloud.put("services", service("web", 80));
    let hub = TestHub::start(&cloud, &[]).await;
    let mut client = hub
        .kube_proxy()
        .watch(&format!("{SERVICES}?watch=1&resourceVersion={}", cloud.version()))
        .await;
    let before = lists(&cloud);
    cloud.go_away().await;
    cloud.put("services", service("meanwhile", 1));
    cloud.come_back().await;
    assert_eq!(client.told().await, "ADDED meanwhile");
    assert_eq!(lists(&cloud), before, "nothing is fetched again");
}

/// The renewal would overwrite the lease's version, which is evidence of a restore from a backup.
#[tokio::test]
async fn renewal_waits_for_the_proof() {
    let cloud = Cloud::start().await;
    cloud.put("services", service("web", 80));
    // Time of the first answer to the proof, and of a renewal.
    let (answered, renewed) = (Arc::new(OnceLock::new()), Arc::new(OnceLock::new()));
    let (has_come, note) = (Arc::new(Notify::new()), answered.clone());
    let come = has_come.clone();
    cloud.on(IDENTITY, move |_| {
        let (come, note) = (come.clone(), note.clone());
        async move {
            // Enough time for a renewal that does not wait.
            let _ = tokio::time::timeout(Duration::from_secs(2), come.notified()).await;
            note.get_or_init(Instant::now);
            answer_json(http::StatusCode::NOT_FOUND, "{}")
        }
    });
    let note = renewed.clone();
    cloud.on(LEASE, move |request| {
        if request.method() == http::Method::PUT {
            note.get_or_init(Instant::now);
            has_come.notify_one();
        }
        let lease =
            r#"{"metadata":{"name":"n1","resourceVersion":"1"},"spec":{"renewTime":"2026-01-01T00:00:00.000000Z"}}"#;
        async move { answer_json(http::StatusCode::OK, lease) }
    });
    let hub = TestHub::start_at_once(&cloud, &[]).await;
    let (beat, sent) = (
        r#"{"metadata":{"name":"n1"},"spec":{"renewTime":"2026-01-01T00:00:01.000000Z"}}"#,
        Instant::now(),
    );
    hub.kubelet().put(LEASE, "application/json", beat).await.expect(200);
    let renewed = *renewed.get().expect("the renewal must go");
    let is_after_the_proof = answered.get().is_some_and(|answered| *answered <= renewed);
    assert!(
        is_after_the_proof || renewed - sent >= Duration::from_secs(3),
        "it must wait for the proof, for some seconds at the most"
    );
}

/// Objects of the cloud's streams may be of another history, too.
#[tokio::test]
async fn renewals_and_streams_wait_for_the_proof() {
    let mut cloud = Cloud::start().await;
    cloud.put("services", service("web", 80));
    let hub = TestHub::start(&cloud, &[]).await;
    cloud.go_away().await;
    hub.until("the hub must know", |state| state["cloudReachable"] == false)
        .await;
    let (asked, early) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
    let sent = CancellationToken::new();
    let renewals = asked.clone();
    cloud.on(LEASE, move |request| {
        let is_put = request.method() == http::Method::PUT;
        renewals.fetch_add(usize::from(is_put), Ordering::SeqCst);
        let lease =
            r#"{"metadata":{"name":"n1","resourceVersion":"1"},"spec":{"renewTime":"2026-01-01T00:00:00.000000Z"}}"#;
        async move { answer_json(StatusCode::OK, lease) }
    });
    let streams = asked.clone();
    cloud.on("/api/v1/endpoints", move |_| {
        streams.fetch_add(1, Ordering::SeqCst);
        async move { answer_json(StatusCode::NOT_FOUND, r#"{"kind":"Status","code":404}"#) }
    });
    let (checks, before, is_sent) = (early.clone(), asked.clone(), sent.clone());
    cloud.on(WEB, move |_| {
        let (checks, before, is_sent) = (checks.clone(), before.clone(), is_sent.clone());
        async move {
            let asked_at = Instant::now();
            let _ = tokio::time::timeout(Duration::from_secs(1), is_sent.cancelled()).await;
            tokio::time::sleep(Duration::from_millis(300)).await;
            // The hub gives up this proof after 3 s: then the machine was too busy for a result.
            if asked_at.elapsed() < Duration::from_secs(2) {
                checks.lock().push(before.load(Ordering::SeqCst));
            }
            answer_json(StatusCode::NOT_FOUND, r#"{"kind":"Status","code":404}"#)
        }
    });
    cloud.come_back().await;
    hub.until("the hub must know", |state| state["cloudReachable"] == true)
        .await;
    let beat = r#"{"metadata":{"name":"n1"},"spec":{"renewTime":"2026-01-01T00:00:01.000000Z"}}"#;
    sent.cancel();
    hub.kubelet().put(LEASE, "application/json", beat).await.expect(200);
    eventually("both must go on after the proof", async || {
        (asked.load(Ordering::SeqCst) > 1).then_some(())
    })
    .await;
    let first = early.lock().first().copied();
    assert_eq!(first.unwrap_or(0), 0, "a request came before the proof");
}

/// Two histories may have one number for any reason: the coordinator's is not the cloud's, and only a new number helps.
#[tokio::test]
async fn snapshot_that_contradicts_the_coordinator_is_fed_under_a_new_number() {
    let pool = Pool::start().await;
    pool.cloud.put("services", service("web", 80));
    let numbers = Arc::new(Mutex::new(Vec::new()));
    let seen = numbers.clone();
    pool.coordinator.on(SNAPSHOT, move |request| {
        let seen = seen.clone();
        async move {
            let body = read_body(request.into_body(), 1 << 20).await.unwrap();
            let call: serde_json::Value = serde_json::from_slice(&body).unwrap();
            let number = call["generation"].as_u64().unwrap();
            let refused = {
                let mut seen = seen.lock();
                seen.push(number);
                seen[0] == number
            };
            match refused {
                true => answer_json(
                    StatusCode::CONFLICT,
                    r#"{"reason":"backwards","message":"shop/web went back"}"#,
                ),
                false => answer_json(StatusCode::OK, r#"{"missing":[]}"#),
            }
        }
    });
    let hub = pool.hub("n1", &[]).await;
    eventually("it must be fed under another number", async || {
        let seen = numbers.lock();
        seen.iter().any(|number| *number > seen[0]).then_some(())
    })
    .await;
    let taken = *numbers.lock().last().unwrap();
    hub.until("clients must hear of it", |state| {
        state["collections"]["services"]["generation"] == taken
    })
    .await;
}

/// Returns the list once these are in it.
async fn list_that_has(hub: &TestHub, names: &[&str]) -> Answer {
    eventually("the objects must be served", async || {
        let listed = hub.kube_proxy().get(SERVICES).await;
        (listed.code == 200 && listed.names() == names).then_some(listed)
    })
    .await
}

/// A Service in the form that a server sends.
fn told(name: &str, version: u64) -> Value {
    let metadata = json!({"namespace": "shop", "name": name, "uid": name, "resourceVersion": version.to_string()});
    json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {}})
}

fn list_of(version: u64, items: &[Value]) -> String {
    let metadata = json!({"resourceVersion": version.to_string()});
    json!({"kind": "ServiceList", "apiVersion": "v1", "metadata": metadata, "items": items}).to_string()
}

fn line(kind: &str, object: &Value) -> Result<Bytes, Infallible> {
    Ok(Bytes::from(format!("{}\n", json!({"type": kind, "object": object}))))
}

fn bookmark(version: u64) -> Result<Bytes, Infallible> {
    let metadata = json!({"resourceVersion": version.to_string()});
    line(
        "BOOKMARK",
        &json!({"kind": "Service", "apiVersion": "v1", "metadata": metadata}),
    )
}

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// A hub is elected after the cloud was restored from a backup. It lists the cloud while its stream of the coordinator,
/// which has the lost history, is still up. That stream ends when the cloud's watch has confirmed.
#[tokio::test]
async fn what_the_coordinator_says_of_the_lost_history_does_not_count_in_the_new_one() {
    let mut pool = Pool::start().await;
    let web = pool.cloud.version().parse::<u64>().unwrap() + 1;
    for at in [&pool.cloud, &pool.coordinator] {
        at.put("services", service("web", 80));
    }
    let backup = pool.cloud.backup();
    for at in [&pool.cloud, &pool.coordinator] {
        at.put("services", service("late", 90));
        at.put("services", service("late", 91));
    }
    let old: u64 = pool.coordinator.version().parse().unwrap();
    // The coordinator reports its position once more while the hub requests a watch of the cloud. The watch waits for
    // the effect.
    let (say, has_ended) = (Arc::new(Semaphore::new(0)), CancellationToken::new());
    let (said, ended) = (say.clone(), has_ended.clone());
    pool.coordinator.on(SERVICES, move |request| {
        let (said, ended) = (said.clone(), ended.clone());
        async move {
            if !request.uri().query().unwrap_or_default().contains("watch=1") {
                return answer_json(StatusCode::OK, list_of(old, &[told("web", web), told("late", old)]));
            }
            let again = stream::once(async move {
                said.acquire().await.unwrap().forget();
                bookmark(old)
            });
            let rest = stream::once(async move {
                let _ended = ended.drop_guard();
                std::future::pending().await
            });
            let frames = stream::iter([bookmark(old)]).chain(again).chain(rest);
            respond(StatusCode::OK, JSON, body_of(frames))
        }
    });
    pool.give_lease_to("n2_x");
    let hub = pool.hub("n1", &[]).await;
    hub.wait_until_complete().await;
    list_that_has(&hub, &["late", "web"]).await;

    pool.cloud.go_away().await;
    pool.cloud.restore(backup);
    pool.cloud.on(SERVICES, move |request| {
        let (say, has_ended) = (say.clone(), has_ended.clone());
        async move {
            if !request.uri().query().unwrap_or_default().contains("watch=1") {
                return answer_json(StatusCode::OK, list_of(web, &[told("web", web)]));
            }
            say.add_permits(1);
            // A hub that continues with the coordinator does so until it has this answer.
            let _ = tokio::time::timeout(Duration::from_secs(5), has_ended.cancelled()).await;
            let frames = stream::iter([line("ADDED", &told("new", web + 1)), bookmark(web + 1)]);
            respond(StatusCode::OK, JSON, body_of(frames.chain(stream::pending())))
        }
    });
    pool.cloud.come_back().await;
    pool.give_lease_to("");
    pool.until_held_by("n1").await;
    hub.until("the cloud must be followed", |state| {
        state["collections"]["services"]["source"] == "cloud"
    })
    .await;
    let listed = list_that_has(&hub, &["new", "web"]).await;
    assert_eq!(generation(&listed), Some(1), "another one would hide what was left out");
}

/// Makes the coordinator report the services at `position` under `generation`, and accept the feed.
fn say_services(pool: &Pool, generation: u64, position: u64, complete: bool) {
    let services =
        json!({"generation": generation, "appliedUpTo": position.to_string(), "complete": complete, "fresh": true});
    let state = json!({"store": "another", "versions": [1], "collections": {"services": services}}).to_string();
    pool.coordinator.set_store("another");
    pool.coordinator.on("/yurt/v1/feed", move |_| {
        let state = state.clone();
        async move { answer_json(StatusCode::OK, state) }
    });
}

/// The leader's replica may be a copy of the voided data: it lists the cloud, and feeds that list.
#[tokio::test]
async fn voided_collection_is_listed_in_the_cloud_and_fed_under_a_later_generation() {
    let pool = Pool::start().await;
    pool.cloud.put("services", service("web", 80));
    let hub = pool.leader("n1").await;
    let (before, fed_before) = (lists(&pool.cloud), pool.fed("services/snapshot").len());
    let void = 8_000_001;
    say_services(&pool, void, 0, false);
    // The leader learns of it with its next call.
    pool.coordinator.on("/yurt/v1/feed/services/events", |_| async {
        answer_json(StatusCode::CONFLICT, r#"{"reason":"generation","generation":8000001}"#)
    });
    pool.cloud.put("services", service("db", 81));
    let fed = eventually("it must be fed from nothing", async || {
        pool.fed("services/snapshot").get(fed_before).cloned()
    })
    .await;
    assert!(fed["generation"].as_u64().unwrap() > void, "{fed}");
    assert_eq!(fed["index"].as_array().unwrap().len(), 2);
    assert_eq!(lists(&pool.cloud), before + 1, "one list, of that collection");
    let state = hub.state().await;
    assert_eq!(
        state["collections"]["endpoints"]["generation"], 0,
        "no other one is touched"
    );
}

/// A former leader used the last number there is: hubs keep their data and report the reason.
#[tokio::test]
async fn last_number_there_is_is_neither_taken_nor_fed_over() {
    let pool = Pool::start().await;
    pool.cloud.put("services", service("web", 80));
    let hub = pool.leader("n1").await;
    let fed_before = pool.fed("services/snapshot").len();
    say_services(&pool, u64::MAX, (1 << 62) - 1, true);
    pool.coordinator.on("/yurt/v1/feed/services/events", |_| async {
        answer_json(StatusCode::CONFLICT, r#"{"reason":"gap"}"#)
    });
    pool.cloud.put("services", service("db", 81));
    let state = hub
        .until("the leader must say what is to be done", |state| {
            let why = &state["troubles"]["feed of services"]["why"];
            why.as_str()
                .is_some_and(|why| why.contains("DELETE /yurt/v1/feed/services"))
        })
        .await;
    assert_eq!(state["collections"]["services"]["generation"], 0);
    assert_eq!(pool.fed("services/snapshot").len(), fed_before);
    assert_eq!(hub.kube_proxy().get(SERVICES).await.names(), ["db", "web"]);
}
