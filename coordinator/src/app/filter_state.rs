//! State of the filters that every request passes: authentication, authorization, limits and audit.

use std::sync::Arc;

use tracing::{info, warn};
use yurt_runtime::Clock;

use crate::StartError;
use crate::audit::{AuditCounters, AuditLog};
use crate::authn::tokens::Tokens;
use crate::authz::Authorizer;
use crate::authz::rbac::files::Rbac;
use crate::authz::rbac::{Policy, bootstrap};
use crate::bodies::Bodies;
use crate::config::{Config, Profile};
use crate::fair_queue::{FairQueueLimits, FairQueues};
use crate::metrics::Metrics;
use crate::open_answers::OpenAnswers;

/// State of the filters, built once.
pub(crate) struct FilterState {
    /// The rules of the profile.
    pub(crate) authorizer: Authorizer,
    /// Roles and bindings.
    pub(crate) rbac: Rbac,
    /// Keys and issuers of service account tokens.
    pub(crate) tokens: Tokens,
    /// The audit log, if enabled.
    pub(crate) audit_log: Option<AuditLog>,
    /// Requests in flight.
    pub(crate) fair_queues: FairQueues,
    /// Answers that callers receive.
    pub(crate) open_answers: OpenAnswers,
    /// Bodies in memory.
    pub(crate) bodies: Arc<Bodies>,
}

// === impl FilterState ===

impl FilterState {
    /// Reads the files that the flags name.
    ///
    /// # Errors
    /// The flag, the file, and the fault.
    pub(crate) fn open(config: &Config, metrics: &Metrics, clock: Clock) -> Result<Self, StartError> {
        let audit_counters = AuditCounters::new(metrics.registry()).map_err(StartError::metrics)?;
        let base = match config.profile {
            Profile::Standalone => bootstrap::policy(),
            Profile::Pool => Policy::default(),
        };
        let rbac = Rbac::open(base, config.rbac_path.clone());
        let limits = FairQueueLimits {
            reads: config.max_requests_inflight,
            writes: config.max_mutating_requests_inflight,
            queued_max: config.max_queued_requests,
            wait_max: config.max_queue_wait.0,
        };
        Ok(Self {
            authorizer: Authorizer::new(),
            rbac: rbac.map_err(|error| StartError::new(format!("--rbac-path: {error}")))?,
            tokens: Tokens::open(config)?,
            audit_log: AuditLog::open(config, audit_counters, clock)?,
            fair_queues: FairQueues::new(&limits, metrics),
            open_answers: OpenAnswers::new(config.profile),
            bodies: Arc::default(),
        })
    }

    /// True if there are files to read again.
    pub(crate) fn is_reloadable(&self) -> bool {
        self.rbac.is_reloadable() || self.tokens.is_reloadable()
    }

    /// Reads the files again, and logs the result. Blocks for the reads.
    pub(crate) fn reload(&self) {
        match self.rbac.reload() {
            Ok(false) => {}
            Ok(true) => {
                let (roles, bindings) = self.rbac.current().len();
                info!(roles, bindings, "Roles and bindings reloaded");
            }
            Err(error) => warn!(%error, "Keeping the previous roles and bindings"),
        }
        match self.tokens.reload() {
            Ok(false) => {}
            Ok(true) => info!("Keys of service account tokens reloaded"),
            Err(error) => warn!(%error, "Keeping the previous keys of service account tokens"),
        }
    }
}
