//! JSON of an object in memory: as it is while the object is new, deflated after a store has written it.

use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

use crate::packed::{self, Packer};

/// The body of an object. Its form changes, its text does not.
///
/// The lock is held for a copy of the pointer only. A `Mutex` is eight bytes smaller than an `RwLock`.
pub(super) struct Body(Mutex<Bytes>);

// === impl Body ===

impl Body {
    /// The JSON `text`, or a deflated one.
    pub(super) fn new(text: Bytes) -> Self {
        Self(Mutex::new(text))
    }

    /// The JSON. A deflated body is inflated for each call.
    pub(super) fn text(&self) -> Bytes {
        packed::unpack(&self.held()).expect("the deflated body of an Object must have been checked")
    }

    /// Bytes of the JSON.
    pub(super) fn len(&self) -> usize {
        packed::plain_len(&self.held())
    }

    /// True if it is held deflated.
    pub(super) fn is_packed(&self) -> bool {
        packed::is_packed(&self.held())
    }

    /// The row of a file, and the bytes of memory that are free now: a long text is held in this form from now on.
    pub(super) fn pack(&self, packer: &mut Packer) -> (Bytes, usize) {
        let held = self.held();
        if packed::is_packed(&held) {
            return (held, 0);
        }
        let row = packer.row(&held);
        let freed = if self.hold(&row) { held.len() - row.len() } else { 0 };
        (row, freed)
    }

    /// True if [`Self::pack`] would deflate a text and hold the result.
    pub(super) fn is_long(&self) -> bool {
        let held = self.held();
        !packed::is_packed(&held) && held.len() >= packed::LEAST
    }

    /// A body with the same deflated text; `None` if it is not held deflated.
    pub(super) fn shared(&self) -> Option<Self> {
        let held = self.held();
        packed::is_packed(&held).then(|| Self::new(held))
    }

    /// Holds `row`, whose text is that of this body, if it is deflated and long enough; returns whether it does.
    /// Earlier programs deflated shorter ones in the file.
    pub(super) fn hold(&self, row: &Bytes) -> bool {
        let is_held = packed::is_packed(row) && packed::plain_len(row) >= packed::LEAST;
        if is_held {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = row.clone();
        }
        is_held
    }

    fn held(&self) -> Bytes {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Equal texts.
impl PartialEq for Body {
    fn eq(&self, other: &Self) -> bool {
        let (held, theirs) = (self.held(), other.held());
        held == theirs || (packed::plain_len(&held) == packed::plain_len(&theirs) && self.text() == other.text())
    }
}
