//! Lets etcd forget what is older than one interval, as kube-apiserver does; of several coordinators one does it.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::Shared;
use super::grpc::CallError;
use super::wire::{
    COMPACT, CompactionRequest, CompactionResponse, Compare, PutRequest, RangeRequest, Request, RequestOp, Response,
    TARGET_VERSION, Target, TxnRequest,
};

/// Counts the compactions: whoever writes it next does the next one.
const KEY: &str = "~compactions";

/// What is known of the compactions so far.
#[derive(Default)]
struct Turn {
    /// Writes of [`KEY`] so far.
    version: i64,
    /// The store's revision at the last look.
    revision: i64,
}

/// Compacts every `interval` until asked to stop.
pub(super) async fn run(shared: Arc<Shared>, interval: Duration, stop: CancellationToken) {
    let mut turn = Turn::default();
    while stop.run_until_cancelled(tokio::time::sleep(interval)).await.is_some() {
        if let Err(error) = turn.take(&shared).await {
            tracing::warn!(%error, "etcd could not be compacted, trying again later");
        }
    }
}

// === impl Turn ===

impl Turn {
    /// Forgets what was there at the last look, unless somebody else has looked since.
    async fn take(&mut self, shared: &Shared) -> Result<(), CallError> {
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
                value: Some(Target::Version(self.version)),
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
            // Somebody compacted further, by hand or by etcd's own schedule.
            Err(CallError::Refused { code: 11, .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
