//! Failpoints: faults that a test build injects into its own program, named in the variable `YURT_FAILPOINTS`.
//!
//! No release build has a failpoint. A program refuses to start with one that its build does not have: a test that
//! relies on it would otherwise pass without the fault.

use std::ffi::OsStr;

/// Environment variable with one failpoint, written `name=value`.
pub const VARIABLE: &str = "YURT_FAILPOINTS";

/// Name of the failpoint that shifts the wall clock; its value is a file with a number of seconds.
#[cfg(debug_assertions)]
pub(crate) const WALL_CLOCK_SKEW: &str = "wall-clock-skew";

/// Failpoints of every program of this build.
#[cfg(debug_assertions)]
const COMMON: &[&str] = &[WALL_CLOCK_SKEW];
#[cfg(not(debug_assertions))]
const COMMON: &[&str] = &[];

/// A failpoint that this build does not have.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{VARIABLE}: this build has no failpoint {name:?}; unset the variable, or use a test build (docs/TESTING.md)")]
pub struct UnknownFailpoint {
    name: String,
}

/// Checks the variable at the start of a program, whose own failpoints are `own`. An unset or empty variable is valid.
///
/// # Errors
/// [`UnknownFailpoint`] if the variable names any other failpoint.
pub fn check(own: &[&str]) -> Result<(), UnknownFailpoint> {
    check_value(std::env::var_os(VARIABLE).as_deref(), own)
}

/// Returns the value of the failpoint `name`, if the variable sets it.
#[must_use]
pub fn value(name: &str) -> Option<String> {
    let set = std::env::var(VARIABLE).ok()?;
    let (set, value) = set.split_once('=')?;
    (set == name).then(|| value.to_owned())
}

fn check_value(set: Option<&OsStr>, own: &[&str]) -> Result<(), UnknownFailpoint> {
    let set = set.unwrap_or_default().to_string_lossy();
    let name = set.split('=').next().unwrap_or_default();
    if name.is_empty() || COMMON.iter().chain(own).any(|known| *known == name) {
        return Ok(());
    }
    Err(UnknownFailpoint { name: name.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failpoints_of_this_build_are_accepted_and_others_are_named() {
        let check = |set: Option<&str>| check_value(set.map(OsStr::new), &["own"]);
        for good in [None, Some(""), Some("own=off"), Some("wall-clock-skew=/file")] {
            assert_eq!(check(good), Ok(()), "{good:?}");
        }
        let error = check(Some("other=off")).expect_err("unknown").to_string();
        assert!(
            error.contains("YURT_FAILPOINTS") && error.contains("\"other\""),
            "{error}"
        );
    }
}
