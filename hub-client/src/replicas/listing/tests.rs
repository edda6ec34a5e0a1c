//! Ends of lists, at a server of the test.

use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use yurt_pool_protocol::source::Source;
use yurt_runtime::http::client::{Dial, Duplex, Protocol};

use super::*;
use crate::replicas::history_check::Opened;
use crate::replicas::reflector::tests::HeldServices;

/// Maximum bytes of pool data.
const LIMIT: usize = 4 << 10;

fn service(version: u64, annotation: &str) -> String {
    format!(
        r#"{{"apiVersion":"v1","kind":"Service","metadata":{{"namespace":"shop","name":"new","uid":"new","resourceVersion":"{version}","annotations":{{"a":"{annotation}"}}}}}}"#
    )
}

/// Returns the answer to a request with this head; `None` if there is none.
fn answer(asked: &str) -> Option<String> {
    const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n";
    if asked.contains("watch=") {
        let event = format!(
            r#"{{"type":"ADDED","object":{}}}"#,
            service(1011, &"x".repeat(2 * LIMIT))
        );
        let chunk = format!("{:x}\r\n{event}\n\r\n", event.len() + 1);
        return Some(format!("{HEAD}transfer-encoding: chunked\r\n\r\n{chunk}"));
    }
    let items = service(1010, "");
    let metadata = r#"{"resourceVersion":"1010","continue":"next"}"#;
    let page = format!(r#"{{"apiVersion":"v1","kind":"ServiceList","metadata":{metadata},"items":[{items}]}}"#);
    let length = page.len();
    (!asked.contains("continue=")).then(|| format!("{HEAD}connection: close\r\ncontent-length: {length}\r\n\r\n{page}"))
}

/// A server that sends the first page of a list, and a change that is too large to a watch. It does not answer the
/// request for the next page.
fn slow_server() -> HttpClient {
    let dial: Dial = Arc::new(|| {
        let (near, mut far) = tokio::io::duplex(64 << 10);
        let serve = async move {
            let mut asked = [0; 4096];
            let length = far.read(&mut asked).await.unwrap();
            if let Some(answer) = answer(&String::from_utf8_lossy(&asked[..length])) {
                far.write_all(answer.as_bytes()).await.unwrap();
            }
            // The connection stays up.
            std::future::pending::<()>().await;
        };
        let near: Box<dyn Duplex> = Box::new(near);
        #[allow(clippy::disallowed_methods, reason = "ends with the test's runtime")]
        drop(tokio::spawn(serve));
        Box::pin(async move { Ok(near) })
    });
    let base = "http://cloud".parse().unwrap();
    HttpClient::over(base, None, Protocol::Http1, Duration::from_secs(20), Some(dial)).unwrap()
}

#[tokio::test(start_paused = true)]
async fn list_is_dropped_if_a_change_beside_it_does_not_fit() {
    let held = HeldServices::within(LIMIT);
    let mut stream = held.stream(Source::Cloud);
    stream.client = slow_server();
    held.data.history().prove(Opened {
        pool: u64::MAX,
        ..Opened::default()
    });
    let listed = tokio::time::timeout(Duration::from_secs(3600), stream.list()).await;
    assert!(matches!(listed, Ok(Err(StreamEnd::Oversized(_)))), "{listed:?}");
    let received = held.data.partial_lists().received();
    assert!(
        received.is_empty(),
        "it would take the room of other lists: {received:?}"
    );
}
