//! The rules for metadata, with kube-apiserver's texts.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::kind::{NameRule, ResourceKind, find_kind};
use crate::resource_version::ResourceVersion;
use crate::time::Time;

fn kind(resource: &str) -> &'static ResourceKind {
    find_kind("", resource).unwrap()
}

fn create_errors(metadata: Value, resource: &str) -> Vec<String> {
    validate_create(&json!({ "metadata": metadata }), kind(resource))
        .iter()
        .map(ToString::to_string)
        .collect()
}

/// Conformance: 3.A08
#[test]
fn names() {
    for (name, subdomain, label) in [
        ("a", true, true),
        ("1a", true, true),
        ("a-b", true, true),
        ("a.b", true, false),
        ("", false, false),
        ("A", false, false),
        ("-a", false, false),
        ("a-", false, false),
        ("a..b", false, false),
        ("a_b", false, false),
        ("é", false, false),
    ] {
        assert_eq!(dns_subdomain_errors(name).is_empty(), subdomain, "{name}");
        assert_eq!(dns_label_errors(name).is_empty(), label, "{name}");
    }
    assert_eq!(dns_label_errors("a.b"), ["must not contain dots"]);
    assert_eq!(
        dns_label_errors(&"a".repeat(64)),
        ["must be no more than 63 characters"]
    );
    assert_eq!(
        dns_subdomain_errors(&"a".repeat(254)),
        ["must be no more than 253 characters"]
    );
    assert!(dns_subdomain_errors(&"a".repeat(253)).is_empty());
    assert_eq!(
        dns_label_errors("A"),
        [
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end \
          with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
          '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
        ]
    );
}

#[test]
fn prefixes_may_end_in_a_dash() {
    assert!(name_errors(NameRule::DnsLabel, "web-", true).is_empty());
    assert!(!name_errors(NameRule::DnsLabel, "web-", false).is_empty());
    assert!(!name_errors(NameRule::DnsSubdomain, "Web-", true).is_empty());
    assert!(!name_errors(NameRule::DnsSubdomain, "é-", true).is_empty());
}

/// Conformance: 3.A09
#[test]
fn label_keys_and_values() {
    for (key, valid) in [
        ("a", true),
        ("a.b/c", true),
        ("A_b.c-1", true),
        ("", false),
        ("a/", false),
        ("/a", false),
        ("A/b", false),
        ("a/b/c", false),
        ("-a", false),
    ] {
        assert_eq!(label_key_errors(key).is_empty(), valid, "{key}");
    }
    assert_eq!(
        label_key_errors(&"a".repeat(64)),
        ["name part must be no more than 63 bytes"]
    );
    assert!(label_value_errors("").is_empty() && label_value_errors("a_B.1").is_empty());
    assert!(!label_value_errors("a b").is_empty() && !label_value_errors("-").is_empty());
}

#[test]
fn good_metadata_passes() {
    let metadata = json!({
        "name": "n", "namespace": "ns", "labels": {"a": "b"}, "annotations": {"Ex.COM/A": "any text"},
        "finalizers": ["example.com/f"], "generation": 1,
        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u", "controller": true}],
    });
    assert_eq!(create_errors(metadata, "configmaps"), [""; 0]);
}

/// Conformance: 3.A04
#[test]
fn names_and_namespaces_are_required() {
    assert_eq!(
        create_errors(json!({}), "configmaps"),
        [
            "metadata.name: Required value: name or generateName is required",
            "metadata.namespace: Required value"
        ]
    );
    assert_eq!(
        create_errors(json!({"name": "n", "namespace": "ns"}), "nodes"),
        ["metadata.namespace: Forbidden: not allowed on this type"]
    );
    assert_eq!(
        create_errors(json!({"name": "a.b", "namespace": "n.s"}), "services").len(),
        2
    );
    assert_eq!(
        create_errors(json!({"name": "N", "generateName": "N", "namespace": "n"}), "pods").len(),
        2
    );
}

/// Conformance: 2.83
#[test]
fn annotations_are_limited_in_total() {
    let metadata = |size: usize| json!({"name": "n", "annotations": {"a": "x".repeat(size - 1)}});
    assert_eq!(create_errors(metadata(TOTAL_ANNOTATION_SIZE_LIMIT), "nodes"), [""; 0]);
    assert_eq!(
        create_errors(metadata(TOTAL_ANNOTATION_SIZE_LIMIT + 1), "nodes"),
        ["metadata.annotations: Too long: may not be more than 262144 bytes"]
    );
}

/// Conformance: 3.A09
#[test]
fn owners_and_finalizers() {
    let errors = create_errors(
        json!({"name": "n", "ownerReferences": [
            {"apiVersion": "a/b/c", "kind": "K", "name": "x", "controller": true},
            {"apiVersion": "v1", "kind": "K", "name": "y", "uid": "u", "controller": true},
        ], "finalizers": ["orphan", "foregroundDeletion", "a b"]}),
        "nodes",
    );
    assert_eq!(
        errors[0],
        "metadata.ownerReferences.uid: Invalid value: \"\": must not be empty"
    );
    assert!(errors[1].ends_with("version must not be empty"));
    assert!(
        errors[2].contains(
            "Only one reference can have Controller set to true. Found \"true\" in references for K/x and K/y"
        )
    );
    assert!(errors[3].starts_with("metadata.finalizers: Invalid value: \"a b\": name part must consist of"));
    assert!(errors[4].ends_with("finalizer orphan and foregroundDeletion cannot be both set"));
    assert_eq!(errors.len(), 5);
}

#[test]
fn wrong_types_are_errors_not_panics() {
    for metadata in [
        json!({"name": "n", "labels": []}),
        json!({"name": "n", "labels": {"a": 1}}),
        json!({"name": "n", "annotations": "x"}),
        json!({"name": "n", "finalizers": {}}),
        json!({"name": "n", "finalizers": [1]}),
        json!({"name": "n", "ownerReferences": [1]}),
        json!({"name": "n", "ownerReferences": "x"}),
        json!({"name": 1}),
        json!([]),
    ] {
        assert_eq!(create_errors(metadata.clone(), "nodes").len(), 1, "{metadata}");
    }
}

#[test]
fn updates_keep_what_is_immutable() {
    let object = |metadata: Value| json!({ "metadata": metadata });
    let errors = |new: Value, old: Value| -> Vec<String> {
        validate_update(&object(new), &object(old))
            .iter()
            .map(ToString::to_string)
            .collect()
    };
    assert_eq!(
        errors(json!({"name": "a", "uid": "u"}), json!({"name": "a", "uid": "u"})),
        [""; 0]
    );
    assert_eq!(
        errors(json!({"name": "a", "uid": "v"}), json!({"name": "a", "uid": "u"})),
        ["metadata.uid: Invalid value: \"v\": field is immutable"]
    );
    assert_eq!(
        errors(json!({"generation": 1}), json!({"generation": 2})),
        ["metadata.generation: Invalid value: 1: must not be decremented"]
    );
    let deleting = json!({"deletionTimestamp": "x", "finalizers": ["a"]});
    assert_eq!(
        errors(
            json!({"deletionTimestamp": "x", "finalizers": ["a", "b"]}),
            deleting.clone()
        ),
        [
            "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new \
          finalizers []string{\"b\"}"
        ]
    );
    assert_eq!(
        errors(json!({"deletionTimestamp": "x", "finalizers": []}), deleting),
        [""; 0]
    );
}

/// Conformance: 3.A04
#[test]
fn generated_names_fit() {
    assert_eq!(generate_name("web-", "bcdfg"), "web-bcdfg");
    assert_eq!(generate_name(&"a".repeat(100), "bcdfg").len(), 63);
    assert_eq!(
        generate_name(&"é".repeat(40), "bcdfg"),
        format!("{}bcdfg", "é".repeat(29))
    );
    assert_eq!(suffix_from_random(0), "bbbbb");
    assert_eq!(suffix_from_random(27), "bcbbb");
    let mut object = json!({"metadata": {"generateName": "a-"}});
    assert!(apply_generate_name(&mut object, "xxxxx"));
    assert_eq!(text(&object, "name"), "a-xxxxx");
    assert!(!apply_generate_name(&mut object, "yyyyy"), "a name wins");
    assert!(!apply_generate_name(&mut json!({}), "yyyyy"));
}

/// Conformance: 3.A05, 3.B01
#[test]
fn bodies_are_about_what_the_url_is_about() {
    let mut object = json!({"metadata": {"name": "a"}});
    settle_namespace(&mut object, kind("pods"), Some("ns")).unwrap();
    assert_eq!(text(&object, "namespace"), "ns");
    assert_eq!(
        settle_namespace(&mut object, kind("pods"), Some("other"))
            .unwrap_err()
            .code(),
        400
    );
    settle_namespace(&mut object, kind("nodes"), None).unwrap();
    assert_eq!(text(&object, "namespace"), "");

    let status = check_name(&object, "b").unwrap_err();
    assert_eq!(
        status.message(),
        "the name of the object (a) does not match the name on the URL (b)"
    );
    let status = check_name(&json!({}), "b").unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (
            400,
            "the name of the object (b based on URL) was undeterminable: name must be provided"
        )
    );
}

#[test]
fn fields_are_set_and_wiped() {
    let mut object = json!({"metadata": {"selfLink": "x", "deletionTimestamp": "x"}});
    set_uid(&mut object, "u");
    set_creation_timestamp(&mut object, Time::from_unix(0));
    wipe_system_fields(&mut object);
    assert_eq!(object, json!({"metadata": {}}));
    set_resource_version(&mut object, ResourceVersion(4));
    assert_eq!(check_no_resource_version(&object).unwrap_err().code(), 400);
    clear_resource_version(&mut object);
    assert_eq!(check_no_resource_version(&object), Ok(()));
    set_deletion(&mut object, Time::from_unix(0), 30);
    set_generation(&mut object, 2);
    assert_eq!(
        object,
        json!({"metadata": {"deletionTimestamp": "1970-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30, "generation": 2}})
    );
    assert_eq!(generation(&object), 2);
    let mut scalar = json!(1);
    set_name(&mut scalar, "n");
    assert_eq!(scalar, json!({"metadata": {"name": "n"}}));
}

proptest! {
    #[test]
    fn any_text_is_survived(text in "\\PC{0,20}", suffix in "[a-z]{5}") {
        for rule in [NameRule::DnsLabel, NameRule::DnsSubdomain] {
            let _ = (name_errors(rule, &text, true), name_errors(rule, &text, false));
        }
        let _ = (label_key_errors(&text), label_value_errors(&text));
        prop_assert!(generate_name(&text, &suffix).len() <= 63);
    }

    #[test]
    fn generated_names_of_good_prefixes_are_good(base in "[a-z0-9]{1,70}-?", random in any::<u64>()) {
        let name = generate_name(&base, &suffix_from_random(random));
        prop_assert!(base.len() > 63 || name_errors(NameRule::DnsLabel, &base, true).is_empty());
        prop_assert!(name_errors(NameRule::DnsLabel, &name, false).is_empty());
    }
}

#[test]
fn managers_have_names_of_bounded_length() {
    let faults = |entry: Value| {
        let object =
            json!({"metadata": {"name": "a", "namespace": "n", "managedFields": [{"manager": "kubelet"}, entry]}});
        let faults = validate_create(&object, kind("configmaps"));
        faults.iter().map(|fault| fault.field.clone()).collect::<Vec<_>>()
    };
    assert!(faults(json!({"manager": "a".repeat(128), "subresource": "b".repeat(256)})).is_empty());
    assert_eq!(
        faults(json!({"manager": "a".repeat(129), "subresource": "b".repeat(257)})),
        [
            "metadata.managedFields[1].manager",
            "metadata.managedFields[1].subresource"
        ]
    );
    assert_eq!(
        faults(json!({"manager": "a\u{7}b"})),
        ["metadata.managedFields[1].manager"]
    );
}
