//! Limits on the events and leases that nodes write: size, rate, and bytes during the life of an event.
//!
//! [`Shares`] is pure but for its lock: its counters fill with every write and drain with time. During the life of an
//! event a node writes at most twice its share. No record of the writer of a stored event is therefore needed.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use yurt_apimachinery::Status;
use yurt_apimachinery::status::FieldError;
use yurt_apimachinery::time::BootTime;

use super::Write;
use crate::bodies::NODE_OBJECT_BYTES_MAX;
use crate::lease_objects;

/// Name of the collection of events.
pub(crate) const EVENTS: &str = "events";
/// Maximum bytes of the message of an event that a node writes.
pub(crate) const NODE_MESSAGE_BYTES_MAX: usize = 1 << 10;
/// Burst of events that one node may create, and of its writes of leases other than renewals; one more per second.
pub(crate) const WRITES_AT_ONCE: usize = 50;
/// Divisor of the limit of own bytes: share of the events of one node.
const USER_SHARE: usize = 16;
/// Divisor of the limit of own bytes: share of the events that nodes write into one namespace.
const NAMESPACE_SHARE: usize = 8;
/// Number of counters above which empty ones are dropped.
const COUNTERS_KEPT: usize = 1_024;

/// Counters of the events and leases that nodes wrote.
#[derive(Debug)]
pub(crate) struct Shares {
    /// Limit of own bytes.
    own_bytes_max: usize,
    /// Lifetime of an event.
    event_ttl: Duration,
    // Guards only the map.
    counters: Mutex<BTreeMap<(What, String), Counter>>,
}

/// Key of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// Creates of events by a user.
    Events,
    /// Writes of leases by a user that wait for the disk: creates, and updates that are no renewals.
    Leases,
    /// Bytes of events by a user.
    UserBytes,
    /// Bytes of events in a namespace.
    NamespaceBytes,
}

/// An amount that drains.
#[derive(Clone, Copy, Debug)]
struct Counter {
    amount: f64,
    at: BootTime,
}

/// Amount that one write adds to a counter: at most `room`, which drains completely in `drains`.
struct Charge<'a> {
    what: What,
    whose: &'a str,
    amount: usize,
    room: usize,
    drains: Duration,
}

/// Facts of a write that are counted. Renewals of leases are not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counted<'a> {
    /// User of the write.
    pub(crate) user: &'a str,
    /// Namespace of the object.
    pub(crate) namespace: &'a str,
    /// True for an event, false for a lease.
    pub(crate) is_event: bool,
    /// True for a create.
    pub(crate) is_new: bool,
    /// Bytes of the object.
    pub(crate) bytes: usize,
}

// === impl Shares ===

impl Shares {
    /// Empty counters.
    pub(crate) fn new(own_bytes_max: usize, event_ttl: Duration) -> Self {
        Self {
            own_bytes_max,
            event_ttl,
            counters: Mutex::default(),
        }
    }

    /// Counts a write, if it fits.
    ///
    /// # Errors
    /// Whole seconds after which the write would fit.
    pub(crate) fn take(&self, counted: Counted<'_>, now: BootTime) -> Result<(), u32> {
        let charges = self.charges(counted);
        let mut counters = self.counters.lock();
        if counters.len() > COUNTERS_KEPT {
            let ttl = self.event_ttl.max(Duration::from_secs(WRITES_AT_ONCE as u64));
            counters.retain(|_, counter| now.since(counter.at) < ttl);
        }
        for charge in &charges {
            let before = counters
                .get(&charge.key())
                .map_or(0.0, |counter| counter.after(charge, now));
            let excess = before + charge.amount as f64 - charge.room as f64;
            // One write that exceeds the whole room has its own limit.
            if excess > 0.0 && before > 0.0 {
                let seconds = excess.min(before) * charge.drains.as_secs_f64() / charge.room as f64;
                return Err((seconds.ceil() as u32).max(1));
            }
        }
        for charge in &charges {
            let before = counters
                .get(&charge.key())
                .map_or(0.0, |counter| counter.after(charge, now));
            let amount = before + charge.amount as f64;
            counters.insert(charge.key(), Counter { amount, at: now });
        }
        Ok(())
    }

    fn charges<'a>(&self, counted: Counted<'a>) -> Vec<Charge<'a>> {
        let writes = |what, amount| Charge {
            what,
            whose: counted.user,
            amount,
            room: WRITES_AT_ONCE,
            drains: Duration::from_secs(WRITES_AT_ONCE as u64),
        };
        if !counted.is_event {
            return vec![writes(What::Leases, 1)];
        }
        let bytes = |what, whose, share: usize| Charge {
            what,
            whose,
            amount: counted.bytes,
            room: (self.own_bytes_max / share).max(1),
            drains: self.event_ttl,
        };
        vec![
            writes(What::Events, usize::from(counted.is_new)),
            bytes(What::UserBytes, counted.user, USER_SHARE),
            bytes(What::NamespaceBytes, counted.namespace, NAMESPACE_SHARE),
        ]
    }
}

// === impl Charge, Counter ===

impl Charge<'_> {
    fn key(&self) -> (What, String) {
        (self.what, self.whose.to_owned())
    }
}

impl Counter {
    /// The remaining amount at `now`.
    fn after(&self, charge: &Charge<'_>, now: BootTime) -> f64 {
        let drained = now.since(self.at).as_secs_f64() * charge.room as f64 / charge.drains.as_secs_f64().max(1.0);
        (self.amount - drained).max(0.0)
    }
}

/// Checks the sizes of an event or a lease that a node writes.
///
/// # Errors
/// 413 for the object, 422 for the message of an event.
pub(super) fn check_size(write: &Write<'_>) -> Result<(), Status> {
    let Some(new) = write.new else { return Ok(()) };
    let bytes = new.bytes().len();
    if write.resource.name == EVENTS {
        let value = new.to_value();
        let message = value["message"].as_str().unwrap_or_default().len();
        if message > NODE_MESSAGE_BYTES_MAX {
            let why = format!("has {message} bytes, may have at most {NODE_MESSAGE_BYTES_MAX} when a node writes it");
            let fault = FieldError::invalid("message", "", &why);
            return Err(Status::invalid(
                &write.resource.kind.group_kind(),
                write.key.name(),
                &fault.into(),
            ));
        }
    }
    if bytes > NODE_OBJECT_BYTES_MAX {
        let why =
            format!("the object has {bytes} bytes, may have at most {NODE_OBJECT_BYTES_MAX} when a node writes it");
        return Err(Status::too_large(&why));
    }
    Ok(())
}

/// True if nodes have a share of the objects of this collection.
pub(super) fn is_shared_out(name: &str) -> bool {
    name == EVENTS || name == lease_objects::COLLECTION
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(3600);

    fn at(secs: u64) -> BootTime {
        BootTime::from_boot(Duration::from_secs(secs))
    }

    fn event(user: &'static str, namespace: &'static str, bytes: usize) -> Counted<'static> {
        Counted {
            user,
            namespace,
            is_event: true,
            is_new: true,
            bytes,
        }
    }

    #[test]
    fn creates_are_counted_per_node_and_come_back_with_time() {
        let shares = Shares::new(64 << 20, TTL);
        let one = event("n1", "x", 500);
        for _ in 0..WRITES_AT_ONCE {
            assert_eq!(shares.take(one, at(0)), Ok(()));
        }
        assert_eq!(shares.take(one, at(0)), Err(1));
        assert_eq!(
            shares.take(event("n2", "x", 500), at(0)),
            Ok(()),
            "another node has its own"
        );
        let lease = Counted { is_event: false, ..one };
        assert_eq!(shares.take(lease, at(0)), Ok(()), "and leases are counted apart");
        let change = Counted { is_new: false, ..one };
        assert_eq!(shares.take(change, at(0)), Ok(()), "a change creates nothing");
        assert_eq!((shares.take(one, at(1)), shares.take(one, at(1))), (Ok(()), Err(1)));
    }

    #[test]
    fn bytes_of_events_have_a_share_per_node_and_per_namespace() {
        // 16 KiB per node, 32 KiB per namespace.
        let shares = Shares::new(256 << 10, TTL);
        let taken = |user, namespace, now| {
            let mut taken = 0;
            while taken < 100 && shares.take(event(user, namespace, 1 << 10), now).is_ok() {
                taken += 1;
            }
            taken
        };
        assert_eq!(taken("n1", "x", at(0)), 16);
        assert_eq!(
            taken("n1", "y", at(0)),
            0,
            "its share does not grow with the namespaces"
        );
        assert_eq!(taken("n2", "x", at(0)), 16);
        assert_eq!(taken("n3", "x", at(0)), 0, "the namespace is full");
        assert_eq!(taken("n3", "y", at(0)), 16);
        assert_eq!(
            taken("n1", "z", at(1_800)),
            8,
            "half of it after half of an event's life"
        );
    }

    #[test]
    fn counters_that_are_empty_go() {
        let shares = Shares::new(64 << 20, TTL);
        for number in 0..2 * COUNTERS_KEPT {
            let user: &'static str = format!("n{number}").leak();
            shares.take(event(user, "x", 10), at(0)).unwrap();
        }
        shares.take(event("last", "x", 10), at(3_601)).unwrap();
        assert!(shares.counters.lock().len() < 10);
    }
}
