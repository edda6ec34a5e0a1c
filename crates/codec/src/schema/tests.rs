//! Spot checks of the generated table against facts of the Kubernetes API.

use super::*;

fn field(kind: &str, path: &[&str]) -> Field {
    let mut message = find("", "v1", kind).unwrap();
    let (last, parents) = path.split_last().unwrap();
    for name in parents {
        message = message.field(name).unwrap().message().unwrap();
    }
    message.field(last).unwrap()
}

#[test]
fn every_row_refers_to_rows_that_exist() {
    let mut fields = 0;
    for (at, message) in table::MESSAGES.iter().enumerate() {
        let message_at = Message(u16::try_from(at).unwrap());
        assert!(message_at.name().starts_with("io.k8s."), "{message:?}");
        for field in message_at.fields() {
            assert!(field.number() > 0 && (field.is_inline() || !field.name().is_empty()));
            assert!(
                field
                    .message()
                    .is_none_or(|inner| usize::from(inner.0) < table::MESSAGES.len())
            );
            fields += 1;
        }
    }
    assert_eq!(fields, table::FIELDS.len());
}

#[test]
fn every_builtin_kind_but_custom_resources_has_a_type() {
    for kind in yurt_apimachinery::kind::builtin_kinds() {
        let found = find(&kind.group, &kind.version, &kind.kind);
        assert_eq!(found.is_some(), kind.group != "apps.openyurt.io", "{}", kind.kind);
    }
}

#[test]
fn inlined_messages_are_flattened_for_json_and_numbered_for_protobuf() {
    let volume = field("Pod", &["spec", "volumes"]).message().unwrap();
    assert_eq!(volume.field("emptyDir").unwrap().number(), 2);
    let source = volume.field_numbered(2).unwrap();
    assert!(source.is_inline() && source.message().unwrap().name().ends_with("VolumeSource"));
    assert!(volume.json_fields().iter().all(|field| !field.is_inline()));
}

#[test]
fn merge_rules_of_both_patches_are_known() {
    let ports = field("Service", &["spec", "ports"]);
    assert_eq!(ports.merge_key(), Some("port"));
    assert_eq!(ports.apply_rule(), ApplyRule::Keyed);
    assert_eq!(
        ports.apply_keys().collect::<Vec<_>>(),
        [("port", Some("0")), ("protocol", Some("\"TCP\""))]
    );
    let owners = field("Pod", &["metadata", "ownerReferences"]);
    assert!(owners.apply_rule() == ApplyRule::Keyed && owners.message().unwrap().is_atomic());
    assert!(!ports.message().unwrap().is_atomic());
    let finalizers = field("Pod", &["metadata", "finalizers"]);
    assert!(finalizers.is_patch_merged() && finalizers.merge_key().is_none());
    assert_eq!(finalizers.apply_rule(), ApplyRule::Set);
    assert_eq!(field("Pod", &["spec", "nodeSelector"]).apply_rule(), ApplyRule::Atomic);
    assert_eq!(
        field("Service", &["spec", "externalIPs"]).apply_rule(),
        ApplyRule::Atomic
    );
    assert!(field("Pod", &["spec", "volumes"]).is_patch_retaining_keys());
}

#[test]
fn zero_values_are_emitted_where_go_does() {
    assert!(field("Pod", &["spec", "containers"]).emits_zero());
    assert!(field("Pod", &["status"]).emits_zero());
    assert!(!field("Pod", &["metadata", "creationTimestamp"]).emits_zero());
    assert!(!field("Pod", &["spec", "nodeName"]).emits_zero());
}
