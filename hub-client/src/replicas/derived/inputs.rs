//! Live inputs of the filters: Services, members of the pool, facts about the node.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::watch;
use yurt_apimachinery::{Object, ObjectKey, Status};
use yurt_collection::{Collection, Delivery, Reader};
use yurt_storage::{Replica, SharedCollection};

use crate::filter::context::FilterOptions;
use crate::filter::{Chain, FilterContext, HubAddress, Members, NodePool, Pool, ServiceLookup};
use crate::replicas::PoolData;

/// Collection that filters look Services up in.
const SERVICES: &str = "services";
/// Changed Services taken at a time.
const BATCH: usize = 256;
/// Seconds after which a client tries again while an input is unknown.
const RETRY_AFTER: u32 = 1;

/// Facts about this node that filters need; fixed for the life of the process.
#[derive(Clone, Debug)]
pub struct NodeFacts {
    /// Name of the Node.
    pub node: String,
    /// Name of its pool; empty if it is in none.
    pub pool: String,
    /// Address of the hub for pods.
    pub host: IpAddr,
    /// Port of the HTTPS proxy.
    pub secure_port: u16,
    /// Choices of the administrator.
    pub options: FilterOptions,
}

/// Inputs of all filters.
#[derive(Clone)]
pub struct LiveInputs {
    node: Arc<NodeFacts>,
    host: Arc<str>,
    data: Arc<PoolData>,
    services: Option<Arc<Replica>>,
}

/// Objects whose verdict may have changed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Affected {
    Nothing,
    /// Those that depend on one of these Services.
    OfServices(BTreeSet<ObjectKey>),
    Everything,
}

/// Changes of the inputs that one chain depends on.
pub(super) struct InputChanges {
    services: Option<ServiceChanges>,
    pool: Option<PoolChanges>,
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

struct Lookup<'a>(Option<&'a SharedCollection>);

// === impl LiveInputs ===

impl LiveInputs {
    /// Inputs of the node's filters, from the replicas in `data`.
    #[must_use]
    pub fn new(node: NodeFacts, data: Arc<PoolData>) -> Self {
        Self {
            host: node.host.to_string().into(),
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
        let pool = match &*self.node.pool {
            "" => Pool::NoPool,
            name => Pool::Named(NodePool {
                name,
                members,
                host_network: None,
            }),
        };
        look(&FilterContext {
            hub: HubAddress {
                host: &self.host,
                secure_port: self.node.secure_port,
            },
            node_name: &self.node.node,
            pool,
            services: &Lookup(self.services.as_ref().map(|services| &**services.collection())),
            options: self.node.options,
        })
    }

    /// Changes from now on of the inputs that `chain` depends on.
    pub(super) fn changes(&self, chain: &Chain) -> InputChanges {
        let inputs = chain.inputs();
        let services = self.services.as_ref().filter(|_| inputs.services);
        let services = services.map(|services| services.collection().clone());
        let pool = self.data.membership().changes().filter(|_| inputs.pool);
        InputChanges {
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
        match self.pool.as_mut().is_some_and(PoolChanges::take) {
            true => Affected::Everything,
            false => services.unwrap_or(Affected::Nothing),
        }
    }

    /// Waits for a change. Never resolves without inputs.
    ///
    /// # Cancel safety
    /// Holds nothing; may be dropped at any point.
    pub(super) async fn changed(&mut self) {
        let services = next(self.services.as_mut().map(|services| &mut services.changes));
        let pool = next(self.pool.as_mut().map(|pool| &mut pool.changes));
        tokio::select! {
            () = services => {}
            () = pool => {}
        }
    }
}

/// Waits for a change of one input. The hub keeps its sender.
async fn next(changes: Option<&mut watch::Receiver<u64>>) {
    if let Some(changes) = changes
        && changes.changed().await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

// === impl ServiceChanges ===

impl ServiceChanges {
    fn take(&mut self) -> Affected {
        self.changes.borrow_and_update();
        let read = self.services.read(|held| held.read(&mut self.reader, BATCH));
        let Ok(deliveries) = read else {
            self.reader = self.services.read(Collection::follow);
            return Affected::Everything;
        };
        if deliveries.is_empty() {
            return Affected::Nothing;
        }
        // There may be more.
        self.changes.mark_changed();
        let key = |delivery: Delivery| match delivery {
            Delivery::Exact(change) => Some(change.object.key().clone()),
            Delivery::Current { object, .. } | Delivery::Gone(object) => Some(object.key().clone()),
            Delivery::DiffBegin(_) | Delivery::DiffEnd { .. } => None,
        };
        Affected::OfServices(deliveries.into_iter().filter_map(key).collect())
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

impl ServiceLookup for Lookup<'_> {
    fn service(&self, key: &ObjectKey) -> Option<Object> {
        self.0?.read(|services| services.object(key).cloned())
    }
}
