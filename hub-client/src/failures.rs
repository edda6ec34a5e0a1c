//! Current failures by component, with their last error messages, for the log and `/debug/state.json`.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use yurt_apimachinery::time::Time;
use yurt_runtime::Clock;

/// Maximum characters kept of a reason.
const REASON_MAX: usize = 500;

/// Current failures of one hub by name, shared by its parts. Their number is bounded by the hub's parts and replicas.
#[derive(Clone, Debug)]
pub struct Failures {
    known: Arc<Mutex<BTreeMap<String, Failure>>>,
    clock: Clock,
}

#[derive(Debug)]
struct Failure {
    why: String,
    /// True if a server answered with a refusal, which lasts until an operator changes something.
    is_refusal: bool,
    /// Start of the failure, Unix seconds.
    since: i64,
}

// === impl Failures ===

impl Failures {
    /// Creates an empty set.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self {
            known: Arc::default(),
            clock,
        }
    }

    /// Records that a server refused `what`. Logs it once, and again when the reason changes.
    pub fn refused(&self, what: &str, why: &str) {
        if self.note(what, why, true) {
            tracing::warn!(what, why, "Operation refused");
        }
    }

    /// Records the answer about `what`: a refusal with its reason, or success.
    pub fn tell(&self, what: &str, refusal: Option<String>) {
        match refusal {
            Some(why) => self.refused(what, &why),
            None => self.works(what),
        }
    }

    /// Records that `what` got no answer or an unreadable one. It is logged elsewhere, because links fail often.
    pub fn unanswered(&self, what: &str, why: &str) {
        self.note(what, why, false);
    }

    /// Records that `what` works.
    pub fn works(&self, what: &str) {
        let before = self.known.lock().remove(what);
        if before.is_some_and(|before| before.is_refusal) {
            tracing::info!(what, "Operation no longer refused");
        }
    }

    /// Drops `what`, which is no longer attempted: the hub does not lead now, or the resource is no longer shared.
    pub fn forget(&self, what: &str) {
        self.known.lock().remove(what);
    }

    /// Returns the reason for the failure of `what`; `None` if it works or was not attempted.
    #[must_use]
    pub fn why(&self, what: &str) -> Option<String> {
        self.known.lock().get(what).map(|failure| failure.why.clone())
    }

    /// Number of failures.
    #[must_use]
    pub fn count(&self) -> i64 {
        self.known.lock().len().try_into().unwrap_or(i64::MAX)
    }

    /// The `troubles` part of `/debug/state.json`.
    #[must_use]
    pub fn describe(&self) -> Value {
        let known = self.known.lock();
        let described = known.iter().map(|(what, failure)| {
            let since = Time::from_unix(failure.since).to_string();
            (what.clone(), json!({ "since": since, "why": failure.why }))
        });
        Value::Object(described.collect())
    }

    /// Records a failure; true if it is new or has another reason.
    fn note(&self, what: &str, why: &str, is_refusal: bool) -> bool {
        let why: String = why.chars().take(REASON_MAX).collect();
        match self.known.lock().entry(what.to_owned()) {
            Entry::Vacant(vacant) => {
                vacant.insert(Failure {
                    why,
                    is_refusal,
                    since: self.clock.unix().secs,
                });
                true
            }
            Entry::Occupied(mut known) => {
                let known = known.get_mut();
                let is_news = known.why != why || known.is_refusal != is_refusal;
                (known.why, known.is_refusal) = (why, is_refusal);
                is_news
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_news_once_and_keeps_the_time_of_its_beginning() {
        let (clock, hand) = Clock::fake();
        let failures = Failures::new(clock);
        assert!(failures.note("services", "403", true));
        let first = failures.describe();
        hand.advance(std::time::Duration::from_secs(60));
        assert!(!failures.note("services", "403", true));
        assert!(failures.note("services", "401", true), "another reason");
        assert_eq!(failures.describe()["services"]["since"], first["services"]["since"]);
        assert_eq!(failures.why("services").as_deref(), Some("401"));
        assert_eq!(failures.count(), 1);
        failures.works("services");
        assert_eq!((failures.count(), failures.describe()), (0, json!({})));
    }

    #[test]
    fn a_long_reason_is_cut() {
        let failures = Failures::new(Clock::system());
        failures.refused("services", &"é".repeat(10_000));
        assert_eq!(failures.why("services").unwrap().chars().count(), REASON_MAX);
    }
}
