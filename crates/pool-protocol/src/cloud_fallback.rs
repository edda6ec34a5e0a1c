//! Decides how a replica goes on when its source cannot resume at its position: by a list or by resuming at the cloud.
//!
//! Pure. A list at the coordinator skips events. A client that is ahead of this replica, because the hub was killed
//! before it stored what it had sent, would have to relist. The cloud may still have each event.
//!
//! ```text
//!   the coordinator: Expired      ──► the cloud from C on, without a list ──► the coordinator again from there, once
//!                                        │                                   it confirms; the cloud's stream ends
//!                                        └─ Expired there, too, or no answer: a list at the coordinator
//! ```

use std::time::Duration;

use super::source::Source;

/// Failures of the cloud in a row after which there is no fallback to it.
const FAILURES_MAX: u32 = 3;

/// Source and fallback that a replica should use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The source.
    pub source: Source,
    /// Pause before a fallback to the cloud; `None` while the cloud does not answer.
    pub fallback: Option<Duration>,
}

/// Start of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// Resumes at the replica's position; lists if there is no complete replica.
    Resume,
    /// Resumes at the replica's position, or fails.
    ResumeOnly,
    /// Lists.
    List,
}

/// Fallback to the cloud, or pending list, of a replica.
#[derive(Clone, Copy, Debug, Default)]
pub enum CloudFallback {
    /// Neither.
    #[default]
    None,
    /// The replica resumes at the cloud because the coordinator cannot resume it.
    Taken {
        /// Failures of the cloud in a row.
        failures: u32,
    },
    /// No source can resume the replica: a list is required at this source, but not at another one.
    List(Source),
}

// === impl CloudFallback ===

impl CloudFallback {
    /// Returns the source to open and the start of its stream. `at_cloud` is true if a stream of the cloud is up.
    pub fn next(&mut self, wanted: Wanted, at_cloud: bool) -> (Source, Begin) {
        let may_go_on = wanted.source == Source::Coordinator && wanted.fallback.is_some();
        match *self {
            Self::Taken { .. } if may_go_on && at_cloud => (Source::Coordinator, Begin::ResumeOnly),
            Self::Taken { .. } if may_go_on => (Source::Cloud, Begin::ResumeOnly),
            Self::Taken { .. } => {
                *self = Self::None;
                (wanted.source, Begin::Resume)
            }
            Self::List(source) if source == wanted.source => (source, Begin::List),
            Self::List(_) | Self::None => (wanted.source, Begin::Resume),
        }
    }

    /// Records that `source` cannot resume at the replica's position. `has_copy` is true if readers may depend on the
    /// replica. Returns true if a fallback begins.
    pub fn expired(&mut self, source: Source, wanted: Wanted, has_copy: bool) -> bool {
        let may_begin = source == Source::Coordinator && wanted.fallback.is_some() && has_copy;
        match *self {
            // The hub tries the coordinator again at a later position.
            Self::Taken { .. } if source == Source::Coordinator => false,
            Self::Taken { .. } => {
                *self = Self::List(Source::Coordinator);
                false
            }
            Self::None if may_begin => {
                *self = Self::Taken { failures: 0 };
                true
            }
            Self::None | Self::List(_) => {
                *self = Self::List(source);
                false
            }
        }
    }

    /// Records that the replica and `source` have different histories, so that no events connect them.
    pub fn contradicted(&mut self, source: Source) {
        *self = Self::List(source);
    }

    /// Records that `source` does not answer.
    pub fn failed(&mut self, source: Source) {
        if let (Self::Taken { failures }, Source::Cloud) = (&mut *self, source) {
            *failures += 1;
            if *failures == FAILURES_MAX {
                *self = Self::List(Source::Coordinator);
            }
        }
    }

    /// Records that `source` resumed the replica.
    pub fn confirmed(&mut self, source: Source) {
        *self = match (*self, source) {
            (Self::Taken { .. }, Source::Cloud) => Self::Taken { failures: 0 },
            _ => Self::None,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: Wanted = Wanted {
        source: Source::Coordinator,
        fallback: Some(Duration::ZERO),
    };
    const CLOUD_AWAY: Wanted = Wanted {
        source: Source::Coordinator,
        fallback: None,
    };

    fn in_fallback() -> CloudFallback {
        let mut fallback = CloudFallback::None;
        assert!(fallback.expired(Source::Coordinator, WANTED, true));
        fallback
    }

    #[test]
    fn cloud_leads_on_where_the_coordinator_does_not_until_it_does() {
        let mut fallback = in_fallback();
        assert_eq!(fallback.next(WANTED, false), (Source::Cloud, Begin::ResumeOnly));
        fallback.confirmed(Source::Cloud);
        assert_eq!(fallback.next(WANTED, true), (Source::Coordinator, Begin::ResumeOnly));
        // The replica's position is still too low.
        assert!(!fallback.expired(Source::Coordinator, WANTED, true));
        assert_eq!(fallback.next(WANTED, true), (Source::Coordinator, Begin::ResumeOnly));
        fallback.confirmed(Source::Coordinator);
        assert_eq!(fallback.next(WANTED, false), (Source::Coordinator, Begin::Resume));
    }

    #[test]
    fn where_the_cloud_does_not_lead_on_either_the_coordinator_is_listed() {
        let mut fallback = in_fallback();
        fallback.expired(Source::Cloud, WANTED, true);
        assert_eq!(fallback.next(WANTED, false), (Source::Coordinator, Begin::List));
        // Once per break.
        assert!(!fallback.expired(Source::Coordinator, WANTED, true));
        assert_eq!(fallback.next(WANTED, false), (Source::Coordinator, Begin::List));
        fallback.confirmed(Source::Coordinator);
        assert!(fallback.expired(Source::Coordinator, WANTED, true));
    }

    #[test]
    fn cloud_that_fails_again_and_again_is_no_way() {
        let mut fallback = in_fallback();
        for _ in 1..FAILURES_MAX {
            fallback.failed(Source::Cloud);
            assert_eq!(fallback.next(WANTED, false), (Source::Cloud, Begin::ResumeOnly));
        }
        fallback.failed(Source::Coordinator);
        assert_eq!(fallback.next(WANTED, false), (Source::Cloud, Begin::ResumeOnly));
        fallback.failed(Source::Cloud);
        assert_eq!(fallback.next(WANTED, false), (Source::Coordinator, Begin::List));
    }

    #[test]
    fn no_fallback_without_a_copy_nor_without_the_cloud_nor_for_another_history() {
        for (wanted, has_copy) in [(CLOUD_AWAY, true), (WANTED, false)] {
            let mut fallback = CloudFallback::None;
            assert!(!fallback.expired(Source::Coordinator, wanted, has_copy));
            assert_eq!(fallback.next(wanted, false), (Source::Coordinator, Begin::List));
        }
        let mut fallback = CloudFallback::None;
        fallback.contradicted(Source::Coordinator);
        assert_eq!(fallback.next(WANTED, false), (Source::Coordinator, Begin::List));
    }

    #[test]
    fn cloud_that_goes_away_or_is_wanted_anyway_ends_the_fallback() {
        let mut fallback = in_fallback();
        assert_eq!(fallback.next(CLOUD_AWAY, true), (Source::Coordinator, Begin::Resume));
        assert!(!fallback.expired(Source::Coordinator, CLOUD_AWAY, true));
        assert_eq!(fallback.next(CLOUD_AWAY, true), (Source::Coordinator, Begin::List));

        let leading = Wanted {
            source: Source::Cloud,
            fallback: Some(Duration::ZERO),
        };
        let mut fallback = in_fallback();
        assert_eq!(fallback.next(leading, false), (Source::Cloud, Begin::Resume));
        assert!(!fallback.expired(Source::Cloud, leading, true));
        assert_eq!(fallback.next(leading, false), (Source::Cloud, Begin::List));
    }
}
