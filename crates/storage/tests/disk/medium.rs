//! Media in memory: one records every operation and fails on request.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};
use yurt_storage::embedded::FileBackend;

use crate::history::Fact;
use crate::random::Random;

/// One operation, in order.
#[derive(Clone, Debug)]
pub(crate) enum Entry {
    Write {
        offset: usize,
        data: Vec<u8>,
    },
    Size(usize),
    Sync,
    /// The store's promise at this point.
    Fact(Fact),
}

/// Bytes, the record of operations on them, and a future fault.
#[derive(Debug, Default)]
pub(crate) struct Tape {
    state: Mutex<FileState>,
    flushing: Mutex<()>,
    flushes: AtomicUsize,
}

#[derive(Debug, Default)]
struct FileState {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    fault: Option<Fault>,
    /// Number of writes, size changes and syncs so far.
    done: u64,
}

/// A tape lent to one store, which has released it when this has no other owner.
#[derive(Debug)]
pub(crate) struct Lent(pub(crate) Arc<Tape>);

/// A fault of the medium.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    /// Number of writes, size changes and syncs after which it begins.
    pub(crate) from: u64,
    pub(crate) error: io::ErrorKind,
    /// Half of a failing write arrives.
    pub(crate) tears: bool,
    /// Operations that fail.
    pub(crate) hits: Hits,
}

/// Operations that a fault makes fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hits {
    All,
    /// Operations that need room.
    Growth,
    /// Everything is written, but without any guarantee.
    Flushes,
}

// === impl Tape ===

impl Tape {
    pub(crate) fn holding(bytes: Vec<u8>) -> Arc<Self> {
        let state = FileState {
            bytes,
            ..FileState::default()
        };
        Arc::new(Self {
            state: Mutex::new(state),
            ..Self::default()
        })
    }

    pub(crate) fn fact(&self, fact: Fact) {
        self.state.lock().entries.push(Entry::Fact(fact));
    }

    /// Everything since the last call.
    pub(crate) fn take_entries(&self) -> Vec<Entry> {
        std::mem::take(&mut self.state.lock().entries)
    }

    /// Everything since the last [`Self::take_entries`].
    pub(crate) fn entries(&self) -> Vec<Entry> {
        self.state.lock().entries.clone()
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.state.lock().bytes.clone()
    }

    pub(crate) fn done(&self) -> u64 {
        self.state.lock().done
    }

    pub(crate) fn set_fault(&self, fault: Option<Fault>) {
        self.state.lock().fault = fault;
    }

    /// Delays every flush until the guard is dropped.
    pub(crate) fn hold_flushes(&self) -> MutexGuard<'_, ()> {
        self.flushing.lock()
    }

    /// Number of flushes in progress.
    pub(crate) fn flushes(&self) -> usize {
        self.flushes.load(Ordering::SeqCst)
    }

    fn change(&self, entry: Entry) -> io::Result<()> {
        let mut state = self.state.lock();
        state.done += 1;
        if let Some(fault) = state.fault
            && state.done > fault.from
        {
            let is_hit = match fault.hits {
                Hits::All => true,
                Hits::Growth => matches!(&entry, Entry::Size(size) if *size > state.bytes.len()),
                Hits::Flushes => matches!(&entry, Entry::Sync),
            };
            if is_hit {
                if let (true, Entry::Write { offset, data }) = (fault.tears, &entry) {
                    let half = Entry::Write {
                        offset: *offset,
                        data: data[..data.len() / 2].to_vec(),
                    };
                    apply(&mut state.bytes, &half);
                }
                return Err(fault.error.into());
            }
        }
        apply(&mut state.bytes, &entry);
        state.entries.push(entry);
        Ok(())
    }
}

impl FileBackend for Tape {
    fn size(&self) -> io::Result<u64> {
        Ok(self.state.lock().bytes.len() as u64)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.state.lock();
        let from = usize::try_from(offset).expect("test media are small");
        let bytes = state.bytes.get(from..from + out.len());
        out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.change(Entry::Write {
            offset: usize::try_from(offset).expect("test media are small"),
            data: data.to_vec(),
        })
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.change(Entry::Size(usize::try_from(size).expect("test media are small")))
    }

    fn sync(&self) -> io::Result<()> {
        self.flushes.fetch_add(1, Ordering::SeqCst);
        let turn = self.flushing.lock();
        let flushed = self.change(Entry::Sync);
        drop(turn);
        self.flushes.fetch_sub(1, Ordering::SeqCst);
        flushed
    }
}

impl FileBackend for Lent {
    fn size(&self) -> io::Result<u64> {
        self.0.size()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, out)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_at(offset, data)
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.0.set_size(size)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }
}

/// Applies `entry` to `bytes`.
pub(crate) fn apply(bytes: &mut Vec<u8>, entry: &Entry) {
    match entry {
        Entry::Write { offset, data } => {
            if bytes.len() < offset + data.len() {
                bytes.resize(offset + data.len(), 0);
            }
            bytes[*offset..offset + data.len()].copy_from_slice(data);
        }
        Entry::Size(size) => bytes.resize(*size, 0),
        Entry::Sync | Entry::Fact(_) => {}
    }
}

/// Effect of a power loss on unsynced data.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Loss {
    /// All of it is lost.
    All,
    /// Each write is there or not, independent of earlier ones.
    Writes,
    /// Each sector of this size is there or not, in any of the versions written.
    Sectors(usize),
}

/// Possible content of a medium after a power loss: `stable` is certain, each of `pending` may have arrived.
pub(crate) fn after_power_loss(stable: &[u8], pending: &[Entry], loss: Loss, random: &mut Random) -> Vec<u8> {
    let mut bytes = stable.to_vec();
    let mut size = bytes.len();
    for entry in pending {
        match entry {
            Entry::Size(new) => {
                if !matches!(loss, Loss::All) && random.one_in(2) {
                    size = *new;
                }
            }
            Entry::Write { offset, data } => match loss {
                Loss::All => {}
                Loss::Writes => {
                    if random.one_in(2) {
                        apply(&mut bytes, entry);
                    }
                }
                Loss::Sectors(sector) => {
                    let mut at = *offset;
                    while at < offset + data.len() {
                        let end = ((at / sector + 1) * sector).min(offset + data.len());
                        if random.one_in(2) {
                            let data = data[at - offset..end - offset].to_vec();
                            apply(&mut bytes, &Entry::Write { offset: at, data });
                        }
                        at = end;
                    }
                }
            },
            Entry::Sync | Entry::Fact(_) => {}
        }
    }
    // Bytes beyond the size that the file system remembers are not there.
    bytes.resize(size, 0);
    bytes
}
