//! State that every request may need: one shared value, built once.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use yurt_apimachinery::time::BootTime;
use yurt_pool_protocol::names::ELECTION_KEY;
use yurt_runtime::{Clock, TaskGroup};
use yurt_storage::Cacher;

use crate::authn::User;
use crate::authz::{Attributes, Decision, Facts};
use crate::config::Profile;
use crate::discovery::Discovery;
use crate::feed::Feed;
use crate::forgery::reports::Reports;
use crate::health::Health;
use crate::metrics::Metrics;
use crate::registry::Registry;
use crate::registry::custom::{CustomKinds, Declared};
use crate::registry::own::OwnStore;

mod bound_objects;
mod filter_state;
mod scrape;

pub(crate) use filter_state::FilterState;

/// The coordinator as its request handlers see it.
pub(crate) struct App {
    /// Constant settings of this server.
    pub(crate) settings: Settings,
    /// Resources and discovery served now. The lock guards the pointer only.
    pub(crate) served: RwLock<Arc<Served>>,
    /// Declarations as last read from files. Locked before `served`, and held while that is replaced.
    pub(crate) declared: Mutex<Vec<Declared>>,
    /// Kinds that files declare.
    pub(crate) custom: CustomKinds,
    /// Own collections.
    pub(crate) cacher: Arc<Cacher>,
    /// Writer of own objects.
    pub(crate) own: OwnStore,
    /// Receiving end of the feed.
    pub(crate) feed: Arc<Feed>,
    /// Reports of forged pool data. A leaf: no other lock is taken inside.
    pub(crate) reports: Mutex<Reports>,
    /// Liveness and readiness.
    pub(crate) health: Health,
    /// Counters.
    pub(crate) metrics: Arc<Metrics>,
    /// Clock of all parts.
    pub(crate) clock: Clock,
    /// Owner of writes, which finish when their client disconnects.
    pub(crate) writes: TaskGroup,
    /// Cancelled when watches have to end.
    pub(crate) end_watches: CancellationToken,
    /// State of the filters that every request passes.
    pub(crate) filters: FilterState,
}

/// Everything that is served at one time; it is replaced as a whole.
pub(crate) struct Served {
    /// Every resource.
    pub(crate) registry: Registry,
    /// Discovery documents of these resources.
    pub(crate) discovery: Discovery,
    /// Names of the resources that the cloud owns.
    pub(crate) pool_kinds: Vec<String>,
}

/// Settings that are constant while the server runs.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Authority over the kinds.
    pub(crate) profile: Profile,
    /// Name of the pool.
    pub(crate) nodepool: String,
    /// Minimum lifetime of a watch that requests no lifetime.
    pub(crate) min_request_timeout: Duration,
    /// Lifetime of an event after its last change.
    pub(crate) event_ttl: Duration,
    /// Lifetime of the lease of a node that left the pool.
    pub(crate) departed_lease_ttl: Duration,
    /// Largest request body in bytes. The feed has its own limit.
    pub(crate) body_bytes_max: usize,
}

// === impl Served ===

impl Served {
    /// `registry` with its discovery documents.
    pub(crate) fn new(registry: Registry) -> Self {
        let discovery = Discovery::new(&registry);
        let pool_kinds = registry.pool_kinds();
        Self {
            registry,
            discovery,
            pool_kinds,
        }
    }
}

// === impl App ===

impl App {
    /// Resources and discovery served now. Two calls in one request may return different values.
    pub(crate) fn served(&self) -> Arc<Served> {
        self.served.read().clone()
    }

    /// Reads the declarations of custom resources again and reports the result in the log and the metrics. Blocks for
    /// the reads.
    pub(crate) fn reload_custom(&self) {
        let served = match self.custom.changed() {
            // The last change is one interval ago.
            Ok(None) => return self.served().registry.find_misfits(),
            Ok(Some(declared)) => self.declare(declared),
            Err(error) => Err(error),
        };
        match served {
            Ok(kinds) => info!(kinds, "Custom resources reloaded"),
            Err(error) => {
                self.custom.forget();
                self.metrics.custom_loaded(None);
                warn!(%error, "Keeping the previous custom resources");
                self.served().registry.find_misfits();
            }
        }
    }

    /// Replaces everything that is served in one step, and ends the watches of removed resources.
    ///
    /// # Errors
    /// The kind that cannot be served and the reason; nothing has changed then.
    pub(crate) fn serve(&self) -> Result<(), String> {
        let declared = self.declared.lock();
        self.replace(&declared)?;
        self.metrics.custom_loaded(Some(declared.len()));
        Ok(())
    }

    /// As [`App::serve`], with the present declarations of files. Returns the number of declared kinds.
    fn declare(&self, declared: Vec<Declared>) -> Result<usize, String> {
        let mut held = self.declared.lock();
        self.replace(&declared)?;
        let kinds = declared.len();
        *held = declared;
        self.metrics.custom_loaded(Some(kinds));
        Ok(kinds)
    }

    fn replace(&self, declared: &[Declared]) -> Result<(), String> {
        let old = self.served();
        let pool: Vec<_> = self.feed.collections().collect();
        let registry = old
            .registry
            .with_custom(declared, &self.cacher, &pool, &self.end_watches)
            .map_err(|error| format!("--custom-resources-path: {error}"))?;
        let new = Arc::new(Served::new(registry));
        *self.served.write() = new.clone();
        old.registry.replaced_by(&new.registry, &self.cacher);
        let is_served = |name: &str| new.registry.collections().any(|resource| resource.name == name);
        let gone = old.registry.collections().filter(|resource| !is_served(&resource.name));
        gone.for_each(|resource| self.metrics.forget_collection(&resource.name));
        Ok(())
    }

    /// Time of the last write of the election lease, once the lease of its holder has expired.
    pub(crate) fn leader_silent_since(&self) -> Option<BootTime> {
        let (holder, duration) = self.feed.election_lease();
        let now = self.clock.boot();
        let since = self.own.guard().silent_since(ELECTION_KEY, duration, now)?;
        (!holder.is_empty()).then_some(since)
    }

    /// Decides if `user` may do what `attributes` describe, now.
    pub(crate) fn authorize(&self, user: &User, attributes: &Attributes<'_>) -> Decision {
        let policy = self.filters.rbac.current();
        let served = self.served();
        let facts = Facts {
            profile: self.settings.profile,
            nodepool: &self.settings.nodepool,
            pool_kinds: &served.pool_kinds,
            is_member: user.node_name().is_some_and(|node| self.feed.members().contains(node)),
            membership: self.feed.members().basis(),
            leads: self.feed.fence().leads(user.node_name()),
            policy: &policy,
            pods: &served.registry,
        };
        self.filters.authorizer.authorize(user, attributes, &facts)
    }
}
