//! One answer to a list: which state, which objects.

use yurt_apimachinery::options::ResourceVersionMatch;
use yurt_apimachinery::{ListOptions, Object, ResourceVersion, Status};

use super::{Selection, View, WAIT_FOR_RV};
use crate::shared::SharedCollection;

/// Objects of a list and the RV they are consistent at.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Objects as the client sees them, in key order.
    pub objects: Vec<Object>,
    /// The list's resourceVersion.
    pub position: ResourceVersion,
    /// Timeline of the RV.
    pub generation: u64,
}

/// Lists `selection` of `shared`.
///
/// `limit` is ignored (the whole list is one page, which the API allows), so no `continue` token is ever ours. `least`
/// is the RV a read without resourceVersion has to reflect (writes this process forwarded); zero for own objects.
///
/// # Errors
/// 429 while the collection is incomplete (never an empty list), 410 for an RV of another space, an exact RV other than
/// the present one or any `continue` token, 504 for an RV that does not arrive within [`WAIT_FOR_RV`].
///
/// # Cancel safety
/// Holds nothing while waiting.
pub async fn list(
    shared: &SharedCollection,
    options: &ListOptions,
    selection: &Selection,
    view: &dyn View,
    least: ResourceVersion,
) -> Result<Listed, Status> {
    if !shared.read(|collection| collection.is_complete()) {
        return Err(not_ready(shared));
    }
    if options.continue_token.is_some() {
        return Err(Status::continue_expired(None));
    }
    let wanted = options.resource_version.unwrap_or(least);
    check_space(shared, wanted)?;
    let waited = tokio::time::timeout(WAIT_FOR_RV, shared.reached(wanted)).await;
    let position = shared.read(|collection| collection.position());
    if waited.is_err() {
        return Err(Status::too_large_resource_version(wanted, position));
    }
    if options.resource_version_match == Some(ResourceVersionMatch::Exact) && wanted != position {
        return Err(Status::list_expired());
    }
    let (snapshot, generation) =
        shared.read(|collection| (collection.snapshot(selection.confined_to()), collection.generation()));
    let seen = |object: &Object| {
        if selection.matches(object) {
            view.show(object)
        } else {
            None
        }
    };
    let objects = snapshot.objects.iter().filter_map(seen).collect();
    Ok(Listed {
        objects,
        position: snapshot.position,
        generation,
    })
}

/// 410 when `wanted` belongs to the other RV space: a reader that moved between authorities has to start over.
pub(super) fn check_space(shared: &SharedCollection, wanted: ResourceVersion) -> Result<(), Status> {
    let position = shared.read(|collection| collection.position());
    if wanted != ResourceVersion::ZERO && wanted.space() != position.space() {
        return Err(Status::too_old_resource_version(wanted, position));
    }
    Ok(())
}

/// 429 for a collection that is not complete yet.
pub(super) fn not_ready(shared: &SharedCollection) -> Status {
    let kind = shared.kind();
    Status::too_many_requests(
        format!("{} are not complete here yet, please try again", kind.plural),
        1,
    )
}
