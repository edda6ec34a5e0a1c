//! Worked examples of the specification (filters-behaviour.md 10.1), as HEAD behaves.

use super::*;
use crate::filter::tests::{World, check, kind, service};

fn example(input: &str, output: &str) {
    check(
        &MasterService,
        kind("", "services"),
        &World::default(),
        input,
        Some(output),
    );
}

#[test]
fn example_2_address_addresses_and_https_port_are_the_hubs() {
    example(
        r#"{"metadata":{"namespace":"default","name":"kubernetes"},"spec":{"clusterIP":"10.43.0.1","clusterIPs":["10.43.0.1"],"ports":[{"name":"https","port":443,"targetPort":6443}]}}"#,
        r#"{"metadata":{"namespace":"default","name":"kubernetes"},"spec":{"clusterIP":"169.254.2.1","clusterIPs":["169.254.2.1"],"ports":[{"name":"https","port":10268,"targetPort":6443}]}}"#,
    );
}

#[test]
fn example_3_only_the_first_port_named_https_is_rewritten() {
    example(
        r#"{"metadata":{"namespace":"default","name":"kubernetes"},"spec":{"clusterIP":"10.43.0.1","ports":[{"name":"metrics","port":9000},{"name":"https","port":443},{"name":"https","port":8443}]}}"#,
        r#"{"metadata":{"namespace":"default","name":"kubernetes"},"spec":{"clusterIP":"169.254.2.1","clusterIPs":["169.254.2.1"],"ports":[{"name":"metrics","port":9000},{"name":"https","port":10268},{"name":"https","port":8443}]}}"#,
    );
}

#[test]
fn example_4_without_a_port_named_https_only_the_address_changes() {
    example(
        r#"{"metadata":{"namespace":"default","name":"kubernetes"},"spec":{"clusterIP":"10.43.0.1","ports":[{"name":"api","port":443}]}}"#,
        r#"{"metadata":{"namespace":"default","name":"kubernetes"},"spec":{"clusterIP":"169.254.2.1","clusterIPs":["169.254.2.1"],"ports":[{"name":"api","port":443}]}}"#,
    );
}

#[test]
fn examples_5_and_6_other_namespace_or_name_is_kept() {
    for text in [
        r#"{"metadata":{"namespace":"kube-system","name":"kubernetes"},"spec":{"clusterIP":"10.43.0.9","ports":[{"name":"https","port":443}]}}"#,
        r#"{"metadata":{"namespace":"default","name":"web"},"spec":{"clusterIP":"10.43.7.7","ports":[{"name":"https","port":443}]}}"#,
    ] {
        example(text, text);
    }
}

#[test]
fn example_7_dual_stack_collapses_to_one_address_and_keeps_the_policy() {
    check(
        &MasterService,
        kind("", "services"),
        &World {
            host: "fd00::2:1",
            ..World::default()
        },
        r#"{"metadata":{"namespace":"default","name":"kubernetes"},"spec":{"clusterIP":"fd01::1","clusterIPs":["fd01::1","10.43.0.1"],"ipFamilyPolicy":"PreferDualStack","ports":[{"name":"https","port":443}]}}"#,
        Some(
            r#"{"metadata":{"namespace":"default","name":"kubernetes"},"spec":{"clusterIP":"fd00::2:1","clusterIPs":["fd00::2:1"],"ipFamilyPolicy":"PreferDualStack","ports":[{"name":"https","port":10268}]}}"#,
        ),
    );
}

#[test]
fn example_8_list_keeps_order_and_count() {
    let texts = [
        r#"{"metadata":{"namespace":"default","name":"web"},"spec":{"clusterIP":"10.43.7.7","ports":[{"name":"https","port":443}]}}"#,
        r#"{"metadata":{"namespace":"default","name":"kubernetes"},"spec":{"clusterIP":"10.43.0.1","clusterIPs":["10.43.0.1"],"ports":[{"name":"https","port":443,"targetPort":6443}]}}"#,
    ];
    let world = World::default();
    let addresses = texts.map(|text| {
        let (kind, object) = service(text);
        let seen = MasterService
            .filter(kind, &object, &world.context())
            .view_of(&object)
            .unwrap();
        seen.to_value()["spec"]["clusterIP"].clone()
    });
    assert_eq!(addresses, ["10.43.7.7", "169.254.2.1"]);
}

#[test]
fn unknown_fields_and_versions_pass_through() {
    example(
        r#"{"metadata":{"namespace":"default","name":"kubernetes","resourceVersion":"7","x-new":{"a":[1]}},"spec":{"clusterIP":"10.43.0.1","x-spec":1.5,"ports":[{"name":"https","port":443,"x-port":true}]},"x-top":null}"#,
        r#"{"metadata":{"namespace":"default","name":"kubernetes","resourceVersion":"7","x-new":{"a":[1]}},"spec":{"clusterIP":"169.254.2.1","clusterIPs":["169.254.2.1"],"x-spec":1.5,"ports":[{"name":"https","port":10268,"x-port":true}]},"x-top":null}"#,
    );
}

#[test]
fn odd_shapes_do_not_panic() {
    let bare = r#"{"metadata":{"namespace":"default","name":"kubernetes"}}"#;
    example(bare, bare);
    for ports in ["null", "7", r#"["https",null,{"name":"https","port":1}]"#] {
        let (kind, object) = service(&format!(
            r#"{{"metadata":{{"namespace":"default","name":"kubernetes"}},"spec":{{"ports":{ports}}}}}"#
        ));
        let seen = MasterService
            .filter(kind, &object, &World::default().context())
            .view_of(&object)
            .unwrap();
        assert_eq!(seen.to_value()["spec"]["clusterIP"], "169.254.2.1");
    }
}
