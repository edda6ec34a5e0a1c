//! Cached encodings of an object, added to its JSON on first use: as an item of a protobuf list, and compressed,
//! together with its neighbours in a list.
//!
//! A thousand nodes that reconnect simultaneously list the same objects. All cached encodings share one bound; beyond
//! it, encodings are made for each use.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use bytes::Bytes;

use super::runs::{KeptRun, Run};
use crate::deflate::{Compressor, Deflated};
use crate::protobuf;
use crate::schema::Message;

/// Most bytes cached by all objects of the process together.
pub const KEPT_BYTES_MAX: usize = 16 << 20;

/// Number of a list's items in protobuf.
const ITEMS: u32 = 2;

static KEPT_BYTES: AtomicUsize = AtomicUsize::new(0);

/// The cached encodings of one object. Most objects have none.
#[derive(Default)]
pub(super) struct Kept(OnceLock<Box<Forms>>);

#[derive(Default)]
struct Forms {
    item: OnceLock<Form>,
    /// The run that begins with this object, in JSON and in protobuf.
    runs: [Mutex<Option<Box<KeptRun>>>; 2],
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

    /// Passes the compressed run that begins with this object to a function.
    pub(super) fn run<T>(&self, run: &Run<'_>, compressor: &mut Compressor, show: impl FnOnce(&Deflated) -> T) -> T {
        let slot = match run.plain {
            Plain::Json => &self.forms().runs[0],
            Plain::Item(_) => &self.forms().runs[1],
        };
        let lock = || slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kept) = lock().as_deref().filter(|kept| kept.is_of(run)) {
            return show(&kept.piece);
        }
        // Compressed outside the lock, because it takes a while.
        let made = KeptRun::new(run, run.deflate(compressor));
        let shown = show(&made.piece);
        let mut kept = lock();
        if let Some(former) = kept.take() {
            KEPT_BYTES.fetch_sub(former.size(), Ordering::Relaxed);
        }
        if reserve(made.size()) {
            *kept = Some(Box::new(made));
        }
        shown
    }
}

impl Drop for Forms {
    fn drop(&mut self) {
        let item = match self.item.get() {
            Some(Form::Item(item)) => item.len(),
            _ => 0,
        };
        let runs = self.runs.iter_mut().filter_map(|run| run.get_mut().ok()?.as_deref());
        let kept = item + runs.map(KeptRun::size).sum::<usize>();
        if kept > 0 {
            KEPT_BYTES.fetch_sub(kept, Ordering::Relaxed);
        }
    }
}

/// Reserves so many more bytes; false if there is no room.
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
