//! Work on wide objects grows as the objects do: clients choose how many entries their lists have.

use serde_json::{Map, Value, json};
use yurt_test_support::{LINEAR, growth};

use crate::registry;
use crate::registry::strategy::Strategy;

fn strategy_of(name: &str) -> &'static dyn Strategy {
    registry::strategy_of(name, super::strategy_of)
}

/// One object in two states.
type States = (Value, Value);

fn list(n: usize, item: impl Fn(usize) -> Value) -> Value {
    (0..n).map(item).collect()
}

fn in_container(field: &str, value: Value) -> Value {
    let mut container = json!({"name": "c", "image": "i"});
    container[field] = value;
    json!({"spec": {"containers": [container]}})
}

#[track_caller]
fn assert_linear(what: &str, n: usize, input: impl Fn(usize) -> States, work: impl Fn(States)) {
    let grown = growth(n, input, work);
    assert!(
        grown < LINEAR,
        "{what}: four times the entries are {grown} times the work"
    );
}

fn validate(name: &'static str) -> impl Fn(States) {
    move |(new, old)| drop(strategy_of(name).validate(&new, Some(&old)))
}

fn prepare(name: &'static str) -> impl Fn(States) {
    move |(mut new, old)| strategy_of(name).prepare_update(&old, &mut new)
}

#[test]
fn updates_of_pods() {
    let tolerations = |n: usize| {
        let of = |at: usize| json!({"key": format!("k{at}"), "operator": "Exists"});
        let pod = json!({"spec": {"tolerations": list(n, of)}});
        (pod.clone(), pod)
    };
    assert_linear("tolerations", 2_000, tolerations, validate("pods"));
    let gates = |n: usize| {
        let pod = json!({"spec": {"schedulingGates": list(n, |at| json!({"name": format!("g{at}")}))}});
        (pod.clone(), pod)
    };
    assert_linear("gates", 2_000, gates, validate("pods"));
}

#[test]
fn containers_of_pods() {
    let variables = |n: usize| {
        let pod = in_container("env", list(n, |at| json!({"name": format!("V{at}"), "value": "v"})));
        (pod, Value::Null)
    };
    assert_linear("variables", 2_000, variables, |(pod, _)| {
        assert!(strategy_of("pods").warnings(&pod, Some(&pod)).is_empty());
    });
    let amounts = |n: usize| {
        let of = |at: usize| (format!("example.com/r{at}"), json!("1"));
        let amounts: Map<String, Value> = (0..n).map(of).collect();
        (
            in_container("resources", json!({"limits": amounts, "requests": amounts})),
            Value::Null,
        )
    };
    assert_linear("amounts", 2_000, amounts, |(pod, _)| {
        drop(strategy_of("pods").validate(&pod, None));
    });
}

#[test]
fn addresses_of_nodes() {
    let addresses = |n: usize| {
        let of = |at: usize| json!({"type": "InternalIP", "address": format!("a{at}")});
        let node = json!({"status": {"addresses": list(n, of)}});
        (node.clone(), node)
    };
    assert_linear("addresses", 2_000, addresses, validate("nodes"));
}

#[test]
fn ports_and_families_of_services() {
    let ports = |n: usize, kind: &str| {
        let of = |at: usize| json!({"port": at, "protocol": "TCP", "nodePort": at + 1});
        json!({"spec": {"type": kind, "ports": list(n, of)}})
    };
    let kept = |n: usize| (ports(n, "NodePort"), ports(n, "NodePort"));
    assert_linear("node ports that stay", 2_000, kept, prepare("services"));
    let dropped = |n: usize| (ports(n, "ClusterIP"), ports(n, "NodePort"));
    assert_linear("node ports that go", 2_000, dropped, prepare("services"));
    let families = |n: usize| {
        let service = json!({"spec": {"type": "ClusterIP", "ipFamilies": list(n, |at| json!(format!("f{at}")))}});
        (service.clone(), service)
    };
    assert_linear("families", 2_000, families, validate("services"));
}
