//! Waits of requests, on paused time.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::FutureExt as _;
use futures_util::future::join_all;
use yurt_apimachinery::ResourceVersion;
use yurt_collection::Collection;
use yurt_runtime::Clock;
use yurt_test_support::TestDir;

use super::*;
use crate::filter::FILTERS;
use crate::filter::binding::Switches;
use crate::proxy::caller::{Credential, Origin};

const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
const SERVICES: &str = "/api/v1/services";
const SERVICES_OF_SHOP: &str = "/api/v1/namespaces/shop/services";
const AGENT: &str = "system:serviceaccount:kube-system:agent";

/// Approver of a hub that has just started, without data; and its configuration.
fn approver(folder: &TestDir, has_pool: bool) -> (Approver, watch::Sender<Arc<Approval>>) {
    let (clock, _) = Clock::fake();
    let data = Arc::new(PoolData::open(folder.path(), "p", usize::MAX, clock).unwrap());
    let state = watch::Sender::new(Arc::new(Approval::new(
        &Table::new(&FILTERS, &Switches::default()),
        &HubConfig::default(),
    )));
    let trust = watch::channel(PodTrust::Given).1;
    (Approver::new(state.subscribe(), data, trust, has_pool), state)
}

fn config(data: &[(&str, &str)]) -> HubConfig {
    let data = data.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    HubConfig {
        synced: true,
        data: data.collect::<BTreeMap<_, _>>(),
        ..HubConfig::default()
    }
}

fn sync(state: &watch::Sender<Arc<Approval>>, data: &[(&str, &str)]) {
    state.send_modify(|state| *state = Arc::new(state.next(&config(data))));
}

fn get(path: &str) -> RequestInfo {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    RequestInfo::parse("GET", path, Some(query)).unwrap()
}

/// A component of the node.
fn caller(component: &str) -> Caller {
    Caller {
        component: component.to_owned(),
        credential: Credential::Node,
        origin: Origin {
            address: [127, 0, 0, 1].into(),
            uid: None,
        },
    }
}

/// A caller with this User-Agent and the token of a service account.
fn bearer(component: &str, account: &str) -> Caller {
    let claims = URL_SAFE_NO_PAD.encode(format!(r#"{{"sub":"{account}"}}"#));
    Caller {
        credential: Credential::Token(format!("e30.{claims}.c2ln")),
        ..caller(component)
    }
}

/// Code and message of a refusal, and the time that it took.
async fn refusal(approver: &Approver, caller: &Caller, path: &str) -> (u16, String, Duration) {
    let began = Instant::now();
    let refused = approver.approve(caller, &get(path)).await.err().unwrap();
    (refused.code(), refused.message().to_owned(), began.elapsed())
}

#[tokio::test(start_paused = true)]
async fn read_that_may_be_filtered_waits_for_the_configuration_and_no_other_request_does() {
    let folder = TestDir::new();
    let (approver, state) = approver(&folder, false);
    let (code, why, took) = refusal(&approver, &caller("agent"), SERVICES).await;
    assert_eq!((code, took), (503, WAIT_MAX));
    assert!(why.contains("yurt-hub-cfg"), "{why}");

    let no_filter = [
        "/apis/apps/v1/deployments",
        "/api/v1/nodes?watch=1",
        "/version",
        "/apis/apps/v1/services",
        // Their filter concerns one object.
        "/api/v1/namespaces/shop/configmaps?watch=1",
        "/api/v1/namespaces/kube-system/configmaps/coredns",
        "/api/v1/configmaps?fieldSelector=metadata.name%3Dcoredns",
    ];
    for path in no_filter {
        let approved = approver.approve(&caller("kubelet"), &get(path)).now_or_never();
        assert!(approved.unwrap().unwrap().chain.is_empty(), "{path}");
    }
    assert!(
        approver.approve(&caller(""), &get(SERVICES)).now_or_never().is_some(),
        "no component"
    );
    let (code, _, took) = refusal(&approver, &bearer("", AGENT), SERVICES).await;
    assert_eq!((code, took), (503, WAIT_MAX), "an entry may name its account");
    let write = RequestInfo::parse("POST", "/api/v1/namespaces/shop/services", None).unwrap();
    assert!(approver.approve(&caller("kubelet"), &write).now_or_never().is_some());

    let (info, agent) = (get(SERVICES), caller("agent"));
    let waiting = approver.approve(&agent, &info);
    tokio::pin!(waiting);
    assert!(waiting.as_mut().now_or_never().is_none());
    sync(&state, &[("masterservice", "agent")]);
    assert_eq!(waiting.await.unwrap().chain.names(), ["masterservice"]);
}

#[tokio::test(start_paused = true)]
async fn new_node_leads_no_pod_past_the_hub_while_its_certificate_is_awaited() {
    let folder = TestDir::new();
    let (approver, state) = approver(&folder, false);
    let trust = watch::Sender::new(PodTrust::Awaited);
    let approver = Approver {
        trust: trust.subscribe(),
        ..approver
    };
    sync(&state, &[]);
    let kubelet = caller("kubelet");
    let (code, why, took) = refusal(&approver, &kubelet, SERVICES).await;
    assert_eq!((code, took), (503, WAIT_MAX));
    assert!(why.contains("certificate"), "{why}");
    let others = approver.approve(&caller("kube-proxy"), &get(SERVICES)).now_or_never();
    assert_eq!(
        others.unwrap().unwrap().chain.names(),
        ["discardcloudservice", "nodeportisolation"],
        "they lead no pods"
    );
    for known in [PodTrust::Missing, PodTrust::Given] {
        trust.send_replace(known);
        let approved = approver.approve(&kubelet, &get(SERVICES)).now_or_never();
        assert_eq!(approved.unwrap().unwrap().chain.names(), ["masterservice"], "{known:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn streams_and_proxied_requests_wait_for_no_filter() {
    let folder = TestDir::new();
    let (approver, _state) = approver(&folder, true);
    let of_pod = |part: &str| format!("/api/v1/namespaces/shop/pods/web/{part}");
    for path in [
        of_pod("log?follow=true"),
        of_pod("exec?command=sh"),
        of_pod("attach"),
        of_pod("portforward"),
        of_pod("proxy/metrics"),
        format!("{SERVICES_OF_SHOP}/web/proxy/index.html"),
    ] {
        let approved = approver.approve(&caller("kubelet"), &get(&path)).now_or_never();
        let approved = approved.unwrap_or_else(|| panic!("{path} waits")).unwrap();
        assert!(approved.chain.is_empty() && !approved.is_filterable(), "{path}");
    }
    let (code, _, took) = refusal(&approver, &caller("kubelet"), &format!("{SERVICES_OF_SHOP}/web/status")).await;
    assert_eq!((code, took), (503, WAIT_MAX), "its answer is the object itself");
}

#[tokio::test(start_paused = true)]
async fn waiting_requests_are_bounded() {
    let folder = TestDir::new();
    let (approver, _state) = approver(&folder, false);
    let (info, agent) = (get(SERVICES), caller("agent"));
    let waiting = join_all((0..WAITING_MAX).map(|_| approver.approve(&agent, &info)));
    tokio::pin!(waiting);
    assert!(waiting.as_mut().now_or_never().is_none());
    let (code, _, took) = refusal(&approver, &caller("agent"), SERVICES).await;
    assert_eq!((code, took), (503, Duration::ZERO));
    assert!(waiting.await.iter().all(Result::is_err));
    let (_, _, took) = refusal(&approver, &caller("agent"), SERVICES).await;
    assert_eq!(took, WAIT_MAX, "the places are free again");
}

#[tokio::test(start_paused = true)]
async fn only_requests_whose_filters_need_an_input_wait_for_it() {
    let folder = TestDir::new();
    let (approver, state) = approver(&folder, true);
    sync(&state, &[]);
    let (code, why, took) = refusal(&approver, &caller("coredns"), SLICES).await;
    assert_eq!((code, took), (503, WAIT_MAX));
    assert!(why.contains("services") && why.contains("servicetopology"), "{why}");
    // Node ports depend on the name of the pool, not on its members.
    let ready = [
        ("kubelet", SERVICES),
        ("coredns", SERVICES),
        ("kube-proxy", SERVICES),
        ("agent", SLICES),
    ];
    for (component, path) in ready {
        let approved = approver.approve(&caller(component), &get(path)).now_or_never();
        assert!(approved.is_some_and(|approved| approved.is_ok()), "{component} {path}");
    }
    // Filters hide what depends on unknown members, so their absence refuses nothing.
    let services = approver.data.replicas().named("services").unwrap();
    let at = ResourceVersion(7);
    let none = |held: &mut Collection| held.restart(0, Vec::new(), at);
    services.collection().update_of(0, at, none).unwrap();
    approver.data.replicas().persist(None).await.unwrap();
    let began = Instant::now();
    let approved = approver.approve(&caller("coredns"), &get(SLICES)).await.unwrap();
    assert_eq!(approved.chain.names()[0], "servicetopology");
    assert_eq!(began.elapsed(), WAIT_MAX);
}

#[tokio::test]
async fn change_of_filters_is_another_edition_of_the_same_state() {
    let folder = TestDir::new();
    let (approver, state) = approver(&folder, false);
    sync(&state, &[]);
    let (configs, config_changes) = watch::channel(Arc::new(config(&[])));
    let token = CancellationToken::new();
    let following = follow(state.clone(), config_changes, token.clone());
    let test = async {
        let info = get(SERVICES);
        for (data, faults, edition, filters) in [
            (&[("masterservice", "agent, *")][..], 1, 1, &["masterservice"][..]),
            (&[], 0, 2, &[]),
            // No filter changes.
            (&[("nosuch", "agent")], 1, 2, &[]),
        ] {
            configs.send_replace(Arc::new(config(data)));
            let mut changes = state.subscribe();
            let is_so = |state: &Arc<Approval>| state.table.fault_count() == faults;
            changes.wait_for(is_so).await.unwrap();
            let approved = approver.approve(&caller("agent"), &info).await.unwrap();
            assert_eq!((approved.edition, &approved.chain.names()[..]), (edition, filters));
            let other = approver.approve(&caller("coredns"), &info).await.unwrap();
            assert_eq!(other.edition, 0);
        }
        token.cancel();
    };
    tokio::join!(following, test);
}

/// The same caller is known by its component, and by its account while an entry names that.
#[tokio::test]
async fn change_of_a_callers_name_is_another_edition_and_ends_its_watches_alone() {
    let folder = TestDir::new();
    let (approver, state) = approver(&folder, false);
    sync(&state, &[]);
    let (list, watch) = (get(SERVICES), get("/api/v1/services?watch=1"));
    let (agent, nameless) = (bearer("kube-proxy", AGENT), bearer("", AGENT));
    let other = "system:serviceaccount:kube-system:other";
    let others = [caller("kube-proxy"), bearer("kube-proxy", other), bearer("", other)];
    let one = get("/api/v1/namespaces/shop/services/web");
    let unread = approver.approve(&agent, &one).await.unwrap();
    assert!(
        unread.key.unwrap().reader.account.is_none(),
        "no entry names an account"
    );
    let (of_proxy, of_agent) = (
        &["discardcloudservice", "nodeportisolation"][..],
        &["masterservice"][..],
    );
    let mut editions = BTreeSet::from([unread.edition]);
    for (entry, of_agent, of_nameless) in [
        (AGENT, of_agent, of_agent),
        ("", of_proxy, &[][..]),
        // The account has filters, and none for this resource.
        ("x", of_proxy, &[]),
        (AGENT, of_agent, of_agent),
        ("x", of_proxy, &[]),
    ] {
        let open = approver.approve(&agent, &watch).await.unwrap();
        let (edition, key) = (open.edition, open.key.unwrap());
        let ended = key.changed(edition);
        tokio::pin!(ended);
        assert!(ended.as_mut().now_or_never().is_none());
        let is_same = state.borrow().table.accounts().contains(AGENT) == (entry == AGENT);
        sync(&state, &[("masterservice", entry)]);
        assert_eq!(ended.now_or_never().is_some(), !is_same, "{entry}");
        let now = approver.approve(&agent, &list).await.unwrap();
        assert_eq!(now.chain.names(), of_agent, "{entry}");
        assert_eq!(editions.insert(now.edition), !is_same, "{entry}");
        let write = RequestInfo::parse("PATCH", "/api/v1/namespaces/shop/services/web", None).unwrap();
        let (reads, edition) = approver.reads_of(&agent, &write).unwrap();
        assert_eq!((reads[0].names(), edition), (of_agent.to_vec(), now.edition));
        assert_eq!(
            approver.approve(&nameless, &list).await.unwrap().chain.names(),
            of_nameless
        );
        for other in &others {
            assert_eq!(approver.approve(other, &watch).await.unwrap().edition, 0, "{entry}");
        }
    }
    sync(&state, &[("endpoints", AGENT)]);
    let now = approver.approve(&agent, &list).await.unwrap();
    assert!(now.chain.is_empty(), "its User-Agent does not count");
    assert!(
        editions.insert(now.edition),
        "what its component's filters showed is sent again"
    );
}

/// Its client would watch from it with the new filters, at an RV that the new view may have passed already.
#[tokio::test]
async fn list_through_filters_that_have_changed_since_is_not_answered() {
    let folder = TestDir::new();
    let (approver, state) = approver(&folder, false);
    sync(&state, &[]);
    let answered = || Response::new(yurt_runtime::http::empty());
    // No entry has named an account before.
    let approved = approver.approve(&bearer("coredns", AGENT), &get(SERVICES)).await;
    sync(&state, &[("masterservice", AGENT)]);
    let refused = approved.unwrap().ending(answered()).err();
    assert_eq!(refused.map(|status| status.code()), Some(429), "by its account");
    for (path, expected) in [(SERVICES, Some(429)), ("/api/v1/namespaces/shop/services/web", None)] {
        for component in ["agent", "coredns"] {
            let approved = approver.approve(&caller(component), &get(path)).await.unwrap();
            sync(&state, &[("masterservice", "agent")]);
            let refused = approved.ending(answered()).err().map(|status| status.code());
            assert_eq!(
                refused,
                expected.filter(|_| component == "agent"),
                "{path} of {component}"
            );
            sync(&state, &[]);
        }
        let approved = approver.approve(&caller("agent"), &get(path)).await.unwrap();
        assert!(approved.ending(answered()).is_ok(), "no change");
    }
}
