//! What a local client may see of an object: the data filters of the hub.
//!
//! A filter is a pure function from an object and its [`FilterContext`] to a [`Verdict`]; one file each, named as
//! upstream names it. [`binding`] says which filters apply to a request, [`chain`] runs them.
//! Decoding, lists, watches and formats belong to the callers.
//!
//! An object that no filter touches passes byte for byte; fields no filter knows are kept in those it does touch.

pub mod binding;
pub mod chain;
pub mod masterservice;
pub mod servicetopology;

use std::collections::BTreeSet;

use yurt_apimachinery::{Object, ResourceKind};

pub use chain::Chain;

/// All filters, in the order in which they are called.
pub static FILTERS: [&dyn ObjectFilter; 2] = [&servicetopology::ServiceTopology, &masterservice::MasterService];

/// One data filter.
pub trait ObjectFilter: Sync {
    /// The name in ConfigMap `yurt-hub-cfg`.
    fn name(&self) -> &'static str;

    /// Components it applies to without any configuration.
    fn default_components(&self) -> &'static [&'static str];

    /// Plural names of the resources it can judge.
    fn resources(&self) -> &'static [&'static str];

    /// Judges one object of `kind`; anything the filter is not about is kept.
    fn filter(&self, kind: &ResourceKind, object: &Object, context: &FilterContext<'_>) -> Verdict;
}

/// What happens to an object.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// Passes byte for byte.
    Keep,
    /// The client sees this instead; name and resourceVersion are the same.
    Replace(Object),
    /// The client does not see it.
    Drop,
}

/// What filters know about the world besides the object.
#[derive(Clone, Copy)]
pub struct FilterContext<'a> {
    /// Where clients on this node find the hub.
    pub hub: HubAddress<'a>,
    /// The Node this hub runs on.
    pub node_name: &'a str,
    /// The pool of this node.
    pub pool: Pool<'a>,
    /// The Services of the cluster.
    pub services: &'a dyn ServiceLookup,
}

/// The hub's address for pods.
#[derive(Clone, Copy, Debug)]
pub struct HubAddress<'a> {
    /// An IP address.
    pub host: &'a str,
    /// The port that speaks TLS.
    pub secure_port: u16,
}

/// What is known about the pool of this node.
#[derive(Clone, Copy, Debug)]
pub enum Pool<'a> {
    /// Not known yet: what depends on it is not passed; re-evaluation brings it when the answer is there.
    Unknown,
    /// The node is in no pool: pool topology means this node alone.
    NoPool,
    /// The node names a pool that does not exist, or pools are switched off: pool topology is ignored.
    Missing,
    /// The names of the members, this node included if it is one.
    Members(&'a BTreeSet<String>),
}

/// Finds Services in the replica of this hub.
pub trait ServiceLookup {
    /// Annotation `openyurt.io/topologyKeys` of a Service.
    fn topology_keys(&self, namespace: &str, name: &str) -> TopologyKeys;
}

/// The topology a Service asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopologyKeys {
    /// The Service is not known, or not yet.
    UnknownService,
    /// The Service has no such annotation.
    Unset,
    /// The value as written.
    Value(String),
}

// === impl Verdict ===

impl Verdict {
    /// What the client sees of `object` under this verdict.
    pub fn view_of(self, object: &Object) -> Option<Object> {
        match self {
            Verdict::Keep => Some(object.clone()),
            Verdict::Replace(object) => Some(object),
            Verdict::Drop => None,
        }
    }
}

#[cfg(test)]
mod tests;
