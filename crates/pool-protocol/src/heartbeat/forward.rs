//! Selects the beats of cut-off nodes that the leader forwards to the cloud.
//!
//! A beat is a renewTime on an annotated pool lease that moved forward while this leader watched. The first state of a
//! lease after the leader's own start, a leader change or a restart of the coordinator is a baseline. It does not prove
//! that the node is alive now. Each node has one worker, which takes the newest beat only. A node's own write always
//! wins.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::UnixMicros;

/// Maximum number of nodes whose cloud lease is written concurrently. Each write takes two round trips, a read and a
/// write. At a round-trip time of 300 ms, 64 workers forward the beats of 1,000 nodes in 1,000 / 64 × 0.6 s = 9.4 s.
/// That is before the kubelets' next beats (10 s) and well within their leases (40 s). It also bounds the load on a
/// cloud server: 64 requests per pool at a time, for any pool size.
pub const FORWARDS_MAX: usize = 64;

/// Age below which a node's last relayed beat suppresses forwarding: the relay is about to deliver the present beat.
/// Both times compared come from the node's own clock.
pub const RELAYED_FRESH: Duration = Duration::from_secs(20);

/// Average interval between two forwarded beats of a node, half of a kubelet's. A node that renews its pool lease more
/// often takes no more of the leader's link: two requests in this time are 60 MB a day.
pub const FORWARD_EVERY: Duration = Duration::from_secs(5);
/// Number of beats of a node that are forwarded in a row before that interval counts.
pub const FORWARDS_IN_A_ROW: u32 = 3;

/// A node lease in the coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolLease {
    /// `spec.renewTime`; a lease without one is never a beat.
    pub renew_time: Option<UnixMicros>,
    /// `spec.leaseDurationSeconds`; older beats are not forwarded.
    pub lease_duration: Duration,
    /// True if the delegate annotation is `"true"`.
    pub is_delegated: bool,
    /// The last beat that a relay delivered, while relaying continues.
    pub relayed: Option<UnixMicros>,
}

/// Forwarding plan of the leader; created when leadership starts, dropped when it ends.
#[derive(Debug, Default)]
pub struct Forwarder {
    nodes: BTreeMap<String, Node>,
    /// Nodes with a beat to forward, oldest first, each at most once.
    queue: VecDeque<String>,
    working: usize,
    /// Pace of each node that was forwarded a moment ago. It outlives the lease, which a node may delete and create.
    paces: BTreeMap<String, Pace>,
}

/// Time at which a node may again have [`FORWARDS_IN_A_ROW`] beats forwarded.
#[derive(Clone, Copy, Debug)]
struct Pace(Duration);

#[derive(Debug)]
struct Node {
    lease: PoolLease,
    /// Time at which the renewTime was first seen, on this hub's boot-time clock.
    seen: Duration,
    /// True if the present renewTime was handed to a worker or is a baseline.
    is_spent: bool,
    is_queued: bool,
    is_working: bool,
    /// True if the lease was deleted while a worker was running.
    is_gone: bool,
}

// === impl PoolLease ===

impl PoolLease {
    fn is_older_than(&self, other: &PoolLease) -> bool {
        self.renew_time < other.renew_time
    }
}

// === impl Forwarder ===

impl Forwarder {
    /// Creates the plan of a leader that has seen no lease yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Handles a restart or a lost watch history of the coordinator: the next state of each lease is a baseline again.
    pub fn handle_restart(&mut self) {
        self.queue.clear();
        self.nodes.retain(|_, node| {
            node.is_gone = true;
            node.is_queued = false;
            node.is_working
        });
    }

    /// Handles the lease of `node` as the coordinator shows it at boot time `now`. Idempotent.
    pub fn handle_lease(&mut self, now: Duration, name: &str, lease: PoolLease) {
        let Some(node) = self.nodes.get_mut(name) else {
            self.nodes.insert(name.to_owned(), Node::baseline(now, lease, false));
            return;
        };
        if node.is_gone || lease.is_older_than(&node.lease) {
            // A renewTime that goes back is a restored lease or a stepped clock; neither proves that the node is alive.
            *node = Node {
                is_queued: node.is_queued,
                ..Node::baseline(now, lease, node.is_working)
            };
            return;
        }
        if lease.renew_time != node.lease.renew_time {
            node.seen = now;
            node.is_spent = false;
        }
        node.lease = lease;
        node.enqueue(name, &mut self.queue);
    }

    /// Handles the deletion of the lease.
    pub fn handle_deleted(&mut self, name: &str) {
        self.queue.retain(|queued| queued != name);
        if let Some(node) = self.nodes.get_mut(name) {
            node.is_gone = true;
            node.is_queued = false;
            if !node.is_working {
                self.nodes.remove(name);
            }
        }
    }

    /// True if the beat of `name` is younger than its lease duration at boot time `now`. An older beat proves nothing.
    pub fn is_fresh(&self, now: Duration, name: &str) -> bool {
        self.nodes
            .get(name)
            .is_some_and(|node| !node.is_gone && node.is_fresh(now))
    }

    /// Returns the renewTime of the present beat of `name`, but no later time than `own_clock`, this hub's clock.
    ///
    /// The cloud counts only renewals that are later than the last one. With a time ahead of the node's clock, the
    /// node's own renewals would not count until its clock reaches that time. The node's clock, in turn, may be ahead
    /// of all others.
    pub fn beat(&self, name: &str, own_clock: UnixMicros) -> Option<UnixMicros> {
        let node = self.nodes.get(name).filter(|node| !node.is_gone)?;
        Some(node.lease.renew_time?.min(own_clock))
    }

    /// Handles the end of a node's worker. After a 409 (a newer write exists) or a failure the beat is dropped: the
    /// next beat comes soon.
    pub fn handle_done(&mut self, name: &str) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        if !std::mem::take(&mut node.is_working) {
            return;
        }
        self.working -= 1;
        if node.is_gone {
            self.nodes.remove(name);
        } else {
            node.enqueue(name, &mut self.queue);
        }
    }

    /// Returns the next node whose beat is due at boot time `now`; call until `None`. Each result is one worker that
    /// reads the cloud's lease, writes it once as [`renewal`] says, and reports [`Forwarder::handle_done`].
    pub fn poll(&mut self, now: Duration) -> Option<String> {
        while self.working < FORWARDS_MAX {
            let name = self.queue.pop_front()?;
            let Some(node) = self.nodes.get_mut(&name) else {
                continue;
            };
            node.is_queued = false;
            let is_due = node.is_wanted() && node.is_fresh(now);
            // A beat that comes too soon is dropped, as after a failure.
            node.is_spent |= is_due;
            if is_due && Pace::take(&mut self.paces, &name, now) {
                node.is_working = true;
                self.working += 1;
                return Some(name);
            }
        }
        None
    }
}

// === impl Pace ===

impl Pace {
    /// Returns true if a beat of `name` may be forwarded at boot time `now`, and counts it.
    fn take(paces: &mut BTreeMap<String, Self>, name: &str, now: Duration) -> bool {
        paces.retain(|_, Self(full)| *full > now);
        let Self(full) = paces.get(name).copied().unwrap_or(Self(now));
        let full = full + FORWARD_EVERY;
        let may = full <= now + FORWARD_EVERY * FORWARDS_IN_A_ROW;
        if may {
            paces.insert(name.to_owned(), Self(full));
        }
        may
    }
}

// === impl Node ===

impl Node {
    fn baseline(now: Duration, lease: PoolLease, is_working: bool) -> Self {
        Node {
            lease,
            seen: now,
            is_spent: true,
            is_queued: false,
            is_working,
            is_gone: false,
        }
    }

    fn is_fresh(&self, now: Duration) -> bool {
        now < self.seen + self.lease.lease_duration
    }

    fn is_wanted(&self) -> bool {
        self.lease.is_delegated
            && !is_relayed(self.lease.renew_time, self.lease.relayed)
            && !self.is_spent
            && !self.is_working
            && !self.is_gone
    }

    fn enqueue(&mut self, name: &str, queue: &mut VecDeque<String>) {
        if self.is_wanted() && !self.is_queued {
            self.is_queued = true;
            queue.push_back(name.to_owned());
        }
    }
}

/// True if a relay delivered a beat at `relayed`, so shortly before the one at `renewed` that the leader does not
/// forward that one.
pub fn is_relayed(renewed: Option<UnixMicros>, relayed: Option<UnixMicros>) -> bool {
    let (Some(renewed), Some(relayed)) = (renewed, relayed) else {
        return false;
    };
    let age = renewed.0.checked_sub(relayed.0).and_then(|age| u64::try_from(age).ok());
    age.is_some_and(|age| Duration::from_micros(age) < RELAYED_FRESH)
}

/// Returns the renewTime to PATCH (with the resourceVersion just read) into a cloud lease that shows `cloud`, for a
/// beat at `beat`. It never goes back, and every beat moves it.
pub fn renewal(beat: UnixMicros, cloud: Option<UnixMicros>) -> UnixMicros {
    let after_cloud = cloud.map(|UnixMicros(micros)| UnixMicros(micros.saturating_add(1)));
    after_cloud.map_or(beat, |after_cloud| beat.max(after_cloud))
}

#[cfg(test)]
mod tests;
