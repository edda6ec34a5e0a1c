//! Work on wide bodies grows in proportion to the bodies, and answers stay small for any content.

use std::cell::Cell;

use serde_json::{Map, Value, json};
use yurt_apiextensions::structural::Structural;
use yurt_apimachinery::selector::{LabelSelector, Labels};
use yurt_apimachinery::status::{ErrorList, FieldError};
use yurt_apimachinery::time::Time;
use yurt_apimachinery::{GroupKind, ResourceKind, Status, kind, meta};
use yurt_codec::schema;
use yurt_patch::apply::Write;
use yurt_patch::{apply_json_patch, apply_strategic_merge_patch};
use yurt_test_support::{LINEAR, cpu_seconds, growth};

fn list(n: usize, item: impl Fn(usize) -> Value) -> Value {
    (0..n).map(item).collect()
}

#[track_caller]
fn assert_linear<T>(what: &str, n: usize, input: impl Fn(usize) -> T, work: impl Fn(T)) {
    let grown = growth(n, input, work);
    assert!(
        grown < LINEAR,
        "{what}: four times the entries are {grown} times the work"
    );
}

fn strategic((mut document, patch): (Value, Value)) -> Result<Value, Status> {
    let Value::Object(patch) = patch else {
        panic!("a patch is an object")
    };
    let pod = schema::find("", "v1", "Pod").expect("pods are built in");
    apply_strategic_merge_patch(&mut document, patch, pod).map(|()| document)
}

#[test]
fn faults_are_joined_by_going_once_over_all() {
    let faults = |n: usize| -> ErrorList { (0..n).map(|at| FieldError::required(format!("f{at}"), "")).collect() };
    let kind = GroupKind::new("", "Pod");
    let status = Status::invalid(&kind, "p", &faults(250));
    assert!(
        status.message().ends_with("f99: Required value, and 150 more]"),
        "{}",
        status.message()
    );
    assert_eq!(status.causes().len(), 100);
    assert_linear("faults", 5_000, faults, |faults| {
        drop(Status::invalid(&kind, "p", &faults))
    });
}

#[test]
fn values_of_faults_are_cut() {
    let long = "é".repeat(1 << 20);
    let nested = list(1 << 16, |_| json!({ "k": long.get(..64) }));
    for fault in [
        FieldError::invalid("f", long.as_str(), "why"),
        FieldError::invalid("f", nested.clone(), "why"),
        FieldError::invalid_shown("f", &nested.to_string(), "why"),
        FieldError::duplicate(long.as_str(), 1),
    ] {
        assert!(fault.to_string().len() < 5_000, "{}", fault.to_string().len());
        assert!(fault.to_string().contains("..."));
    }
}

#[test]
fn owners_of_which_all_control_are_one_fault() {
    let leases = kind::find_kind("coordination.k8s.io", "leases").unwrap();
    let lease = |n: usize| {
        let owner = |at: usize| json!({"apiVersion": "v1", "kind": "K", "name": "n", "uid": at.to_string(), "controller": true});
        json!({"metadata": {"name": "l", "namespace": "n", "ownerReferences": list(n, owner)}})
    };
    let two = meta::validate_create(&lease(2), leases);
    assert_eq!(two.len(), 1);
    assert!(
        two[0].message.ends_with("in references for K/n and K/n"),
        "{}",
        two[0].message
    );
    let many = meta::validate_create(&lease(1_000), leases);
    assert_eq!(many.len(), 1);
    assert!(
        many[0].message.ends_with("K/n and K/n and 998 more"),
        "{}",
        many[0].message
    );
    assert!(many[0].message.len() < 5_000);
}

#[test]
fn lists_of_metadata_are_bounded() {
    for (name, item) in [
        ("ownerReferences", json!({"uid": "u"})),
        ("finalizers", json!("x/y")),
        ("managedFields", json!({"manager": "m"})),
    ] {
        let object = |n: usize| json!({"metadata": {name: list(n, |_| item.clone())}});
        assert_eq!(meta::check_list_lengths(&object(1_000)), Ok(()));
        let fault = meta::check_list_lengths(&object(1_001)).unwrap_err();
        let want = format!("metadata.{name}: Too many: 1001: must have at most 1000 items");
        assert_eq!(fault.to_string(), want);
    }
}

#[test]
fn metadata_is_compared_by_going_once_over_it() {
    let owners = |n: usize| json!({"metadata": {"ownerReferences": list(n, |at| json!({ "uid": at.to_string() }))}});
    assert_linear("owners", 2_000, owners, |mut object| {
        assert!(!meta::drop_repeated_owners(&mut object))
    });
    let deleting = |n: usize| {
        let finalizers = list(n, |at| json!(format!("a.b/f{at}")));
        json!({"metadata": {"name": "n", "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": finalizers}})
    };
    assert_linear("finalizers", 2_000, deleting, |object| {
        drop(meta::validate_update(&object, &object));
    });
}

#[test]
fn lists_under_a_strategic_patch() {
    let named = |n: usize| list(n, |at| json!({ "name": format!("c{at}") }));
    let keyed = |n: usize| {
        let items = list(n, |at| json!({"name": format!("c{at}"), "image": "i"}));
        (
            json!({"spec": {"containers": items}}),
            json!({"spec": {"containers": items}}),
        )
    };
    assert_linear("keyed", 2_000, keyed, |input| drop(strategic(input).unwrap()));
    let ordered = |n: usize| {
        let patch = json!({"spec": {"$setElementOrder/containers": named(n), "containers": named(n)}});
        (json!({"spec": {"containers": named(n)}}), patch)
    };
    assert_linear("ordered", 2_000, ordered, |input| drop(strategic(input).unwrap()));
    let deleted = |n: usize| {
        let gone = list(n, |at| json!({"name": format!("c{at}"), "$patch": "delete"}));
        (
            json!({"spec": {"containers": named(n)}}),
            json!({"spec": {"containers": gone}}),
        )
    };
    assert_linear("deleted", 2_000, deleted, |input| drop(strategic(input).unwrap()));
    let texts = |n: usize, first: usize| list(n, |at| json!(format!("f{}", first + at)));
    let scalars = |n: usize| {
        (
            json!({"metadata": {"finalizers": texts(n, 0)}}),
            json!({"metadata": {"finalizers": texts(n, n)}}),
        )
    };
    assert_linear("scalars", 2_000, scalars, |input| drop(strategic(input).unwrap()));
    let taken = |n: usize| {
        let patch = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": texts(n, n)}});
        (json!({"metadata": {"finalizers": texts(n, 0)}}), patch)
    };
    assert_linear("scalars taken out", 2_000, taken, |input| {
        drop(strategic(input).unwrap())
    });
    let retained = |n: usize| {
        let members: Map<String, Value> = (0..n).map(|at| (format!("k{at}"), json!("v"))).collect();
        let patch = json!({"metadata": {"annotations": {"$retainKeys": list(n, |at| json!(format!("k{at}")))}}});
        (json!({"metadata": {"annotations": members}}), patch)
    };
    assert_linear("retained", 2_000, retained, |input| drop(strategic(input).unwrap()));
}

#[test]
fn inner_lists_are_not_merged_for_ever() {
    let variables = list(20_000, |at| json!({ "name": format!("V{at}") }));
    let pod = json!({"spec": {"containers": [{"name": "c", "env": variables}]}});
    let again = list(20_000, |at| json!({"name": "c", "env": [{ "name": format!("W{at}") }]}));
    let refused = strategic((pod, json!({"spec": {"containers": again}}))).unwrap_err();
    assert_eq!(refused.code(), 413, "{}", refused.message());
    assert!(
        refused.message().contains("name each element once"),
        "{}",
        refused.message()
    );
}

#[test]
fn elements_that_a_json_patch_moves_are_counted() {
    let patched = |elements: usize, operations: usize, path: &str| {
        let mut document = json!({"x": list(elements, |_| json!(0))});
        let operation = format!(r#"{{"op":"remove","path":"{path}"}}"#);
        let patch = format!("[{}]", vec![operation; operations].join(","));
        apply_json_patch(&mut document, patch.as_bytes()).map_err(|status| status.code())
    };
    assert_eq!(patched(200_000, 9_999, "/x/0"), Err(413));
    assert_eq!(patched(200_000, 40, "/x/0"), Ok(()));
    assert_eq!(
        patched(10_000, 10_000, "/x/9999"),
        Err(422),
        "the second one finds nothing"
    );
}

#[test]
fn selectors_with_many_values_and_objects_with_many_labels() {
    let selector = |n: usize| {
        let values: Vec<String> = (0..n).map(|at| format!("v{at}")).collect();
        LabelSelector::parse(&format!("a notin ({})", values.join(","))).unwrap()
    };
    let labels: Labels = [("a", "v1"), ("b", "x")].into_iter().collect();
    assert!(!selector(2).matches(&labels) && selector(1).matches(&labels));
    // One lookup grows; it is repeated until it can be measured.
    let asked = Cell::new(0);
    let look = |selector: LabelSelector| {
        let unlisted: Labels = [("a", "zz")].into_iter().collect();
        for _ in 0..20_000 {
            asked.set(asked.get() + usize::from(selector.matches(&unlisted)));
        }
    };
    let grown = growth(1_000, selector, look);
    assert!(grown < 3.0, "values: {grown}");
    let labelled = |n: usize| -> Labels { (0..n).map(|at| (format!("k{at:06}"), "v")).collect() };
    let wanted = LabelSelector::parse("k999999").unwrap();
    let grown = growth(1_000, labelled, |labels| {
        for _ in 0..20_000 {
            asked.set(asked.get() + usize::from(wanted.matches(&labels)));
        }
    });
    assert!(grown < 3.0, "labels: {grown}");
    assert!(asked.get() > 0);
}

/// Half of the bytes are one long name, the other half are values below it: a path for each of them would be the
/// product.
fn below_a_long_name(n: usize, value: &Value) -> Value {
    let below: Map<String, Value> = (0..n).map(|at| (format!("k{at}"), value.clone())).collect();
    json!({ "x".repeat(10 * n): below })
}

#[test]
fn long_names_with_much_below_them_in_a_custom_resource() {
    let any = json!({"type": "object", "properties": {"spec": {"type": "object", "additionalProperties": {
        "type": "object", "additionalProperties": {"type": "integer", "maximum": 1}}}}});
    let schema = Structural::of(&any);
    let input = |n: usize| json!({ "spec": below_a_long_name(n, &json!(5)) });
    assert_linear("faults", 10_000, input, |object| {
        let faults = schema.validate(&object, None);
        assert_eq!(faults.len(), 100);
        let bytes: usize = faults.iter().map(|fault| fault.to_string().len()).sum();
        assert!(bytes < 1 << 20, "{bytes}");
    });
    let none = json!({"type": "object", "properties": {"spec": {"type": "object", "additionalProperties": {"type": "object", "properties": {"a": {"type": "string"}}}}}});
    let schema = Structural::of(&none);
    assert_linear("unknown fields", 10_000, input, |mut object| {
        let unknown = schema.shape(&mut object);
        assert_eq!(unknown.len(), 100);
        assert!(unknown.iter().map(String::len).sum::<usize>() < 1 << 20);
    });
}

fn custom() -> ResourceKind {
    ResourceKind {
        group: "example.com".into(),
        kind: "Thing".into(),
        ..kind::find_kind("", "configmaps").expect("it is built in").clone()
    }
}

fn apply(live: &Value, config: &Value, manager: &str) -> Result<Value, Status> {
    let kind = custom();
    let write = Write {
        kind: &kind,
        schema: None,
        subresource: "",
        ignored: &[],
        manager,
        now: Time::from_unix(1_800_000_000),
    };
    let empty = json!({"apiVersion": "example.com/v1", "kind": "Thing"});
    let live = if live.is_null() { &empty } else { live };
    write.apply(live, &empty, config, false)
}

fn thing(spec: Value) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "t"}, "spec": spec})
}

#[test]
fn long_names_with_much_below_them_in_an_apply() {
    let input = |n: usize| thing(below_a_long_name(n, &json!(1)));
    assert_linear("apply", 5_000, input, |config| {
        let applied = apply(&Value::Null, &config, "a").unwrap();
        let conflicts = apply(&applied, &thing(below_a_long_name(5_000, &json!(2))), "b");
        let Err(refused) = conflicts else { return };
        assert_eq!(refused.causes().len(), 100);
        assert!(refused.to_json().len() < 1 << 20);
    });
}

#[test]
fn depth_of_an_applied_map_does_not_multiply_its_size() {
    let deep = |levels: usize| {
        let leaf = list(20_000, |at| json!(at));
        (0..levels).fold(leaf, |inner, _| json!({ "a": inner }))
    };
    let seconds = |levels: usize| {
        let config = thing(deep(levels));
        let before = cpu_seconds();
        let applied = apply(&Value::Null, &config, "a").unwrap();
        apply(&applied, &config, "b").unwrap();
        cpu_seconds() - before
    };
    let (shallow, deep) = (seconds(2), seconds(100));
    assert!(deep < 10.0 * shallow, "{shallow} s, 50 times as deep {deep} s");
}
