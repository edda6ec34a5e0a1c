//! The writer thread commits waiting transactions as one group. Callers write in memory at the same time.
//!
//! The engine is locked to stage a group and to settle it, never while the disk is at work. The caller's thread
//! executes a transaction that lives only in memory (a lease renewal): two thread switches would cost more than the
//! rest of it.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use yurt_apimachinery::ResourceVersion;

use super::engine::{self, Engine, OutcomeSender, Write};
use super::ledger::Ledger;
use crate::backend::{Op, Sink, StorageError};

/// Maximum number of transactions in one commit.
const GROUP_MAX: usize = 256;

/// A message to the writer thread.
pub(super) enum Request {
    Write {
        ops: Vec<Op>,
        answer: OutcomeSender<ResourceVersion>,
        /// Its bytes in the queue.
        place: OwnedSemaphorePermit,
    },
    Check {
        answer: OutcomeSender<()>,
    },
    Close {
        answer: OutcomeSender<()>,
    },
}

/// The engine, and the sink it publishes to. The lock orders what is published.
pub(super) struct Writer {
    engine: Mutex<Engine>,
    sink: Arc<dyn Sink>,
}

// === impl Writer ===

impl Writer {
    pub(super) fn new(engine: Engine, sink: Arc<dyn Sink>) -> Self {
        Self {
            engine: Mutex::new(engine),
            sink,
        }
    }

    /// Runs the thread until every sender is gone or a close was answered.
    pub(super) fn run(&self, mut ledger: Ledger, mut queue: mpsc::Receiver<Request>) {
        let mut waiting = Vec::with_capacity(GROUP_MAX);
        while let Some(first) = queue.blocking_recv() {
            waiting.push(first);
            while waiting.len() < GROUP_MAX
                && let Ok(request) = queue.try_recv()
            {
                waiting.push(request);
            }
            if self.take(&mut ledger, waiting.drain(..)) {
                return;
            }
        }
    }

    /// Executes a transaction that needs no disk on the caller's thread; returns it if it needs one. Waits for no
    /// commit.
    pub(super) fn write_in_memory(&self, ops: Vec<Op>) -> Result<Result<ResourceVersion, StorageError>, Vec<Op>> {
        self.engine.lock().write_in_memory(ops, &*self.sink)
    }

    /// Processes `requests`. Returns true after a close.
    fn take(&self, ledger: &mut Ledger, requests: impl Iterator<Item = Request>) -> bool {
        // The places are free again once the writes are settled.
        let (mut writes, mut places) = (Vec::new(), Vec::new());
        let (mut checks, mut close) = (Vec::new(), None);
        for request in requests {
            match request {
                Request::Write { ops, answer, place } => {
                    writes.push((ops, answer));
                    places.push(place);
                }
                Request::Check { answer } => checks.push(answer),
                Request::Close { answer } => close = Some(answer),
            }
        }
        let reverted = self.revert(ledger);
        let writes = self.engine.lock().write_what_needs_no_disk(writes, &*self.sink);
        match reverted {
            Ok(()) => self.commit(ledger, writes),
            Err(error) => engine::refuse(writes.into_iter().map(|(_, answer)| answer), &error),
        }
        for answer in checks {
            // A caller that went away needs no answer.
            let _ = answer.send(self.check(ledger));
        }
        let Some(answer) = close else { return false };
        let volatile = self.engine.lock().close();
        let flushed = self.revert(ledger).and_then(|()| ledger.flush(&volatile));
        // A caller that went away needs no answer.
        let _ = answer.send(flushed);
        true
    }

    fn commit(&self, ledger: &mut Ledger, writes: Vec<Write>) {
        if !writes.is_empty() {
            ledger.wait_for_turn();
        }
        let group = self.engine.lock().stage(writes);
        let committed = if group.is_empty() {
            Ok(())
        } else {
            ledger.commit(&group)
        };
        let mut engine = self.engine.lock();
        let is_published = committed.is_ok();
        engine.settle(group, committed, &*self.sink);
        if !is_published && !ledger.has_to_revert() {
            engine.drop_group();
        }
    }

    /// Reverts the group whose commit failed, if there is one, and ends it.
    fn revert(&self, ledger: &mut Ledger) -> Result<(), StorageError> {
        if ledger.has_to_revert() {
            ledger.revert()?;
            self.engine.lock().drop_group();
        }
        Ok(())
    }

    /// After a failure, reverts the rows that it left, and tries to write the mark.
    fn check(&self, ledger: &mut Ledger) -> Result<(), StorageError> {
        let Some(trouble) = ledger.trouble() else {
            return Ok(());
        };
        self.revert(ledger)?;
        let mark = self.engine.lock().mark_ahead();
        ledger.store_mark(mark)?;
        self.engine.lock().stored(mark);
        // A mark fits where more may not: the trouble is over when nothing failed for a while.
        ledger.trouble().map_or(Ok(()), |_| Err(trouble))
    }
}
