//! Waits of requests, on paused time.

use std::collections::BTreeMap;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use yurt_apimachinery::ResourceVersion;
use yurt_collection::Collection;
use yurt_runtime::Clock;
use yurt_test_support::TestDir;

use super::*;
use crate::filter::FILTERS;
use crate::filter::binding::Switches;

const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
const SERVICES: &str = "/api/v1/services";
const SERVICES_OF_SHOP: &str = "/api/v1/namespaces/shop/services";

/// Approver of a hub that has just started, without data; and its configuration.
fn approver(folder: &TestDir, has_pool: bool) -> (Approver, watch::Sender<Arc<Approval>>) {
    let (clock, _) = Clock::fake();
    let data = Arc::new(PoolData::open(folder.path(), "p", usize::MAX, clock).unwrap());
    let state = watch::Sender::new(Arc::new(Approval::new(Table::new(&FILTERS, &Switches::default()))));
    (Approver::new(state.subscribe(), data, has_pool), state)
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

/// Code and message of a refusal, and the time that it took.
async fn refusal(approver: &Approver, component: &str, path: &str) -> (u16, String, Duration) {
    let began = Instant::now();
    let refused = approver.approve(component, &get(path)).await.err().unwrap();
    (refused.code(), refused.message().to_owned(), began.elapsed())
}

#[tokio::test(start_paused = true)]
async fn read_that_may_be_filtered_waits_for_the_configuration_and_no_other_request_does() {
    let folder = TestDir::new();
    let (approver, state) = approver(&folder, false);
    let (code, why, took) = refusal(&approver, "agent", SERVICES).await;
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
        let approved = approver.approve("kubelet", &get(path)).now_or_never();
        assert!(approved.unwrap().unwrap().chain.is_empty(), "{path}");
    }
    assert!(
        approver.approve("", &get(SERVICES)).now_or_never().is_some(),
        "no component"
    );
    let write = RequestInfo::parse("POST", "/api/v1/namespaces/shop/services", None).unwrap();
    assert!(approver.approve("kubelet", &write).now_or_never().is_some());

    let info = get(SERVICES);
    let waiting = approver.approve("agent", &info);
    tokio::pin!(waiting);
    assert!(waiting.as_mut().now_or_never().is_none());
    sync(&state, &[("masterservice", "agent")]);
    assert_eq!(waiting.await.unwrap().chain.names(), ["masterservice"]);
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
        let approved = approver.approve("kubelet", &get(&path)).now_or_never();
        let approved = approved.unwrap_or_else(|| panic!("{path} waits")).unwrap();
        assert!(approved.chain.is_empty() && !approved.is_filterable(), "{path}");
    }
    let (code, _, took) = refusal(&approver, "kubelet", &format!("{SERVICES_OF_SHOP}/web/status")).await;
    assert_eq!((code, took), (503, WAIT_MAX), "its answer is the object itself");
}

#[tokio::test(start_paused = true)]
async fn waiting_requests_are_bounded() {
    let folder = TestDir::new();
    let (approver, _state) = approver(&folder, false);
    let info = get(SERVICES);
    let waiting = join_all((0..WAITING_MAX).map(|_| approver.approve("agent", &info)));
    tokio::pin!(waiting);
    assert!(waiting.as_mut().now_or_never().is_none());
    let (code, _, took) = refusal(&approver, "agent", SERVICES).await;
    assert_eq!((code, took), (503, Duration::ZERO));
    assert!(waiting.await.iter().all(Result::is_err));
    let (_, _, took) = refusal(&approver, "agent", SERVICES).await;
    assert_eq!(took, WAIT_MAX, "the places are free again");
}

#[tokio::test(start_paused = true)]
async fn only_requests_whose_filters_need_an_input_wait_for_it() {
    let folder = TestDir::new();
    let (approver, state) = approver(&folder, true);
    sync(&state, &[]);
    let (code, why, took) = refusal(&approver, "coredns", SLICES).await;
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
        let approved = approver.approve(component, &get(path)).now_or_never();
        assert!(approved.is_some_and(|approved| approved.is_ok()), "{component} {path}");
    }
    // Filters hide what depends on unknown members, so their absence refuses nothing.
    let services = approver.data.replicas().named("services").unwrap();
    let at = ResourceVersion(7);
    let none = |held: &mut Collection| held.restart(0, Vec::new(), at);
    services.collection().update_of(0, at, none).unwrap();
    approver.data.replicas().persist(None).await.unwrap();
    let began = Instant::now();
    let approved = approver.approve("coredns", &get(SLICES)).await.unwrap();
    assert_eq!(approved.chain.names()[0], "servicetopology");
    assert_eq!(began.elapsed(), WAIT_MAX);
}

#[tokio::test]
async fn change_is_announced_before_requests_see_it() {
    let folder = TestDir::new();
    let (_, state) = approver(&folder, false);
    sync(&state, &[]);
    let (configs, config_changes) = watch::channel(Arc::new(config(&[])));
    let seen = state.subscribe();
    let (announced, mut announcements) = tokio::sync::mpsc::channel(8);
    let announce = move |changed: BTreeSet<(String, GroupResource)>| {
        let is_bound = !seen
            .borrow()
            .table
            .chain("agent", "", "services", Verb::List)
            .is_empty();
        announced.try_send((changed, is_bound)).unwrap();
    };
    let token = CancellationToken::new();
    let following = follow(state.clone(), config_changes, announce, token.clone());
    let test = async {
        let services = GroupResource::new("", "services");
        let changed = BTreeSet::from([("agent".to_owned(), services)]);
        for (data, was_bound) in [(&[("masterservice", "agent, *")][..], false), (&[], true)] {
            configs.send_replace(Arc::new(config(data)));
            assert_eq!(announcements.recv().await.unwrap(), (changed.clone(), was_bound));
        }
        configs.send_replace(Arc::new(config(&[("nosuch", "agent")])));
        state
            .subscribe()
            .wait_for(|state| state.table.fault_count() == 1)
            .await
            .unwrap();
        assert!(announcements.try_recv().is_err(), "no filter changed");
        token.cancel();
    };
    tokio::join!(following, test);
}
