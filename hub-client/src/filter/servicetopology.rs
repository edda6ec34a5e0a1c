//! `servicetopology`: a client sees only those endpoints of a Service that its annotation `openyurt.io/topologyKeys`
//! lets it reach from this node.
//!
//! `kubernetes.io/hostname` keeps the endpoints on this node. `openyurt.io/nodepool` and its synonym
//! `kubernetes.io/zone` keep those on the members of this node's pool. Other values are ignored. An object that becomes
//! empty is still shown, so that the client knows that there is no endpoint.
//!
//! Fails closed: an object with endpoints is dropped while its Service or the pool is unknown, and if it cannot be
//! read.

use yurt_apimachinery::{Object, ObjectKey, ResourceKind};

use super::json::{self, Json, WrongType};
use super::near::{Near, Shape};
use super::{FilterContext, Inputs, Members, ObjectFilter, Pool, Verdict};

/// Annotation of a Service that requests a topology.
pub const TOPOLOGY_KEYS_ANNOTATION: &str = "openyurt.io/topologyKeys";

const HOSTNAME: &str = "kubernetes.io/hostname";
const NODE_POOL: &str = "openyurt.io/nodepool";
const ZONE: &str = "kubernetes.io/zone";

/// The filter; see the module.
#[derive(Clone, Copy, Debug)]
pub struct ServiceTopology;

/// Endpoints of a Service that this node may reach.
enum Reach<'a> {
    All,
    Near(Near<'a>),
    /// An input is missing or cannot be read.
    Unknown,
}

impl ObjectFilter for ServiceTopology {
    fn name(&self) -> &'static str {
        "servicetopology"
    }

    fn inputs(&self) -> Inputs {
        Inputs {
            services: true,
            members: true,
            ..Inputs::NONE
        }
    }

    fn service_of(&self, kind: &ResourceKind, object: &Object) -> Option<ObjectKey> {
        Shape::of(kind)?.service_of(object)
    }

    fn filter(&self, kind: &ResourceKind, object: &Object, context: &FilterContext<'_>) -> Verdict {
        let Some(shape) = Shape::of(kind) else {
            return Verdict::Keep;
        };
        let Some(service) = shape.service_of(object) else {
            return Verdict::Keep;
        };
        match reach(&service, context) {
            Reach::All => Verdict::Keep,
            Reach::Unknown => match shape.is_empty(Json::of(&object.bytes())) {
                true => Verdict::Keep,
                false => Verdict::Drop,
            },
            Reach::Near(near) => match shape.retain(Json::of(&object.bytes()), near) {
                Ok(edited) => json::verdict(kind, edited),
                Err(WrongType) => Verdict::Drop,
            },
        }
    }
}

fn reach<'a>(service: &ObjectKey, context: &FilterContext<'a>) -> Reach<'a> {
    let Some(service) = context.services.service(service) else {
        return Reach::Unknown;
    };
    let text = service.bytes();
    let Ok(keys) = Json::of(&text).text_at(&["metadata", "annotations", TOPOLOGY_KEYS_ANNOTATION]) else {
        return Reach::Unknown;
    };
    match (&*keys, context.pool) {
        (HOSTNAME, _) | (NODE_POOL | ZONE, Pool::NoPool) => Reach::Near(Near::Node(context.node_name)),
        (NODE_POOL | ZONE, Pool::Unknown) => Reach::Unknown,
        (NODE_POOL | ZONE, Pool::Named(pool)) => match pool.members {
            Members::Unknown => Reach::Unknown,
            Members::Names(names) => Reach::Near(Near::Members(names)),
        },
        _ => Reach::All,
    }
}
