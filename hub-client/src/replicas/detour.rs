//! Decides how a replica goes on when its source cannot lead it from where it stands to the present: by a list, or, without
//! one, at the cloud.
//!
//! Pure. A list at the coordinator jumps: whoever knows more than this copy does, because the hub was killed before it
//! stored what it told, would have to list as well. The cloud may still have each event.
//!
//! ```text
//!   the coordinator says Expired ──► the cloud from C on, without a list ──► the coordinator again from there, once
//!                                        │                                   it confirms; the cloud's stream ends
//!                                        └─ Expired there, too, or no answer: a list at the coordinator
//! ```

use std::time::Duration;

use super::source::Source;

/// A cloud that fails so often in a row is no way.
const FAILURES_MAX: u32 = 3;

/// What a replica is to follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The source.
    pub source: Source,
    /// After what pause a detour may lead over the cloud; `None` while it does not answer.
    pub detour: Option<Duration>,
}

/// How a stream begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// Where the copy stands; with a list where there is no complete one.
    Resume,
    /// Where the copy stands, or not at all.
    ResumeOnly,
    /// With a list.
    List,
}

/// Whether a replica is on a detour, or has to be listed.
#[derive(Clone, Copy, Debug, Default)]
pub enum Detour {
    /// Neither.
    #[default]
    None,
    /// The cloud leads on where the coordinator does not.
    Taken {
        /// Times in a row that it did not.
        failures: u32,
    },
    /// No way leads on: this source is listed, another one need not be.
    List(Source),
}

// === impl Detour ===

impl Detour {
    /// The source to open, and how. `at_cloud`: a stream of the cloud is up.
    pub fn next(&mut self, wanted: Wanted, at_cloud: bool) -> (Source, Begin) {
        let may_go_on = wanted.source == Source::Coordinator && wanted.detour.is_some();
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

    /// `source` cannot lead on from where the replica stands; `has_copy` when readers may depend on what it holds. Whether a
    /// detour begins.
    pub fn expired(&mut self, source: Source, wanted: Wanted, has_copy: bool) -> bool {
        let may_begin = source == Source::Coordinator && wanted.detour.is_some() && has_copy;
        match *self {
            // It is asked again when we are further.
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

    /// What is held is of another history than what `source` has: nothing leads from there to here.
    pub fn contradicted(&mut self, source: Source) {
        *self = Self::List(source);
    }

    /// `source` does not answer.
    pub fn failed(&mut self, source: Source) {
        if let (Self::Taken { failures }, Source::Cloud) = (&mut *self, source) {
            *failures += 1;
            if *failures == FAILURES_MAX {
                *self = Self::List(Source::Coordinator);
            }
        }
    }

    /// `source` leads on.
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
        detour: Some(Duration::ZERO),
    };
    const CLOUD_AWAY: Wanted = Wanted {
        source: Source::Coordinator,
        detour: None,
    };

    fn on_detour() -> Detour {
        let mut detour = Detour::None;
        assert!(detour.expired(Source::Coordinator, WANTED, true));
        detour
    }

    #[test]
    fn cloud_leads_on_where_the_coordinator_does_not_until_it_does() {
        let mut detour = on_detour();
        assert_eq!(detour.next(WANTED, false), (Source::Cloud, Begin::ResumeOnly));
        detour.confirmed(Source::Cloud);
        assert_eq!(detour.next(WANTED, true), (Source::Coordinator, Begin::ResumeOnly));
        // We are not far enough yet.
        assert!(!detour.expired(Source::Coordinator, WANTED, true));
        assert_eq!(detour.next(WANTED, true), (Source::Coordinator, Begin::ResumeOnly));
        detour.confirmed(Source::Coordinator);
        assert_eq!(detour.next(WANTED, false), (Source::Coordinator, Begin::Resume));
    }

    #[test]
    fn where_the_cloud_does_not_lead_on_either_the_coordinator_is_listed() {
        let mut detour = on_detour();
        detour.expired(Source::Cloud, WANTED, true);
        assert_eq!(detour.next(WANTED, false), (Source::Coordinator, Begin::List));
        // Once per break.
        assert!(!detour.expired(Source::Coordinator, WANTED, true));
        assert_eq!(detour.next(WANTED, false), (Source::Coordinator, Begin::List));
        detour.confirmed(Source::Coordinator);
        assert!(detour.expired(Source::Coordinator, WANTED, true));
    }

    #[test]
    fn cloud_that_fails_again_and_again_is_no_way() {
        let mut detour = on_detour();
        for _ in 1..FAILURES_MAX {
            detour.failed(Source::Cloud);
            assert_eq!(detour.next(WANTED, false), (Source::Cloud, Begin::ResumeOnly));
        }
        detour.failed(Source::Coordinator);
        assert_eq!(detour.next(WANTED, false), (Source::Cloud, Begin::ResumeOnly));
        detour.failed(Source::Cloud);
        assert_eq!(detour.next(WANTED, false), (Source::Coordinator, Begin::List));
    }

    #[test]
    fn no_detour_without_a_copy_nor_without_the_cloud_nor_for_another_history() {
        for (wanted, has_copy) in [(CLOUD_AWAY, true), (WANTED, false)] {
            let mut detour = Detour::None;
            assert!(!detour.expired(Source::Coordinator, wanted, has_copy));
            assert_eq!(detour.next(wanted, false), (Source::Coordinator, Begin::List));
        }
        let mut detour = Detour::None;
        detour.contradicted(Source::Coordinator);
        assert_eq!(detour.next(WANTED, false), (Source::Coordinator, Begin::List));
    }

    #[test]
    fn cloud_that_goes_away_or_is_wanted_anyway_ends_the_detour() {
        let mut detour = on_detour();
        assert_eq!(detour.next(CLOUD_AWAY, true), (Source::Coordinator, Begin::Resume));
        assert!(!detour.expired(Source::Coordinator, CLOUD_AWAY, true));
        assert_eq!(detour.next(CLOUD_AWAY, true), (Source::Coordinator, Begin::List));

        let leading = Wanted {
            source: Source::Cloud,
            detour: Some(Duration::ZERO),
        };
        let mut detour = on_detour();
        assert_eq!(detour.next(leading, false), (Source::Cloud, Begin::Resume));
        assert!(!detour.expired(Source::Cloud, leading, true));
        assert_eq!(detour.next(leading, false), (Source::Cloud, Begin::List));
    }
}
