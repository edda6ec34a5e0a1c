//! Life of the encodings that lists share: while lists use them.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use yurt_codec::encoding_cache;
use yurt_runtime::memory;

/// Time after which an encoding that no list used is released; within twice this time it is.
///
/// Clients that reconnect after an outage list within seconds. A client that starts alone pays for the encoding again.
const UNUSED_MAX: Duration = Duration::from_secs(10);

/// Releases cached encodings that no list uses, until `token` is cancelled.
pub async fn release_encodings(token: CancellationToken) {
    let elapsed = || token.run_until_cancelled(tokio::time::sleep(UNUSED_MAX));
    while elapsed().await.is_some() {
        // The allocator blocks for a while.
        let release = || {
            memory::return_rest();
            memory::note_freed(encoding_cache::release_unused());
        };
        let _ = tokio::task::spawn_blocking(release).await;
    }
}
