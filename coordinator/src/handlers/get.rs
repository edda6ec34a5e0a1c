//! GET of one object.

use http::{Response, StatusCode};
use yurt_apimachinery::query::Query;
use yurt_apimachinery::{ResourceVersion, Status};
use yurt_codec::negotiation::Shape;
use yurt_runtime::http::Body;
use yurt_storage::serve::WAIT_FOR_RV;

use crate::request::Call;

/// Answers a get.
///
/// # Errors
/// The error to return.
pub(crate) async fn handle(call: &Call) -> Result<Response<Body>, Status> {
    let negotiated = call.negotiate(Shape::Object)?;
    call.require_served()?;
    let query = Query::parse(call.query.as_deref());
    let asked = query.get("resourceVersion").unwrap_or_default();
    let version = ResourceVersion::parse(asked);
    let version = version.map_err(|error| Status::bad_request(format!("invalid resource version: {error}")))?;
    call.catch_up((!asked.is_empty()).then_some(version)).await?;
    reach(call, version).await?;
    let look = |held: &yurt_collection::Collection| (held.object(&call.key()).cloned(), held.generation());
    let (found, generation) = call.resource.objects().read(look);
    let object = found.ok_or_else(|| Status::not_found(&call.resource.kind.group_resource(), call.name()))?;
    let mut response = call.object(StatusCode::OK, &object, negotiated)?;
    call.add_pool_headers(generation, &mut response);
    Ok(response)
}

/// Waits until the collection has reached `wanted`. An RV of the other space returns the latest state: clients do not
/// expect 410 from a get.
async fn reach(call: &Call, wanted: ResourceVersion) -> Result<(), Status> {
    if wanted.is_zero() || wanted.space() != call.resource.space() {
        return Ok(());
    }
    let objects = call.resource.objects();
    let waited = tokio::time::timeout(WAIT_FOR_RV, objects.reached(wanted)).await;
    let too_large = |_| Status::too_large_resource_version(wanted, objects.read(yurt_collection::Collection::position));
    waited.map_err(too_large)
}
