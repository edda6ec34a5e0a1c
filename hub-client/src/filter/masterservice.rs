//! `masterservice`: the kubelet sees Service `default/kubernetes` at the hub's address.
//!
//! The kubelet injects KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT from it. So pods with the in-cluster
//! configuration connect to the hub and continue while the cloud is away.
//!
//! Hides nothing: a Service without a spec is kept. So is everything while pods cannot reach the hub's address or do
//! not trust its certificate, and a Service without an address of the hub's family: pods may have no address of that
//! family. In a dual-stack cluster they have one, but this Service has a single address, of the first Service range.
//! The hub reports a Service that is kept.

use core::net::IpAddr;

use yurt_apimachinery::json_text::quote;
use yurt_apimachinery::{Object, ObjectKey, ResourceKind};

use super::json::{self, Edit, Json};
use super::{FilterContext, HubAddress, Inputs, ObjectFilter, Verdict};

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

    fn inputs(&self) -> Inputs {
        Inputs::TRUST
    }

    fn filter(&self, kind: &ResourceKind, object: &Object, context: &FilterContext<'_>) -> Verdict {
        let is_service = kind.group.is_empty() && kind.plural == "services";
        if !is_service || !is_kubernetes(object) || !context.is_for_pods() || !leads_to(context.hub, object) {
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

/// Key of Service `default/kubernetes`.
pub(crate) fn kubernetes() -> ObjectKey {
    ObjectKey::new(Some(NAMESPACE), NAME)
}

/// True if Service `default/kubernetes` gets the hub's address.
pub(crate) fn leads_to(hub: HubAddress, service: &Object) -> bool {
    let addresses = addresses(service);
    let is_of_family = |address: &IpAddr| address.is_ipv4() == hub.host.to_canonical().is_ipv4();
    hub.is_for_pods() && (addresses.is_empty() || addresses.iter().any(is_of_family))
}

/// Reason why a Service is kept that does not get the hub's address because of its family, with the fix.
pub(crate) fn why_kept(hub: HubAddress, service: &Object) -> String {
    let addresses: Vec<String> = addresses(service).iter().map(ToString::to_string).collect();
    let (addresses, host) = (addresses.join(", "), hub.host);
    let fix = match host.to_canonical().is_ipv4() {
        true => "--bind-proxy-address=::1, or another IPv6 address",
        false => "an IPv4 address as --bind-proxy-address",
    };
    format!(
        "pods connect to kube-apiserver: Service {NAMESPACE}/{NAME} has {addresses}, and the hub's address for pods is \
         {host}; start the hub with {fix}"
    )
}

/// Addresses of a Service.
fn addresses(service: &Object) -> Vec<IpAddr> {
    let text = service.bytes();
    let spec = Json::of(&text).member("spec");
    let all = spec.and_then(|spec| spec.member("clusterIPs"));
    let all = all.and_then(|all| all.items().ok()).into_iter().flatten();
    let own = spec.and_then(|spec| spec.member("clusterIP"));
    let mut addresses = Vec::new();
    for address in all.chain(own).filter_map(|address| address.text()?.parse().ok()) {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses
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
