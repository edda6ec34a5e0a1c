//! Ages for people: at most two units, coarser for older objects.

use serde_json::Value;

use yurt_apimachinery::time::{MicroTime, Time};

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
const YEAR: i64 = 365 * DAY;

/// A duration of so many seconds.
pub(super) fn duration(seconds: i64) -> String {
    let one = |unit: i64, letter: char| format!("{}{letter}", seconds / unit);
    let two = |unit: i64, letter: char, part: i64, small: char| match seconds % unit / part {
        0 => one(unit, letter),
        rest => format!("{}{rest}{small}", one(unit, letter)),
    };
    match seconds {
        // Clocks differ a little.
        ..-1 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        0..120 => one(1, 's'),
        _ if seconds < 10 * MINUTE => two(MINUTE, 'm', 1, 's'),
        _ if seconds < 3 * HOUR => one(MINUTE, 'm'),
        _ if seconds < 8 * HOUR => two(HOUR, 'h', MINUTE, 'm'),
        _ if seconds < 2 * DAY => one(HOUR, 'h'),
        _ if seconds < 8 * DAY => two(DAY, 'd', HOUR, 'h'),
        _ if seconds < 2 * YEAR => one(DAY, 'd'),
        _ if seconds < 8 * YEAR => two(YEAR, 'y', DAY, 'd'),
        _ => one(YEAR, 'y'),
    }
}

/// Time since a Time or MicroTime; `None` if it is unset.
pub(super) fn since(time: &Value, now: Time) -> Option<String> {
    let text = time.as_str()?;
    let seconds = MicroTime::parse(text).map(|time| time.unix().0);
    let seconds = seconds.or_else(|_| Time::parse(text).map(Time::unix)).ok()?;
    Some(duration(now.unix() - seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_kubectl_shows_them() {
        for (seconds, want) in [
            (-2, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (599, "9m59s"),
            (600, "10m"),
            (179 * 60 + 59, "179m"),
            (3 * HOUR, "3h"),
            (3 * HOUR + 61, "3h1m"),
            (8 * HOUR, "8h"),
            (47 * HOUR + 59 * 60, "47h"),
            (48 * HOUR, "2d"),
            (50 * HOUR, "2d2h"),
            (8 * DAY, "8d"),
            (729 * DAY, "729d"),
            (730 * DAY, "2y"),
            (731 * DAY, "2y1d"),
            (8 * YEAR, "8y"),
            (9 * YEAR - 1, "8y"),
        ] {
            assert_eq!(duration(seconds), want, "{seconds}");
        }
    }
}
