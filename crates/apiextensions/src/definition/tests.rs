//! Declarations that manifests make, and manifests that are rejected.

use serde_json::json;

use super::*;

fn widgets() -> Value {
    json!({
        "apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"]},
            "versions": [
                {"name": "v1beta1", "served": true, "selectableFields": [{"jsonPath": ".spec.old"}]},
                {"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                 "schema": {"openAPIV3Schema": {"type": "object"}},
                 "selectableFields": [{"jsonPath": ".spec.color"}],
                 "additionalPrinterColumns": [
                     {"name": "Color", "type": "string", "jsonPath": ".spec.color"},
                     {"name": "Size", "type": "integer", "jsonPath": ".spec.size", "priority": 1, "description": "How big"},
                     {"name": "Weight", "type": "number", "jsonPath": ".spec.weight"},
                     {"name": "On", "type": "boolean", "jsonPath": ".spec.on"},
                     {"name": "Since", "type": "date", "jsonPath": ".status.since"},
                 ]},
                {"name": "v1alpha1"},
            ],
        },
    })
}

/// `widgets` with another value at a path.
fn with(pointer: &str, value: Value) -> Value {
    let mut manifest = widgets();
    *manifest.pointer_mut(pointer).unwrap() = value;
    manifest
}

#[test]
fn null_in_a_manifest_is_as_good_as_nothing() {
    let nothing = parse(&with("/spec/versions/1/additionalPrinterColumns", json!([]))).unwrap();
    let mut manifest = with("/spec/versions/1/additionalPrinterColumns", Value::Null);
    for (parent, names) in [
        ("/spec", &["conversion"][..]),
        ("/spec/names", &["categories", "singular", "listKind"]),
        (
            "/spec/versions/0",
            &["storage", "schema", "subresources", "additionalPrinterColumns"],
        ),
        ("/spec/versions/1/subresources", &["scale"]),
    ] {
        let parent = manifest.pointer_mut(parent).unwrap();
        names.iter().for_each(|name| parent[*name] = Value::Null);
    }
    assert_eq!(parse(&manifest).unwrap(), nothing);
    let schema = json!({"type": "object", "properties": {"a": {"enum": [null], "default": null}}});
    let kept = parse(&with("/spec/versions/1/schema/openAPIV3Schema", schema.clone())).unwrap();
    assert_eq!(kept.served[0].schema, Some(schema));
}

#[test]
fn manifest_declares_a_kind_with_all_its_versions() {
    let definition = parse(&widgets()).unwrap();
    assert_eq!(definition.name(), "widgets.example.com");
    let served: Vec<&str> = definition.served.iter().map(|served| &*served.kind.version).collect();
    assert_eq!(served, ["v1", "v1beta1"]);
    assert_eq!(definition.stored.version, "v1");
    assert_eq!(definition.stored.fields, ["spec.color", "spec.old"]);
    let [v1, old] = &definition.served[..] else {
        panic!("{definition:?}")
    };
    assert_eq!((&*v1.kind.singular, &*v1.kind.list_kind), ("widget", "WidgetList"));
    assert_eq!(v1.schema, Some(json!({"type": "object"})));
    assert!(v1.kind.has_status && !old.kind.has_status);
    assert_eq!(v1.kind.columns[0].name, "Color");
    assert_eq!(old.kind.columns[0].name, "Age", "without columns there is the age");

    let kind = v1.kind.leak();
    assert!(kind.is_custom() && !kind.unconditional_update);
    assert_eq!(kind.fields[0].path, ["spec", "color"]);
    assert_eq!(kind.check_field_label("metadata.namespace"), Ok(()));
    assert_eq!(
        kind.check_field_label("spec.old"),
        Err("field label not supported: spec.old".into())
    );
}

#[test]
fn every_mistake_in_names_is_named() {
    for (manifest, part) in [
        (
            json!({"metadata": {"name": "x"}, "spec": {"group": 5}}),
            "x: invalid type",
        ),
        (with("/metadata/name", json!("widgets.other")), "metadata.name"),
        (with("/spec/group", json!("")), "spec.group"),
        (with("/spec/group", json!("nodots")), "at least one dot"),
        (with("/spec/group", json!("Example.com")), "spec.group"),
        (
            with("/spec/group", json!("coordination.k8s.io")),
            "a group of Kubernetes itself",
        ),
        (
            with("/spec/group", json!("authorization.k8s.io")),
            "a group of Kubernetes itself",
        ),
        (with("/spec/scope", json!("Global")), "spec.scope"),
        (with("/spec/names/plural", json!("Widgets")), "spec.names.plural"),
        (with("/spec/names/plural", json!("")), "spec.names.plural"),
        (with("/spec/names/kind", json!("1Widget")), "spec.names.kind"),
        (
            with("/spec/names/shortNames/0", json!("w d")),
            "spec.names.shortNames[0]",
        ),
    ] {
        refused(&manifest, part);
    }
    let mut converted = widgets();
    converted["spec"]["conversion"] = json!({"strategy": "Webhook"});
    refused(&converted, "spec.conversion.strategy");
}

/// One line that says `part`.
fn refused(manifest: &Value, part: &str) {
    let error = parse(manifest).expect_err(part);
    assert!(error.contains(part) && !error.contains('\n'), "{part}: {error}");
}

#[test]
fn every_mistake_in_a_version_is_named() {
    let many = |n: usize| -> Value { (0..n).map(|n| json!({"jsonPath": format!(".spec.f{n}")})).collect() };
    let versions = |n: usize| -> Value {
        (0..n)
            .map(|n| json!({"name": format!("v{}", n + 1), "served": true, "storage": n == 0}))
            .collect()
    };
    for (manifest, part) in [
        (
            with("/spec/versions/0/name", json!("v1")),
            "spec.versions[1].name: v1 is there twice",
        ),
        (with("/spec/versions/0/name", json!("1")), "spec.versions[0].name"),
        (with("/spec/versions/1/storage", json!(false)), "exactly one version"),
        (with("/spec/versions", json!([])), "must hold 1 to 16"),
        (with("/spec/versions", versions(VERSIONS_MAX + 1)), "must hold 1 to 16"),
        (
            with("/spec/versions/1/schema/openAPIV3Schema", json!("x")),
            "openAPIV3Schema",
        ),
        (with("/spec/versions/1/selectableFields", many(9)), "at most 8"),
        (
            with("/spec/versions/1/selectableFields/0/jsonPath", json!(".metadata.name")),
            "in metadata",
        ),
        (
            with("/spec/versions/1/selectableFields/0/jsonPath", json!(".spec.a[0]")),
            "a path of names",
        ),
        (
            with("/spec/versions/1/additionalPrinterColumns/0/type", json!("colour")),
            "Columns[0].type",
        ),
        (
            with("/spec/versions/1/additionalPrinterColumns/0/name", json!("")),
            "Columns[0].name",
        ),
        (
            with("/spec/versions/1/additionalPrinterColumns/0/jsonPath", json!("spec")),
            "Columns[0].jsonPath",
        ),
    ] {
        refused(&manifest, part);
    }
    for manifest in [
        with("/spec/versions", versions(VERSIONS_MAX)),
        with("/spec/versions/1/selectableFields", many(SELECTABLE_FIELDS_MAX)),
    ] {
        parse(&manifest).unwrap();
    }
}

#[test]
fn names_are_unique_in_a_group_and_the_number_is_bounded() {
    let named = |plural: &str, kind: &str, short: &str| {
        let mut manifest = widgets();
        manifest["metadata"]["name"] = format!("{plural}.example.com").into();
        manifest["spec"]["names"] = json!({"plural": plural, "kind": kind, "shortNames": [short]});
        parse(&manifest).unwrap()
    };
    let widgets = named("widgets", "Widget", "wd");
    for (other, part) in [
        (named("widgets", "Other", "ot"), "declared twice"),
        (named("others", "Widget", "ot"), "has the name Widget"),
        (named("others", "Other", "wd"), "has the name wd"),
        (named("others", "Other", "widget"), "has the name widget"),
    ] {
        let error = check_all(&[widgets.clone(), other], 2).expect_err(part);
        assert!(error.contains(part), "{error}");
    }
    let both = [widgets, named("others", "Other", "ot")];
    assert!(check_all(&both, 1).is_err() && check_all(&both, 2).is_ok() && check_all(&both, 3).is_ok());
}
