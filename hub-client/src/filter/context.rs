//! Inputs of the filters in addition to the object, and which of them a filter depends on.

use core::net::IpAddr;
use std::collections::{BTreeMap, BTreeSet};

use yurt_apimachinery::{Object, ObjectKey, ResourceVersion};

/// Inputs of the filters in addition to the object.
#[derive(Clone, Copy)]
pub struct FilterContext<'a> {
    /// Address of the hub for clients on this node.
    pub hub: HubAddress,
    /// Trust of pods in the certificate at that address.
    pub trust: PodTrust,
    /// Name of the Node this hub runs on.
    pub node_name: &'a str,
    /// Pool of this node.
    pub pool: Pool<'a>,
    /// Services of the cluster.
    pub services: &'a dyn ServiceLookup,
    /// Pods of this node whose present state the cloud's endpoints do not show.
    pub local_pods: &'a LocalPods,
    /// Choices of the administrator.
    pub options: FilterOptions,
}

/// Address of the hub for pods.
#[derive(Clone, Copy, Debug)]
pub struct HubAddress {
    /// IP address.
    pub host: IpAddr,
    /// Port of the TLS listener.
    pub secure_port: u16,
}

/// Trust of pods in the hub's certificate for them. Once given it stays, also after the end of the certificate: the
/// environment of a running container cannot follow, and some kubelets restart containers whose environment changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodTrust {
    /// The node is new, and its first certificate may be issued soon.
    Awaited,
    /// The hub has no certificate that they trust.
    Missing,
    /// They trust it.
    Given,
}

/// Choices of the administrator; fixed for the life of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilterOptions {
    /// LoadBalancer Services that `discardcloudservice` hides.
    pub discard_cloud_service: DiscardCloudService,
}

/// LoadBalancer Services that `discardcloudservice` hides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiscardCloudService {
    /// All, unless annotation `openyurt.io/skip-discard` is `true`.
    #[default]
    OptOut,
    /// Those with annotation `svc.openyurt.io/discard: "true"`.
    OptIn,
}

/// Pool of this node, as far as known.
#[derive(Clone, Copy, Debug)]
pub enum Pool<'a> {
    /// Not known yet. Objects whose visibility depends on it are dropped; re-evaluation shows them once it is known.
    Unknown,
    /// The node is in no pool: pool topology is limited to this node.
    NoPool,
    /// The node names this pool.
    Named(NodePool<'a>),
}

/// The pool that a node names.
#[derive(Clone, Copy, Debug)]
pub struct NodePool<'a> {
    /// Name.
    pub name: &'a str,
    /// Nodes in the pool.
    pub members: Members<'a>,
    /// `spec.hostNetwork` of the NodePool; the last known one if that is gone. `None` if it is not known.
    pub host_network: Option<bool>,
}

/// Nodes in a pool. A pool that does not exist has no nodes: a NodePool or labels that were removed by mistake look the
/// same, and must not show the endpoints of the whole cluster.
#[derive(Clone, Copy, Debug)]
pub enum Members<'a> {
    /// Not known yet; see [`Pool::Unknown`].
    Unknown,
    /// Names of the nodes, this node included if it is one.
    Names(&'a BTreeSet<String>),
}

/// Pods of this node that the cloud's endpoints may show otherwise than they are, by uid.
pub type LocalPods = BTreeMap<String, LocalPod>;

/// A pod of this node, as its kubelet reported it while the cloud was away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalPod {
    /// Addresses; none if the pod has ended or has no network yet.
    pub addresses: Vec<IpAddr>,
    /// True if the pod has condition Ready.
    pub is_ready: bool,
    /// True if the pod is being deleted.
    pub is_terminating: bool,
    /// RV of the pod at the cloud once it has this status. Later objects are the cloud's own.
    pub known_at: Option<ResourceVersion>,
}

/// Lookup of Services in the replica of this hub.
pub trait ServiceLookup {
    /// Returns a Service; `None` if it is unknown, at least so far.
    fn service(&self, key: &ObjectKey) -> Option<Object>;
}

/// Inputs that change while views are open. A view is evaluated again when one that its filters name has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inputs {
    /// [`FilterContext::services`], for each object the one of [`super::ObjectFilter::service_of`].
    pub services: bool,
    /// [`NodePool::members`]. The name of the pool does not change while the hub runs.
    pub members: bool,
    /// [`NodePool::host_network`].
    pub host_network: bool,
    /// [`FilterContext::local_pods`], for each object those whose uid it names.
    pub local_pods: bool,
    /// [`FilterContext::trust`], which is given once.
    pub trust: bool,
}

// === impl FilterContext ===

impl FilterContext<'_> {
    /// True if pods can connect to the hub, and trust its certificate.
    pub(crate) fn is_for_pods(&self) -> bool {
        self.hub.is_for_pods() && self.trust == PodTrust::Given
    }
}

// === impl HubAddress ===

impl HubAddress {
    /// True if pods can connect to it. In a pod's network, loopback and unspecified addresses are the pod itself.
    #[must_use]
    pub fn is_for_pods(&self) -> bool {
        let host = self.host.to_canonical();
        !host.is_loopback() && !host.is_unspecified()
    }
}

// === impl LocalPod ===

impl LocalPod {
    /// Addresses of one family.
    pub fn of_family(&self, is_v4: bool) -> impl Iterator<Item = IpAddr> {
        self.addresses.iter().copied().filter(move |ip| ip.is_ipv4() == is_v4)
    }
}

// === impl Inputs ===

impl Inputs {
    /// The verdict is a function of the object alone.
    pub const NONE: Self = Inputs {
        services: false,
        members: false,
        host_network: false,
        local_pods: false,
        trust: false,
    };
    /// The verdict leads pods to the hub.
    pub(super) const TRUST: Self = Inputs {
        trust: true,
        ..Self::NONE
    };

    /// Inputs of either.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Inputs {
            services: self.services || other.services,
            members: self.members || other.members,
            host_network: self.host_network || other.host_network,
            local_pods: self.local_pods || other.local_pods,
            trust: self.trust || other.trust,
        }
    }
}
