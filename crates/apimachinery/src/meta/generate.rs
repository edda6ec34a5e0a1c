//! Names made from `metadata.generateName`. The caller supplies the random suffix.

use serde_json::Value;

use super::access;

/// Characters of a suffix: no vowels, so that no words appear, and none that look alike.
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
/// Characters in a suffix.
pub const GENERATED_SUFFIX_LEN: usize = 5;
/// Most bytes of a base that are kept.
const MAX_BASE_LEN: usize = 63 - GENERATED_SUFFIX_LEN;

/// A suffix made of a random number.
pub fn suffix_from_random(random: u64) -> String {
    let mut rest = random;
    let mut next = || {
        let at = usize::try_from(rest % ALPHABET.len() as u64).unwrap_or_default();
        rest /= ALPHABET.len() as u64;
        char::from(ALPHABET[at])
    };
    (0..GENERATED_SUFFIX_LEN).map(|_| next()).collect()
}

/// The name made of a base and a suffix.
pub fn generate_name(base: &str, suffix: &str) -> String {
    let mut end = base.len().min(MAX_BASE_LEN);
    while !base.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{suffix}", &base[..end])
}

/// True if a body has a `generateName` but no name.
#[must_use]
pub fn generates_name(object: &Value) -> bool {
    !access::text(object, "generateName").is_empty() && access::text(object, "name").is_empty()
}

/// Names a body that has a `generateName` but no name. True if it did, so that the caller may try again with another
/// suffix when the name is taken.
pub fn apply_generate_name(object: &mut Value, suffix: &str) -> bool {
    if !generates_name(object) {
        return false;
    }
    let name = generate_name(access::text(object, "generateName"), suffix);
    access::set_name(object, &name);
    true
}
