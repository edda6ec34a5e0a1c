//! Partial lists of a hub, one per replica and source. A stream leaves its draft to the next one. Drafts of long lists
//! are also stored on disk for the next process.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use yurt_apimachinery::watch::EventType;
use yurt_apimachinery::{Object, ObjectKey, ResourceKind, ResourceVersion};
use yurt_pool_protocol::partial_list::{Page, PageSize, PartialList, Unfit};
use yurt_pool_protocol::source::Source;
use yurt_storage::StorageError;
use yurt_storage::embedded::replicas::ReplicaStore;

/// Duration of a list below which the hub stores nothing of it and watches no changes in parallel. Servers keep their
/// history for longer than that.
pub const LIST_ALONE: Duration = Duration::from_secs(10);
/// Time between saves of a longer list; a commit writes some 28 KB to the medium.
const SAVE_EVERY: Duration = Duration::from_secs(10);

/// All drafts.
pub struct PartialListStore {
    slots: Mutex<BTreeMap<(String, bool), Arc<Slot>>>,
    disk: Option<Disk>,
}

/// The file, for one operation at a time. An operation continues when its caller is cancelled; the next one waits for
/// it.
#[derive(Clone)]
struct Disk {
    store: ReplicaStore,
    busy: Arc<tokio::sync::Mutex<()>>,
}

/// The draft of one replica from one source, if there is one.
pub struct Slot {
    name: String,
    kind: &'static ResourceKind,
    /// Storage, for sources whose drafts last. A coordinator is near: a new process begins its list again.
    disk: Option<Disk>,
    state: Mutex<SlotState>,
    /// CopyPosition while the disk is read; until then the existing draft is unknown.
    loading: tokio::sync::Mutex<()>,
    ticks: watch::Sender<()>,
}

#[derive(Default)]
struct SlotState {
    draft: Option<PartialList>,
    pages: PageSize,
    /// Start of the list; `None` if another process began it.
    began: Option<Instant>,
    loaded: bool,
    saved_at: Option<Instant>,
    /// True if the disk has rows of this draft and of no other.
    is_stored: bool,
    /// True if the draft grew since the stream began.
    progressed: bool,
    /// True once the resource is no longer copied; a stream that is still running stores nothing.
    closed: bool,
}

/// Next step of a list.
#[derive(Debug, PartialEq, Eq)]
pub enum ListStep {
    /// Get a page; the first one has no token.
    Page(Option<String>, usize),
    /// Wait for changes.
    Changes,
    /// None: the list is complete.
    Nothing,
}

/// Position of a list, and its newest objects.
pub type Evidence = (ResourceVersion, Vec<(ObjectKey, ResourceVersion)>);

/// Position and generation of the replica when it was read.
pub type CopyPosition = (ResourceVersion, u64);

// === impl PartialListStore ===

impl PartialListStore {
    /// Opens the drafts in `store`; without one, drafts do not outlive the process.
    #[must_use]
    pub fn new(store: Option<ReplicaStore>) -> Self {
        let on = |store| Disk {
            store,
            busy: Arc::default(),
        };
        Self {
            slots: Mutex::default(),
            disk: store.map(on),
        }
    }

    /// Slot for the draft of replica `name` from `source`.
    #[must_use]
    pub fn slot(&self, name: &str, kind: &'static ResourceKind, source: Source) -> Arc<Slot> {
        let from_cloud = source == Source::Cloud;
        let mut slots = self.slots.lock();
        let slot = slots.entry((name.to_owned(), from_cloud)).or_insert_with(|| {
            Arc::new(Slot {
                name: name.to_owned(),
                kind,
                disk: self.disk.clone().filter(|_| from_cloud),
                state: Mutex::default(),
                loading: tokio::sync::Mutex::default(),
                ticks: watch::Sender::default(),
            })
        });
        slot.clone()
    }

    /// Drops the drafts of a replica that is complete and followed, except those in use by a stream.
    pub async fn tidy(&self, name: &str) {
        let idle: Vec<_> = {
            let slots = self.slots.lock();
            let of_name = slots
                .iter()
                .filter(|((of, _), slot)| of == name && Arc::strong_count(slot) == 1);
            of_name.map(|(_, slot)| slot.clone()).collect()
        };
        for slot in idle {
            slot.forget().await;
        }
    }

    /// Returns the evidence of the cloud's partial list of replica `name`, as [`PartialList::evidence`], including one
    /// from an earlier process. A list older than `held` gives none.
    pub async fn evidence(
        &self,
        name: &str,
        kind: &'static ResourceKind,
        held: ResourceVersion,
        count: usize,
    ) -> Option<Evidence> {
        let slot = self.slot(name, kind, Source::Cloud);
        slot.load().await;
        let state = slot.state.lock();
        let draft = state.draft.as_ref().filter(|draft| draft.watched() >= held);
        draft.map(|draft| draft.evidence(count))
    }

    /// Removes the drafts of replica `name`, which is no longer copied. A later resource of this name may have another
    /// version.
    pub async fn remove(&self, name: &str) {
        let removed: Vec<_> = self.slots.lock().extract_if(.., |(of, _), _| of == name).collect();
        for (_, slot) in removed {
            slot.close().await;
        }
    }

    /// Objects and bytes received of replica `name`'s list, and whether its next object is too large for the link;
    /// `None` without a list.
    #[must_use]
    pub fn progress(&self, name: &str) -> Option<(usize, usize, bool)> {
        let slots = self.slots.lock();
        let of_name = slots.iter().filter(|((of, _), _)| of == name);
        of_name
            .filter_map(|(_, slot)| {
                let state = slot.state.lock();
                let is_stuck = state.pages.is_stuck();
                let size = state.draft.as_ref().map(PartialList::size);
                let (objects, bytes) = size.or(is_stuck.then_some((0, 0)))?;
                Some((objects, bytes, is_stuck))
            })
            .max()
    }

    /// Bytes received of the unfinished lists, by the name of the replica.
    #[must_use]
    pub fn received(&self) -> BTreeMap<String, usize> {
        let mut received = BTreeMap::<_, usize>::new();
        for ((name, _), slot) in self.slots.lock().iter() {
            if let Some((_, bytes)) = slot.state.lock().draft.as_ref().map(PartialList::size) {
                *received.entry(name.clone()).or_default() += bytes;
            }
        }
        received
    }

    /// Stores all drafts that last, of any age, before the hub stops.
    pub async fn save(&self) {
        let slots: Vec<_> = self.slots.lock().values().cloned().collect();
        for slot in slots {
            slot.save().await;
        }
        // This frees the file.
        if let Some(disk) = &self.disk {
            drop(disk.busy.lock().await);
        }
    }
}

// === impl Disk ===

impl Disk {
    async fn run<T: Send + 'static>(
        &self,
        what: impl FnOnce(&ReplicaStore) -> Result<T, StorageError> + Send + 'static,
    ) -> Result<T, StorageError> {
        let (place, store) = (self.busy.clone().lock_owned().await, self.store.clone());
        let done = tokio::task::spawn_blocking(move || {
            let done = what(&store);
            drop((store, place));
            done
        });
        let interrupted = |error| StorageError::Unavailable(format!("interrupted: {error}"));
        done.await.map_err(interrupted)?
    }
}

// === impl Slot ===

impl Slot {
    /// Prepares the slot for a new stream: loads the draft of an earlier process, and drops a draft older than the
    /// replica.
    pub async fn open(&self, held: ResourceVersion) {
        self.load().await;
        let is_old = {
            let mut state = self.state.lock();
            state.progressed = false;
            state.draft.as_ref().is_some_and(|draft| draft.watched() < held)
        };
        if is_old {
            self.forget().await;
        }
    }

    async fn load(&self) {
        let _loading = self.loading.lock().await;
        if std::mem::replace(&mut self.state.lock().loaded, true) {
            return;
        }
        let Some(disk) = &self.disk else { return };
        let (name, kind) = (self.name.clone(), self.kind);
        let read = disk.run(move |store| {
            let stored = store.load_draft(&name)?;
            Ok(stored.and_then(|stored| PartialList::restore(&stored.about, stored.rows, kind)))
        });
        match read.await {
            Ok(Some(draft)) => {
                tracing::info!(
                    collection = self.name,
                    objects = draft.size().0,
                    "Continuing the list of the previous process"
                );
                let mut state = self.state.lock();
                (state.draft, state.is_stored) = (Some(draft), true);
            }
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(collection = self.name, %error, "Failed to read the partial list; starting over")
            }
        }
    }

    /// Returns the next step.
    #[must_use]
    pub fn ask(&self, held: CopyPosition) -> ListStep {
        let state = self.state.lock();
        let limit = state.pages.limit();
        match &state.draft {
            None => ListStep::Page(None, limit),
            Some(draft) => match draft.next() {
                Some(token) => ListStep::Page(Some(token.to_owned()), limit),
                None if needs_changes(draft, held) => ListStep::Changes,
                None => ListStep::Nothing,
            },
        }
    }

    /// Adds a page that took `elapsed`. `held` was read before the request.
    ///
    /// # Errors
    /// [`Unfit`]: call [`Self::forget`].
    pub fn take_page(&self, page: Page, held: CopyPosition, elapsed: Duration) -> Result<(), Unfit> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(Unfit::NoToken);
        }
        state.pages.took(page.items.len(), page.bytes, page.rest, elapsed);
        match &mut state.draft {
            Some(draft) => draft.take_page(page)?,
            None => {
                state.draft = Some(PartialList::begin(page, held.0)?);
                state.began = Some(Instant::now());
            }
        }
        state.progressed = true;
        drop(state);
        self.ticks.send_replace(());
        Ok(())
    }

    /// Records that the server offers another token, or none.
    ///
    /// # Errors
    /// [`Unfit`]: call [`Self::forget`].
    pub fn take_expired(&self, token: Option<&str>) -> Result<(), Unfit> {
        let mut state = self.state.lock();
        state
            .draft
            .as_mut()
            .map_or(Err(Unfit::NoToken), |draft| draft.take_expired(token))
    }

    /// Records that the connection broke in the middle of a page.
    pub fn cut(&self) {
        let mut state = self.state.lock();
        let was_stuck = state.pages.is_stuck();
        state.pages.cut();
        if state.pages.is_stuck() && !was_stuck {
            tracing::warn!(
                collection = self.name,
                "The next object of the list is too large to arrive before the link breaks"
            );
        }
    }

    /// True if the stream added something that is kept.
    #[must_use]
    pub fn has_progressed(&self) -> bool {
        self.state.lock().progressed
    }

    /// Applies a change that was watched during the list.
    pub fn take_event(&self, event: EventType, object: Object) {
        self.change(|draft| draft.take_event(event, object));
    }

    /// True if changes up to `at` are already known.
    #[must_use]
    pub fn knows(&self, at: ResourceVersion) -> bool {
        let state = self.state.lock();
        state.draft.as_ref().is_some_and(|draft| at <= draft.watched())
    }

    /// Records that no further change came up to `at`.
    pub fn advance(&self, at: ResourceVersion) {
        self.change(|draft| draft.advance(at));
    }

    fn change(&self, change: impl FnOnce(&mut PartialList)) {
        let mut state = self.state.lock();
        if let Some(draft) = &mut state.draft {
            change(draft);
            state.progressed = true;
        }
        drop(state);
        self.ticks.send_replace(());
    }

    /// Receiver that ticks after each change of the draft.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.ticks.subscribe()
    }

    /// Position at which to watch for changes, and the list's generation; an error while the list may still finish
    /// without a watch.
    ///
    /// # Errors
    /// Time of the next try; `None` for after the next change.
    pub fn watch_from(&self, held: CopyPosition) -> Result<(ResourceVersion, Option<u64>), Option<Instant>> {
        let state = self.state.lock();
        let draft = state.draft.as_ref().ok_or(None)?;
        let due = state.began.map(|began| began + LIST_ALONE);
        match due.filter(|due| *due > Instant::now()) {
            Some(due) if !needs_changes(draft, held) => Err(Some(due)),
            _ => Ok((draft.watched(), draft.generation())),
        }
    }

    /// Takes the draft out. Its rows on disk stay until [`Self::forget`].
    #[must_use]
    pub fn take(&self) -> Option<PartialList> {
        self.state.lock().draft.take()
    }

    /// Stores the draft if the list is long enough and the next save is due.
    pub async fn save_due(&self) {
        let is_due = {
            let state = self.state.lock();
            let is_long = state.began.is_none_or(|began| began.elapsed() > LIST_ALONE);
            is_long && state.saved_at.is_none_or(|at| at.elapsed() > SAVE_EVERY)
        };
        if is_due {
            self.save().await;
        }
    }

    async fn save(&self) {
        let Some(disk) = &self.disk else { return };
        let (whole, about, rows) = {
            let mut state = self.state.lock();
            let whole = !state.is_stored;
            let Some(draft) = &mut state.draft else { return };
            let saved = (whole, draft.about(), draft.take_unsaved(whole));
            // Until the commit succeeds, the next one has to write everything.
            (state.is_stored, state.saved_at) = (false, Some(Instant::now()));
            saved
        };
        let name = self.name.clone();
        let written = disk.run(move |store| store.save_draft(&name, whole, about.as_bytes(), &rows));
        match written.await {
            Ok(()) => self.state.lock().is_stored = true,
            Err(error) => tracing::warn!(collection = self.name, %error, "Failed to store the partial list"),
        }
    }

    /// Drops the draft permanently.
    async fn close(&self) {
        {
            let mut state = self.state.lock();
            // A commit may be in progress: the rows are dropped after it.
            (state.closed, state.is_stored) = (true, true);
        }
        self.forget().await;
    }

    /// Drops the draft in memory and on disk.
    pub async fn forget(&self) {
        let was_stored = {
            let mut state = self.state.lock();
            (state.draft, state.began) = (None, None);
            state.saved_at.take();
            state.pages.begins_again();
            std::mem::take(&mut state.is_stored)
        };
        let Some(disk) = self.disk.as_ref().filter(|_| was_stored) else {
            return;
        };
        let name = self.name.clone();
        if let Err(error) = disk.run(move |store| store.drop_draft(&name)).await {
            tracing::warn!(collection = self.name, %error, "Failed to drop the stored partial list");
        }
    }
}

/// Positions of different generations cannot be compared.
fn needs_changes(draft: &PartialList, (position, generation): CopyPosition) -> bool {
    let other = draft.generation().is_some_and(|of_list| of_list != generation);
    draft.needs_changes(if other { ResourceVersion::ZERO } else { position })
}
