//! A permit among the requests in flight.

use yurt_apimachinery::{RequestInfo, Status};
use yurt_pool_protocol::names::FEED_PATH;

use crate::app::App;
use crate::authn::{MASTERS, User};
use crate::fair_queue::Permit;

/// A permit, possibly after a wait. Leases, the feed and administrators need none.
///
/// # Errors
/// 429 when too many requests wait.
pub(super) async fn enter(app: &App, user: &User, info: &RequestInfo) -> Result<Option<Permit>, Status> {
    let is_lease = info.is_resource && info.group == "coordination.k8s.io" && info.resource == "leases";
    let is_feed = info.path.starts_with(FEED_PATH);
    if is_lease || is_feed || user.is_in(MASTERS) {
        return Ok(None);
    }
    let queues = &app.filters.fair_queues;
    let queue = if info.verb.is_read_only() {
        &queues.reads
    } else {
        &queues.writes
    };
    queue.enter(&user.name).await.map(Some)
}
