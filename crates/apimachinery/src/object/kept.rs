//! What an object is in protobuf, kept beside its JSON once somebody asked for it.
//!
//! A thousand nodes that reconnect at once list the same objects. All that is kept shares one bound; beyond it only the
//! length is remembered, and the message is made each time.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

use crate::protobuf;
use crate::schema::Message;

/// Most bytes kept by all objects of the process together.
pub const KEPT_BYTES_MAX: usize = 16 << 20;

/// Number of a list's items in protobuf.
const ITEMS: u32 = 2;

static KEPT_BYTES: AtomicUsize = AtomicUsize::new(0);

/// The protobuf form of one object, as far as it is known.
#[derive(Default)]
pub(super) struct Kept(OnceLock<Form>);

enum Form {
    /// The item.
    Item(Bytes),
    /// Its length.
    Len(u32),
}

// === impl Kept ===

impl Kept {
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
        self.0.get_or_init(|| {
            let item = encode(message, json);
            let held = KEPT_BYTES.fetch_add(item.len(), Ordering::Relaxed);
            if held + item.len() <= KEPT_BYTES_MAX {
                return Form::Item(item);
            }
            KEPT_BYTES.fetch_sub(item.len(), Ordering::Relaxed);
            Form::Len(u32::try_from(item.len()).unwrap_or(u32::MAX))
        })
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(Form::Item(item)) = self.0.get() {
            KEPT_BYTES.fetch_sub(item.len(), Ordering::Relaxed);
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
