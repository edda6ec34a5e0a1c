//! Sequences of writes by several managers, compared with the results of Kubernetes' own code, and the cases it does
//! not cover.

use serde_json::json;

use super::*;
use yurt_apimachinery::kind::{builtin_kinds, find_kind};

const NOW: i64 = 1_790_000_000;

fn write<'a>(kind: &'a ResourceKind, manager: &'a str) -> Write<'a> {
    Write {
        kind,
        schema: None,
        subresource: "",
        ignored: &[],
        manager,
        now: Time::from_unix(NOW),
    }
}

fn config_maps() -> &'static ResourceKind {
    find_kind("", "configmaps").unwrap()
}

fn config_map(data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "namespace": "n"}, "data": data})
}

fn empty(kind: &ResourceKind) -> Value {
    json!({"apiVersion": kind.api_version(), "kind": &*kind.kind})
}

fn applied(manager: &str, live: &Value, data: Value, force: bool) -> Result<Value, Status> {
    write(config_maps(), manager).apply(live, &empty(config_maps()), &config_map(data), force)
}

/// The entries without their times, as name, operation and fields.
fn owners(object: &Value) -> Vec<(String, String, Value)> {
    let text = |entry: &Value, name: &str| entry[name].as_str().unwrap_or_default().to_owned();
    let entries = entries(object).and_then(Value::as_array).cloned().unwrap_or_default();
    let owners = entries.iter().map(|entry| {
        (
            text(entry, "manager"),
            text(entry, "operation"),
            entry["fieldsV1"].clone(),
        )
    });
    owners.collect()
}

/// An update as the upstream cases do it: tracking begins with the object.
fn updated(write: Write<'_>, live: &Value, mut new: Value) -> Value {
    let mut managers = write.before_update(live, &new);
    set_entries(&mut new, None);
    write.record(&mut managers, &without_entries(live), &new, write.manager);
    set_entries(&mut new, managers::write(&managers));
    new
}

fn without_times(entries: Option<&Value>) -> Value {
    let mut entries = entries.cloned().unwrap_or(Value::Null);
    for entry in entries.as_array_mut().into_iter().flatten() {
        entry.as_object_mut().unwrap().remove("time");
    }
    entries
}

fn sorted_causes(causes: &[yurt_apimachinery::status::StatusCause]) -> Vec<(String, String, String)> {
    let causes = causes
        .iter()
        .map(|cause| (cause.reason.clone(), cause.message.clone(), cause.field.clone()));
    let mut causes: Vec<_> = causes.collect();
    causes.sort();
    causes
}

/// A custom kind in no namespace.
fn node_pool() -> &'static ResourceKind {
    let manifest = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "nodepools.apps.openyurt.io"},
        "spec": {
            "group": "apps.openyurt.io", "scope": "Cluster", "names": {"plural": "nodepools", "kind": "NodePool"},
            "versions": [{"name": "v1beta2", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object"}}}],
        },
    });
    let definition = yurt_apiextensions::definition::parse(&manifest).unwrap();
    definition.served[0].kind.leak()
}

/// Every case was answered by the real implementation (`interop/cmd/patchcases`).
///
/// Conformance: 3.A13, 3.C08
#[test]
fn random_sequences_end_as_upstream() {
    let cases: Vec<Value> = serde_json::from_str(include_str!("../../testdata/apply.json")).unwrap();
    assert!(cases.len() > 100);
    let custom = node_pool();
    for (number, case) in cases.iter().enumerate() {
        let kind = builtin_kinds()
            .iter()
            .chain([custom])
            .find(|kind| kind.group == case["group"].as_str().unwrap() && kind.kind == case["kind"].as_str().unwrap());
        let kind = kind.unwrap();
        let mut live = empty(kind);
        for (at, step) in case["steps"].as_array().unwrap().iter().enumerate() {
            let write = write(kind, step["manager"].as_str().unwrap());
            let object = step["object"].clone();
            let found = if step["apply"] == true {
                write.apply(&live, &empty(kind), &object, step["force"] == true)
            } else {
                Ok(updated(write, &live, object))
            };
            let place = format!("case {number} step {at} of {}: {step}", kind.kind);
            match (found, step.get("error")) {
                (Err(status), Some(error)) => {
                    assert_eq!(status.message(), error["message"], "{place}");
                    let wanted: Vec<yurt_apimachinery::status::StatusCause> =
                        serde_json::from_value(error["causes"].clone()).unwrap();
                    assert_eq!(sorted_causes(status.causes()), sorted_causes(&wanted), "{place}");
                }
                (Ok(object), None) => {
                    assert_eq!(without_entries(&object), step["live"], "{place}");
                    assert_eq!(without_times(entries(&object)), step["managedFields"], "{place}");
                    live = object;
                }
                (found, error) => panic!("{place}: {found:?} instead of {error:?}"),
            }
        }
    }
}

#[test]
fn configurations_that_do_not_fit_are_refused() {
    let kind = find_kind("", "services").unwrap();
    let service = |spec: Value| {
        let config =
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "namespace": "n"}, "spec": spec});
        let status = write(kind, "a")
            .apply(&empty(kind), &empty(kind), &config, false)
            .unwrap_err();
        (status.code(), status.message().to_owned())
    };
    let typed = |why: &str| {
        (
            500,
            format!("failed to create typed patch object (n/s; /v1, Kind=Service): {why}"),
        )
    };
    assert_eq!(
        service(json!({"nonsense": 1})),
        typed(".spec.nonsense: field not declared in schema")
    );
    assert_eq!(
        service(json!({"ports": [{"port": 1}, {"port": 1, "protocol": "TCP"}]})),
        typed(r#".spec.ports: duplicate entries for key [port=1,protocol="TCP"]"#)
    );
    assert_eq!(
        service(json!({"ports": [{"port": 1}, {"port": 1, "odd": 1}]})),
        typed(concat!(
            "errors:\n  .spec.ports: duplicate entries for key [port=1,protocol=\"TCP\"]\n",
            "  .spec.ports[port=1,protocol=\"TCP\"].odd: field not declared in schema"
        ))
    );
    assert_eq!(
        service(json!({"ports": [1]})),
        typed(".spec.ports: element 0: associative list with keys may not have non-map elements")
    );
    assert_eq!(
        service(json!({"ports": {"a": "b"}})),
        typed(".spec.ports: expected list, got &{map[a:b]}")
    );
    assert_eq!(
        service(json!({"clusterIP": 7, "type": {}})),
        typed(
            "errors:\n  .spec.clusterIP: expected string, got &value.valueUnstructured{Value:7}\n  .spec.type: expected \
             string, got &value.valueUnstructured{Value:map[]}"
        )
    );
    let refusal = |config: Value| {
        let status = write(kind, "a")
            .apply(&empty(kind), &empty(kind), &config, false)
            .unwrap_err();
        (status.code(), status.message().to_owned())
    };
    let wrong = |what: &str| (400, format!("invalid object type: {what}"));
    assert_eq!(
        refusal(json!({"apiVersion": "v2", "kind": "Service"})),
        wrong("/v2, Kind=Service")
    );
    assert_eq!(
        refusal(json!({"apiVersion": "a/v1", "kind": "X"})),
        wrong("a/v1, Kind=X")
    );
    assert_eq!(refusal(json!({})), wrong("/, Kind="));
    let managed = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"managedFields": []}});
    assert_eq!(refusal(managed), (400, "metadata.managedFields must be nil".to_owned()));
}

#[test]
fn refusals_are_no_longer_than_a_few_paths() {
    let kind = find_kind("", "pods").unwrap();
    let wrong: serde_json::Map<String, Value> = (0..90).map(|at| (format!("x{at}"), json!(1))).collect();
    let mut container = Value::Object(wrong);
    container["name"] = "n".repeat(100_000).into();
    let config =
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [container]}});
    let refused = write(kind, "a")
        .apply(&empty(kind), &empty(kind), &config, false)
        .unwrap_err();
    assert!(refused.message().len() < 200_000);
}

/// Conformance: 3.A13
#[test]
fn account_begins_with_the_first_apply() {
    let live = config_map(json!({"a": "1", "b": "2"}));
    let mut new = config_map(json!({"a": "2"}));
    write(config_maps(), "editor").update(&live, &mut new);
    assert!(!is_tracked(&new), "without an apply, an update is not tracked");

    let first = applied("alice", &live, json!({"a": "1", "c": "3"}), false).unwrap();
    let want = [
        (
            "alice".to_owned(),
            "Apply".to_owned(),
            json!({"f:data": {"f:a": {}, "f:c": {}}}),
        ),
        (
            BEFORE_FIRST_APPLY.to_owned(),
            "Update".to_owned(),
            json!({"f:data": {".": {}, "f:a": {}, "f:b": {}}}),
        ),
    ];
    assert_eq!(owners(&first)[1].0, want[1].0);
    assert_eq!(owners(&first)[0], want[0]);
    let refused = applied("alice", &live, json!({"a": "9"}), false).unwrap_err();
    assert_eq!(refused.code(), 409, "what was there before is not taken silently");

    let mut second = without_entries(&first);
    second["data"]["c"] = json!("4");
    write(config_maps(), "editor").update(&first, &mut second);
    assert!(owners(&second).iter().any(|(name, operation, fields)| {
        name == "editor" && operation == "Update" && *fields == json!({"f:data": {"f:c": {}}})
    }));
}

#[test]
fn applying_again_what_is_there_changes_nothing() {
    let first = applied("alice", &empty(config_maps()), json!({"a": "1"}), false).unwrap();
    let later = Write {
        now: Time::from_unix(NOW + 60),
        ..write(config_maps(), "alice")
    };
    let config = config_map(json!({"a": "1"}));
    assert_eq!(
        later.apply(&first, &empty(config_maps()), &config, false).unwrap(),
        first
    );
    let shared = applied("bob", &first, json!({"a": "1"}), false).unwrap();
    assert_eq!(owners(&shared).len(), 2, "the same value has two owners");
    let left = applied("alice", &shared, json!({}), false).unwrap();
    assert_eq!(left["data"]["a"], "1", "bob still wants it");
    let gone = applied("bob", &left, json!({}), false).unwrap();
    assert_eq!(gone["data"].get("a"), None);
}

#[test]
fn times_alone_are_no_change() {
    let old = applied("alice", &empty(config_maps()), json!({"a": "1"}), false).unwrap();
    let mut new = old.clone();
    new["metadata"]["managedFields"][0]["time"] = json!("2030-01-01T00:00:00Z");
    let mut other = new.clone();
    other["data"]["a"] = json!("2");
    settle_times(&old, &mut new);
    assert_eq!(new, old);
    let changed = other.clone();
    settle_times(&old, &mut other);
    assert_eq!(other, changed);
}

#[test]
fn clients_may_rewrite_or_reset_the_account_and_nonsense_is_ignored() {
    let live = applied("alice", &empty(config_maps()), json!({"a": "1"}), false).unwrap();
    let given = |entries: Value, subresource: &str| {
        let mut new = live.clone();
        new["metadata"]["managedFields"] = entries;
        let write = Write {
            subresource,
            ..write(config_maps(), "editor")
        };
        write.update(&live, &mut new);
        owners(&new).into_iter().map(|(name, ..)| name).collect::<Vec<_>>()
    };
    let entry = |name: &str| {
        json!({"manager": name, "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:data": {"f:a": {}}}})
    };
    assert_eq!(given(json!([entry("bob")]), ""), ["bob"]);
    assert_eq!(
        given(json!([entry("bob")]), "status"),
        ["alice"],
        "not through a subresource"
    );
    assert!(given(json!([]), "").is_empty() && given(json!([{}]), "").is_empty());
    assert_eq!(given(Value::Null, ""), ["alice"]);
    for nonsense in [
        json!([{"manager": "x"}]),
        json!([{"operation": "Apply"}]),
        json!([{"operation": "Apply", "apiVersion": "v1"}]),
        json!([{"operation": "Apply", "apiVersion": "v1", "fieldsType": "V2"}]),
        json!([{"operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"a": {}}}]),
        json!("x"),
    ] {
        assert_eq!(given(nonsense.clone(), ""), ["alice"], "{nonsense}");
    }
    assert_eq!(
        given(
            json!([{"manager": "old", "operation": "Apply", "apiVersion": "v0", "fieldsType": "FieldsV1",
        "fieldsV1": {"f:data": {"f:a": {}}}}]),
            ""
        ),
        Vec::<String>::new(),
        "of a version that is gone"
    );
}

#[test]
fn old_updates_are_summed_up() {
    let mut live = applied("alice", &empty(config_maps()), json!({"a": "1"}), false).unwrap();
    for at in 0..15 {
        let mut new = live.clone();
        new["data"][format!("k{at}")] = json!("x");
        let name = format!("editor{at:02}");
        let write = Write {
            now: Time::from_unix(NOW + at),
            ..write(config_maps(), &name)
        };
        write.update(&live, &mut new);
        live = new;
    }
    let names: Vec<String> = owners(&live).into_iter().map(|(name, ..)| name).collect();
    assert_eq!(names.len(), 11, "ten updaters and the applier: {names:?}");
    assert_eq!(names[..3], ["alice", "ancient-changes", "editor06"]);
    let ancient = &owners(&live)[1].2["f:data"];
    assert_eq!(ancient.as_object().unwrap().len(), 6, "nothing is lost: {ancient}");
}

#[test]
fn subresources_have_accounts_of_their_own_and_ignored_fields_no_owner() {
    let kind = find_kind("", "nodes").unwrap();
    let object = |unschedulable: bool, phase: &str| {
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"},
            "spec": {"unschedulable": unschedulable}, "status": {"phase": phase}})
    };
    let main = Write {
        ignored: &[&["status"]],
        ..write(kind, "alice")
    };
    let status = Write {
        ignored: &[&["spec"]],
        subresource: "status",
        ..write(kind, "alice")
    };
    let first = main
        .apply(&empty(kind), &empty(kind), &object(true, "x"), false)
        .unwrap();
    assert_eq!(owners(&first)[0].2, json!({"f:spec": {"f:unschedulable": {}}}));
    let second = status.apply(&first, &empty(kind), &object(true, "y"), true).unwrap();
    let entries = entries(&second).unwrap().as_array().unwrap();
    assert_eq!(entries.len(), 2);
    assert_eq!(entries[1]["subresource"], "status");
    assert_eq!(entries[1]["fieldsV1"], json!({"f:status": {"f:phase": {}}}));
    let mut third = object(true, "z");
    third["metadata"]["managedFields"] = second["metadata"]["managedFields"].clone();
    status.update(&second, &mut third);
    let refused = status
        .apply(&third, &empty(kind), &object(true, "y"), false)
        .unwrap_err();
    assert_eq!(
        refused.message(),
        r#"Apply failed with 1 conflict: conflict with "alice" with subresource "status" using v1: .status.phase"#
    );
}

/// Client-side apply leaves an annotation. kubectl takes over the fields in it; other managers do not.
#[test]
fn kubectl_takes_over_what_client_side_apply_had_set() {
    let mut live = config_map(json!({"a": "1", "b": "2"}));
    let last = config_map(json!({"a": "1"}));
    live["metadata"]["annotations"] = json!({last_applied::ANNOTATION: last.to_string()});
    let taken = applied("kubectl", &live, json!({"a": "9"}), false).unwrap();
    assert_eq!(taken["data"], json!({"a": "9", "b": "2"}));
    let text = taken["metadata"]["annotations"][last_applied::ANNOTATION]
        .as_str()
        .unwrap();
    assert_eq!(text, format!("{}\n", config_map(json!({"a": "9"}))));
    assert_eq!(
        applied("kubectl", &live, json!({"b": "9"}), false).unwrap_err().code(),
        409,
        "set by somebody else"
    );
    assert_eq!(
        applied("alice", &live, json!({"a": "9"}), false).unwrap_err().code(),
        409
    );
}

#[test]
fn fields_below_what_is_atomic_become_the_whole() {
    let live = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "managedFields": [
        {"manager": "a", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:spec": {"f:selector": {"f:x": {}}}}}]}, "spec": {"selector": {"x": "1"}}});
    let mut new = live.clone();
    new["spec"]["type"] = json!("ClusterIP");
    write(find_kind("", "services").unwrap(), "b").update(&live, &mut new);
    assert_eq!(owners(&new)[0].2, json!({"f:spec": {"f:selector": {}}}));
}

/// The kind of a custom resource with all that a schema says about owners.
fn widgets() -> (&'static ResourceKind, Structural) {
    let text = json!({"type": "string"});
    let part = json!({"type": "object", "required": ["name"], "properties": {
        "name": text, "protocol": {"type": "string", "default": "TCP"}, "weight": {"type": "integer"}}});
    let manifest = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Cluster", "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object",
                "properties": {"spec": {"type": "object", "properties": {
                    "parts": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name", "protocol"], "items": part},
                    "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": text},
                    "plain": {"type": "array", "items": text},
                    "whole": {"type": "object", "x-kubernetes-map-type": "atomic", "properties": {"a": text, "b": text}},
                    "port": {"x-kubernetes-int-or-string": true},
                    "when": {"type": "string", "format": "date-time"},
                    "map": {"type": "object", "additionalProperties": text},
                    "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
                        "properties": {"known": {"type": "object", "properties": {"x": text}}}}}}}}}}]}});
    let definition = yurt_apiextensions::definition::parse(&manifest).unwrap();
    let schema = Structural::of(definition.served[0].schema.as_ref().unwrap());
    (definition.stored.leak(), schema)
}

fn widget(spec: &Value) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": spec})
}

/// Conformance: 3.C07
#[test]
fn schema_of_a_custom_resource_says_what_is_owned_alone() {
    let (kind, schema) = widgets();
    let by = |manager| Write {
        schema: Some(&schema),
        ..write(kind, manager)
    };
    let alice = widget(
        &json!({"parts": [{"name": "a", "weight": 1}], "tags": ["x"], "whole": {"a": "1"}, "port": 80,
        "when": "now", "map": {"k": "v"}, "free": {"any": [1], "known": {"x": "1", "odd": 1}}}),
    );
    let first = by("alice").apply(&empty(kind), &empty(kind), &alice, false).unwrap();
    let fields = &owners(&first)[0].2["f:spec"];
    let want = json!({"f:parts": {"k:{\"name\":\"a\",\"protocol\":\"TCP\"}": {".": {}, "f:name": {}, "f:weight": {}}},
        "f:tags": {"v:\"x\"": {}}, "f:whole": {}, "f:port": {}, "f:when": {}, "f:map": {"f:k": {}},
        "f:free": {"f:any": {}, "f:known": {"f:x": {}, "f:odd": {}}}});
    assert_eq!(*fields, want);
    // Items that others own stay next to the manager's own.
    let bob =
        widget(&json!({"parts": [{"name": "b"}, {"name": "a", "protocol": "UDP"}], "tags": ["y"], "map": {"l": "v"}}));
    let second = by("bob").apply(&first, &empty(kind), &bob, false).unwrap();
    let names = |object: &Value| {
        object["spec"]["parts"]
            .as_array()
            .unwrap()
            .iter()
            .map(|part| part["name"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&second), ["a", "b", "a"]);
    assert_eq!(second["spec"]["map"], json!({"k": "v", "l": "v"}));
    let without = widget(&json!({"tags": ["y"], "map": {"l": "v"}}));
    let third = by("bob").apply(&second, &empty(kind), &without, false).unwrap();
    assert_eq!(
        (names(&third), &third["spec"]["tags"]),
        (vec![json!("a")], &json!(["x", "y"]))
    );
    let taken = by("bob").apply(&third, &empty(kind), &widget(&json!({"whole": {"b": "2"}})), false);
    assert_eq!(taken.unwrap_err().code(), 409, "it is one value");
}

/// Conformance: 3.C07, 3.C12
#[test]
fn custom_fields_that_nobody_declared_are_refused() {
    let (kind, schema) = widgets();
    let write = Write {
        schema: Some(&schema),
        ..write(kind, "alice")
    };
    for (spec, want) in [
        (json!({"odd": 1}), ".spec.odd: field not declared in schema"),
        (
            json!({"parts": [{"name": "a", "odd": 1}]}),
            "[name=\"a\",protocol=\"TCP\"].odd: field not declared in schema",
        ),
        (
            json!({"tags": ["x", "x"]}),
            ".spec.tags: duplicate entries for key [=\"x\"]",
        ),
        (json!({"plain": "x"}), ".spec.plain: expected list, got &{x}"),
        (
            json!({"parts": [{"weight": "x", "name": "a"}]}),
            ".weight: expected numeric (int or float), got string",
        ),
    ] {
        let refused = write
            .apply(&empty(kind), &empty(kind), &widget(&spec), false)
            .unwrap_err();
        assert_eq!(refused.code(), 500);
        let said = refused.message();
        assert!(
            said.starts_with("failed to create typed patch object (/w; example.com/v1, Kind=Widget): .spec")
                && said.ends_with(want),
            "{said}"
        );
    }
    let mut outside = widget(&json!({}));
    outside["other"] = json!(1);
    let refused = write.apply(&empty(kind), &empty(kind), &outside, false).unwrap_err();
    assert!(refused.message().ends_with(": .other: field not declared in schema"));
}
