//! `masterservice`: the kubelet sees Service `default/kubernetes` at the hub's address.
//!
//! The kubelet injects KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT from it. So pods with the in-cluster
//! configuration connect to the hub and continue while the cloud is away.
//!
//! Hides nothing: a Service without a spec is kept. So is everything while pods cannot reach the hub's address.

use yurt_apimachinery::json_text::quote;
use yurt_apimachinery::{Object, ResourceKind};

use super::json::{self, Edit, Json};
use super::{FilterContext, ObjectFilter, Verdict};

const NAMESPACE: &str = "default";
const NAME: &str = "kubernetes";

/// Name of the port that pods use; a Service without it keeps its ports.
const PORT_NAME: &str = "https";

/// The filter; see the module.
#[derive(Clone, Copy, Debug)]
pub struct MasterService;

impl ObjectFilter for MasterService {
    fn name(&self) -> &'static str {
        "masterservice"
    }

    fn filter(&self, kind: &ResourceKind, object: &Object, context: &FilterContext<'_>) -> Verdict {
        let is_service = kind.group.is_empty() && kind.plural == "services";
        if !is_service || !is_kubernetes(object) || !context.hub.is_for_pods() {
            return Verdict::Keep;
        }
        let host = quote(&context.hub.host.to_string());
        let hosts = format!("[{host}]");
        let edited = Json::of(&object.bytes()).edit_at(&["spec"], &|spec| {
            let ports = spec
                .member("ports")
                .and_then(|ports| with_port(ports, context.hub.secure_port));
            let mut members = vec![("clusterIP", host.as_bytes()), ("clusterIPs", hosts.as_bytes())];
            members.extend(ports.as_deref().map(|ports| ("ports", ports)));
            spec.with(&members)
        });
        json::verdict(kind, edited)
    }
}

/// True for Service `default/kubernetes` and for the slice that kube-apiserver keeps for it.
pub(super) fn is_kubernetes(object: &Object) -> bool {
    object.namespace() == Some(NAMESPACE) && object.name() == NAME
}

/// Ports whose first one named `https` has another number; `None` if nothing changes.
pub(super) fn with_port(ports: Json<'_>, number: u16) -> Option<Vec<u8>> {
    let mut is_found = false;
    ports.edit_items(|port| {
        if is_found || port.member("name").and_then(Json::text).as_deref() != Some(PORT_NAME) {
            return Edit::Keep;
        }
        is_found = true;
        let edited = port.with(&[("port", number.to_string().as_bytes())]);
        edited.map_or(Edit::Keep, Edit::Set)
    })
}
