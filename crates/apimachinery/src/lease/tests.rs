//! Reading, writing and validating the spec of a Lease.

use bytes::Bytes;
use serde_json::json;

use super::*;
use crate::kind::find_kind;

fn lease() -> Value {
    json!({
        "metadata": {"name": "n", "namespace": "ns"},
        "spec": {
            "holderIdentity": "me",
            "leaseDurationSeconds": 40,
            "renewTime": "2026-11-20T11:00:00.000001+01:00",
            "unknown": {"kept": 1},
        },
    })
}

#[test]
fn object_and_value_read_the_same() {
    let text = lease().to_string();
    let object = Object::parse(Bytes::from(text), find_kind("coordination.k8s.io", "leases").unwrap()).unwrap();
    let spec = LeaseSpec::from_object(&object).unwrap();
    assert_eq!(LeaseSpec::from_value(&lease()).unwrap(), spec);
    assert_eq!(
        (spec.holder(), spec.lease_duration_seconds, spec.acquire_time),
        (Some("me"), Some(40), None)
    );
    assert_eq!(spec.renew_time, Some(MicroTime::from_unix(1_795_168_800, 1000)));
    assert_eq!(LeaseSpec::from_value(&json!({"spec": null})), Ok(LeaseSpec::default()));
}

#[test]
fn writing_keeps_what_it_does_not_know() {
    let mut value = lease();
    let mut spec = LeaseSpec::from_value(&value).unwrap();
    spec.holder_identity = Some(String::new());
    spec.lease_duration_seconds = None;
    spec.lease_transitions = Some(3);
    spec.write_to(&mut value);
    assert_eq!(
        value["spec"],
        json!({
            "holderIdentity": "",
            "leaseTransitions": 3,
            "renewTime": "2026-11-20T10:00:00.000001Z",
            "unknown": {"kept": 1},
        })
    );
    assert_eq!(LeaseSpec::from_value(&value).unwrap(), spec);
    assert_eq!(spec.holder(), None);
    let mut nothing = Value::Null;
    spec.write_to(&mut nothing);
    assert_eq!(nothing["spec"]["leaseTransitions"], 3);
}

#[test]
fn wrong_types_are_bad_requests() {
    for spec in [
        json!({"renewTime": "2026-11-20T10:00:00Z"}),
        json!({"leaseDurationSeconds": "40"}),
        json!({"leaseDurationSeconds": 1.5}),
        json!({"leaseTransitions": 3_000_000_000_i64}),
        json!({"holderIdentity": 1}),
        json!([]),
    ] {
        let lease = json!({ "spec": spec });
        assert_eq!(LeaseSpec::from_value(&lease).unwrap_err().code(), 400, "{lease}");
    }
}

/// Conformance: 5.01
#[test]
fn validation_speaks_like_kube_apiserver() {
    let errors = |spec: Value| -> Vec<String> {
        let spec = LeaseSpec::from_value(&json!({ "spec": spec })).unwrap();
        spec.validate().iter().map(ToString::to_string).collect()
    };
    assert_eq!(
        errors(json!({"leaseDurationSeconds": 0, "leaseTransitions": -1})),
        [
            "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0",
            "spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0",
        ]
    );
    assert_eq!(
        errors(json!({"strategy": "Mine", "preferredHolder": "x"})),
        ["spec.strategy: Unsupported value: \"Mine\": supported values: \"OldestEmulationVersion\""]
    );
    assert_eq!(
        errors(json!({"preferredHolder": "x"})),
        ["spec.preferredHolder: Forbidden: may only be specified if `strategy` is defined"]
    );
    assert_eq!(errors(json!({"strategy": "a.b/c/d"})).len(), 1);
    for valid in [
        json!({}),
        json!({"holderIdentity": "", "leaseDurationSeconds": 1, "leaseTransitions": 0, "preferredHolder": ""}),
        json!({"strategy": "example.com/Mine", "preferredHolder": "x"}),
        json!({"strategy": "OldestEmulationVersion"}),
    ] {
        assert!(errors(valid.clone()).is_empty(), "{valid}");
    }
}
