//! Decides which filters apply to a request, and holds the request until they can run.
//!
//! The table of [`binding`](crate::filter::binding) follows ConfigMap `yurt-hub-cfg`. A request for a resource that a
//! filter may be bound to waits until the ConfigMap and the inputs of its filters are known. The wait is bounded; then the
//! request is refused, because its data must not pass unfiltered. All other requests are not delayed. A
//! change of the table ends the open watches whose filters it changes, and no others.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use http::Response;
use http_body_util::{BodyExt as _, BodyStream, StreamBody};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::{GroupResource, RequestInfo, Status, Verb};
use yurt_runtime::http::Body;

use crate::filter::binding::{Fault, Table, VERBS};
use crate::filter::{Chain, Inputs};
use crate::hub_config::{self, HubConfig};
use crate::replicas::PoolData;

/// Maximum time that a request waits for the ConfigMap and for the inputs of its filters.
pub const WAIT_MAX: Duration = Duration::from_secs(5);
/// Maximum number of requests that wait; more are refused immediately.
const WAITING_MAX: usize = 100;
/// Interval between looks at an input that is not complete.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Seconds after which a refused client tries again.
const RETRY_AFTER: u32 = 1;

/// Subresources without an object of the resource: streams, and requests to the pod or the Service itself. No filter can
/// be bound to them.
const NO_OBJECTS: [&str; 5] = ["attach", "exec", "log", "portforward", "proxy"];

/// State of the filters' configuration.
#[derive(Clone)]
pub struct Approval {
    /// Reason why the configuration is not known yet; `None` if it is.
    pub waits_for: Option<String>,
    /// Bindings in effect.
    pub table: Table,
}

/// Approves requests.
pub struct Approver {
    /// The configuration.
    state: watch::Receiver<Arc<Approval>>,
    /// Inputs of the filters.
    data: Arc<PoolData>,
    /// True if this node is in a pool.
    has_pool: bool,
    /// Places of waiting requests.
    waiting: Semaphore,
}

/// Approved request.
pub struct Approved {
    /// Filters of the request, in call order.
    pub chain: Chain,
    /// The request, if a filter can be bound to it.
    key: Option<Key>,
}

struct Key {
    component: String,
    resource: GroupResource,
    verb: Verb,
    /// Objects that the request reads; `None` is any.
    namespace: Option<String>,
    name: Option<String>,
    state: watch::Receiver<Arc<Approval>>,
}

/// Keeps the table up to date until `token` is cancelled. Calls `announce` with the components and resources whose filters
/// change, before a request sees the new ones and before the watches end.
pub(crate) async fn follow(
    state: watch::Sender<Arc<Approval>>,
    mut config: watch::Receiver<Arc<HubConfig>>,
    announce: impl Fn(BTreeSet<(String, GroupResource)>) + Send,
    token: CancellationToken,
) {
    loop {
        let now = config.borrow_and_update().clone();
        let before = state.borrow().clone();
        let next = before.next(&now);
        if before.differs(&next) {
            next.log(&before);
            let changed = before.table.changes(&next.table);
            if !changed.is_empty() {
                announce(changed);
            }
            state.send_replace(Arc::new(next));
        }
        match token.run_until_cancelled(config.changed()).await {
            Some(Ok(())) => {}
            _ => return,
        }
    }
}

// === impl Approval ===

impl Approval {
    /// State of a hub that has not read the ConfigMap yet.
    #[must_use]
    pub fn new(table: Table) -> Self {
        Self {
            waits_for: Some(waits_for(&HubConfig::default())),
            table,
        }
    }

    /// State with this ConfigMap.
    #[must_use]
    pub fn next(&self, config: &HubConfig) -> Self {
        Self {
            waits_for: (!config.synced).then(|| waits_for(config)),
            table: self.table.with(&config.data),
        }
    }

    fn differs(&self, other: &Self) -> bool {
        self.waits_for != other.waits_for
            || self.table.faults() != other.table.faults()
            || self.table.fault_count() != other.table.fault_count()
            || !self.table.changes(&other.table).is_empty()
    }

    fn log(&self, before: &Self) {
        for (component, resource) in before.table.changes(&self.table) {
            let names = |table: &Table| {
                table
                    .chain(&component, &resource.group, &resource.resource, Verb::List)
                    .names()
            };
            let (was, filters) = (names(&before.table), names(&self.table));
            tracing::info!(component, %resource, ?was, ?filters, "Filters changed");
        }
        let known: BTreeSet<&Fault> = before.table.faults().iter().collect();
        for fault in self.table.faults().iter().filter(|fault| !known.contains(fault)) {
            let Fault { key, entry, reason } = fault;
            tracing::warn!(key, entry, reason, "Ignored an entry of ConfigMap yurt-hub-cfg");
        }
    }
}

fn waits_for(config: &HubConfig) -> String {
    let why = config.refused.as_deref().unwrap_or("no answer yet");
    format!("ConfigMap {} has not been read: {why}", hub_config::NAME)
}

// === impl Approver ===

impl Approver {
    /// Creates it. `data` has the inputs of the filters; `has_pool` is true if this node is in a pool.
    pub fn new(state: watch::Receiver<Arc<Approval>>, data: Arc<PoolData>, has_pool: bool) -> Self {
        Self {
            state,
            data,
            has_pool,
            waiting: Semaphore::new(WAITING_MAX),
        }
    }

    /// Returns the filters of a request, once they can run.
    ///
    /// # Errors
    /// 503 with the reason if the configuration, or an input of the filters, is still missing after [`WAIT_MAX`].
    pub async fn approve(&self, component: &str, info: &RequestInfo) -> Result<Approved, Status> {
        let is_read = matches!(info.verb, Verb::Get | Verb::List | Verb::Watch);
        let is_object = !NO_OBJECTS.contains(&info.subresource.as_deref().unwrap_or_default());
        let can_bind = info.is_resource && is_read && is_object && !component.is_empty();
        if !can_bind || !self.state.borrow().table.is_filterable(info) {
            return Ok(Approved {
                chain: Chain::default(),
                key: None,
            });
        }
        let (until, resource) = (Instant::now() + WAIT_MAX, info.group_resource());
        let mut state = self.state.clone();
        let is_synced = |state: &Arc<Approval>| state.waits_for.is_none();
        if !is_synced(&state.borrow()) {
            let place = self.waiting.try_acquire();
            let synced = tokio::time::timeout_at(until, state.wait_for(is_synced));
            if place.is_err() || !matches!(synced.await, Ok(Ok(_))) {
                let why = self.state.borrow().waits_for.clone().unwrap_or_default();
                return Err(refused(&resource, &why));
            }
        }
        let key = Key {
            component: component.to_owned(),
            resource,
            verb: info.verb,
            namespace: info.namespace.clone(),
            name: info.name.clone(),
            state,
        };
        let chain = key.chain();
        self.wait_for_inputs(&chain, &key.resource, until).await?;
        Ok(Approved { chain, key: Some(key) })
    }

    /// Returns the filters of the reads of `component` that show the object of this write. Does not wait.
    #[must_use]
    pub fn reads_of(&self, component: &str, info: &RequestInfo) -> Vec<Chain> {
        let (state, mut chains) = (self.state.borrow(), Vec::<Chain>::new());
        if component.is_empty() || !state.table.is_filterable(info) {
            return chains;
        }
        for verb in VERBS {
            let chain = state.table.chain(component, &info.group, &info.resource, verb);
            if !chain.is_empty() && chains.iter().all(|known| known.names() != chain.names()) {
                chains.push(chain);
            }
        }
        chains
    }

    /// Waits for the inputs that `chain` depends on. Without members the filters hide what depends on them, and without the
    /// NodePool's hostNetwork they change nothing, so the request is answered after the wait.
    async fn wait_for_inputs(&self, chain: &Chain, resource: &GroupResource, until: Instant) -> Result<(), Status> {
        // Local statuses are known from the start.
        let Inputs {
            services,
            members,
            host_network,
            ..
        } = chain.inputs();
        let value = (host_network && self.has_pool).then(|| self.data.host_network().want());
        let is_unknown = || value.as_ref().is_some_and(|value| value.borrow().is_none());
        let served = |name: &str| self.data.replicas().named(name).is_some_and(|one| one.is_served());
        let has_no_members = || self.has_pool && self.data.membership().names().is_none();
        let is_missing = || services && !served("services") || members && has_no_members() || is_unknown();
        if !is_missing() {
            return Ok(());
        }
        let place = self.waiting.try_acquire();
        while is_missing() {
            if place.is_err() || Instant::now() >= until {
                if services && !served("services") {
                    let why = format!(
                        "filters {:?} need the services, which are not complete on this node",
                        chain.names()
                    );
                    return Err(refused(resource, &why));
                }
                return Ok(());
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        Ok(())
    }
}

fn refused(resource: &GroupResource, why: &str) -> Status {
    Status::service_unavailable(format!("{resource} cannot be filtered yet: {why}"), RETRY_AFTER)
}

// === impl Approved ===

impl Approved {
    /// True if a filter may be bound to the request now, or was before.
    pub fn is_filterable(&self) -> bool {
        self.key.is_some()
    }

    /// The same response; if it is a watch, it ends cleanly when other filters are bound to the request.
    pub fn ending(self, response: Response<Body>) -> Response<Body> {
        let Some(key) = self.key.filter(|key| key.verb == Verb::Watch) else {
            return response;
        };
        let changed = key.changed(self.chain.names());
        response.map(|body| {
            let frames = BodyStream::new(body).take_until(Box::pin(changed));
            StreamBody::new(frames).boxed_unsync()
        })
    }
}

// === impl Key ===

impl Key {
    fn chain(&self) -> Chain {
        let GroupResource { group, resource } = &self.resource;
        self.state
            .borrow()
            .table
            .chain(&self.component, group, resource, self.verb)
            .about(self.namespace.as_deref(), self.name.as_deref())
    }

    /// Resolves when the filters are no longer `names`.
    async fn changed(mut self, names: Vec<&'static str>) {
        while self.chain().names() == names {
            if self.state.changed().await.is_err() {
                // The hub stops, which ends the watch.
                return std::future::pending().await;
            }
        }
    }
}

#[cfg(test)]
mod tests;
