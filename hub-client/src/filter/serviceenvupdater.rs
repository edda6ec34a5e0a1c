//! `serviceenvupdater`: the kubelet sees Pods whose containers find kube-apiserver at the hub.
//!
//! Webhooks of managed clusters write the public address into variables KUBERNETES_SERVICE_HOST and
//! KUBERNETES_SERVICE_PORT of containers. These get the hub's values; the search of a container ends once both were
//! seen. Nothing is added, and init and ephemeral containers are not changed.
//!
//! Hides nothing: a Pod that cannot be read is kept. So is everything while pods cannot reach the hub's address or do
//! not trust its certificate, and a container whose KUBERNETES_SERVICE_HOST is an address of the other family: its pod
//! may have none of the hub's.

use core::net::IpAddr;

use yurt_apimachinery::json_text::quote;
use yurt_apimachinery::{Object, ResourceKind};

use super::json::{self, Edit, Json};
use super::{FilterContext, Inputs, ObjectFilter, Verdict};

const HOST: &str = "KUBERNETES_SERVICE_HOST";
const PORT: &str = "KUBERNETES_SERVICE_PORT";

/// The filter; see the module.
#[derive(Clone, Copy, Debug)]
pub struct ServiceEnvUpdater;

impl ObjectFilter for ServiceEnvUpdater {
    fn name(&self) -> &'static str {
        "serviceenvupdater"
    }

    fn inputs(&self) -> Inputs {
        Inputs::TRUST
    }

    fn filter(&self, kind: &ResourceKind, object: &Object, context: &FilterContext<'_>) -> Verdict {
        let is_pod = kind.group.is_empty() && kind.plural == "pods";
        if !is_pod || !context.is_for_pods() {
            return Verdict::Keep;
        }
        let values = [
            (HOST, quote(&context.hub.host.to_string())),
            (PORT, quote(&context.hub.secure_port.to_string())),
        ];
        let edited = Json::of(&object.bytes()).edit_at(&["spec", "containers"], &|containers| {
            containers.edit_items(|container| {
                let edited = container.edit_at(&["env"], &|env| match is_of_other_family(env, context.hub.host) {
                    true => None,
                    false => with_values(env, &values),
                });
                edited.map_or(Edit::Keep, Edit::Set)
            })
        });
        json::verdict(kind, edited)
    }
}

/// True if the present host is an address of another family than `hub`.
fn is_of_other_family(env: Json<'_>, hub: IpAddr) -> bool {
    let is_host = |variable: &Json<'_>| variable.member("name").and_then(Json::text).as_deref() == Some(HOST);
    let host = env.items().ok().and_then(|mut variables| variables.find(is_host));
    let address = host.and_then(|host| host.member("value")?.text()?.parse::<IpAddr>().ok());
    address.is_some_and(|address| address.is_ipv4() != hub.to_canonical().is_ipv4())
}

/// Variables of a container with other values, up to the first place where each name was seen.
fn with_values(env: Json<'_>, values: &[(&str, String); 2]) -> Option<Vec<u8>> {
    let mut seen = [false; 2];
    env.edit_items(|variable| {
        let name = variable.member("name").and_then(Json::text);
        let found = values.iter().position(|(known, _)| name.as_deref() == Some(known));
        let Some(found) = found.filter(|_| seen != [true; 2]) else {
            return Edit::Keep;
        };
        seen[found] = true;
        let edited = variable.with(&[("value", values[found].1.as_bytes())]);
        edited.map_or(Edit::Keep, Edit::Set)
    })
}
