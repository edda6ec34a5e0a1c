//! Deletes events that have lived for `--event-ttl`; watchers get an event for each deletion.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::time::{MicroTime, Time};
use yurt_apimachinery::{Object, ResourceVersion};
use yurt_runtime::UnixTime;

use super::elapsed;
use crate::app::App;
use crate::registry::own::Intent;

/// Bounds of the interval between searches for expired events, which is a quarter of their time to live.
const EXPIRE_EVERY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Maximum number of deletions of expired events in flight; they share commits.
const EXPIRE_AT_ONCE: usize = 64;

/// Evidence of the time of an event's last write.
#[derive(Clone, Copy, Debug)]
enum Evidence {
    /// Its RV, which is that time in microseconds.
    Rv,
    /// Its own times. An RV of etcd is the start of the store's timeline and the commits since.
    Times,
}

/// Deletes expired events until `stop`.
pub(super) async fn run(app: Arc<App>, intent: Intent, stop: CancellationToken) {
    let Some(resource) = app.served().registry.find("", "events").cloned() else {
        return stop.cancelled().await;
    };
    let evidence = match app.own.is_shared() {
        true => Evidence::Times,
        false => Evidence::Rv,
    };
    let every = (app.settings.event_ttl / 4).clamp(EXPIRE_EVERY.0, EXPIRE_EVERY.1);
    while elapsed(every, &stop).await {
        let now = app.clock.unix();
        let expired: Vec<Object> = resource.objects().read(|held| {
            held.objects()
                .filter(|event| is_expired(event, evidence, now, app.settings.event_ttl))
                .cloned()
                .collect()
        });
        for some in expired.chunks(EXPIRE_AT_ONCE) {
            let delete = |event: &Object| app.own.delete_unchanged(&resource, event.clone(), &intent);
            // An event that changed since the search lives on; a failed deletion is tried again.
            futures_util::future::join_all(some.iter().map(delete)).await;
        }
    }
}

/// True if an event has lived for `ttl` since its last write.
fn is_expired(event: &Object, evidence: Evidence, now: UnixTime, ttl: Duration) -> bool {
    let written = match evidence {
        Evidence::Rv => {
            let micros = event.resource_version().0 & !ResourceVersion::OWN_BIT;
            i64::try_from(micros / 1_000_000).unwrap_or(i64::MAX)
        }
        Evidence::Times => last_seen(&event.to_value(), now),
    };
    u64::try_from(now.secs.saturating_sub(written)).is_ok_and(|lived| lived >= ttl.as_secs())
}

/// The latest of an event's times that is not in the future; the time of its creation if all of them are. The clock of
/// the coordinator that created it may be ahead.
fn last_seen(event: &Value, now: UnixTime) -> i64 {
    const CREATED: &str = "/metadata/creationTimestamp";
    const TIMES: [&str; 4] = [CREATED, "/lastTimestamp", "/eventTime", "/series/lastObservedTime"];
    let time = |pointer: &str| {
        let text = event.pointer(pointer)?.as_str()?;
        let secs = MicroTime::parse(text).map(|time| time.unix().0);
        secs.or_else(|_| Time::parse(text).map(Time::unix)).ok()
    };
    let times = TIMES.into_iter().filter_map(time);
    let last = times.filter(|secs| *secs <= now.secs).max();
    last.or_else(|| time(CREATED)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use yurt_apimachinery::kind::find_kind;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn event(rv: u64, mut event: Value) -> Object {
        event["metadata"]["name"] = "e".into();
        event["metadata"]["namespace"] = "x".into();
        let event = Object::from_value(event, find_kind("", "events").expect("events are built in"));
        let rv = ResourceVersion(ResourceVersion::OWN_BIT | rv);
        event.expect("fixture").with_resource_version(rv)
    }

    fn at(secs: i64) -> UnixTime {
        UnixTime { secs, nanos: 0 }
    }

    #[test]
    fn events_live_for_their_time_after_their_last_change() {
        let written = event(2_000_000_000 * 1_000_000, json!({}));
        let is_expired = |secs| is_expired(&written, Evidence::Rv, at(secs), HOUR);
        assert!(!is_expired(2_000_003_599));
        assert!(is_expired(2_000_003_600));
        assert!(!is_expired(10), "the clock was set back");
    }

    /// A timeline begins at the time of day, and each commit adds one.
    #[test]
    fn events_numbered_by_commits_live_for_their_time_after_their_latest_time() {
        let times = json!({
            "metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"},
            "lastTimestamp": "2026-01-01T01:00:00Z",
            "eventTime": "2099-01-01T00:00:00.000000Z",
        });
        let created = Time::parse("2026-01-01T00:00:00Z").expect("a time").unix();
        for rv in [77, 1_700_000_000 * 1_000_000 + 77] {
            let written = event(rv, times.clone());
            let is_expired = |secs| is_expired(&written, Evidence::Times, at(secs), HOUR);
            assert!(!is_expired(created + 7199), "RV {rv}");
            assert!(is_expired(created + 7200), "a time to come is no sign of life");
        }
    }

    #[test]
    fn new_events_of_a_coordinator_whose_clock_is_ahead_are_kept() {
        let times = json!({"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}});
        let created = Time::parse("2026-01-01T00:00:00Z").expect("a time").unix();
        let written = event(77, times);
        let is_expired = |secs| is_expired(&written, Evidence::Times, at(secs), HOUR);
        assert!(!is_expired(created - 2));
        assert!(is_expired(created + 3600));
    }
}
