//! Read index: waits until everything acknowledged to other coordinators is published here. One read at etcd serves all
//! concurrent callers.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::ResourceVersion;

use super::{EtcdState, Unverified};
use crate::backend::StorageError;

/// Maximum number of callers that wait for the next read.
pub(super) const WAITING_MAX: usize = 1024;
/// Maximum number of callers served by one read.
const TOGETHER_MAX: usize = WAITING_MAX;
/// Time limit for the watch to reach etcd's revision.
const REACH_TIMEOUT: Duration = Duration::from_secs(3);
/// Interval of progress requests. A revision without keys of this store arrives only as requested progress, and a busy
/// etcd may need several requests.
const ASK_EVERY: Duration = Duration::from_millis(10);

/// Channel to a waiting caller.
pub(super) type Waiting = oneshot::Sender<Result<ResourceVersion, StorageError>>;

/// Serves callers until `stop`.
pub(super) async fn run(shared: Arc<EtcdState>, mut queue: mpsc::Receiver<Waiting>, stop: CancellationToken) {
    let mut waiting = Vec::new();
    while let Some(taken) = stop
        .run_until_cancelled(queue.recv_many(&mut waiting, TOGETHER_MAX))
        .await
    {
        if taken == 0 {
            return;
        }
        // Later callers wait for the next read: this one may be too old for them.
        let answer = reach(&shared).await;
        for one in waiting.drain(..) {
            // A caller that went away needs no answer.
            let _ = one.send(answer.clone());
        }
    }
}

async fn reach(shared: &EtcdState) -> Result<ResourceVersion, StorageError> {
    let now = shared.identity().await.map_err(|unverified| match unverified {
        Unverified::Unanswered(error) => super::error::of_read(&error),
        Unverified::Other(why) => StorageError::Unavailable(why),
    });
    let wanted = now?.revision;
    let mut published = shared.published.subscribe();
    let reached = async {
        loop {
            if *published.borrow_and_update() >= wanted {
                return;
            }
            shared.asked.notify_one();
            // An unpublished revision is either on its way or contains no key of this store.
            let _ = tokio::time::timeout(ASK_EVERY, published.changed()).await;
        }
    };
    match tokio::time::timeout(REACH_TIMEOUT, reached).await {
        Ok(()) => Ok(shared.layout.rv(*shared.published.borrow())),
        Err(_) => Err(StorageError::Unavailable(format!(
            "etcd is at revision {wanted}, its watch has delivered {} so far",
            *shared.published.borrow()
        ))),
    }
}
