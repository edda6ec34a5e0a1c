//! Decides which filters apply to a request, and holds the request until they can run.
//!
//! The table of [`binding`](crate::filter::binding) follows ConfigMap `yurt-hub-cfg`. A request for a resource that a
//! filter may be bound to waits until the ConfigMap and the inputs of its filters are known. The wait is bounded; then
//! the request is refused, because its data must not pass unfiltered. A write whose answer is such data is refused
//! without a wait. All other requests are not delayed. A change of the table ends the open watches whose filters it
//! changes, and no others.
//!
//! Filters know a caller by its service account if an entry names that, else by the component of its User-Agent. The
//! name is looked up once per request, with the filters and the edition of the same state of the table.

mod editions;

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
use crate::filter::{Chain, Inputs, PodTrust};
use crate::hub_config::{self, HubConfig};
use crate::replicas::PoolData;
use editions::Editions;

use super::caller::Caller;

/// Maximum time that a request waits for the ConfigMap and for the inputs of its filters.
pub const WAIT_MAX: Duration = Duration::from_secs(5);
/// Maximum number of requests that wait; more are refused immediately.
const WAITING_MAX: usize = 100;
/// Interval between looks at an input that is not complete.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Seconds after which a refused client tries again.
const RETRY_AFTER: u32 = 1;

/// Subresources without an object of the resource: streams, and requests to the pod or the Service itself. No filter
/// can be bound to them.
const NO_OBJECTS: [&str; 5] = ["attach", "exec", "log", "portforward", "proxy"];

/// State of the filters' configuration.
#[derive(Clone)]
pub struct Approval {
    /// Reason why the configuration is not known yet; `None` if it is.
    pub waits_for: Option<String>,
    /// Bindings in effect.
    pub table: Table,
    /// Changes of the bindings so far.
    editions: Arc<Editions>,
    /// True if an entry names a service account, or did. Only then accounts are read for requests of single objects.
    knows_accounts: bool,
}

/// Approves requests.
pub struct Approver {
    /// The configuration.
    state: watch::Receiver<Arc<Approval>>,
    /// Inputs of the filters.
    data: Arc<PoolData>,
    /// Trust of pods in the hub's certificate for them.
    trust: watch::Receiver<PodTrust>,
    /// True if this node is known to be in a pool.
    has_pool: bool,
    /// Places of waiting requests.
    waiting: Semaphore,
}

/// Approved request.
#[derive(Default)]
pub struct Approved {
    /// Filters of the request, in call order.
    pub chain: Chain,
    /// Edition of the filters. A client whose filters changed gets another view, also if it has no filter now.
    pub edition: u64,
    /// The request, if a filter can be bound to it.
    key: Option<Key>,
}

struct Key {
    reader: Reader,
    resource: GroupResource,
    verb: Verb,
    state: watch::Receiver<Arc<Approval>>,
}

/// Names by which the filters may know a caller.
struct Reader {
    component: String,
    /// Service account of its token, if that was read.
    account: Option<String>,
}

/// Keeps the table up to date until `token` is cancelled.
pub(crate) async fn follow(
    state: watch::Sender<Arc<Approval>>,
    mut config: watch::Receiver<Arc<HubConfig>>,
    token: CancellationToken,
) {
    loop {
        let now = config.borrow_and_update().clone();
        let before = state.borrow().clone();
        let next = before.next(&now);
        if before.differs(&next) {
            next.log(&before);
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
    /// State of a hub that starts with this ConfigMap. `table` has the filters of the node.
    #[must_use]
    pub fn new(table: &Table, config: &HubConfig) -> Self {
        let table = table.with(&config.data);
        Self {
            waits_for: (!config.synced).then(|| waits_for(config)),
            editions: Arc::default(),
            knows_accounts: !table.accounts().is_empty(),
            table,
        }
    }

    /// State with this ConfigMap, after this one.
    #[must_use]
    pub fn next(&self, config: &HubConfig) -> Self {
        let next = Self::new(&self.table, config);
        let changed = self.table.changes(&next.table);
        Self {
            editions: match changed.is_empty() {
                true => self.editions.clone(),
                false => Arc::new(self.editions.after(changed)),
            },
            knows_accounts: self.knows_accounts || next.knows_accounts,
            ..next
        }
    }

    /// Returns the name by which the filters know a caller, and the edition of its filters for a resource.
    fn known_as<'a>(&self, reader: &'a Reader, resource: &GroupResource) -> (&'a str, u64) {
        let account = reader.account.as_deref();
        let named = account.filter(|account| self.table.accounts().contains(*account));
        let name = named.unwrap_or(&reader.component);
        // A caller whose account was named before may hold what the filters of that name showed.
        let former = account.map_or(0, |account| self.editions.of(account, resource));
        (name, self.editions.of(name, resource).max(former))
    }

    fn differs(&self, other: &Self) -> bool {
        self.waits_for != other.waits_for
            || self.table.faults() != other.table.faults()
            || self.table.fault_count() != other.table.fault_count()
            || !self.table.changes(&other.table).is_empty()
    }

    fn log(&self, before: &Self) {
        for (component, resource) in before.table.changes(&self.table) {
            // A get is filtered by all filters of lists and watches.
            let names = |table: &Table| {
                table
                    .chain(&component, &resource.group, &resource.resource, Verb::Get)
                    .names()
            };
            let (was, filters) = (names(&before.table), names(&self.table));
            if was.is_empty() && filters.is_empty() {
                continue;
            }
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
    /// Creates it. `data` and `trust` are the inputs of the filters; `has_pool` is true if this node is known to be in
    /// a pool.
    pub fn new(
        state: watch::Receiver<Arc<Approval>>,
        data: Arc<PoolData>,
        trust: watch::Receiver<PodTrust>,
        has_pool: bool,
    ) -> Self {
        Self {
            state,
            data,
            trust,
            has_pool,
            waiting: Semaphore::new(WAITING_MAX),
        }
    }

    /// Returns the filters of a request, once they can run.
    ///
    /// # Errors
    /// 503 with the reason if the configuration, or an input of the filters, is still missing after [`WAIT_MAX`].
    pub async fn approve(&self, caller: &Caller, info: &RequestInfo) -> Result<Approved, Status> {
        let is_read = matches!(info.verb, Verb::Get | Verb::List | Verb::Watch);
        let is_object = !NO_OBJECTS.contains(&info.subresource.as_deref().unwrap_or_default());
        let can_bind = info.is_resource && is_read && is_object && self.state.borrow().table.is_filterable(info);
        if !can_bind || !is_named(caller) {
            return Ok(Approved::default());
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
        let now = state.borrow_and_update().clone();
        // An entry may name the account before the list is answered, or while the watch is open.
        let reader = Reader::of(caller, now.knows_accounts || info.verb != Verb::Get);
        let (name, edition) = now.known_as(&reader, &resource);
        let chain = now.table.chain(name, &info.group, &info.resource, info.verb);
        let chain = chain.about(info.namespace.as_deref(), info.name.as_deref());
        self.wait_for_inputs(&chain, &resource, until).await?;
        let key = Key {
            reader,
            resource,
            verb: info.verb,
            state,
        };
        Ok(Approved {
            chain,
            edition,
            key: Some(key),
        })
    }

    /// Returns the filters of the caller's reads that show the object of this write, and their edition. Does not wait.
    ///
    /// # Errors
    /// 503 with the reason if the configuration is unknown, and only it can bind a filter to these reads. A component
    /// with filters by default may write: a new node registers and reports.
    pub fn reads_of(&self, caller: &Caller, info: &RequestInfo) -> Result<(Vec<Chain>, u64), Status> {
        let (state, mut chains) = (self.state.borrow().clone(), Vec::<Chain>::new());
        if !state.table.is_filterable(info) {
            return Ok((chains, 0));
        }
        let reader = Reader::of(caller, state.knows_accounts);
        let (name, edition) = state.known_as(&reader, &info.group_resource());
        for verb in VERBS {
            let chain = state.table.chain(name, &info.group, &info.resource, verb);
            if !chain.is_empty() && chains.iter().all(|known| known.names() != chain.names()) {
                chains.push(chain);
            }
        }
        // The answer to a delete is the cloud's, whatever filters there are.
        let is_unjudged = chains.is_empty() && info.verb != Verb::Delete && is_named(caller);
        match &state.waits_for {
            Some(why) if is_unjudged => Err(refused(&info.group_resource(), why)),
            _ => Ok((chains, edition)),
        }
    }

    /// Waits for the inputs that `chain` depends on. Without members the filters hide what depends on them, and without
    /// the NodePool's hostNetwork they change nothing, so the request is answered after the wait. For an unknown pool
    /// nothing waits: a Node may be registered much later. A new node awaits the trust of pods: those that start
    /// without it do without the hub until they restart.
    async fn wait_for_inputs(&self, chain: &Chain, resource: &GroupResource, until: Instant) -> Result<(), Status> {
        // Local statuses are known from the start.
        let Inputs {
            services,
            members,
            host_network,
            trust,
            ..
        } = chain.inputs();
        let value = (host_network && self.has_pool).then(|| self.data.host_network().want());
        let is_unknown = || value.as_ref().is_some_and(|value| value.borrow().is_none());
        let served = |name: &str| self.data.replicas().named(name).is_some_and(|one| one.is_served());
        let has_no_members = || self.has_pool && self.data.membership().names().is_none();
        let is_awaited = || trust && *self.trust.borrow() == PodTrust::Awaited;
        let is_missing =
            || services && !served("services") || members && has_no_members() || is_unknown() || is_awaited();
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
                if is_awaited() {
                    let why = "the hub has requested a certificate that pods trust, which is not issued yet";
                    return Err(refused(resource, why));
                }
                return Ok(());
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        Ok(())
    }
}

/// True if an entry can name this caller.
fn is_named(caller: &Caller) -> bool {
    !caller.component.is_empty() || caller.account().is_some()
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
    ///
    /// # Errors
    /// 429 for a list if other filters have been bound since it was approved. The view of these may have passed the RV
    /// of the list, and would not send what the former filters showed once more.
    pub fn ending(self, response: Response<Body>) -> Result<Response<Body>, Status> {
        let Some(key) = self.key.filter(|key| key.verb != Verb::Get) else {
            return Ok(response);
        };
        if key.verb == Verb::List {
            let is_same = key.edition() == self.edition;
            let why = "the filters of this list have changed, please try again";
            return is_same
                .then_some(response)
                .ok_or_else(|| Status::too_many_requests(why, RETRY_AFTER));
        }
        let changed = key.changed(self.edition);
        Ok(response.map(|body| {
            let frames = BodyStream::new(body).take_until(Box::pin(changed));
            StreamBody::new(frames).boxed_unsync()
        }))
    }
}

// === impl Reader ===

impl Reader {
    fn of(caller: &Caller, reads_account: bool) -> Self {
        Self {
            component: caller.component.clone(),
            account: reads_account.then(|| caller.account()).flatten(),
        }
    }
}

// === impl Key ===

impl Key {
    fn edition(&self) -> u64 {
        let state = self.state.borrow();
        state.known_as(&self.reader, &self.resource).1
    }

    /// Resolves when the filters of the request are of another edition.
    async fn changed(mut self, edition: u64) {
        while self.edition() == edition {
            if self.state.changed().await.is_err() {
                // The hub stops, which ends the watch.
                return std::future::pending().await;
            }
        }
    }
}

#[cfg(test)]
mod tests;
