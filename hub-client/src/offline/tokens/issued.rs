//! Service accounts of the tokens that the cloud issued through this hub.
//!
//! After a restart without the cloud a pod may have a token that was never used: the kubelet renewed it, and the cloud
//! was lost before the pod read it. The hub knows whose token it is, since the cloud's answer passed it. Tokens for
//! other audiences than kube-apiserver are none of its users.

use std::collections::HashMap;

use ring::digest::{SHA256, digest};
use serde_json::Value;

/// Maximum number of tokens; above it the one that was issued longest ago is forgotten.
const ISSUED_MAX: usize = 4096;

/// Digests of tokens with their service accounts.
#[derive(Default)]
pub(super) struct Issued {
    rows: HashMap<[u8; 32], Row>,
    /// Number of the last answer.
    last: u64,
}

struct Row {
    /// User name.
    account: String,
    /// Unix time at which the token ends, s.
    expires: i64,
    /// Number of the answer that had it.
    number: u64,
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
        self.last += 1;
        let row = Row {
            account,
            expires,
            number: self.last,
        };
        self.rows.insert(key(token), row);
        if self.rows.len() > ISSUED_MAX {
            let first = self.rows.iter().min_by_key(|(_, row)| row.number);
            if let Some(first) = first.map(|(key, _)| *key) {
                self.rows.remove(&first);
            }
        }
    }

    /// Returns the user name of a token; `None` if it did not pass, or has ended.
    pub(super) fn account(&self, token: &str, now: i64) -> Option<String> {
        let row = self.rows.get(&key(token)).filter(|row| row.expires > now)?;
        Some(row.account.clone())
    }

    /// Forgets one token.
    pub(super) fn forget(&mut self, token: &str) {
        self.rows.remove(&key(token));
    }

    /// Forgets tokens that have ended.
    pub(super) fn erase(&mut self, now: i64) {
        self.rows.retain(|_, row| row.expires > now);
    }

    /// Forgets all tokens.
    pub(super) fn clear(&mut self) {
        self.rows.clear();
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
        assert!(issued.rows.is_empty());
    }

    /// Those that end last come first, as the tokens of pods for a year do beside short ones.
    #[test]
    fn tokens_are_bounded_and_the_one_issued_longest_ago_gives_way() {
        let mut issued = Issued::default();
        let last = ISSUED_MAX + 10;
        let mut learn = |number: usize| {
            let ends = 1 + last - number;
            issued.learn(&json!(["shop", "web", []]), &number.to_string(), ends as i64);
        };
        (0..ISSUED_MAX).for_each(&mut learn);
        learn(0);
        (ISSUED_MAX..last).for_each(&mut learn);
        let known = |number: usize| issued.account(&number.to_string(), 0).is_some();
        assert_eq!([0, 1, 10, 11, last - 1].map(known), [true, false, false, true, true]);
        assert_eq!((0..last).filter(|number| known(*number)).count(), ISSUED_MAX);
    }
}
