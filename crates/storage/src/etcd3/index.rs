//! Answers "has everything that others were acknowledged been published here?": one read at etcd for all who ask together.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::ResourceVersion;

use super::Shared;
use crate::backend::StorageError;

/// Most who wait for the next read.
pub(super) const WAITING_MAX: usize = 1024;
/// Most answered by one read.
const TOGETHER_MAX: usize = WAITING_MAX;
/// The watch gets this long to reach what etcd has.
const REACH_TIMEOUT: Duration = Duration::from_secs(3);
/// A revision that is none of ours is only told when asked for; etcd has to be asked again while it is busy.
const ASK_EVERY: Duration = Duration::from_millis(10);

/// Somebody who wants to know.
pub(super) type Waiting = oneshot::Sender<Result<ResourceVersion, StorageError>>;

/// Serves until asked to stop.
pub(super) async fn run(shared: Arc<Shared>, mut queue: mpsc::Receiver<Waiting>, stop: CancellationToken) {
    let mut waiting = Vec::new();
    while let Some(taken) = stop
        .run_until_cancelled(queue.recv_many(&mut waiting, TOGETHER_MAX))
        .await
    {
        if taken == 0 {
            return;
        }
        // Whoever asks from here on waits for the next read: this one may be too old for them.
        let answer = reach(&shared).await;
        for one in waiting.drain(..) {
            // Somebody who went away needs no answer.
            let _ = one.send(answer.clone());
        }
    }
}

async fn reach(shared: &Shared) -> Result<ResourceVersion, StorageError> {
    let now = shared.identity().await.map_err(|error| super::error::of_read(&error))?;
    if let Some(why) = shared.identity.contradicts(&now) {
        return Err(StorageError::Unavailable(why));
    }
    let wanted = now.revision;
    let mut published = shared.published.subscribe();
    let reached = async {
        loop {
            if *published.borrow_and_update() >= wanted {
                return;
            }
            shared.asked.notify_one();
            // An unpublished revision is either on its way or not ours.
            let _ = tokio::time::timeout(ASK_EVERY, published.changed()).await;
        }
    };
    match tokio::time::timeout(REACH_TIMEOUT, reached).await {
        Ok(()) => Ok(shared.layout.rv(*shared.published.borrow())),
        Err(_) => Err(StorageError::Unavailable(format!(
            "etcd is at revision {wanted}, its watch has told {} so far",
            *shared.published.borrow()
        ))),
    }
}
