//! Cached encodings of an object, added to its JSON on first use: as an item of a protobuf list, and compressed,
//! together with its neighbours in a list.
//!
//! A thousand nodes that reconnect simultaneously list the same objects. All cached encodings share one bound; beyond
//! it, encodings are made for each use. A collection releases those of an object that it replaces, and a program those
//! that no list has used for a while.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use yurt_apimachinery::Object;
use yurt_apimachinery::object::ObjectIdentity;

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

/// The objects with cached encodings, and some without.
static HOLDERS: Mutex<Vec<ObjectIdentity>> = Mutex::new(Vec::new());

/// The cached encodings of one object. Most objects have none.
#[derive(Default)]
struct EncodingCache {
    item: Mutex<Option<CachedItem>>,
    /// The run that begins with this object, in JSON and in protobuf.
    runs: [Mutex<Option<Box<CachedRun>>>; 2],
    /// True if a list has used it since the last [`release_unused`].
    is_used: AtomicBool,
    /// True while its object is one of [`HOLDERS`].
    is_listed: AtomicBool,
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
    /// Its length, for an item that had no room or was released.
    Len(usize),
}

/// The object as an item of a protobuf list, key and length included. `message` is always that of its kind. Cached for
/// later calls, up to [`CACHED_BYTES_MAX`].
pub(crate) fn protobuf_item(object: &Object, message: Message) -> Bytes {
    cache_of(object).item(object, message)
}

/// Length of [`protobuf_item`]: the length of a list precedes its items.
pub(crate) fn protobuf_item_len(object: &Object, message: Message) -> usize {
    cache_of(object).item_len(object, message)
}

/// The objects whose items were never encoded: a protobuf list of them encodes each one before it begins.
pub fn unmeasured(objects: &[Object]) -> Vec<&Object> {
    let is_measured = |object: &Object| object.has_encoding_cache() && lock(&cache_of(object).item).is_some();
    objects.iter().filter(|object| !is_measured(object)).collect()
}

/// Encodes the item of an object, as a later list does that finds it neither cached nor measured.
pub fn measure(object: &Object, message: Message) {
    protobuf_item_len(object, message);
}

/// The object as an item of a list.
pub(crate) fn item(object: &Object, form: ItemForm) -> Bytes {
    match form {
        ItemForm::Json => object.bytes(),
        ItemForm::Protobuf(message) => protobuf_item(object, message),
    }
}

/// Releases the cached encodings of an object that lists no longer contain.
pub fn release(object: &Object) {
    if object.has_encoding_cache() {
        cache_of(object).release();
    }
}

/// Releases the cached encodings that no list has used since the last call; returns their bytes.
pub fn release_unused() -> usize {
    let mut holders = std::mem::take(&mut *lock(&HOLDERS));
    let mut freed = 0;
    holders.retain(|holder| {
        let Some(object) = holder.object() else { return false };
        let cache = cache_of(&object);
        let is_used = cache.is_used.swap(false, Ordering::Relaxed);
        if !is_used {
            cache.is_listed.store(false, Ordering::Relaxed);
            freed += cache.release();
        }
        is_used
    });
    lock(&HOLDERS).append(&mut holders);
    freed
}

fn cache_of(object: &Object) -> &EncodingCache {
    object
        .encoding_cache()
        .expect("only this module may fill the cache of an Object")
}

/// No holder of these locks leaves half a change behind.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl EncodingCache ===

impl EncodingCache {
    /// The item of `object`, which has this cache: a field of the list, key and length included.
    fn item(&self, object: &Object, message: Message) -> Bytes {
        let mut held = lock(&self.item);
        if let Some(CachedItem::Bytes(item)) = &*held {
            self.is_used.store(true, Ordering::Relaxed);
            return item.clone();
        }
        let item = encode(message, &object.bytes());
        *held = Some(match self.reserve(object, item.len()) {
            true => CachedItem::Bytes(item.clone()),
            false => CachedItem::Len(item.len()),
        });
        item
    }

    /// Length of [`Self::item`].
    fn item_len(&self, object: &Object, message: Message) -> usize {
        let known = lock(&self.item).as_ref().map(CachedItem::len);
        known.unwrap_or_else(|| self.item(object, message).len())
    }

    /// Reserves room for so many more bytes of `object`, which has this cache; false if there is none.
    fn reserve(&self, object: &Object, len: usize) -> bool {
        let held = CACHED_BYTES.fetch_add(len, Ordering::Relaxed);
        if held + len > CACHED_BYTES_MAX {
            CACHED_BYTES.fetch_sub(len, Ordering::Relaxed);
            return false;
        }
        self.is_used.store(true, Ordering::Relaxed);
        if !self.is_listed.swap(true, Ordering::Relaxed) {
            let mut holders = lock(&HOLDERS);
            if holders.len() == holders.capacity() {
                holders.retain(|holder| holder.object().is_some());
            }
            holders.push(object.identity());
        }
        true
    }

    /// Drops everything but the length of the item; returns the bytes.
    fn release(&self) -> usize {
        let mut freed = 0;
        if let Some(item) = &mut *lock(&self.item) {
            freed += item.shorten();
        }
        for run in &self.runs {
            freed += lock(run).take().map_or(0, |run| run.size());
        }
        CACHED_BYTES.fetch_sub(freed, Ordering::Relaxed);
        freed
    }

    /// Passes the compressed run that begins with `first`, which has this cache, to a function.
    fn run<T>(
        &self,
        first: &Object,
        run: &Run<'_>,
        compressor: &mut Compressor,
        show: impl FnOnce(&Deflated) -> T,
    ) -> T {
        let slot = match run.form {
            ItemForm::Json => &self.runs[0],
            ItemForm::Protobuf(_) => &self.runs[1],
        };
        if let Some(cached) = lock(slot).as_deref().filter(|cached| cached.is_of(run)) {
            self.is_used.store(true, Ordering::Relaxed);
            return show(&cached.piece);
        }
        // Compressed outside the lock, because it takes a while.
        let made = CachedRun::new(run, run.deflate(compressor));
        let shown = show(&made.piece);
        let mut cached = lock(slot);
        if let Some(previous) = cached.take() {
            CACHED_BYTES.fetch_sub(previous.size(), Ordering::Relaxed);
        }
        if self.reserve(first, made.size()) {
            *cached = Some(Box::new(made));
        }
        shown
    }
}

impl Drop for EncodingCache {
    fn drop(&mut self) {
        self.release();
    }
}

// === impl CachedItem ===

impl CachedItem {
    fn len(&self) -> usize {
        match self {
            Self::Bytes(item) => item.len(),
            Self::Len(len) => *len,
        }
    }

    /// Drops the bytes; returns their number.
    fn shorten(&mut self) -> usize {
        let len = self.len();
        match std::mem::replace(self, Self::Len(len)) {
            Self::Bytes(_) => len,
            Self::Len(_) => 0,
        }
    }
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
    use yurt_apimachinery::kind::find_kind;

    use super::*;
    use crate::schema::find;

    fn config_map(len: usize) -> Object {
        let text = format!(
            r#"{{"metadata":{{"name":"a","namespace":"a"}},"data":{{"k":"{}"}}}}"#,
            "x".repeat(len)
        );
        Object::parse(text.into(), find_kind("", "configmaps").unwrap()).unwrap()
    }

    /// One test for all: bound and list are those of the process.
    #[test]
    fn cached_bytes_are_bounded_and_given_back() {
        let message = find("", "v1", "ConfigMap").unwrap();
        let is_cached = |object: &Object| {
            let item = || protobuf_item(object, message);
            item().as_ptr() == item().as_ptr()
        };
        let [one, two, three] = [1, 2, 3].map(|_| config_map(CACHED_BYTES_MAX / 2));
        assert!(is_cached(&one));
        assert!(!is_cached(&two), "there is no room for it");
        let (first, second) = (protobuf_item(&one, message), protobuf_item(&two, message));
        assert_eq!((&first, protobuf_item_len(&two, message)), (&second, second.len()));
        drop(one);
        assert!(is_cached(&two), "there is room again");
        release(&two);
        assert_eq!(protobuf_item_len(&two, message), second.len());
        assert!(is_cached(&three), "room of a released object");
        release(&three);

        let [small, unused] = [config_map(10), config_map(20)];
        assert_eq!(protobuf_item_len(&small, message), protobuf_item(&small, message).len());
        let (kept, dropped) = (protobuf_item(&small, message), protobuf_item(&unused, message));
        release_unused();
        assert_eq!(kept.as_ptr(), protobuf_item(&small, message).as_ptr());
        assert!(release_unused() >= dropped.len());
        assert_eq!(
            kept.as_ptr(),
            protobuf_item(&small, message).as_ptr(),
            "used between the calls"
        );
        assert_ne!(
            dropped.as_ptr(),
            protobuf_item(&unused, message).as_ptr(),
            "not used between the calls"
        );
        assert!(is_cached(&unused), "it is cached again");
        let more = [small.clone(), config_map(30), config_map(40)];
        assert_eq!(unmeasured(&more), [&more[1], &more[2]]);
        measure(&more[1], message);
        assert_eq!(unmeasured(&more), [&more[2]]);
        let is_held = |object: &Object| lock(&HOLDERS).iter().any(|holder| holder.is(object));
        assert!(is_held(&small) && is_held(&unused) && !is_held(&three));
    }
}
