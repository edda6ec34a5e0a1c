//! What every request may need: one shared value, built once.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use yurt_runtime::{Clock, TaskGroup};

use crate::authn::User;
use crate::authz::{Attributes, Decision, Facts};
use crate::config::Profile;
use crate::discovery::Discovery;
use crate::feed::Feed;
use crate::gate::Gate;
use crate::health::Health;
use crate::metrics::SharedMetrics;
use crate::registry::Registry;
use crate::registry::own::OwnStore;

/// The coordinator as its request handlers see it.
pub(crate) struct App {
    /// What this server is.
    pub(crate) settings: Settings,
    /// Every resource served.
    pub(crate) registry: Registry,
    /// Writer of own objects.
    pub(crate) own: OwnStore,
    /// Receiving end of the feed.
    pub(crate) feed: Feed,
    /// What clients learn about the API.
    pub(crate) discovery: Discovery,
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

/// What does not change while the server runs.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Who owns what.
    pub(crate) profile: Profile,
    /// Name of the pool.
    pub(crate) nodepool: String,
    /// Names of pool-scope collections.
    pub(crate) pool_kinds: Vec<String>,
    /// Least lifetime of a watch that does not say how long it wants to last.
    pub(crate) min_request_timeout: Duration,
    /// How long an event lives after its last change.
    pub(crate) event_ttl: Duration,
    /// Largest request body. The feed has its own.
    pub(crate) body_bytes_max: usize,
}

// === impl App ===

impl App {
    /// Whether `user` may do what `attributes` say, now.
    pub(crate) fn authorize(&self, user: &User, attributes: &Attributes<'_>) -> Decision {
        let policy = self.gate.rbac.current();
        let facts = Facts {
            profile: self.settings.profile,
            nodepool: &self.settings.nodepool,
            pool_kinds: &self.settings.pool_kinds,
            is_member: user.node_name().is_some_and(|node| self.feed.members().contains(node)),
            leads: self.feed.fence().leads(user),
            policy: &policy,
            pods: &self.registry,
        };
        self.gate.authorizer.authorize(user, attributes, &facts)
    }
}
