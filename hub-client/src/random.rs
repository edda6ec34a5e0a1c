//! The hub's only source of randomness, for jitter, watch lengths and ranks; not for secrets.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};

/// Returns a number from the standard library's random hash seed, which the operating system chooses. It need not be
/// unpredictable to an attacker. fastrand does not serve: it takes its seed from the time since boot, and hubs that choose
/// a generation have to differ from each other.
#[must_use]
pub fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
