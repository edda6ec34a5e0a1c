//! Member for tests that answers each call as the test decides.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Response};
use http_body_util::BodyExt as _;
use prost::Message;
use yurt_runtime::TaskGroup;
use yurt_runtime::http::server::{Server, handler};
use yurt_runtime::http::{self as web, Body};

use super::grpc;

/// Starts a member in `tasks` and returns its URL. `answer` gets the path of the call, and its first message.
pub(super) async fn start(
    tasks: &TaskGroup,
    answer: impl Fn(&str, Bytes) -> Response<Body> + Send + Sync + 'static,
) -> String {
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = Server::bind(loopback, "test").await.expect("a port");
    let url = format!("http://{}", server.local_addr());
    let answer = Arc::new(answer);
    let answer = handler(move |request, _| {
        let answer = answer.clone();
        async move {
            let (head, mut body) = request.into_parts();
            let first = body.frame().await.expect("a message").expect("a body");
            let message = first.into_data().expect("data").slice(5..);
            answer(head.uri.path(), message)
        }
    });
    let _serving = server.serve(tasks, answer);
    url
}

/// A successful call with this answer.
pub(super) fn message(message: &impl Message) -> Response<Body> {
    bytes(grpc::frame(message))
}

/// A successful call with an answer of these bytes.
pub(super) fn bytes(bytes: Bytes) -> Response<Body> {
    with_status(bytes, HeaderValue::from_static("0"))
}

/// A call that fails with this code.
pub(super) fn refusal(code: HeaderValue) -> Response<Body> {
    with_status(Bytes::new(), code)
}

fn with_status(bytes: Bytes, code: HeaderValue) -> Response<Body> {
    let mut response = Response::new(web::full(bytes));
    response.headers_mut().insert("grpc-status", code);
    response
}
