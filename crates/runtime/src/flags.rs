//! Command-line values as Go programs write them.
//!
//! ```
//! use clap::Parser;
//! use yurt_runtime::flags::{GoDuration, parse_go_bool};
//!
//! #[derive(Parser)]
//! struct Flags {
//!     /// `--renew=15s`, `--renew 1m30s`
//!     #[arg(long, default_value = "15s")]
//!     renew: GoDuration,
//!     /// `--leader`, `--leader=true`, `--leader=false`; `--leader false` is not the flag's value, as in Go
//!     #[arg(long, num_args = 0..=1, require_equals = true, default_value = "true", default_missing_value = "true",
//!           action = clap::ArgAction::Set, value_parser = parse_go_bool)]
//!     leader: bool,
//! }
//! let flags = Flags::parse_from(["hub", "--leader=false", "--renew", "1m30s"]);
//! assert!(!flags.leader && flags.renew.0.as_secs() == 90);
//! ```

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A duration in Go's notation: `15s`, `1m30s`, `500ms`, `1.5h`, `0`. Never negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GoDuration(pub Duration);

/// Value of a flag that is not given if it is empty, as in Go. Give the flag `default_value = ""`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Optional<T>(pub Option<T>);

/// Flags of the log, the same for every program.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct LogFlags {
    /// Verbosity of the log, on Kubernetes' scale: 0 to 3 info, 4 and 5 debug, from 6 on trace. Variable RUST_LOG
    /// overrides it.
    #[arg(short = 'v', long = "v", value_name = "LEVEL", default_value_t = 0)]
    pub verbosity: u8,
}

/// A value that is not a duration, with the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid duration {value:?}: {problem}")]
pub struct InvalidDuration {
    value: String,
    problem: &'static str,
}

/// Units of Go's `time.ParseDuration` in nanoseconds; two-letter units first, so that `ms` is not read as `m`.
const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60 * 1_000_000_000),
    ("h", 3_600 * 1_000_000_000),
];

/// Longest fraction that is read; further digits are below a nanosecond for every unit.
const FRACTION_DIGITS: usize = 15;

// === impl GoDuration ===

impl FromStr for GoDuration {
    type Err = InvalidDuration;

    fn from_str(value: &str) -> Result<Self, InvalidDuration> {
        parse_duration(value)
            .map(GoDuration)
            .map_err(|problem| InvalidDuration {
                value: value.to_owned(),
                problem,
            })
    }
}

// === impl Optional ===

impl<T: FromStr> FromStr for Optional<T> {
    type Err = T::Err;

    fn from_str(value: &str) -> Result<Self, T::Err> {
        match value {
            "" => Ok(Self(None)),
            value => value.parse().map(|value| Self(Some(value))),
        }
    }
}

fn parse_duration(value: &str) -> Result<Duration, &'static str> {
    const TOO_LONG: &str = "longer than 290 years";
    let mut rest = value.strip_prefix('+').unwrap_or(value);
    if rest.starts_with('-') {
        return Err("must not be negative");
    }
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    if rest.is_empty() {
        return Err("empty; expected something like 15s, 1m30s or 500ms");
    }
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let whole = digits(rest);
        rest = &rest[whole.len()..];
        let fraction = rest.strip_prefix('.').map_or("", digits);
        if rest.starts_with('.') {
            rest = &rest[1 + fraction.len()..];
        }
        if whole.is_empty() && fraction.is_empty() {
            return Err("expected a number; write 15s, 1m30s or 500ms");
        }
        let Some((unit, nanos)) = UNITS.iter().find(|(unit, _)| rest.starts_with(unit)) else {
            return Err("a number needs a unit: one of ns, us, ms, s, m, h");
        };
        rest = &rest[unit.len()..];
        let whole: u64 = if whole.is_empty() {
            0
        } else {
            whole.parse().map_err(|_| TOO_LONG)?
        };
        let part = whole
            .checked_mul(*nanos)
            .and_then(|part| part.checked_add(fraction_of(*nanos, fraction)));
        total = part
            .and_then(|part| total.checked_add(part))
            .filter(|t| i64::try_from(*t).is_ok())
            .ok_or(TOO_LONG)?;
    }
    Ok(Duration::from_nanos(total))
}

/// The decimal digits at the start of `text`.
fn digits(text: &str) -> &str {
    &text[..text.bytes().take_while(u8::is_ascii_digit).count()]
}

/// `0.<fraction>` of a unit, rounded down to nanoseconds.
fn fraction_of(nanos: u64, fraction: &str) -> u64 {
    let mut scale: u128 = 1;
    let mut value: u128 = 0;
    for digit in fraction.bytes().take(FRACTION_DIGITS) {
        scale *= 10;
        value = value * 10 + u128::from(digit - b'0');
    }
    // value < scale, so the result is below `nanos`.
    u64::try_from(u128::from(nanos) * value / scale).unwrap_or(0)
}

impl fmt::Display for GoDuration {
    /// As Go prints it: `1h0m0s`, `1m30s`, `1.5s`, `500ms`, `0s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        match nanos {
            0 => return f.write_str("0s"),
            1..1_000 => return write!(f, "{nanos}ns"),
            1_000..1_000_000 => return write!(f, "{}µs", decimal(nanos, 1_000)),
            1_000_000..1_000_000_000 => return write!(f, "{}ms", decimal(nanos, 1_000_000)),
            _ => {}
        }
        let (hours, minutes) = (self.0.as_secs() / 3600, self.0.as_secs() / 60 % 60);
        if hours > 0 {
            write!(f, "{hours}h")?;
        }
        if hours > 0 || minutes > 0 {
            write!(f, "{minutes}m")?;
        }
        write!(f, "{}s", decimal(nanos % 60_000_000_000, 1_000_000_000))
    }
}

/// `nanos / unit` with as many decimals as needed.
fn decimal(nanos: u128, unit: u128) -> String {
    let width = unit.ilog10() as usize;
    let text = format!("{}.{:0width$}", nanos / unit, nanos % unit);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

impl From<GoDuration> for Duration {
    fn from(duration: GoDuration) -> Duration {
        duration.0
    }
}

// === booleans and logs ===

/// Reads a boolean as Go's `strconv.ParseBool` does: a clap value parser, see the module's example.
///
/// # Errors
/// A sentence that names the value.
pub fn parse_go_bool(value: &str) -> Result<bool, String> {
    match value {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(format!("{value:?} is not a boolean; write true or false")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_of_go_are_read_and_printed_back() {
        for (text, nanos, printed) in [
            ("15s", 15_000_000_000, "15s"),
            ("1m30s", 90_000_000_000, "1m30s"),
            ("500ms", 500_000_000, "500ms"),
            ("2h", 7_200_000_000_000, "2h0m0s"),
            ("1.5h", 5_400_000_000_000, "1h30m0s"),
            ("0", 0, "0s"),
            (".5s", 500_000_000, "500ms"),
            ("1.25s", 1_250_000_000, "1.25s"),
            ("3us", 3_000, "3µs"),
            ("+7ns", 7, "7ns"),
        ] {
            let duration: GoDuration = text.parse().unwrap();
            assert_eq!(duration.0.as_nanos(), nanos, "{text}");
            assert_eq!(duration.to_string(), printed);
            assert_eq!(printed.parse::<GoDuration>().unwrap(), duration);
        }
    }

    #[test]
    fn refused_durations_are_named() {
        for bad in ["", "15", "s", "-5s", "1x", ".s", "9999999999h", "1s 2s", "5 s"] {
            let error = bad.parse::<GoDuration>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("invalid duration {bad:?}: ")), "{error}");
        }
    }

    #[test]
    fn booleans_are_those_of_go() {
        assert_eq!((parse_go_bool("T"), parse_go_bool("0")), (Ok(true), Ok(false)));
        assert!(parse_go_bool("yes").unwrap_err().contains("\"yes\""));
    }
}
