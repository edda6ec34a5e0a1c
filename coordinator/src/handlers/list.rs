//! LIST: one state of the collection, whole or in pages, stitched from stored bytes.

use bytes::Bytes;
use http::{Response, StatusCode};
use yurt_apimachinery::list::{ListMeta, encode_list, encode_partial_list};
use yurt_apimachinery::negotiation::{Negotiated, Shape, Transform};
use yurt_apimachinery::{ListOptions, Object, ResourceVersion, Status};
use yurt_runtime::http::{APPLICATION_JSON, Body, respond};
use yurt_storage::serve;

use super::{Call, body, finish, watch};

/// Answers a list.
///
/// # Errors
/// The answer to give.
pub(crate) async fn handle(call: &Call) -> Result<Response<Body>, Status> {
    let options = ListOptions::parse(call.query.as_deref(), false, call.resource.kind)?;
    let negotiated = call.negotiate(Shape::List)?;
    call.require_served()?;
    let selection = watch::selection(call, &options);
    let objects = call.resource.objects();
    let look = call.resource.look();
    let listed = serve::list(objects, &options, &selection, &*look, ResourceVersion::ZERO).await?;
    let mut response = encode(call, &listed.objects, &listed.meta, negotiated);
    call.add_pool_headers(&mut response);
    Ok(response)
}

/// A list as the answer.
pub(super) fn encode(call: &Call, objects: &[Object], meta: &ListMeta, negotiated: Negotiated) -> Response<Body> {
    let mut pieces = match negotiated.transform {
        Transform::None => encode_list(call.resource.kind, meta, objects),
        Transform::PartialObjectMetadata => encode_partial_list(meta, objects),
    };
    if negotiated.pretty {
        pieces = vec![finish(Bytes::from(pieces.concat()), true)];
    }
    respond(StatusCode::OK, APPLICATION_JSON, body::of_pieces(pieces))
}
