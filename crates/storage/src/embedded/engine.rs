//! The writer thread: takes what waits, checks it, commits it as one group, publishes it in order, answers.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use redb::{Database, ReadableDatabase, ReadableTable, WriteTransaction};
use tokio::sync::{mpsc, oneshot};
use yurt_apimachinery::{ResourceVersion, Space};
use yurt_runtime::Clock;

use super::mark::Sequencer;
use super::tables::{FACT_FLOOR, FACT_MARK, FACT_STORE_ID, FACTS, OWN, OWN_TOMBSTONES, storage_error};
use crate::backend::{Action, Committed, Durability, Expect, Loaded, Op, Sink, StorageError, Stored};

/// Most transactions in one commit.
const GROUP_MAX: usize = 256;
/// Most own tombstones kept.
const OWN_TOMBSTONES_MAX: usize = 10_000;

type Answer<T> = oneshot::Sender<Result<T, StorageError>>;

/// What the writer thread is asked.
pub(super) enum Request {
    Write {
        ops: Vec<Op>,
        answer: Answer<ResourceVersion>,
    },
    Close {
        answer: Answer<()>,
    },
}

/// A transaction that passed its checks and waits for the commit.
struct Staged {
    rv: ResourceVersion,
    ops: Vec<Op>,
    answer: Answer<ResourceVersion>,
}

/// State of the writer thread.
pub(super) struct Engine {
    database: Arc<Database>,
    clock: Clock,
    sequencer: Sequencer,
    /// RV of every live key.
    index: HashMap<String, ResourceVersion>,
    /// Values that are newer than their row; stored by [`Request::Close`].
    volatile: BTreeMap<String, (ResourceVersion, Bytes)>,
    tombstones: usize,
}

// === impl Engine ===

impl Engine {
    /// Opens the tables, creates the store id on first use.
    pub(super) fn open(database: Arc<Database>, clock: Clock, space: Space) -> Result<(Self, String), StorageError> {
        let txn = database.begin_write().map_err(storage_error)?;
        let (id, mark) = {
            txn.open_table(OWN).map_err(storage_error)?;
            txn.open_table(OWN_TOMBSTONES).map_err(storage_error)?;
            let mut facts = txn.open_table(FACTS).map_err(storage_error)?;
            let stored = facts
                .get(FACT_STORE_ID)
                .map_err(storage_error)?
                .map(|id| id.value().to_owned());
            let id = match stored {
                Some(id) => id,
                None => {
                    let id = uuid::Uuid::new_v4().to_string();
                    facts.insert(FACT_STORE_ID, id.as_str()).map_err(storage_error)?;
                    id
                }
            };
            (id, number(&facts, FACT_MARK)?)
        };
        txn.commit().map_err(storage_error)?;
        let sequencer = Sequencer::after(mark, space);
        let (index, volatile) = (HashMap::new(), BTreeMap::new());
        Ok((
            Self {
                database,
                clock,
                sequencer,
                index,
                volatile,
                tombstones: 0,
            },
            id,
        ))
    }

    /// Reads everything. Leases get a new RV above the mark: renewals after their last commit may have been lost, and
    /// a watch from any RV issued then must still see one MODIFIED.
    pub(super) fn load(&mut self) -> Result<Loaded, StorageError> {
        let read = self.database.begin_read().map_err(storage_error)?;
        let own = read.open_table(OWN).map_err(storage_error)?;
        let tombstones = read.open_table(OWN_TOMBSTONES).map_err(storage_error)?;
        let facts = read.open_table(FACTS).map_err(storage_error)?;
        let mut loaded = Loaded {
            floor: ResourceVersion(number(&facts, FACT_FLOOR)?),
            ..Loaded::default()
        };
        for row in own.iter().map_err(storage_error)? {
            let (key, value) = row.map_err(storage_error)?;
            let (rv, bytes) = value.value();
            let key = key.value().to_owned();
            let value = Bytes::copy_from_slice(bytes);
            let rv = if is_lease(&key) {
                self.sequencer.next(self.clock.unix())
            } else {
                ResourceVersion(rv)
            };
            self.index.insert(key.clone(), rv);
            loaded.live.push(Stored { key, rv, value });
        }
        for row in tombstones.iter().map_err(storage_error)? {
            let (place, value) = row.map_err(storage_error)?;
            let (key, bytes) = value.value();
            let value = Bytes::copy_from_slice(bytes);
            loaded.tombstones.push(Stored {
                key: key.to_owned(),
                rv: ResourceVersion(place.value().0),
                value,
            });
        }
        self.tombstones = loaded.tombstones.len();
        drop((own, tombstones, facts, read));
        // One RV of this start: above all issued before, and a position for collections that were never written.
        loaded.at = self.sequencer.next(self.clock.unix());
        self.store_mark()?;
        Ok(loaded)
    }

    /// The thread's life: until every sender is gone or a close was answered.
    pub(super) fn run(mut self, mut queue: mpsc::Receiver<Request>, sink: &dyn Sink) {
        let mut waiting = Vec::with_capacity(GROUP_MAX);
        while let Some(first) = queue.blocking_recv() {
            waiting.push(first);
            while waiting.len() < GROUP_MAX
                && let Ok(request) = queue.try_recv()
            {
                waiting.push(request);
            }
            let mut writes = Vec::with_capacity(waiting.len());
            let mut close = None;
            for request in waiting.drain(..) {
                match request {
                    Request::Write { ops, answer } => writes.push((ops, answer)),
                    Request::Close { answer } => close = Some(answer),
                }
            }
            self.write_group(writes, sink);
            if let Some(answer) = close {
                // A caller that went away needs no answer.
                let _ = answer.send(self.flush());
                return;
            }
        }
    }

    fn write_group(&mut self, writes: Vec<(Vec<Op>, Answer<ResourceVersion>)>, sink: &dyn Sink) {
        let mut overlay: HashMap<String, Option<ResourceVersion>> = HashMap::new();
        let mut staged = Vec::with_capacity(writes.len());
        for (ops, answer) in writes {
            match self.check(&ops, &overlay) {
                Err(error) => drop(answer.send(Err(error))),
                Ok(()) => {
                    let rv = self.sequencer.next(self.clock.unix());
                    for op in &ops {
                        match op.action {
                            Action::Put(..) => drop(overlay.insert(op.key.clone(), Some(rv))),
                            Action::Delete { .. } => drop(overlay.insert(op.key.clone(), None)),
                            Action::Check => {}
                        }
                    }
                    staged.push(Staged { rv, ops, answer });
                }
            }
        }
        match self.commit(&staged) {
            Ok(()) => self.publish(staged, sink),
            Err(error) => {
                tracing::warn!(%error, transactions = staged.len(), "Commit failed, writes refused");
                staged
                    .into_iter()
                    .for_each(|txn| drop(txn.answer.send(Err(error.clone()))));
            }
        }
    }

    fn check(&self, ops: &[Op], overlay: &HashMap<String, Option<ResourceVersion>>) -> Result<(), StorageError> {
        for op in ops {
            let found = overlay
                .get(&op.key)
                .copied()
                .unwrap_or_else(|| self.index.get(&op.key).copied());
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

    /// One redb commit for all durable operations, and for the mark when it is near. Volatile values that a durable
    /// one supersedes are simply overwritten later; nothing is kept of a failed commit.
    fn commit(&mut self, staged: &[Staged]) -> Result<(), StorageError> {
        let durable = staged.iter().flat_map(|txn| &txn.ops).any(|op| is_durable(&op.action));
        let mark = self.sequencer.mark_needed();
        if !durable && mark.is_none() {
            return Ok(());
        }
        let txn = self.database.begin_write().map_err(storage_error)?;
        let tombstones = self.write_rows(&txn, staged)?;
        if let Some(mark) = mark {
            let mut facts = txn.open_table(FACTS).map_err(storage_error)?;
            facts
                .insert(FACT_MARK, mark.to_string().as_str())
                .map_err(storage_error)?;
        }
        txn.commit().map_err(storage_error)?;
        self.tombstones = tombstones;
        if let Some(mark) = mark {
            self.sequencer.stored(mark);
        }
        Ok(())
    }

    fn write_rows(&self, txn: &WriteTransaction, staged: &[Staged]) -> Result<usize, StorageError> {
        let mut own = txn.open_table(OWN).map_err(storage_error)?;
        let mut tombstones = txn.open_table(OWN_TOMBSTONES).map_err(storage_error)?;
        let mut count = self.tombstones;
        for Staged { rv, ops, .. } in staged {
            for (place, op) in (0_u32..).zip(ops) {
                match &op.action {
                    Action::Put(bytes, Durability::Durable) => {
                        own.insert(op.key.as_str(), (rv.0, bytes.as_ref()))
                            .map_err(storage_error)?;
                    }
                    Action::Delete { last } => {
                        own.remove(op.key.as_str()).map_err(storage_error)?;
                        let row = (op.key.as_str(), last.as_ref());
                        tombstones.insert((rv.0, place), row).map_err(storage_error)?;
                        count += 1;
                    }
                    Action::Put(_, Durability::Volatile) | Action::Check => {}
                }
            }
        }
        let mut floor = None;
        while count > OWN_TOMBSTONES_MAX {
            let Some((place, _)) = tombstones.pop_first().map_err(storage_error)? else {
                break;
            };
            floor = Some(place.value().0);
            count -= 1;
        }
        if let Some(floor) = floor {
            let mut facts = txn.open_table(FACTS).map_err(storage_error)?;
            facts
                .insert(FACT_FLOOR, floor.to_string().as_str())
                .map_err(storage_error)?;
        }
        Ok(count)
    }

    fn publish(&mut self, staged: Vec<Staged>, sink: &dyn Sink) {
        for Staged { rv, ops, answer } in staged {
            let mut changes = Vec::with_capacity(ops.len());
            for Op { key, action, .. } in ops {
                match action {
                    Action::Put(value, durability) => {
                        self.index.insert(key.clone(), rv);
                        match durability {
                            Durability::Volatile => self.volatile.insert(key.clone(), (rv, value.clone())),
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
            // A caller that went away needs no answer; its write stands.
            let _ = answer.send(Ok(rv));
        }
    }

    fn flush(&mut self) -> Result<(), StorageError> {
        let txn = self.database.begin_write().map_err(storage_error)?;
        {
            let mut own = txn.open_table(OWN).map_err(storage_error)?;
            for (key, (rv, value)) in &self.volatile {
                own.insert(key.as_str(), (rv.0, value.as_ref()))
                    .map_err(storage_error)?;
            }
        }
        txn.commit().map_err(storage_error)
    }

    fn store_mark(&mut self) -> Result<(), StorageError> {
        let Some(mark) = self.sequencer.mark_needed() else {
            return Ok(());
        };
        let txn = self.database.begin_write().map_err(storage_error)?;
        {
            let mut facts = txn.open_table(FACTS).map_err(storage_error)?;
            facts
                .insert(FACT_MARK, mark.to_string().as_str())
                .map_err(storage_error)?;
        }
        txn.commit().map_err(storage_error)?;
        self.sequencer.stored(mark);
        Ok(())
    }
}

fn is_durable(action: &Action) -> bool {
    matches!(action, Action::Put(_, Durability::Durable) | Action::Delete { .. })
}

fn is_lease(key: &str) -> bool {
    key.starts_with("/leases.coordination.k8s.io/")
}

fn number(facts: &impl ReadableTable<&'static str, &'static str>, name: &str) -> Result<u64, StorageError> {
    let Some(text) = facts.get(name).map_err(storage_error)? else {
        return Ok(0);
    };
    text.value()
        .parse()
        .map_err(|_| StorageError::Corrupt(format!("fact {name} is not a number")))
}
