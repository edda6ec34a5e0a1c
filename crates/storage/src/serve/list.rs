//! Answer to a list: its state, its objects, and the start of the next page.
//!
//! Every page of a list shows the state of the first one. It is rebuilt from the collection's log (`Collection::at`),
//! so nothing is held between two pages. If the log does not reach back, the client gets 410 with a token that
//! continues with the present state.

use yurt_apimachinery::list::ListMeta;
use yurt_apimachinery::options::{ContinueToken, ResourceVersionMatch};
use yurt_apimachinery::{ListOptions, Object, ResourceVersion, Status};
use yurt_collection::{Collection, Expired, KeyRange};

use super::{Selection, View, WAIT_FOR_RV};
use crate::shared::SharedCollection;

/// Objects of a list with its metadata.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Objects as the client sees them, in key order.
    pub objects: Vec<Object>,
    /// Its resourceVersion, the token of the next page, and the number of objects that follow (only without a
    /// selector).
    pub meta: ListMeta,
    /// Generation of the RV.
    pub generation: u64,
}

/// Parameters of a list: its state, its first key, its size.
struct Wanted<'a> {
    /// Minimum RV of the state.
    least: ResourceVersion,
    /// True if the state is that of `least`, not a later one.
    exact: bool,
    /// Least key, relative to the path's namespace.
    start: &'a str,
    /// Maximum number of objects; 0 for all.
    limit: u64,
}

/// A part of one state.
struct Page {
    objects: Vec<Object>,
    at: ResourceVersion,
    generation: u64,
    /// Number of the range's objects that follow, selected or not. Counted only without a selector; else 1 means any
    /// number.
    rest: u64,
}

/// Lists `selection` of `shared`, in pages when `options` have a limit.
///
/// `least` is the RV that a read without resourceVersion has to reflect (writes forwarded by this process); zero for
/// own objects.
///
/// # Errors
/// * 429 while the collection is incomplete (never an empty list)
/// * 400 for a malformed token
/// * 410 for an RV of another space, and for a state that the log does not reach
/// * 504 for an RV that does not arrive within [`WAIT_FOR_RV`]
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
    let token = options.continue_token.as_deref().map(ContinueToken::decode);
    let token = token.transpose().map_err(Status::bad_request)?;
    let wanted = Wanted::of(options, token.as_ref(), least);
    let expired = || match &token {
        Some(token) => {
            let latest = ContinueToken {
                version: None,
                start: token.start.clone(),
            };
            Status::continue_expired(Some(&latest.encode()))
        }
        None => Status::list_expired(),
    };
    reach(shared, wanted.least)
        .await
        .map_err(|status| if status.code() == 410 { expired() } else { status })?;
    take(shared, &wanted, selection, view).map_err(|_| expired())
}

/// Waits until the collection is complete and has reached `wanted`; zero needs no wait.
///
/// # Errors
/// 429, 410 and 504 as [`list`].
///
/// # Cancel safety
/// Holds nothing while waiting.
pub async fn reach(shared: &SharedCollection, wanted: ResourceVersion) -> Result<(), Status> {
    if !shared.read(Collection::is_complete) {
        return Err(not_ready(shared));
    }
    check_space(shared, wanted)?;
    let waited = tokio::time::timeout(WAIT_FOR_RV, shared.reached(wanted)).await;
    waited.map_err(|_| Status::too_large_resource_version(wanted, shared.read(Collection::position)))
}

// === impl Wanted ===

impl<'a> Wanted<'a> {
    /// Implements kube-apiserver's table of resourceVersion, match, limit and continue.
    fn of(options: &ListOptions, token: Option<&'a ContinueToken>, least: ResourceVersion) -> Self {
        let limit = options.limit;
        if let Some(token) = token {
            // A client that accepts any state gets all of it, here as at the beginning.
            let is_any = options.resource_version == Some(ResourceVersion::ZERO);
            return Self {
                least: token.version.unwrap_or(least),
                exact: token.version.is_some(),
                start: &token.start,
                limit: if is_any { 0 } else { limit },
            };
        }
        let whole = |least, exact, limit| Self {
            least,
            exact,
            start: "",
            limit,
        };
        match (options.resource_version, options.resource_version_match) {
            (None, _) => whole(least, false, limit),
            // A client that accepts any state would page without end once it had a page.
            (Some(ResourceVersion::ZERO), _) => whole(ResourceVersion::ZERO, false, 0),
            (Some(version), Some(ResourceVersionMatch::Exact)) => whole(version, true, limit),
            (Some(version), Some(ResourceVersionMatch::NotOlderThan)) => whole(version, false, limit),
            (Some(version), None) => whole(version, limit > 0, limit),
        }
    }
}

/// Objects up to the limit, as the client sees them. A view may hide some: then more are read.
fn take(
    shared: &SharedCollection,
    wanted: &Wanted<'_>,
    selection: &Selection,
    view: &dyn View,
) -> Result<Listed, Expired> {
    let kind = shared.kind();
    let keys = selection.keys(kind);
    let path = match selection.namespace.as_deref().filter(|_| kind.namespaced) {
        Some(namespace) => format!("{namespace}/"),
        None => String::new(),
    };
    let limit = if wanted.limit == 0 { u64::MAX } else { wanted.limit };
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let (mut at, mut from) = (wanted.exact.then_some(wanted.least), format!("{path}{}", wanted.start));
    let mut objects = Vec::new();
    loop {
        let missing = limit - objects.len();
        let page = shared.read(|collection| page(collection, at, &keys, &from, selection, missing))?;
        let last = page.objects.last().map(|object| object.key().clone());
        if view.is_identity() && objects.is_empty() {
            objects = page.objects;
        } else {
            objects.extend(page.objects.iter().filter_map(|object| view.show(object)));
        }
        let more = last.filter(|_| page.rest > 0);
        if let Some(last) = more.as_ref().filter(|_| objects.len() < limit) {
            (at, from) = (Some(page.at), format!("{last}\0"));
            continue;
        }
        let count = selection.labels.is_everything() && selection.fields.is_everything() && !view.hides();
        let token = more.as_ref().map(|last| {
            let last = last.as_str();
            ContinueToken::after(Some(page.at), last.strip_prefix(&path).unwrap_or(last)).encode()
        });
        return Ok(Listed {
            objects,
            meta: ListMeta {
                resource_version: page.at,
                remaining_item_count: token.as_ref().filter(|_| count).map(|_| page.rest),
                continue_token: token,
            },
            generation: page.generation,
        });
    }
}

/// At most `limit` selected objects of the state at `at`, or of the present one.
fn page(
    collection: &Collection,
    at: Option<ResourceVersion>,
    keys: &KeyRange,
    from: &str,
    selection: &Selection,
    limit: usize,
) -> Result<Page, Expired> {
    let at = at.unwrap_or(collection.position());
    let mut snapshot = collection.snapshot_at(at, keys, from)?;
    let count = selection.labels.is_everything() && selection.fields.is_everything();
    let selected = snapshot.by_ref().filter(|object| selection.matches(object));
    let objects: Vec<Object> = selected.take(limit).cloned().collect();
    let rest = if objects.len() < limit {
        0
    } else if count {
        snapshot.count() as u64
    } else {
        u64::from(snapshot.next().is_some())
    };
    Ok(Page {
        objects,
        at,
        generation: collection.generation(),
        rest,
    })
}

/// Returns 410 if `wanted` belongs to the other RV space: a reader that changed its server has to start over.
pub(super) fn check_space(shared: &SharedCollection, wanted: ResourceVersion) -> Result<(), Status> {
    let position = shared.read(Collection::position);
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
