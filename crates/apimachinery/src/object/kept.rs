//! Other forms of an object, kept beside its JSON once somebody asked for them: as an item of a protobuf list, and
//! compressed.
//!
//! A thousand nodes that reconnect at once list the same objects. All that is kept shares one bound; beyond it forms are
//! made each time.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

use crate::deflate::{Compressor, Deflated};
use crate::protobuf;
use crate::schema::Message;

/// Most bytes kept by all objects of the process together.
pub const KEPT_BYTES_MAX: usize = 16 << 20;

/// Number of a list's items in protobuf.
const ITEMS: u32 = 2;

static KEPT_BYTES: AtomicUsize = AtomicUsize::new(0);

/// The other forms of one object, as far as they are known. Most objects have none.
#[derive(Default)]
pub(super) struct Kept(OnceLock<Box<Forms>>);

#[derive(Default)]
struct Forms {
    item: OnceLock<Form>,
    /// Of the JSON, and of the item.
    deflated: [OnceLock<Box<Deflated>>; 2],
}

/// A form that can be kept compressed.
#[derive(Clone, Copy, Debug)]
pub enum Plain {
    /// The JSON as it is.
    Json,
    /// An item of a protobuf list.
    Item(Message),
}

enum Form {
    /// The item.
    Item(Bytes),
    /// Its length.
    Len(u32),
}

// === impl Kept ===

impl Kept {
    fn forms(&self) -> &Forms {
        self.0.get_or_init(Box::default)
    }

    /// The object as an item of a list: a field of the list, key and length included.
    pub(super) fn item(&self, message: Message, json: &[u8]) -> Bytes {
        match self.form(message, json) {
            Form::Item(item) => item.clone(),
            Form::Len(_) => encode(message, json),
        }
    }

    /// Length of [`Self::item`].
    pub(super) fn item_len(&self, message: Message, json: &[u8]) -> usize {
        match self.form(message, json) {
            Form::Item(item) => item.len(),
            Form::Len(len) => *len as usize,
        }
    }

    fn form(&self, message: Message, json: &[u8]) -> &Form {
        self.forms().item.get_or_init(|| {
            let item = encode(message, json);
            if reserve(item.len()) {
                return Form::Item(item);
            }
            Form::Len(u32::try_from(item.len()).unwrap_or(u32::MAX))
        })
    }

    /// Shows a form, compressed.
    pub(super) fn deflated<T>(
        &self,
        plain: Plain,
        json: &Bytes,
        compressor: &mut Compressor,
        show: impl FnOnce(&Deflated) -> T,
    ) -> T {
        let (slot, bytes) = match plain {
            Plain::Json => (&self.forms().deflated[0], None),
            Plain::Item(message) => (&self.forms().deflated[1], Some(message)),
        };
        if let Some(kept) = slot.get() {
            return show(kept);
        }
        let bytes = bytes.map_or_else(|| json.clone(), |message| self.item(message, json));
        let made = compressor.deflate(&bytes);
        let len = made.blocks.len();
        if !reserve(len) {
            return show(&made);
        }
        if slot.set(Box::new(made)).is_err() {
            // Somebody else was faster, and reserved it, too.
            KEPT_BYTES.fetch_sub(len, Ordering::Relaxed);
        }
        show(slot.get().expect("a slot that was set stays set"))
    }
}

impl Drop for Forms {
    fn drop(&mut self) {
        let item = match self.item.get() {
            Some(Form::Item(item)) => item.len(),
            _ => 0,
        };
        let deflated = self.deflated.iter().filter_map(OnceLock::get);
        let kept = item + deflated.map(|kept| kept.blocks.len()).sum::<usize>();
        if kept > 0 {
            KEPT_BYTES.fetch_sub(kept, Ordering::Relaxed);
        }
    }
}

/// Whether there is room for so many bytes more; takes it.
fn reserve(len: usize) -> bool {
    let held = KEPT_BYTES.fetch_add(len, Ordering::Relaxed);
    let fits = held + len <= KEPT_BYTES_MAX;
    if !fits {
        KEPT_BYTES.fetch_sub(len, Ordering::Relaxed);
    }
    fits
}

/// Checked JSON of a known kind can always be encoded.
fn encode(message: Message, json: &[u8]) -> Bytes {
    let message = protobuf::encode(message, json).unwrap_or_default().bytes;
    let mut item = Vec::with_capacity(message.len() + 8);
    protobuf::put_field(&mut item, ITEMS, &message);
    item.into_boxed_slice().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::find;

    /// One test for all: the bound is that of the process.
    #[test]
    fn what_is_kept_is_bounded_and_given_back() {
        let message = find("", "v1", "ConfigMap").unwrap();
        let json = |len: usize| format!(r#"{{"metadata":{{"name":"a"}},"data":{{"k":"{}"}}}}"#, "x".repeat(len));
        let (small, large) = (json(10), json(KEPT_BYTES_MAX / 2));
        let (one, two, three) = (Kept::default(), Kept::default(), Kept::default());
        let first = one.item(message, large.as_bytes());
        assert_eq!(
            first.as_ptr(),
            one.item(message, large.as_bytes()).as_ptr(),
            "it is kept"
        );
        let second = two.item(message, large.as_bytes());
        assert_ne!(
            second.as_ptr(),
            two.item(message, large.as_bytes()).as_ptr(),
            "there is no room for it"
        );
        assert_eq!(
            (&first, two.item_len(message, large.as_bytes())),
            (&second, second.len())
        );
        drop(one);
        let third = three.item(message, large.as_bytes());
        assert_eq!(
            third.as_ptr(),
            three.item(message, large.as_bytes()).as_ptr(),
            "there is room again"
        );
        let kept = Kept::default();
        assert_eq!(
            kept.item_len(message, small.as_bytes()),
            kept.item(message, small.as_bytes()).len()
        );
    }
}
