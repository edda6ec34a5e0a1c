//! Days, months and RFC 3339.

use std::fmt;

/// A moment split into its parts, in UTC.
pub(super) struct Civil {
    year: i64,
    month: u32,
    day: u32,
    second_of_day: i64,
    pub(super) micros: u32,
    /// Seconds east of UTC; set only for a parsed text.
    offset_seconds: i64,
}

/// Fractions of a second that are accepted.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(super) enum Fraction {
    /// None or any number of digits.
    Any,
    /// Exactly six digits.
    Micros,
}

const SECONDS_PER_DAY: i64 = 86_400;

impl Civil {
    /// Howard Hinnant's `civil_from_days`.
    pub(super) fn from_unix(secs: i64) -> Self {
        let days = secs.div_euclid(SECONDS_PER_DAY) + 719_468;
        let era = days.div_euclid(146_097);
        let day_of_era = days.rem_euclid(146_097);
        let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted_month = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
        let month = if shifted_month < 10 {
            shifted_month + 3
        } else {
            shifted_month - 9
        };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        Self {
            year,
            month: u32::try_from(month).unwrap_or_default(),
            day: u32::try_from(day).unwrap_or_default(),
            second_of_day: secs.rem_euclid(SECONDS_PER_DAY),
            micros: 0,
            offset_seconds: 0,
        }
    }

    /// Seconds since 1970; Howard Hinnant's `days_from_civil`.
    pub(super) fn unix(&self) -> i64 {
        let year = self.year - i64::from(self.month <= 2);
        let era = year.div_euclid(400);
        let year_of_era = year.rem_euclid(400);
        let shifted_month = i64::from((self.month + 9) % 12);
        let day_of_year = (153 * shifted_month + 2) / 5 + i64::from(self.day) - 1;
        let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
        let days = era * 146_097 + day_of_era - 719_468;
        days * SECONDS_PER_DAY + self.second_of_day - self.offset_seconds
    }

    pub(super) fn parse(text: &str, fraction: Fraction) -> Option<Self> {
        let mut reader = Reader(text.as_bytes());
        let year = reader.number(4, 0..=9999)?;
        reader.expect(b'-')?;
        let month = u32::try_from(reader.number(2, 1..=12)?).ok()?;
        reader.expect(b'-')?;
        let day = u32::try_from(reader.number(2, 1..=31)?)
            .ok()
            .filter(|day| *day <= days_in_month(year, month))?;
        reader.expect(b'T')?;
        let mut second_of_day = reader.number(2, 0..=23)? * 3600;
        reader.expect(b':')?;
        second_of_day += reader.number(2, 0..=59)? * 60;
        reader.expect(b':')?;
        second_of_day += reader.number(2, 0..=59)?;
        let micros = reader.fraction(fraction)?;
        let offset_seconds = reader.offset()?;
        reader.0.is_empty().then_some(Self {
            year,
            month,
            day,
            second_of_day,
            micros,
            offset_seconds,
        })
    }
}

/// Date and time without fraction and offset.
impl fmt::Display for Civil {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (hour, minute, second) = (
            self.second_of_day / 3600,
            self.second_of_day / 60 % 60,
            self.second_of_day % 60,
        );
        write!(
            f,
            "{:04}-{:02}-{:02}T{hour:02}:{minute:02}:{second:02}",
            self.year, self.month, self.day
        )
    }
}

fn days_in_month(year: i64, month: u32) -> u32 {
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 if is_leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn expect(&mut self, byte: u8) -> Option<()> {
        self.0 = self.0.strip_prefix(&[byte])?;
        Some(())
    }

    fn number(&mut self, digits: usize, range: std::ops::RangeInclusive<i64>) -> Option<i64> {
        let (head, rest) = self.0.split_at_checked(digits)?;
        self.0 = rest;
        let value = head.iter().try_fold(0, |value, byte| {
            byte.is_ascii_digit().then(|| value * 10 + i64::from(byte - b'0'))
        })?;
        range.contains(&value).then_some(value)
    }

    /// The fraction in microseconds.
    fn fraction(&mut self, wanted: Fraction) -> Option<u32> {
        if self.0.first() != Some(&b'.') {
            return (wanted == Fraction::Any).then_some(0);
        }
        let count = self.0[1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        if count == 0 || (wanted == Fraction::Micros && count != 6) {
            return None;
        }
        let digits = &self.0[1..=count];
        self.0 = &self.0[count + 1..];
        let padded = digits.iter().copied().chain(std::iter::repeat(b'0')).take(6);
        Some(padded.fold(0, |value, digit| value * 10 + u32::from(digit - b'0')))
    }

    fn offset(&mut self) -> Option<i64> {
        if self.expect(b'Z').is_some() {
            return Some(0);
        }
        let sign = if self.expect(b'+').is_some() { 1 } else { -1 };
        if sign < 0 {
            self.expect(b'-')?;
        }
        let hours = self.number(2, 0..=23)?;
        self.expect(b':')?;
        Some(sign * (hours * 3600 + self.number(2, 0..=59)? * 60))
    }
}
