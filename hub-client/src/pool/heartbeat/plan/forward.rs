//! Which beats of cut-off nodes the leader carries to the cloud.
//!
//! A beat is a renewTime that moved forward under our eyes on an annotated pool lease. The first state of a lease
//! after our own start, a leader change or a restart of the coordinator is a baseline and says nothing about the
//! node being alive now. Each node has one worker that takes the newest beat only; a node's own write always wins.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::UnixMicros;

/// Nodes whose cloud lease is written at the same time. Each takes two round trips, a read and a write: over a link of 300 ms
/// 64 of them carry the beats of 1,000 nodes in 1,000 / 64 × 0.6 s = 9.4 s, before the kubelets' next ones (10 s) and well
/// within their leases (40 s). It is also the load on a cloud server: 64 requests of this pool at a time, whatever its size.
pub const FORWARDS_MAX: usize = 64;

/// A beat of a node whose last relayed one is younger than this is not carried: a relay is about to. Compared are two
/// times of the node's own clock.
pub const RELAYED_FRESH: Duration = Duration::from_secs(20);

/// A node lease in the coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolLease {
    /// `spec.renewTime`; a lease without one is never a beat.
    pub renew_time: Option<UnixMicros>,
    /// `spec.leaseDurationSeconds`: an older beat is worth nothing.
    pub lease_duration: Duration,
    /// Whether the delegate annotation is `"true"`.
    pub is_delegated: bool,
    /// The beat that a relay carried last, if it still does.
    pub relayed: Option<UnixMicros>,
}

/// The leader's plan; made when leadership starts, dropped when it ends.
#[derive(Debug, Default)]
pub struct Forwarder {
    nodes: BTreeMap<String, Node>,
    /// Nodes with a beat to carry, oldest first, each at most once.
    queue: VecDeque<String>,
    working: usize,
}

#[derive(Debug)]
struct Node {
    lease: PoolLease,
    /// When the renewTime was first seen, on our boot-time clock.
    seen: Duration,
    /// The present renewTime was handed to a worker or is a baseline.
    is_spent: bool,
    is_queued: bool,
    is_working: bool,
    /// The lease was deleted while a worker was on its way.
    is_gone: bool,
}

// === impl PoolLease ===

impl PoolLease {
    fn is_older_than(&self, other: &PoolLease) -> bool {
        self.renew_time < other.renew_time
    }

    fn is_relayed(&self) -> bool {
        let (Some(renewed), Some(relayed)) = (self.renew_time, self.relayed) else {
            return false;
        };
        let age = renewed.0.checked_sub(relayed.0).and_then(|age| u64::try_from(age).ok());
        age.is_some_and(|age| Duration::from_micros(age) < RELAYED_FRESH)
    }
}

// === impl Forwarder ===

impl Forwarder {
    /// A leader that has seen nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The coordinator restarted or lost its watch history: what it shows next is a baseline again.
    pub fn handle_restart(&mut self) {
        self.queue.clear();
        self.nodes.retain(|_, node| {
            node.is_gone = true;
            node.is_queued = false;
            node.is_working
        });
    }

    /// The lease of `node` as the coordinator shows it at boot time `now`; repeats do no harm.
    pub fn handle_lease(&mut self, now: Duration, name: &str, lease: PoolLease) {
        let Some(node) = self.nodes.get_mut(name) else {
            self.nodes.insert(name.to_owned(), Node::baseline(now, lease, false));
            return;
        };
        if node.is_gone || lease.is_older_than(&node.lease) {
            // A renewTime that goes back is a restored lease or a stepped clock; neither shows life.
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

    /// The lease was deleted.
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

    /// Whether the beat of `name` is younger than its lease duration at boot time `now`: an older one says nothing.
    pub fn is_fresh(&self, now: Duration, name: &str) -> bool {
        self.nodes
            .get(name)
            .is_some_and(|node| !node.is_gone && node.is_fresh(now))
    }

    /// The worker of a node ended: the cloud took the beat, refused it with 409 (dropped: somebody newer wrote) or
    /// could not be reached (dropped too: the next beat comes soon).
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

    /// The next node to speak for at boot time `now`; call until `None`. Each answer is one worker that reads the
    /// cloud's lease, writes it once as [`renewal`] says, and reports [`Forwarder::handle_done`].
    pub fn poll(&mut self, now: Duration) -> Option<String> {
        while self.working < FORWARDS_MAX {
            let name = self.queue.pop_front()?;
            let Some(node) = self.nodes.get_mut(&name) else {
                continue;
            };
            node.is_queued = false;
            if node.is_wanted() && node.is_fresh(now) {
                node.is_spent = true;
                node.is_working = true;
                self.working += 1;
                return Some(name);
            }
        }
        None
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
        self.lease.is_delegated && !self.lease.is_relayed() && !self.is_spent && !self.is_working && !self.is_gone
    }

    fn enqueue(&mut self, name: &str, queue: &mut VecDeque<String>) {
        if self.is_wanted() && !self.is_queued {
            self.is_queued = true;
            queue.push_back(name.to_owned());
        }
    }
}

/// The renewTime to PATCH (with the resourceVersion just read) into a cloud lease that shows `cloud`: our own clock,
/// because the node's may be wrong, but never backwards.
pub fn renewal(own_clock: UnixMicros, cloud: Option<UnixMicros>) -> UnixMicros {
    let after_cloud = cloud.map(|UnixMicros(micros)| UnixMicros(micros.saturating_add(1)));
    after_cloud.map_or(own_clock, |after_cloud| own_clock.max(after_cloud))
}

#[cfg(test)]
mod tests;
