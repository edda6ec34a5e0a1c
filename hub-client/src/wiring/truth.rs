//! Starts the comparison of the coordinator's data with the cloud, and the reports to the pool.

use super::Wiring;
use crate::pool::forgery_reports::Reporter;
use crate::pool::heartbeat::node_lease::OwnHeartbeat;
use crate::replicas::alarm::Alarm;
use crate::replicas::verify::Verifier;

// === impl Wiring ===

impl Wiring {
    /// Starts comparing samples of the coordinator's data with the cloud.
    pub(super) fn start_verifying(&self) {
        let period = self.config.verify_period;
        if self.upstreams.coordinator.is_none() || period.is_zero() {
            return;
        }
        let verifier = Verifier {
            data: self.data.clone(),
            cloud: self.upstreams.cloud.clone(),
            reach: self.cloud.0.subscribe(),
            alarm: self.alarm(),
            members: self.member_count.subscribe(),
            pool: self.config.pool_name().to_owned(),
            period,
            metrics: self.metrics.clone(),
            clock: self.clock.clone(),
        };
        self.tasks
            .spawn_critical("verify-replicas", verifier.run(self.tasks.token()));
    }

    fn alarm(&self) -> Alarm {
        Alarm {
            data: self.data.clone(),
            coordinator: self.coordinator.0.subscribe(),
            findings: self.findings.0.clone(),
            metrics: self.metrics.clone(),
            clock: self.clock.clone(),
        }
    }

    /// Starts reporting forgeries to the coordinator, and checking what others report.
    pub(crate) fn start_reporting(&self, heartbeat: &OwnHeartbeat) {
        let (Some(coordinator), Some(findings)) = (&self.upstreams.coordinator, self.findings.1.lock().take()) else {
            return;
        };
        if self.config.verify_period.is_zero() {
            return;
        }
        let reporter = Reporter {
            node: self.config.node.clone(),
            alarm: self.alarm(),
            findings,
            client: coordinator.shared.clone(),
            cloud: self.upstreams.cloud.clone(),
            reach: self.cloud.0.subscribe(),
            relay: heartbeat.relaying().map(|relaying| relaying.client.clone()),
        };
        self.tasks
            .spawn_critical("report-forgeries", reporter.run(self.tasks.token()));
    }
}
