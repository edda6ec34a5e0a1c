//! Warnings for the writer of a Service: fields without effect for it, and deprecated fields.

use serde_json::Value;
use yurt_apimachinery::values::ip_warnings;

use crate::registry::fields::{at, items, text};

/// The annotation that preceded another deprecated one.
const HINTS: &str = "service.kubernetes.io/topology-aware-hints";

/// The warnings, with kube-apiserver's texts in its order.
pub(super) fn of(service: &Value) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut say = |text: &str| warnings.push(text.to_owned());
    let kind = text(service, &["spec", "type"]);
    let is_headless = kind == "ClusterIP" && text(service, &["spec", "clusterIP"]) == "None";
    let has_external_ips = !items(service, &["spec", "externalIPs"]).is_empty();
    if !at(service, &["metadata", "annotations", HINTS]).is_null() {
        say(&format!(
            "annotation {HINTS} is deprecated, please use service.kubernetes.io/topology-mode instead"
        ));
    }
    if is_headless {
        for (field, is_set) in [
            ("loadBalancerIP", !text(service, &["spec", "loadBalancerIP"]).is_empty()),
            ("externalIPs", has_external_ips),
            ("SessionAffinity", text(service, &["spec", "sessionAffinity"]) != "None"),
        ] {
            if is_set {
                say(&format!("spec.{field} is ignored for headless services"));
            }
        }
    }
    let addresses = items(service, &["spec", "externalIPs"]).iter().enumerate();
    for (index, address) in addresses {
        let field = format!("spec.externalIPs[{index}]");
        ip_warnings(&field, address.as_str().unwrap_or_default())
            .iter()
            .for_each(|warning| say(warning));
    }
    if has_external_ips && !is_headless && kind != "ExternalName" {
        say("spec.externalIPs is deprecated and may no longer be implemented in some clusters");
    }
    let balancer = text(service, &["spec", "loadBalancerIP"]);
    ip_warnings("spec.loadBalancerIP", balancer)
        .iter()
        .for_each(|warning| say(warning));
    if kind == "ExternalName" && has_external_ips {
        say("spec.externalIPs is ignored when spec.type is \"ExternalName\"");
    }
    if kind != "ExternalName" && !text(service, &["spec", "externalName"]).is_empty() {
        say("spec.externalName is ignored when spec.type is not \"ExternalName\"");
    }
    if text(service, &["spec", "trafficDistribution"]) == "PreferClose" {
        say("spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"");
    }
    warnings
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_that_do_nothing_are_named() {
        let plain = json!({"spec": {"type": "ClusterIP", "sessionAffinity": "None"}});
        assert!(of(&plain).is_empty());
        let headless = json!({"spec": {"type": "ClusterIP", "clusterIP": "None", "sessionAffinity": "ClientIP",
            "externalIPs": ["192.0.2.1"]}});
        let want = [
            "spec.externalIPs is ignored for headless services",
            "spec.SessionAffinity is ignored for headless services",
        ];
        assert_eq!(of(&headless), want);
        let external = json!({"spec": {"type": "ExternalName", "externalIPs": ["::ffff:192.0.2.1"]}});
        assert_eq!(of(&external).len(), 2, "{:?}", of(&external));
    }
}
