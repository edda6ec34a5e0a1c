//! Worked examples of the specification (filters-behaviour.md 10.2) with our decisions (section 13).

use std::borrow::Cow;

use super::*;
use crate::filter::tests::{World, WorldPool, check, kind, slice};

fn v1_slice(world: &World, input: &str, output: Option<&str>) {
    check(
        &ServiceTopology,
        kind("discovery.k8s.io", "endpointslices"),
        world,
        input,
        output,
    );
}

fn east(input: &str, output: &str) {
    v1_slice(&World::default(), input, Some(output));
}

fn endpoints(world: &World, input: &str, output: &str) {
    check(&ServiceTopology, kind("", "endpoints"), world, input, Some(output));
}

#[test]
fn example_1_pool_members_stay() {
    let input = r#"{"metadata":{"namespace":"shop","name":"web-x","labels":{"kubernetes.io/service-name":"web"}},"endpoints":[{"addresses":["10.9.0.1"],"nodeName":"e1"},{"addresses":["10.9.0.2"],"nodeName":"w1"},{"addresses":["10.9.0.3"],"nodeName":"e2"}]}"#;
    let output = r#"{"metadata":{"namespace":"shop","name":"web-x","labels":{"kubernetes.io/service-name":"web"}},"endpoints":[{"addresses":["10.9.0.1"],"nodeName":"e1"},{"addresses":["10.9.0.3"],"nodeName":"e2"}]}"#;
    east(input, output);
}

#[test]
fn example_2_hostname_keeps_this_node() {
    let input = r#"{"metadata":{"namespace":"shop","name":"loc-x","labels":{"kubernetes.io/service-name":"loc"}},"endpoints":[{"addresses":["10.9.0.1"],"nodeName":"e1"},{"addresses":["10.9.0.2"],"nodeName":"w1"},{"addresses":["10.9.0.3"],"nodeName":"e2"}]}"#;
    let output = r#"{"metadata":{"namespace":"shop","name":"loc-x","labels":{"kubernetes.io/service-name":"loc"}},"endpoints":[{"addresses":["10.9.0.1"],"nodeName":"e1"}]}"#;
    east(input, output);
}

#[test]
fn example_3_zone_is_a_synonym_of_the_pool() {
    let input = r#"{"metadata":{"namespace":"shop","name":"zon-x","labels":{"kubernetes.io/service-name":"zon"}},"endpoints":[{"addresses":["10.9.0.1"],"nodeName":"e1"},{"addresses":["10.9.0.2"],"nodeName":"w1"}]}"#;
    let output = r#"{"metadata":{"namespace":"shop","name":"zon-x","labels":{"kubernetes.io/service-name":"zon"}},"endpoints":[{"addresses":["10.9.0.1"],"nodeName":"e1"}]}"#;
    east(input, output);
}

#[test]
fn example_4_v1beta1_goes_by_the_topology_hostname() {
    let kind = ResourceKind {
        version: Cow::Borrowed("v1beta1"),
        ..kind("discovery.k8s.io", "endpointslices").clone()
    };
    let input = r#"{"metadata":{"namespace":"shop","name":"web-x","labels":{"kubernetes.io/service-name":"web"}},"endpoints":[{"addresses":["10.9.0.1"],"topology":{"kubernetes.io/hostname":"e1"}},{"addresses":["10.9.0.2"],"topology":{"kubernetes.io/hostname":"w1"}},{"addresses":["10.9.0.3"]}]}"#;
    let output = r#"{"metadata":{"namespace":"shop","name":"web-x","labels":{"kubernetes.io/service-name":"web"}},"endpoints":[{"addresses":["10.9.0.1"],"topology":{"kubernetes.io/hostname":"e1"}}]}"#;
    check(&ServiceTopology, &kind, &World::default(), input, Some(output));
}

#[test]
fn example_5_emptied_slice_survives() {
    let input = r#"{"metadata":{"namespace":"shop","name":"web-x","labels":{"kubernetes.io/service-name":"web"}},"endpoints":[{"addresses":["10.9.0.1"],"nodeName":"w1"}]}"#;
    let output = r#"{"metadata":{"namespace":"shop","name":"web-x","labels":{"kubernetes.io/service-name":"web"}},"endpoints":[]}"#;
    east(input, output);
}

#[test]
fn example_6_service_without_the_annotation() {
    let text = r#"{"metadata":{"namespace":"shop","name":"plain-x","labels":{"kubernetes.io/service-name":"plain"}},"endpoints":[{"addresses":["10.9.0.1"],"nodeName":"e1"},{"addresses":["10.9.0.2"],"nodeName":"w1"}]}"#;
    east(text, text);
}

#[test]
fn example_7_unrecognised_value() {
    let text = r#"{"metadata":{"namespace":"shop","name":"odd-x","labels":{"kubernetes.io/service-name":"odd"}},"endpoints":[{"addresses":["10.9.0.1"],"nodeName":"e1"},{"addresses":["10.9.0.2"],"nodeName":"w1"}]}"#;
    east(text, text);
}

#[test]
fn example_8_unknown_service_drops_the_slice() {
    let input = r#"{"metadata":{"namespace":"shop","name":"ghost-x","labels":{"kubernetes.io/service-name":"ghost"}},"endpoints":[{"addresses":["10.9.0.1"],"nodeName":"e1"},{"addresses":["10.9.0.2"],"nodeName":"w1"}]}"#;
    v1_slice(&World::default(), input, None);
    let unlabelled = input.replace("kubernetes.io/service-name", "other");
    east(&unlabelled, &unlabelled);
    let empty = input.replace("ghost\"}", "\"}");
    east(&empty, &empty);
}

#[test]
fn examples_9_and_10_node_without_a_pool_is_a_pool_of_its_own() {
    let input = r#"{"metadata":{"namespace":"shop","name":"web-x","labels":{"kubernetes.io/service-name":"web"}},"endpoints":[{"addresses":["10.9.0.1"],"nodeName":"e1"},{"addresses":["10.9.0.2"],"nodeName":"e2"}]}"#;
    let output = r#"{"metadata":{"namespace":"shop","name":"web-x","labels":{"kubernetes.io/service-name":"web"}},"endpoints":[{"addresses":["10.9.0.1"],"nodeName":"e1"}]}"#;
    v1_slice(&World::with_pool(WorldPool::NoPool), input, Some(output));
}

#[test]
fn examples_11_and_15_missing_pool_is_ignored() {
    let text = r#"{"metadata":{"namespace":"shop","name":"web-x","labels":{"kubernetes.io/service-name":"web"}},"endpoints":[{"addresses":["10.9.0.1"],"nodeName":"e1"},{"addresses":["10.9.0.2"],"nodeName":"w1"}]}"#;
    v1_slice(&World::with_pool(WorldPool::Missing), text, Some(text));
}

#[test]
fn pool_that_is_not_known_yet_drops_the_slice() {
    let input = r#"{"metadata":{"namespace":"shop","name":"web-x","labels":{"kubernetes.io/service-name":"web"}},"endpoints":[{"addresses":["10.9.0.1"],"nodeName":"e1"},{"addresses":["10.9.0.2"],"nodeName":"w1"}]}"#;
    v1_slice(&World::with_pool(WorldPool::Unknown), input, None);
}

#[test]
fn hostname_topology_needs_no_pool() {
    let input = r#"{"metadata":{"namespace":"shop","name":"loc-x","labels":{"kubernetes.io/service-name":"loc"}},"endpoints":[{"addresses":["10.9.0.1"],"nodeName":"e1"},{"addresses":["10.9.0.2"],"nodeName":"w1"},{"addresses":["10.9.0.3"],"nodeName":"e2"}]}"#;
    let output = r#"{"metadata":{"namespace":"shop","name":"loc-x","labels":{"kubernetes.io/service-name":"loc"}},"endpoints":[{"addresses":["10.9.0.1"],"nodeName":"e1"}]}"#;
    v1_slice(&World::with_pool(WorldPool::Unknown), input, Some(output));
}

#[test]
fn example_12_pool_without_members_is_empty() {
    let input = r#"{"metadata":{"namespace":"shop","name":"web-x","labels":{"kubernetes.io/service-name":"web"}},"endpoints":[{"addresses":["10.9.0.1"],"nodeName":"e1"},{"addresses":["10.9.0.2"],"nodeName":"w1"}]}"#;
    let output = r#"{"metadata":{"namespace":"shop","name":"web-x","labels":{"kubernetes.io/service-name":"web"}},"endpoints":[]}"#;
    v1_slice(&World::with_pool(WorldPool::Void), input, Some(output));
}

#[test]
fn example_14_endpoint_without_a_node_is_removed() {
    let input = r#"{"metadata":{"namespace":"shop","name":"web-x","labels":{"kubernetes.io/service-name":"web"}},"endpoints":[{"addresses":["10.9.0.1"],"nodeName":"e1"},{"addresses":["10.9.0.2"]},{"addresses":["10.9.0.3"],"nodeName":"e2"}]}"#;
    let output = r#"{"metadata":{"namespace":"shop","name":"web-x","labels":{"kubernetes.io/service-name":"web"}},"endpoints":[{"addresses":["10.9.0.1"],"nodeName":"e1"},{"addresses":["10.9.0.3"],"nodeName":"e2"}]}"#;
    east(input, output);
}

#[test]
fn example_16_both_address_lists_of_endpoints_are_cut() {
    let input = r#"{"metadata":{"namespace":"shop","name":"web"},"subsets":[{"addresses":[{"ip":"10.9.0.1","nodeName":"e1"},{"ip":"10.9.0.2","nodeName":"w1"},{"ip":"10.9.0.3"}],"notReadyAddresses":[{"ip":"10.9.1.1","nodeName":"e2"},{"ip":"10.9.1.2","nodeName":"w1"}]}]}"#;
    let output = r#"{"metadata":{"namespace":"shop","name":"web"},"subsets":[{"addresses":[{"ip":"10.9.0.1","nodeName":"e1"}],"notReadyAddresses":[{"ip":"10.9.1.1","nodeName":"e2"}]}]}"#;
    endpoints(&World::default(), input, output);
}

#[test]
fn example_18_emptied_endpoints_survive_without_subsets() {
    let input = r#"{"metadata":{"namespace":"shop","name":"web"},"subsets":[{"addresses":[{"ip":"10.9.0.1","nodeName":"w1"}]}]}"#;
    let output = r#"{"metadata":{"namespace":"shop","name":"web"}}"#;
    endpoints(&World::default(), input, output);
}

#[test]
fn subset_stays_with_addresses_of_either_kind() {
    endpoints(
        &World::default(),
        r#"{"metadata":{"namespace":"shop","name":"loc"},"subsets":[{"addresses":[{"ip":"10.9.0.1","nodeName":"w1"}],"notReadyAddresses":[{"ip":"10.9.0.2","nodeName":"e1"}],"ports":[{"port":80}]},{"addresses":[{"ip":"10.9.0.3","nodeName":"w1"}],"ports":[{"port":81}]}]}"#,
        r#"{"metadata":{"namespace":"shop","name":"loc"},"subsets":[{"notReadyAddresses":[{"ip":"10.9.0.2","nodeName":"e1"}],"ports":[{"port":80}]}]}"#,
    );
}

#[test]
fn endpoints_of_an_unknown_service_are_dropped() {
    let text = r#"{"metadata":{"namespace":"shop","name":"ghost"},"subsets":[]}"#;
    check(&ServiceTopology, kind("", "endpoints"), &World::default(), text, None);
}

#[test]
fn service_is_looked_up_in_the_namespace_of_the_object() {
    let text = r#"{"metadata":{"namespace":"other","name":"web-x","labels":{"kubernetes.io/service-name":"web"}},"endpoints":[]}"#;
    v1_slice(&World::default(), text, None);
}

#[test]
fn nothing_to_remove_is_kept_byte_for_byte() {
    for list in ["null", "[]", r#"[{"nodeName":"e2", "addresses":["10.9.0.1"]}]"#] {
        let text = format!(
            r#"{{"metadata":{{"namespace":"shop","name":"x","labels":{{"kubernetes.io/service-name":"web"}}}},  "endpoints":{list}}}"#
        );
        east(&text, &text);
    }
    let bare = r#"{"metadata":{"namespace":"shop","name":"x","labels":{"kubernetes.io/service-name":"web"}}}"#;
    east(bare, bare);
    let bare = r#"{"metadata":{"namespace":"shop","name":"web"},"subsets":null}"#;
    endpoints(&World::default(), bare, bare);
}

#[test]
fn unknown_fields_pass_through() {
    east(
        r#"{"metadata":{"namespace":"shop","name":"x","labels":{"kubernetes.io/service-name":"web"},"x-meta":1},"endpoints":[{"nodeName":"w1"},{"nodeName":"e1","x-new":{"deep":[null,0.5]}}],"ports":[],"x-top":"kept"}"#,
        r#"{"metadata":{"namespace":"shop","name":"x","labels":{"kubernetes.io/service-name":"web"},"x-meta":1},"endpoints":[{"nodeName":"e1","x-new":{"deep":[null,0.5]}}],"ports":[],"x-top":"kept"}"#,
    );
}

#[test]
fn what_cannot_be_filtered_is_not_passed() {
    let text =
        r#"{"metadata":{"namespace":"shop","name":"x","labels":{"kubernetes.io/service-name":"web"}},"endpoints":{}}"#;
    v1_slice(&World::default(), text, None);
    let (kind, object) = slice(
        r#"{"metadata":{"namespace":"shop","name":"x","labels":{"kubernetes.io/service-name":"web"}},"endpoints":[null,7,{"nodeName":7}]}"#,
    );
    let verdict = ServiceTopology.filter(kind, &object, &World::default().context());
    assert!(matches!(verdict, Verdict::Replace(object) if object.to_value()["endpoints"] == serde_json::json!([])));
}
