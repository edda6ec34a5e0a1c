//! Cached encodings of an object, added to its JSON on first use: as an item of a protobuf list, and compressed,
//! together with its neighbours in a list.
//!
//! A thousand nodes that reconnect simultaneously list the same objects. All cached encodings share one bound; beyond
//! it, encodings are made for each use.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use bytes::Bytes;

use yurt_apimachinery::Object;

use crate::deflate::{Compressor, Deflated};
use crate::protobuf;
use crate::schema::Message;

mod runs;

use runs::CachedRun;
pub(crate) use runs::{Run, reach, run_len};

/// Most bytes cached by all objects of the process together.
pub const CACHED_BYTES_MAX: usize = 16 << 20;

/// Number of a list's items in protobuf.
const ITEMS: u32 = 2;

static CACHED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// The cached encodings of one object. Most objects have none.
#[derive(Default)]
struct EncodingCache {
    item: OnceLock<CachedItem>,
    /// The run that begins with this object, in JSON and in protobuf.
    runs: [Mutex<Option<Box<CachedRun>>>; 2],
}

/// Form of the items of a list whose compressed runs are cached.
#[derive(Clone, Copy, Debug)]
pub enum ItemForm {
    /// The JSON as it is.
    Json,
    /// An item of a protobuf list.
    Protobuf(Message),
}

/// An item of a protobuf list.
enum CachedItem {
    /// The item.
    Bytes(Bytes),
    /// Its length, for an item that had no room.
    Len(u32),
}

/// The object as an item of a protobuf list, key and length included. `message` is always that of its kind. Cached for
/// later calls, up to [`CACHED_BYTES_MAX`].
pub(crate) fn protobuf_item(object: &Object, message: Message) -> Bytes {
    cache_of(object).item(message, || object.bytes())
}

/// Length of [`protobuf_item`]: the length of a list precedes its items.
pub(crate) fn protobuf_item_len(object: &Object, message: Message) -> usize {
    cache_of(object).item_len(message, || object.bytes())
}

/// The object as an item of a list.
pub(crate) fn item(object: &Object, form: ItemForm) -> Bytes {
    match form {
        ItemForm::Json => object.bytes(),
        ItemForm::Protobuf(message) => protobuf_item(object, message),
    }
}

fn cache_of(object: &Object) -> &EncodingCache {
    object
        .encoding_cache()
        .expect("only this module may fill the cache of an Object")
}

// === impl EncodingCache ===

impl EncodingCache {
    /// The object as an item of a list: a field of the list, key and length included.
    fn item(&self, message: Message, json: impl Fn() -> Bytes) -> Bytes {
        match self.cached_item(message, &json) {
            CachedItem::Bytes(item) => item.clone(),
            CachedItem::Len(_) => encode(message, &json()),
        }
    }

    /// Length of [`Self::item`].
    fn item_len(&self, message: Message, json: impl Fn() -> Bytes) -> usize {
        match self.cached_item(message, &json) {
            CachedItem::Bytes(item) => item.len(),
            CachedItem::Len(len) => *len as usize,
        }
    }

    fn cached_item(&self, message: Message, json: &dyn Fn() -> Bytes) -> &CachedItem {
        self.item.get_or_init(|| {
            let item = encode(message, &json());
            if reserve(item.len()) {
                return CachedItem::Bytes(item);
            }
            CachedItem::Len(u32::try_from(item.len()).unwrap_or(u32::MAX))
        })
    }

    /// Passes the compressed run that begins with this object to a function.
    fn run<T>(&self, run: &Run<'_>, compressor: &mut Compressor, show: impl FnOnce(&Deflated) -> T) -> T {
        let slot = match run.form {
            ItemForm::Json => &self.runs[0],
            ItemForm::Protobuf(_) => &self.runs[1],
        };
        let lock = || slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cached) = lock().as_deref().filter(|cached| cached.is_of(run)) {
            return show(&cached.piece);
        }
        // Compressed outside the lock, because it takes a while.
        let made = CachedRun::new(run, run.deflate(compressor));
        let shown = show(&made.piece);
        let mut cached = lock();
        if let Some(previous) = cached.take() {
            CACHED_BYTES.fetch_sub(previous.size(), Ordering::Relaxed);
        }
        if reserve(made.size()) {
            *cached = Some(Box::new(made));
        }
        shown
    }
}

impl Drop for EncodingCache {
    fn drop(&mut self) {
        let item = match self.item.get() {
            Some(CachedItem::Bytes(item)) => item.len(),
            _ => 0,
        };
        let runs = self.runs.iter_mut().filter_map(|run| run.get_mut().ok()?.as_deref());
        let bytes = item + runs.map(CachedRun::size).sum::<usize>();
        if bytes > 0 {
            CACHED_BYTES.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

/// Reserves so many more bytes; false if there is no room.
fn reserve(len: usize) -> bool {
    let held = CACHED_BYTES.fetch_add(len, Ordering::Relaxed);
    let fits = held + len <= CACHED_BYTES_MAX;
    if !fits {
        CACHED_BYTES.fetch_sub(len, Ordering::Relaxed);
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
    fn cached_bytes_are_bounded_and_given_back() {
        let message = find("", "v1", "ConfigMap").unwrap();
        let json = |len: usize| {
            let text = format!(r#"{{"metadata":{{"name":"a"}},"data":{{"k":"{}"}}}}"#, "x".repeat(len));
            let text = Bytes::from(text);
            move || text.clone()
        };
        let (small, large) = (json(10), json(CACHED_BYTES_MAX / 2));
        let (one, two, three) = (
            EncodingCache::default(),
            EncodingCache::default(),
            EncodingCache::default(),
        );
        let first = one.item(message, &large);
        assert_eq!(first.as_ptr(), one.item(message, &large).as_ptr(), "it is cached");
        let second = two.item(message, &large);
        assert_ne!(
            second.as_ptr(),
            two.item(message, &large).as_ptr(),
            "there is no room for it"
        );
        assert_eq!((&first, two.item_len(message, &large)), (&second, second.len()));
        drop(one);
        let third = three.item(message, &large);
        assert_eq!(
            third.as_ptr(),
            three.item(message, &large).as_ptr(),
            "there is room again"
        );
        let cache = EncodingCache::default();
        assert_eq!(cache.item_len(message, &small), cache.item(message, &small).len());
    }
}
