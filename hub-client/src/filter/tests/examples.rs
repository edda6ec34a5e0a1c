//! Worked examples of all filters, from `examples.json`.
//!
//! `in` is an object, or the items of a list; `out` the client's view of it: `keep` for the same bytes, `drop`, or
//! other bytes. `context` names what differs from the default world. `example` is the number in the specification of
//! OpenYurt's filters. Claims say where OpenYurt answers otherwise.

use std::cell::RefCell;

use serde::Deserialize;
use serde_json::value::RawValue;
use yurt_codec::{protobuf, schema};

use super::*;

#[derive(Deserialize)]
struct Example<'a> {
    filter: &'a str,
    claim: String,
    resource: Option<&'a str>,
    #[serde(default)]
    context: Value,
    #[serde(borrow, rename = "in")]
    input: &'a RawValue,
    #[serde(borrow)]
    out: &'a RawValue,
}

/// Every example, with the kind of its objects.
fn for_each(mut run: impl FnMut(&Example<'_>, &ResourceKind)) {
    let examples: Vec<Example<'_>> = serde_json::from_str(include_str!("../examples.json")).unwrap();
    for example in &examples {
        run(example, &example.kind());
    }
}

impl Example<'_> {
    /// Kind of the objects: the first one the filter handles, unless the example names another.
    fn kind(&self) -> ResourceKind {
        let resources = registered(self.filter).resources;
        let (plural, version) = match self
            .resource
            .map(|resource| resource.split_once('/').unwrap_or((resource, "")))
        {
            Some((plural, "v1beta1")) => (plural, "v1beta1"),
            Some((plural, _)) => (plural, "v1"),
            None => (resources[resources.len() - 1].1, "v1"),
        };
        let (group, _) = resources.iter().find(|(_, known)| *known == plural).unwrap();
        ResourceKind {
            version: version.into(),
            ..kind(group, plural).clone()
        }
    }

    /// Objects, each with the client's view of it: `None` = dropped.
    fn pairs(&self, kind: &ResourceKind) -> Vec<(Object, Option<Object>)> {
        let items = |text| -> Vec<Object> {
            let items: Vec<&RawValue> = serde_json::from_str(text).unwrap();
            items.iter().map(|item| object(kind, item.get())).collect()
        };
        if self.input.get().starts_with('[') {
            let mut left = items(self.out.get()).into_iter().peekable();
            let pair = |item: Object| {
                let seen = left.next_if(|left| left.key() == item.key());
                (item, seen)
            };
            return items(self.input.get()).into_iter().map(pair).collect();
        }
        let given = object(kind, self.input.get());
        let seen = match self.out.get() {
            "\"keep\"" => Some(given.clone()),
            "\"drop\"" => None,
            text => Some(object(kind, text)),
        };
        vec![(given, seen)]
    }

    fn is_of_json_alone(&self) -> bool {
        self.resource.is_some_and(|resource| resource.ends_with("/json"))
    }
}

/// Reads of such objects skip the filter.
#[test]
fn object_that_a_filter_does_not_concern_is_kept_by_it() {
    let mut others = 0;
    for_each(|example, kind| {
        let (filter, world) = (registered(example.filter).filter, World::of(&example.context));
        for (given, _) in example.pairs(kind) {
            let (namespace, name) = (given.namespace(), Some(given.name()));
            let is_concerned = filter.concerns(namespace, name);
            assert!(!is_concerned || filter.concerns(namespace, None) && filter.concerns(None, name));
            if !is_concerned {
                let verdict = filter.filter(kind, &given, &world.context());
                assert!(
                    matches!(verdict, Verdict::Keep),
                    "{}: {}",
                    example.filter,
                    example.claim
                );
                others += 1;
            }
        }
    });
    assert!(others >= 2, "ConfigMaps of other names and namespaces");
}

#[test]
fn every_example_holds_in_json() {
    let mut wrong = Vec::new();
    for_each(|example, kind| {
        let world = World::of(&example.context);
        for (given, expected) in example.pairs(kind) {
            let verdict = registered(example.filter).filter.filter(kind, &given, &world.context());
            let is_right = match (&verdict, &expected) {
                (Verdict::Keep, Some(expected)) => given.bytes() == expected.bytes(),
                (Verdict::Replace(seen), Some(expected)) => seen.bytes() == expected.bytes() && seen != &given,
                (Verdict::Drop, None) => true,
                _ => false,
            };
            if !is_right {
                let seen = verdict.view_of(&given).map(|seen| seen.bytes());
                wrong.push(format!("{}: {}: {seen:?}", example.filter, example.claim));
            }
        }
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The object arrives in protobuf and leaves in protobuf; between the two it is JSON.
#[test]
fn every_example_holds_in_protobuf() {
    let mut count = 0;
    for_each(|example, kind| {
        let Some(message) = schema::find(&kind.group, &kind.version, &kind.kind) else {
            return;
        };
        if example.is_of_json_alone() {
            return;
        }
        count += 1;
        let world = World::of(&example.context);
        let encoded = |object: &Object| protobuf::encode(message, &object.bytes()).unwrap().bytes;
        let decoded =
            |bytes: &[u8]| -> Value { serde_json::from_slice(&protobuf::decode(message, bytes).unwrap()).unwrap() };
        for (given, expected) in example.pairs(kind) {
            let arrived = protobuf::decode(message, &encoded(&given)).unwrap();
            let arrived = Object::parse(arrived.into(), kind).unwrap();
            let verdict = registered(example.filter)
                .filter
                .filter(kind, &arrived, &world.context());
            let seen = verdict.view_of(&arrived).map(|seen| decoded(&encoded(&seen)));
            let expected = expected.map(|expected| decoded(&encoded(&expected)));
            assert_eq!(seen, expected, "{}: {}", example.filter, example.claim);
        }
    });
    assert!(count > 100, "{count}");
}

#[test]
fn every_filter_has_examples_of_each_verdict_it_can_give() {
    let mut verdicts: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for_each(|example, kind| {
        let world = World::of(&example.context);
        let filter = registered(example.filter).filter;
        for (given, _) in example.pairs(kind) {
            let verdict = match filter.filter(kind, &given, &world.context()) {
                Verdict::Keep => "keep",
                Verdict::Replace(_) => "replace",
                Verdict::Drop => "drop",
            };
            verdicts.entry(filter.name()).or_default().insert(verdict);
        }
    });
    let all = verdicts.iter().map(|(name, verdicts)| {
        let verdicts: Vec<&str> = verdicts.iter().copied().collect();
        format!("{name} {}", verdicts.join(","))
    });
    assert_eq!(
        all.collect::<Vec<_>>(),
        [
            "discardcloudservice drop,keep",
            "endpoints drop,keep,replace",
            "forwardkubesvctraffic keep,replace",
            "hostnetworkpropagation keep,replace",
            "inclusterconfig keep,replace",
            "localendpoints keep,replace",
            "masterservice keep,replace",
            "nodeportisolation drop,keep",
            "serviceenvupdater keep,replace",
            "servicetopology drop,keep,replace",
        ]
    );
}

/// Services of a world; keeps the keys that were looked up.
struct Recorded<'a> {
    world: &'a World,
    keys: RefCell<Vec<ObjectKey>>,
}

impl ServiceLookup for Recorded<'_> {
    fn service(&self, key: &ObjectKey) -> Option<Object> {
        self.keys.borrow_mut().push(key.clone());
        self.world.service(key)
    }
}

/// A view is not evaluated again for an input that no filter names.
#[test]
fn filters_read_no_input_that_they_do_not_name() {
    for_each(|example, kind| {
        let filter = registered(example.filter).filter;
        let world = World::of(&example.context);
        let view = |given: &Object, context: &FilterContext<'_>| filter.filter(kind, given, context).view_of(given);
        for (given, expected) in example.pairs(kind) {
            let services = Recorded {
                world: &world,
                keys: RefCell::default(),
            };
            let context = FilterContext {
                services: &services,
                ..world.context()
            };
            assert_eq!(view(&given, &context), expected);
            let named = filter.service_of(kind, &given).filter(|_| filter.inputs().services);
            let others = |key: &ObjectKey| Some(key) != named.as_ref();
            assert!(!services.keys.borrow().iter().any(others), "{}", filter.name());
            let inputs = filter.inputs();
            if !inputs.local_pods {
                let local_pods = &LocalPods::new();
                assert_eq!(view(&given, &FilterContext { local_pods, ..context }), expected);
            }
            let mut same = Vec::new();
            if let Pool::Named(pool) = context.pool {
                let members = Members::Unknown;
                same.extend((!inputs.members).then_some(Pool::Named(NodePool { members, ..pool })));
                let host_network = pool.host_network.is_none().then_some(true);
                same.extend((!inputs.host_network).then_some(Pool::Named(NodePool { host_network, ..pool })));
            }
            for pool in same {
                let context = FilterContext { pool, ..context };
                assert_eq!(view(&given, &context), expected, "{}", filter.name());
            }
        }
    });
}

/// Reads wait for unknown members, and views are evaluated again when they change.
#[test]
fn filters_that_name_the_members_read_them() {
    let mut readers = BTreeSet::new();
    let nobody = BTreeSet::new();
    for_each(|example, kind| {
        let filter = registered(example.filter).filter;
        let world = World::of(&example.context);
        let Pool::Named(pool) = world.context().pool else {
            return;
        };
        for (given, expected) in example.pairs(kind) {
            for members in [Members::Unknown, Members::Names(&nobody)] {
                let context = FilterContext {
                    pool: Pool::Named(NodePool { members, ..pool }),
                    ..world.context()
                };
                if filter.filter(kind, &given, &context).view_of(&given) != expected {
                    readers.insert(filter.name());
                }
            }
        }
    });
    for registration in &FILTERS {
        let filter = registration.filter;
        assert_eq!(
            filter.inputs().members,
            readers.contains(filter.name()),
            "{}",
            filter.name()
        );
    }
}

/// An object with one place changed: the member is removed or has another value.
fn mutations(value: &Value) -> Vec<Value> {
    let others = [
        json!(null),
        json!(7),
        json!("x"),
        json!(""),
        json!([]),
        json!({}),
        json!([null, 7]),
        json!({"a": []}),
    ];
    let mut out = Vec::new();
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                let mut without = members.clone();
                without.remove(name);
                out.push(Value::Object(without));
                for other in others.iter().cloned().chain(mutations(member)) {
                    let mut changed = members.clone();
                    changed.insert(name.clone(), other);
                    out.push(Value::Object(changed));
                }
            }
        }
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                for other in others.iter().cloned().chain(mutations(item)) {
                    let mut changed = items.clone();
                    changed[at] = other;
                    out.push(Value::Array(changed));
                }
            }
        }
        _ => {}
    }
    out
}

/// A nil field ended OpenYurt's process; a second run changed what the first one had left.
#[test]
fn no_change_of_one_field_panics_or_is_filtered_twice() {
    let mut count = 0;
    for_each(|example, kind| {
        let filter = registered(example.filter).filter;
        let worlds = [World::of(&example.context), World::of(&json!({"pool": "unknown"}))];
        for (given, _) in example.pairs(kind) {
            for changed in mutations(&given.to_value()) {
                // A value that is no object of the kind reaches no filter.
                let Ok(changed) = Object::from_value(changed, kind) else {
                    continue;
                };
                for world in &worlds {
                    count += 1;
                    let view = |object: &Object| filter.filter(kind, object, &world.context()).view_of(object);
                    let once = view(&changed);
                    assert_eq!(once, view(&changed), "two runs differ: {changed:?}");
                    let Some(once) = once else { continue };
                    assert_eq!(once.key(), changed.key());
                    assert_eq!(once.resource_version(), changed.resource_version());
                    assert_eq!(
                        view(&once).as_ref(),
                        Some(&once),
                        "{}: {}",
                        filter.name(),
                        example.claim
                    );
                }
            }
        }
    });
    assert!(count > 10_000, "{count}");
}
