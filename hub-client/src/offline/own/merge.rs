//! Reconciles a status that the kubelet wrote without the cloud with the cloud's present object. Pure.
//!
//! Three states decide field by field: the base (the status before the first write without the cloud), the local state
//! and the cloud's. A field that the kubelet changed has the local value; every other field has the cloud's. Lists with
//! a merge key (conditions) are reconciled element by element, and an element that the kubelet touched is its own as a
//! whole; other lists are values. A condition that the cloud changed after the kubelet's last report is the cloud's: it
//! is about a later time, and a kubelet that runs corrects it. A pod that the cloud knows as finished stays finished.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use yurt_apimachinery::time::Time;
use yurt_codec::schema::{Field, Message};

/// Phases that a pod never leaves.
const FINISHED: [&str; 2] = ["Succeeded", "Failed"];
/// Conditions of a Node that the kubelet compares with those that it lists, every 10 s, and reports if they differ.
const REPEATED: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];
/// Maximum age of a report about them, s: the time of three comparisons.
const REPEATED_WITHIN: i64 = 30;

/// Returns the part of an object that a write of its status may change.
#[must_use]
pub fn part(object: &Value) -> Value {
    let metadata: Map<String, Value> = ["annotations", "labels"]
        .into_iter()
        .filter_map(|name| Some((name.to_owned(), object["metadata"].get(name)?.clone())))
        .collect();
    let mut part = json!({ "metadata": metadata });
    if let Some(status) = object.get("status") {
        part["status"] = status.clone();
    }
    part
}

/// Returns `object` with the parts that a write of its status may change taken from `from`.
#[must_use]
pub fn with_part(object: &Value, from: &Value) -> Value {
    let mut object = object.clone();
    for (parent, name) in [("metadata", "annotations"), ("metadata", "labels"), ("", "status")] {
        let (target, found) = match parent {
            "" => (&mut object, from.get(name)),
            parent => (&mut object[parent], from[parent].get(name)),
        };
        if let Some(members) = target.as_object_mut() {
            match found {
                Some(found) => drop(members.insert(name.to_owned(), found.clone())),
                None => drop(members.remove(name)),
            }
        }
    }
    object
}

/// Returns the part that the cloud's object should have. All three are results of [`part`]; `schema` is the type of the
/// whole object.
#[must_use]
pub fn reconciled(base: &Value, local: &Value, cloud: &Value, schema: Option<Message>) -> Value {
    let merged = merge(Some(base), Some(local), Some(cloud), Level::Structure(schema));
    let mut merged = merged.unwrap_or_default();
    let phase = |part: &Value| part["status"]["phase"].as_str().unwrap_or_default().to_owned();
    let is_finished = |phase: &str| FINISHED.contains(&phase);
    if is_finished(&phase(cloud)) && !is_finished(&phase(&merged)) {
        merged["status"]["phase"] = phase(cloud).into();
    }
    merged
}

/// Returns the kubelet's part of its Node at Unix time `now`, s: conditions of older reports are as in `base`.
///
/// The kubelet lists the cloud's Node, and repeats what differs from it. So a condition that it stopped reporting is as
/// listed again, or the kubelet does not run: the node may have been without power since.
#[must_use]
pub fn without_old_reports(base: &Value, local: &Value, now: i64) -> Value {
    let mut part = local.clone();
    replace_repeated(&mut part, base, |condition| {
        let reported = time(condition, "lastHeartbeatTime").map(Time::unix);
        reported.is_some_and(|at| !(0..=REPEATED_WITHIN).contains(&(now - at)))
    });
    part
}

/// Returns the Node to which the kubelet's patch applies that names the conditions `named`. The kubelet computed it
/// from the Node that it lists, `held`: it replaces what earlier patches reported about these conditions.
#[must_use]
pub fn without_reports_of(named: &[Value], local: &Value, held: &Value) -> Value {
    let mut node = local.clone();
    replace_repeated(&mut node, held, |condition| {
        named.iter().any(|named| named["type"] == condition["type"])
    });
    node
}

/// Returns the Node `local` with the conditions of `held` that the kubelet repeats.
#[must_use]
pub fn as_listed(local: &Value, held: &Value) -> Value {
    let mut node = local.clone();
    replace_repeated(&mut node, held, |_| true);
    node
}

/// Replaces those [`REPEATED`] conditions that `is_other` selects by the ones in `from`, and removes them if it has
/// none.
fn replace_repeated(object: &mut Value, from: &Value, is_other: impl Fn(&Value) -> bool) {
    const CONDITIONS: &str = "/status/conditions";
    let Some(Value::Array(conditions)) = object.pointer_mut(CONDITIONS) else {
        return;
    };
    let others = from.pointer(CONDITIONS).and_then(Value::as_array);
    let others = others.map(Vec::as_slice).unwrap_or_default();
    let is_repeated = |condition: &Value| REPEATED.iter().any(|name| condition["type"] == *name);
    let replaced = std::mem::take(conditions).into_iter().filter_map(|condition| {
        if is_repeated(&condition) && is_other(&condition) {
            return others.iter().find(|other| other["type"] == condition["type"]).cloned();
        }
        Some(condition)
    });
    conditions.extend(replaced);
}

/// Returns the merge patch (RFC 7396) that turns `from` into `to`; `None` if they are equal.
#[must_use]
pub fn difference(from: &Value, to: &Value) -> Option<Value> {
    let (Value::Object(old), Value::Object(new)) = (from, to) else {
        return (from != to).then(|| to.clone());
    };
    let mut patch = Map::new();
    for name in old.keys().chain(new.keys()).collect::<BTreeSet<_>>() {
        let value = |members: &Map<String, Value>| members.get(name).filter(|value| !value.is_null()).cloned();
        let change = match (value(old), value(new)) {
            (Some(old), Some(new)) => difference(&old, &new),
            (Some(_), None) => Some(Value::Null),
            (None, new) => new,
        };
        if let Some(change) = change {
            patch.insert(name.clone(), change);
        }
    }
    (!patch.is_empty()).then_some(patch.into())
}

/// Knowledge about a value.
#[derive(Clone, Copy)]
enum Level {
    /// A structure, of a known type if there is one.
    Structure(Option<Message>),
    /// A list whose elements have this key.
    Keyed(&'static str),
}

// === impl Level ===

impl Level {
    fn member(self, name: &str) -> Self {
        let field = match self {
            Self::Structure(Some(message)) => message.field(name),
            _ => None,
        };
        let key = field.filter(|field| field.is_patch_merged()).and_then(Field::merge_key);
        match (key, field) {
            (Some(key), _) => Self::Keyed(key),
            (None, Some(field)) if !field.is_map() && !field.is_list() => Self::Structure(field.message()),
            _ => Self::Structure(None),
        }
    }
}

fn merge(base: Option<&Value>, local: Option<&Value>, cloud: Option<&Value>, level: Level) -> Option<Value> {
    if local == base || local == cloud {
        return cloud.cloned();
    }
    match (local, cloud, level) {
        (Some(Value::Object(local)), Some(Value::Object(cloud)), _) => {
            let empty = Map::new();
            let base = base.and_then(Value::as_object).unwrap_or(&empty);
            let names: BTreeSet<&String> = base.keys().chain(local.keys()).chain(cloud.keys()).collect();
            let member = |name: &String| {
                let merged = merge(base.get(name), local.get(name), cloud.get(name), level.member(name))?;
                Some((name.clone(), merged))
            };
            Some(Value::Object(names.into_iter().filter_map(member).collect()))
        }
        (Some(Value::Array(items)), Some(Value::Array(theirs)), Level::Keyed(key)) => {
            let base = base.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
            merge_keyed(base, items, theirs, key).or_else(|| local.cloned())
        }
        _ => local.cloned(),
    }
}

/// Merges lists by key; `None` if a key is missing or repeated.
fn merge_keyed(base: &[Value], local: &[Value], cloud: &[Value], key: &str) -> Option<Value> {
    let keys = |list: &[Value]| -> Option<Vec<String>> {
        let keys: Vec<String> = list
            .iter()
            .map(|item| Some(item.get(key)?.as_str()?.to_owned()))
            .collect::<Option<_>>()?;
        let distinct: BTreeSet<&String> = keys.iter().collect();
        (distinct.len() == keys.len()).then_some(keys)
    };
    keys(base)?;
    let (local_keys, cloud_keys) = (keys(local)?, keys(cloud)?);
    let find = |list: &'_ [Value], wanted: &str| list.iter().find(|item| item[key] == wanted).cloned();
    let mut merged = Vec::new();
    for (theirs, name) in cloud.iter().zip(&cloud_keys) {
        let ours = find(local, name);
        let is_older = ours.as_ref().is_some_and(|ours| is_changed_later(theirs, ours));
        if is_older || ours == find(base, name) {
            merged.push(theirs.clone());
        } else {
            merged.extend(ours);
        }
    }
    for (ours, name) in local.iter().zip(&local_keys) {
        let is_new = !cloud_keys.contains(name) && find(base, name).as_ref() != Some(ours);
        if is_new {
            merged.push(ours.clone());
        }
    }
    Some(merged.into())
}

/// True if the cloud changed a condition after the kubelet last reported it: a heartbeat of a Node, a change of a pod.
fn is_changed_later(theirs: &Value, ours: &Value) -> bool {
    let reported = time(ours, "lastHeartbeatTime").or_else(|| time(ours, "lastTransitionTime"));
    let changed = time(theirs, "lastTransitionTime");
    changed
        .zip(reported)
        .is_some_and(|(changed, reported)| changed > reported)
}

fn time(condition: &Value, name: &str) -> Option<Time> {
    Time::parse(condition[name].as_str()?).ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use yurt_codec::schema;
    use yurt_patch::apply_merge_patch;

    use super::*;

    fn pod() -> Option<Message> {
        schema::find("", "v1", "Pod")
    }

    fn of(status: Value) -> Value {
        json!({"metadata": {}, "status": status})
    }

    fn status(base: Value, local: Value, cloud: Value) -> Value {
        reconciled(&of(base), &of(local), &of(cloud), pod())["status"].clone()
    }

    #[test]
    fn kubelet_keeps_what_it_wrote_and_the_cloud_the_rest() {
        let merged = status(
            json!({"phase": "Pending", "conditions": [{"type": "Ready", "status": "False"}, {"type": "Gate", "status": "False"}]}),
            json!({"phase": "Running", "podIP": "10.0.0.7", "conditions": [
                {"type": "Ready", "status": "True"}, {"type": "Gate", "status": "False"}]}),
            json!({"phase": "Pending", "nominatedNodeName": "n2", "conditions": [
                {"type": "Gate", "status": "True"}, {"type": "Ready", "status": "Unknown"}, {"type": "New", "status": "True"}]}),
        );
        let expected = json!({"phase": "Running", "podIP": "10.0.0.7", "nominatedNodeName": "n2", "conditions": [
            {"type": "Gate", "status": "True"}, {"type": "Ready", "status": "True"}, {"type": "New", "status": "True"}]});
        assert_eq!(merged, expected);
    }

    #[test]
    fn removed_fields_and_elements_stay_removed_on_both_sides() {
        let merged = status(
            json!({"message": "m", "reason": "r", "conditions": [{"type": "A"}, {"type": "B"}, {"type": "C"}]}),
            json!({"reason": "r", "conditions": [{"type": "B"}, {"type": "C"}]}),
            json!({"message": "m", "conditions": [{"type": "A"}, {"type": "C"}]}),
        );
        assert_eq!(merged, json!({"conditions": [{"type": "C"}]}));
    }

    #[test]
    fn lists_without_usable_keys_are_the_kubelets_as_a_whole() {
        let base = json!({"addresses": [{"type": "InternalIP", "address": "a"}]});
        let local =
            json!({"addresses": [{"type": "InternalIP", "address": "b"}, {"type": "InternalIP", "address": "c"}]});
        let node = schema::find("", "v1", "Node");
        let merged = reconciled(&of(base.clone()), &of(local.clone()), &of(base), node);
        assert_eq!(merged["status"], local);
    }

    /// The node lifecycle controller, after a silence of the kubelet.
    #[test]
    fn condition_that_the_cloud_changed_after_the_kubelets_last_report_stays() {
        let at = |minute: u32| format!("2026-01-01T00:{minute:02}:00Z");
        let reported = |heartbeat: Option<String>, transition: u32| json!({"type": "Ready", "status": "True", "lastHeartbeatTime": heartbeat, "lastTransitionTime": at(transition)});
        let merged = |ours: &Value, changed: u32| {
            let theirs = json!({"type": "Ready", "status": "Unknown", "lastTransitionTime": at(changed)});
            let list = |condition: &Value| json!({"conditions": [condition]});
            let base = json!({"type": "Ready", "status": "False"});
            status(list(&base), list(ours), list(&theirs))["conditions"][0]["status"].clone()
        };
        let (of_node, of_pod) = (reported(Some(at(20)), 10), reported(None, 10));
        for (ours, changed, expected) in [
            (&of_node, 21, "Unknown"),
            (&of_node, 20, "True"),
            (&of_node, 15, "True"),
            (&of_pod, 11, "Unknown"),
            (&of_pod, 10, "True"),
        ] {
            assert_eq!(merged(ours, changed), expected, "{ours}, changed at {changed}");
        }
    }

    #[test]
    fn conditions_that_the_kubelet_no_longer_reports_are_as_it_lists_them() {
        let condition = |name: &str, status: &str, reported: i64| {
            let reported = Time::from_unix(reported).to_string();
            json!({"type": name, "status": status, "lastHeartbeatTime": reported})
        };
        let base = of(json!({"conditions": [condition("DiskPressure", "False", 0)]}));
        let now = 1_000_000;
        for (name, reported, expected) in [
            ("DiskPressure", now, vec!["True"]),
            ("DiskPressure", now - REPEATED_WITHIN, vec!["True"]),
            ("DiskPressure", now - REPEATED_WITHIN - 1, vec!["False"]),
            ("DiskPressure", now + 1, vec!["False"]),
            ("PIDPressure", 0, vec![]),
            ("Autonomy", 0, vec!["True"]),
        ] {
            let local = of(json!({"phase": "Running", "conditions": [condition(name, "True", reported)]}));
            let part = without_old_reports(&base, &local, now);
            let conditions = part["status"]["conditions"].as_array().unwrap();
            let statuses: Vec<_> = conditions.iter().map(|condition| &condition["status"]).collect();
            assert_eq!(statuses, expected, "{name} reported at {reported}");
            assert_eq!(part["status"]["phase"], "Running");
        }
        let timeless = of(json!({"conditions": [{"type": "Ready"}], "addresses": []}));
        assert_eq!(without_old_reports(&base, &timeless, now), timeless);
        assert_eq!(
            without_old_reports(&base, &json!({"metadata": {}}), now),
            json!({"metadata": {}})
        );
    }

    #[test]
    fn finished_pod_stays_finished() {
        let (before, running) = (json!({"phase": "Pending"}), json!({"phase": "Running"}));
        for phase in FINISHED {
            assert_eq!(
                status(before.clone(), running.clone(), json!({"phase": phase}))["phase"],
                phase
            );
        }
        let failed = json!({"phase": "Failed"});
        assert_eq!(status(before.clone(), failed.clone(), before), failed);
    }

    #[test]
    fn only_status_labels_and_annotations_are_taken_from_a_write() {
        let object = json!({"metadata": {"name": "web", "uid": "u", "labels": {"a": "1"}}, "spec": {"nodeName": "n1"}});
        let write =
            json!({"metadata": {"name": "x", "annotations": {"b": "2"}}, "spec": {}, "status": {"phase": "Running"}});
        let expected = json!({"metadata": {"name": "web", "uid": "u", "annotations": {"b": "2"}},
            "spec": {"nodeName": "n1"}, "status": {"phase": "Running"}});
        assert_eq!(with_part(&object, &write), expected);
        assert_eq!(
            part(&expected),
            json!({"metadata": {"annotations": {"b": "2"}}, "status": {"phase": "Running"}})
        );
    }

    /// A status of scalars, of a structure and of conditions.
    fn any_status() -> impl Strategy<Value = Value> {
        let scalars = prop::collection::btree_map("[ab]", 0..3_u8, 0..3);
        let inner = prop::collection::btree_map("[xy]", 0..3_u8, 0..3);
        let conditions = prop::collection::btree_map("[PQR]", 0..3_u8, 0..4);
        (scalars, inner, conditions).prop_map(|(scalars, inner, conditions)| {
            let conditions: Vec<Value> = conditions
                .iter()
                .map(|(key, value)| json!({"type": key, "status": value}))
                .collect();
            let mut status = json!({"inner": inner, "conditions": conditions});
            scalars.iter().for_each(|(name, value)| status[name] = (*value).into());
            status
        })
    }

    /// Every decided place with its value: scalars, members of the structure, conditions by type.
    fn places(status: &Value) -> BTreeMap<String, Value> {
        let members = |value: &Value, prefix: &str| -> Vec<(String, Value)> {
            let members = value.as_object().into_iter().flatten();
            members
                .map(|(name, value)| (format!("{prefix}{name}"), value.clone()))
                .collect()
        };
        let conditions = status["conditions"].as_array().into_iter().flatten();
        let conditions = conditions.map(|item| (format!("conditions/{}", item["type"]), item.clone()));
        let scalars = members(status, "").into_iter().filter(|(_, value)| value.is_number());
        scalars
            .chain(members(&status["inner"], "inner/"))
            .chain(conditions)
            .collect()
    }

    proptest! {
        #[test]
        fn no_write_of_either_side_is_lost(base in any_status(), local in any_status(), cloud in any_status()) {
            let merged = places(&status(base.clone(), local.clone(), cloud.clone()));
            let (base, local, cloud) = (places(&base), places(&local), places(&cloud));
            let all: BTreeSet<&String> = base.keys().chain(local.keys()).chain(cloud.keys()).chain(merged.keys()).collect();
            for place in all {
                let is_written = local.get(place) != base.get(place);
                let expected = if is_written { local.get(place) } else { cloud.get(place) };
                prop_assert_eq!(merged.get(place), expected, "{}", place);
            }
        }

        #[test]
        fn patch_leads_from_the_clouds_state_to_the_merged_one(base in any_status(), local in any_status(), cloud in any_status()) {
            let merged = status(base, local, cloud.clone());
            let mut patched = cloud.clone();
            if let Some(patch) = difference(&cloud, &merged) {
                apply_merge_patch(&mut patched, patch.to_string().as_bytes()).unwrap();
            }
            prop_assert_eq!(&patched, &merged);
            prop_assert_eq!(difference(&merged, &merged), None);
        }

        #[test]
        fn sending_twice_changes_nothing_more(base in any_status(), local in any_status(), cloud in any_status()) {
            let once = status(base.clone(), local.clone(), cloud);
            prop_assert_eq!(status(base, local, once.clone()), once);
        }
    }
}
