//! Task of one view: filters what its source delivers, and evaluates objects again when an input has changed.
//!
//! Filters run outside of all locks. A change of an input is noticed after the objects that were evaluated with its old
//! state, so those are evaluated once more. One that the source has changed since is left for its delivery.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use yurt_apimachinery::packed::Packer;
use yurt_apimachinery::{Object, ObjectKey, ResourceVersion};
use yurt_collection::{Collection, Delivery, Expired, Filtered, RangeTombstone, Reader, Recovered, outline};
use yurt_runtime::memory;
use yurt_storage::{OnlyWriter as _, SharedCollection};

use super::View;
use super::inputs::{Affected, InputChanges, LiveInputs};
use crate::filter::{Chain, Inputs, localendpoints};

/// Deliveries of the source taken at a time.
const BATCH: usize = 128;
/// Objects evaluated before other tasks get their turn.
const CHUNK: usize = 128;
/// Interval between looks at whether the view is still used.
const LOOK_FOR_READERS: Duration = Duration::from_secs(600);

/// Time until the source has repeated what an earlier process may have served: its changes since its last commit.
const REPEATED: Duration = Duration::from_secs(60);

/// Parts of the task.
pub(super) struct Follow {
    pub(super) view: Arc<View>,
    pub(super) source: Arc<SharedCollection>,
    pub(super) chain: Chain,
    pub(super) inputs: LiveInputs,
    /// True if clients of this process may hold another view.
    pub(super) is_another: bool,
}

/// State of the source from which a view begins.
struct Start {
    state: Recovered,
    reader: Reader,
    /// Upper bound of the RVs that clients may have from another view.
    shown_to: ResourceVersion,
    /// True if there may have been another view of the source.
    is_another: bool,
}

// === impl Follow ===

impl Follow {
    /// Runs until the view ends: its source is gone or has another history, or no client uses it.
    pub(super) async fn run(self) {
        let ended = self.view.ended.clone();
        ended.run_until_cancelled(self.follow()).await;
    }

    async fn follow(&self) {
        let mut inputs = self.inputs.changes(&self.chain);
        let mut changes = self.source.subscribe();
        let Some((mut reader, mut replaced)) = self.start().await else {
            return;
        };
        let first = if replaced.is_some() { REPEATED } else { LOOK_FOR_READERS };
        let mut look_at = Instant::now() + first;
        loop {
            changes.borrow_and_update();
            let Ok(has_moved) = self.pull(&mut reader).await else {
                return;
            };
            let has_revised = self.reevaluate(&mut inputs).await;
            if has_moved || has_revised {
                tokio::task::consume_budget().await;
                continue;
            }
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                () = inputs.changed() => {}
                () = tokio::time::sleep_until(look_at) => {
                    if let Some(replaced) = replaced.take() {
                        self.view.collection.update(|held| held.restamp(self.uncertain(held, replaced)));
                    }
                    if self.view.is_idle() {
                        return;
                    }
                    look_at = Instant::now() + LOOK_FOR_READERS;
                    self.pack().await;
                }
            }
        }
    }

    /// Fills the view from its source. Returns the reader that continues from there, and, if there may have been
    /// another view, the keys of the objects that the filters replace; `None` while the source is incomplete.
    async fn start(&self) -> Option<(Reader, Option<Vec<ObjectKey>>)> {
        let Start {
            mut state,
            reader,
            shown_to,
            is_another,
        } = self.source.read(|held| Start::of(held, self.is_another));
        if !state.complete {
            return None;
        }
        let (mut shown, mut hidden, mut replaced) = (Vec::new(), Vec::new(), Vec::new());
        for objects in std::mem::take(&mut state.objects).chunks(CHUNK) {
            for object in objects {
                match self.show(object) {
                    Some(seen) => {
                        replaced.extend((seen != *object).then(|| object.key().clone()));
                        shown.push(seen);
                    }
                    None => hidden.push(self.outline(object)),
                }
            }
            tokio::task::yield_now().await;
        }
        state.objects = shown;
        state.tombstones = state.tombstones.iter().map(|object| self.outline(object)).collect();
        state.ranges = state.ranges.into_iter().map(|range| self.outline_of(range)).collect();
        let limits = self.source.read(Collection::limits);
        self.view.collection.update(|held| {
            *held = Collection::derived(state, shown_to, hidden);
            held.set_limits(limits);
            if is_another {
                held.restamp(self.uncertain(held, replaced.clone()));
            }
        });
        Some((reader, is_another.then_some(replaced)))
    }

    /// Applies the next changes of the source; returns true if there were any.
    async fn pull(&self, reader: &mut Reader) -> Result<bool, Expired> {
        let before = reader.position();
        let deliveries = self.source.read(|held| read(held, reader))?;
        if deliveries.is_empty() && reader.position() == before {
            return Ok(false);
        }
        let mut changes = Vec::with_capacity(deliveries.len());
        for delivery in deliveries {
            changes.push(Filtered::new(delivery, |object| self.show(object)));
            if changes.len().is_multiple_of(CHUNK) {
                tokio::task::yield_now().await;
            }
        }
        let to = reader.position();
        let view = &self.view.collection;
        view.update(|held| held.project(changes, view.kind(), to));
        Ok(true)
    }

    /// Evaluates the objects that depend on changed inputs; returns true if there were changes.
    async fn reevaluate(&self, inputs: &mut InputChanges) -> bool {
        let affected = inputs.take();
        if affected == Affected::Nothing {
            return false;
        }
        let kind = self.source.kind();
        let is_affected = |object: &Object| match &affected {
            Affected::Nothing => false,
            Affected::Of { services, pods } => {
                let mut own = self.chain.services_of(kind, object);
                own.any(|service| services.contains(&service)) || localendpoints::names_any(object, pods)
            }
            Affected::Everything => true,
        };
        let view = &self.view.collection;
        let at = view.read(|held| (held.generation(), held.position()));
        // Later states are delivered, and evaluated then.
        let known: Vec<Object> = self.source.read(|held| {
            let known = held.objects().filter(|object| object.resource_version() <= at.1);
            known.filter(|_| held.generation() == at.0).cloned().collect()
        });
        let mut objects = Vec::new();
        for known in known.chunks(CHUNK) {
            objects.extend(known.iter().filter(|object| is_affected(object)).cloned());
            tokio::task::yield_now().await;
        }
        self.chain.count_reevaluated(objects.len() as u64);
        for objects in objects.chunks(CHUNK) {
            let seen = objects.iter().map(|object| (object.key().clone(), self.show(object)));
            let seen: Vec<(ObjectKey, Option<Object>)> = seen.collect();
            let changes = view.read(|held| held.differences(seen));
            if !changes.is_empty() {
                view.update(|held| held.revise(changes));
            }
            tokio::task::yield_now().await;
        }
        true
    }

    /// Holds the view's own long objects deflated: those that filters changed, and those that got another RV before
    /// their commit. No commit packs them.
    async fn pack(&self) {
        let own = |held: &Collection| -> Vec<Object> { held.objects().filter(|one| one.is_long()).cloned().collect() };
        let (mut packer, mut freed) = (Packer::default(), 0);
        for object in self.view.collection.read(own) {
            freed += object.pack(&mut packer);
            tokio::task::yield_now().await;
        }
        // The allocator blocks for a while.
        let _ = tokio::task::spawn_blocking(move || memory::note_freed(freed)).await;
    }

    fn show(&self, object: &Object) -> Option<Object> {
        self.inputs
            .with(|context| self.chain.view_of(self.source.kind(), object, context))
    }

    /// Keys of the objects that another view may have shown with other content under the same RV: all of them, or those
    /// that the filters replace, if nothing else decides.
    fn uncertain(&self, held: &Collection, replaced: Vec<ObjectKey>) -> Vec<ObjectKey> {
        let inputs = self.chain.inputs();
        // The objects that lead pods to the hub are replaced, or an earlier process may have replaced them.
        let inputs = Inputs {
            trust: inputs.trust && !self.inputs.with(|context| context.is_for_pods()),
            ..inputs
        };
        match self.is_another || inputs != Inputs::NONE {
            true => held.objects().map(|object| object.key().clone()).collect(),
            false => replaced,
        }
    }

    fn outline(&self, object: &Object) -> Object {
        outline(object, self.source.kind())
    }

    fn outline_of(&self, range: RangeTombstone) -> RangeTombstone {
        RangeTombstone {
            object: self.outline(&range.object),
            ..range
        }
    }
}

// === impl Start ===

impl Start {
    fn of(source: &Collection, is_another: bool) -> Self {
        let is_another = is_another || source.was_served_before();
        Self {
            state: source.to_recovered(),
            reader: source.follow(),
            shown_to: match is_another {
                true => source.shown_to(),
                // A client at this position has read it here; one below it may have read it in the cloud.
                false => ResourceVersion(source.position().0.saturating_sub(1)),
            },
            is_another,
        }
    }
}

/// Returns the next deliveries. A step is read as a whole.
fn read(held: &Collection, reader: &mut Reader) -> Result<Vec<Delivery>, Expired> {
    let mut deliveries = held.read(reader, BATCH)?;
    let is_step = matches!(deliveries.first(), Some(Delivery::DiffBegin(_)));
    while is_step && !matches!(deliveries.last(), Some(Delivery::DiffEnd { .. })) {
        deliveries.extend(held.read(reader, usize::MAX)?);
    }
    Ok(deliveries)
}
