//! The hub's only source of randomness, for jitter, watch lengths and ranks; not for secrets.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};

/// Returns a number from the standard library's random hash seed. It need not be unpredictable to
/// an attacker.
#[must_use]
pub fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
