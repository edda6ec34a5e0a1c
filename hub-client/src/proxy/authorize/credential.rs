//! Keyed hashes of callers and their reviews, and the expiry of credentials.

use ring::hmac;
use serde_json::{Value, json};

use crate::offline::tokens::claims;
use crate::proxy::caller::Credential;

/// HMAC-SHA-256 under a [`Salt`].
pub type Hash = [u8; 32];

/// Key of one review of one caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Hash of the caller.
    pub caller: Hash,
    /// Hash of the attributes; different for every caller.
    pub question: Hash,
}

/// Secret of one file: hashes of two files cannot be compared.
#[derive(Clone)]
pub struct Salt {
    bytes: [u8; 32],
    key: hmac::Key,
}

// === impl Key ===

impl From<(Hash, Hash)> for Key {
    fn from((caller, question): (Hash, Hash)) -> Self {
        Self { caller, question }
    }
}

// === impl Salt ===

impl Salt {
    /// Creates the salt of a file.
    #[must_use]
    pub fn new(bytes: [u8; 32]) -> Self {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &bytes);
        Self { bytes, key }
    }

    /// Returns the bytes as stored in the file.
    #[must_use]
    pub fn bytes(&self) -> &[u8; 32] {
        &self.bytes
    }

    /// Returns the key of a review.
    #[must_use]
    pub fn key(&self, credential: &Credential, attributes: &Value) -> Key {
        let caller = match credential {
            Credential::Node => json!(["node"]),
            Credential::Token(token) => json!(["token", token]),
            Credential::Certificate { user, groups } => json!(["certificate", user, groups]),
        };
        self.key_of(&caller, attributes)
    }

    /// Returns the key of a review for all tokens of a service account.
    #[must_use]
    pub fn account_key(&self, account: &str, attributes: &Value) -> Key {
        self.key_of(&json!(["account", account]), attributes)
    }

    fn key_of(&self, caller: &Value, attributes: &Value) -> Key {
        let caller = self.hash(caller.to_string().as_bytes());
        let question = self.hash(&[&caller[..], attributes.to_string().as_bytes()].concat());
        Key { caller, question }
    }

    fn hash(&self, bytes: &[u8]) -> Hash {
        let mut hash = Hash::default();
        hash.copy_from_slice(hmac::sign(&self.key, bytes).as_ref());
        hash
    }
}

/// Returns the Unix second at which a credential expires, if it says so itself. A token's claim is not verified: it can
/// only shorten the time.
#[must_use]
pub fn ends_at(credential: &Credential) -> Option<i64> {
    match credential {
        Credential::Token(token) => claims::ends_at(token),
        Credential::Node | Credential::Certificate { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_caller_question_and_file_has_hashes_of_its_own() {
        let of = |user: &str, groups: &[&str]| Credential::Certificate {
            user: user.to_owned(),
            groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        };
        let callers = [
            of("jane", &["dev"]),
            of("jane", &["dev", "ops"]),
            of("jane", &["dev\nops"]),
            of("jane\ndev", &[]),
            of("jane", &[]),
            Credential::Token("jane".to_owned()),
            Credential::Node,
        ];
        let salts = [Salt::new([1; 32]), Salt::new([2; 32])];
        let (list, watch) = (json!({"verb": "list"}), json!({"verb": "watch"}));
        let mut seen = std::collections::BTreeSet::new();
        for (salt, caller) in salts
            .iter()
            .flat_map(|salt| callers.iter().map(move |caller| (salt, caller)))
        {
            let (one, other) = (salt.key(caller, &list), salt.key(caller, &watch));
            assert_eq!(one.caller, other.caller);
            for hash in [one.caller, one.question, other.question] {
                assert!(seen.insert(hash), "{caller:?}");
            }
        }
    }
}
