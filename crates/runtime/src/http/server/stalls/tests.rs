//! Answers that are taken slowly, or not at all.

use http::{Request, Response};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::super::{Limits, Server, handler};
use super::*;
use crate::TaskGroup;
use crate::http::client::{HttpClient, Protocol};
use crate::http::{empty, full, holding, stream};

const MAX: Duration = Duration::from_secs(60);

/// Sends the answer over a connection that takes a piece each `every`. Returns the number of its bytes.
async fn send(body: Body, every: Duration) -> usize {
    let (mut body, mut count) = (in_pieces(body), 0);
    while let Some(piece) = body.frame().await {
        let piece = piece.unwrap();
        tokio::time::sleep(every).await;
        count += piece.data_ref().map_or(0, Bytes::len);
    }
    count
}

#[tokio::test(start_paused = true)]
async fn answer_of_which_nothing_is_taken_ends() {
    let sizes = [PIECE + 1, 10 * PIECE];
    for body in sizes.map(|size| full(vec![0; size])) {
        let held = async {
            let (mut body, mut pieces) = (in_pieces(body), Vec::new());
            while let Some(piece) = body.frame().await {
                pieces.push(piece);
            }
        };
        let begun = Instant::now();
        let ended = timeout(10 * MAX, until_stalled(held, Some(MAX))).await;
        assert!(ended.is_ok() && begun.elapsed() <= 2 * MAX, "{:?}", begun.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn answer_that_is_taken_slowly_is_sent_whole() {
    let (size, sent) = (10 * PIECE + 1, Arc::new(AtomicUsize::new(0)));
    let counts = sent.clone();
    let slow = async move {
        counts.store(
            send(full(vec![0; size]), MAX - Duration::from_secs(1)).await,
            Ordering::Relaxed,
        )
    };
    until_stalled(slow, Some(MAX)).await;
    assert_eq!(sent.load(Ordering::Relaxed), size);
}

#[tokio::test(start_paused = true)]
async fn answer_without_data_goes_on() {
    let silent = stream(futures_util::stream::pending::<Result<Bytes, BoxError>>());
    let idle = async { assert_eq!(send(silent, MAX).await, 0) };
    assert!(timeout(100 * MAX, until_stalled(idle, Some(MAX))).await.is_err());
}

#[tokio::test]
async fn short_answers_stay_whole() {
    let task = async {
        for size in [0, PIECE] {
            let mut body = in_pieces(full(vec![0; size]));
            assert_eq!(body.size_hint().exact(), Some(size as u64));
            assert!(size == 0 || body.frame().await.is_some());
            assert!(body.is_end_stream(), "its end is sent with the last piece");
        }
        assert!(in_pieces(empty()).is_end_stream());
    };
    until_stalled(task, Some(MAX)).await;
}

/// Below the interval of PINGs, which need real answers at the pace of a clock that is advanced.
const SHORT: Duration = Duration::from_secs(5);

#[tokio::test]
async fn stalled_stream_is_reset_and_its_connection_goes_on() {
    let (tasks, (held, released)) = (TaskGroup::new(), oneshot::channel::<()>());
    let held = parking_lot::Mutex::new(Some(held));
    let answer = handler(move |_, peer| {
        let body = match held.lock().take() {
            Some(held) => holding(full(vec![0; 4 << 20]), held),
            None => empty(),
        };
        let mut response = Response::new(body);
        response.headers_mut().insert("client", peer.addr.port().into());
        std::future::ready(response)
    });
    let server = Server::bind("127.0.0.1:0".parse().unwrap(), "--test").await.unwrap();
    let limits = Limits {
        max_stall: Some(SHORT),
        ..Limits::default()
    };
    let serving = server.with_limits(limits).serve(&tasks, answer);
    let base = format!("http://{}/", serving.local_addr()).parse().unwrap();
    let client = HttpClient::new(base, None, Protocol::Http2, MAX).unwrap();
    let get = || client.send(Request::get("/").body(empty()).unwrap());
    let unread = get().await.unwrap();
    tokio::time::pause();
    assert!(timeout(3 * SHORT, released).await.is_ok(), "nothing of it is held");
    tokio::time::resume();
    let next = get().await.unwrap();
    assert_eq!(
        next.headers()["client"],
        unread.headers()["client"],
        "over the same connection"
    );
    assert!(
        unread.into_body().collect().await.is_err(),
        "it is seen to be incomplete"
    );
}
