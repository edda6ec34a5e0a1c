//! The feed: the leader's calls, the coordinator's answers, and the rules by which calls are applied.
//!
//! In reading order: [`encode`] and [`calls`] (each call as written by the leader and as read by the coordinator),
//! [`answer`], [`events`] and [`snapshot`] (rules), [`status`] and [`report`] (what the members poll and post).

pub mod answer;
pub mod calls;
pub mod encode;
pub mod events;
pub mod report;
pub mod snapshot;
pub mod status;

use yurt_apimachinery::query::Query;
use yurt_apimachinery::{Status, nesting};

pub use answer::{FeedAnswer, Progress, Refusal, reason};
pub use calls::{BodiesCall, EventsCall, SnapshotCall};
pub use encode::{Envelope, IndexPart, as_events, batches, chunks, index_parts};
pub use status::{CollectionStatus, OpenReport, PoolStatus, ScopeStatus};

/// Version of the feed's calls that a hub speaks; every call carries it.
pub const VERSION: u64 = 1;
/// Versions of the feed's calls that a coordinator speaks.
pub const VERSIONS: [u64; 1] = [1];
/// Compressions of the feed's bodies that a coordinator accepts.
pub const ENCODINGS: [&str; 1] = ["gzip"];

/// Checks if a call with this query is in a version that is spoken here. Runs before its body is read: in another
/// version the body may have another meaning.
///
/// # Errors
/// 409 `version`: the versions of each side, and the side to upgrade.
pub fn check_version(query: Option<&str>) -> Result<(), Refusal> {
    let asked = Query::parse(query).get("version").map(str::to_owned);
    let version = asked.as_deref().and_then(|text| text.parse::<u64>().ok());
    if version.is_some_and(|version| VERSIONS.contains(&version)) {
        return Ok(());
    }
    let caller = asked.map_or_else(|| "none at all".to_owned(), |asked| format!("version {asked:?}"));
    let is_newer = version.is_some_and(|version| VERSIONS.iter().all(|ours| *ours < version));
    let older = if is_newer {
        "this coordinator"
    } else {
        "the hub that called"
    };
    let message = format!(
        "this coordinator speaks {VERSIONS:?} of the feed's versions, the calling hub {caller}; upgrade {older}"
    );
    Err(Refusal::Version { message })
}

/// Parses the body of a call.
///
/// # Errors
/// 400.
pub fn decode<'a, T: serde::Deserialize<'a>>(body: &'a [u8]) -> Result<T, Status> {
    let refused = |error: &dyn std::fmt::Display| Status::bad_request(format!("not a feed message: {error}"));
    nesting::check(body).map_err(|error| refused(&error))?;
    serde_json::from_slice(body).map_err(|error| refused(&error))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn calls_of_another_version_are_refused_and_told_which_side_to_upgrade() {
        assert_eq!(check_version(Some("version=1")), Ok(()));
        let refused = |query| check_version(query).unwrap_err().to_json();
        for (query, older) in [
            (None, "upgrade the hub"),
            (Some("version=0"), "upgrade the hub"),
            (Some("version=x"), "upgrade the hub"),
            (Some("version=2"), "upgrade this coordinator"),
        ] {
            let refusal = refused(query);
            assert_eq!(
                (&refusal["reason"], &refusal["versions"]),
                (&json!("version"), &json!([1]))
            );
            let message = refusal["message"].as_str().unwrap();
            assert!(message.contains(older) && message.contains("speaks [1]"), "{message}");
        }
    }
}
