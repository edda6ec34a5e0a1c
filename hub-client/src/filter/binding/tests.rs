//! The binding table: defaults, both syntaxes, and what is reported.

use super::*;

fn config(entries: &[(&str, &str)]) -> (Bindings, Vec<String>) {
    let data = entries
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    Bindings::from_config(&data)
}

/// The filters of each verb (get, list, watch) for one component and resource.
fn bound(bindings: &Bindings, component: &str, resource: &str) -> [Vec<&'static str>; 3] {
    VERBS.map(|verb| bindings.chain(component, resource, verb).names())
}

fn all(filter: &'static str) -> [Vec<&'static str>; 3] {
    VERBS.map(|_| vec![filter])
}

fn none() -> [Vec<&'static str>; 3] {
    VERBS.map(|_| Vec::new())
}

#[test]
fn defaults_are_upstreams_and_a_get_is_filtered_like_a_list() {
    let bindings = Bindings::builtin();
    assert_eq!(bound(&bindings, "kubelet", "services"), all("masterservice"));
    for component in ["kube-proxy", "coredns", "nginx-ingress-controller"] {
        assert_eq!(bound(&bindings, component, "endpoints"), all("servicetopology"));
        assert_eq!(bound(&bindings, component, "endpointslices"), all("servicetopology"));
    }
}

#[test]
fn nothing_else_is_bound() {
    let bindings = Bindings::builtin();
    for (component, resource) in [
        ("kubelet", "endpoints"),
        ("kube-proxy", "services"),
        ("yurthub", "services"),
        ("", "services"),
    ] {
        assert_eq!(bound(&bindings, component, resource), none());
    }
    assert!(bindings.chain("kubelet", "services", Verb::Update).is_empty());
    assert!(bindings.chain("kubelet", "services", Verb::Other).is_empty());
}

#[test]
fn component_is_the_lower_case_user_agent_up_to_the_slash() {
    assert_eq!(component_of("Kubelet/v1.36.3 (linux/amd64) kubernetes/abc"), "kubelet");
    assert_eq!(component_of("CoreDNS"), "coredns");
    assert_eq!(component_of(""), "");
}

#[test]
fn list_of_agents_is_added_to_the_defaults() {
    let (bindings, messages) = config(&[("masterservice", "agent-a, Agent-B")]);
    assert_eq!(messages, [""; 0]);
    for component in ["agent-a", "agent-b", "kubelet"] {
        assert_eq!(bound(&bindings, component, "services"), all("masterservice"));
    }
}

#[test]
fn legacy_entry_binds_exactly_what_it_says() {
    let (bindings, messages) = config(&[("filter_servicetopology", "cilium/endpointslices#list;watch, other")]);
    assert_eq!(messages, [""; 0]);
    let expected = [vec![], vec!["servicetopology"], vec!["servicetopology"]];
    assert_eq!(bound(&bindings, "cilium", "endpointslices"), expected);
    assert_eq!(bound(&bindings, "cilium", "endpoints"), none());
    assert_eq!(bound(&bindings, "other", "endpoints"), all("servicetopology"));
}

#[test]
fn both_spellings_of_a_key_add_up() {
    let (bindings, messages) = config(&[(" masterservice ", "a"), ("filter_masterservice", "b")]);
    assert_eq!(messages, [""; 0]);
    assert_eq!(bound(&bindings, "a", "services"), all("masterservice"));
    assert_eq!(bound(&bindings, "b", "services"), all("masterservice"));
}

#[test]
fn shipped_default_content_changes_nothing_and_is_not_reported() {
    let (bindings, messages) = config(&[
        ("cache_agents", "prometheus"),
        ("pool_scope_resources", "[]"),
        ("servicetopology", ""),
        ("discardcloudservice", ""),
        ("masterservice", " , "),
    ]);
    assert_eq!((bindings, messages), (Bindings::builtin(), Vec::new()));
}

#[test]
fn malformed_entries_are_reported_and_the_others_count() {
    let malformed = [
        ("nosuch", "a", "no filter \"nosuch\""),
        ("filter_", "a", "no filter \"\""),
        ("masterservice", "*", "an agent is a name"),
        ("masterservice", "a b", "an agent is a name"),
        ("masterservice", "/services#list", "an agent is a name"),
        ("masterservice", "kube-proxy/1.2", "expected agent/resource#verb;verb"),
        (
            "masterservice",
            "a/endpoints#list",
            "filter masterservice is about services",
        ),
        ("masterservice", "a/services#list;delete", "verb \"delete\" is none of"),
        ("masterservice", "a/services#", "verb \"\" is none of"),
        ("masterservice", "yurthub", "never filtered"),
    ];
    for (key, value, expected) in malformed {
        let (bindings, messages) = config(&[(key, value)]);
        assert_eq!(bindings, Bindings::builtin(), "{key} {value}");
        assert!(
            matches!(&messages[..], [message] if message.contains(expected)),
            "{messages:?}"
        );
    }
    let (bindings, messages) = config(&[("masterservice", "*, good, kube-proxy/1.2")]);
    assert_eq!(messages.len(), 2);
    assert_eq!(bound(&bindings, "good", "services"), all("masterservice"));
}

#[test]
fn order_of_calling_does_not_depend_on_the_configuration() {
    let bind = |filters: &[usize]| {
        let mut bindings = Bindings {
            entries: BTreeMap::new(),
        };
        filters
            .iter()
            .for_each(|place| bindings.bind("a", "services", Verb::List, *place));
        bindings.chain("a", "services", Verb::List).names()
    };
    assert_eq!(bind(&[0, 1]), bind(&[1, 0]));
    assert_eq!(bind(&[1, 0]), ["servicetopology", "masterservice"]);
}
