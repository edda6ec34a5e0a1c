//! Objects in requests and answers: applying a patch, and the answer in the client's format.

use http::header::ACCEPT;
use http::{HeaderValue, Request, Response, StatusCode};
use serde_json::Value;
use yurt_apimachinery::time::Time;
use yurt_apimachinery::{Object, ResourceKind, Status};
use yurt_codec::decoded;
use yurt_codec::negotiation::{PatchType, Shape, negotiate, patch_type};
use yurt_codec::protobuf;
use yurt_codec::schema;
use yurt_patch::{apply_json_patch, apply_merge_patch, apply_strategic_merge_patch, read_strategic_merge_patch};
use yurt_runtime::http::{Body, full, respond};

/// Delay after which a client repeats a request that needs the cloud, s.
pub(crate) const RETRY_AFTER: u32 = 1;

/// Returns the object after a patch.
///
/// # Errors
/// As kube-apiserver; 503 for a server-side apply, which needs the cloud.
pub(super) fn patched(
    kind: &ResourceKind,
    object: &Value,
    content_type: Option<&str>,
    body: &[u8],
) -> Result<Value, Status> {
    decoded::check(body)?;
    let mut object = object.clone();
    match patch_type(content_type)? {
        PatchType::Json => apply_json_patch(&mut object, body)?,
        PatchType::Merge => apply_merge_patch(&mut object, body)?,
        PatchType::StrategicMerge => {
            let schema = schema::find(&kind.group, &kind.version, &kind.kind);
            let schema = schema.ok_or_else(Status::unsupported_patch_type)?;
            apply_strategic_merge_patch(&mut object, read_strategic_merge_patch(body)?, schema)?;
        }
        PatchType::Apply => {
            let why = "the cloud is unreachable, and a server-side apply needs it";
            return Err(Status::service_unavailable(why, RETRY_AFTER));
        }
    }
    Ok(object)
}

/// Returns the answer with an object, in the format that the request accepts. `now` is the Unix time, s.
///
/// # Errors
/// 406 for a format that is not supported.
pub(super) fn reply<B>(
    kind: &'static ResourceKind,
    request: &Request<B>,
    status: StatusCode,
    object: Value,
    now: i64,
) -> Result<Response<Body>, Status> {
    let accept = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok());
    let how = negotiate(
        accept,
        Shape::Object,
        protobuf::supports(kind),
        request.uri().query(),
        None,
    )?;
    how.check(kind, Shape::Object)?;
    let object = Object::from_value(object, kind).map_err(|error| Status::internal(&error.to_string()))?;
    let content_type = HeaderValue::from_static(how.content_type(Shape::Object));
    let body = how.object(kind, &object, Time::from_unix(now));
    Ok(respond(status, content_type, full(body)))
}
