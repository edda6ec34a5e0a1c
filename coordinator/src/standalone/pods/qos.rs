//! Quality of service class of a pod, derived from the requests and limits of its containers.

use serde_json::{Map, Value};
use yurt_apimachinery::quantity::Quantity;

use crate::registry::fields::{at, items};

/// The resources that count.
const COUNTED: [&str; 2] = ["cpu", "memory"];

/// Quantities are rounded up to thousandths; these are billionths.
const MILLI: i128 = 1_000_000;

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

/// Amount of a resource in billionths; zero for none, for a negative one, and for an invalid quantity.
fn amount(list: &Value, name: &str) -> i128 {
    let quantity = list.as_object().and_then(|list: &Map<String, Value>| list.get(name));
    let found = match quantity {
        Some(Value::String(text)) => nano(text),
        Some(Value::Number(number)) => nano(&number.to_string()),
        _ => None,
    };
    found.unwrap_or_default().max(0)
}

/// Parses a quantity, in billionths rounded up to thousandths. One out of range counts as none.
fn nano(text: &str) -> Option<i128> {
    let nano = Quantity::parse(text)?.nano();
    Some((nano / MILLI + i128::from(nano % MILLI > 0)).saturating_mul(MILLI))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
