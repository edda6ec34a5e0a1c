//! Room for bodies, its shares, and the queues of large ones.

use std::thread::ThreadId;

use futures_util::FutureExt as _;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use yurt_runtime::http::{Body, full, stream};

use super::*;

const LIMIT: usize = 3 << 20;

/// A body of unknown length that arrives as far as the test sends it.
fn unfinished() -> (mpsc::Sender<Bytes>, Body) {
    let (send, mut receive) = mpsc::channel(8);
    let pieces = futures_util::stream::poll_fn(move |context| receive.poll_recv(context).map(|piece| piece.map(Ok)));
    (send, stream::<BoxError>(pieces))
}

fn of(bytes: usize) -> Bytes {
    Bytes::from(vec![b'x'; bytes])
}

type Read<'a> = std::pin::Pin<Box<dyn Future<Output = Result<Received, Status>> + 'a>>;

/// The beginnings of bodies that never end; they occupy their room until dropped.
struct Held<'a> {
    _senders: Vec<mpsc::Sender<Bytes>>,
    _reads: Vec<Read<'a>>,
}

fn hold<'a>(bodies: &'a Bodies, user: &'a str, count: usize, bytes: usize) -> Held<'a> {
    let mut held = Held {
        _senders: Vec::new(),
        _reads: Vec::new(),
    };
    for _ in 0..count {
        let (send, body) = unfinished();
        send.try_send(of(bytes)).unwrap();
        let mut read: Read<'a> = Box::pin(bodies.read(user, body, LIMIT));
        assert!((&mut read).now_or_never().is_none(), "it has not come");
        held._senders.push(send);
        held._reads.push(read);
    }
    held
}

#[tokio::test(start_paused = true)]
async fn large_bodies_wait_for_room_and_go_on_when_there_is_some() {
    let bodies = Bodies::default();
    let _jane = hold(&bodies, "jane", 1, 1 << 20);
    let john = hold(&bodies, "john", 1, 1 << 20);
    // Twice 3 MiB take all the room.
    let mut late = Box::pin(bodies.read("ann", full(of(1 << 20)), LIMIT));
    assert!((&mut late).now_or_never().is_none());
    drop(john);
    assert_eq!(late.await.unwrap().len(), 1 << 20);
    // Nothing of these is looked at any more, so they lose nothing.
    let _john = hold(&bodies, "john", 1, 1 << 20);
    let refused = bodies.read("ann", full(of(1 << 20)), LIMIT).await;
    let refused = refused.err().expect("the wait for room has a limit");
    assert_eq!((refused.code(), refused.retry_after()), (429, Some(1)));
}

#[tokio::test(start_paused = true)]
async fn slow_large_bodies_lose_their_room_to_those_who_wait() {
    let bodies = Arc::new(Bodies::default());
    let mut slow = JoinSet::new();
    for user in ["jane", "john"] {
        let bodies = bodies.clone();
        slow.spawn(async move {
            let (send, body) = unfinished();
            send.send(of(1 << 20)).await.unwrap();
            bodies.read(user, body, LIMIT).await.err()
        });
    }
    while bodies.large.available_permits() > 0 {
        tokio::task::yield_now().await;
    }
    let begun = tokio::time::Instant::now();
    let late = bodies.read("ann", full(of(1 << 20)), LIMIT).await.unwrap();
    let waited = begun.elapsed();
    assert_eq!(
        (late.len(), waited.as_secs()),
        (1 << 20, time_to_arrive(LIMIT).as_secs())
    );
    assert!(waited < ROOM_WAIT_MAX, "{waited:?}");
    let lost = slow
        .join_next()
        .await
        .unwrap()
        .unwrap()
        .expect("it has no room any more");
    assert_eq!((lost.code(), lost.retry_after()), (429, Some(1)));
}

#[tokio::test(start_paused = true)]
async fn slow_large_body_keeps_room_that_nobody_wants() {
    let bodies = Bodies::default();
    let (send, body) = unfinished();
    let link = async {
        for _ in 0..30 {
            send.send(of(8 << 10)).await.unwrap();
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        // The room for others is elsewhere.
        let small = bodies.read("john", full(of(100)), LIMIT).await.unwrap();
        let feed = bodies
            .read_feed(full(of(FEED_TOTAL / 2)), FEED_TOTAL / 2)
            .await
            .unwrap();
        drop(send);
        small.len() + feed.len()
    };
    let (slow, others) = tokio::join!(bodies.read("jane", body, LIMIT), link);
    assert_eq!((slow.unwrap().len(), others), (240 << 10, 100 + FEED_TOTAL / 2));
}

#[tokio::test(start_paused = true)]
async fn slow_large_bodies_of_one_user_leave_room_for_others() {
    let bodies = Bodies::default();
    // The third waits for room in her own share and takes nothing of the others'.
    let _jane = hold(&bodies, "jane", 50, 1 << 20);
    let read = bodies.read("john", full(of(LIMIT)), LIMIT).now_or_never();
    assert_eq!(read.expect("there is room").unwrap().len(), LIMIT);
    let small = bodies.read("jane", full(of(1_000)), LIMIT).now_or_never();
    assert!(small.expect("small bodies have a place of their own").is_ok());
    let feed = bodies.read_feed(full(of(8 << 20)), 8 << 20).now_or_never();
    assert!(feed.expect("so has the feed").is_ok());
}

#[tokio::test]
async fn slow_small_bodies_of_one_user_are_refused_above_their_share() {
    let bodies = Bodies::default();
    let _jane = hold(&bodies, "jane", SMALL_SHARE / SMALL_BYTES_MAX, SMALL_BYTES_MAX);
    let refused = bodies.read("jane", full(of(1)), LIMIT).await;
    assert_eq!(refused.err().map(|status| status.code()), Some(429));
    let lease = bodies.read("system:node:n1", full(of(400)), LIMIT).await.unwrap();
    assert_eq!(lease.len(), 400);
    drop(_jane);
    bodies.read("jane", full(of(1)), LIMIT).await.unwrap();
}

#[tokio::test]
async fn small_bodies_count_until_they_have_come_and_large_ones_until_they_are_answered() {
    let bodies = Bodies::default();
    let small = bodies.read("jane", full(of(SMALL_BYTES_MAX)), LIMIT).await.unwrap();
    assert!(!small.is_large());
    assert_eq!(bodies.small.available_permits(), SMALL_TOTAL / UNIT);
    let large = bodies.read("jane", full(of(SMALL_BYTES_MAX + 1)), LIMIT).await.unwrap();
    assert!(large.is_large());
    // Its length was known: it takes no more room.
    assert_eq!(bodies.large.available_permits(), LARGE_TOTAL / UNIT - 65);
    drop(large);
    assert_eq!(bodies.large.available_permits(), LARGE_TOTAL / UNIT);
    let above = bodies.read("jane", full(of(LIMIT + 1)), LIMIT).await;
    assert_eq!(above.err().map(|status| status.code()), Some(413));
}

#[tokio::test(start_paused = true)]
async fn body_of_the_feed_has_a_minute() {
    let bodies = Bodies::default();
    let (_send, body) = unfinished();
    let begun = tokio::time::Instant::now();
    let refused = bodies.read_feed(body, 8 << 20).await.err();
    assert_eq!(refused.map(|status| status.code()), Some(504));
    assert_eq!(begun.elapsed().as_secs(), 60);
}

#[tokio::test]
async fn what_a_body_of_the_feed_unfolds_to_is_counted() {
    let bodies = Bodies::default();
    let unfold = |folded: &Bytes, limit: usize| Ok((folded.len() * 1000 <= limit).then(|| of(folded.len() * 1000)));
    let small = bodies.unfold_feed(of(60).into(), 8 << 20, unfold).await.unwrap();
    assert!(!small.is_large());
    let large = bodies.unfold_feed(of(100).into(), 8 << 20, unfold).await.unwrap();
    assert_eq!(
        (large.len(), bodies.feed.available_permits()),
        (100_000, (FEED_TOTAL - (8 << 20)) / UNIT)
    );
    let bomb = bodies.unfold_feed(of(10_000).into(), 8 << 20, unfold).await;
    assert_eq!(bomb.err().map(|status| status.code()), Some(413));
}

#[tokio::test]
async fn work_on_large_bodies_is_done_one_by_one_beside_the_workers() {
    let bodies = Arc::new(Bodies::default());
    let worker: ThreadId = std::thread::current().id();
    let (begun, mut has_begun) = mpsc::channel(4);
    let (go_on, mut may_go_on) = mpsc::channel::<()>(4);
    let first = bodies.in_turn(Work::Calls, {
        let begun = begun.clone();
        async move {
            begun.send(std::thread::current().id()).await.unwrap();
            may_go_on.recv().await
        }
    });
    let others = async {
        assert_ne!(has_begun.recv().await.unwrap(), worker, "the worker goes on serving");
        let mut second = Box::pin(bodies.in_turn(Work::Calls, async move { 2 }));
        assert!((&mut second).now_or_never().is_none(), "one at a time");
        let fed = bodies.in_turn(Work::Feed, async { 3 }).await.unwrap();
        assert_eq!(fed, 3, "the feed has its own turn");
        go_on.send(()).await.unwrap();
        assert_eq!(second.await.unwrap(), 2);
    };
    let (first, ()) = tokio::join!(first, others);
    assert_eq!(first.unwrap(), Some(()));
    let lost = bodies.in_turn(Work::Calls, async { panic!("a mistake") as () }).await;
    assert_eq!(lost.err().map(|status| status.code()), Some(500));
    assert_eq!(bodies.in_turn(Work::Calls, async { 4 }).await.unwrap(), 4);
}
