//! The two time formats of the API, `Time` in whole seconds and `MicroTime` in microseconds, and readings of a
//! monotonic clock ([`BootTime`]). Reads no clock.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

mod boot;
mod calendar;

pub use boot::BootTime;
use calendar::{Civil, Fraction};

/// A moment in whole seconds, `2026-11-20T10:00:00Z`.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    secs: i64,
}

/// A moment in microseconds, `2026-11-20T10:00:00.000000Z`.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MicroTime {
    secs: i64,
    micros: u32,
}

/// A text that is no time of the API.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "parsing time {} as {}: cannot parse",
    crate::text::go_quote(text),
    crate::text::go_quote(layout)
)]
pub struct ParseTimeError {
    text: String,
    layout: &'static str,
}

const TIME_LAYOUT: &str = "2006-01-02T15:04:05Z07:00";
const MICRO_TIME_LAYOUT: &str = "2006-01-02T15:04:05.000000Z07:00";
/// First and last second of the years 0 to 9999, which are all that the format can hold.
const RANGE: std::ops::RangeInclusive<i64> = -62_167_219_200..=253_402_300_799;

fn clamp(secs: i64) -> i64 {
    secs.clamp(*RANGE.start(), *RANGE.end())
}

// === impl Time ===

impl Time {
    /// Seconds since 1970, clamped to the years 0 to 9999.
    pub fn from_unix(secs: i64) -> Self {
        Self { secs: clamp(secs) }
    }

    /// Reads RFC 3339; a fraction is dropped.
    ///
    /// # Errors
    ///
    /// When the text is anything else.
    pub fn parse(text: &str) -> Result<Self, ParseTimeError> {
        let civil = Civil::parse(text, Fraction::Any).filter(|civil| RANGE.contains(&civil.unix()));
        let fail = || ParseTimeError {
            text: text.to_owned(),
            layout: TIME_LAYOUT,
        };
        civil.map(|civil| Self { secs: civil.unix() }).ok_or_else(fail)
    }

    /// Seconds since 1970.
    pub fn unix(self) -> i64 {
        self.secs
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}Z", Civil::from_unix(self.secs))
    }
}

// === impl MicroTime ===

impl MicroTime {
    /// Seconds since 1970 and nanoseconds, the latter cut to microseconds; clamped to the years 0 to 9999.
    pub fn from_unix(secs: i64, nanos: u32) -> Self {
        Self {
            secs: clamp(secs),
            micros: (nanos / 1000).min(999_999),
        }
    }

    /// Reads RFC 3339 with exactly six digits of a fraction and any offset.
    ///
    /// # Errors
    ///
    /// When the text is anything else.
    pub fn parse(text: &str) -> Result<Self, ParseTimeError> {
        let civil = Civil::parse(text, Fraction::Micros).filter(|civil| RANGE.contains(&civil.unix()));
        let fail = || ParseTimeError {
            text: text.to_owned(),
            layout: MICRO_TIME_LAYOUT,
        };
        civil
            .map(|civil| Self {
                secs: civil.unix(),
                micros: civil.micros,
            })
            .ok_or_else(fail)
    }

    /// Seconds since 1970 and nanoseconds.
    pub fn unix(self) -> (i64, u32) {
        (self.secs, self.micros * 1000)
    }
}

impl fmt::Display for MicroTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}Z", Civil::from_unix(self.secs), self.micros)
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

impl Serialize for MicroTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for MicroTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests;
