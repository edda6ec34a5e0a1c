//! Own objects in memory: checks of transactions, their RVs, and publication.
//!
//! No I/O. A group is staged, committed elsewhere, and settled; in between, writes to other keys may be done in memory.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use tokio::sync::oneshot;
use yurt_apimachinery::{ResourceVersion, Space};
use yurt_runtime::Clock;

use super::mark::Sequencer;
use crate::backend::{Action, Committed, Durability, Expect, Loaded, Op, Sink, StorageError};

/// Channel for the outcome.
pub(super) type OutcomeSender<T> = oneshot::Sender<Result<T, StorageError>>;
/// A transaction, and the channel for its outcome.
pub(super) type Write = (Vec<Op>, OutcomeSender<ResourceVersion>);
/// Values by key, each with its RV.
pub(super) type Values = BTreeMap<String, (ResourceVersion, Bytes)>;

/// A transaction that passed its checks and waits for the commit.
struct Staged {
    rv: ResourceVersion,
    ops: Vec<Op>,
    answer: OutcomeSender<ResourceVersion>,
}

/// Transactions that share a commit, and the mark that goes with them.
pub(super) struct Group {
    txns: Vec<Staged>,
    mark: Option<u64>,
}

/// State of own objects, except for the collections that readers see.
pub(super) struct Engine {
    clock: Clock,
    sequencer: Sequencer,
    /// RV of every live key, as published.
    index: HashMap<String, ResourceVersion>,
    /// RVs after the group in flight, of the keys that it changes or relies on.
    under_way: HashMap<String, Option<ResourceVersion>>,
    /// Values newer than their row; stored by a clean stop.
    volatile: Values,
    /// True after the close: no more writes are accepted.
    is_closed: bool,
}

// === impl Group ===

impl Group {
    /// True if there is nothing to commit.
    pub(super) fn is_empty(&self) -> bool {
        self.txns.is_empty() && self.mark.is_none()
    }

    /// Its operations by RV.
    pub(super) fn rows(&self) -> impl Iterator<Item = (ResourceVersion, &[Op])> {
        self.txns.iter().map(|txn| (txn.rv, txn.ops.as_slice()))
    }

    /// The mark to store with it.
    pub(super) fn mark(&self) -> Option<u64> {
        self.mark
    }
}

// === impl Engine ===

impl Engine {
    /// An engine that continues above `mark`.
    pub(super) fn new(mark: u64, clock: Clock, space: Space) -> Self {
        Self {
            clock,
            sequencer: Sequencer::after(mark, space),
            index: HashMap::new(),
            under_way: HashMap::new(),
            volatile: Values::new(),
            is_closed: false,
        }
    }

    /// Takes the stored state, and returns the mark to store before the state is shown. Leases get a new RV above the
    /// present mark: renewals after their last commit may have been lost. A watch from any RV issued then must still
    /// see one MODIFIED.
    pub(super) fn load(&mut self, loaded: &mut Loaded) -> Option<u64> {
        self.sequencer.warn_if_ahead(self.clock.unix());
        for stored in &mut loaded.live {
            if is_lease(&stored.key) {
                stored.rv = self.sequencer.next(self.clock.unix());
            }
            self.index.insert(stored.key.clone(), stored.rv);
        }
        // One RV for this start: above all issued before, and a position for collections that were never written.
        loaded.at = self.sequencer.next(self.clock.unix());
        self.sequencer.mark_needed()
    }

    /// Begins a timeline above every RV that the previous one may have shown, as far as the marks show, or if
    /// `none_is_known`. Returns its floor, and the mark to store.
    pub(super) fn begin_timeline(&mut self, none_is_known: bool) -> (ResourceVersion, u64) {
        let now = self.clock.unix();
        let floor = if none_is_known {
            self.sequencer.leap(now)
        } else {
            self.sequencer.next(now)
        };
        (floor, self.sequencer.mark_ahead())
    }

    /// Records that the mark `stored` is on the disk.
    pub(super) fn stored(&mut self, stored: u64) {
        self.sequencer.stored(stored);
    }

    /// Executes a transaction that needs no disk. Returns it if it needs one, or has to wait for the group in flight.
    pub(super) fn write_in_memory(
        &mut self,
        ops: Vec<Op>,
        sink: &dyn Sink,
    ) -> Result<Result<ResourceVersion, StorageError>, Vec<Op>> {
        let has_to_wait = |op: &Op| is_durable(&op.action) || self.under_way.contains_key(&op.key);
        if self.is_closed || ops.iter().any(has_to_wait) {
            return Err(ops);
        }
        if let Err(conflict) = self.check(&ops) {
            return Ok(Err(conflict));
        }
        let Some(rv) = self.sequencer.next_in_memory(self.clock.unix()) else {
            return Err(ops);
        };
        self.publish(rv, ops, sink);
        Ok(Ok(rv))
    }

    /// Executes those of `writes` that need no disk, and returns the others.
    pub(super) fn write_what_needs_no_disk(&mut self, writes: Vec<Write>, sink: &dyn Sink) -> Vec<Write> {
        let mut waiting = Vec::with_capacity(writes.len());
        for (ops, answer) in writes {
            match self.write_in_memory(ops, sink) {
                // A caller that went away needs no answer.
                Ok(written) => drop(answer.send(written)),
                Err(ops) => waiting.push((ops, answer)),
            }
        }
        waiting
    }

    /// Begins a group. Only one group is in flight, until it is published or [dropped](Self::drop_group).
    pub(super) fn stage(&mut self, waiting: Vec<Write>) -> Group {
        self.sequencer.begin_group(self.clock.unix());
        let mut txns = Vec::with_capacity(waiting.len());
        for (ops, answer) in waiting {
            if let Err(conflict) = self.check(&ops) {
                drop(answer.send(Err(conflict)));
                continue;
            }
            let rv = self.sequencer.next_of_group(self.clock.unix());
            for Op { key, action, .. } in &ops {
                let after = match action {
                    Action::Put(..) => Some(rv),
                    Action::Delete { .. } => None,
                    Action::Check => self.find(key),
                };
                self.under_way.insert(key.clone(), after);
            }
            txns.push(Staged { rv, ops, answer });
        }
        let mark = self.sequencer.mark_needed();
        Group { txns, mark }
    }

    /// Answers the group in flight. Publishes and ends it if its commit succeeded.
    pub(super) fn settle(&mut self, group: Group, committed: Result<(), StorageError>, sink: &dyn Sink) {
        self.under_way.clear();
        if let Err(error) = committed {
            return refuse(group.txns.into_iter().map(|txn| txn.answer), &error);
        }
        if let Some(mark) = group.mark {
            self.sequencer.stored(mark);
        }
        for txn in group.txns {
            self.finish(txn, sink);
        }
        self.sequencer.end_group();
    }

    /// Ends the group in flight, which is not on the disk. Its RVs are free again.
    pub(super) fn drop_group(&mut self) {
        self.sequencer.drop_group();
    }

    /// A mark at the usual distance ahead.
    pub(super) fn mark_ahead(&self) -> u64 {
        self.sequencer.mark_ahead()
    }

    /// Stops all writes. Returns the values that are in memory only.
    pub(super) fn close(&mut self) -> Values {
        self.is_closed = true;
        std::mem::take(&mut self.volatile)
    }

    fn check(&self, ops: &[Op]) -> Result<(), StorageError> {
        for op in ops {
            let found = self.find(&op.key);
            let holds = match op.expect {
                Expect::Absent => found.is_none(),
                Expect::At(rv) => found == Some(rv),
                Expect::Any => true,
            };
            if !holds {
                return Err(StorageError::Conflict {
                    key: op.key.clone(),
                    found,
                });
            }
        }
        Ok(())
    }

    /// RV of `key` after the group in flight.
    fn find(&self, key: &str) -> Option<ResourceVersion> {
        let under_way = self.under_way.get(key).copied();
        under_way.unwrap_or_else(|| self.index.get(key).copied())
    }

    fn finish(&mut self, Staged { rv, ops, answer }: Staged, sink: &dyn Sink) {
        self.publish(rv, ops, sink);
        // A caller that went away needs no answer; its write remains valid.
        let _ = answer.send(Ok(rv));
    }

    fn publish(&mut self, rv: ResourceVersion, ops: Vec<Op>, sink: &dyn Sink) {
        let mut changes = Vec::with_capacity(ops.len());
        for Op { key, action, .. } in ops {
            match action {
                Action::Put(value, durability) => {
                    self.index.insert(key.clone(), rv);
                    match durability {
                        Durability::Volatile => self.volatile.insert(key.clone(), (rv, value.bytes().clone())),
                        Durability::Durable => self.volatile.remove(&key),
                    };
                    changes.push(Committed {
                        key,
                        value,
                        deleted: false,
                    });
                }
                Action::Delete { last } => {
                    self.index.remove(&key);
                    self.volatile.remove(&key);
                    changes.push(Committed {
                        key,
                        value: last,
                        deleted: true,
                    });
                }
                Action::Check => {}
            }
        }
        sink.committed(rv, &changes);
    }
}

/// Answers writers whose commit failed.
pub(super) fn refuse(writers: impl Iterator<Item = OutcomeSender<ResourceVersion>>, error: &StorageError) {
    let mut refused = 0;
    for answer in writers {
        refused += 1;
        // A caller that went away needs no answer.
        let _ = answer.send(Err(error.clone()));
    }
    tracing::debug!(%error, refused, "Commit failed");
}

fn is_durable(action: &Action) -> bool {
    matches!(action, Action::Put(_, Durability::Durable) | Action::Delete { .. })
}

fn is_lease(key: &str) -> bool {
    key.starts_with("/leases.coordination.k8s.io/")
}
