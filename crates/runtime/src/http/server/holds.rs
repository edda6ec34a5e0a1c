//! Record of a connection's origin: its offences, and the turns of slowed origins.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::{IntCounter, IntGauge};
use tokio::time::Instant;

use super::offenders::{Offence, Offenders, Origin};
use crate::metrics::Metrics;

/// Metrics of a program's servers. Clones share them.
#[derive(Clone, Debug)]
pub struct ConnectionMetrics {
    /// Connections that wait for their turn.
    held: IntGauge,
    /// Connections that were cut for a flood.
    floods: IntCounter,
    /// Handshakes that began.
    handshakes: IntCounter,
}

/// The origins of one server.
#[derive(Debug)]
pub(super) struct Holds {
    // HeldConnection for a few map operations.
    offenders: Mutex<Offenders>,
    max_hold: Duration,
    metrics: Option<ConnectionMetrics>,
}

/// Record of one connection's origin.
#[derive(Debug)]
pub(super) struct Record {
    holds: Arc<Holds>,
    /// `None` for root of this machine, which is never slowed.
    origin: Option<Origin>,
    max_hold: Duration,
}

/// A connection that waits for its turn, counted in the metric.
pub(super) struct HeldConnection {
    turn: Instant,
    gauge: Option<IntGauge>,
}

/// Fraction (1/n) of the longest hold for connections of this machine: a kubelet's probe waits for a second.
pub(super) const LOCAL_HOLD: u32 = 5;

// === impl ConnectionMetrics ===

impl ConnectionMetrics {
    /// Registers the metrics, with names that begin with `prefix`.
    ///
    /// # Errors
    /// A metric has the same name.
    pub fn new(prefix: &str, metrics: &Metrics) -> prometheus::Result<Self> {
        let name = |short: &str| format!("{prefix}_{short}");
        let new = Self {
            held: IntGauge::new(
                name("connections_held"),
                "Connections that wait before their handshake, because others of their address were cut or abandoned",
            )?,
            floods: IntCounter::new(
                name("connections_flooding_total"),
                "Connections that were cut for a flood of HTTP/2 frames",
            )?,
            handshakes: IntCounter::new(name("tls_handshakes_total"), "TLS handshakes that began")?,
        };
        metrics.registry().register(Box::new(new.held.clone()))?;
        metrics.registry().register(Box::new(new.floods.clone()))?;
        metrics.registry().register(Box::new(new.handshakes.clone()))?;
        Ok(new)
    }
}

// === impl Holds ===

impl Holds {
    pub(super) fn new(max_hold: Duration, metrics: Option<ConnectionMetrics>) -> Arc<Self> {
        Arc::new(Self {
            offenders: Mutex::default(),
            max_hold,
            metrics,
        })
    }

    /// The record of a connection.
    pub(super) fn record(self: &Arc<Self>, origin: Origin, is_local: bool) -> Record {
        let max_hold = if is_local {
            self.max_hold / LOCAL_HOLD
        } else {
            self.max_hold
        };
        Record {
            holds: self.clone(),
            origin: (!origin.is_root()).then_some(origin),
            max_hold,
        }
    }
}

// === impl Record ===

impl Record {
    /// Takes the connection's turn; `None` if it need not wait.
    pub(super) fn turn(&self) -> Option<HeldConnection> {
        let (origin, now) = (self.origin?, Instant::now());
        let turn = self.holds.offenders.lock().turn(origin, self.max_hold, now);
        (turn > now).then(|| {
            let gauge = self.holds.metrics.as_ref().map(|metrics| metrics.held.clone());
            gauge.iter().for_each(IntGauge::inc);
            HeldConnection { turn, gauge }
        })
    }

    /// Counts a handshake that begins.
    pub(super) fn note_handshake(&self) {
        self.holds.metrics.iter().for_each(|metrics| metrics.handshakes.inc());
    }

    /// Notes an offence of the connection.
    pub(super) fn note(&self, offence: Offence) {
        if offence == Offence::Flood {
            self.holds.metrics.iter().for_each(|metrics| metrics.floods.inc());
        }
        if let Some(origin) = self.origin {
            self.holds.offenders.lock().note(origin, offence, Instant::now());
        }
    }
}

// === impl HeldConnection ===

impl HeldConnection {
    /// Resolves at the turn.
    pub(super) async fn over(self) {
        tokio::time::sleep_until(self.turn).await;
    }
}

impl Drop for HeldConnection {
    fn drop(&mut self) {
        self.gauge.iter().for_each(IntGauge::dec);
    }
}
