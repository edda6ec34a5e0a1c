//! Patches and outcomes, and the order of sends at a server of the test.

use http::HeaderMap;
use tokio::sync::Notify;
use yurt_apimachinery::Status;
use yurt_runtime::TaskGroup;
use yurt_runtime::http::client::{Dial, Duplex, HttpClient, Protocol};
use yurt_runtime::http::json as json_answer;
use yurt_runtime::http::server::{Server, handler};
use yurt_test_support::{TestDir, eventually};

use super::*;
use crate::failures::Failures;
use crate::offline::own::pending;
use crate::offline::own::write::Write;

fn pod(uid: &str, version: &str, status: Value) -> Value {
    json!({"metadata": {"name": "web", "uid": uid, "resourceVersion": version}, "spec": {"nodeName": "n1"}, "status": status})
}

fn patched(object: &Value) -> Option<Option<Value>> {
    let state = LocalState {
        base: part(&pod("u1", "7", json!({"phase": "Pending"}))),
        local: pod("u1", "7", json!({"phase": "Running"})),
    };
    patch(&OwnKey::parse("shop/web").unwrap(), "n1", &state, object, 0)
}

#[test]
fn patch_names_the_object_that_it_was_computed_for() {
    let expected = json!({"metadata": {"uid": "u1", "resourceVersion": "9"}, "status": {"phase": "Running"}});
    assert_eq!(
        patched(&pod("u1", "9", json!({"phase": "Pending", "message": "m"}))),
        Some(Some(expected))
    );
    assert_eq!(
        patched(&pod("u1", "9", json!({"phase": "Running"}))),
        Some(None),
        "sent before a crash"
    );
}

#[test]
fn another_object_receives_nothing() {
    assert_eq!(patched(&pod("u2", "9", json!({}))), None);
    let mut moved = pod("u1", "9", json!({}));
    moved["spec"]["nodeName"] = "n2".into();
    assert_eq!(patched(&moved), None);
}

fn accept(pending: &Pending, name: &str) {
    let write = Write {
        method: &Method::PATCH,
        headers: &HeaderMap::from_iter([(CONTENT_TYPE, "application/merge-patch+json".parse().unwrap())]),
        body: &Bytes::from_static(b"{\"status\": {\"phase\": \"Running\"}}"),
    };
    let mut held = pod("u1", "7", json!({"phase": "Pending"}));
    held["metadata"]["name"] = name.into();
    let key = OwnKey::parse(&format!("shop/{name}")).unwrap();
    pending.accept(&key, "n1", Some(held).into(), write).unwrap();
}

fn sender_to(cloud: Cloud, folder: &TestDir, pending: Arc<Pending>, failures: Failures) -> Sender {
    let clock = Clock::fake().0;
    Sender {
        node: "n1".to_owned(),
        pending,
        cloud: Arc::new(cloud),
        answers: Answers::open(folder.path(), clock.clone(), failures).0,
        is_deleted: Arc::new(|_, _| false),
        metrics: Arc::new(Metrics::new().unwrap()),
        clock,
    }
}

/// Sends the entries of a folder to a cloud that is up.
async fn send_to(cloud: &str, folder: &TestDir, pending: Arc<Pending>, failures: Failures) {
    let (_commands, commands) = mpsc::channel(1);
    let sender = sender_to(Cloud::of_servers(&[cloud]), folder, pending, failures);
    let reach = watch::Sender::new(CloudReach { failed_probes: Some(0) });
    let (stop, is_foreign) = (CancellationToken::new(), CancellationToken::new());
    sender.run(commands, reach.subscribe(), stop, is_foreign).await;
}

/// The server accepts a connection, and answers nothing.
#[tokio::test(start_paused = true)]
async fn attempt_ends_once_its_server_is_down() {
    let (folder, failures, connected) = (TestDir::new(), Failures::new(Clock::fake().0), Arc::new(Notify::new()));
    let (connecting, ends) = (connected.clone(), Mutex::new(Vec::new()));
    let dial: Dial = Arc::new(move || {
        let (near, far) = tokio::io::duplex(64 << 10);
        ends.lock().push(far);
        connecting.notify_one();
        let near: Box<dyn Duplex> = Box::new(near);
        Box::pin(async move { Ok(near) })
    });
    let base = "http://cloud".parse().unwrap();
    let client = HttpClient::over(base, None, Protocol::Http1, SEND_UP_MAX, Some(dial)).unwrap();
    let pending = Arc::new(Pending::open(folder.path(), failures.clone()));
    accept(&pending, "web");
    let sender = sender_to(Cloud::of_clients([client.clone(), client]), &folder, pending, failures);
    let reach = watch::Sender::new(CloudReach { failed_probes: Some(0) });
    let (denials, stop, began) = (Mutex::default(), CancellationToken::new(), Instant::now());
    let key = OwnKey::parse("shop/web").unwrap();
    let sending = sender.send(key, &denials, reach.subscribe(), &stop);
    let falling = async {
        connected.notified().await;
        sender.cloud.at(0).availability.set(Some(false), true);
    };
    let (has_result, ()) = tokio::join!(sending, falling);
    assert_eq!((has_result, began.elapsed().as_secs()), (false, 0));
}

#[tokio::test]
async fn object_that_takes_long_delays_no_other() {
    let (folder, given_up, tasks) = (TestDir::new(), CancellationToken::new(), TaskGroup::new());
    let abandoned = given_up.clone();
    let server = Server::bind(yurt_test_support::LOOPBACK, "--test").await.unwrap();
    let serving = server.serve(
        &tasks,
        handler(move |request, _| {
            let is_slow = request.uri().path().contains("/a-slow");
            let guard = is_slow.then(|| abandoned.clone().drop_guard());
            async move {
                if guard.is_some() {
                    std::future::pending::<()>().await;
                }
                json_answer(StatusCode::OK, pod("u1", "9", json!({"phase": "Running"})).to_string())
            }
        }),
    );
    let failures = Failures::new(Clock::fake().0);
    let pending = Arc::new(Pending::open(folder.path(), failures.clone()));
    for name in ["a-slow", "b", "c"] {
        accept(&pending, name);
    }
    let cloud = format!("http://{}", serving.local_addr());
    let others = eventually("the others must be sent", async || (pending.len() == 1).then_some(()));
    tokio::select! {
        biased;
        () = given_up.cancelled() => panic!("the others waited"),
        () = others => {}
        () = send_to(&cloud, &folder, pending.clone(), failures) => {}
    }
    assert_eq!(pending.keys(), ["shop/a-slow"]);
}

/// The only thread for the disk is busy all along.
#[test]
fn slow_disk_delays_no_send() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(1).build().unwrap();
    runtime.block_on(async {
        let (_release, held) = std::sync::mpsc::channel::<()>();
        let _disk = tokio::task::spawn_blocking(move || held.recv());
        let (folder, asked, tasks) = (TestDir::new(), CancellationToken::new(), TaskGroup::new());
        let server = Server::bind(yurt_test_support::LOOPBACK, "--test").await.unwrap();
        let asking = asked.clone();
        let serving = server.serve(
            &tasks,
            handler(move |_, _| {
                asking.cancel();
                std::future::pending()
            }),
        );
        std::fs::write(folder.path().join(pending::FOLDER), "a file where the folder would be").unwrap();
        let failures = Failures::new(Clock::fake().0);
        let pending = Arc::new(Pending::open(folder.path(), failures.clone()));
        accept(&pending, "web");
        let cloud = format!("http://{}", serving.local_addr());
        let is_sent = eventually("the status must be sent", async || asked.is_cancelled().then_some(()));
        tokio::select! {
            () = is_sent => {}
            () = send_to(&cloud, &folder, pending, failures) => {}
        }
    });
}

#[tokio::test(start_paused = true)]
async fn disk_that_works_again_gets_the_entries_while_every_attempt_at_the_cloud_fails() {
    let folder = TestDir::new();
    let no_folder = folder.path().join(pending::FOLDER);
    std::fs::write(&no_folder, "a file where the folder would be").unwrap();
    let failures = Failures::new(Clock::fake().0);
    let pending = Arc::new(Pending::open(folder.path(), failures.clone()));
    accept(&pending, "web");
    assert!(failures.why(pending::DISK).is_some());
    std::fs::remove_file(&no_folder).unwrap();
    let running = send_to("http://127.0.0.1:1", &folder, pending, failures.clone());
    let ended = tokio::time::timeout(3 * RESAVED_EVERY, running).await;
    assert!(ended.is_err(), "it runs until the stop");
    assert_eq!(failures.why(pending::DISK), None);
}

#[test]
fn only_final_refusals_drop_a_status() {
    let is_kept = |code: u16| {
        let outcome = judge(StatusCode::from_u16(code).unwrap(), b"");
        matches!(outcome, StatusOutcome::Later(_) | StatusOutcome::Conflict)
    };
    for code in [401, 408, 409, 429, 500, 502, 503, 504] {
        assert!(is_kept(code), "{code}");
    }
    // 403 is the answer of admission to the patch: the read before it was allowed.
    for code in [400, 403, 404, 413, 422] {
        assert!(!is_kept(code), "{code}");
    }
}

/// kube-apiserver's refusal of a patch includes the whole object.
#[test]
fn refusal_names_the_reason_without_the_object() {
    let message = format!(
        "patch: Invalid value: {:?}: json: cannot unmarshal string",
        "x".repeat(64 << 10)
    );
    let body = Status::failure(422, "Invalid", message).to_json();
    let StatusOutcome::Refused(why) = judge(StatusCode::UNPROCESSABLE_ENTITY, &body) else {
        panic!("a refusal is final");
    };
    assert!(
        why.starts_with("422 Unprocessable Entity: patch: Invalid value"),
        "{why}"
    );
    assert!(
        why.ends_with("json: cannot unmarshal string") && why.len() < 2 << 10,
        "{why}"
    );
}

#[test]
fn denied_read_keeps_a_status_for_a_bounded_time() {
    let (web, db) = (OwnKey::parse("shop/web").unwrap(), OwnKey::parse("shop/db").unwrap());
    let (mut denials, mut now) = (Denials::default(), Instant::now());
    let why = "no relationship found";
    let later = || StatusOutcome::Denied(why.to_owned());
    let mut outcomes = |key: &OwnKey, count: u32, step: Duration, is_deleted: bool| {
        let mut outcomes = (0..count).map(|_| {
            now += step;
            denials.judge(key, now, || is_deleted, StatusOutcome::Denied(why.to_owned()))
        });
        let last = outcomes.by_ref().last();
        last.unwrap()
    };
    assert_eq!(outcomes(&web, DENIALS_MAX - 1, RETRY, false), later());
    assert_eq!(
        outcomes(&web, DENIALS_MAX, RETRY / 200, false),
        later(),
        "attempts of requests"
    );
    assert_eq!(outcomes(&db, 1, RETRY, false), later());
    assert_eq!(outcomes(&web, 1, RETRY, false), StatusOutcome::Refused(why.to_owned()));
    assert_eq!(outcomes(&db, 1, RETRY, true), StatusOutcome::Gone);
}

#[test]
fn denials_count_in_a_row() {
    let web = OwnKey::parse("shop/web").unwrap();
    let (mut denials, mut now) = (Denials::default(), Instant::now());
    for count in 0..2 * DENIALS_MAX {
        now += RETRY;
        let denied = StatusOutcome::Denied(String::new());
        assert_eq!(
            denials.judge(&web, now, || false, denied),
            StatusOutcome::Denied(String::new())
        );
        if count % 100 == 0 {
            assert_eq!(
                denials.judge(&web, now, || true, StatusOutcome::Conflict),
                StatusOutcome::Conflict
            );
        }
    }
}
