//! Explains the view of one component of one object: the filters that bind, the verdict of each, and the inputs and the
//! changed fields behind it.

use std::fmt;

use serde_json::Value;
use yurt_apimachinery::{Object, ResourceKind, Verb};

use super::binding::{Origin, Row, Table};
use super::{FilterContext, Members, ObjectFilter, PodTrust, Pool, Verdict};

/// Maximum changed fields shown per filter; the others are counted.
const CHANGES_MAX: usize = 50;
/// Maximum characters shown of a value.
const VALUE_MAX: usize = 160;

/// Explanation of a view.
#[derive(Debug)]
pub struct Explanation {
    request: String,
    /// Facts about the node that hold for every filter.
    node: String,
    steps: Vec<Step>,
    /// Filters of the resource that do not bind, with reasons.
    unbound: Vec<String>,
}

#[derive(Debug)]
struct Step {
    filter: &'static str,
    origin: Origin,
    inputs: Vec<String>,
    outcome: FilterOutcome,
}

#[derive(Debug)]
enum FilterOutcome {
    Kept,
    /// Changed fields, at most [`CHANGES_MAX`], and the number of the others.
    Replaced(Vec<String>, usize),
    Dropped,
}

/// Runs the filters of `component` and `verb` over `object`.
#[must_use]
pub fn explain(
    table: &Table,
    component: &str,
    verb: Verb,
    (kind, object): (&ResourceKind, &Object),
    context: &FilterContext<'_>,
) -> Explanation {
    let resource = kind.group_resource();
    let names = table.chain(component, &kind.group, &kind.plural, verb).names();
    let (mut steps, mut unbound) = (Vec::new(), Vec::new());
    let mut seen = Some(object.clone());
    for row in table.rows().iter().filter(|row| handles(row, kind)) {
        let filter = row.registration.filter;
        if !names.contains(&filter.name()) {
            let why = row
                .off
                .map_or("not bound to this component and verb".to_owned(), |flag| {
                    format!("does not run on this node: {flag}")
                });
            unbound.push(format!("{}: {why}", filter.name()));
            continue;
        }
        let Some(now) = seen.take() else { break };
        let verdict = filter.filter(kind, &now, context);
        let (outcome, next) = match verdict {
            Verdict::Keep => (FilterOutcome::Kept, Some(now.clone())),
            Verdict::Drop => (FilterOutcome::Dropped, None),
            Verdict::Replace(next) => {
                let mut changes = Vec::new();
                diff("", &now.to_value(), &next.to_value(), &mut changes);
                let more = changes.len().saturating_sub(CHANGES_MAX);
                changes.truncate(CHANGES_MAX);
                (FilterOutcome::Replaced(changes, more), Some(next))
            }
        };
        seen = next;
        let bound = row.bound.get(component).map(|binding| binding.origin);
        steps.push(Step {
            filter: filter.name(),
            origin: bound.unwrap_or(Origin::Default),
            inputs: match outcome {
                FilterOutcome::Dropped => [content(&now), inputs(filter, kind, &now, context)].concat(),
                _ => inputs(filter, kind, &now, context),
            },
            outcome,
        });
    }
    Explanation {
        request: format!("{} of {resource} by {component}", verb.as_str()),
        node: node(context),
        steps,
        unbound,
    }
}

fn handles(row: &Row, kind: &ResourceKind) -> bool {
    let mut resources = row.registration.resources.iter();
    resources.any(|(group, plural)| *group == kind.group && *plural == kind.plural)
}

/// Describes the node.
fn node(context: &FilterContext<'_>) -> String {
    let pool = match context.pool {
        Pool::Unknown => "of an unknown pool".to_owned(),
        Pool::NoPool => "of no pool".to_owned(),
        Pool::Named(pool) => {
            let host_network = pool
                .host_network
                .map_or("unknown".to_owned(), |value| value.to_string());
            format!("of pool {} (hostNetwork {host_network})", pool.name)
        }
    };
    let (name, hub) = (context.node_name, context.hub);
    format!("node {name} {pool}, hub for pods at {}:{}", hub.host, hub.secure_port)
}

/// Describes what filters read of an object that they drop: its type and its annotations.
fn content(object: &Object) -> Vec<String> {
    let object = object.to_value();
    let part =
        |name: &str, value: &Value| (!value.is_null()).then(|| format!("the object has {name} {}", short(value)));
    let parts = [
        part("type", &object["spec"]["type"]),
        part("annotations", &object["metadata"]["annotations"]),
    ];
    parts.into_iter().flatten().collect()
}

/// Describes the inputs of a verdict in addition to the object.
fn inputs(filter: &dyn ObjectFilter, kind: &ResourceKind, object: &Object, context: &FilterContext<'_>) -> Vec<String> {
    let mut inputs = Vec::new();
    if let Some(key) = filter.service_of(kind, object) {
        let (namespace, name) = (key.namespace().unwrap_or_default(), key.name());
        let service = context.services.service(&key);
        let annotations = service.map(|service| service.to_value()["metadata"]["annotations"].clone());
        inputs.push(match annotations {
            None => format!("Service {namespace}/{name} is unknown"),
            Some(Value::Null) => format!("Service {namespace}/{name} has no annotations"),
            Some(some) => format!("Service {namespace}/{name} has annotations {}", short(&some)),
        });
    }
    if filter.inputs().local_pods {
        let pods = context.local_pods.len();
        inputs.push(format!(
            "{pods} pods of the node have a status that the cloud does not have"
        ));
    }
    if filter.inputs().trust {
        let trust = match context.trust {
            PodTrust::Given => "trust",
            PodTrust::Awaited | PodTrust::Missing => "do not trust",
        };
        inputs.push(format!("pods {trust} the hub's certificate"));
    }
    if filter.inputs().members {
        inputs.push(match context.pool {
            Pool::Unknown => "the pool of the node is unknown".to_owned(),
            Pool::NoPool => format!("node {} is in no pool", context.node_name),
            Pool::Named(pool) => match pool.members {
                Members::Unknown => format!("the members of pool {} are unknown", pool.name),
                Members::Names(names) => {
                    let names: Vec<&str> = names.iter().map(String::as_str).collect();
                    format!("pool {} has the nodes {}", pool.name, names.join(", "))
                }
            },
        });
    }
    inputs
}

/// Appends the differences: `-` removed, `+` added, `~` changed, each with the path of the field.
fn diff(path: &str, before: &Value, after: &Value, changes: &mut Vec<String>) {
    match (before, after) {
        (before, after) if before == after => {}
        (Value::Object(before), Value::Object(after)) => {
            for (key, old) in before {
                let path = format!("{path}/{key}");
                match after.get(key) {
                    Some(new) => diff(&path, old, new, changes),
                    None => changes.push(format!("- {path}: {}", short(old))),
                }
            }
            for (key, new) in after.iter().filter(|(key, _)| !before.contains_key(*key)) {
                changes.push(format!("+ {path}/{key}: {}", short(new)));
            }
        }
        (Value::Array(before), Value::Array(after)) => diff_lists(path, before, after, changes),
        _ => changes.push(format!("~ {path}: {} -> {}", short(before), short(after))),
    }
}

/// A list that only lost items shows these, any other one its items by place.
fn diff_lists(path: &str, before: &[Value], after: &[Value], changes: &mut Vec<String>) {
    let mut left = after.iter().peekable();
    let removed: Vec<_> = before
        .iter()
        .enumerate()
        .filter(|(_, item)| left.next_if(|next| next == item).is_none())
        .collect();
    if left.peek().is_none() {
        let lines = removed
            .into_iter()
            .map(|(place, item)| format!("- {path}/{place}: {}", short(item)));
        changes.extend(lines);
        return;
    }
    for place in 0..before.len().max(after.len()) {
        let path = format!("{path}/{place}");
        match (before.get(place), after.get(place)) {
            (Some(old), Some(new)) => diff(&path, old, new, changes),
            (Some(old), None) => changes.push(format!("- {path}: {}", short(old))),
            (None, Some(new)) => changes.push(format!("+ {path}: {}", short(new))),
            (None, None) => {}
        }
    }
}

fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(VALUE_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

// === impl Explanation ===

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.request)?;
        writeln!(f, "on {}", self.node)?;
        for (number, step) in self.steps.iter().enumerate() {
            let (outcome, changes, more) = match &step.outcome {
                FilterOutcome::Kept => ("kept", &[][..], 0),
                FilterOutcome::Replaced(changes, more) => ("replaced", changes.as_slice(), *more),
                FilterOutcome::Dropped => ("dropped", &[][..], 0),
            };
            writeln!(
                f,
                "{}. {} (bound by {}): {outcome}",
                number + 1,
                step.filter,
                step.origin
            )?;
            for input in &step.inputs {
                writeln!(f, "     because {input}")?;
            }
            for change in changes {
                writeln!(f, "     {change}")?;
            }
            if more > 0 {
                writeln!(f, "     and {more} more changes")?;
            }
        }
        for unbound in &self.unbound {
            writeln!(f, "-  {unbound}")?;
        }
        let is_changed = |step: &Step| matches!(step.outcome, FilterOutcome::Replaced(..));
        let result = match self.steps.last().map(|step| &step.outcome) {
            Some(FilterOutcome::Dropped) => "the client does not see the object",
            _ if self.steps.iter().any(is_changed) => "the client sees a changed object",
            _ => "the client sees the object unchanged",
        };
        writeln!(f, "Result: {result}")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;
    use yurt_apimachinery::kind::find_kind;

    use super::*;
    use crate::filter::FILTERS;
    use crate::filter::binding::Switches;
    use crate::filter::tests::{World, slice};

    fn explained(world: &World, component: &str, text: &str) -> String {
        let (kind, object) = slice(text);
        let data = BTreeMap::from([("servicetopology".to_owned(), "agent".to_owned())]);
        let table = Table::new(&FILTERS, &Switches::default()).with(&data);
        explain(&table, component, Verb::List, (kind, &object), &world.context()).to_string()
    }

    #[test]
    fn removed_endpoints_are_shown_with_the_inputs_and_the_origin_of_the_binding() {
        let text = r#"{"metadata":{"namespace":"shop","name":"web-x","labels":{"kubernetes.io/service-name":"web"}},
            "endpoints":[{"nodeName":"e1"},{"nodeName":"w1"},{"nodeName":"e2"}]}"#;
        let shown = explained(&World::default(), "kube-proxy", text);
        for expected in [
            "list of endpointslices.discovery.k8s.io by kube-proxy",
            "on node e1 of pool east (hostNetwork unknown), hub for pods at 169.254.2.1:10268",
            "servicetopology (bound by default): replaced",
            "because Service shop/web has annotations {\"openyurt.io/topologyKeys\":\"openyurt.io/nodepool\"}",
            "because pool east has the nodes e1, e2",
            "- /endpoints/1: {\"nodeName\":\"w1\"}",
            "Result: the client sees a changed object",
        ] {
            assert!(shown.contains(expected), "{expected:?} in {shown}");
        }
        assert!(explained(&World::default(), "agent", text).contains("servicetopology (bound by ConfigMap): replaced"));
        let unknown = explained(&World::of(&json!({"pool": {"name": "east"}})), "agent", text);
        assert!(unknown.contains("the members of pool east are unknown"), "{unknown}");
        assert!(
            unknown.contains("Result: the client does not see the object"),
            "{unknown}"
        );
        let other = explained(&World::default(), "other", text);
        assert!(other.contains("-  servicetopology: not bound"), "{other}");
        assert!(
            other.contains("Result: the client sees the object unchanged"),
            "{other}"
        );
    }

    #[test]
    fn pods_without_trust_are_the_reason_why_the_service_keeps_its_address() {
        let kind = find_kind("", "services").expect("a built-in kind");
        let metadata = json!({"namespace": "default", "name": "kubernetes"});
        let service = json!({"metadata": metadata, "spec": {"clusterIP": "10.96.0.1"}});
        let object = Object::from_value(service, kind).expect("an object");
        let table = Table::new(&FILTERS, &Switches::default());
        for (is_trusted, verdict, why) in [
            (true, "replaced", "because pods trust the hub's certificate"),
            (false, "kept", "because pods do not trust the hub's certificate"),
        ] {
            let world = World::of(&json!({ "trusted": is_trusted }));
            let shown = explain(&table, "kubelet", Verb::List, (kind, &object), &world.context()).to_string();
            let expected = format!("masterservice (bound by default): {verdict}\n     {why}");
            assert!(shown.contains(&expected), "{shown}");
        }
    }

    #[test]
    fn dropped_object_is_shown_with_what_the_filters_read_of_it() {
        let kind = find_kind("", "services").expect("a built-in kind");
        let service = json!({
            "metadata": {"namespace": "shop", "name": "web", "annotations": {"nodeport.openyurt.io/listen": "west"}},
            "spec": {"type": "NodePort"},
        });
        let object = Object::from_value(service, kind).expect("an object");
        let table = Table::new(&FILTERS, &Switches::default());
        let world = World::default();
        let shown = explain(&table, "kube-proxy", Verb::List, (kind, &object), &world.context()).to_string();
        for expected in [
            "nodeportisolation (bound by default): dropped",
            "because the object has type \"NodePort\"",
            "because the object has annotations {\"nodeport.openyurt.io/listen\":\"west\"}",
        ] {
            assert!(shown.contains(expected), "{expected:?} in {shown}");
        }
    }

    #[test]
    fn differences_name_each_field_once() {
        let changes = |before: Value, after: Value| {
            let mut changes = Vec::new();
            diff("", &before, &after, &mut changes);
            changes
        };
        let before = json!({"spec": {"ip": "a", "gone": 1, "ports": [{"port": 443}, {"port": 80}]}});
        let after = json!({"spec": {"ip": "b", "new": null, "ports": [{"port": 10268}, {"port": 80}]}});
        assert_eq!(
            changes(before.clone(), after),
            [
                "- /spec/gone: 1",
                "~ /spec/ip: \"a\" -> \"b\"",
                "~ /spec/ports/0/port: 443 -> 10268",
                "+ /spec/new: null"
            ]
        );
        assert_eq!(changes(before.clone(), before), [""; 0]);
        assert_eq!(changes(json!([1, 2, 3, 4]), json!([2, 4])), ["- /0: 1", "- /2: 3"]);
        assert_eq!(changes(json!([1]), json!([2, 3])), ["~ /0: 1 -> 2", "+ /1: 3"]);
        let long = changes(json!("ä".repeat(1000)), json!(1));
        assert!(long[0].chars().count() < 200 && long[0].ends_with("... -> 1"));
    }
}
