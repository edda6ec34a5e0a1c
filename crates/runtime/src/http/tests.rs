//! Server and client against each other over loopback, plain TCP. The tests of [`crate::tls`] cover TLS.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream as streams};
use http::header::{CACHE_CONTROL, CONNECTION, UPGRADE, X_CONTENT_TYPE_OPTIONS};
use http::{Method, Request, StatusCode, Version};
use http_body_util::BodyExt as _;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc};

use super::client::{ClientError, HttpClient, Protocol};
use super::server::{Handler, Limits, Server, Serving, handler};
use super::*;
use crate::tasks::TaskGroup;

const TIMEOUT: Duration = Duration::from_secs(20);

async fn serve(tasks: &TaskGroup, handler: Handler) -> Serving {
    Server::bind("127.0.0.1:0".parse().unwrap(), "--test")
        .await
        .unwrap()
        .serve(tasks, handler)
}

fn client(serving: &Serving, protocol: Protocol) -> HttpClient {
    let base = format!("http://{}/base/", serving.local_addr()).parse().unwrap();
    HttpClient::new(base, None, protocol, TIMEOUT).unwrap()
}

/// Answers the first request for `/base/watch` with what it receives.
fn sending(receiver: mpsc::Receiver<Bytes>) -> Handler {
    let receiver = parking_lot::Mutex::new(Some(receiver));
    handler(move |request, _| {
        assert_eq!(request.uri().path(), "/base/watch");
        let receiver = receiver.lock().take().unwrap();
        let pieces = streams::unfold(receiver, |mut receiver| async {
            receiver.recv().await.map(|piece| (Ok::<_, BoxError>(piece), receiver))
        });
        std::future::ready(Response::new(stream(pieces)))
    })
}

fn get(path: &str) -> Request<Body> {
    Request::get(path).body(empty()).unwrap()
}

#[tokio::test]
async fn pieces_of_a_response_arrive_as_they_are_sent() {
    let tasks = TaskGroup::new();
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let (send, receiver) = mpsc::channel::<Bytes>(1);
        let serving = serve(&tasks, sending(receiver)).await;
        let response = client(&serving, protocol).send(get("/watch")).await.unwrap();
        let expected = if protocol == Protocol::Http2 {
            Version::HTTP_2
        } else {
            Version::HTTP_11
        };
        assert_eq!(response.version(), expected);
        let mut body = response.into_body().into_data_stream();
        // Each piece is sent only after the one before was received, so nothing waits for a full buffer.
        for piece in ["one\n", "two\n"] {
            send.send(Bytes::from(piece)).await.unwrap();
            assert_eq!(body.next().await.unwrap().unwrap(), piece);
        }
        drop(send);
        // HTTP/2 may end with an empty piece.
        assert!(body.all(async |piece| piece.unwrap().is_empty()).await);
    }
}

/// Conformance: 7.71
#[tokio::test]
async fn silence_of_ten_minutes_does_not_end_a_watch() {
    let tasks = TaskGroup::new();
    let (send, receiver) = mpsc::channel::<Bytes>(1);
    let serving = serve(&tasks, sending(receiver)).await;
    // Without PINGs, which need real answers at the pace of a clock that is advanced.
    let response = client(&serving, Protocol::Http1).send(get("/watch")).await.unwrap();
    tokio::time::pause();
    tokio::time::sleep(Duration::from_secs(600)).await;
    tokio::time::resume();
    send.send(Bytes::from_static(b"an event")).await.unwrap();
    let frame = response.into_body().frame().await.unwrap().unwrap();
    assert_eq!(frame.into_data().unwrap(), "an event");
}

#[tokio::test]
async fn json_goes_both_ways_with_the_token() {
    let tasks = TaskGroup::new();
    let echo = handler(|request, peer| async move {
        assert!(peer.identity.is_none() && !peer.tls && peer.addr.ip().is_loopback());
        assert_eq!(request.headers()["authorization"], "Bearer t0ken");
        assert_eq!(request.headers()["content-type"], "application/json");
        json(StatusCode::CREATED, read_body(request.into_body(), 100).await.unwrap())
    });
    let serving = serve(&tasks, echo).await;
    let client = client(&serving, Protocol::Http2);
    client.set_bearer_token(Some("t0ken"));
    let value = serde_json::json!({"a": [1, 2]});
    let (status, headers, body) = client
        .request_json(Method::POST, "/x?y=z", Some(&value), TIMEOUT)
        .await
        .unwrap();
    assert_eq!(
        (status, &headers["content-type"]),
        (StatusCode::CREATED, &APPLICATION_JSON)
    );
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&body).unwrap(), value);
}

#[tokio::test]
async fn answers_may_not_be_cached_unless_they_say_so() {
    let tasks = TaskGroup::new();
    let serving = serve(
        &tasks,
        handler(|request, _| async move {
            let mut response = json(StatusCode::OK, "{}");
            match request.uri().path() {
                "/base/panic" => panic!("of the test"),
                "/base/public" => drop(
                    response
                        .headers_mut()
                        .insert(CACHE_CONTROL, HeaderValue::from_static("public")),
                ),
                _ => {}
            }
            response
        }),
    )
    .await;
    let client = client(&serving, Protocol::Http1);
    for (path, expected) in [
        ("/x", "no-cache, private"),
        ("/panic", "no-cache, private"),
        ("/public", "public"),
    ] {
        let response = client.send(get(path)).await.unwrap();
        assert_eq!(response.headers().get(CACHE_CONTROL).unwrap(), expected, "{path}");
    }
}

/// As kube-apiserver: denials, and everything that Go's `http.Error` writes.
#[test]
fn denials_and_errors_in_text_may_not_be_guessed_at() {
    let is_nosniff = |response: Response<Body>| {
        response
            .headers()
            .get(X_CONTENT_TYPE_OPTIONS)
            .is_some_and(|v| v == "nosniff")
    };
    let denial = yurt_apimachinery::status::Denial {
        user: "x",
        ..Default::default()
    };
    assert!(is_nosniff(status_response(&Status::denied(&denial))));
    assert!(is_nosniff(status_response(&Status::too_many_requests("later", 1))));
    assert!(is_nosniff(text(StatusCode::NOT_FOUND, "404 page not found\n")));
    assert!(!is_nosniff(text(StatusCode::OK, "ok")));
    for status in [
        Status::unauthorized(),
        Status::bad_request("no"),
        Status::unknown_resource(),
    ] {
        assert!(!is_nosniff(status_response(&status)), "{status:?}");
    }
}

#[tokio::test]
async fn bodies_above_their_limit_are_refused_on_both_sides() {
    let tasks = TaskGroup::new();
    let small = handler(|request, _| async {
        match read_body(request.into_body(), 10).await {
            Ok(body) => Response::new(full(body)),
            Err(status) => status_response(&status),
        }
    });
    let serving = serve(&tasks, small).await;
    let client = client(&serving, Protocol::Http1);
    let post = |body: Body| Request::post("/").body(body).unwrap();
    let (status, ..) = client
        .request_bytes(post(full("0123456789")), TIMEOUT, 10)
        .await
        .unwrap();
    assert_eq!(status, 200);
    let pieces = streams::iter(["012345", "6789a"]).map(|piece| Ok::<_, BoxError>(Bytes::from(piece)));
    let (status, ..) = client.request_bytes(post(stream(pieces)), TIMEOUT, 1000).await.unwrap();
    assert_eq!(status, 413);
    let error = client
        .request_bytes(post(full("0123456789")), TIMEOUT, 9)
        .await
        .unwrap_err();
    assert_eq!(
        error,
        ClientError::BodyTooLarge {
            server: client.server(),
            limit: 9
        }
    );
}

#[tokio::test]
async fn upgraded_connection_is_a_pipe() {
    let tasks = TaskGroup::new();
    let group = tasks.clone();
    let echo = handler(move |mut request, _| {
        let upgrade = hyper::upgrade::on(&mut request);
        group.spawn("echo", async move {
            let mut io = TokioIo::new(upgrade.await.unwrap());
            let mut buffer = [0; 4];
            io.read_exact(&mut buffer).await.unwrap();
            io.write_all(&buffer).await.unwrap();
        });
        let response = Response::builder()
            .status(101)
            .header(CONNECTION, "Upgrade")
            .header(UPGRADE, "SPDY/3.1");
        std::future::ready(response.body(empty()).unwrap())
    });
    let serving = serve(&tasks, echo).await;
    let request = Request::post("/exec")
        .header(CONNECTION, "Upgrade")
        .header(UPGRADE, "SPDY/3.1")
        .body(empty());
    let response = client(&serving, Protocol::Http1).send(request.unwrap()).await.unwrap();
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
    let mut io = TokioIo::new(hyper::upgrade::on(response).await.unwrap());
    io.write_all(b"ping").await.unwrap();
    let mut answer = Vec::new();
    io.read_to_end(&mut answer).await.unwrap();
    assert_eq!(answer, b"ping");
    tasks.shutdown(TIMEOUT).await.unwrap();
    assert!(futures_util::FutureExt::now_or_never(tasks.failed()).is_none());
}

#[tokio::test]
async fn panicking_handler_answers_500_and_the_connection_goes_on() {
    let tasks = TaskGroup::new();
    let moody = handler(|request, _| {
        assert!(request.uri().path() != "/base/before", "panic before the future");
        async move {
            assert!(request.uri().path() != "/base/inside", "panic inside the future");
            text(StatusCode::OK, "fine")
        }
    });
    let serving = serve(&tasks, moody).await;
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let client = client(&serving, protocol);
        for (path, expected) in [("/before", 500), ("/inside", 500), ("/ok", 200)] {
            let (status, ..) = client.request_json(Method::GET, path, None, TIMEOUT).await.unwrap();
            assert_eq!(status, expected, "{path}");
        }
    }
    assert!(futures_util::FutureExt::now_or_never(tasks.failed()).is_none());
}

#[tokio::test]
async fn answer_to_head_has_the_length_of_a_body_and_none() {
    let tasks = TaskGroup::new();
    let serving = serve(&tasks, handler(async |_, _| text(StatusCode::OK, "four"))).await;
    for protocol in [Protocol::Http1, Protocol::Http2] {
        // The client refuses an answer with a body.
        let client = client(&serving, protocol);
        let answer = client.request_json(Method::HEAD, "/", None, TIMEOUT).await;
        let (status, headers, body) = answer.unwrap();
        assert_eq!((status, body.len()), (StatusCode::OK, 0));
        assert_eq!(headers["content-length"], "4", "{protocol:?}");
    }
}

/// A client that impersonates a user sends one line for each of its groups.
#[tokio::test]
async fn request_may_have_hundreds_of_header_lines() {
    let tasks = TaskGroup::new();
    let serving = serve(&tasks, handler(async |_, _| text(StatusCode::OK, "fine"))).await;
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let mut request = get("/");
        for group in 0..200 {
            let group = format!("group-{group}").parse().unwrap();
            request.headers_mut().append("impersonate-group", group);
        }
        let response = client(&serving, protocol).send(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK, "{protocol:?}");
    }
}

#[tokio::test]
async fn shutdown_finishes_running_requests_and_refuses_new_connections() {
    let tasks = TaskGroup::new();
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let (entered, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (inside, wait) = (entered.clone(), go.clone());
        let slow = handler(move |_, _| {
            let (inside, wait) = (inside.clone(), wait.clone());
            async move {
                inside.notify_one();
                wait.notified().await;
                text(StatusCode::OK, "done")
            }
        });
        let serving = serve(&tasks, slow).await;
        let client = client(&serving, protocol);
        let answer = tasks.detached("request", {
            let client = client.clone();
            async move { client.request_json(Method::GET, "/", None, TIMEOUT).await }
        });
        entered.notified().await;
        let (stopped, ()) = tokio::join!(serving.shutdown(TIMEOUT), async {
            // The port is closed before the request ends.
            while TcpStream::connect(serving.local_addr()).await.is_ok() {
                tokio::task::yield_now().await;
            }
            go.notify_one();
        });
        stopped.unwrap();
        assert_eq!(answer.await.unwrap().unwrap().2, "done");
        let error = client.request_json(Method::GET, "/", None, TIMEOUT).await.unwrap_err();
        assert!(
            matches!(error, ClientError::Connect { .. }) && error.never_sent(),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn client_that_hangs_up_ends_its_read_but_not_its_detached_write() {
    let tasks = TaskGroup::new();
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let (entered, mut inside) = mpsc::channel::<()>(1);
        let (go, written) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (wait, done, group) = (go.clone(), written.clone(), tasks.clone());
        let write = handler(move |_, _| {
            let (entered, wait, done) = (entered.clone(), wait.clone(), done.clone());
            let written = group.detached("write", async move {
                wait.notified().await;
                done.notify_one();
            });
            async move {
                entered.send(()).await.unwrap();
                // Held by the handler's future: its end is seen when the channel closes.
                let _held = entered;
                written.await.unwrap();
                text(StatusCode::OK, "")
            }
        });
        let serving = serve(&tasks, write).await;
        let request = client(&serving, protocol);
        tokio::select! {
            answer = request.send(get("/")) => panic!("{answer:?}"),
            _ = inside.recv() => {}
        }
        drop(request);
        serving.shutdown(TIMEOUT).await.unwrap();
        assert!(inside.recv().await.is_none(), "the handler is gone");
        go.notify_one();
        written.notified().await;
    }
}

#[tokio::test]
async fn endless_response_is_cut_at_the_deadline() {
    let tasks = TaskGroup::new();
    let endless =
        handler(|_, _| std::future::ready(Response::new(stream(streams::pending::<Result<Bytes, BoxError>>()))));
    let serving = serve(&tasks, endless).await;
    let response = client(&serving, Protocol::Http2).send(get("/watch")).await.unwrap();
    let still = serving.shutdown(Duration::from_millis(10)).await.unwrap_err();
    assert!(still.names.contains(&"connection"), "{still}");
    assert!(response.into_body().collect().await.is_err());
}

#[tokio::test]
async fn silent_connections_are_closed_and_make_room() {
    let tasks = TaskGroup::new();
    let limits = Limits {
        max_strangers: 1,
        header_timeout: Duration::from_millis(50),
        ..Limits::default()
    };
    let server = Server::bind("127.0.0.1:0".parse().unwrap(), "--test")
        .await
        .unwrap()
        .with_limits(limits);
    let serving = server.serve(&tasks, handler(|_, _| async { text(StatusCode::OK, "ok") }));
    for start in ["", "PRI * HT", "GET / HTTP/1.1\r\nHost:"] {
        let mut silent = TcpStream::connect(serving.local_addr()).await.unwrap();
        silent.write_all(start.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // Ends because the server closes; earlier data or a reset does not matter.
        let _ = silent.read_to_end(&mut answer).await;
    }
    let (status, ..) = client(&serving, Protocol::Http1)
        .request_json(Method::GET, "/", None, TIMEOUT)
        .await
        .unwrap();
    assert_eq!(status, 200);
}

/// A client that followed redirects would carry its credentials to where a server sends it.
#[tokio::test]
async fn redirects_are_answers_and_not_followed() {
    let tasks = TaskGroup::new();
    let asked = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = asked.clone();
    let elsewhere = serve(
        &tasks,
        handler(move |_, _| {
            count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            std::future::ready(text(StatusCode::OK, "stolen"))
        }),
    )
    .await;
    let target = format!("http://{}/", elsewhere.local_addr());
    for code in [301, 302, 303, 307, 308] {
        let location = target.clone();
        let redirecting = handler(move |_, _| {
            let answer = Response::builder().status(code).header("location", &location);
            std::future::ready(answer.body(empty()).unwrap())
        });
        let serving = serve(&tasks, redirecting).await;
        let client = client(&serving, Protocol::Http1);
        client.set_bearer_token(Some("t0ken"));
        let (status, headers, _) = client.request_json(Method::GET, "/", None, TIMEOUT).await.unwrap();
        assert_eq!(
            (status.as_u16(), headers["location"].to_str().unwrap()),
            (code, &*target)
        );
    }
    assert_eq!(asked.load(std::sync::atomic::Ordering::Relaxed), 0);
}

/// Six ports of a hub under 1,024 files: connections held at one of them leave the others their share.
#[test]
fn budgets_fit_the_open_files() {
    let default = Limits::default();
    let plenty = default.clone().within(10_000);
    assert_eq!(
        (plenty.max_connections, plenty.max_strangers, plenty.max_waiting),
        (default.max_connections, default.max_strangers, default.max_waiting)
    );
    for files in [1, 8, 128, 1024, 3511] {
        let limits = default.clone().within(files);
        let granted = limits.max_connections + 2 * (limits.max_strangers + limits.max_waiting);
        assert!(
            granted <= files.max(5) && limits.max_connections > 0,
            "{files}: {limits:?}"
        );
        assert!(granted > files / 2, "{files}: {limits:?}");
    }
}

/// Waiting connections give way first, then strangers down to their share, and known clients last.
#[test]
fn short_files_are_taken_from_those_that_wait_first() {
    let granted = |files| {
        let limits = Limits {
            max_connections: 100,
            max_strangers: 20,
            max_waiting: 30,
            ..Limits::default()
        }
        .within(files);
        (limits.max_connections, limits.max_strangers, limits.max_waiting)
    };
    let expected = [
        (200, (100, 20, 30)),
        (199, (100, 20, 29)),
        (150, (100, 20, 5)),
        (140, (98, 17, 4)),
        (120, (84, 15, 3)),
    ];
    for (files, expected) in expected {
        assert_eq!(granted(files), expected, "{files} files");
    }
}

#[tokio::test]
async fn errors_name_the_server_or_the_flag() {
    let taken = Server::bind("127.0.0.1:0".parse().unwrap(), "--first").await.unwrap();
    let error = Server::bind(taken.local_addr(), "--secure-port")
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("--secure-port") && error.contains(&taken.local_addr().to_string()),
        "{error}"
    );

    let unusable = |base: &'static str| {
        HttpClient::new(http::Uri::from_static(base), None, Protocol::Auto, TIMEOUT)
            .unwrap_err()
            .to_string()
    };
    assert!(unusable("https://h:1").contains("needs a certificate authority"));
    assert!(unusable("/path").contains("no host"));

    // Bound, not accepting: the connection is established, and no answer comes.
    let base = format!("http://{}", taken.local_addr()).parse().unwrap();
    let client = HttpClient::new(base, None, Protocol::Http1, TIMEOUT).unwrap();
    let error = client
        .request_json(Method::GET, "/", None, Duration::from_millis(10))
        .await
        .unwrap_err();
    assert!(
        matches!(error, ClientError::Timeout { connecting: false, .. }) && !error.never_sent(),
        "{error:?}"
    );
}

/// As kube-apiserver's port does.
#[tokio::test]
async fn unspecified_address_listens_on_both_families() {
    let server = Server::bind("0.0.0.0:0".parse().unwrap(), "--test").await.unwrap();
    assert_eq!(server.local_addr().ip().to_string(), "0.0.0.0");
    let port = server.local_addr().port();
    let tasks = TaskGroup::new();
    let answer = handler(|_, peer| {
        let texts = format!("{} {}", peer.addr.ip(), peer.local_addr.ip());
        async move { text(StatusCode::OK, texts) }
    });
    let _serving = server.serve(&tasks, answer);
    let has_ipv6 = std::net::TcpListener::bind("[::1]:0").is_ok();
    let hosts = [("127.0.0.1", true), ("[::1]", has_ipv6)];
    for (host, _) in hosts.into_iter().filter(|(_, is_there)| *is_there) {
        let uri = format!("http://{host}:{port}").parse().unwrap();
        let client = HttpClient::new(uri, None, Protocol::Http1, Duration::from_secs(5)).unwrap();
        let answer = client
            .request_json(Method::GET, "/", None, Duration::from_secs(5))
            .await;
        let ip = host.trim_matches(['[', ']']);
        assert_eq!(answer.expect("an answer").2, format!("{ip} {ip}"), "{host}");
    }
}
