//! A collection shared by one writer and many readers: a lock and a wake-up, no queues.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::RwLock;
use tokio::sync::watch;
use tokio::time::Instant;
use yurt_apimachinery::{ResourceKind, ResourceVersion};
use yurt_collection::{ChangedKeys, Collection, KEY_GROUPS, KeyRange, Limits};

mod starting;

pub(crate) use starting::StartPermit;
use starting::Starting;
pub use starting::{START_PERMIT_TIME, STARTING_WATCHES_MAX};

/// A [`Collection`] that wakes its readers after every change.
///
/// Lock order: this lock is a leaf. While it is held, nothing else is locked, awaited or called back.
#[derive(Debug)]
pub struct SharedCollection {
    kind: &'static ResourceKind,
    inner: RwLock<Collection>,
    version: watch::Sender<u64>,
    /// Wake-ups of readers that wait for a single key; created for the first of them.
    by_key: OnceLock<Box<[watch::Sender<u64>]>>,
    starting: Starting,
    /// Progress of the store that this collection belongs to; `None` if it has a source of its own.
    progress: Option<Progress>,
    /// Watches that were ended with 410, so that their clients list again.
    relists_forced: Arc<AtomicU64>,
}

/// RV up to which a store has published everything, in any of its collections. The number is common to all of them: a
/// collection adopts it when a reader requests an RV that another collection issued.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// A reader may have seen this RV in one of the collections.
    begun: Arc<AtomicU64>,
    reached: watch::Sender<ResourceVersion>,
}

/// Reason why a change was rejected; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotApplied {
    /// The collection has another generation than the change.
    #[error("a change of generation {of} does not apply to a collection of generation {held}")]
    OtherHistory {
        /// Generation of the collection.
        held: u64,
        /// Generation of the change.
        of: u64,
    },
    /// No stored mark covers the change: a crash would forget that its RV was served.
    #[error("a change up to {to} waits for a commit with a mark")]
    Uncovered {
        /// RV that the change leads to.
        to: ResourceVersion,
    },
}

/// Changes by the only writer of a collection, independent of its generation and its mark. Where several sources write,
/// each names the generation it was opened for ([`SharedCollection::update_of`]).
pub trait OnlyWriter {
    /// Changes the collection and wakes the readers.
    fn update<T>(&self, change: impl FnOnce(&mut Collection) -> T) -> T;
}

/// Resolves when a part of a collection may have changed.
#[derive(Debug)]
pub struct Changes(watch::Receiver<u64>);

// === impl Progress ===

impl Progress {
    /// RV that the store has reached.
    #[must_use]
    pub fn now(&self) -> ResourceVersion {
        *self.reached.borrow()
    }

    /// Marks the begin of publishing the write at `rv`, in one collection after another.
    pub fn begin(&self, rv: ResourceVersion) {
        self.begun.fetch_max(rv.0, Ordering::SeqCst);
    }

    /// Marks that everything up to `rv` is in its collection.
    pub fn reached(&self, rv: ResourceVersion) {
        self.reached
            .send_if_modified(|reached| std::mem::replace(reached, rv.max(*reached)) < rv);
    }
}

// === impl SharedCollection ===

impl SharedCollection {
    /// An empty collection of `kind`; `durable` keeps a record of changes for a store.
    #[must_use]
    pub fn new(kind: &'static ResourceKind, durable: bool) -> Self {
        Self {
            kind,
            inner: RwLock::new(Collection::new(durable)),
            version: watch::Sender::new(0),
            by_key: OnceLock::new(),
            starting: Starting::default(),
            progress: None,
            relists_forced: Arc::default(),
        }
    }

    /// An empty collection of `kind` in the store whose progress is `progress`.
    #[must_use]
    pub fn within(kind: &'static ResourceKind, progress: Progress) -> Self {
        Self {
            progress: Some(progress),
            ..Self::new(kind, false)
        }
    }

    /// An empty collection for a view of `source`. Forced relists count as its own.
    #[must_use]
    pub fn view_of(source: &Self) -> Self {
        Self {
            relists_forced: source.relists_forced.clone(),
            ..Self::new(source.kind, false)
        }
    }

    /// Moves `C` to the store's position. Wakes no reader: nothing happened in this collection.
    pub fn follow_store(&self) {
        let Some(progress) = &self.progress else { return };
        let reached = progress.now();
        if self.read(|collection| collection.is_complete() && collection.position() < reached) {
            self.update_quietly(|collection| collection.advance(reached));
        }
    }

    /// Waits until `C` covers every RV that any collection of the store has shown to a reader. A list of the most
    /// recent state must not have a lower RV than an event that a client saw before.
    ///
    /// # Cancel safety
    /// Holds nothing; may be dropped at any point.
    pub async fn catch_up(&self) {
        let Some(progress) = &self.progress else { return };
        let shown = progress.begun.load(Ordering::SeqCst);
        let mut published = progress.reached.subscribe();
        // The sender is in `self`.
        let _ = published.wait_for(|reached| reached.0 >= shown).await;
        self.follow_store();
    }

    /// Kind of the objects in it.
    #[must_use]
    pub fn kind(&self) -> &'static ResourceKind {
        self.kind
    }

    /// Reads the collection under its lock.
    pub fn read<T>(&self, look: impl FnOnce(&Collection) -> T) -> T {
        look(&self.inner.read())
    }

    /// Changes the collection up to `to` for a source of `generation`, and wakes the readers. Generations are compared
    /// under the lock of the change: RVs of one history mean nothing in another, and a source learns of a new one later
    /// than the collection.
    ///
    /// # Errors
    /// [`NotApplied`] when the collection is of another generation, or its stored mark does not cover `to`.
    pub fn update_of<T>(
        &self,
        generation: u64,
        to: ResourceVersion,
        change: impl FnOnce(&mut Collection) -> T,
    ) -> Result<T, NotApplied> {
        let (result, changed) = {
            let mut collection = self.inner.write();
            let held = collection.generation();
            if held != generation {
                return Err(NotApplied::OtherHistory { held, of: generation });
            }
            if !collection.covers(to) {
                return Err(NotApplied::Uncovered { to });
            }
            (change(&mut collection), collection.take_changed_keys())
        };
        self.wake(&changed);
        Ok(result)
    }

    pub(crate) fn update<T>(&self, change: impl FnOnce(&mut Collection) -> T) -> T {
        let (result, changed) = {
            let mut collection = self.inner.write();
            (change(&mut collection), collection.take_changed_keys())
        };
        self.wake(&changed);
        result
    }

    fn wake(&self, changed: &ChangedKeys) {
        self.version.send_modify(|version| *version += 1);
        if let Some(by_key) = self.by_key.get() {
            let senders = by_key.iter().enumerate().filter(|(bit, _)| changed.has(*bit));
            senders.for_each(|(_, sender)| sender.send_modify(|version| *version += 1));
        }
    }

    /// Changes book-keeping that no reader can see (dirty records), without waking readers.
    pub(crate) fn update_quietly<T>(&self, change: impl FnOnce(&mut Collection) -> T) -> T {
        change(&mut self.inner.write())
    }

    /// Changes the limits of the history ([`Collection::set_limits`]).
    pub fn set_limits(&self, limits: Limits) {
        self.update_quietly(|collection| collection.set_limits(limits));
    }

    /// A handle that resolves after every change; the value is only a counter.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// As [`Self::subscribe`], for a reader of `keys` only. A thousand readers of one key each are not woken by changes
    /// of other keys. They are woken at intervals, to stay above the floor.
    #[must_use]
    pub fn changes_of(&self, keys: &KeyRange) -> Changes {
        let by_key = || (0..KEY_GROUPS).map(|_| watch::Sender::new(0)).collect();
        let sender = keys
            .key()
            .and_then(|key| self.by_key.get_or_init(by_key).get(ChangedKeys::bit(key)))
            .unwrap_or(&self.version);
        Changes(sender.subscribe())
    }

    /// Watches that ended with 410 so far: each of their clients has to list again.
    #[must_use]
    pub fn relists_forced(&self) -> u64 {
        self.relists_forced.load(Ordering::Relaxed)
    }

    /// Continues the count of `former`, which this collection replaces.
    pub fn count_relists_on(&self, former: &Self) {
        self.relists_forced
            .fetch_add(former.relists_forced(), Ordering::Relaxed);
    }

    /// Counts a watch that ended with 410.
    pub(crate) fn count_forced_relist(&self) {
        self.relists_forced.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes one of [`STARTING_WATCHES_MAX`] permits. Another watch may take it over after [`START_PERMIT_TIME`].
    pub(crate) fn start_watch(&self) -> Option<StartPermit> {
        self.starting.take(Instant::now())
    }

    /// Records the store's report that everything up to `rv` is in its collections.
    pub fn store_reached(&self, rv: ResourceVersion) {
        if let Some(progress) = &self.progress {
            progress.reached(rv);
            self.follow_store();
        }
    }

    /// Waits until the collection is complete and `C` ≥ `rv`. The caller bounds the time.
    ///
    /// # Cancel safety
    /// Holds nothing; may be dropped at any point.
    pub async fn reached(&self, rv: ResourceVersion) {
        let mut changes = self.subscribe();
        let mut progress = self.progress.as_ref().map(|progress| progress.reached.subscribe());
        let has_reached = || self.read(|collection| collection.is_complete() && collection.position() >= rv);
        while !has_reached() {
            self.follow_store();
            if has_reached() {
                return;
            }
            let store_moved = async {
                match &mut progress {
                    Some(progress) => progress.wait_for(|reached| *reached >= rv).await.map(drop),
                    None => std::future::pending().await,
                }
            };
            let moved = tokio::select! {
                moved = changes.changed() => moved,
                moved = store_moved => moved,
            };
            if moved.is_err() {
                return;
            }
        }
    }
}

// === impl OnlyWriter ===

impl OnlyWriter for SharedCollection {
    fn update<T>(&self, change: impl FnOnce(&mut Collection) -> T) -> T {
        Self::update(self, change)
    }
}

// === impl Changes ===

impl Changes {
    /// Marks all changes up to now as seen.
    pub fn mark_seen(&mut self) {
        self.0.borrow_and_update();
    }

    /// Resolves at the next unseen change.
    ///
    /// # Errors
    /// The collection is gone.
    ///
    /// # Cancel safety
    /// Holds nothing; may be dropped at any point.
    pub async fn changed(&mut self) -> Result<(), watch::error::RecvError> {
        self.0.changed().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn change_of_another_generation_changes_nothing_and_wakes_nobody() {
        let services = yurt_apimachinery::kind::find_kind("", "services").unwrap();
        let shared = SharedCollection::new(services, false);
        let start = |held: &mut Collection| held.restart(7, Vec::new(), ResourceVersion(10));
        shared.update_of(0, ResourceVersion(10), start).unwrap();
        let woken = shared.subscribe();
        let to = ResourceVersion(20);
        let refused = shared.update_of(0, to, |held| held.advance(to));
        assert_eq!(refused, Err(NotApplied::OtherHistory { held: 7, of: 0 }));
        assert!(!woken.has_changed().unwrap());
        assert_eq!(shared.read(Collection::position), ResourceVersion(10));
        assert_eq!(shared.update_of(7, to, |held| held.advance(to)), Ok(true));
        assert!(woken.has_changed().unwrap());
    }
}
