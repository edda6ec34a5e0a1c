//! Service accounts of the tokens that the cloud issued through this hub.
//!
//! After a restart without the cloud a pod may have a token that was never used: the kubelet renewed it, and the cloud
//! was lost before the pod read it. The hub knows whose token it is, since the cloud's answer passed it. Tokens for
//! other audiences than kube-apiserver are none of its users.

use std::collections::HashMap;

use ring::digest::{SHA256, digest};
use serde_json::Value;

/// Maximum number of tokens; above it the one that ends first is forgotten.
const ISSUED_MAX: usize = 4096;

/// Digests of tokens with their service accounts.
#[derive(Default)]
pub(super) struct Issued(HashMap<[u8; 32], Row>);

struct Row {
    /// User name.
    account: String,
    /// Unix time at which the token ends, s.
    expires: i64,
}

// === impl Issued ===

impl Issued {
    /// Records the token of an answer to `subject`: namespace, name, audiences, …
    pub(super) fn learn(&mut self, subject: &Value, token: &str, expires: i64) {
        let is_of_cluster = subject[2].as_array().is_some_and(Vec::is_empty);
        let (Some(namespace), Some(name), true) = (subject[0].as_str(), subject[1].as_str(), is_of_cluster) else {
            return;
        };
        let account = format!("system:serviceaccount:{namespace}:{name}");
        if self.0.len() >= ISSUED_MAX {
            let first = self.0.iter().min_by_key(|(_, row)| row.expires);
            if let Some(first) = first.map(|(key, _)| *key) {
                self.0.remove(&first);
            }
        }
        self.0.insert(key(token), Row { account, expires });
    }

    /// Returns the user name of a token; `None` if it did not pass, or has ended.
    pub(super) fn account(&self, token: &str, now: i64) -> Option<String> {
        let row = self.0.get(&key(token)).filter(|row| row.expires > now)?;
        Some(row.account.clone())
    }

    /// Forgets one token.
    pub(super) fn forget(&mut self, token: &str) {
        self.0.remove(&key(token));
    }

    /// Forgets tokens that have ended.
    pub(super) fn erase(&mut self, now: i64) {
        self.0.retain(|_, row| row.expires > now);
    }

    /// Forgets all tokens.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

fn key(token: &str) -> [u8; 32] {
    let mut key = [0; 32];
    key.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
    key
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tokens_for_the_cluster_are_known_until_they_end() {
        let mut issued = Issued::default();
        issued.learn(&json!(["shop", "web", [], 3607]), "t1", 100);
        issued.learn(&json!(["shop", "web", ["vault"], 3607]), "t2", 100);
        assert_eq!(
            issued.account("t1", 99).as_deref(),
            Some("system:serviceaccount:shop:web")
        );
        for (token, now) in [("t1", 100), ("t2", 0), ("t3", 0), ("", 0)] {
            assert_eq!(issued.account(token, now), None, "{token} at {now}");
        }
        issued.learn(&json!(["shop", "db", []]), "t4", 200);
        issued.erase(100);
        assert!(issued.account("t1", 0).is_none() && issued.account("t4", 0).is_some());
        issued.forget("t4");
        assert!(issued.0.is_empty());
    }

    #[test]
    fn tokens_are_bounded() {
        let mut issued = Issued::default();
        for number in 0..ISSUED_MAX as i64 + 10 {
            issued.learn(&json!(["shop", "web", []]), &number.to_string(), 1 + number);
        }
        assert_eq!(issued.0.len(), ISSUED_MAX);
        assert_eq!(
            (issued.account("9", 0), issued.account("10", 0).is_some()),
            (None, true)
        );
    }
}
