//! Inputs that the driver sends to the machine, and their order.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use yurt_runtime::http::client::{Dial, Duplex, HttpClient, Protocol};
use yurt_runtime::tls::install_crypto_provider;

use super::*;

fn driver(tasks: &TaskGroup) -> Driver {
    let nowhere = HttpClient::new("http://127.0.0.1:1".parse().unwrap(), None, Protocol::Http1, IDLE_TICK).unwrap();
    let (clock, _) = Clock::fake();
    Driver::new(
        Config::new("me"),
        clock.clone(),
        LeaseClient::new(nowhere, "kube-system", "yurthub"),
        watch::Sender::default(),
        Box::new(|_, _| {}),
        Failures::new(clock),
        tasks.clone(),
    )
    .unwrap()
}

#[tokio::test(start_paused = true)]
async fn drained_is_told_when_the_last_task_of_the_leadership_has_ended() {
    let tasks = TaskGroup::new();
    let mut driver = driver(&tasks);
    let (group, ended) = (tasks.child(), Arc::new(AtomicBool::new(false)));
    let (token, at_the_end) = (group.token(), ended.clone());
    group.spawn("a request on its way", async move {
        token.cancelled().await;
        tokio::time::sleep(DRAIN_LIMIT / 2).await;
        at_the_end.store(true, Ordering::SeqCst);
    });
    driver.leading = Some(group);
    driver.stop(StopReason::CloudLost);
    assert!(matches!(driver.inputs.1.recv().await, Some(Input::Drained)));
    assert!(ended.load(Ordering::SeqCst), "the lease must not be given back before");
}

/// It holds the lease before its tasks start and after they ended.
#[tokio::test]
async fn own_lease_is_no_lease_of_another_leader() {
    let mut driver = driver(&TaskGroup::new());
    for (rv, holder) in [(1, "me"), (2, "another"), (3, "")] {
        let output = driver.step(Input::Watched(Lease {
            resource_version: ResourceVersion(rv),
            holder_identity: holder.to_owned(),
            lease_duration_seconds: 15,
            renew_time: String::new(),
            lease_transitions: 0,
            fence: None,
        }));
        driver.carry_out(output);
        let view = driver.view.borrow();
        assert_eq!((view.leader.as_str(), view.is_own_lease), (holder, holder == "me"));
    }
}

#[tokio::test]
async fn store_of_the_coordinator_is_told_with_its_reachability() {
    let mut driver = driver(&TaskGroup::new());
    let status = PoolStatus {
        store: "s2".to_owned(),
        ..serde_json::from_str(r#"{"store":"","versions":[1,2]}"#).unwrap()
    };
    let reach = CoordinatorReach {
        state: CoordinatorState::Reachable,
        status: Some(Arc::new(status)),
    };
    let input = driver.coordinator_inputs(&reach);
    assert!(matches!(input, Input::Coordinator { reachable: true }));
    let told = driver.inputs.1.try_recv().unwrap();
    assert!(matches!(told, Input::Store(store) if store == "s2"));
}

#[tokio::test]
async fn coordinator_of_another_version_is_not_led() {
    let driver = driver(&TaskGroup::new());
    for (versions, older) in [("[]", "upgrade the coordinator"), ("[2]", "upgrade this hub")] {
        let status: PoolStatus = serde_json::from_str(&format!(r#"{{"store":"s","versions":{versions}}}"#)).unwrap();
        let why = status.other_version().unwrap();
        assert!(why.contains(older), "{why}");
        let reach = CoordinatorReach {
            state: CoordinatorState::Reachable,
            status: Some(Arc::new(status)),
        };
        let input = driver.coordinator_inputs(&reach);
        assert!(matches!(input, Input::Coordinator { reachable: false }), "{versions}");
    }
}

#[test]
fn write_without_an_answer_may_have_been_stored() {
    let server = || "https://coordinator".to_owned();
    let timeout = |connecting| ClientError::Timeout {
        server: server(),
        after: IDLE_TICK,
        connecting,
    };
    let broken = ClientError::Protocol {
        server: server(),
        cause: "connection reset".to_owned(),
    };
    let refused = ClientError::Connect {
        server: server(),
        cause: "connection refused".to_owned(),
    };
    for error in [timeout(false), broken] {
        assert!(matches!(unanswered(&error), WriteOutcome::Unknown), "{error}");
    }
    for error in [timeout(true), refused] {
        assert!(matches!(unanswered(&error), WriteOutcome::Refused), "{error}");
    }
}

/// The default.
const LEASE_DURATION: Duration = Duration::from_secs(15);
const REFUSED: &str = "HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n";

/// A coordinator that sends `answer` over each connection and closes it, and the number of connections so far.
fn coordinator(answer: &'static str) -> (HttpClient, Arc<AtomicU32>) {
    install_crypto_provider();
    let opened = Arc::<AtomicU32>::default();
    let openings = opened.clone();
    let dial: Dial = Arc::new(move || {
        openings.fetch_add(1, Ordering::SeqCst);
        let (near, mut far) = tokio::io::duplex(64 << 10);
        #[allow(clippy::disallowed_methods, reason = "ends with the test's runtime")]
        drop(tokio::spawn(async move {
            let mut request = [0; 4096];
            assert!(far.read(&mut request).await.unwrap() > 0);
            far.write_all(answer.as_bytes()).await.unwrap();
        }));
        let near: Box<dyn Duplex> = Box::new(near);
        Box::pin(async move { Ok(near) })
    });
    let base = "http://coordinator".parse().unwrap();
    let client = HttpClient::over(base, None, Protocol::Http1, IDLE_TICK, Some(dial)).unwrap();
    (client, opened)
}

/// Returns how often the lease watch is opened, and how often the prober is woken, within 30 s at a coordinator that
/// sends `answer` and closes the connection.
async fn openings_and_probes(answer: &'static str, lease_duration: Duration) -> (u32, u32) {
    let (client, opened) = coordinator(answer);
    let (inputs, _told) = mpsc::channel(INPUTS_MAX);
    let wake = Arc::<Notify>::default();
    let lease = LeaseClient::new(client, "kube-system", "yurthub");
    let max = refused_max(lease_duration);
    let watching = watch_lease(lease, inputs, LastSeen::default(), wake.clone(), max);
    let mut probes = 0;
    let probing = async {
        loop {
            wake.notified().await;
            probes += 1;
        }
    };
    let both = async { tokio::join!(watching, probing) };
    assert!(tokio::time::timeout(Duration::from_secs(30), both).await.is_err());
    (opened.load(Ordering::SeqCst), probes)
}

/// The driver writes into the lease last seen.
#[tokio::test(start_paused = true)]
async fn answer_that_is_no_lease_is_not_kept_as_one() {
    let mut driver = driver(&TaskGroup::new());
    let watched = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n\
                   {\"type\":\"MODIFIED\",\"object\":[]}\n";
    let read = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]";
    for answer in [watched, read] {
        driver.lease = LeaseClient::new(coordinator(answer).0, "kube-system", "yurthub");
        let path = driver.lease.watch_path();
        if let Ok(events) = JsonWatch::open(driver.lease.http(), &path, WATCH_LASTS).await {
            let _ = take_changes(events, &driver.inputs.0, &driver.last).await;
        }
        driver.read(Attempt(1));
        while !matches!(driver.inputs.1.recv().await, Some(Input::ReadDone(..))) {}
        let renewal = LeaseWrite {
            attempt: Attempt(2),
            resource_version: Some(ResourceVersion(7)),
            holder_identity: "me".to_owned(),
            lease_duration_seconds: 15,
            lease_transitions: 0,
            changes_holder: false,
        };
        assert_eq!(driver.body(&renewal)["spec"]["holderIdentity"], "me", "after {answer}");
    }
}

/// A hub that is no member asks for as long as it runs.
#[tokio::test(start_paused = true)]
async fn coordinator_that_refuses_the_lease_watch_is_asked_less_and_less() {
    let (opened, probes) = openings_and_probes(REFUSED, LEASE_DURATION).await;
    assert!((4..=16).contains(&opened), "{opened} requests");
    assert_eq!(probes, 0, "it is there");
}

/// The next leader has to notice a restart as soon as possible.
#[tokio::test(start_paused = true)]
async fn broken_lease_watch_is_reopened_soon_and_the_coordinator_probed() {
    let (opened, probes) = openings_and_probes("", LEASE_DURATION).await;
    assert!(opened > 100, "{opened} requests");
    assert!(opened - probes <= 1, "{probes} probes");
}

#[tokio::test(start_paused = true)]
async fn retry_after_of_a_refused_lease_watch_is_honoured_within_the_lease() {
    const BUSY: &str = "HTTP/1.1 429 Too Many Requests\r\nretry-after: 9\r\ncontent-length: 0\r\n\r\n";
    let (opened, _) = openings_and_probes(BUSY, LEASE_DURATION).await;
    assert_eq!(opened, 4, "every nine or ten seconds");
    for answer in [BUSY, REFUSED] {
        let (opened, _) = openings_and_probes(answer, Duration::from_secs(3)).await;
        assert!(opened >= 15, "{opened} requests, for a lease of 3 s");
    }
}
