//! Deletes events that have lived for `--event-ttl`; watchers get an event for each deletion.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::time::{BootTime, MicroTime, Time};
use yurt_apimachinery::{Object, ObjectKey, ResourceVersion};
use yurt_runtime::UnixTime;

use super::elapsed;
use crate::app::App;
use crate::registry::own::Intent;

/// Bounds of the interval between searches for expired events, which is a quarter of their time to live.
const EXPIRE_EVERY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Maximum number of deletions of expired events in flight; they share commits.
const EXPIRE_AT_ONCE: usize = 64;

/// Maximum lead of an RV over the clock, in seconds, at which it is still the time of its write. An embedded store that
/// commits often is seconds ahead, and one that was killed is two minutes ahead.
const RV_LEAD_MAX: i64 = 180;

/// Evidence of the time of an event's last write.
#[derive(Clone, Copy, Debug)]
enum Evidence {
    /// Its RV, which is about that time in microseconds, and its own times. An RV is much later than the time of its
    /// write if the clock was ahead before, and earlier if the clock was behind.
    Rv,
    /// Its own times. An RV of etcd is the start of the store's timeline and the commits since.
    Times,
}

/// The lives of events.
struct Lives {
    evidence: Evidence,
    /// Time to live.
    ttl: Duration,
    /// Events written, by all evidence, in the future: the first time they were seen with their RV. The clock was ahead
    /// then, or is behind now.
    ahead: BTreeMap<ObjectKey, (ResourceVersion, BootTime)>,
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
    let ttl = app.settings.event_ttl;
    let mut lives = Lives::new(evidence, ttl);
    let every = (ttl / 4).clamp(EXPIRE_EVERY.0, EXPIRE_EVERY.1);
    while elapsed(every, &stop).await {
        let (now, boot) = (app.clock.unix(), app.clock.boot());
        let expired: Vec<Object> = resource.objects().read(|held| {
            lives.ahead.retain(|key, _| held.object(key).is_some());
            let is_over = |event: &&Object| lives.is_over(event, now, boot);
            held.objects().filter(is_over).cloned().collect()
        });
        for some in expired.chunks(EXPIRE_AT_ONCE) {
            let delete = |event: &Object| app.own.delete_unchanged(&resource, event.clone(), &intent);
            // An event that changed since the search lives on; a failed deletion is tried again.
            futures_util::future::join_all(some.iter().map(delete)).await;
        }
    }
}

// === impl Lives ===

impl Lives {
    fn new(evidence: Evidence, ttl: Duration) -> Self {
        Self {
            evidence,
            ttl,
            ahead: BTreeMap::new(),
        }
    }

    /// True if `event` has lived for `ttl` since its last write, `now` by the clock of the day and `boot` since the
    /// boot.
    fn is_over(&mut self, event: &Object, now: UnixTime, boot: BootTime) -> bool {
        let has_lived = |written: i64| {
            let lived = u64::try_from(now.secs.saturating_sub(written));
            lived.is_ok_and(|lived| lived >= self.ttl.as_secs())
        };
        let by_rv = match self.evidence {
            Evidence::Rv => Some(time_of_rv(event)).filter(|secs| *secs <= now.secs.saturating_add(RV_LEAD_MAX)),
            Evidence::Times => None,
        };
        if by_rv.is_some_and(|written| !has_lived(written)) {
            return false;
        }
        if let Some(written) = by_rv.max(last_seen(&event.to_value(), now)) {
            return has_lived(written);
        }
        let rv = event.resource_version();
        let seen = self.ahead.entry(event.key().clone()).or_insert((rv, boot));
        if seen.0 != rv {
            *seen = (rv, boot);
        }
        boot.since(seen.1) >= self.ttl
    }
}

/// The time that an embedded store gave a write, in seconds: the time of day, or more if it had given a later one
/// before.
fn time_of_rv(event: &Object) -> i64 {
    let micros = event.resource_version().0 & !ResourceVersion::OWN_BIT;
    i64::try_from(micros / 1_000_000).unwrap_or(i64::MAX)
}

/// The latest of an event's times that is not in the future.
fn last_seen(event: &Value, now: UnixTime) -> Option<i64> {
    const TIMES: [&str; 4] = [
        "/metadata/creationTimestamp",
        "/lastTimestamp",
        "/eventTime",
        "/series/lastObservedTime",
    ];
    let time = |pointer: &str| {
        let text = event.pointer(pointer)?.as_str()?;
        let secs = MicroTime::parse(text).map(|time| time.unix().0);
        secs.or_else(|_| Time::parse(text).map(Time::unix)).ok()
    };
    let times = TIMES.into_iter().filter_map(time);
    times.filter(|secs| *secs <= now.secs).max()
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

    fn boot(secs: u64) -> BootTime {
        BootTime::from_boot(Duration::from_secs(secs))
    }

    fn secs_of(text: &str) -> i64 {
        Time::parse(text).expect("a time").unix()
    }

    #[test]
    fn events_live_for_their_time_after_their_last_change() {
        let written = event(2_000_000_000 * 1_000_000, json!({}));
        let mut lives = Lives::new(Evidence::Rv, HOUR);
        assert!(!lives.is_over(&written, at(2_000_003_599), boot(0)));
        assert!(lives.is_over(&written, at(2_000_003_600), boot(0)));
    }

    /// The store's RVs are ahead of the clock after a kill, and while it commits often.
    #[test]
    fn change_of_an_old_event_at_an_rv_a_little_ahead_of_the_clock_prolongs_it() {
        let created = secs_of("2026-01-01T00:00:00Z");
        let now = created + 7200;
        for ahead in [1, 16, 140] {
            let rv = u64::try_from(now + ahead).expect("a time after 1970") * 1_000_000;
            let changed = event(rv, json!({"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}}));
            let mut lives = Lives::new(Evidence::Rv, HOUR);
            assert!(!lives.is_over(&changed, at(now), boot(0)), "{ahead} s ahead");
            assert!(!lives.is_over(&changed, at(now + 3599), boot(0)), "{ahead} s ahead");
            assert!(
                lives.is_over(&changed, at(now + 3600 + ahead), boot(0)),
                "{ahead} s ahead"
            );
        }
    }

    /// A timeline begins at the time of day, and each commit adds one.
    #[test]
    fn events_numbered_by_commits_live_for_their_time_after_their_latest_time() {
        let times = json!({
            "metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"},
            "lastTimestamp": "2026-01-01T01:00:00Z",
            "eventTime": "2099-01-01T00:00:00.000000Z",
        });
        let created = secs_of("2026-01-01T00:00:00Z");
        for rv in [77, 1_700_000_000 * 1_000_000 + 77] {
            let written = event(rv, times.clone());
            let mut lives = Lives::new(Evidence::Times, HOUR);
            assert!(!lives.is_over(&written, at(created + 7199), boot(0)), "RV {rv}");
            assert!(
                lives.is_over(&written, at(created + 7200), boot(0)),
                "a time to come is no sign of life"
            );
        }
    }

    #[test]
    fn new_events_of_a_coordinator_whose_clock_is_ahead_are_kept() {
        let times = json!({"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}});
        let created = secs_of("2026-01-01T00:00:00Z");
        let written = event(77, times);
        let mut lives = Lives::new(Evidence::Times, HOUR);
        assert!(!lives.is_over(&written, at(created - 2), boot(0)));
        assert!(lives.is_over(&written, at(created + 3600), boot(1)));
    }

    /// RVs never go back, so they stay ahead until the time of day reaches them.
    #[test]
    fn events_expire_after_the_clock_of_the_store_was_ahead() {
        let created = secs_of("2026-01-01T00:00:00Z");
        let year_later = u64::try_from(created + 365 * 86_400).expect("a time after 1970") * 1_000_000;
        let right = event(
            year_later + 1,
            json!({"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}}),
        );
        let wrong = event(
            year_later,
            json!({"metadata": {"creationTimestamp": "2027-01-01T00:00:00Z"}}),
        );
        let mut lives = Lives::new(Evidence::Rv, HOUR);
        assert!(!lives.is_over(&right, at(created + 3599), boot(0)));
        assert!(lives.is_over(&right, at(created + 3600), boot(1)));
        assert!(!lives.is_over(&wrong, at(created), boot(0)));
        assert!(!lives.is_over(&wrong, at(created + 3599), boot(3599)));
        assert!(lives.is_over(&wrong, at(created + 3600), boot(3600)));
        let changed = event(
            year_later + 2,
            json!({"metadata": {"creationTimestamp": "2027-01-01T00:00:00Z"}}),
        );
        assert!(
            !lives.is_over(&changed, at(created + 3601), boot(3601)),
            "a change prolongs it"
        );
    }

    #[test]
    fn event_with_a_recent_time_lives_on_although_its_rv_is_old() {
        let seen = secs_of("2026-01-01T01:00:00Z");
        let written = event(77, json!({"lastTimestamp": "2026-01-01T01:00:00Z"}));
        let mut lives = Lives::new(Evidence::Rv, HOUR);
        assert!(!lives.is_over(&written, at(seen + 3599), boot(0)));
        assert!(lives.is_over(&written, at(seen + 3600), boot(0)));
    }
}
