//! Writes that the cloud certainly did not process, against a server that writes each frame of HTTP/2 itself.

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::Method;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::Notify;
use yurt_runtime::http::full;

use super::*;

const MAPS: &str = "/api/v1/namespaces/shop/configmaps";

// Types and flags of frames, and an error code (RFC 9113, 6 and 7).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const REFUSED: [u8; 4] = [0, 0, 0, 7];
/// The indexed header `:status: 200` (RFC 7541, appendix A).
const STATUS_200: [u8; 1] = [0x88];
/// `SETTINGS_INITIAL_WINDOW_SIZE` of 1 MiB, and two `SETTINGS_MAX_CONCURRENT_STREAMS`.
const LIMITS: [u8; 12] = [0, 4, 0, 16, 0, 0, 0, 3, 0, 0, 0, 2];

/// The server's end of a connection.
struct Frames(TcpStream);

impl Frames {
    async fn accept(listener: &TcpListener) -> Self {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.read_exact(&mut [0; 24]).await.unwrap();
        let mut this = Self(stream);
        this.write(SETTINGS, 0, 0, &LIMITS).await;
        this.write(WINDOW_UPDATE, 0, 0, &[0, 16, 0, 0]).await;
        this
    }

    async fn write(&mut self, kind: u8, flags: u8, stream: u8, payload: &[u8]) {
        let length = u8::try_from(payload.len()).unwrap();
        let frame = [&[0, 0, length, kind, flags, 0, 0, 0, stream], payload].concat();
        self.0.write_all(&frame).await.unwrap();
    }

    /// Reads up to the end of a request: its stream, and the bytes of its body.
    async fn request(&mut self) -> (u8, Vec<u8>) {
        let mut body = Vec::new();
        loop {
            let mut head = [0; 9];
            self.0.read_exact(&mut head).await.unwrap();
            let [a, b, c, kind, flags, _, _, _, stream] = head;
            let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
            self.0.read_exact(&mut payload).await.unwrap();
            match kind {
                SETTINGS if flags & ACK == 0 => self.write(SETTINGS, ACK, 0, &[]).await,
                DATA => body.extend(payload),
                _ => {}
            }
            if [DATA, HEADERS].contains(&kind) && flags & END_STREAM != 0 {
                return (stream, body);
            }
        }
    }

    async fn answer(&mut self, stream: u8) {
        self.write(HEADERS, END_HEADERS | END_STREAM, stream, &STATUS_200).await;
    }

    async fn go_away(&mut self, last: u8, code: u8) {
        self.write(GOAWAY, 0, 0, &[0, 0, 0, last, 0, 0, 0, code]).await;
    }
}

/// A server, and the sender of writes to it.
async fn scene(tasks: &TaskGroup) -> (TcpListener, PassThrough) {
    let listener = listen().await;
    let to = pass_through_to(&[&url(&listener)], tasks.clone());
    (listener, to)
}

async fn listen() -> TcpListener {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap()
}

fn url(listener: &TcpListener) -> String {
    format!("http://{}", listener.local_addr().unwrap())
}

async fn write(to: &PassThrough, body: impl Into<Bytes>) -> Result<StatusCode, Status> {
    sent(to, Method::POST, MAPS, full(body)).await
}

async fn sent(to: &PassThrough, method: Method, path: &str, body: Body) -> Result<StatusCode, Status> {
    let info = RequestInfo::parse(method.as_str(), path, None).unwrap();
    let request = Request::builder().method(method).uri(path).body(body).unwrap();
    to.send(request, &info, &pod()).await.map(|response| response.status())
}

/// kube-apiserver sends such a GOAWAY while it stops, after a 401, and by `--goaway-chance`.
#[tokio::test]
async fn write_above_the_last_stream_of_a_goaway_is_sent_again_and_the_one_below_it_is_answered() {
    const INTERNAL_ERROR: u8 = 2;
    const ENHANCE_YOUR_CALM: u8 = 11;
    for code in [0, INTERNAL_ERROR, ENHANCE_YOUR_CALM] {
        write_around_a_goaway(code).await;
    }
}

async fn write_around_a_goaway(code: u8) {
    let (tasks, second) = (TaskGroup::new(), Notify::new());
    let (listener, to) = scene(&tasks).await;
    let serving = async {
        let mut old = Frames::accept(&listener).await;
        assert_eq!(old.request().await, (1, b"one".to_vec()));
        second.notify_one();
        assert_eq!(old.request().await, (3, b"two".to_vec()));
        old.go_away(1, code).await;
        let mut new = Frames::accept(&listener).await;
        assert_eq!(new.request().await, (1, b"two".to_vec()));
        new.answer(1).await;
        old.answer(1).await;
        (old, new)
    };
    let two = async {
        second.notified().await;
        assert_eq!(write(&to, "two").await.unwrap(), StatusCode::OK, "code {code}");
    };
    let one = async { assert_eq!(write(&to, "one").await.unwrap(), StatusCode::OK) };
    tokio::join!(serving, one, two);
}

#[tokio::test]
async fn write_that_meets_a_goaway_stays_at_the_first_server_in_the_order() {
    let tasks = TaskGroup::new();
    let (first, second) = (listen().await, listen().await);
    let to = pass_through_to(&[&url(&first), &url(&second)], tasks.clone());
    let serving = async {
        let mut old = Frames::accept(&first).await;
        assert_eq!(old.request().await, (1, b"one".to_vec()));
        old.answer(1).await;
        assert_eq!(old.request().await, (3, b"two".to_vec()));
        old.go_away(1, 0).await;
        let mut new = Frames::accept(&first).await;
        assert_eq!(new.request().await, (1, b"two".to_vec()));
        new.answer(1).await;
        (old, new)
    };
    let writing = async {
        for body in ["one", "two"] {
            assert_eq!(write(&to, body).await.unwrap(), StatusCode::OK);
        }
    };
    tokio::select! {
        _ = async { tokio::join!(serving, writing) } => {}
        _ = second.accept() => panic!("a write came to the second server"),
    }
}

/// A connection stays in its lane after a GOAWAY while it has streams.
#[tokio::test]
async fn write_is_sent_past_all_connections_that_went_away() {
    let (tasks, freed) = (TaskGroup::new(), Notify::new());
    let (listener, to) = scene(&tasks).await;
    let serving = async {
        let mut one = Frames::accept(&listener).await;
        for stream in [1, 3] {
            assert_eq!(one.request().await, (stream, b"first".to_vec()));
            one.answer(stream).await;
        }
        for stream in [5, 7] {
            assert_eq!(one.request().await, (stream, b"held".to_vec()));
        }
        let mut other = Frames::accept(&listener).await;
        assert_eq!(other.request().await, (1, b"held".to_vec()));
        one.go_away(7, 0).await;
        other.go_away(1, 0).await;
        one.answer(7).await;
        let mut new = Frames::accept(&listener).await;
        assert_eq!(new.request().await, (1, b"last".to_vec()));
        new.answer(1).await;
        one.answer(5).await;
        other.answer(1).await;
        (one, other, new)
    };
    let writing = async {
        for _ in 0..2 {
            assert_eq!(write(&to, "first").await.unwrap(), StatusCode::OK);
        }
        let held = async || {
            assert_eq!(write(&to, "held").await.unwrap(), StatusCode::OK);
            freed.notify_one();
        };
        let last = async {
            freed.notified().await;
            assert_eq!(write(&to, "last").await.unwrap(), StatusCode::OK);
        };
        tokio::join!(held(), held(), held(), last);
    };
    tokio::join!(serving, writing);
}

/// Only a connection that has answered before can be one that went away.
#[tokio::test]
async fn server_that_refuses_each_new_connection_costs_a_request_two_of_them() {
    let (tasks, opened) = (TaskGroup::new(), AtomicUsize::new(0));
    let (listener, to) = scene(&tasks).await;
    let refusing = async {
        let mut held = Vec::new();
        loop {
            let mut connection = Frames::accept(&listener).await;
            connection.go_away(0, 0).await;
            held.push(connection);
            opened.fetch_add(1, Ordering::Relaxed);
        }
    };
    let refused = tokio::select! {
        refused = write(&to, "text") => refused.unwrap_err(),
        () = refusing => unreachable!("it accepts for ever"),
    };
    assert_eq!((refused.code(), refused.retry_after()), (503, Some(1)));
    assert_eq!(opened.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn refused_write_is_sent_again_over_the_same_connection_if_it_is_short() {
    const LONG: usize = 100 << 10;
    let tasks = TaskGroup::new();
    let (listener, to) = scene(&tasks).await;
    let serving = async {
        let mut server = Frames::accept(&listener).await;
        assert_eq!(server.request().await, (1, b"short".to_vec()));
        server.write(RST_STREAM, 0, 1, &REFUSED).await;
        assert_eq!(server.request().await, (3, b"short".to_vec()));
        server.answer(3).await;
        let (stream, body) = server.request().await;
        assert_eq!((stream, body.len()), (5, LONG));
        server.write(RST_STREAM, 0, 5, &REFUSED).await;
        server
    };
    let writing = async {
        assert_eq!(write(&to, "short").await.unwrap(), StatusCode::OK);
        write(&to, vec![b'x'; LONG]).await.unwrap_err()
    };
    let (_server, long) = tokio::join!(serving, writing);
    assert_eq!(
        (long.code(), long.retry_after()),
        (503, Some(1)),
        "its sender may repeat it"
    );
}

/// client-go repeats any request that is answered with Retry-After: a repeated DELETE would be answered with 404.
#[tokio::test]
async fn only_a_read_is_to_be_repeated_if_the_server_may_have_acted_on_it() {
    let object = format!("{MAPS}/a");
    for (method, path, want) in [
        (Method::GET, object.as_str(), (503, Some(1))),
        (Method::POST, MAPS, (504, None)),
        (Method::PUT, &object, (504, None)),
        (Method::PATCH, &object, (504, None)),
        (Method::DELETE, &object, (504, None)),
        (Method::DELETE, MAPS, (504, None)),
    ] {
        let tasks = TaskGroup::new();
        let (listener, to) = scene(&tasks).await;
        // Each connection breaks after its first request.
        let breaking = async {
            loop {
                Frames::accept(&listener).await.request().await;
            }
        };
        let body = if method == Method::GET { empty() } else { full("{}") };
        let lost = tokio::select! {
            lost = sent(&to, method.clone(), path, body) => lost.unwrap_err(),
            () = breaking => unreachable!("it accepts for ever"),
        };
        assert_eq!((lost.code(), lost.retry_after()), want, "{method} {path}: {lost:?}");
    }
}
