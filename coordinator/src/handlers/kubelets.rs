//! What kube-apiserver does through a connection to a kubelet, a pod or a service: this server makes none, and says so.
//!
//! What is asked about something that does not exist gets the same 404 as there: a name that is misspelt is the usual fault.

use std::sync::Arc;

use http::{Response, StatusCode};
use yurt_apimachinery::status::reason;
use yurt_apimachinery::{ObjectKey, RequestInfo, Status, Verb};
use yurt_runtime::http::{self as web, Body};

use crate::app::App;
use crate::registry::{Authority, Resource};

/// Subresources behind which another program stands.
const CONNECTED: [(&str, &[&str]); 3] = [
    ("pods", &["attach", "exec", "log", "portforward", "proxy"]),
    ("nodes", &["proxy"]),
    ("services", &["proxy"]),
];
/// Subresources that change an object beside its main part, and are not served.
const UNSERVED: [&str; 2] = ["ephemeralcontainers", "resize"];

/// Answers what would need a connection; `None` for anything else. A pod that no kubelet has, has no logs yet.
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
    // The port of a service is part of the name there.
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

/// Whether the path has a namespace where the kind has one.
fn is_placed(resource: &Resource, info: &RequestInfo) -> bool {
    info.namespace.is_some() == resource.kind.namespaced
}
