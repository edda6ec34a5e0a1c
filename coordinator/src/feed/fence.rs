//! The epoch record in the store: its key, and the precondition on it.
//!
//! The record lies next to the election lease and changes, in the same transaction, only when the holder does. The
//! fence (`yurt_pool_protocol::fence`) follows it at publication, before readers see the lease.

use yurt_pool_protocol::fence::Election;
use yurt_storage::{Action, Expect, Op};

/// Storage key of the epoch record. `~` keeps it apart from every collection.
pub(crate) const EPOCH_KEY: &str = "/~epochs/kube-system/yurthub";

/// Precondition for writes of data in the store: no other node has been elected.
pub(crate) fn guard(election: &Election) -> Option<Op> {
    election.record.map(|rv| Op {
        key: EPOCH_KEY.to_owned(),
        expect: Expect::At(rv),
        action: Action::Check,
    })
}
