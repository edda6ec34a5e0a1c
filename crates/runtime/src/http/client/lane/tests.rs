//! Lanes against a server over plain HTTP/2 on loopback.

use futures_util::StreamExt as _;
use http::StatusCode;
use http_body_util::BodyExt as _;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::{mpsc, oneshot, watch};

use super::*;
use crate::http::client::Protocol;
use crate::http::server::{CloseConnection, Limits, Server, Serving, handler};
use crate::http::{empty, full, stream};

/// Answers `/ends` with a whole answer, `/closes` as well but asks for the connection's end, and all others with a
/// piece and an open stream until `end`.
async fn serve(tasks: &TaskGroup, max_streams: u32, end: watch::Receiver<bool>) -> Serving {
    let limits = Limits {
        max_streams,
        ..Limits::default()
    };
    let server = Server::bind("127.0.0.1:0".parse().unwrap(), "--test").await.unwrap();
    let answer = handler(move |request: Request<Incoming>, _| {
        let mut end = end.clone();
        async move {
            let mut response = Response::new(empty());
            match request.uri().path() {
                "/ends" => {}
                "/closes" => drop(response.extensions_mut().insert(CloseConnection)),
                _ => {
                    let first = futures_util::stream::iter([Ok::<_, BoxError>(Bytes::from_static(b"one"))]);
                    let last = futures_util::stream::once(async move {
                        let _ = end.wait_for(|end| *end).await;
                        Ok(Bytes::from_static(b"two"))
                    });
                    response = Response::new(stream(first.chain(last).boxed()));
                }
            }
            response
        }
    });
    server.with_limits(limits).serve(tasks, answer)
}

fn lane(serving: &Serving, tasks: &TaskGroup) -> Lane {
    let base = format!("http://{}", serving.local_addr()).parse().unwrap();
    let client = HttpClient::new(base, None, Protocol::Http2, Duration::from_secs(5)).unwrap();
    Lane::new(client, 64 * 1024, tasks.clone())
}

async fn get(lane: &Lane, path: &str) -> Response<Body> {
    let request = Request::get(path).body(empty()).unwrap();
    let response = lane.slot().await.unwrap().send(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    response
}

async fn piece(response: &mut Response<Body>) -> Bytes {
    response.frame().await.unwrap().unwrap().into_data().unwrap()
}

#[tokio::test]
async fn connection_takes_as_many_streams_as_it_may_and_gets_them_back() {
    for (max_streams, of_both) in [(250, STREAMS), (10, 10)] {
        let (tasks, (_end, ends)) = (TaskGroup::new(), watch::channel(false));
        let serving = serve(&tasks, max_streams, ends).await;
        let lane = lane(&serving, &tasks);
        // The server's limit arrives before its first answer.
        drop(get(&lane, "/ends").await);
        let mut open = Vec::new();
        for _ in 0..of_both {
            open.push(get(&lane, "/open").await);
        }
        assert_eq!(lane.connections(), 1, "{max_streams}");
        let more = get(&lane, "/open").await;
        assert_eq!(lane.connections(), 2);
        drop((open, more));
        for _ in 0..of_both {
            drop(get(&lane, "/ends").await);
        }
        assert_eq!(lane.connections(), 2);
    }
}

#[tokio::test]
async fn connection_of_a_wide_lane_takes_more_streams_and_each_answer_names_its_connection() {
    const WIDE: usize = 2 * STREAMS;
    let (tasks, (_end, ends)) = (TaskGroup::new(), watch::channel(false));
    let serving = serve(&tasks, 250, ends).await;
    let client = lane(&serving, &tasks).shared.client.clone();
    let lane = Lane::with_streams(client, 64 * 1024, WIDE, tasks.clone());
    assert_eq!(lane.opened(), 0);
    drop(get(&lane, "/ends").await);
    let mut open = Vec::new();
    for _ in 0..WIDE {
        open.push(get(&lane, "/open").await);
    }
    let more = get(&lane, "/open").await;
    assert!(open.iter().all(|answer| HttpClient::connection_of(answer) == 1));
    assert_eq!((HttpClient::connection_of(&more), lane.opened()), (2, 2));
    drop(open);
    assert_eq!(HttpClient::connection_of(&get(&lane, "/ends").await), 1);
    lane.leave(1);
    assert_eq!(HttpClient::connection_of(&get(&lane, "/ends").await), 2);
}

#[tokio::test]
async fn retired_connection_is_drained_and_not_cut() {
    let (tasks, (end, ends)) = (TaskGroup::new(), watch::channel(false));
    let serving = serve(&tasks, 250, ends).await;
    let lane = lane(&serving, &tasks);
    let mut before = get(&lane, "/open").await;
    assert_eq!(piece(&mut before).await, "one");
    lane.retire();
    assert_eq!(lane.connections(), 0);
    let mut after = get(&lane, "/open").await;
    assert_eq!(
        (piece(&mut after).await, lane.connections()),
        (Bytes::from_static(b"one"), 1)
    );
    end.send_replace(true);
    for response in [before, after] {
        let rest = response.into_body().collect().await.expect("a clean end");
        assert_eq!(rest.to_bytes(), "two");
    }
}

/// The server asks for the end of the connection with every third answer, as Go's does after 401.
#[tokio::test]
async fn request_beside_a_connection_that_goes_away_is_answered_or_certainly_not_processed() {
    let (tasks, (_end, ends)) = (TaskGroup::new(), watch::channel(false));
    let serving = serve(&tasks, 250, ends).await;
    let lane = lane(&serving, &tasks);
    let (done, mut answered) = mpsc::channel(300);
    for number in 0..300 {
        let (lane, done) = (lane.clone(), done.clone());
        tasks.spawn("request", async move {
            let path = if number % 3 == 0 { "/closes" } else { "/ends" };
            loop {
                let request = Request::get(path).body(empty()).unwrap();
                match lane.slot().await.unwrap().send(request).await {
                    Ok(response) => break done.send(response.status()).await.unwrap(),
                    Err(failed) => assert!(failed.is_unprocessed, "{failed:?}"),
                }
            }
        });
    }
    for _ in 0..300 {
        assert_eq!(answered.recv().await, Some(StatusCode::OK));
    }
}

/// Serves two connections. Ends the first one, which keeps a stream, and reports when the client knows that. Answers
/// the only request of the second one with its body.
async fn serve_after_a_goaway(listener: tokio::net::TcpListener, known: oneshot::Sender<()>) {
    let mut first = h2::server::handshake(listener.accept().await.unwrap().0).await.unwrap();
    let (_request, mut answer) = first.accept().await.unwrap().unwrap();
    let _open = answer.send_response(Response::new(()), false).unwrap();
    let mut pings = first.ping_pong().unwrap();
    first.graceful_shutdown();
    let others = async { while first.accept().await.is_some() {} };
    let serving = async {
        // It follows the GOAWAY.
        pings.ping(h2::Ping::opaque()).await.unwrap();
        known.send(()).unwrap();
        let mut second = h2::server::handshake(listener.accept().await.unwrap().0).await.unwrap();
        let (request, mut answer) = second.accept().await.unwrap().unwrap();
        let echo = async {
            let sent = request.into_body().data().await.unwrap().unwrap();
            let mut body = answer.send_response(Response::new(()), false).unwrap();
            body.send_data(sent, true).unwrap();
        };
        tokio::join!(echo, async { while second.accept().await.is_some() {} });
    };
    tokio::join!(others, serving);
}

#[tokio::test]
async fn write_that_meets_a_connection_that_went_away_is_unprocessed_and_the_next_one_avoids_it() {
    let tasks = TaskGroup::new();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let (known, is_known) = oneshot::channel();
    tasks.spawn("server", serve_after_a_goaway(listener, known));
    let client = HttpClient::new(base, None, Protocol::Http2, Duration::from_secs(5)).unwrap();
    let lane = Lane::new(client, 64 * 1024, tasks.clone());
    let _open = get(&lane, "/open").await;
    is_known.await.unwrap();
    let post = async |body| {
        let request = Request::post("/echo").body(body).unwrap();
        lane.slot().await.unwrap().send(request).await
    };
    let failed = post(full("text")).await.expect_err("no server has the request");
    assert!(failed.is_unprocessed, "{failed:?}");
    assert_eq!(lane.connections(), 0);
    let answer = post(full("text")).await.unwrap().into_body().collect().await.unwrap();
    assert_eq!(answer.to_bytes(), "text");
}

#[tokio::test]
async fn all_who_wait_for_a_connection_share_one_failure() {
    let tasks = TaskGroup::new();
    let client = HttpClient::new(
        "http://127.0.0.1:1".parse().unwrap(),
        None,
        Protocol::Http2,
        Duration::from_secs(5),
    );
    let lane = Lane::new(client.unwrap(), 64 * 1024, tasks);
    let all = futures_util::future::join_all((0..50).map(|_| lane.slot())).await;
    let failed = all
        .iter()
        .filter(|slot| matches!(slot, Err(error) if error.never_sent()));
    assert_eq!(failed.count(), 50);
}

/// Requests that find a new connection take what it allows, and not what it may allow.
#[tokio::test]
async fn requests_beyond_the_first_one_wait_for_the_limit_of_a_new_connection() {
    let (tasks, (_end, ends)) = (TaskGroup::new(), watch::channel(false));
    let serving = serve(&tasks, 2, ends).await;
    let lane = lane(&serving, &tasks);
    let open = futures_util::future::join_all((0..5).map(|_| get(&lane, "/open"))).await;
    assert!(open.len() == 5 && lane.connections() == 3, "{}", lane.connections());
}

/// A lane to a server that sends nothing by itself.
async fn to_silent(connect_timeout: Duration) -> (Lane, tokio::net::TcpListener) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let client = HttpClient::new(base, None, Protocol::Http2, connect_timeout).unwrap();
    (Lane::new(client, 64 * 1024, TaskGroup::new()), listener)
}

/// A server that never sends its SETTINGS.
#[tokio::test]
async fn connection_without_settings_takes_one_request_and_the_others_fail_in_time() {
    let (lane, listener) = to_silent(Duration::from_millis(100)).await;
    let _first = lane.slot().await.unwrap();
    let _silent = listener.accept().await.unwrap();
    let second = lane.slot().await.err().expect("the limit is unknown");
    assert!(second.never_sent(), "{second:?}");
    let _third = lane.slot().await.unwrap();
    assert_eq!(lane.opened(), 2);
}

/// A server may leave its limit out (RFC 9113, 6.5.2).
#[tokio::test]
async fn settings_without_a_limit_allow_all_streams_of_the_lane() {
    let (lane, listener) = to_silent(Duration::from_secs(5)).await;
    let _first = lane.slot().await.unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    // No field: nine bytes of a head with type 4.
    server.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
    let slots = futures_util::future::try_join_all((1..STREAMS).map(|_| lane.slot()));
    let slots = slots.await.unwrap();
    assert_eq!((slots.len(), lane.opened()), (STREAMS - 1, 1));
}

#[tokio::test]
async fn connection_that_allows_no_stream_is_left() {
    let (tasks, (_end, ends)) = (TaskGroup::new(), watch::channel(false));
    let serving = serve(&tasks, 0, ends).await;
    let lane = lane(&serving, &tasks);
    let _first = lane.slot().await.unwrap();
    let _second = lane.slot().await.unwrap();
    assert_eq!((lane.opened(), lane.connections()), (2, 1));
}

#[tokio::test]
async fn all_who_wait_for_settings_share_the_end_of_the_connection() {
    let (lane, listener) = to_silent(Duration::from_secs(5)).await;
    let _first = lane.slot().await.unwrap();
    let waiting = futures_util::future::join_all((0..10).map(|_| lane.slot()));
    let (slots, _) = tokio::join!(waiting, async { drop(listener.accept().await.unwrap()) });
    let failed = slots
        .iter()
        .filter(|slot| matches!(slot, Err(ClientError::Connect { .. })));
    assert_eq!((failed.count(), lane.opened()), (10, 1));
}
