//! Bytes of stored objects, and their limits.

use prometheus::{IntGaugeVec, Opts, Registry};

/// Gauges, set at every scrape.
pub(super) struct Budgets {
    held: IntGaugeVec,
    limit: IntGaugeVec,
}

// === impl Budgets ===

impl Budgets {
    pub(super) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let gauge = |name: &str, help: &str| {
            let gauge = IntGaugeVec::new(Opts::new(name, help), &["of"])?;
            registry.register(Box::new(gauge.clone()))?;
            Ok::<_, prometheus::Error>(gauge)
        };
        Ok(Self {
            held: gauge(
                "yurt_coordinator_stored_bytes",
                "Bytes of live objects: of the pool's data, and of the coordinator's own.",
            )?,
            limit: gauge(
                "yurt_coordinator_stored_bytes_limit",
                "Limit of yurt_coordinator_stored_bytes: --max-pool-bytes and --max-own-bytes; no series without a limit.",
            )?,
        })
    }

    /// Sets the limit of own bytes.
    pub(super) fn set_own_limit(&self, limit: usize) {
        self.limit.with_label_values(&["own"]).set(number(limit));
    }

    pub(super) fn set(&self, own: usize, pool: usize, pool_max: usize) {
        self.held.with_label_values(&["own"]).set(number(own));
        self.held.with_label_values(&["pool"]).set(number(pool));
        self.limit.with_label_values(&["pool"]).set(number(pool_max));
    }
}

fn number(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
