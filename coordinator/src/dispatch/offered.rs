//! The verbs that the path of a resource offers.

use http::Method;
use yurt_apimachinery::{RequestInfo, Status, Verb};

use crate::registry::strategy::STATUS_VERBS;
use crate::registry::{Authority, Resource};

/// Checks if the path offers the verb at all.
///
/// # Errors
/// 404 for a path that does not exist, 405 for one with other verbs.
pub(super) fn check(resource: &Resource, info: &RequestInfo, method: &Method) -> Result<(), Status> {
    let kind = resource.kind;
    let is_own = matches!(resource.authority, Authority::Own(_));
    // The path of a Namespace itself names a namespace, too.
    let in_namespace = info.namespace.is_some() && kind.plural != "namespaces";
    if in_namespace && !kind.namespaced {
        return Err(Status::unknown_resource());
    }
    if let Some(subresource) = info.subresource.as_deref() {
        let verbs = match resource
            .strategy
            .subresources()
            .iter()
            .find(|known| known.name == subresource)
        {
            Some(known) if is_own && info.rest.is_none() => known.verbs,
            None if subresource == "status" && kind.has_status && is_own && info.rest.is_none() => STATUS_VERBS,
            _ => return Err(Status::unknown_resource()),
        };
        if info.verb == Verb::Watch {
            return Err(Status::unknown_resource());
        }
        return if verbs.contains(&info.verb.as_str()) && method != Method::HEAD {
            Ok(())
        } else {
            Err(Status::method_not_allowed())
        };
    }
    let (has_name, has_namespace) = (info.name.is_some(), in_namespace || !kind.namespaced);
    if has_name && !has_namespace && !names_by_selector(info) {
        return Err(Status::unknown_resource());
    }
    let is_offered = match info.verb {
        Verb::Get => has_name && has_namespace && method != Method::HEAD,
        // Paths below /watch/ are watches for every method.
        Verb::List | Verb::Watch => method == Method::GET,
        Verb::Update | Verb::Patch | Verb::Delete => has_name && has_namespace,
        Verb::Create => !has_name && has_namespace,
        Verb::DeleteCollection => !has_name && has_namespace && resource.strategy.deletes_collections(),
        Verb::Proxy | Verb::Post | Verb::Put | Verb::Head | Verb::Options | Verb::Other => false,
    };
    if is_offered {
        Ok(())
    } else {
        Err(Status::method_not_allowed())
    }
}

/// True for the path of a collection, so that the name comes from the field selector.
fn names_by_selector(info: &RequestInfo) -> bool {
    let is_collection = info
        .path
        .trim_end_matches('/')
        .ends_with(&format!("/{}", info.resource));
    matches!(info.verb, Verb::List | Verb::Watch) && is_collection
}
