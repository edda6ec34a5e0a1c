//! The hub's replicas answer only requests that the cloud would allow the caller (I13).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use clap::Parser as _;
use futures_util::FutureExt as _;
use http::StatusCode;
use serde_json::json;
use tokio::sync::watch;
use yurt_apimachinery::RequestInfo;
use yurt_hub_client::config::Flags;
use yurt_hub_client::health::CloudReach;
use yurt_hub_client::proxy::authorize::decision::{ALLOWED_FOR, DENIED_FOR, RENEWED_FROM};
use yurt_hub_client::proxy::authorize::failed::ASKED_AGAIN_AFTER;
use yurt_hub_client::proxy::authorize::{Authorizer, Means};
use yurt_hub_client::proxy::caller::{Caller, Credential, Origin};
use yurt_hub_client::upstream::Upstreams;
use yurt_runtime::http::json as answer_json;
use yurt_runtime::{Clock, TaskGroup};
use yurt_test_support::{TestDir, eventually};

use super::caching::{MAPS, list, named, until_cloud_is, until_live};
use super::cloud::{Cloud, REVIEWS, SELF_REVIEWS};
use super::harness::{NODE, NODE_USER, TestHub};

const SERVICES: &str = "/api/v1/services";
const SHOP: &str = "/api/v1/namespaces/shop/services";

async fn cloud_with_a_service() -> Cloud {
    let cloud = Cloud::start().await;
    cloud.put(
        "services",
        json!({"metadata": {"namespace": "shop", "name": "web"}, "spec": {}}),
    );
    cloud
}

#[tokio::test]
async fn allowed_token_reads_the_copy() {
    let cloud = cloud_with_a_service().await;
    cloud.allow("good", true);
    let hub = TestHub::start(&cloud, &[]).await;
    let lists = || {
        let seen = cloud.seen(SERVICES);
        let watches = |query: &String| query.contains("watch");
        // The hub's own watch may still be on its way.
        seen.iter().filter(|seen| !seen.query.iter().any(watches)).count()
    };
    let before = lists();
    assert_eq!(hub.bearer("pod/v1", "good").get(SERVICES).await.names(), ["web"]);
    assert_eq!(lists(), before, "the copy answers, not the cloud");
    let review = &cloud.reviews(SELF_REVIEWS)[0];
    let attributes = json!({"verb": "list", "group": "", "version": "v1", "resource": "services"});
    assert_eq!(review["spec"], json!({"resourceAttributes": attributes}));
    let asked = &cloud.seen(SELF_REVIEWS)[0];
    assert_eq!(asked.headers["authorization"], "Bearer good");
    assert_eq!(asked.user, None, "the question is the bearer's own, not the node's");
}

#[tokio::test]
async fn question_names_verb_namespace_and_object() {
    let mut cloud = cloud_with_a_service().await;
    cloud.allow("good", true);
    let hub = TestHub::start(&cloud, &[]).await;
    let pod = hub.bearer("pod/v1", "good");
    pod.watch(SHOP).await;
    let asked = cloud.reviews(SELF_REVIEWS).pop().unwrap()["spec"]["resourceAttributes"].clone();
    assert_eq!((&asked["verb"], &asked["namespace"]), (&json!("watch"), &json!("shop")));
    // A kubelet's get is filtered, so the replica answers it even while the cloud is reachable.
    let named = hub.bearer("kubelet/v1", "good");
    named.get(&format!("{SHOP}/web")).await.expect(200);
    let asked = cloud.reviews(SELF_REVIEWS).pop().unwrap()["spec"]["resourceAttributes"].clone();
    assert_eq!((&asked["verb"], &asked["name"]), (&json!("get"), &json!("web")));
    cloud.go_away().await;
    let refused = pod.get(SHOP).await;
    assert_eq!(refused.code, 429, "a yes to watch is no yes to list");
}

#[tokio::test]
async fn denied_token_gets_403_and_an_unknown_one_401() {
    let cloud = cloud_with_a_service().await;
    cloud.allow("bad", false);
    let hub = TestHub::start(&cloud, &[]).await;
    for path in [SERVICES, &format!("{SERVICES}?watch=1"), SHOP] {
        // A second after the last 401 the hub asks the cloud again.
        let answer = async |token: &str| {
            let answer = async || Some(hub.bearer("pod/v1", token).get(path).await).filter(|answer| answer.code != 429);
            eventually("the cloud must be asked again", answer).await
        };
        let denied = answer("bad").await;
        assert_eq!(
            (denied.code, denied.json()["reason"].as_str()),
            (403, Some("Forbidden")),
            "{path}"
        );
        let unknown = answer("expired").await;
        assert_eq!(
            (unknown.code, unknown.json()["reason"].as_str()),
            (401, Some("Unauthorized")),
            "{path}"
        );
    }
    // A caller without rights does not become the node by naming itself a component.
    hub.bearer("kube-proxy/v1", "bad").get(SERVICES).await.expect(403);
}

#[tokio::test]
async fn cloud_is_asked_once_per_question() {
    let cloud = cloud_with_a_service().await;
    cloud.allow("good", true);
    cloud.allow("bad", false);
    let hub = TestHub::start(&cloud, &[]).await;
    for (token, code) in [("good", 200), ("bad", 403)] {
        let before = cloud.reviews(SELF_REVIEWS).len();
        for _ in 0..3 {
            hub.bearer("pod/v1", token).get(SERVICES).await.expect(code);
        }
        assert_eq!(cloud.reviews(SELF_REVIEWS).len() - before, 1, "{token}");
    }
    // Another token needs an answer of its own.
    hub.bearer("pod/v1", "other").get(SERVICES).await.expect(401);
    // A credential unknown to the cloud causes no repeated reviews, under any token.
    let before = cloud.reviews(SELF_REVIEWS).len();
    let mut asked = 0;
    for number in 0..20 {
        let answer = hub.bearer("pod/v1", &format!("made-up-{number}")).get(SERVICES).await;
        asked += usize::from(answer.code == 401);
        assert!([401, 429].contains(&answer.code), "{answer:?}");
    }
    assert_eq!(cloud.reviews(SELF_REVIEWS).len() - before, asked, "429 asks nothing");
    hub.bearer("pod/v1", "good").get(SERVICES).await.expect(200);
}

#[tokio::test]
async fn offline_only_what_was_allowed_before_is_answered() {
    let mut cloud = cloud_with_a_service().await;
    cloud.allow("asked", true);
    cloud.allow("never-asked", true);
    let hub = TestHub::start(&cloud, &[]).await;
    hub.bearer("pod/v1", "asked").get(SERVICES).await.expect(200);
    cloud.go_away().await;
    assert_eq!(hub.bearer("pod/v1", "asked").get(SERVICES).await.names(), ["web"]);
    // A client that gets 403 relists repeatedly; on 429 it waits at its position.
    let refused = hub.bearer("pod/v1", "never-asked").get(SERVICES).await;
    assert_eq!((refused.code, refused.header("retry-after")), (429, Some("5")));
    assert_eq!(
        hub.component("coredns").get(SERVICES).await.names(),
        ["web"],
        "the node's own need not be asked about"
    );
    cloud.come_back().await;
    eventually("the cloud must be asked again", async || {
        let answer = hub.bearer("pod/v1", "never-asked").get(SERVICES).await;
        (answer.code == 200).then_some(())
    })
    .await;
}

/// A get of pool data, and reads by a component that is not cached: the cloud answers them, and no review comes before.
#[tokio::test]
async fn read_that_the_cloud_answered_stays_allowed_without_it_and_ends_with_its_refusal() {
    let mut cloud = cloud_with_a_service().await;
    cloud.put("configmaps", named("settings"));
    let tokens = ["good", "selecting", "revoked", "gone"];
    tokens.iter().for_each(|token| cloud.allow(token, true));
    let hub = TestHub::start(&cloud, &[]).await;
    let selected = format!("{MAPS}?labelSelector=a");
    for selection in [MAPS, &selected] {
        list(&hub.component("coredns"), selection).await;
        until_live(&hub, selection).await;
    }
    let [good, selecting, revoked, gone] = tokens.map(|token| hub.bearer("app/1.0", token));
    let (service, watched) = (format!("{SHOP}/web"), format!("{MAPS}?watch=1"));
    let reads = [&service, MAPS];
    for path in reads {
        good.get(path).await.expect(200);
        revoked.get(path).await.expect(200);
        gone.get(path).await.expect(200);
    }
    good.watch(&watched).await;
    selecting.get(&selected).await.expect(200);
    cloud.allow("revoked", false);
    for path in reads {
        revoked.get(path).await.expect(403);
    }
    cloud.refuse_token("gone");
    gone.get(&service).await.expect(401);
    assert_eq!(cloud.reviews(SELF_REVIEWS).len(), 0);
    cloud.go_away().await;
    until_cloud_is(&hub, false).await;
    for path in reads {
        assert_eq!(
            gone.get(path).await.code,
            429,
            "the cloud does not know it any more: {path}"
        );
        good.get(path).await.expect(200);
        revoked.get(path).await.expect(403);
    }
    good.watch(&watched).await;
    for other in [SHOP, &format!("{SHOP}/db"), &format!("{MAPS}/settings")] {
        assert_eq!(
            good.get(other).await.code,
            429,
            "the cloud answered no such read: {other}"
        );
    }
    for path in [MAPS, &selected] {
        let unproved = selecting.get(path).await;
        assert_eq!(unproved.code, 429, "a part is not the whole: {path}");
    }
}

/// The selection is no proof of the right to the whole, and its refusal is none any more.
#[tokio::test]
async fn refusal_of_a_selection_counts_until_the_cloud_answers_the_selection() {
    let mut cloud = cloud_with_a_service().await;
    cloud.put("configmaps", named("settings"));
    let hub = TestHub::start(&cloud, &[]).await;
    list(&hub.component("coredns"), MAPS).await;
    until_live(&hub, MAPS).await;
    let selected = format!("{MAPS}?labelSelector=a");
    for token in ["refused", "answered"] {
        let pod = hub.bearer("app/1.0", token);
        cloud.allow(token, true);
        pod.get(MAPS).await.expect(200);
        cloud.allow(token, false);
        pod.get(&selected).await.expect(403);
    }
    cloud.allow("answered", true);
    hub.bearer("app/1.0", "answered").get(&selected).await.expect(200);
    cloud.go_away().await;
    until_cloud_is(&hub, false).await;
    for (token, code) in [("refused", 403), ("answered", 429)] {
        hub.bearer("app/1.0", token).get(MAPS).await.expect(code);
    }
}

#[tokio::test]
async fn answers_are_good_after_a_restart_without_the_cloud() {
    let mut cloud = cloud_with_a_service().await;
    cloud.allow("good", true);
    cloud.allow("bad", false);
    let mut hub = TestHub::start(&cloud, &[]).await;
    for (token, code) in [("good", 200), ("bad", 403), ("unknown", 401)] {
        hub.bearer("pod/v1", token).get(SERVICES).await.expect(code);
    }
    cloud.go_away().await;
    hub.restart().await;
    assert_eq!(hub.bearer("pod/v1", "good").get(SERVICES).await.names(), ["web"]);
    for (token, code) in [("bad", 403), ("unknown", 429), ("never-asked", 429)] {
        hub.bearer("pod/v1", token).get(SERVICES).await.expect(code);
    }
    let file = std::fs::read(hub.folder().path().join("cache/authorizations")).unwrap();
    assert!(!String::from_utf8_lossy(&file).contains("good"));
}

#[tokio::test]
async fn certificate_is_asked_about_with_the_nodes_rights() {
    let cloud = cloud_with_a_service().await;
    cloud.allow("jane", true);
    cloud.allow("joe", false);
    let hub = TestHub::start(&cloud, &[]).await;
    assert_eq!(
        hub.with_certificate(&cloud, "jane", &["dev"])
            .get(SERVICES)
            .await
            .names(),
        ["web"]
    );
    let spec = cloud.reviews(REVIEWS)[0]["spec"].clone();
    assert_eq!(
        (&spec["user"], &spec["groups"]),
        (&json!("jane"), &json!(["dev", "system:authenticated"]))
    );
    assert_eq!(cloud.seen(REVIEWS)[0].user.as_deref(), Some(NODE_USER));
    hub.with_certificate(&cloud, "joe", &[]).get(SERVICES).await.expect(403);
    // Other groups may have other rights.
    let asked = cloud.reviews(REVIEWS).len();
    hub.with_certificate(&cloud, "jane", &["dev", "ops"])
        .get(SERVICES)
        .await
        .expect(200);
    let spec = cloud.reviews(REVIEWS)[asked..][0]["spec"].clone();
    assert_eq!(spec["groups"], json!(["dev", "ops", "system:authenticated"]));
}

#[tokio::test]
async fn right_to_watch_one_object_shows_no_other() {
    let cloud = cloud_with_a_service().await;
    cloud.put(
        "services",
        json!({"metadata": {"namespace": "shop", "name": "db"}, "spec": {}}),
    );
    cloud.put(
        "services",
        json!({"metadata": {"namespace": "shop", "name": "zz"}, "spec": {}}),
    );
    cloud.allow("good", true);
    let hub = TestHub::start(&cloud, &[]).await;
    let legacy = "/api/v1/watch/namespaces/shop/services/web";
    for path in [legacy, &format!("{SHOP}?fieldSelector=metadata.name%3Dweb")] {
        let mut watch = hub.bearer("pod/v1", "good").watch(path).await;
        let asked = cloud.reviews(SELF_REVIEWS)[0]["spec"]["resourceAttributes"].clone();
        assert_eq!(
            (&asked["verb"], &asked["name"]),
            (&json!("watch"), &json!("web")),
            "{path}"
        );
        assert_eq!(watch.told().await, "ADDED web", "{path}");
        cloud.put(
            "services",
            json!({"metadata": {"namespace": "shop", "name": "db"}, "spec": {}}),
        );
        cloud.put(
            "services",
            json!({"metadata": {"namespace": "shop", "name": "web"}, "spec": {}}),
        );
        assert_eq!(watch.told().await, "MODIFIED web", "{path}");
    }
}

/// An authorizer with a clock of its own, to let answers expire.
struct Aging {
    authorizer: Authorizer,
    clock: yurt_runtime::FakeClock,
    reach: watch::Sender<CloudReach>,
    _tasks: TaskGroup,
    _folder: TestDir,
}

// === impl Aging ===

impl Aging {
    fn new(cloud: &Cloud) -> Self {
        let (folder, tasks, (clock, hands)) = (TestDir::new(), TaskGroup::new(), Clock::fake());
        let kubeconfig = cloud
            .pki()
            .write_kubeconfig(&folder, "kubelet.conf", &cloud.url(), &cloud.pki().node(NODE));
        let flags = [
            "yurthub".to_owned(),
            format!("--node-name={NODE}"),
            format!("--server-addr={}", cloud.url()),
            "--bootstrap-mode=kubeletcertificate".to_owned(),
            format!("--kubeconfig={}", kubeconfig.display()),
        ];
        let config = Flags::try_parse_from(flags).unwrap().check().unwrap();
        let upstreams = Upstreams::new(&config, &tasks).unwrap();
        let reach = watch::Sender::new(CloudReach { failed_probes: Some(0) });
        let means = Means {
            reviews: Arc::new(upstreams.cloud),
            accounts: Arc::new(|_| None),
            refused: Arc::new(|_| ()),
            reach: reach.subscribe(),
            wake: Arc::default(),
            clock,
            tasks: tasks.clone(),
        };
        Self {
            authorizer: Authorizer::open(means, folder.path().join("authorizations")),
            clock: hands,
            reach,
            _tasks: tasks,
            _folder: folder,
        }
    }

    fn probed(&self, failed_probes: Option<u32>) {
        self.reach.send_replace(CloudReach { failed_probes });
    }

    /// Returns the code of the refusal, or 200.
    async fn check(&self, token: &str) -> u16 {
        let caller = Caller {
            component: "pod".to_owned(),
            credential: Credential::Token(token.to_owned()),
            origin: Origin {
                address: [10, 1, 0, 1].into(),
                uid: None,
            },
        };
        let info = RequestInfo::parse("GET", SERVICES, None).unwrap();
        self.authorizer
            .check(&caller, &info)
            .await
            .map_or_else(|status| status.code(), |()| 200)
    }
}

#[tokio::test]
async fn answer_is_used_past_its_time_only_while_the_cloud_is_away() {
    let mut cloud = Cloud::start().await;
    cloud.allow("good", true);
    let aging = Aging::new(&cloud);
    assert_eq!(aging.check("good").await, 200);
    cloud.allow("good", false);
    cloud.go_away().await;
    aging.probed(Some(1));
    aging.clock.advance(ALLOWED_FOR);
    assert_eq!(aging.check("good").await, 200, "better an old answer than none");
    cloud.come_back().await;
    aging.probed(Some(0));
    assert_eq!(aging.check("good").await, 403, "and no longer than that");
    cloud.allow("good", true);
    aging.clock.advance(DENIED_FOR);
    assert_eq!(aging.check("good").await, 200);
}

#[tokio::test]
async fn cloud_that_cannot_decide_is_as_good_as_away() {
    let cloud = Cloud::start().await;
    cloud.allow("good", true);
    let aging = Aging::new(&cloud);
    assert_eq!(aging.check("good").await, 200);
    aging.clock.advance(ALLOWED_FOR);
    cloud.on(SELF_REVIEWS, async |_| {
        answer_json(StatusCode::INTERNAL_SERVER_ERROR, "{}")
    });
    assert_eq!(aging.check("good").await, 200);
    assert_eq!(aging.check("never-asked").await, 429);
    cloud.off(SELF_REVIEWS);
    aging.clock.advance(ASKED_AGAIN_AFTER);
    cloud.on(SELF_REVIEWS, async |_| {
        answer_json(StatusCode::CREATED, r#"{"status":{}}"#)
    });
    assert_eq!(aging.check("good").await, 403, "no word of allowed is a no");
}

/// kube-apiserver answers a request with 500 if an authorizer fails and no other one allows it.
#[tokio::test]
async fn review_that_is_refused_or_fails_takes_no_right_away() {
    let cloud = Cloud::start().await;
    cloud.allow("good", true);
    let aging = Aging::new(&cloud);
    assert_eq!(aging.check("good").await, 200);
    for (code, body) in [
        (StatusCode::FORBIDDEN, r#"{"kind":"Status","code":403}"#),
        (
            StatusCode::CREATED,
            r#"{"status":{"allowed":false,"evaluationError":"the webhook timed out"}}"#,
        ),
    ] {
        cloud.on(SELF_REVIEWS, move |_| async move { answer_json(code, body) });
        aging.probed(Some(0));
        aging.clock.advance(ALLOWED_FOR);
        assert_eq!(
            aging.check("good").await,
            429,
            "the cloud is there, and does not allow it any more"
        );
        aging.probed(Some(1));
        assert_eq!(aging.check("good").await, 200, "better an old answer than none");
    }
}

/// The link drops all packets. A known answer costs no wait, even before the hub detects the
/// outage.
#[tokio::test]
async fn known_yes_does_not_wait_for_a_cloud_that_accepts_and_never_answers() {
    let cloud = Cloud::start().await;
    cloud.allow("good", true);
    let aging = Aging::new(&cloud);
    assert_eq!(aging.check("good").await, 200);
    let arrived = Arc::new(AtomicUsize::new(0));
    let counted = arrived.clone();
    cloud.on(SELF_REVIEWS, move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        std::future::pending()
    });
    aging.clock.advance(RENEWED_FROM);
    for _ in 0..20 {
        let answer = aging.check("good").now_or_never();
        assert_eq!(answer, Some(200), "immediately, without waiting");
        aging.clock.advance(Duration::from_secs(1));
    }
    eventually("the cloud must be asked behind the answers", async || {
        (arrived.load(Ordering::Relaxed) > 0).then_some(())
    })
    .await;
    assert_eq!(aging.check("good").now_or_never(), Some(200));
    assert_eq!(arrived.load(Ordering::Relaxed), 1, "one question at a time");
}
