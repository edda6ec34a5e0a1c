//! Visibility transitions of a filtered view.

use super::*;
use crate::filter::tests::{World, WorldPool, slice};
use crate::filter::{FILTERS, servicetopology};

/// A slice of a Service; "ghost" is unknown, so its slices are invisible.
fn version(service: &str, version: u64, nodes: &[&str]) -> Object {
    let endpoints: Vec<_> = nodes.iter().map(|node| format!(r#"{{"nodeName":"{node}"}}"#)).collect();
    let endpoints = endpoints.join(",");
    slice(&format!(
        r#"{{"metadata":{{"namespace":"shop","name":"x","resourceVersion":"{version}","labels":{{"kubernetes.io/service-name":"{service}"}}}},"endpoints":[{endpoints}]}}"#
    ))
    .1
}

fn change(prev: Option<&Object>, cur: Option<&Object>, at: u64) -> Transition {
    let chain = Chain::new(vec![&servicetopology::ServiceTopology]);
    let kind = crate::filter::tests::kind("discovery.k8s.io", "endpointslices");
    on_source_change(
        &chain,
        kind,
        &World::default().context(),
        prev,
        cur,
        ResourceVersion(at),
    )
}

#[test]
fn object_the_client_never_saw_causes_nothing() {
    let hidden = version("ghost", 5, &["e1"]);
    assert!(matches!(change(None, Some(&hidden), 5), Transition::Nothing));
    assert!(matches!(
        change(Some(&hidden), Some(&version("ghost", 6, &[])), 6),
        Transition::Nothing
    ));
    assert!(
        matches!(change(Some(&hidden), None, 6), Transition::Nothing),
        "no DELETED for an unknown object"
    );
}

#[test]
fn object_that_becomes_visible_is_added() {
    let seen = change(
        Some(&version("ghost", 5, &["e1"])),
        Some(&version("web", 6, &["e1", "w1"])),
        6,
    );
    let Transition::Added(object) = seen else {
        panic!("{seen:?}")
    };
    assert_eq!(object.resource_version(), ResourceVersion(6));
    assert_eq!(object.to_value()["endpoints"], serde_json::json!([{"nodeName": "e1"}]));
    assert!(matches!(
        change(None, Some(&version("web", 6, &[])), 6),
        Transition::Added(_)
    ));
}

#[test]
fn visible_change_is_modified_even_if_the_filtered_part_did_not_change() {
    let seen = change(
        Some(&version("web", 5, &["e1", "w1"])),
        Some(&version("web", 6, &["e1", "w2"])),
        6,
    );
    let Transition::Modified(object) = seen else {
        panic!("{seen:?}")
    };
    assert_eq!(object.resource_version(), ResourceVersion(6));
}

#[test]
fn object_that_leaves_the_view_is_deleted_with_the_clients_last_view_and_the_version_of_the_change() {
    let before = version("web", 5, &["e1", "w1"]);
    for after in [None, Some(version("ghost", 9, &["e1"]))] {
        let seen = change(Some(&before), after.as_ref(), 9);
        let Transition::Deleted(object) = seen else {
            panic!("{seen:?}")
        };
        let value = object.to_value();
        assert_eq!(value["metadata"]["resourceVersion"], "9");
        assert_eq!(value["metadata"]["labels"]["kubernetes.io/service-name"], "web");
        assert_eq!(
            value["endpoints"],
            serde_json::json!([{"nodeName": "e1"}]),
            "not the unfiltered object"
        );
    }
}

#[test]
fn unfiltered_object_passes_byte_for_byte() {
    let object = version("plain", 5, &["w1"]);
    let seen = change(None, Some(&object), 5);
    assert!(matches!(seen, Transition::Added(seen) if seen.bytes() == object.bytes()));
}

#[test]
fn change_of_an_input_is_stamped_and_silent_without_a_difference() {
    let chain = Chain::new(FILTERS.to_vec());
    let (kind, object) = slice(
        r#"{"metadata":{"namespace":"shop","name":"x","resourceVersion":"5","labels":{"kubernetes.io/service-name":"web"}},"endpoints":[{"nodeName":"e1"},{"nodeName":"e2"}]}"#,
    );
    let view = |pool| chain.view_of(kind, &object, &World::with_pool(pool).context());
    let (both, alone, hidden) = (view(WorldPool::East), view(WorldPool::NoPool), view(WorldPool::Unknown));
    let at = ResourceVersion(8);
    let seen = on_input_change(both.as_ref(), alone.as_ref(), at);
    assert!(
        matches!(&seen, Transition::Modified(object) if object.resource_version() == at),
        "{seen:?}"
    );
    let stamped = both.clone().unwrap().with_resource_version(ResourceVersion(7));
    assert!(matches!(
        on_input_change(Some(&stamped), both.as_ref(), at),
        Transition::Nothing
    ));
    let seen = on_input_change(both.as_ref(), hidden.as_ref(), at);
    assert!(
        matches!(&seen, Transition::Deleted(object) if object.resource_version() == at),
        "{seen:?}"
    );
    let seen = on_input_change(hidden.as_ref(), both.as_ref(), at);
    assert!(
        matches!(&seen, Transition::Added(object) if object.resource_version() == at),
        "{seen:?}"
    );
    assert!(matches!(on_input_change(None, None, at), Transition::Nothing));
}
