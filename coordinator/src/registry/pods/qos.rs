//! Which class of service a pod is in, told from what its containers request and are limited to.

use serde_json::{Map, Value};

use crate::registry::fields::{at, items};

/// The resources that count.
const COUNTED: [&str; 2] = ["cpu", "memory"];

/// Billionths, the finest unit a quantity has.
const NANO: i128 = 1_000_000_000;

/// Quantities are rounded up to thousandths.
const MILLI: i128 = NANO / 1000;

/// `Guaranteed`, `Burstable` or `BestEffort`, for a pod with its defaults.
pub(super) fn class(pod: &Value) -> &'static str {
    let whole = at(pod, &["spec", "resources"]);
    let bearers: Vec<&Value> = if whole.is_object() {
        vec![whole]
    } else {
        let containers = [["spec", "containers"], ["spec", "initContainers"]];
        let all = containers.iter().flat_map(|path| items(pod, path));
        all.map(|container| at(container, &["resources"])).collect()
    };
    let sum = |part: &str, name: &str| {
        let amounts = bearers.iter().map(|bearer| amount(at(bearer, &[part]), name));
        amounts.fold(0_i128, i128::saturating_add)
    };
    let totals = COUNTED.map(|name| (sum("requests", name), sum("limits", name)));
    if totals == [(0, 0); 2] {
        return "BestEffort";
    }
    let is_limited = |bearer: &&Value| COUNTED.iter().all(|name| amount(at(bearer, &["limits"]), name) > 0);
    let is_guaranteed = bearers.iter().all(is_limited) && totals.iter().all(|(requested, limit)| requested == limit);
    if is_guaranteed { "Guaranteed" } else { "Burstable" }
}

/// How much of a resource there is, in billionths; zero for none, for less than none, and for what is no quantity.
fn amount(list: &Value, name: &str) -> i128 {
    let quantity = list.as_object().and_then(|list: &Map<String, Value>| list.get(name));
    let found = match quantity {
        Some(Value::String(text)) => nano(text),
        Some(Value::Number(number)) => nano(&number.to_string()),
        _ => None,
    };
    found.unwrap_or_default().max(0)
}

/// Reads a quantity, in billionths rounded up to thousandths. What is beyond all measure is as much as there can be.
fn nano(text: &str) -> Option<i128> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let (base, exponent) = scale(suffix)?;
    let mut value: i128 = 0;
    for digit in whole.chars().chain(fraction.chars()) {
        let digit = i128::from(digit.to_digit(10)?);
        value = value.saturating_mul(10).saturating_add(digit);
    }
    value = value.saturating_mul(base);
    // In billionths; the digits of the fraction are counted as if they were whole ones so far.
    let shift = exponent
        .saturating_add(9)
        .saturating_sub(i32::try_from(fraction.len()).ok()?);
    let power = 10_i128.saturating_pow(shift.unsigned_abs());
    value = if shift >= 0 {
        value.saturating_mul(power)
    } else {
        ceil(value, power)
    };
    Some(ceil(value, MILLI).saturating_mul(MILLI))
}

fn ceil(value: i128, unit: i128) -> i128 {
    value / unit + i128::from(value % unit != 0)
}

/// What a suffix multiplies by: a factor, and a power of ten.
fn scale(suffix: &str) -> Option<(i128, i32)> {
    let binary = |power: u32| Some((1_i128 << (10 * power), 0));
    match suffix {
        "" => Some((1, 0)),
        "n" => Some((1, -9)),
        "u" => Some((1, -6)),
        "m" => Some((1, -3)),
        "k" => Some((1, 3)),
        "M" => Some((1, 6)),
        "G" => Some((1, 9)),
        "T" => Some((1, 12)),
        "P" => Some((1, 15)),
        "E" => Some((1, 18)),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        _ => Some((1, suffix.strip_prefix(['e', 'E'])?.parse().ok()?)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn quantities_are_read_in_all_their_forms() {
        for (text, want) in [
            ("1", Some(NANO)),
            ("1000m", Some(NANO)),
            ("1e3", Some(1000 * NANO)),
            ("1.5", Some(NANO + NANO / 2)),
            (".5", Some(NANO / 2)),
            ("1n", Some(MILLI)),
            ("2Ki", Some(2048 * NANO)),
            ("1e-12", Some(MILLI)),
            ("1x", None),
        ] {
            assert_eq!(nano(text), want, "{text}");
        }
        for odd in [
            "9e999999999",
            "1e-2147483648",
            "99999999999999999999999999999999999999999999Ei",
            "1.2.3",
            "é",
        ] {
            nano(odd);
        }
    }

    #[test]
    fn the_class_follows_requests_and_limits() {
        let full = json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1000m", "memory": "1024Mi"}});
        let part = json!({"limits": {"cpu": "1"}, "requests": {"cpu": "1"}});
        let none = json!({"limits": {"x/gpu": 1}, "requests": {"cpu": "0"}});
        let pod = |containers: &[&Value], init: &[&Value]| {
            let list = |all: &[&Value]| all.iter().map(|one| json!({"resources": one})).collect::<Vec<_>>();
            json!({"spec": {"containers": list(containers), "initContainers": list(init)}})
        };
        for (containers, init, want) in [
            (&[&full, &full][..], &[&full][..], "Guaranteed"),
            (&[&full, &part], &[], "Burstable"),
            (&[&full], &[&none], "Burstable"),
            (&[&none], &[], "BestEffort"),
            (&[], &[], "BestEffort"),
        ] {
            assert_eq!(class(&pod(containers, init)), want, "{containers:?} {init:?}");
        }
        let mut whole = pod(&[&none], &[]);
        whole["spec"]["resources"] = full;
        assert_eq!(class(&whole), "Guaranteed", "what the pod has as a whole comes first");
        assert_eq!(class(&json!({"spec": 5})), "BestEffort");
    }
}
