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

/// Number of objects that are converted in one turn: renewals and probes share the thread.
const SHOWN_AT_ONCE: usize = 64;

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
    /// Number of revisions before the state of the token.
    revisions: Option<u64>,
}

/// A part of one state.
struct Page {
    objects: Vec<Object>,
    at: ResourceVersion,
    generation: u64,
    /// Number of revisions of a derived collection.
    revisions: u64,
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
/// Changes nothing. Holds nothing while it waits for an RV, and no lock while it converts objects.
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
    let mut listed = take(shared, &wanted, selection).map_err(|_| expired())?;
    if !view.is_identity() {
        listed.objects = shown(&listed.objects, view).await;
    }
    Ok(listed)
}

/// The objects as the client sees them. Between two parts other tasks have their turns.
async fn shown(objects: &[Object], view: &dyn View) -> Vec<Object> {
    let mut shown = Vec::with_capacity(objects.len());
    for part in objects.chunks(SHOWN_AT_ONCE) {
        if !shown.is_empty() {
            tokio::task::yield_now().await;
        }
        shown.extend(part.iter().map(|object| view.show(object)));
    }
    shown
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
                revisions: token.version.map(|_| revisions_of(&token.start)),
            };
        }
        let whole = |least, exact, limit| Self {
            least,
            exact,
            start: "",
            limit,
            revisions: None,
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

/// Objects up to the limit, as they are stored.
fn take(shared: &SharedCollection, wanted: &Wanted<'_>, selection: &Selection) -> Result<Listed, Expired> {
    let kind = shared.kind();
    let keys = selection.keys(kind);
    let path = match selection.namespace.as_deref().filter(|_| kind.namespaced) {
        Some(namespace) => format!("{namespace}/"),
        None => String::new(),
    };
    let from = format!("{path}{}", wanted.start);
    let page = shared.read(|collection| page(collection, wanted, &keys, &from, selection))?;
    let last = page.objects.last().filter(|_| page.rest > 0);
    let count = selection.labels.is_everything() && selection.fields.is_everything();
    let token = last.map(|last| {
        let last = last.key().as_str();
        let after = ContinueToken::after(Some(page.at), last.strip_prefix(&path).unwrap_or(last));
        marked(after, page.revisions).encode()
    });
    Ok(Listed {
        objects: page.objects,
        meta: ListMeta {
            resource_version: page.at,
            remaining_item_count: token.as_ref().filter(|_| count).map(|_| page.rest),
            continue_token: token,
        },
        generation: page.generation,
    })
}

/// The token of a state after `revisions` revisions. No key contains the mark's separator, so the page begins at the
/// same key with and without it.
fn marked(token: ContinueToken, revisions: u64) -> ContinueToken {
    match revisions {
        0 => token,
        _ => ContinueToken {
            start: format!("{}{revisions}", token.start),
            ..token
        },
    }
}

/// Number of revisions in a token's start key.
fn revisions_of(start: &str) -> u64 {
    let mark = start.split_once('\0').map(|(_, mark)| mark);
    mark.and_then(|mark| mark.parse().ok()).unwrap_or(0)
}

/// The wanted objects of the wanted state, or of the present one.
fn page(
    collection: &Collection,
    wanted: &Wanted<'_>,
    keys: &KeyRange,
    from: &str,
    selection: &Selection,
) -> Result<Page, Expired> {
    let at = match wanted.exact {
        true => wanted.least,
        false => collection.position(),
    };
    // The pages before were of another state under the same number.
    if wanted
        .revisions
        .is_some_and(|revisions| !collection.is_state_of(at, revisions))
    {
        let (position, floor) = (at, collection.position());
        return Err(Expired { position, floor });
    }
    let limit = if wanted.limit == 0 { u64::MAX } else { wanted.limit };
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
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
        revisions: collection.revisions(),
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
