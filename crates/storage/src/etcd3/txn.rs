//! Transactions of this crate as etcd's, and etcd's answers as results. Pure.
//!
//! Preconditions become compares of the mod revision. If one fails, the other branch reads every key with a
//! precondition in the same step, so that the conflict names the RV found.

use bytes::Bytes;
use yurt_apimachinery::ResourceVersion;

use super::timeline::Timeline;
use super::wire::{
    Compare, CompareTarget, DeleteRangeRequest, PutRequest, RangeRequest, Request, RequestOp, Response, TARGET_MOD,
    TxnRequest, TxnResponse,
};
use crate::backend::{Action, Expect, Op, StorageError};

/// Location of the store's keys in etcd, and mapping of revisions to RVs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Prefix of every key; without a slash at its end.
    pub(super) prefix: String,
    /// Set in every RV: [`ResourceVersion::OWN_BIT`] if the process also holds pool data, else 0.
    pub(super) tag: u64,
    /// Offset of the revisions.
    pub(super) timeline: Timeline,
}

/// Outcome of a transaction that etcd decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Written {
    /// The store's revision afterwards.
    pub(super) revision: i64,
    /// True if the transaction wrote a revision of its own, which a watch will deliver.
    pub(super) is_new: bool,
}

// === impl Layout ===

impl Layout {
    /// `key` as a key of etcd.
    pub(super) fn key(&self, key: &str) -> Bytes {
        format!("{}{key}", self.prefix).into()
    }

    /// A key of this store, from etcd's; `None` for keys of others.
    pub(super) fn own_key(&self, key: &[u8]) -> Option<String> {
        let key = std::str::from_utf8(key).ok()?;
        key.strip_prefix(&self.prefix).map(str::to_owned)
    }

    /// First key of this store, and the first key behind its keys.
    pub(super) fn bounds(&self) -> (Bytes, Bytes) {
        // '0' follows '/'.
        (format!("{}/", self.prefix).into(), format!("{}0", self.prefix).into())
    }

    /// A revision as an RV.
    pub(super) fn rv(&self, revision: i64) -> ResourceVersion {
        ResourceVersion(self.tag | self.timeline.number(revision))
    }

    /// Floor of readers: those below it have seen a history that etcd lost.
    pub(super) fn floor(&self) -> ResourceVersion {
        match self.timeline.floor() {
            0 => ResourceVersion::ZERO,
            floor => ResourceVersion(self.tag | floor),
        }
    }

    /// The revision of an RV of this store; for a number of the other space, a revision of no commit.
    fn revision(&self, rv: ResourceVersion) -> i64 {
        if rv.0 & ResourceVersion::OWN_BIT == self.tag {
            self.timeline.revision(rv.0 & !self.tag).unwrap_or(i64::MAX)
        } else {
            i64::MAX
        }
    }

    /// `ops` as one transaction.
    pub(super) fn request(&self, ops: &[Op]) -> TxnRequest {
        let mut txn = TxnRequest::default();
        for op in ops {
            let key = self.key(&op.key);
            let revision = match op.expect {
                Expect::Any => None,
                Expect::Absent => Some(0),
                Expect::At(rv) => Some(self.revision(rv)),
            };
            if let Some(revision) = revision {
                txn.compare.push(Compare {
                    target: TARGET_MOD,
                    key: key.clone(),
                    value: Some(CompareTarget::ModRevision(revision)),
                });
                let look = RangeRequest {
                    key: key.clone(),
                    keys_only: true,
                    ..RangeRequest::default()
                };
                txn.failure.push(request(Request::Range(look)));
            }
            match &op.action {
                Action::Put(value, _) => {
                    let value = value.bytes().clone();
                    txn.success.push(request(Request::Put(PutRequest { key, value })));
                }
                Action::Delete { .. } => txn.success.push(request(Request::Delete(DeleteRangeRequest { key }))),
                Action::Check => {}
            }
        }
        txn
    }

    /// The answer to [`Self::request`] of the same `ops`.
    ///
    /// # Errors
    /// [`StorageError::Conflict`] with the first key that was not as expected.
    pub(super) fn outcome(&self, ops: &[Op], answer: &TxnResponse) -> Result<Written, StorageError> {
        if !answer.succeeded {
            return Err(self.conflict(ops, answer));
        }
        let changed = |response: &Option<Response>| match response {
            Some(Response::Put(_)) => true,
            Some(Response::Delete(gone)) => gone.deleted > 0,
            Some(Response::Range(_)) | None => false,
        };
        Ok(Written {
            revision: answer.header.unwrap_or_default().revision,
            is_new: answer.responses.iter().any(|each| changed(&each.response)),
        })
    }

    fn conflict(&self, ops: &[Op], answer: &TxnResponse) -> StorageError {
        let expecting = ops.iter().filter(|op| op.expect != Expect::Any);
        for (op, looked) in expecting.zip(&answer.responses) {
            let Some(Response::Range(range)) = &looked.response else {
                continue;
            };
            let found = range.kvs.first().map(|kv| self.rv(kv.mod_revision));
            let holds = match op.expect {
                Expect::Absent => found.is_none(),
                Expect::At(rv) => found == Some(rv),
                Expect::Any => true,
            };
            if !holds {
                let key = op.key.clone();
                return StorageError::Conflict { key, found };
            }
        }
        StorageError::Unavailable("etcd rejected a transaction whose preconditions hold".into())
    }
}

fn request(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd3::wire::{KeyValue, RangeResponse, ResponseOp};

    const OWN: Layout = Layout {
        prefix: String::new(),
        tag: ResourceVersion::OWN_BIT,
        timeline: Timeline {
            id: String::new(),
            offset: 0,
            since: 0,
            cluster: 0,
        },
    };

    fn check(key: &str, expect: Expect) -> Op {
        Op {
            key: key.into(),
            expect,
            action: Action::Check,
        }
    }

    #[test]
    fn tagged_rvs_are_compared_as_revisions() {
        let op = check("/a/b", Expect::At(OWN.rv(7)));
        let txn = OWN.request(&[op]);
        assert_eq!(txn.compare[0].value, Some(CompareTarget::ModRevision(7)));
        let foreign = check("/a/b", Expect::At(ResourceVersion(7)));
        assert_ne!(
            OWN.request(&[foreign]).compare[0].value,
            Some(CompareTarget::ModRevision(7))
        );
    }

    #[test]
    fn bounds_of_our_keys_exclude_the_neighbours() {
        let ours = Layout {
            prefix: "/yurt/dev".to_owned(),
            ..OWN
        };
        let (first, behind) = ours.bounds();
        let is_inside = |key: &str| first <= key && behind > key;
        assert!(is_inside("/yurt/dev/pods/x/a") && is_inside("/yurt/dev/\u{10ffff}"));
        for other in [
            "/yurt/dev",
            "/yurt/dev-2/pods/x/a",
            "/yurt/dev.2/a",
            "/yurt/dev0/a",
            "/yurt/device/a",
            "/yurt/de/a",
        ] {
            assert!(!is_inside(other), "{other}");
        }
        let key = ours.key("/pods/dev/a");
        assert!(is_inside(std::str::from_utf8(&key).unwrap()));
        assert_eq!(ours.own_key(&key).as_deref(), Some("/pods/dev/a"));
    }

    #[test]
    fn conflict_names_the_first_key_that_differs() {
        let looked = |revision: Option<i64>| {
            let kvs = revision.map(|mod_revision| KeyValue {
                mod_revision,
                ..KeyValue::default()
            });
            let range = RangeResponse {
                kvs: kvs.into_iter().collect(),
                ..RangeResponse::default()
            };
            ResponseOp {
                response: Some(Response::Range(range)),
            }
        };
        let ops = [
            check("/a", Expect::Absent),
            check("/b", Expect::Any),
            check("/c", Expect::At(OWN.rv(4))),
        ];
        let answer = TxnResponse {
            responses: vec![looked(None), looked(Some(5))],
            ..TxnResponse::default()
        };
        let conflict = StorageError::Conflict {
            key: "/c".into(),
            found: Some(OWN.rv(5)),
        };
        assert_eq!(OWN.outcome(&ops, &answer), Err(conflict));
    }
}
