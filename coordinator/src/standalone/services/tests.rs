//! Results of writes of Services: defaults of each type, and fields that updates keep and clear.

use super::*;

fn defaulted(mut service: Value) -> Value {
    Services.default(&mut service);
    Services.prepare_create(&mut service);
    service
}

#[test]
fn a_service_gets_the_defaults_of_its_type() {
    let service = defaulted(json!({"spec": {"clusterIP": "10.0.0.1", "ports": [{"port": 80}]}}));
    let want = json!({
        "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
        "internalTrafficPolicy": "Cluster", "sessionAffinity": "None", "type": "ClusterIP",
        "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}],
    });
    assert_eq!(service["spec"], want);
    let named = defaulted(json!({"spec": {"type": "ExternalName", "externalName": "a.b"}}));
    assert_eq!(
        named["spec"],
        json!({"type": "ExternalName", "externalName": "a.b", "sessionAffinity": "None"})
    );
    let sticky = defaulted(json!({"spec": {"sessionAffinity": "ClientIP"}}));
    assert_eq!(
        sticky["spec"]["sessionAffinityConfig"],
        json!({"clientIP": {"timeoutSeconds": 10800}})
    );
    for odd in [
        json!(1),
        json!({"spec": 3}),
        json!({"spec": {"ports": 7, "clusterIPs": "x", "type": 4}}),
    ] {
        defaulted(odd);
    }
}

#[test]
fn an_update_keeps_addresses_and_loses_what_its_type_does_not_have() {
    let old = defaulted(json!({"spec": {"type": "NodePort", "clusterIP": "10.0.0.1",
        "ports": [{"port": 80, "nodePort": 30080}]}}));
    let updated = |mut new: Value| {
        Services.default(&mut new);
        Services.prepare_update(&old, &mut new);
        new
    };
    let same = updated(json!({"spec": {"type": "NodePort", "ports": [{"port": 80}]}}));
    assert_eq!(same["spec"], old["spec"], "what was left out is kept");
    let inner = updated(
        json!({"spec": {"type": "ClusterIP", "ports": [{"port": 80, "nodePort": 30080}],
        "externalTrafficPolicy": "Cluster"}}),
    );
    assert!(
        inner["spec"].get("externalTrafficPolicy").is_none() && inner["spec"]["ports"][0].get("nodePort").is_none()
    );
    let named = updated(
        json!({"spec": {"type": "ExternalName", "externalName": "a.b", "clusterIP": "10.0.0.1",
        "clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack"}}),
    );
    for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
        assert!(named["spec"].get(field).is_none(), "{field}");
    }
    let moved = updated(json!({"spec": {"type": "NodePort", "clusterIP": "10.0.0.2", "ports": [{"port": 80}]}}));
    let errors = Services.validate(&moved, Some(&old)).unwrap();
    assert_eq!(
        errors[0].to_string(),
        "spec.clusterIPs[0]: Invalid value: [\"10.0.0.2\"]: may not change once set"
    );
}
