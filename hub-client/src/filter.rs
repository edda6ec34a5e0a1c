//! Data filters of the hub: they limit the view that a local client has of an object.
//!
//! A filter is a pure function from an object and its [`FilterContext`] to a [`Verdict`]; one file each, with
//! upstream's name. [`binding`] selects the filters of a request, [`chain`] runs them. Decoding, lists, watches and
//! formats belong to the callers.
//!
//! An object that no filter changes passes byte for byte. A changed object keeps the fields that the filters do not
//! know.

pub mod binding;
pub mod chain;
pub mod masterservice;
pub mod servicetopology;

use std::collections::BTreeSet;

use yurt_apimachinery::{Object, ResourceKind};

pub use chain::Chain;

/// All filters, in the order in which they are called.
pub static FILTERS: [&dyn ObjectFilter; 2] = [&servicetopology::ServiceTopology, &masterservice::MasterService];

/// Data filter.
pub trait ObjectFilter: Sync {
    /// Name of the filter in ConfigMap `yurt-hub-cfg`.
    fn name(&self) -> &'static str;

    /// Components that the filter applies to by default.
    fn default_components(&self) -> &'static [&'static str];

    /// Plural names of the resources that the filter handles.
    fn resources(&self) -> &'static [&'static str];

    /// Filters one object of `kind`; keeps objects outside its scope.
    fn filter(&self, kind: &ResourceKind, object: &Object, context: &FilterContext<'_>) -> Verdict;
}

/// Result of filtering an object.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// The object passes byte for byte.
    Keep,
    /// The client sees this object instead; name and resourceVersion are the same.
    Replace(Object),
    /// The client does not see the object.
    Drop,
}

/// Inputs of the filters in addition to the object.
#[derive(Clone, Copy)]
pub struct FilterContext<'a> {
    /// Address of the hub for clients on this node.
    pub hub: HubAddress<'a>,
    /// Name of the Node this hub runs on.
    pub node_name: &'a str,
    /// Pool of this node.
    pub pool: Pool<'a>,
    /// Services of the cluster.
    pub services: &'a dyn ServiceLookup,
}

/// Address of the hub for pods.
#[derive(Clone, Copy, Debug)]
pub struct HubAddress<'a> {
    /// IP address.
    pub host: &'a str,
    /// Port of the TLS listener.
    pub secure_port: u16,
}

/// Pool of this node, as far as known.
#[derive(Clone, Copy, Debug)]
pub enum Pool<'a> {
    /// Not known yet. Objects that depend on it are dropped; re-evaluation shows them once it is known.
    Unknown,
    /// The node is in no pool: pool topology is limited to this node.
    NoPool,
    /// The node names a pool that does not exist, or pools are disabled: pool topology is ignored.
    Missing,
    /// Names of the members, this node included if it is one.
    Members(&'a BTreeSet<String>),
}

/// Lookup of Services in the replica of this hub.
pub trait ServiceLookup {
    /// Returns the annotation `openyurt.io/topologyKeys` of a Service.
    fn topology_keys(&self, namespace: &str, name: &str) -> TopologyKeys;
}

/// Topology that a Service requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopologyKeys {
    /// The Service is unknown, at least so far.
    UnknownService,
    /// The Service does not have the annotation.
    Unset,
    /// Value of the annotation as written.
    Value(String),
}

// === impl Verdict ===

impl Verdict {
    /// Returns the client's view of `object` under this verdict; `None` if it is hidden.
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
