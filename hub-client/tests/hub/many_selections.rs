//! A kubelet watches each Secret and ConfigMap of its pods on its own: hundreds of selections over few connections.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Method, Response, StatusCode};
use serde_json::{Value, json};
use tokio::sync::watch;
use yurt_runtime::http::json as answer_json;
use yurt_test_support::eventually;

use super::client::{Client, Watch};
use super::cloud::Cloud;
use super::harness::TestHub;
use super::pool::NODE_LEASES;
use super::relay_pool::Link;

const SECRETS: &str = "/api/v1/namespaces/shop/secrets";
const SERVICES: &str = "/api/v1/services";
/// More than one connection takes, and more than kube-apiserver accepts on one.
const MANY: usize = 300;
/// Reads of one proof: the head, and of pool data and selections three newest objects now and then, and three
/// deletions.
const PROOF_READS: usize = 19;
/// Streams that begin at the same time.
const BEGINNING_MAX: usize = 32;

fn secret(number: usize, value: &str) -> Value {
    json!({"metadata": {"namespace": "shop", "name": format!("s{number}")}, "data": {"a": value}})
}

/// A cloud with `count` Secrets.
async fn cloud_with_secrets(count: usize) -> Cloud {
    let cloud = Cloud::start().await;
    for number in 0..count {
        cloud.put("secrets", secret(number, "Yg=="));
    }
    cloud
}

fn selection(number: usize) -> String {
    format!("{SECRETS}?fieldSelector=metadata.name%3Ds{number}")
}

/// Value of the one Secret of this selection, and its resourceVersion.
async fn value(client: &Client, number: usize) -> Option<(String, String)> {
    let listed = client.get(&format!("{}&resourceVersion=0", selection(number))).await;
    let listed = (listed.code == 200).then(|| listed.json())?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Some((
        text(&listed["items"][0]["data"]["a"]),
        text(&listed["metadata"]["resourceVersion"]),
    ))
}

/// Lists and watches each Secret, as a kubelet does.
async fn watch_all(kubelet: &Client, count: usize) -> Vec<Watch> {
    let mut watches = Vec::new();
    for number in 0..count {
        let (value, version) = value(kubelet, number).await.expect("a list");
        assert_eq!(value, "Yg==", "{number}");
        let path = format!("{}&resourceVersion={version}", selection(number));
        watches.push(kubelet.watch(&path).await);
    }
    watches
}

async fn until_live(hub: &TestHub, count: usize) {
    hub.until("all selections must be followed", |state| {
        let selections = state["cache"]["selections"].as_object().unwrap().values();
        let live = selections.filter(|one| one["live"] == true && one["complete"] == true);
        live.count() == count
    })
    .await;
}

/// Renews the node's lease through the hub.
async fn renew(kubelet: &Client) {
    let lease = format!("{NODE_LEASES}/n1");
    let renewed = kubelet.put(&lease, "application/json", r#"{"spec":{}}"#).await;
    renewed.expect(200);
}

#[tokio::test]
async fn kubelet_with_more_watches_than_a_connection_takes_has_all_of_them_without_the_cloud() {
    let mut cloud = cloud_with_secrets(MANY).await;
    let lease = format!("{NODE_LEASES}/n1");
    cloud.on(&lease, async |_| answer_json(StatusCode::OK, "{}"));
    let mut hub = TestHub::start(&cloud, &[]).await;
    let kubelet = hub.kubelet();
    let mut watches = watch_all(&kubelet, MANY).await;
    until_live(&hub, MANY).await;
    renew(&kubelet).await;
    let of = |path: &str| {
        cloud
            .seen(path)
            .into_iter()
            .map(|seen| seen.peer)
            .collect::<BTreeSet<_>>()
    };
    let of_secrets = of(SECRETS);
    // Two, and those that replaced one whose cloud was too slow for the hub.
    assert!(
        (2..=4).contains(&of_secrets.len()),
        "a few for all of them: {of_secrets:?}"
    );
    for path in [lease.as_str(), SERVICES] {
        assert!(of(path).is_disjoint(&of_secrets), "{path} waits behind none of them");
    }
    cloud.put("secrets", secret(MANY - 1, "Yw=="));
    assert_eq!(watches[MANY - 1].told().await, format!("MODIFIED s{}", MANY - 1));

    cloud.go_away().await;
    drop(watches);
    hub.restart().await;
    hub.until("the loss must be noticed", |state| state["cloudReachable"] == false)
        .await;
    let kubelet = hub.kubelet();
    for number in 0..MANY {
        let expected = if number == MANY - 1 { "Yw==" } else { "Yg==" };
        let held = value(&kubelet, number).await;
        assert_eq!(held.map(|(value, _)| value).as_deref(), Some(expected), "{number}");
        kubelet.get(&format!("{SECRETS}/s{number}")).await.expect(200);
    }
}

#[tokio::test]
async fn watches_resume_a_few_at_a_time_and_no_renewal_waits_for_them() {
    const COUNT: usize = 3 * BEGINNING_MAX;
    let mut cloud = cloud_with_secrets(COUNT).await;
    cloud.on(&format!("{NODE_LEASES}/n1"), async |_| {
        answer_json(StatusCode::OK, "{}")
    });
    let hub = TestHub::start(&cloud, &[]).await;
    let _watches = watch_all(&hub.kubelet(), COUNT).await;
    until_live(&hub, COUNT).await;
    cloud.go_away().await;
    hub.until("the loss must be noticed", |state| state["cloudReachable"] == false)
        .await;
    let before = cloud.seen(SECRETS).len();
    let waiting = Arc::new(AtomicUsize::new(0));
    let (answers, held) = watch::channel(false);
    let counted = waiting.clone();
    cloud.on(SECRETS, move |_| {
        let mut held = held.clone();
        counted.fetch_add(1, Ordering::SeqCst);
        async move {
            let _ = held.wait_for(|answers| *answers).await;
            Response::new(yurt_runtime::http::stream(futures_util::stream::pending::<
                Result<bytes::Bytes, std::convert::Infallible>,
            >()))
        }
    });
    cloud.come_back().await;
    eventually("streams must resume", async || {
        (waiting.load(Ordering::SeqCst) >= BEGINNING_MAX).then_some(())
    })
    .await;
    hub.until("the return must be noticed", |state| state["cloudReachable"] == true)
        .await;
    renew(&hub.kubelet()).await;
    assert_eq!(cloud.seen(SECRETS).len() - before, BEGINNING_MAX, "the others wait");
    answers.send_replace(true);
    eventually("all must resume", async || {
        (waiting.load(Ordering::SeqCst) >= COUNT).then_some(())
    })
    .await;
    let resumed = cloud.seen(SECRETS).split_off(before);
    let is_watch = |query: &str| query.contains("watch=1");
    assert!(
        resumed
            .iter()
            .all(|seen| seen.method == Method::GET && seen.query.as_deref().is_some_and(is_watch)),
        "no list"
    );
}

/// One proof covers all selections, however many there are.
#[tokio::test]
async fn return_of_the_cloud_costs_as_many_proofs_for_hundreds_of_selections_as_for_a_few() {
    let costs = async |count: usize| {
        let mut cloud = cloud_with_secrets(count).await;
        for name in ["web", "db", "cache"] {
            cloud.put("services", json!({"metadata": {"namespace": "shop", "name": name}}));
        }
        let hub = TestHub::start(&cloud, &[]).await;
        let _watches = watch_all(&hub.kubelet(), count).await;
        until_live(&hub, count).await;
        cloud.go_away().await;
        hub.until("the loss must be noticed", |state| state["cloudReachable"] == false)
            .await;
        hub.until("no stream is left", |state| {
            let selections = state["cache"]["selections"].as_object().unwrap();
            selections.values().all(|one| one["live"] == false)
        })
        .await;
        let before = cloud.all_seen().len();
        cloud.come_back().await;
        until_live(&hub, count).await;
        let after = cloud.all_seen().split_off(before);
        after.iter().filter(|seen| seen.is_of_metadata()).count()
    };
    let (few, many) = (costs(3).await, costs(MANY).await);
    // Two connections carry the many; each one that a proof does not cover costs another.
    assert!(
        many <= few + 2 * PROOF_READS,
        "{few} reads for 3 selections, {many} for {MANY}"
    );
}

/// The first connection stays open without a byte, as behind a router that forgot it. The second one leads to the
/// restored cloud.
#[tokio::test]
async fn restored_cloud_is_noticed_for_the_streams_of_every_connection() {
    let mut cloud = cloud_with_secrets(2).await;
    let service =
        |port: u16| json!({"metadata": {"namespace": "shop", "name": "web"}, "spec": {"ports": [{"port": port}]}});
    cloud.put("services", service(80));
    let backup = cloud.backup();
    cloud.put("services", service(81));
    cloud.put("secrets", secret(0, "b2xk"));
    let link = Link::to(cloud.addr()).await;
    let hub = TestHub::start_node(&cloud, "n1", &link.url(), &[]).await;
    hub.wait_until_complete().await;
    let kubelet = hub.kubelet();
    let (held, version) = value(&kubelet, 0).await.unwrap();
    assert_eq!(held, "b2xk");
    let mut watch = kubelet
        .watch(&format!("{}&resourceVersion={version}", selection(0)))
        .await;
    until_live(&hub, 1).await;

    link.freeze();
    cloud.go_away().await;
    cloud.restore(backup);
    for number in 0..20 {
        cloud.put(
            "pods",
            json!({"metadata": {"namespace": "shop", "name": format!("p{number}")}}),
        );
    }
    cloud.come_back().await;
    link.thaw();
    // Over a new connection.
    eventually("the other Secret must be read", async || value(&kubelet, 1).await).await;
    let event = watch.next().await.expect("the stream goes on");
    assert_eq!((event.kind.as_str(), &event.object["code"]), ("ERROR", &json!(410)));
    eventually("the restored Secret must be served", async || {
        value(&kubelet, 0).await.filter(|(value, _)| value == "Yg==")
    })
    .await;
    until_live(&hub, 2).await;
}
