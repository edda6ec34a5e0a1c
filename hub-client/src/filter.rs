//! Data filters of the hub: they limit the view that a local client has of an object.
//!
//! A filter is a pure function from an object and its [`FilterContext`] to a [`Verdict`]; one file each, with
//! upstream's name. [`FILTERS`] registers them, [`binding`] selects those of a request, [`chain`] runs them. Decoding,
//! lists, watches and formats belong to the callers.
//!
//! An object that no filter changes passes byte for byte. A changed object keeps the fields that the filters do not
//! know.

pub mod binding;
pub mod chain;
pub mod context;
pub mod discardcloudservice;
pub mod endpoints;
pub mod explain;
pub mod forwardkubesvctraffic;
pub mod hostnetworkpropagation;
pub mod inclusterconfig;
pub(crate) mod json;
pub mod localendpoints;
pub mod masterservice;
mod near;
pub mod nodeportisolation;
pub mod serviceenvupdater;
pub mod servicetopology;

use yurt_apimachinery::{Object, ObjectKey, ResourceKind};

pub use chain::Chain;
pub use context::{FilterContext, HubAddress, Inputs, LocalPods, Members, NodePool, PodTrust, Pool, ServiceLookup};

const SERVICES: (&str, &str) = ("", "services");
const ENDPOINTS: (&str, &str) = ("", "endpoints");
const SLICES: (&str, &str) = ("discovery.k8s.io", "endpointslices");
const CONFIG_MAPS: (&str, &str) = ("", "configmaps");
const PODS: (&str, &str) = ("", "pods");

/// All filters. The order of the table is the order of the calls.
pub static FILTERS: [Registration; 10] = [
    Registration {
        components: &["kube-proxy", "coredns", "nginx-ingress-controller"],
        ..Registration::new(&servicetopology::ServiceTopology, &[ENDPOINTS, SLICES])
    },
    Registration {
        aliases: &["ingresscontroller"],
        ..Registration::new(&endpoints::PoolEndpoints, &[ENDPOINTS])
    },
    Registration {
        components: &["kube-proxy", "coredns", "nginx-ingress-controller"],
        is_edge_only: true,
        ..Registration::new(&localendpoints::LocalEndpoints, &[ENDPOINTS, SLICES])
    },
    Registration {
        components: &["kubelet"],
        ..Registration::new(&masterservice::MasterService, &[SERVICES])
    },
    Registration {
        components: &["kube-proxy"],
        is_edge_only: true,
        ..Registration::new(&discardcloudservice::DiscardCloud, &[SERVICES])
    },
    Registration {
        components: &["kubelet"],
        requires: Some("masterservice"),
        ..Registration::new(&inclusterconfig::InClusterConfig, &[CONFIG_MAPS])
    },
    Registration {
        components: &["kube-proxy"],
        ..Registration::new(&nodeportisolation::NodePortIsolation, &[SERVICES])
    },
    Registration {
        components: &["kubelet"],
        is_off: true,
        is_edge_only: true,
        ..Registration::new(&hostnetworkpropagation::HostNetworkPropagation, &[PODS])
    },
    Registration {
        components: &["kube-proxy"],
        is_edge_only: true,
        ..Registration::new(&forwardkubesvctraffic::ForwardKubeServiceTraffic, &[SLICES])
    },
    Registration {
        components: &["kubelet"],
        is_edge_only: true,
        ..Registration::new(&serviceenvupdater::ServiceEnvUpdater, &[PODS])
    },
];

/// A filter and its defaults.
pub struct Registration {
    /// The filter.
    pub filter: &'static dyn ObjectFilter,
    /// Older names of the filter.
    pub aliases: &'static [&'static str],
    /// Components that the filter applies to without configuration.
    pub components: &'static [&'static str],
    /// Group and plural name of the resources that the filter handles.
    pub resources: &'static [(&'static str, &'static str)],
    /// True if the filter is off unless it is switched on.
    pub is_off: bool,
    /// True if the filter is off on a node in the cloud.
    pub is_edge_only: bool,
    /// Name of the filter without which this one does not run: it has to run, bound to the same component.
    pub requires: Option<&'static str>,
}

/// Data filter.
pub trait ObjectFilter: Sync {
    /// Name of the filter in ConfigMap `yurt-hub-cfg`.
    fn name(&self) -> &'static str;

    /// Inputs that the verdicts depend on in addition to the object. Everything else in the context is fixed.
    fn inputs(&self) -> Inputs {
        Inputs::NONE
    }

    /// Key of the only Service that the verdict on `object` depends on; `None` if it depends on no Service.
    fn service_of(&self, _kind: &ResourceKind, _object: &Object) -> Option<ObjectKey> {
        None
    }

    /// True if it may change or hide objects of this namespace and name; `None` is any. The others are kept.
    fn concerns(&self, _namespace: Option<&str>, _name: Option<&str>) -> bool {
        true
    }

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

// === impl Registration ===

impl Registration {
    const fn new(filter: &'static dyn ObjectFilter, resources: &'static [(&'static str, &'static str)]) -> Self {
        Registration {
            filter,
            aliases: &[],
            components: &[],
            resources,
            is_off: false,
            is_edge_only: false,
            requires: None,
        }
    }

    /// True if `name` is the filter's name or an older name of it.
    pub fn is_named(&self, name: &str) -> bool {
        self.filter.name() == name || self.aliases.contains(&name)
    }
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
