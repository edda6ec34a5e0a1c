//! The hub's one source of chance: jitter, watch lengths, ranks. Not for secrets.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};

/// A number nobody can foresee and nobody needs to: the standard library's own hash seed.
#[must_use]
pub fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
