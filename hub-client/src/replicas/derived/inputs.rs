//! Live inputs of the filters: Services, members of the pool, facts about the node.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::watch;
use yurt_apimachinery::{Object, ObjectKey, Status};
use yurt_collection::{Collection, Delivery, Reader};
use yurt_storage::{Replica, SharedCollection};

use crate::filter::context::{FilterOptions, LocalPods};
use crate::filter::{Chain, FilterContext, HubAddress, Members, NodePool, PodTrust, Pool, ServiceLookup};
use crate::replicas::PoolData;

/// Collection that filters look Services up in.
const SERVICES: &str = "services";
/// Changed Services taken at a time.
const BATCH: usize = 256;
/// Seconds after which a client tries again while an input is unknown.
const RETRY_AFTER: u32 = 1;

/// Facts about this node that filters need. None of them changes once it is known.
#[derive(Clone, Debug)]
pub struct NodeFacts {
    /// Name of the Node.
    pub node: String,
    /// Name of its pool; empty if it is in none, `None` while it is unknown.
    pub pool: watch::Receiver<Option<String>>,
    /// Address of the hub for pods.
    pub hub: HubAddress,
    /// Trust of pods in the certificate there.
    pub trust: watch::Receiver<PodTrust>,
    /// Choices of the administrator.
    pub options: FilterOptions,
}

/// Inputs of all filters.
#[derive(Clone)]
pub struct LiveInputs {
    node: Arc<NodeFacts>,
    data: Arc<PoolData>,
    services: Option<Arc<Replica>>,
    local_pods: watch::Receiver<Arc<LocalPods>>,
}

/// Objects whose verdict may have changed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Affected {
    Nothing,
    /// Those that depend on one of these Services, or name one of these pods by uid.
    Of {
        services: BTreeSet<ObjectKey>,
        pods: BTreeSet<String>,
    },
    Everything,
}

/// Changes of the inputs that one chain depends on.
pub(super) struct InputChanges {
    services: Option<ServiceChanges>,
    pool: Option<PoolChanges>,
    host_network: Option<HostNetworkChanges>,
    local_pods: Option<LocalPodChanges>,
    /// Name of the pool, while it is unknown.
    pool_name: Option<watch::Receiver<Option<String>>>,
    /// Trust of pods, until it is given.
    trust: Option<watch::Receiver<PodTrust>>,
}

struct LocalPodChanges {
    /// Pods at the last evaluation.
    known: Arc<LocalPods>,
    changes: watch::Receiver<Arc<LocalPods>>,
}

struct ServiceChanges {
    services: Arc<SharedCollection>,
    reader: Reader,
    changes: watch::Receiver<u64>,
}

struct PoolChanges {
    data: Arc<PoolData>,
    /// Names at the last evaluation.
    names: Option<Arc<BTreeSet<String>>>,
    changes: watch::Receiver<u64>,
}

struct HostNetworkChanges {
    /// Value at the last evaluation.
    value: Option<bool>,
    changes: watch::Receiver<Option<bool>>,
}

struct Lookup<'a>(Option<&'a SharedCollection>);

// === impl LiveInputs ===

impl LiveInputs {
    /// Inputs of the node's filters, from the replicas in `data` and the statuses that the cloud does not have.
    #[must_use]
    pub fn new(node: NodeFacts, data: Arc<PoolData>, local_pods: watch::Receiver<Arc<LocalPods>>) -> Self {
        Self {
            local_pods,
            node: Arc::new(node),
            services: data.replicas().named(SERVICES),
            data,
        }
    }

    /// Checks that the inputs of `chain` are known. An unknown pool is an input of its own: it hides objects.
    ///
    /// # Errors
    /// 503 that names the missing input.
    pub(super) fn check(&self, chain: &Chain) -> Result<(), Status> {
        let is_ready = || self.services.as_ref().is_some_and(|services| services.is_served());
        if !chain.inputs().services || is_ready() {
            return Ok(());
        }
        let names = chain.names();
        let why = format!("filters {names:?} require a complete replica of {SERVICES} on this node");
        Err(Status::service_unavailable(&why, RETRY_AFTER))
    }

    /// Calls `look` with the present inputs.
    pub(super) fn with<T>(&self, look: impl FnOnce(&FilterContext<'_>) -> T) -> T {
        let members = self.data.membership().names();
        let members = members.as_deref().map_or(Members::Unknown, Members::Names);
        let pool = self.node.pool.borrow().clone();
        let pool = match pool.as_deref() {
            None => Pool::Unknown,
            Some("") => Pool::NoPool,
            Some(name) => Pool::Named(NodePool {
                name,
                members,
                host_network: self.data.host_network().known(),
            }),
        };
        let local_pods = self.local_pods.borrow().clone();
        look(&FilterContext {
            hub: self.node.hub,
            trust: *self.node.trust.borrow(),
            node_name: &self.node.node,
            pool,
            local_pods: &local_pods,
            services: &Lookup(self.services.as_ref().map(|services| &**services.collection())),
            options: self.node.options,
        })
    }

    /// Changes from now on of the inputs that `chain` depends on.
    pub(super) fn changes(&self, chain: &Chain) -> InputChanges {
        let inputs = chain.inputs();
        let services = self.services.as_ref().filter(|_| inputs.services);
        let services = services.map(|services| services.collection().clone());
        let pool = self.data.membership().changes().filter(|_| inputs.members);
        let local_pods = Some(self.local_pods.clone()).filter(|_| inputs.local_pods);
        InputChanges {
            pool_name: Some(self.node.pool.clone()).filter(|name| name.borrow().is_none()),
            trust: Some(self.node.trust.clone()).filter(|trust| inputs.trust && !is_given(&trust.borrow())),
            host_network: inputs.host_network.then(|| HostNetworkChanges::of(&self.data)),
            local_pods: local_pods.map(LocalPodChanges::from_now),
            services: services.map(|services| ServiceChanges {
                changes: services.subscribe(),
                reader: services.read(Collection::follow),
                services,
            }),
            pool: pool.map(|changes| PoolChanges {
                changes,
                names: self.data.membership().names(),
                data: self.data.clone(),
            }),
        }
    }
}

// === impl InputChanges ===

impl InputChanges {
    /// Objects affected by the changes since the last call, or by a part of them.
    pub(super) fn take(&mut self) -> Affected {
        let services = self.services.as_mut().map(ServiceChanges::take);
        let members = self.pool.as_mut().is_some_and(PoolChanges::take);
        let host_network = self.host_network.as_mut().is_some_and(HostNetworkChanges::take);
        let is_named = self
            .pool_name
            .take_if(|name| name.borrow_and_update().is_some())
            .is_some();
        let trust = &mut self.trust;
        let is_trusted = trust.take_if(|trust| is_given(&trust.borrow_and_update())).is_some();
        let pods = self.local_pods.as_mut().map(LocalPodChanges::take).unwrap_or_default();
        match services.unwrap_or(Some(BTreeSet::new())) {
            Some(services) if !members && !host_network && !is_named && !is_trusted => {
                match services.is_empty() && pods.is_empty() {
                    true => Affected::Nothing,
                    false => Affected::Of { services, pods },
                }
            }
            _ => Affected::Everything,
        }
    }

    /// Waits for a change. Never resolves without inputs.
    ///
    /// # Cancel safety
    /// Holds nothing; may be dropped at any point.
    pub(super) async fn changed(&mut self) {
        let services = next(self.services.as_mut().map(|services| &mut services.changes));
        let pool = next(self.pool.as_mut().map(|pool| &mut pool.changes));
        let host_network = next(self.host_network.as_mut().map(|value| &mut value.changes));
        let pods = next(self.local_pods.as_mut().map(|pods| &mut pods.changes));
        let pool_name = next(self.pool_name.as_mut());
        let trust = next(self.trust.as_mut());
        tokio::select! {
            () = pool_name => {}
            () = trust => {}
            () = services => {}
            () = pool => {}
            () = host_network => {}
            () = pods => {}
        }
    }
}

fn is_given(trust: &PodTrust) -> bool {
    *trust == PodTrust::Given
}

/// Waits for a change of one input. The hub keeps its sender.
async fn next<T>(changes: Option<&mut watch::Receiver<T>>) {
    if let Some(changes) = changes
        && changes.changed().await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

// === impl ServiceChanges ===

impl ServiceChanges {
    /// Keys of the changed Services; `None` if they are unknown.
    fn take(&mut self) -> Option<BTreeSet<ObjectKey>> {
        self.changes.borrow_and_update();
        let read = self.services.read(|held| held.read(&mut self.reader, BATCH));
        let Ok(deliveries) = read else {
            self.reader = self.services.read(Collection::follow);
            return None;
        };
        if !deliveries.is_empty() {
            // There may be more.
            self.changes.mark_changed();
        }
        let key = |delivery: Delivery| match delivery {
            Delivery::Exact(change) => Some(change.object.key().clone()),
            Delivery::Current { object, .. } | Delivery::Gone(object) => Some(object.key().clone()),
            Delivery::DiffBegin(_) | Delivery::DiffEnd { .. } => None,
        };
        Some(deliveries.into_iter().filter_map(key).collect())
    }
}

// === impl PoolChanges ===

impl PoolChanges {
    /// True if the members changed.
    fn take(&mut self) -> bool {
        self.changes.borrow_and_update();
        let names = self.data.membership().names();
        let is_changed = names != self.names;
        self.names = names;
        is_changed
    }
}

// === impl HostNetworkChanges ===

impl HostNetworkChanges {
    fn of(data: &PoolData) -> Self {
        let mut changes = data.host_network().want();
        let value = *changes.borrow_and_update();
        Self { value, changes }
    }

    /// True if the value changed.
    fn take(&mut self) -> bool {
        let value = *self.changes.borrow_and_update();
        std::mem::replace(&mut self.value, value) != value
    }
}

// === impl LocalPodChanges ===

impl LocalPodChanges {
    fn from_now(mut changes: watch::Receiver<Arc<LocalPods>>) -> Self {
        let known = changes.borrow_and_update().clone();
        Self { known, changes }
    }

    /// Uids of the pods whose state differs from that of the last evaluation.
    fn take(&mut self) -> BTreeSet<String> {
        let now = self.changes.borrow_and_update().clone();
        let before = std::mem::replace(&mut self.known, now);
        let uids = before.keys().chain(self.known.keys());
        let is_changed = |uid: &&String| before.get(*uid) != self.known.get(*uid);
        uids.filter(is_changed).cloned().collect()
    }
}

impl ServiceLookup for Lookup<'_> {
    fn service(&self, key: &ObjectKey) -> Option<Object> {
        self.0?.read(|services| services.object(key).cloned())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use yurt_runtime::Clock;
    use yurt_test_support::TestDir;

    use super::*;
    use crate::filter::FILTERS;
    use crate::filter::binding::Table;

    #[tokio::test]
    async fn host_network_of_the_pool_is_followed() {
        let folder = TestDir::new();
        let data = Arc::new(PoolData::open(folder.path(), "p", usize::MAX, Clock::system()).unwrap());
        let node = NodeFacts {
            node: "n1".to_owned(),
            pool: watch::channel(Some("p".to_owned())).1,
            hub: HubAddress {
                host: [169, 254, 2, 1].into(),
                secure_port: 10268,
            },
            trust: watch::channel(PodTrust::Given).1,
            options: FilterOptions::default(),
        };
        let inputs = LiveInputs::new(node, data.clone(), watch::Sender::default().subscribe());
        let bound = [("hostnetworkpropagation".to_owned(), "kubelet".to_owned())].into();
        let table = Table::new(&FILTERS, &Default::default()).with(&bound);
        let chain = table.chain("kubelet", "", "pods", yurt_apimachinery::Verb::List);
        let mut changes = inputs.changes(&chain);
        let seen = || {
            inputs.with(|context| match context.pool {
                Pool::Named(pool) => pool.host_network,
                _ => None,
            })
        };
        assert_eq!((changes.take(), seen()), (Affected::Nothing, None));
        for value in [true, false] {
            let pool = json!({"spec": {"hostNetwork": value}});
            data.host_network().take(&pool).await;
            changes.changed().await;
            assert_eq!((changes.take(), seen()), (Affected::Everything, Some(value)));
            data.host_network().take(&pool).await;
            assert_eq!(changes.take(), Affected::Nothing);
        }
    }
}
