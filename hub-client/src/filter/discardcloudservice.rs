//! `discardcloudservice`: kube-proxy does not see Services of type LoadBalancer, whose addresses are the cloud's.
//!
//! With IPVS it would send their traffic to Pods that this node cannot reach. Annotation
//! `openyurt.io/skip-discard: "true"` exempts a Service; with [`DiscardCloudService::OptIn`],
//! `svc.openyurt.io/discard: "true"` selects it instead. Service `kube-system/x-tunnel-server-internal-svc` is dropped
//! always. Endpoints of dropped Services are not touched.
//!
//! Fails closed: a Service whose type or annotation cannot be read is dropped.

use yurt_apimachinery::{Object, ResourceKind};

use super::context::DiscardCloudService;
use super::json::{Json, WrongType};
use super::{FilterContext, ObjectFilter, Verdict};

const SKIP_DISCARD: &str = "openyurt.io/skip-discard";
const DISCARD: &str = "svc.openyurt.io/discard";

/// Internal address of the tunnel server: of use in the cloud only.
const TUNNEL_SERVICE: (&str, &str) = ("kube-system", "x-tunnel-server-internal-svc");

/// The filter; see the module.
#[derive(Clone, Copy, Debug)]
pub struct DiscardCloud;

impl ObjectFilter for DiscardCloud {
    fn name(&self) -> &'static str {
        "discardcloudservice"
    }

    fn filter(&self, kind: &ResourceKind, object: &Object, context: &FilterContext<'_>) -> Verdict {
        if !kind.group.is_empty() || kind.plural != "services" {
            return Verdict::Keep;
        }
        let is_tunnel = (object.namespace(), object.name()) == (Some(TUNNEL_SERVICE.0), TUNNEL_SERVICE.1);
        let discards = context.options.discard_cloud_service;
        match is_tunnel || is_discarded(Json::of(&object.bytes()), discards).unwrap_or(true) {
            true => Verdict::Drop,
            false => Verdict::Keep,
        }
    }
}

fn is_discarded(service: Json<'_>, discards: DiscardCloudService) -> Result<bool, WrongType> {
    if service.text_at(&["spec", "type"])? != "LoadBalancer" {
        return Ok(false);
    }
    let has = |annotation| {
        let value = service.text_at(&["metadata", "annotations", annotation])?;
        Ok(value == "true")
    };
    match discards {
        DiscardCloudService::OptOut => has(SKIP_DISCARD).map(|skips| !skips),
        DiscardCloudService::OptIn => has(DISCARD),
    }
}
