//! Compaction of etcd's history older than one interval, as in kube-apiserver. One of several coordinators does it.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::EtcdState;
use super::grpc::CallError;
use super::wire::{
    COMPACT, CompactionRequest, CompactionResponse, Compare, CompareTarget, PutRequest, RangeRequest, Request,
    RequestOp, Response, TARGET_VERSION, TxnRequest,
};

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
                request: Some(Request::Range(look)),
            }],
        };
        let answer = shared.endpoints.txn(&txn).await?;
        let before = std::mem::replace(&mut self.revision, answer.header.unwrap_or_default().revision);
        if !answer.succeeded {
            let found = answer.responses.into_iter().find_map(|each| match each.response {
                Some(Response::Range(range)) => range.kvs.into_iter().next(),
                _ => None,
            });
            self.version = found.map_or(0, |kv| kv.version);
            return Ok(());
        }
        self.version += 1;
        if before == 0 {
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
}
