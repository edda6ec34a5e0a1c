//! Warnings for the writer of a pod: names that make odd host names, selectors that select nothing, values that hide
//! others.

use std::collections::HashSet;

use serde_json::Value;
use yurt_apimachinery::meta::{self, dns_label_errors};
use yurt_apimachinery::quantity::Quantity;

use crate::registry::fields::{is_set, items, text};

/// The warnings, with kube-apiserver's texts.
pub(super) fn of(pod: &Value, is_new: bool) -> Vec<String> {
    let mut warnings = Vec::new();
    if is_new {
        let faults: Vec<String> = dns_label_errors(meta::text(pod, "name"));
        if !faults.is_empty() {
            warnings.push(format!(
                "metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label \
                 is recommended: [{}]",
                faults.join(" ")
            ));
        }
    }
    for (index, constraint) in items(pod, &["spec", "topologySpreadConstraints"]).iter().enumerate() {
        if !is_set(constraint, &["labelSelector"]) {
            warnings.push(format!(
                "spec.topologySpreadConstraints[{index}].labelSelector: a null labelSelector results in matching no pod"
            ));
        }
    }
    for (index, secret) in items(pod, &["spec", "imagePullSecrets"]).iter().enumerate() {
        if text(secret, &["name"]).is_empty() {
            warnings.push(format!("spec.imagePullSecrets[{index}].name: invalid empty name \"\""));
        }
    }
    for list in ["initContainers", "containers"] {
        for (index, container) in items(pod, &["spec", list]).iter().enumerate() {
            let path = format!("spec.{list}[{index}]");
            fractions(container, &path, &mut warnings);
            hidden(container, &path, &mut warnings);
        }
    }
    warnings
}

/// Warns about fractions of a byte of memory.
fn fractions(container: &Value, path: &str, warnings: &mut Vec<String>) {
    for amounts in ["limits", "requests"] {
        for name in ["memory", "ephemeral-storage"] {
            let shown = text(container, &["resources", amounts, name]);
            if Quantity::parse(shown).is_some_and(|amount| amount.nano() % 1_000_000_000 != 0) {
                warnings.push(format!(
                    "{path}.resources.{amounts}[{name}]: fractional byte value {shown:?} is invalid, must be an integer"
                ));
            }
        }
    }
}

/// Warns about variables that hide an earlier one of the same name without using it.
fn hidden(container: &Value, path: &str, warnings: &mut Vec<String>) {
    let variables = items(container, &["env"]);
    let mut seen = HashSet::new();
    for (index, variable) in variables.iter().enumerate() {
        let (name, value) = (text(variable, &["name"]), text(variable, &["value"]));
        let is_second = !seen.insert(name);
        let reference = format!("$({name})");
        if is_second && (value == reference || !value.contains(&reference)) {
            warnings.push(format!(
                "{path}.env[{index}]: hides previous definition of {name:?}, which may be dropped when using apply"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn odd_names_selectors_and_variables_are_named() {
        let pod = json!({"metadata": {"name": "a.b"}, "spec": {"topologySpreadConstraints": [{}],
            "containers": [{"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "$(A)2"}, {"name": "A", "value": "3"}]}]}});
        let said = of(&pod, true);
        assert!(said[0].ends_with("[must not contain dots]") && said[1].contains("null labelSelector"));
        assert!(
            said[2].starts_with("spec.containers[0].env[2]: hides") && said.len() == 3,
            "{said:?}"
        );
        assert_eq!(of(&pod, false).len(), 2, "a name stays");
    }
}
