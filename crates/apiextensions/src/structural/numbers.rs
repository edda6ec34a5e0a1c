//! Comparison of numbers with the limits of a schema: of integers exactly, of others as kube-apiserver compares them.

use std::cmp::Ordering;

use serde_json::Value;

/// Largest whole number that a quotient may be: above it, neighbouring floats are more than 1 apart.
const WHOLE_MAX: f64 = 9_007_199_254_740_991.0;
/// Relative error up to which a quotient counts as a whole number.
const WHOLE_ERROR_MAX: f64 = 1e-9;

/// Order of a number and a limit; `None` if the value is no number.
pub(super) fn compare(value: &Value, limit: f64) -> Option<Ordering> {
    match (integer(value), whole(limit)) {
        (Some(value), Some(limit)) => Some(value.cmp(&limit)),
        _ => value.as_f64()?.partial_cmp(&limit),
    }
}

/// True if a number is a multiple of a factor above 0.
pub(super) fn is_multiple(value: &Value, factor: f64) -> bool {
    if let (Some(value), Some(factor)) = (integer(value), whole(factor)) {
        return value % factor == 0;
    }
    let number = value.as_f64().unwrap_or_default();
    // The inverse of most decimal fractions is exact.
    let quotient = if factor < 1.0 {
        1.0 / factor * number
    } else {
        number / factor
    };
    let nearest = quotient.round();
    let error = (quotient - nearest).abs();
    quotient.abs() <= WHOLE_MAX && (error == 0.0 || error < WHOLE_ERROR_MAX * nearest.abs())
}

fn integer(value: &Value) -> Option<i128> {
    value.as_i64().map(i128::from).or(value.as_u64().map(i128::from))
}

/// A float as an integer. Saturates far beyond the integers of JSON.
fn whole(number: f64) -> Option<i128> {
    (number.fract() == 0.0).then_some(number as i128)
}
