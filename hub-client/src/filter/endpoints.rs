//! `endpoints` (older name `ingresscontroller`): a client sees only the addresses in Endpoints that are in this node's
//! pool. Annotations of the Service do not matter.
//!
//! For ingress controllers that send traffic to addresses themselves. Endpoints without an address in the pool are
//! dropped. On a node without a pool everything is kept. Filter `servicetopology` does the same for Services that ask
//! for it; no component has this filter by default.
//!
//! Fails closed: Endpoints are dropped while their Service or the pool is unknown, and if they cannot be read.

use yurt_apimachinery::{Object, ObjectKey, ResourceKind};

use super::json::{self, Json, WrongType};
use super::near::{Near, Shape};
use super::{FilterContext, Inputs, Members, ObjectFilter, Pool, Verdict};

/// The filter; see the module.
#[derive(Clone, Copy, Debug)]
pub struct PoolEndpoints;

impl ObjectFilter for PoolEndpoints {
    fn name(&self) -> &'static str {
        "endpoints"
    }

    fn inputs(&self) -> Inputs {
        Inputs {
            services: true,
            members: true,
            ..Inputs::NONE
        }
    }

    fn service_of(&self, kind: &ResourceKind, object: &Object) -> Option<ObjectKey> {
        Shape::of(kind)
            .filter(|shape| *shape == Shape::Endpoints)?
            .service_of(object)
    }

    fn filter(&self, kind: &ResourceKind, object: &Object, context: &FilterContext<'_>) -> Verdict {
        let Some(service) = self.service_of(kind, object) else {
            return Verdict::Keep;
        };
        let members = match context.pool {
            Pool::NoPool => return Verdict::Keep,
            Pool::Named(pool) => pool.members,
            Pool::Unknown => Members::Unknown,
        };
        let near = match members {
            Members::Names(names) if context.services.service(&service).is_some() => Near::Members(names),
            Members::Names(_) | Members::Unknown => return Verdict::Drop,
        };
        let text = object.bytes();
        let json = Json::of(&text);
        match Shape::Endpoints.retain(json, near) {
            Ok(None) if Shape::Endpoints.is_empty(json) => Verdict::Drop,
            Ok(edited) => match json::verdict(kind, edited) {
                Verdict::Replace(left) if Shape::Endpoints.is_empty(Json::of(&left.bytes())) => Verdict::Drop,
                verdict => verdict,
            },
            Err(WrongType) => Verdict::Drop,
        }
    }
}
