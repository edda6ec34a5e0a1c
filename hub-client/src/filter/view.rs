//! What a client of a filtered view sees when the source or an input of the filters changes.
//!
//! The event type follows the *client's* knowledge: an object that becomes visible is ADDED, one that leaves the view
//! is DELETED with the client's last view of it, one the client never saw causes nothing. Deletions and re-creations
//! (another uid) are two changes to the caller and arrive here one by one.

use yurt_apimachinery::{Object, ResourceKind, ResourceVersion};

use super::{Chain, FilterContext};

/// A change as the client sees it.
#[derive(Clone, Debug)]
pub enum Transition {
    /// Not visible before or after, or visible without a difference.
    Nothing,
    /// It becomes visible.
    Added(Object),
    /// It was and is visible.
    Modified(Object),
    /// It was visible: the client's last view of it, with the resourceVersion of the change.
    Deleted(Object),
}

/// A change of the source under unchanged inputs: `prev` and `cur` are the raw objects before and after, `at` is the
/// resourceVersion of the change (that of `cur`, or of the deletion).
pub fn on_source_change(
    chain: &Chain,
    kind: &ResourceKind,
    context: &FilterContext<'_>,
    prev: Option<&Object>,
    cur: Option<&Object>,
    at: ResourceVersion,
) -> Transition {
    let before = prev.and_then(|object| chain.view_of(kind, object, context));
    let after = cur.and_then(|object| chain.view_of(kind, object, context));
    match (before, after) {
        (None, None) => Transition::Nothing,
        (None, Some(after)) => Transition::Added(after),
        // Also when the filtered parts are equal: the client's resourceVersion has to follow.
        (Some(_), Some(after)) => Transition::Modified(after),
        (Some(before), None) => Transition::Deleted(before.with_resource_version(at)),
    }
}

/// A change of an input under an unchanged source: `before` is what the client was shown, `after` what the filters
/// say now, `stamp` the number the difference is published with (C of the source replica). No difference, no event.
pub fn on_input_change(before: Option<&Object>, after: Option<&Object>, stamp: ResourceVersion) -> Transition {
    match (before, after) {
        (None, None) => Transition::Nothing,
        (None, Some(after)) => Transition::Added(after.with_resource_version(stamp)),
        (Some(before), None) => Transition::Deleted(before.with_resource_version(stamp)),
        (Some(before), Some(after)) => {
            let after = after.with_resource_version(stamp);
            if before.with_resource_version(stamp).bytes() == after.bytes() {
                Transition::Nothing
            } else {
                Transition::Modified(after)
            }
        }
    }
}

#[cfg(test)]
mod tests;
