//! Runs: neighbours in a list that are compressed together, after the text of the run before them.
//!
//! A single object has little repetition; most of it repeats its neighbours. A list of a collection has the same
//! neighbours again and again, so a run is cached with its first object. The key of an object decides whether a run
//! ends there: objects that come, go or change affect only their own run and the next one.

use bytes::Bytes;
use yurt_apimachinery::Object;
use yurt_apimachinery::object::ObjectIdentity;

use super::ItemForm;
use crate::deflate::{Compressor, Deflated, WINDOW};

/// Minimum bytes of JSON in a run, except the last one: the distance that the next run can refer back.
const RUN_MIN: usize = WINDOW;
/// Beyond the minimum, a run ends within about so many bytes more.
const RUN_SPREAD: usize = WINDOW;
/// A run ends at the first object beyond so many bytes.
const RUN_MAX: usize = 4 * WINDOW;

/// Some items of a list.
pub(crate) struct Run<'a> {
    pub(crate) objects: &'a [Object],
    /// The items right before them, within the distance of a back-reference.
    pub(crate) before: &'a [Object],
    /// Text between two items.
    pub(crate) separator: &'static [u8],
    /// The form of the items.
    pub(crate) form: ItemForm,
}

/// A compressed run.
pub(super) struct CachedRun {
    /// The objects it was made of; it does not keep them alive.
    objects: Box<[ObjectIdentity]>,
    before: Box<[ObjectIdentity]>,
    pub(super) piece: Deflated,
}

/// Number of `objects` in the next run.
pub(crate) fn run_len(objects: &[Object]) -> usize {
    let mut bytes = 0;
    let is_last = |object: &Object| {
        let len = object.bytes_len();
        bytes += len;
        // The longer an object, the likelier it ends a run: the spread is measured in bytes.
        bytes >= RUN_MAX || (bytes >= RUN_MIN && hash(object.key().as_str()) % RUN_SPREAD < len)
    };
    objects.iter().position(is_last).map_or(objects.len(), |last| last + 1)
}

/// The last of `objects`, within the distance that later ones can refer back.
pub(crate) fn reach(objects: &[Object]) -> &[Object] {
    let mut bytes = 0;
    let is_first = |object: &Object| {
        bytes += object.bytes_len();
        bytes >= WINDOW
    };
    let first = objects.iter().rposition(is_first).unwrap_or(0);
    &objects[first..]
}

/// FNV-1a.
fn hash(key: &str) -> usize {
    let hash = key.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    (hash ^ (hash >> 15)) as usize
}

// === impl Run ===

impl Run<'_> {
    /// Passes the compressed run to a function.
    pub(crate) fn deflated<T>(&self, compressor: &mut Compressor, show: impl FnOnce(&Deflated) -> T) -> Option<T> {
        let first = self.objects.first()?;
        Some(super::cache_of(first).run(first, self, compressor, show))
    }

    pub(super) fn deflate(&self, compressor: &mut Compressor) -> Deflated {
        let before = self.text(self.before);
        let mut text = self.text(self.objects);
        if !self.before.is_empty() {
            text.splice(0..0, self.separator.iter().copied());
        }
        compressor.deflate_after(&before, &text)
    }

    fn text(&self, objects: &[Object]) -> Vec<u8> {
        let items: Vec<Bytes> = objects.iter().map(|object| super::item(object, self.form)).collect();
        items.join(self.separator)
    }
}

// === impl CachedRun ===

impl CachedRun {
    pub(super) fn new(run: &Run<'_>, piece: Deflated) -> Self {
        let identities = |objects: &[Object]| objects.iter().map(Object::identity).collect();
        Self {
            objects: identities(run.objects),
            before: identities(run.before),
            piece,
        }
    }

    /// True if it was made of exactly these objects.
    pub(super) fn is_of(&self, run: &Run<'_>) -> bool {
        let same = |identities: &[ObjectIdentity], objects: &[Object]| {
            let mut pairs = identities.iter().zip(objects);
            identities.len() == objects.len() && pairs.all(|(identity, object)| identity.is(object))
        };
        same(&self.objects, run.objects) && same(&self.before, run.before)
    }

    /// Bytes it takes in memory.
    pub(super) fn size(&self) -> usize {
        self.piece.blocks.len() + (self.objects.len() + self.before.len()) * size_of::<ObjectIdentity>()
    }
}
