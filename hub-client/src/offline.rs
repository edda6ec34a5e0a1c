//! Reads and writes while the cloud is away, other than those of replicas.
//!
//! | request | answer without the cloud |
//! |---|---|
//! | discovery documents; objects that a cacheable component read by name | the cloud's last answer ([`answers`], [`kept_read`]) |
//! | creation of the own Node by a kubelet that restarted | 409 AlreadyExists, if the Node is held ([`own::registration`]) |
//! | status of the own Node and of pods on it | 200, sent to the cloud later ([`own`]) |
//! | events of the node | 201 or 200, sent to the cloud later ([`events`]) |
//! | token of a service account for the node | the last real one while it is valid ([`tokens`]) |
//! | everything else, and each dry run | 503 with `Retry-After` |
//!
//! Records on the disk have one format ([`record`], [`shelf`]). The proxy asks these parts after it found the
//! cloud away (`proxy/offline.rs`); requests that the cloud answers pass unchanged.

pub mod answers;
pub mod autonomy;
mod backlog;
pub mod events;
pub mod kept_read;
pub mod own;
pub mod record;
pub(crate) mod reply;
pub mod shelf;
pub mod tokens;

use std::time::Duration;

use http::{StatusCode, Uri};
use yurt_apimachinery::query::Query;
use yurt_apimachinery::{RequestInfo, Status};

/// Maximum bytes of all answers of a kind that are copied at the same time.
const COPIES_MAX: usize = 8 << 20;
/// Maximum time of an attempt to send a kept write to a cloud that is not up.
pub(crate) const SEND_AWAY_MAX: Duration = Duration::from_secs(5);
/// Maximum time of such an attempt at a cloud that is up: a webhook may take 10 s, and the other writes wait.
pub(crate) const SEND_UP_MAX: Duration = Duration::from_secs(20);

/// True for a write that shall store nothing. Only the cloud can tell its outcome, so nothing here answers it, and its
/// answer is not kept: it is no state of the object.
pub(crate) fn is_dry_run(info: &RequestInfo, uri: &Uri) -> bool {
    !info.verb.is_read_only() && Query::parse(uri.query()).get("dryRun").is_some()
}

/// True for a failure to send a request. The cloud may have acted on it after 504, so only what can be repeated without
/// harm is answered here.
pub(crate) fn is_away(status: &Status) -> bool {
    matches!(status.code(), 503 | 504)
}

/// True for the answer of a proxy in front of a cloud that does not answer.
pub(crate) fn is_of_gateway(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT
    )
}
