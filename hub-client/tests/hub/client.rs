//! Client on the node that sends requests to the hub.

use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, USER_AGENT};
use http::{HeaderMap, Method, Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use rustls::ClientConfig;
use serde_json::Value;
use yurt_apimachinery::watch::WatchDecoder;
use yurt_runtime::http::client::{HttpClient, Protocol};
use yurt_runtime::http::{Body, empty, full};
use yurt_test_support::PATIENCE;

/// Maximum bytes of an answer.
const ANSWER_MAX: usize = 64 << 20;

/// A client with a User-Agent and perhaps a token; every request carries both.
#[derive(Clone)]
pub(crate) struct Client {
    http: HttpClient,
    agent: String,
    token: Option<String>,
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// An open watch.
pub(crate) struct Watch {
    pub(crate) headers: HeaderMap,
    body: Incoming,
    decoder: WatchDecoder,
}

/// One event of a watch.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) kind: String,
    pub(crate) object: Value,
    /// The object byte for byte.
    pub(crate) bytes: Bytes,
}

// === impl Client ===

impl Client {
    /// Speaks HTTP/1.1 on plain TCP, and HTTP/2 on TLS, as client-go does.
    pub(crate) fn new(url: &str, tls: Option<ClientConfig>, agent: &str, token: Option<&str>) -> Self {
        let http = HttpClient::new(url.parse().unwrap(), tls, Protocol::Auto, Duration::from_secs(5)).unwrap();
        Self {
            http,
            agent: agent.to_owned(),
            token: token.map(str::to_owned),
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.get_with(path, &[]).await
    }

    pub(crate) async fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.send(request(Method::GET, path, headers, empty())).await
    }

    /// Sends a PUT of exactly these bytes.
    pub(crate) async fn put(&self, path: &str, content_type: &str, body: impl Into<Bytes>) -> Answer {
        self.send(request(
            Method::PUT,
            path,
            &[(CONTENT_TYPE.as_str(), content_type)],
            full(body),
        ))
        .await
    }

    /// Sends a request and reads the whole answer.
    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        self.try_send(request).await.expect("the hub must answer")
    }

    /// Returns `None` if the answer broke off or never came.
    pub(crate) async fn try_send(&self, request: Request<Body>) -> Option<Answer> {
        let is_head = request.method() == Method::HEAD;
        let (code, headers, body) = self
            .http
            .request_bytes(self.signed(request), PATIENCE, ANSWER_MAX)
            .await
            .ok()?;
        let answer = Answer {
            code: code.as_u16(),
            headers,
            body,
        };
        if !is_head {
            answer.check();
        }
        Some(answer)
    }

    /// Sends a request and returns at the answer's headers.
    pub(crate) async fn open(&self, request: Request<Body>) -> Response<Incoming> {
        let sent = tokio::time::timeout(PATIENCE, self.http.send(self.signed(request)));
        sent.await.expect("headers must come").expect("the hub must answer")
    }

    /// Opens a watch; `path` has no `watch` parameter yet.
    pub(crate) async fn watch(&self, path: &str) -> Watch {
        let separator = if path.contains('?') { '&' } else { '?' };
        let response = self
            .open(request(Method::GET, &format!("{path}{separator}watch=1"), &[], empty()))
            .await;
        assert_eq!(response.status(), 200, "{path}");
        let (head, body) = response.into_parts();
        Watch {
            headers: head.headers,
            body,
            decoder: WatchDecoder::new(),
        }
    }

    fn signed(&self, mut request: Request<Body>) -> Request<Body> {
        let headers = request.headers_mut();
        headers.insert(USER_AGENT, self.agent.parse().unwrap());
        if let Some(token) = &self.token {
            headers.insert(AUTHORIZATION, format!("Bearer {token}").parse().unwrap());
        }
        request
    }
}

/// A request with these headers.
pub(crate) fn request(method: Method, path: &str, headers: &[(&str, &str)], body: Body) -> Request<Body> {
    let builder = Request::builder().method(method).uri(path);
    headers
        .iter()
        .fold(builder, |builder, (name, value)| builder.header(*name, *value))
        .body(body)
        .unwrap()
}

/// Returns the next non-empty piece of a body; `None` at its clean end, an error at any other.
pub(crate) async fn piece(body: &mut Incoming) -> Option<Result<Bytes, hyper::Error>> {
    let next = async {
        loop {
            match body.frame().await?.map(|frame| frame.into_data().unwrap_or_default()) {
                Ok(piece) if piece.is_empty() => {}
                other => return Some(other),
            }
        }
    };
    tokio::time::timeout(PATIENCE, next)
        .await
        .expect("a piece or the end must come")
}

// === impl Answer ===

impl Answer {
    /// Checks the properties required of every refusal.
    fn check(&self) {
        let is_json = self
            .headers
            .get(CONTENT_TYPE)
            .is_some_and(|kind| kind == "application/json");
        if self.code < 400 || !is_json {
            return;
        }
        let status = self.json();
        assert_eq!(
            (&status["kind"], &status["code"]),
            (&"Status".into(), &self.code.into()),
            "{status}"
        );
        if status["details"]["retryAfterSeconds"].is_number() {
            assert!(self.headers.contains_key("retry-after"), "{status}");
        }
    }

    /// The body, if the answer has this code.
    #[track_caller]
    pub(crate) fn expect(self, code: u16) -> Bytes {
        assert_eq!(self.code, code, "{}", String::from_utf8_lossy(&self.body));
        self.body
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("the answer must be JSON")
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Names of the items of a list, in its order.
    #[track_caller]
    pub(crate) fn names(&self) -> Vec<String> {
        assert_eq!(self.code, 200, "{}", String::from_utf8_lossy(&self.body));
        let list = self.json();
        let items = list["items"].as_array().expect("a list must have items");
        items
            .iter()
            .map(|item| item["metadata"]["name"].as_str().unwrap().to_owned())
            .collect()
    }
}

// === impl Watch ===

impl Watch {
    /// Returns the next event; `None` at the clean end of the stream.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.decoder.next() {
                let event = event.unwrap();
                let object = serde_json::from_slice(&event.object).unwrap();
                return Some(Event {
                    kind: event.event_type.to_string(),
                    object,
                    bytes: event.object,
                });
            }
            let piece = piece(&mut self.body).await?.expect("a watch must end cleanly");
            self.decoder.push(&piece);
        }
    }

    /// Returns the next event as `TYPE name`.
    pub(crate) async fn told(&mut self) -> String {
        let event = self.next().await.expect("the stream must go on");
        format!(
            "{} {}",
            event.kind,
            event.object["metadata"]["name"].as_str().unwrap_or_default()
        )
    }
}
