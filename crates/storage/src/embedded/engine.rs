//! The writer: checks transactions, commits what waits as one group, publishes it in order, answers.
//!
//! A thread takes what waits. A transaction that only lives in memory (a lease renewal) is done at once by its caller where
//! nobody else is writing: two changes of thread would cost more than the rest of it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use redb::{ReadTransaction, ReadableTable, WriteTransaction};
use tokio::sync::{mpsc, oneshot};
use yurt_apimachinery::{ResourceVersion, Space};
use yurt_runtime::Clock;

use super::disk::Disk;
use super::mark::Sequencer;
use super::rows::{self, Tombstones, Undo};
use super::tables::{FACT_FLOOR, FACT_MARK, FACT_STORE_ID, FACTS, OWN, OWN_TOMBSTONES, storage_error};
use crate::backend::{Action, Committed, Durability, Expect, Loaded, Op, Sink, StorageError, Stored};

/// Most transactions in one commit.
const GROUP_MAX: usize = 256;

type Answer<T> = oneshot::Sender<Result<T, StorageError>>;

/// What the writer thread is asked.
pub(super) enum Request {
    Write {
        ops: Vec<Op>,
        answer: Answer<ResourceVersion>,
    },
    Check {
        answer: Answer<()>,
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

/// The engine, and whom it tells. Whoever holds the lock writes.
pub(super) struct Writer {
    engine: Mutex<Engine>,
    sink: Arc<dyn Sink>,
}

/// State of the writer.
pub(super) struct Engine {
    disk: Arc<Disk>,
    clock: Clock,
    sequencer: Sequencer,
    /// RV of every live key.
    index: HashMap<String, ResourceVersion>,
    /// Values that are newer than their row; stored by [`Request::Close`].
    volatile: BTreeMap<String, (ResourceVersion, Bytes)>,
    tombstones: Tombstones,
    /// What commits that failed may have left on the disk.
    unsettled: Undo,
    /// A close was answered: nothing is written any more.
    is_closed: bool,
}

// === impl Writer ===

impl Writer {
    pub(super) fn new(engine: Engine, sink: Arc<dyn Sink>) -> Self {
        Self {
            engine: Mutex::new(engine),
            sink,
        }
    }

    /// The thread's life: until every sender is gone or a close was answered.
    pub(super) fn run(&self, mut queue: mpsc::Receiver<Request>) {
        let mut waiting = Vec::with_capacity(GROUP_MAX);
        while let Some(first) = queue.blocking_recv() {
            waiting.push(first);
            while waiting.len() < GROUP_MAX
                && let Ok(request) = queue.try_recv()
            {
                waiting.push(request);
            }
            let mut engine = self.engine.lock();
            engine.take(waiting.drain(..), &*self.sink);
            if engine.is_closed {
                return;
            }
        }
    }

    /// Does a transaction that needs no disk on the caller's thread; gives it back when it needs one, or somebody else is
    /// writing. Never blocks.
    pub(super) fn write_in_memory(&self, ops: Vec<Op>) -> Result<Result<ResourceVersion, StorageError>, Vec<Op>> {
        if ops.iter().any(|op| is_durable(&op.action)) {
            return Err(ops);
        }
        match self.engine.try_lock() {
            Some(mut engine) if !engine.is_closed => engine.write_in_memory(ops, &*self.sink),
            _ => Err(ops),
        }
    }
}

// === impl Engine ===

impl Engine {
    /// Opens the tables, creates the store id on first use.
    pub(super) fn open(disk: Arc<Disk>, clock: Clock, space: Space) -> Result<(Self, String), StorageError> {
        let known = disk.read(|read| {
            let facts = match read.open_table(FACTS) {
                Ok(facts) => facts,
                Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
                Err(error) => return Err(storage_error(error)),
            };
            let id = facts.get(FACT_STORE_ID).map_err(storage_error)?;
            let id = id.map(|id| id.value().to_owned());
            Ok(id.map(|id| Ok::<_, StorageError>((id, number(&facts, FACT_MARK)?))))
        })?;
        let (id, mark) = match known {
            Some(known) => known?,
            None => (disk.write(create_tables)?, 0),
        };
        let engine = Self {
            disk,
            clock,
            sequencer: Sequencer::after(mark, space),
            index: HashMap::new(),
            volatile: BTreeMap::new(),
            tombstones: Tombstones::default(),
            unsettled: Undo::default(),
            is_closed: false,
        };
        Ok((engine, id))
    }

    /// Reads everything. Leases get a new RV above the mark: renewals after their last commit may have been lost, and
    /// a watch from any RV issued then must still see one MODIFIED.
    pub(super) fn load(&mut self) -> Result<Loaded, StorageError> {
        self.sequencer.warn_if_ahead(self.clock.unix());
        let disk = self.disk.clone();
        let mut loaded = disk.read(|read| self.load_rows(read))?;
        // One RV of this start: above all issued before, and a position for collections that were never written.
        loaded.at = self.sequencer.next(self.clock.unix());
        if let Some(mark) = self.sequencer.mark_needed() {
            self.disk.write(|txn| write_mark(txn, mark))?;
            self.sequencer.stored(mark);
        }
        Ok(loaded)
    }

    fn load_rows(&mut self, read: &ReadTransaction) -> Result<Loaded, StorageError> {
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
            self.tombstones.count += 1;
            self.tombstones.bytes += rows::size(key, bytes);
            loaded.tombstones.push(Stored {
                key: key.to_owned(),
                rv: ResourceVersion(place.value().0),
                value: Bytes::copy_from_slice(bytes),
            });
        }
        Ok(loaded)
    }

    fn take(&mut self, requests: impl Iterator<Item = Request>, sink: &dyn Sink) {
        let mut writes = Vec::new();
        let (mut checks, mut close) = (Vec::new(), None);
        for request in requests {
            match request {
                Request::Write { ops, answer } => writes.push((ops, answer)),
                Request::Check { answer } => checks.push(answer),
                Request::Close { answer } => close = Some(answer),
            }
        }
        self.write_group(writes, sink);
        for answer in checks {
            // A caller that went away needs no answer.
            let _ = answer.send(self.check_disk());
        }
        if let Some(answer) = close {
            let flushed = self.flush();
            self.is_closed = true;
            // A caller that went away needs no answer.
            let _ = answer.send(flushed);
        }
    }

    /// A transaction without durable operations, unless the mark has to be stored first.
    fn write_in_memory(
        &mut self,
        ops: Vec<Op>,
        sink: &dyn Sink,
    ) -> Result<Result<ResourceVersion, StorageError>, Vec<Op>> {
        if self.sequencer.is_mark_near(self.clock.unix()) {
            return Err(ops);
        }
        if let Err(conflict) = self.check(&ops, &HashMap::new()) {
            return Ok(Err(conflict));
        }
        let rv = self.sequencer.next(self.clock.unix());
        self.publish(rv, ops, sink);
        Ok(Ok(rv))
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
            Ok(()) => staged.into_iter().for_each(|txn| self.settle(txn, sink)),
            Err(error) => self.refuse(staged, &error, sink),
        }
    }

    /// After a failed commit: renewals go on while the stored mark covers their RVs, unless they build on something that
    /// was refused.
    fn refuse(&mut self, staged: Vec<Staged>, error: &StorageError, sink: &dyn Sink) {
        let mut refused = 0;
        for txn in staged {
            let is_volatile = !txn.ops.iter().any(|op| is_durable(&op.action));
            if is_volatile && self.sequencer.covers(txn.rv) && self.check(&txn.ops, &HashMap::new()).is_ok() {
                self.settle(txn, sink);
                continue;
            }
            refused += 1;
            // A caller that went away needs no answer.
            let _ = txn.answer.send(Err(error.clone()));
        }
        tracing::debug!(%error, refused, "Commit failed");
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
    /// one supersedes are simply overwritten later.
    fn commit(&mut self, staged: &[Staged]) -> Result<(), StorageError> {
        let durable = staged.iter().flat_map(|txn| &txn.ops).any(|op| is_durable(&op.action));
        let mark = self.sequencer.mark_needed();
        if !durable && mark.is_none() {
            return Ok(());
        }
        let group = staged.iter().map(|txn| (txn.rv, txn.ops.as_slice()));
        self.store(group, mark)
    }

    fn store<'a>(
        &mut self,
        group: impl Iterator<Item = (ResourceVersion, &'a [Op])>,
        mark: Option<u64>,
    ) -> Result<(), StorageError> {
        let (unsettled, held) = (&self.unsettled, self.tombstones);
        let mut undo = Undo::default();
        let stored = self.disk.write(|txn| {
            unsettled.apply(txn)?;
            let held = rows::write(txn, group, held, &mut undo)?;
            mark.map_or(Ok(()), |mark| write_mark(txn, mark))?;
            Ok(held)
        });
        match stored {
            Ok(held) => {
                self.tombstones = held;
                self.unsettled = Undo::default();
                if let Some(mark) = mark {
                    self.sequencer.stored(mark);
                }
                Ok(())
            }
            Err(error) => {
                self.unsettled.extend(undo);
                Err(error)
            }
        }
    }

    /// After a failure, tries to write the mark, and with it settles what the failure left.
    fn check_disk(&mut self) -> Result<(), StorageError> {
        let Some(trouble) = self.disk.trouble() else {
            return Ok(());
        };
        self.store(std::iter::empty(), Some(self.sequencer.mark_ahead()))?;
        // A mark fits in where more may not: the trouble is over when nothing failed for a while.
        self.disk.trouble().map_or(Ok(()), |_| Err(trouble))
    }

    fn settle(&mut self, Staged { rv, ops, answer }: Staged, sink: &dyn Sink) {
        self.publish(rv, ops, sink);
        // A caller that went away needs no answer; its write stands.
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

    fn flush(&mut self) -> Result<(), StorageError> {
        if self.volatile.is_empty() && self.unsettled.is_empty() {
            return Ok(());
        }
        let (unsettled, volatile) = (&self.unsettled, &self.volatile);
        self.disk.write(|txn| {
            unsettled.apply(txn)?;
            let mut own = txn.open_table(OWN).map_err(storage_error)?;
            for (key, (rv, value)) in volatile {
                own.insert(key.as_str(), (rv.0, value.as_ref()))
                    .map_err(storage_error)?;
            }
            Ok(())
        })
    }
}

/// The tables and the id of a new store.
fn create_tables(txn: &WriteTransaction) -> Result<String, StorageError> {
    txn.open_table(OWN).map_err(storage_error)?;
    txn.open_table(OWN_TOMBSTONES).map_err(storage_error)?;
    let mut facts = txn.open_table(FACTS).map_err(storage_error)?;
    let id = uuid::Uuid::new_v4().to_string();
    facts.insert(FACT_STORE_ID, id.as_str()).map_err(storage_error)?;
    Ok(id)
}

fn write_mark(txn: &WriteTransaction, mark: u64) -> Result<(), StorageError> {
    let mut facts = txn.open_table(FACTS).map_err(storage_error)?;
    let text = mark.to_string();
    facts.insert(FACT_MARK, text.as_str()).map_err(storage_error)?;
    Ok(())
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
