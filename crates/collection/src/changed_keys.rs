//! Compact set of the keys changed since the last take: a waiter for one key is not woken by the others.

/// Number of bits, hence of groups of keys that are woken together.
pub const KEY_GROUPS: usize = 32;

/// A set of groups of keys.
#[derive(Debug, Default)]
pub struct ChangedKeys {
    bits: u32,
    /// Bytes and number of deletions since every group was last woken.
    buried: (usize, usize),
}

// === impl ChangedKeys ===

impl ChangedKeys {
    /// The group of `key`.
    #[must_use]
    pub fn bit(key: &str) -> usize {
        // FNV-1a: the keys are short, and collisions need no defence: each costs one idle wake-up.
        let hash = key.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
            (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
        });
        (hash ^ (hash >> 16)) as usize % KEY_GROUPS
    }

    /// True if a key of this group changed.
    #[must_use]
    pub fn has(&self, bit: usize) -> bool {
        self.bits >> bit & 1 == 1
    }

    pub(super) fn add(&mut self, key: &str) {
        self.bits |= 1 << Self::bit(key);
    }

    pub(super) fn add_all(&mut self) {
        self.bits = u32::MAX;
    }

    /// Counts a deletion, and wakes every group after `bytes` bytes or `count` deletions.
    pub(super) fn add_deletion(&mut self, size: usize, bytes: usize, count: usize) {
        self.buried = (self.buried.0 + size, self.buried.1 + 1);
        if self.buried.0 > bytes || self.buried.1 > count {
            self.buried = (0, 0);
            self.add_all();
        }
    }

    pub(super) fn take(&mut self) -> Self {
        Self {
            bits: std::mem::take(&mut self.bits),
            buried: (0, 0),
        }
    }
}
