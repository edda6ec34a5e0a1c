//! Compaction of etcd's history older than one interval, as in kube-apiserver. One of several coordinators does it.
//! While etcd has no space, each does: etcd compacts then, and refuses the record of whose turn it is.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::grpc::CallError;
use super::wire::{
    COMPACT, CompactionRequest, CompactionResponse, Compare, CompareTarget, PutRequest, RangeRequest, RangeResponse,
    Request, RequestOp, Response, TARGET_VERSION, TxnRequest,
};
use super::{EtcdState, error};
use crate::backend::StorageError;

/// Counter of the compactions: the next coordinator to write it does the next compaction.
const KEY: &str = "~compactions";

/// State of the compactions so far.
#[derive(Default)]
struct Turn {
    /// Writes of [`KEY`] so far.
    version: i64,
    /// The store's revision at the last check.
    revision: i64,
}

/// Compacts every `interval` until `stop`.
pub(super) async fn run(shared: Arc<EtcdState>, interval: Duration, stop: CancellationToken) {
    let mut turn = Turn::default();
    while stop.run_until_cancelled(tokio::time::sleep(interval)).await.is_some() {
        if let Err(error) = turn.take(&shared).await {
            tracing::warn!(%error, "Failed to compact etcd; trying again later");
        }
    }
}

// === impl Turn ===

impl Turn {
    /// Compacts history up to the revision of the last check, unless another coordinator has done so since.
    async fn take(&mut self, shared: &EtcdState) -> Result<(), CallError> {
        let before = self.revision;
        if !self.claim(shared).await? || before == 0 {
            return Ok(());
        }
        let request = CompactionRequest { revision: before };
        match shared
            .endpoints
            .call::<CompactionResponse>(COMPACT, &request, true)
            .await
        {
            Ok(_) => {
                tracing::debug!(revision = before, "etcd compacted");
                Ok(())
            }
            // Another client compacted further, by hand or by etcd's own schedule.
            Err(CallError::Refused { code: 11, .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Records this compaction and etcd's present revision. Returns true if it is this coordinator's turn.
    async fn claim(&mut self, shared: &EtcdState) -> Result<bool, CallError> {
        let key = shared.layout.key(KEY);
        let put = PutRequest {
            key: key.clone(),
            value: self.revision.to_string().into(),
        };
        let look = RangeRequest {
            key: key.clone(),
            ..RangeRequest::default()
        };
        let txn = TxnRequest {
            compare: vec![Compare {
                target: TARGET_VERSION,
                key,
                value: Some(CompareTarget::Version(self.version)),
            }],
            success: vec![RequestOp {
                request: Some(Request::Put(put)),
            }],
            failure: vec![RequestOp {
                request: Some(Request::Range(look.clone())),
            }],
        };
        let answer = match shared.endpoints.txn(&txn).await {
            Err(error) if matches!(error::of_write(&error), StorageError::Full(_)) => {
                let found = shared.endpoints.range(&look).await?;
                self.note(found);
                return Ok(true);
            }
            answer => answer?,
        };
        if answer.succeeded {
            self.revision = answer.header.unwrap_or_default().revision;
            self.version += 1;
            return Ok(true);
        }
        let found = answer.responses.into_iter().find_map(|each| match each.response {
            Some(Response::Range(range)) => Some(range),
            _ => None,
        });
        self.note(RangeResponse {
            header: answer.header,
            ..found.unwrap_or_default()
        });
        Ok(false)
    }

    fn note(&mut self, found: RangeResponse) {
        self.revision = found.header.unwrap_or_default().revision;
        self.version = found.kvs.first().map_or(0, |kv| kv.version);
    }
}
