//! LIST: one snapshot of the collection, stitched from stored bytes. `limit` may be ignored, and is.

use bytes::Bytes;
use http::{Response, StatusCode};
use yurt_apimachinery::list::{ListMeta, encode_list, encode_partial_list};
use yurt_apimachinery::negotiation::{Negotiated, Shape, Transform};
use yurt_apimachinery::{ListOptions, Object, ResourceVersion, Status};
use yurt_runtime::http::{APPLICATION_JSON, Body, respond};
use yurt_storage::serve::{self, Unfiltered};

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
    let listed = serve::list(objects, &options, &selection, &Unfiltered, ResourceVersion::ZERO).await?;
    let mut response = encode(call, &listed.objects, listed.position, negotiated);
    call.add_pool_headers(&mut response);
    Ok(response)
}

/// A list as the answer.
pub(super) fn encode(
    call: &Call,
    objects: &[Object],
    position: ResourceVersion,
    negotiated: Negotiated,
) -> Response<Body> {
    let meta = ListMeta::at(position);
    let mut pieces = match negotiated.transform {
        Transform::None => encode_list(call.resource.kind, &meta, objects),
        Transform::PartialObjectMetadata => encode_partial_list(&meta, objects),
    };
    if negotiated.pretty {
        pieces = vec![finish(Bytes::from(pieces.concat()), true)];
    }
    respond(StatusCode::OK, APPLICATION_JSON, body::of_pieces(pieces))
}
