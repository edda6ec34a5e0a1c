//! Requests that kube-apiserver proxies to a kubelet, a pod or a service. This server has no such connections and
//! answers with the reason.
//!
//! A request about an object that does not exist gets the same 404 as there: a misspelt name is the usual fault.

use std::sync::Arc;

use http::{Response, StatusCode};
use yurt_apimachinery::status::reason;
use yurt_apimachinery::{ObjectKey, RequestInfo, Status, Verb};
use yurt_runtime::http::{self as web, Body};

use crate::app::App;
use crate::registry::{Authority, Resource};

/// Subresources that kube-apiserver proxies to another program.
const CONNECTED: [(&str, &[&str]); 3] = [
    ("pods", &["attach", "exec", "log", "portforward", "proxy"]),
    ("nodes", &["proxy"]),
    ("services", &["proxy"]),
];
/// Subresources that change a part of an object, and are not served.
const UNSERVED: [&str; 2] = ["ephemeralcontainers", "resize"];

/// Answers requests that would need a connection; `None` for others. A pod without a node has no logs yet.
///
/// # Errors
/// 404 when there is no such object; 400 for a pod without a node; 405 with the reason otherwise.
pub(crate) async fn answer(
    app: &Arc<App>,
    resource: &Resource,
    info: &RequestInfo,
) -> Result<Option<Response<Body>>, Status> {
    let (Some(subresource), Some(name)) = (info.subresource.as_deref(), info.name.as_deref()) else {
        return Ok(None);
    };
    let kind = resource.kind;
    if !kind.group.is_empty() || !matches!(resource.authority, Authority::Own(_)) || !is_placed(resource, info) {
        return Ok(None);
    }
    let is_connected = CONNECTED
        .iter()
        .any(|(plural, names)| *plural == kind.plural && names.contains(&subresource));
    let is_unserved = kind.plural == "pods" && UNSERVED.contains(&subresource);
    if !is_connected && !is_unserved {
        return Ok(None);
    }
    // There the port of a service is part of the name.
    let name = name.split(':').next().unwrap_or(name);
    let key = ObjectKey::new(info.namespace.as_deref().filter(|_| kind.namespaced), name);
    app.own.catch_up(resource).await?;
    let found = resource.objects().read(|held| held.object(&key).cloned());
    let Some(found) = found else {
        return Err(Status::not_found(&kind.group_resource(), name));
    };
    if is_unserved {
        return Ok(None);
    }
    let is_nobodys = kind.plural == "pods" && found.field("spec.nodeName").is_none_or(str::is_empty);
    if is_nobodys && subresource == "log" && info.verb == Verb::Get {
        return Ok(Some(web::text(StatusCode::OK, "")));
    }
    if is_nobodys && subresource != "proxy" {
        return Err(Status::bad_request(format!("pod {name} does not have a host assigned")));
    }
    let message = format!(
        "{}/{subresource} is not served here: this server opens no connections to kubelets, pods or services",
        kind.plural
    );
    Err(Status::failure(405, reason::METHOD_NOT_ALLOWED, message))
}

/// True if the path has a namespace exactly when the kind has one.
fn is_placed(resource: &Resource, info: &RequestInfo) -> bool {
    info.namespace.is_some() == resource.kind.namespaced
}
