//! What every request may need: one shared value, built once.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use yurt_runtime::{Clock, TaskGroup};
use yurt_storage::Cacher;

use crate::authn::User;
use crate::authz::{Attributes, Decision, Facts};
use crate::config::Profile;
use crate::discovery::Discovery;
use crate::feed::Feed;
use crate::gate::Gate;
use crate::health::Health;
use crate::metrics::SharedMetrics;
use crate::registry::Registry;
use crate::registry::custom::{CustomKinds, Declared};
use crate::registry::own::OwnStore;

/// The coordinator as its request handlers see it.
pub(crate) struct App {
    /// What this server is.
    pub(crate) settings: Settings,
    /// What is served now. Guards the pointer only.
    pub(crate) served: RwLock<Arc<Served>>,
    /// What files declared when they were read last. Taken before `served`, and held while that is replaced.
    pub(crate) declared: Mutex<Vec<Declared>>,
    /// Kinds that files declare.
    pub(crate) custom: CustomKinds,
    /// Own collections.
    pub(crate) cacher: Arc<Cacher>,
    /// Writer of own objects.
    pub(crate) own: OwnStore,
    /// Receiving end of the feed.
    pub(crate) feed: Arc<Feed>,
    /// Liveness and readiness.
    pub(crate) health: Health,
    /// Counters.
    pub(crate) metrics: SharedMetrics,
    /// The clock of everything here.
    pub(crate) clock: Clock,
    /// Owner of writes, which finish when their client hangs up.
    pub(crate) writes: TaskGroup,
    /// Cancelled when watches have to end.
    pub(crate) end_watches: CancellationToken,
    /// Who gets in.
    pub(crate) gate: Gate,
}

/// What is served at one time; all of it changes together.
pub(crate) struct Served {
    /// Every resource.
    pub(crate) registry: Registry,
    /// What clients learn about them.
    pub(crate) discovery: Discovery,
    /// Names of those that the cloud owns.
    pub(crate) pool_kinds: Vec<String>,
}

/// What does not change while the server runs.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Who owns what.
    pub(crate) profile: Profile,
    /// Name of the pool.
    pub(crate) nodepool: String,
    /// Least lifetime of a watch that does not say how long it wants to last.
    pub(crate) min_request_timeout: Duration,
    /// How long an event lives after its last change.
    pub(crate) event_ttl: Duration,
    /// How long the lease of a node that left the pool stays.
    pub(crate) departed_lease_ttl: Duration,
    /// Largest request body. The feed has its own.
    pub(crate) body_bytes_max: usize,
}

// === impl Served ===

impl Served {
    /// `registry`, and what is said of it.
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
    /// What is served now. A request that asks twice may get two answers.
    pub(crate) fn served(&self) -> Arc<Served> {
        self.served.read().clone()
    }

    /// Reads the declarations of custom resources again, and says in the log and the metrics what came of it. Blocks for
    /// the reads.
    pub(crate) fn reload_custom(&self) {
        let served = match self.custom.changed() {
            Ok(None) => return,
            Ok(Some(declared)) => self.declare(declared),
            Err(error) => Err(error),
        };
        match served {
            Ok(kinds) => info!(kinds, "Custom resources reloaded"),
            Err(error) => {
                self.custom.forget();
                self.metrics.custom_loaded(None);
                warn!(%error, "Keeping the previous custom resources");
            }
        }
    }

    /// Replaces what is served: everything changes at once, and watches of what is gone end.
    ///
    /// # Errors
    /// What stands in the way of which kind; nothing has changed then.
    pub(crate) fn serve(&self) -> Result<(), String> {
        let declared = self.declared.lock();
        self.replace(&declared)?;
        self.metrics.custom_loaded(Some(declared.len()));
        Ok(())
    }

    /// As [`App::serve`], with what files declare now. Returns how many kinds they do.
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

    /// Whether `user` may do what `attributes` say, now.
    pub(crate) fn authorize(&self, user: &User, attributes: &Attributes<'_>) -> Decision {
        let policy = self.gate.rbac.current();
        let served = self.served();
        let facts = Facts {
            profile: self.settings.profile,
            nodepool: &self.settings.nodepool,
            pool_kinds: &served.pool_kinds,
            is_member: user.node_name().is_some_and(|node| self.feed.members().contains(node)),
            membership: self.feed.members().basis(),
            leads: self.feed.fence().leads(user),
            policy: &policy,
            pods: &served.registry,
        };
        self.gate.authorizer.authorize(user, attributes, &facts)
    }
}
