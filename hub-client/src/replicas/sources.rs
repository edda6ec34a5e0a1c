//! State of the source of each replica: which one it follows, and when it was last heard.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use yurt_apimachinery::time::BootTime;
use yurt_pool_protocol::source::Source;
use yurt_runtime::Clock;

use crate::upstream::watch_body::CLOUD_SILENCE;

/// Maximum silence of the coordinator, which sends a sign of life every 10 s.
const COORDINATOR_SILENCE: Duration = Duration::from_secs(30);

/// State of a replica's source.
#[derive(Clone, Copy, Debug)]
pub struct SourceState {
    /// Current source.
    pub source: Source,
    /// Time of the source's last message.
    pub heard: BootTime,
    /// True unless the source reported that the cloud's changes arrive.
    pub stale: bool,
    /// Time of the source's last message that reported fresh data.
    pub fresh_at: Option<BootTime>,
    /// Source whose stream was confirmed last.
    pub confirmed: Source,
    /// Number of changes from one confirmed source to another.
    pub switches: u64,
    /// Updates rejected because of --max-pool-bytes: in total, and in a row.
    pub oversized: (u64, u32),
}

/// State of the sources of all replicas, by name.
pub struct Sources {
    states: Mutex<BTreeMap<String, SourceState>>,
    clock: Clock,
}

/// Returns the maximum silence, bookmarks included, before `source` counts as away.
pub(super) const fn silence_of(source: Source) -> Duration {
    match source {
        Source::None => Duration::ZERO,
        Source::Cloud => CLOUD_SILENCE,
        Source::Coordinator => COORDINATOR_SILENCE,
    }
}

// === impl Sources ===

impl Sources {
    pub(super) fn new(clock: Clock) -> Self {
        Self {
            states: Mutex::default(),
            clock,
        }
    }

    /// Records a message of `source` for replica `name`. `stale` is the message's report about the data; `None` if it
    /// has none, as all but the bookmarks of the coordinator. What the cloud sends is fresh.
    pub fn heard(&self, name: &str, source: Source, stale: Option<bool>) {
        let now = self.clock.boot();
        let mut states = self.states.lock();
        let state = states.entry(name.to_owned()).or_insert(SourceState::unknown(now));
        (state.source, state.heard) = (source, now);
        let stale = if source == Source::Cloud { Some(false) } else { stale };
        state.stale = stale.unwrap_or(state.stale);
        if stale == Some(false) {
            state.fresh_at = Some(now);
        }
    }

    /// Records that replica `name` follows `source` from now on.
    pub fn confirmed(&self, name: &str, source: Source) {
        let mut states = self.states.lock();
        let state = states
            .entry(name.to_owned())
            .or_insert(SourceState::unknown(self.clock.boot()));
        state.source = source;
        let before = std::mem::replace(&mut state.confirmed, source);
        if before != source && before != Source::None {
            state.switches += 1;
        }
    }

    /// Records that replica `name` has no source now. Its data is stale until the next report.
    pub fn lost(&self, name: &str) {
        if let Some(state) = self.states.lock().get_mut(name) {
            (state.source, state.stale) = (Source::None, true);
        }
    }

    /// Records that replica `name` rejected an update because of its size. Returns the number of rejections in a row.
    pub(super) fn rejected(&self, name: &str) -> u32 {
        let now = self.clock.boot();
        let mut states = self.states.lock();
        let state = states.entry(name.to_owned()).or_insert(SourceState::unknown(now));
        let (total, row) = state.oversized;
        state.oversized = (total + 1, row.saturating_add(1));
        state.oversized.1
    }

    /// Records that replica `name` applied an update. Returns true if it rejected the one before.
    pub(super) fn accepted(&self, name: &str) -> bool {
        let mut states = self.states.lock();
        let rejections = states.get_mut(name).map(|state| std::mem::take(&mut state.oversized.1));
        rejections.is_some_and(|row| row > 0)
    }

    /// Forgets replica `name`, which is gone.
    pub(crate) fn remove(&self, name: &str) {
        self.states.lock().remove(name);
    }

    /// True if the source of replica `name` is heard, and does not report stale data.
    pub(super) fn is_alive(&self, name: &str) -> bool {
        let states = self.states.lock();
        states
            .get(name)
            .is_some_and(|state| !state.stale && self.clock.boot().since(state.heard) < silence_of(state.source))
    }

    /// Time since the source of replica `name` last reported fresh data; `None` if it has not since the start.
    pub(super) fn since_fresh(&self, name: &str) -> Option<Duration> {
        let fresh_at = self.of(name).fresh_at?;
        Some(self.clock.boot().since(fresh_at))
    }

    /// State of the source of replica `name`.
    #[must_use]
    pub fn of(&self, name: &str) -> SourceState {
        let known = self.states.lock().get(name).copied();
        known.unwrap_or(SourceState::unknown(self.clock.boot()))
    }
}

// === impl SourceState ===

impl SourceState {
    fn unknown(now: BootTime) -> Self {
        Self {
            source: Source::None,
            heard: now,
            stale: true,
            fresh_at: None,
            confirmed: Source::None,
            switches: 0,
            oversized: (0, 0),
        }
    }
}
