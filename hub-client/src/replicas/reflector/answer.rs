//! Reads answers of servers: whole bodies, the Status that ends a stream, the generation of the data.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Response, StatusCode};
use yurt_apimachinery::Status;
use yurt_pool_protocol::names::{GENERATION_HEADER, STALE_HEADER};
use yurt_runtime::http::{Body, Decoded};

use super::{IDLE, StreamEnd};

/// Maximum bytes of an answer that is no page of a list: a Status, or a NodePool. etcd stores at most 1.5 MiB of it.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// Generation of the data, from the server's header.
pub(in crate::replicas) fn generation_of(headers: &HeaderMap) -> Option<u64> {
    headers.get(GENERATION_HEADER)?.to_str().ok()?.parse().ok()
}

/// True if no leader confirms the data, by the server's header.
pub(super) fn is_stale(headers: &HeaderMap) -> bool {
    headers.get(STALE_HEADER).is_some_and(|value| value == "true")
}

/// Returns the end of a stream for this Status, from an ERROR event or the body of a refusal.
pub(in crate::replicas) fn ended_by(status: &Bytes) -> StreamEnd {
    match Status::from_json(status) {
        Some(status) if status.code() == StatusCode::GONE.as_u16() => StreamEnd::Expired,
        Some(status) if status.code() == StatusCode::TOO_MANY_REQUESTS.as_u16() => {
            StreamEnd::NotReady(status.retry_after().map(|seconds| Duration::from_secs(seconds.into())))
        }
        Some(status) => StreamEnd::Failed(status.message().to_owned()),
        None => StreamEnd::Failed("unreadable ERROR event".into()),
    }
}

/// Reads a whole body of at most 4 MiB.
///
/// # Errors
/// A longer body, and every error of the connection.
pub(in crate::replicas) async fn read_all(response: Response<Body>) -> Result<Bytes, StreamEnd> {
    let check = |bytes| match bytes > ANSWER_BYTES_MAX {
        true => Err(StreamEnd::Failed(format!(
            "the answer is larger than {ANSWER_BYTES_MAX} bytes"
        ))),
        false => Ok(()),
    };
    read_checked(response, check).await
}

/// Reads a whole body; `check` may end it at each length that it reaches. The timeout applies to the time without
/// progress, so a slow link does not fail.
pub(in crate::replicas) async fn read_checked(
    response: Response<Body>,
    check: impl Fn(usize) -> Result<(), StreamEnd>,
) -> Result<Bytes, StreamEnd> {
    let mut body = Decoded::of(response).map_err(|error| StreamEnd::Failed(error.to_string()))?;
    let mut read = BytesMut::new();
    loop {
        let next = tokio::time::timeout(IDLE, body.next()).await;
        match next.map_err(|_| StreamEnd::Failed("the answer ended early".into()))? {
            None => return Ok(read.freeze()),
            Some(Err(error)) => return Err(StreamEnd::Failed(error.to_string())),
            Some(Ok(data)) => {
                check(read.len() + data.len())?;
                read.extend_from_slice(&data);
            }
        }
    }
}
