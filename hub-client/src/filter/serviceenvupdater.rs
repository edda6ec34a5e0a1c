//! `serviceenvupdater`: the kubelet sees Pods whose containers find kube-apiserver at the hub.
//!
//! Webhooks of managed clusters write the public address into variables KUBERNETES_SERVICE_HOST and
//! KUBERNETES_SERVICE_PORT of containers. These get the hub's values; the search of a container ends once both were seen.
//! Nothing is added, and init and ephemeral containers are not changed.
//!
//! Hides nothing: a Pod that cannot be read is kept. So is everything while pods cannot reach the hub's address.

use yurt_apimachinery::json_text::quote;
use yurt_apimachinery::{Object, ResourceKind};

use super::json::{self, Edit, Json};
use super::{FilterContext, ObjectFilter, Verdict};

const HOST: &str = "KUBERNETES_SERVICE_HOST";
const PORT: &str = "KUBERNETES_SERVICE_PORT";

/// The filter; see the module.
#[derive(Clone, Copy, Debug)]
pub struct ServiceEnvUpdater;

impl ObjectFilter for ServiceEnvUpdater {
    fn name(&self) -> &'static str {
        "serviceenvupdater"
    }

    fn filter(&self, kind: &ResourceKind, object: &Object, context: &FilterContext<'_>) -> Verdict {
        let is_pod = kind.group.is_empty() && kind.plural == "pods";
        if !is_pod || !context.hub.is_for_pods() {
            return Verdict::Keep;
        }
        let values = [
            (HOST, quote(&context.hub.host.to_string())),
            (PORT, quote(&context.hub.secure_port.to_string())),
        ];
        let edited = Json::of(&object.bytes()).edit_at(&["spec", "containers"], &|containers| {
            containers.edit_items(|container| {
                let edited = container.edit_at(&["env"], &|env| with_values(env, &values));
                edited.map_or(Edit::Keep, Edit::Set)
            })
        });
        json::verdict(kind, edited)
    }
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
