//! Derived collections: the view of a replica through a chain of filters, shared by all clients with the same chain.
//!
//! A view has kind, generation, RVs and position of its source, and is served like a replica. One task per view
//! (`follow`) filters what the source delivers, and evaluates objects again when an input of the filters
//! changes ([`inputs`]). What that means for readers is decided by `yurt_collection` (`derived.rs` there).
//!
//! A view is created for its first request and dropped an hour after its last one. It is replaced by a new one when its
//! source begins another generation. Its readers end cleanly then; they resume at the new view and receive everything.

mod follow;
pub mod inputs;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::{Object, ObjectKey, ResourceKind, ResourceVersion, Status};
use yurt_collection::Collection;
use yurt_runtime::TaskGroup;
use yurt_storage::serve::WAIT_FOR_RV;
use yurt_storage::{Replica, SharedCollection};

use crate::filter::{Chain, Verdict};
use follow::Follow;
use inputs::LiveInputs;

/// Maximum number of views. Above it the one that was unused for longest is dropped.
const VIEWS_MAX: usize = 64;
/// Maximum number of views of selections that only callers with tokens use. The others are the node's, and those of
/// pool data, which are few.
const VIEWS_OF_TOKENS_MAX: usize = VIEWS_MAX / 2;
/// Time after its last use at which a view is dropped.
const IDLE_MAX: Duration = Duration::from_secs(3600);
/// Most views that one request waits for, as its source begins one generation after another.
const ATTEMPTS_MAX: usize = 4;
/// Seconds after which a client without a view tries again.
const RETRY_AFTER: u32 = 1;

/// All views of this hub.
#[derive(Clone)]
pub struct Derived(Arc<ViewsState>);

struct ViewsState {
    inputs: LiveInputs,
    tasks: TaskGroup,
    views: Mutex<BTreeMap<Key, Arc<View>>>,
    /// True once a view was dropped: clients may hold its states.
    has_dropped: AtomicBool,
}

/// Identity of the source, which lives as long as the view; names of the filters; edition of the binding.
type Key = (usize, Vec<&'static str>, u64);

/// One view.
pub struct View {
    collection: Arc<SharedCollection>,
    source: Arc<SharedCollection>,
    used: Mutex<Instant>,
    /// True while only callers with tokens used it, and it is a view of a selection.
    is_of_tokens: AtomicBool,
    ended: CancellationToken,
}

// === impl Derived ===

impl Derived {
    /// Creates the state without a view. `tasks` owns the tasks of the views.
    #[must_use]
    pub fn new(inputs: LiveInputs, tasks: TaskGroup) -> Self {
        Self(Arc::new(ViewsState {
            inputs,
            tasks,
            views: Mutex::default(),
            has_dropped: AtomicBool::new(false),
        }))
    }

    /// The view of `replica` through `chain`, of `edition`. Waits for the first evaluation for at most [`WAIT_FOR_RV`];
    /// a view that takes longer is returned incomplete.
    ///
    /// `is_of_tokens` is true for a selection that a caller other than the node reads. Its views have a limit of
    /// their own, and end none of the others.
    ///
    /// # Errors
    /// 503 while an input of the filters is unknown, or if too many views are in use.
    ///
    /// # Cancel safety
    /// Holds nothing while waiting.
    pub async fn of(
        &self,
        replica: &Arc<Replica>,
        chain: &Chain,
        edition: u64,
        is_of_tokens: bool,
    ) -> Result<Arc<View>, Status> {
        self.0.inputs.check(chain)?;
        let mut view = self.find_or_start(replica, chain, edition, is_of_tokens)?;
        let ready = async {
            for _ in 0..ATTEMPTS_MAX {
                tokio::select! {
                    () = view.collection.reached(ResourceVersion::ZERO) => {}
                    () = view.ended.cancelled() => {}
                }
                let source = replica.collection();
                if view.is_of(source) {
                    break;
                }
                // The source has begun another generation, which this view does not show.
                source.reached(ResourceVersion::ZERO).await;
                view = self.find_or_start(replica, chain, edition, is_of_tokens)?;
            }
            Ok::<_, Status>(())
        };
        // A request for an incomplete view gets 429 later.
        tokio::time::timeout(WAIT_FOR_RV, ready).await.unwrap_or(Ok(()))?;
        Ok(view)
    }

    /// Filters one object with the present inputs.
    ///
    /// # Errors
    /// 503 while an input of the filters is unknown.
    pub fn filter(&self, kind: &ResourceKind, object: &Object, chain: &Chain) -> Result<Verdict, Status> {
        self.0.inputs.check(chain)?;
        Ok(self.0.inputs.with(|context| chain.filter(kind, object, context)))
    }

    /// The object of the source that a view of `kind` and `edition` shows under `version`; `None` if no view does now.
    /// `is_read` selects the views by the names of their filters.
    #[must_use]
    pub fn source_of(
        &self,
        kind: &ResourceKind,
        edition: u64,
        is_read: &dyn Fn(&[&str]) -> bool,
        key: &ObjectKey,
        version: ResourceVersion,
    ) -> Option<Object> {
        let shown = self.shown(kind, edition, is_read, key);
        shown
            .into_iter()
            .find_map(|(own, object)| (own == version).then_some(object))
    }

    /// Bytes of an object in the sources of these views, the largest of them; 0 if none has it.
    #[must_use]
    pub fn source_length(
        &self,
        kind: &ResourceKind,
        edition: u64,
        is_read: &dyn Fn(&[&str]) -> bool,
        key: &ObjectKey,
    ) -> usize {
        let shown = self.shown(kind, edition, is_read, key).into_iter();
        shown.map(|(_, object)| object.bytes_len()).max().unwrap_or_default()
    }

    /// The highest RV under which the views show the state that the source has under `version`; `None` if none shows
    /// it.
    #[must_use]
    pub fn shown_as(
        &self,
        kind: &ResourceKind,
        edition: u64,
        is_read: &dyn Fn(&[&str]) -> bool,
        key: &ObjectKey,
        version: ResourceVersion,
    ) -> Option<ResourceVersion> {
        let shown = self.shown(kind, edition, is_read, key).into_iter();
        let same = shown.filter(|(_, object)| object.resource_version() == version);
        same.map(|(own, _)| own).max()
    }

    /// RVs of an object in the views, each with the state of the source that it shows.
    fn shown(
        &self,
        kind: &ResourceKind,
        edition: u64,
        is_read: &dyn Fn(&[&str]) -> bool,
        key: &ObjectKey,
    ) -> Vec<(ResourceVersion, Object)> {
        let views = self.0.views.lock();
        let views = views
            .iter()
            .filter(|((_, names, own), _)| *own == edition && is_read(names));
        let views: Vec<Arc<View>> = views.map(|(_, view)| view.clone()).collect();
        let of_kind = views.iter().filter(|view| view.source.kind() == kind);
        of_kind.filter_map(|view| view.shown(key)).collect()
    }

    fn find_or_start(
        &self,
        replica: &Arc<Replica>,
        chain: &Chain,
        edition: u64,
        is_of_tokens: bool,
    ) -> Result<Arc<View>, Status> {
        let source = replica.collection();
        let key = (Arc::as_ptr(source).addr(), chain.names(), edition);
        let mut views = self.0.views.lock();
        if let Some(view) = views.get(&key).filter(|view| view.is_of(source)) {
            *view.used.lock() = Instant::now();
            view.is_of_tokens.fetch_and(is_of_tokens, Ordering::Relaxed);
            return Ok(view.clone());
        }
        if let Some(old) = views.remove(&key) {
            self.0.end(&old);
        }
        self.0.make_room(&mut views, is_of_tokens)?;
        let view = Arc::new(View {
            collection: Arc::new(SharedCollection::view_of(source)),
            source: source.clone(),
            used: Mutex::new(Instant::now()),
            is_of_tokens: AtomicBool::new(is_of_tokens),
            ended: replica.gone().child_token(),
        });
        views.insert(key.clone(), view.clone());
        let is_another = edition > 0 || self.0.has_dropped.load(Ordering::Relaxed);
        let follow = Follow {
            view: view.clone(),
            source: source.clone(),
            chain: chain.clone(),
            inputs: self.0.inputs.clone(),
            is_another,
        };
        let (shared, token) = (self.0.clone(), self.0.tasks.token());
        self.0.tasks.spawn("derive-view", async move {
            let view = follow.view.clone();
            token.run_until_cancelled(follow.run()).await;
            shared.remove(&key, &view);
        });
        Ok(view)
    }
}

// === impl ViewsState ===

impl ViewsState {
    /// Ends the view that was unused for longest, if there is no room for a further one. For callers with tokens it is
    /// one of theirs.
    fn make_room(&self, views: &mut BTreeMap<Key, Arc<View>>, is_of_tokens: bool) -> Result<(), Status> {
        let may_give_way = |view: &View| !is_of_tokens || view.is_of_tokens.load(Ordering::Relaxed);
        let has_no_share = || views.values().filter(|view| may_give_way(view)).count() >= VIEWS_OF_TOKENS_MAX;
        if views.len() < VIEWS_MAX && !(is_of_tokens && has_no_share()) {
            return Ok(());
        }
        let unused = views
            .iter()
            .filter(|(_, view)| view.has_no_reader() && may_give_way(view));
        let oldest = unused
            .min_by_key(|(_, view)| *view.used.lock())
            .map(|(key, _)| key.clone());
        let oldest = oldest.and_then(|oldest| views.remove(&oldest));
        let oldest = oldest.ok_or_else(|| {
            let (max, whose) = match is_of_tokens {
                true => (VIEWS_OF_TOKENS_MAX, "callers with tokens"),
                false => (VIEWS_MAX, "this node"),
            };
            let why = format!("all of the {max} filtered views of {whose} are in use, please try again");
            Status::service_unavailable(&why, RETRY_AFTER)
        })?;
        self.end(&oldest);
        Ok(())
    }

    /// Ends the readers of a view; the next request creates another one.
    fn end(&self, view: &View) {
        self.has_dropped.store(true, Ordering::Relaxed);
        view.ended.cancel();
    }

    fn remove(&self, key: &Key, view: &Arc<View>) {
        let mut views = self.views.lock();
        if views.get(key).is_some_and(|found| Arc::ptr_eq(found, view)) {
            views.remove(key);
        }
        self.end(view);
    }
}

// === impl View ===

impl View {
    /// The filtered collection.
    #[must_use]
    pub fn collection(&self) -> &Arc<SharedCollection> {
        &self.collection
    }

    /// Cancelled when the view ends, which ends its readers.
    #[must_use]
    pub fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    /// Position of the source, which a read of the latest state must reflect; zero once the source has begun another
    /// generation than that of the view.
    #[must_use]
    pub fn source_position(&self) -> ResourceVersion {
        let generation = self.collection.read(Collection::generation);
        let position = |held: &Collection| (held.generation() == generation).then(|| held.position());
        self.source.read(position).unwrap_or_default()
    }

    /// The RV of an object here, and the state of the source that it shows; `None` if the source has a later one.
    fn shown(&self, key: &ObjectKey) -> Option<(ResourceVersion, Object)> {
        let of_view = |held: &Collection| {
            let version = held.object(key)?.resource_version();
            Some((version, held.position(), held.generation()))
        };
        let (version, position, generation) = self.collection.read(of_view)?;
        // Everything up to its position is applied here, and the source only moves forward.
        let object = self.source.read(|held| {
            let object = held.object(key).filter(|_| held.generation() == generation);
            object.filter(|object| object.resource_version() <= position).cloned()
        });
        Some((version, object?))
    }

    /// True if this is still a view of the present data of `source`.
    fn is_of(&self, source: &SharedCollection) -> bool {
        let state = |held: &Collection| held.is_complete().then(|| held.generation());
        let generation = self.collection.read(state);
        !self.ended.is_cancelled() && generation.is_none_or(|own| own == source.read(Collection::generation))
    }

    /// True if no stream reads it. A request between [`Derived::of`] and its answer does not count.
    fn has_no_reader(&self) -> bool {
        Arc::strong_count(&self.collection) == 1
    }

    fn is_idle(&self) -> bool {
        self.has_no_reader() && self.used.lock().elapsed() >= IDLE_MAX
    }
}

#[cfg(test)]
mod tests;
