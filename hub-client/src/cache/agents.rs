//! The cacheable components, as ConfigMap `yurt-hub-cfg` says at present.

use std::sync::Arc;

use http::HeaderMap;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::components::{CONFIG_KEY, Components, is_asked_for};
use crate::failures::Failures;
use crate::hub_config::HubConfig;

/// Live set of cacheable components.
pub struct Agents {
    config: watch::Receiver<Arc<HubConfig>>,
    /// The last state of the ConfigMap that was read, and its components.
    known: Mutex<(Arc<HubConfig>, Components)>,
    failures: Failures,
}

// === impl Agents ===

impl Agents {
    /// Creates the set from the ConfigMap's states. Reports entries that are not usable.
    #[must_use]
    pub fn new(config: watch::Receiver<Arc<HubConfig>>, failures: Failures) -> Self {
        Self {
            config,
            known: Mutex::default(),
            failures,
        }
    }

    /// True if a read of `component` with these headers is cached.
    #[must_use]
    pub fn caches(&self, component: &str, headers: &HeaderMap) -> bool {
        let is_asked_for = is_asked_for(headers);
        self.with(|components| components.has(component) || (is_asked_for && !components.excludes(component)))
    }

    /// True if `component` reads no data of the cache, also without the cloud.
    #[must_use]
    pub fn excludes(&self, component: &str) -> bool {
        self.with(|components| components.excludes(component))
    }

    /// True if the built-in set or the ConfigMap names `component`: one of a bounded number.
    #[must_use]
    pub fn names(&self, component: &str) -> bool {
        self.with(|components| components.names(component))
    }

    /// True if the ConfigMap names a service account: only then does the account of a token count.
    #[must_use]
    pub fn names_accounts(&self) -> bool {
        self.with(Components::names_accounts)
    }

    /// Returns what `look` finds in the present set.
    fn with(&self, look: impl FnOnce(&Components) -> bool) -> bool {
        let config = self.config.borrow().clone();
        let mut known = self.known.lock();
        if !Arc::ptr_eq(&known.0, &config) {
            let read = Components::parse(config.data.get(CONFIG_KEY).map(String::as_str));
            if read != known.1 {
                let problems = read.problems().join("; ");
                let problem = Some(problems).filter(|problems| !problems.is_empty());
                self.failures.tell(CONFIG_KEY, problem);
            }
            *known = (config, read);
        }
        look(&known.1)
    }
}
