//! `nodeportisolation`: kube-proxy sees a NodePort or LoadBalancer Service only in the pools that its annotation
//! `nodeport.openyurt.io/listen` lists.
//!
//! The value is a list of pool names, `-name` to exclude one, and `*` for all others. The first mention of a name
//! counts. A pool that is not mentioned is excluded. The whole Service is dropped, its cluster IP included. Nodes
//! without a pool see every Service.
//!
//! Fails closed: an annotated Service is dropped while the pool's name is unknown, and if it cannot be read.

use std::borrow::Cow;

use yurt_apimachinery::{Object, ResourceKind};

use super::json::{Json, WrongType};
use super::{FilterContext, Inputs, ObjectFilter, Pool, Verdict};

const LISTEN: &str = "nodeport.openyurt.io/listen";
const EVERY_POOL: &str = "*";

/// The filter; see the module.
#[derive(Clone, Copy, Debug)]
pub struct NodePortIsolation;

impl ObjectFilter for NodePortIsolation {
    fn name(&self) -> &'static str {
        "nodeportisolation"
    }

    fn inputs(&self) -> Inputs {
        Inputs::NONE
    }

    fn filter(&self, kind: &ResourceKind, object: &Object, context: &FilterContext<'_>) -> Verdict {
        if !kind.group.is_empty() || kind.plural != "services" || matches!(context.pool, Pool::NoPool) {
            return Verdict::Keep;
        }
        let listens = match pools(Json::of(&object.bytes())) {
            Ok(None) => return Verdict::Keep,
            Ok(Some(pools)) => matches!(context.pool, Pool::Named(pool) if listens(&pools, pool.name)),
            Err(WrongType) => false,
        };
        if listens { Verdict::Keep } else { Verdict::Drop }
    }
}

/// Value of the annotation; `None` if the Service is not annotated or has no port on the nodes.
fn pools(service: Json<'_>) -> Result<Option<Cow<'_, str>>, WrongType> {
    let Some(pools) = service.at(&["metadata", "annotations", LISTEN])? else {
        return Ok(None);
    };
    let has_node_port = matches!(&*service.text_at(&["spec", "type"])?, "NodePort" | "LoadBalancer");
    Ok(Some(pools.text().ok_or(WrongType)?).filter(|_| has_node_port))
}

fn listens(pools: &str, pool: &str) -> bool {
    let entries = || pools.split(',').map(str::trim);
    let first_mention = |name: &str| entries().find(|entry| entry.strip_prefix('-').unwrap_or(entry) == name);
    let is_listed = |name: &str| first_mention(name).map(|entry| entry == name);
    is_listed(pool).unwrap_or_else(|| is_listed(EVERY_POOL) == Some(true))
}
