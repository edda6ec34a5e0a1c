//! Room in an object for one value that another crate computes from it, such as its encodings.

use std::any::Any;
use std::sync::OnceLock;

/// A value of any type, made on first use. Most objects have none.
#[derive(Default)]
pub(super) struct CacheSlot(OnceLock<Box<dyn Any + Send + Sync>>);

// === impl CacheSlot ===

impl CacheSlot {
    /// The value, made if there is none; `None` if it has another type.
    pub(super) fn get_or_default<T: Any + Default + Send + Sync>(&self) -> Option<&T> {
        self.0.get_or_init(|| Box::new(T::default())).downcast_ref()
    }

    /// True once the value was made.
    pub(super) fn is_made(&self) -> bool {
        self.0.get().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_is_made_once_and_keeps_its_type() {
        let slot = CacheSlot::default();
        assert!(!slot.is_made());
        let made = slot.get_or_default::<Vec<u8>>().expect("a new value");
        let again = slot.get_or_default::<Vec<u8>>().expect("the same type");
        assert!(std::ptr::eq(made, again));
        assert_eq!(slot.get_or_default::<String>(), None);
        assert!(slot.is_made());
    }
}
