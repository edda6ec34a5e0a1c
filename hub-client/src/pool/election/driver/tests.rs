//! Inputs that the driver sends to the machine, and their order.

use std::sync::atomic::{AtomicBool, Ordering};

use yurt_runtime::http::client::{HttpClient, Protocol};

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
