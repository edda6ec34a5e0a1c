//! Quantities of resources: parsing, comparing, and formatting in their shortest form.
//!
//! The facts are those of Kubernetes' `resource.Quantity`. Fractions below a billionth are rounded up; amounts beyond
//! 128 bits of billionths are rejected.

use std::fmt;

/// An amount with the family of suffixes it was written in. Equal amounts of different families are different values;
/// [`Quantity::nano`] compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quantity {
    nano: i128,
    form: Form,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// `m`, `k`, `M`, …
    Decimal,
    /// `e3`, `e6`, …
    Exponent,
    /// `Ki`, `Mi`, …
    Binary,
}

/// Billionths in one.
const NANO: i128 = 1_000_000_000;
/// Decimal suffixes, from a billionth up by a thousand each.
const DECIMAL: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
/// Binary suffixes, from one up by 1024 each.
const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
/// Binary amounts end here, in billionths.
const BINARY_MAX: i128 = i64::MAX as i128 * NANO;
/// Digits that are parsed; more cannot be held anyway.
const DIGITS_MAX: usize = 64;

// === impl Quantity ===

impl Quantity {
    /// Reads a quantity; `None` if the text is none, or too large.
    pub fn parse(text: &str) -> Option<Self> {
        let (is_negative, text) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.');
        let (number, suffix) = text.split_at(end.unwrap_or(text.len()));
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let has_digits = whole.len() + fraction.len() > 0;
        if !has_digits || fraction.contains('.') || number.len() > DIGITS_MAX {
            return None;
        }
        let (factor, exponent, form) = scale(suffix)?;
        let digits = format!("{whole}{fraction}");
        let value: i128 = digits.parse().ok()?;
        let value = value.checked_mul(factor)?;
        let shift = exponent
            .checked_add(9)?
            .checked_sub(i32::try_from(fraction.len()).ok()?)?;
        let nano = if value == 0 {
            0
        } else if shift >= 0 {
            value.checked_mul(10_i128.checked_pow(shift.unsigned_abs())?)?
        } else {
            let power = 10_i128.checked_pow(shift.unsigned_abs()).unwrap_or(i128::MAX);
            value / power + i128::from(value % power != 0)
        };
        let most = if form == Form::Binary { BINARY_MAX } else { i128::MAX };
        let nano = if is_negative { -nano.min(most) } else { nano.min(most) };
        Some(Self { nano, form })
    }

    /// The amount, in billionths.
    pub fn nano(self) -> i128 {
        self.nano
    }

    /// Form in which an apiserver writes `text`: the shortest form, or `text` itself where upstream considers that
    /// canonical (`1.500`, `+1`, `015`). `None` if it is no quantity.
    pub fn canonical(text: &str) -> Option<String> {
        let quantity = Self::parse(text)?;
        let written = || quantity.to_string();
        Some(if is_kept(text) { text.to_owned() } else { written() })
    }
}

/// True if upstream reuses the text: it looks canonical, and its digits fit a fast path of 64 bits.
fn is_kept(text: &str) -> bool {
    let number = text.strip_prefix(['-', '+']).unwrap_or(text).trim_start_matches('0');
    let end = number
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(number.len());
    let (number, suffix) = number.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole = if whole.is_empty() { "0" } else { whole };
    let Some((factor, exponent, form)) = scale(suffix) else {
        return false;
    };
    let digits = format!("{whole}{fraction}");
    let fits = |most: u32| u32::try_from(digits.len()).is_ok_and(|count| count <= most);
    if form == Form::Binary {
        let doublings = factor.trailing_zeros();
        let is_odd = digits.parse::<i64>().is_ok_and(|value| value & 7 != 0);
        return fraction.is_empty() && is_odd && fits(14_u32.saturating_sub(doublings * 3 / 10));
    }
    let scale = exponent.saturating_sub(i32::try_from(fraction.len()).unwrap_or(i32::MAX));
    let is_short = !digits.ends_with("000") && !digits.starts_with('0');
    text == "0" || fits(18) && scale >= -9 && scale % 3 == 0 && is_short
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_small = self.nano.abs() < 1024 * NANO;
        // Small or fractional binary amounts are written exactly, in decimal.
        if self.form == Form::Binary && !is_small && self.nano % NANO == 0 {
            let (amount, steps) = reduce(self.nano / NANO, 1024, BINARY.len() - 1);
            return write!(f, "{amount}{}", BINARY[steps]);
        }
        let (amount, steps) = reduce(self.nano, 1000, DECIMAL.len() - 1);
        let steps = if self.nano == 0 { 3 } else { steps };
        match self.form {
            Form::Exponent if steps != 3 => {
                let exponent = i64::try_from(steps).unwrap_or_default() * 3 - 9;
                write!(f, "{amount}e{exponent}")
            }
            _ => write!(f, "{amount}{}", DECIMAL[steps]),
        }
    }
}

/// Divides without loss as often as possible, `most` times at most; returns the number of divisions.
fn reduce(mut amount: i128, base: i128, most: usize) -> (i128, usize) {
    let mut steps = 0;
    while steps < most && amount != 0 && amount % base == 0 {
        amount /= base;
        steps += 1;
    }
    (amount, steps)
}

/// Multiplier of a suffix: a factor and a power of ten.
fn scale(suffix: &str) -> Option<(i128, i32, Form)> {
    if let Some(steps) = DECIMAL.iter().position(|known| *known == suffix) {
        return Some((1, i32::try_from(steps).ok()? * 3 - 9, Form::Decimal));
    }
    if let Some(steps) = BINARY.iter().position(|known| *known == suffix) {
        return Some((1024_i128.pow(u32::try_from(steps).ok()?), 0, Form::Binary));
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    Some((1, exponent, Form::Exponent))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn quantities_are_written_as_go_writes_them() {
        for (text, want) in [
            ("0", "0"),
            ("0Ki", "0"),
            ("1", "1"),
            ("1000m", "1"),
            ("2000", "2k"),
            ("1500", "1500"),
            ("0.5", "500m"),
            (".5", "500m"),
            ("1.", "1"),
            ("1e3", "1e3"),
            ("1E3", "1e3"),
            ("1500e-3", "1500e-3"),
            ("4096Mi", "4Gi"),
            ("1.5Gi", "1536Mi"),
            ("512Ki", "512Ki"),
            ("0.5Ki", "512"),
            ("100m", "100m"),
            ("-2000m", "-2"),
            ("1n", "1n"),
            ("0.1n", "1n"),
            ("1E", "1E"),
            ("110", "110"),
        ] {
            assert_eq!(
                Quantity::parse(text).map(|quantity| quantity.to_string()).as_deref(),
                Some(want),
                "{text}"
            );
        }
        for odd in ["", "-", ".", "x", "1x", "1.2.3", "1e", "9e999999999", "1 ", "é", "1Kib"] {
            assert_eq!(Quantity::parse(odd), None, "{odd}");
        }
    }

    #[test]
    fn exponent_of_any_length_is_read() {
        for text in ["1.5e-2147483648", "1.5e2147483647", "1.5e-99999999999"] {
            let _ = Quantity::canonical(text);
        }
    }

    /// Texts and what Kubernetes' own code made of them, as a JSON value that is read and written.
    #[test]
    fn texts_are_written_as_upstream_writes_them() {
        let cases = include_str!("../testdata/quantities.tsv");
        let cases = cases.lines().filter_map(|line| line.split_once('\t'));
        let wrong = cases.filter(|(text, want)| Quantity::canonical(text).as_deref() != Some(*want));
        let wrong: Vec<_> = wrong
            .map(|(text, want)| (text, want, Quantity::canonical(text)))
            .collect();
        assert!(wrong.is_empty(), "{wrong:?}");
    }

    proptest! {
        #[test]
        fn any_text_is_survived_and_the_written_form_is_the_same_amount(text in "[-+]?[0-9.]{0,40}[eEKMGTPinumk0-9-]{0,6}") {
            if let Some(quantity) = Quantity::parse(&text) {
                let again = Quantity::parse(&quantity.to_string()).map(Quantity::nano);
                prop_assert_eq!(again, Some(quantity.nano), "{}", quantity);
            }
        }
    }
}
