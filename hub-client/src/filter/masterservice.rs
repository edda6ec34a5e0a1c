//! `masterservice`: the kubelet sees Service `default/kubernetes` at the hub's address.
//!
//! The kubelet injects KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT from it. So pods with the in-cluster
//! configuration connect to the hub and continue while the cloud is away.

use serde_json::{Value, json};
use yurt_apimachinery::{Object, ResourceKind};

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
        if !is_service || object.namespace() != Some(NAMESPACE) || object.name() != NAME {
            return Verdict::Keep;
        }
        let mut value = object.to_value();
        let Some(spec) = value.get_mut("spec").and_then(Value::as_object_mut) else {
            return Verdict::Keep;
        };
        spec.insert("clusterIP".to_owned(), json!(context.hub.host));
        spec.insert("clusterIPs".to_owned(), json!([context.hub.host]));
        let mut ports = spec
            .get_mut("ports")
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten();
        if let Some(port) = ports
            .find(|port| port["name"] == PORT_NAME)
            .and_then(Value::as_object_mut)
        {
            port.insert("port".to_owned(), json!(context.hub.secure_port));
        }
        // The Service was readable before, so it is readable with another address.
        Object::from_value(value, kind).map_or(Verdict::Drop, Verdict::Replace)
    }
}

#[cfg(test)]
mod tests;
