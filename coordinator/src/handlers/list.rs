//! LIST: one state of the collection, whole or in pages, assembled from stored bytes.

use http::{HeaderValue, Response, StatusCode};
use yurt_apimachinery::list::ListMeta;
use yurt_apimachinery::{ListOptions, Object, ResourceVersion, Status};
use yurt_codec::negotiation::{Negotiated, Shape};
use yurt_runtime::http::{Body, GZIP_ABOVE, GzipPlace, chunks, respond};
use yurt_storage::serve;

use super::watch;
use crate::request::Call;

/// Answers a list.
///
/// # Errors
/// The error to return.
pub(crate) async fn handle(call: &Call) -> Result<Response<Body>, Status> {
    let negotiated = call.negotiate(Shape::List)?;
    let options = ListOptions::parse(call.query.as_deref(), false, call.resource.kind)?;
    call.require_served()?;
    let selection = watch::selection(call, &options);
    call.catch_up(options.resource_version).await?;
    let objects = call.resource.objects();
    let look = call.resource.look();
    let listed = serve::list(objects, &options, &selection, &*look, ResourceVersion::ZERO).await?;
    let mut response = encode(call, listed.objects, &listed.meta, negotiated).await?;
    call.add_pool_headers(listed.generation, &mut response);
    Ok(response)
}

/// Encodes a list as the answer.
///
/// # Errors
/// 406 when the client asked for another form.
pub(super) async fn encode(
    call: &Call,
    objects: Vec<Object>,
    meta: &ListMeta,
    negotiated: Negotiated,
) -> Result<Response<Body>, Status> {
    negotiated.check(call.resource.kind, Shape::List)?;
    let list = serve::encode(negotiated, call.resource.kind, meta, objects, call.now()).await;
    let content_type = HeaderValue::from_static(negotiated.content_type(Shape::List));
    if let Some(plain) = list.plain().filter(|_| list.is_longer(GZIP_ABOVE))
        && let Some(place) = GzipPlace::take(&call.headers)
    {
        return Ok(place.respond(content_type, list.gzipped(plain)));
    }
    Ok(respond(StatusCode::OK, content_type, chunks(list)))
}
