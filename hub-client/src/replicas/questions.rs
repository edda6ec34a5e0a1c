//! Single requests to a server of the cloud that check the history and truth of the replicas.

use std::time::Duration;

use bytes::Bytes;
use http::header::ACCEPT;
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use yurt_apimachinery::list::ParsedList;
use yurt_apimachinery::{ObjectKey, ResourceKind, ResourceVersion};
use yurt_runtime::http::client::HttpClient;
use yurt_runtime::http::{Body, empty, read_body};

use super::listing::escaped;
use crate::upstream::CloudServer;

/// Longest wait for one answer.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum bytes of an answer; each is an object without its content, or a lease.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// Returns the body, in this `shape` of the object where supported; `None` if it is missing, forbidden, compacted or
/// unreadable.
pub(super) async fn get(server: &CloudServer, path: &str, shape: &str) -> Result<Option<Bytes>, String> {
    let (status, _, body) = ask(&server.beats, path, shape, TIMEOUT).await?;
    match status {
        StatusCode::OK => Ok(Some(body)),
        StatusCode::NOT_FOUND | StatusCode::FORBIDDEN | StatusCode::GONE | StatusCode::BAD_REQUEST => Ok(None),
        status => Err(format!("{}{path}: {status}", server.beats.server())),
    }
}

/// Returns one object that may be evidence; `None` also if the server fails to read it, as with a key that it has lost:
/// it serves all else. An overloaded server is an error.
pub(super) async fn get_object(server: &CloudServer, path: &str, shape: &str) -> Result<Option<Bytes>, String> {
    let (status, _, body) = ask(&server.beats, path, shape, TIMEOUT).await?;
    match status {
        StatusCode::OK => Ok(Some(body)),
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            Err(format!("{}{path}: {status}", server.beats.server()))
        }
        _ => Ok(None),
    }
}

/// Path of a list of one object, which also returns the head of the server.
pub(crate) fn one(kind: &ResourceKind, key: &ObjectKey) -> String {
    let folder = match key.namespace() {
        Some(namespace) => kind.namespaced_path(&escaped(namespace)),
        None => kind.collection_path(),
    };
    format!("{folder}?fieldSelector=metadata.name%3D{}", escaped(key.name()))
}

/// Returns the answer to a `GET` of `path`, in this `shape` of the object where supported.
pub(crate) async fn ask(
    client: &HttpClient,
    path: &str,
    shape: &str,
    timeout: Duration,
) -> Result<(StatusCode, HeaderMap, Bytes), String> {
    let answered = client
        .request_bytes(request(path, shape)?, timeout, ANSWER_BYTES_MAX)
        .await;
    answered.map_err(|error| error.to_string())
}

fn request(path: &str, shape: &str) -> Result<Request<Body>, String> {
    let mut request = Request::new(empty());
    *request.uri_mut() = path.parse().map_err(|_| format!("{path:?} is not a path"))?;
    let accept = match shape {
        "" => "application/json".to_owned(),
        shape => format!("application/json;as={shape};g=meta.k8s.io;v=v1,application/json"),
    };
    let accept = HeaderValue::try_from(accept).map_err(|error| error.to_string())?;
    request.headers_mut().insert(ACCEPT, accept);
    Ok(request)
}

/// Returns the RV of a list without resourceVersion: the server has everything acknowledged before.
///
/// # Errors
/// The reason, for the log.
pub(crate) async fn head(server: &CloudServer, kind: &ResourceKind) -> Result<ResourceVersion, String> {
    let path = format!("{}?limit=1", kind.collection_path());
    let list = get(server, &path, "PartialObjectMetadataList").await?;
    head_of(list.ok_or_else(|| format!("{path} cannot be read"))?, kind)
}

/// Returns the RV of a list.
pub(super) fn head_of(list: Bytes, kind: &ResourceKind) -> Result<ResourceVersion, String> {
    let list = ParsedList::parse(list, kind).map_err(|error| error.to_string())?;
    Ok(list.meta.resource_version)
}

/// Returns the number of the data connection that answers, and the object at `path`; `None` if no answer arrives in
/// time.
pub(super) async fn first(server: &CloudServer, path: &str) -> Option<(u64, Bytes)> {
    let request = request(path, "PartialObjectMetadataList").ok()?;
    let round_trip = async {
        let response = server.streams.send(request).await.ok()?;
        let number = HttpClient::connection_of(&response);
        let is_ok = response.status() == StatusCode::OK;
        let body = read_body(response.into_body(), ANSWER_BYTES_MAX).await.ok()?;
        is_ok.then_some((number, body))
    };
    tokio::time::timeout(TIMEOUT, round_trip).await.ok()?
}
