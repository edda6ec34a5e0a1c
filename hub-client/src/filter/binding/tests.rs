//! Tables of upstream's worked examples, with the decisions of this hub, and any text as configuration.

use proptest::prelude::*;
use yurt_apimachinery::ResourceKind;

use super::*;
use crate::filter::{ENDPOINTS, FILTERS, FilterContext, ObjectFilter, SERVICES, SLICES, Verdict};

/// Filter that keeps everything.
struct Named(&'static str);

impl ObjectFilter for Named {
    fn name(&self) -> &'static str {
        self.0
    }
    fn filter(&self, _: &ResourceKind, _: &yurt_apimachinery::Object, _: &FilterContext<'_>) -> Verdict {
        Verdict::Keep
    }
}

/// Filters with the names, resources and defaults of upstream.
static UPSTREAM: [Registration; 6] = [
    Registration {
        components: &["kube-proxy", "coredns"],
        ..Registration::new(&Named("servicetopology"), &[ENDPOINTS, SLICES])
    },
    Registration {
        components: &["kubelet"],
        ..Registration::new(&Named("masterservice"), &[SERVICES])
    },
    Registration {
        components: &["kube-proxy"],
        is_edge_only: true,
        ..Registration::new(&Named("discardcloudservice"), &[SERVICES])
    },
    Registration {
        components: &["kube-proxy"],
        ..Registration::new(&Named("nodeportisolation"), &[SERVICES])
    },
    Registration {
        components: &["kubelet"],
        is_off: true,
        ..Registration::new(&Named("hostnetworkpropagation"), &[("", "pods")])
    },
    Registration {
        aliases: &["ingresscontroller"],
        ..Registration::new(&Named("endpoints"), &[ENDPOINTS])
    },
];

fn defaults() -> Table {
    Table::new(&UPSTREAM, &Switches::default())
}

fn table(data: &[(&str, &str)]) -> Table {
    let data = data.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    defaults().with(&data.collect())
}

/// Filters of a list.
fn lists(table: &Table, component: &str, (group, resource): (&str, &str)) -> Vec<&'static str> {
    table.chain(component, group, resource, Verb::List).names()
}

/// Filters of get, list and watch.
fn each(table: &Table, component: &str, (group, resource): (&str, &str)) -> [Vec<&'static str>; 3] {
    VERBS.map(|verb| table.chain(component, group, resource, verb).names())
}

/// Key and entry of each fault.
fn faults(table: &Table) -> Vec<(&str, &str)> {
    let faults = table.faults().iter();
    faults.map(|fault| (fault.key.as_str(), fault.entry.as_str())).collect()
}

#[test]
fn defaults_are_upstreams_in_the_order_of_the_registration() {
    for table in [defaults(), table(&[])] {
        let both = vec!["discardcloudservice", "nodeportisolation"];
        assert_eq!(each(&table, "kube-proxy", SERVICES), VERBS.map(|_| both.clone()));
        assert_eq!(each(&table, "kubelet", SERVICES), VERBS.map(|_| vec!["masterservice"]));
        assert_eq!(lists(&table, "coredns", SLICES), ["servicetopology"]);
        let none = [
            ("kubelet", SLICES),
            ("kubelet", ("", "pods")),
            ("", SERVICES),
            ("x", SERVICES),
        ];
        for (component, resource) in none {
            assert_eq!(each(&table, component, resource), VERBS.map(|_| Vec::<&str>::new()));
        }
        for (group, resource) in [("discovery.k8s.io", "endpoints"), ("", "endpointslices")] {
            assert!(
                lists(&table, "kube-proxy", (group, resource)).is_empty(),
                "of another group"
            );
        }
        for verb in [Verb::Create, Verb::Update, Verb::Patch, Verb::Delete] {
            assert!(table.chain("kubelet", "", "services", verb).is_empty());
        }
    }
}

/// The filters of this build, as upstream binds them.
#[test]
fn registered_filters_have_upstreams_defaults_and_ours() {
    let table = Table::new(&FILTERS, &Switches::default());
    let expected: [(&str, (&str, &str), &[&str]); 9] = [
        ("kubelet", SERVICES, &["masterservice"]),
        ("kubelet", ("", "configmaps"), &["inclusterconfig"]),
        ("kubelet", ("", "pods"), &["serviceenvupdater"]),
        ("kube-proxy", SERVICES, &["discardcloudservice", "nodeportisolation"]),
        ("kube-proxy", ENDPOINTS, &["servicetopology", "localendpoints"]),
        (
            "kube-proxy",
            SLICES,
            &["servicetopology", "localendpoints", "forwardkubesvctraffic"],
        ),
        ("coredns", ENDPOINTS, &["servicetopology", "localendpoints"]),
        ("coredns", SLICES, &["servicetopology", "localendpoints"]),
        (
            "nginx-ingress-controller",
            SLICES,
            &["servicetopology", "localendpoints"],
        ),
    ];
    for (component, resource, filters) in expected {
        assert_eq!(each(&table, component, resource), VERBS.map(|_| filters.to_vec()));
    }
    for (component, resource) in [
        ("kubelet", ENDPOINTS),
        ("kube-proxy", ("", "pods")),
        ("yurthub", SERVICES),
    ] {
        assert!(lists(&table, component, resource).is_empty(), "{component}");
    }
}

/// Without `masterservice` the kubelet's pods have the cloud's address of kube-apiserver, which no rule of kube-proxy
/// serves before kube-proxy runs.
#[test]
fn filter_is_bound_only_beside_the_one_that_it_requires() {
    let config_maps = ("", "configmaps");
    let with = |table: &Table, key: &str, value: &str| table.with(&[(key.to_owned(), value.to_owned())].into());
    let table = Table::new(&FILTERS, &Switches::default());
    let switches = Switches {
        disabled: ["masterservice"].into(),
        ..Switches::default()
    };
    let disabled = Table::new(&FILTERS, &switches);
    let unbound = with(&table, "masterservice", "-kubelet");
    let partly = with(&table, "masterservice", "-kubelet, kubelet/services#list");
    let of_another = with(&table, "inclusterconfig", "agent");
    for (table, component) in [
        (&disabled, "kubelet"),
        (&unbound, "kubelet"),
        (&partly, "kubelet"),
        (&of_another, "agent"),
    ] {
        assert_eq!(each(table, component, config_maps), VERBS.map(|_| Vec::<&str>::new()));
    }
    assert_eq!(faults(&of_another), [("inclusterconfig", "agent")]);
    assert!(faults(&unbound).is_empty(), "no entry binds it");
    let data = ["masterservice", "inclusterconfig"].map(|key| (key.to_owned(), "agent".to_owned()));
    assert_eq!(
        lists(&table.with(&data.into()), "agent", config_maps),
        ["inclusterconfig"]
    );
    let changed = ("kubelet".to_owned(), GroupResource::new("", "configmaps"));
    assert!(table.changes(&unbound).contains(&changed), "open watches end");
    let concerned = RequestInfo::parse("GET", "/api/v1/namespaces/kube-system/configmaps/kube-proxy", None).unwrap();
    assert!(table.is_filterable(&concerned) && !disabled.is_filterable(&concerned));
}

#[test]
fn example_1_components_are_added_to_the_defaults() {
    let table = table(&[("masterservice", "agent-a, agent-b")]);
    for component in ["agent-a", "agent-b", "kubelet"] {
        assert_eq!(lists(&table, component, SERVICES), ["masterservice"]);
    }
    assert_eq!(table.fault_count(), 0);
}

#[test]
fn examples_2_and_3_the_older_syntax_binds_exactly_what_it_names() {
    let table = table(&[("filter_servicetopology", "cilium/endpointslices#list;watch")]);
    assert_eq!(each(&table, "cilium", SLICES), VERBS.map(|_| vec!["servicetopology"]));
    assert!(lists(&table, "cilium", ENDPOINTS).is_empty());
    assert_eq!(faults(&table), []);
}

#[test]
fn example_4_an_update_replaces_the_entries_of_the_one_before() {
    let before = table(&[("discardcloudservice", "a")]);
    assert_eq!(lists(&before, "a", SERVICES), ["discardcloudservice"]);
    let after = before.with(&BTreeMap::from([("nodeportisolation".to_owned(), "a".to_owned())]));
    assert_eq!(lists(&after, "a", SERVICES), ["nodeportisolation"]);
    let changed = BTreeSet::from([("a".to_owned(), GroupResource::new("", "services"))]);
    assert_eq!(before.changes(&after), changed);
    assert_eq!(after.changes(&before), changed);
}

#[test]
fn example_5_other_keys_change_no_filter() {
    let (x, y) = (table(&[("cache_agents", "x")]), table(&[("cache_agents", "y,*")]));
    assert_eq!(x.changes(&y), BTreeSet::new());
    assert_eq!((x.fault_count(), y.fault_count()), (0, 0));
}

#[test]
fn example_6_unknown_filter_is_reported() {
    let table = table(&[("nosuch", "a"), ("filter_", "a"), ("masterservice", "b")]);
    assert_eq!(faults(&table), [("filter_", ""), ("nosuch", "")]);
    assert_eq!(lists(&table, "b", SERVICES), ["masterservice"], "the rest applies");
}

#[test]
fn example_7_a_key_has_as_many_filters_as_are_bound() {
    let table = table(&[("filter_masterservice", "kube-proxy/services#list")]);
    let [get, list, watch] = each(&table, "kube-proxy", SERVICES);
    assert_eq!(list, ["masterservice", "discardcloudservice", "nodeportisolation"]);
    assert_eq!(get, list, "one view of an object");
    assert_eq!(watch, ["discardcloudservice", "nodeportisolation"]);
}

#[test]
fn example_8_deletion_leaves_the_defaults() {
    let before = table(&[("masterservice", "a, -kubelet"), ("hostnetworkpropagation", "kubelet")]);
    let after = before.with(&BTreeMap::new());
    assert_eq!(after.changes(&defaults()), BTreeSet::new());
    assert_eq!(before.changes(&after).len(), 3);
}

#[test]
fn case_spaces_prefixes_and_older_names_do_not_matter() {
    let table = table(&[
        (" endpoints ", "Traefik ,"),
        ("filter_ingresscontroller", " ,nginx/EndPoints#List; Watch, KUBE-PROXY"),
        ("ingresscontroller", "haproxy/endpoints#get"),
        ("servicetopology", "cilium/endpointslices.discovery.k8s.io#watch"),
    ]);
    for component in ["traefik", "nginx"] {
        assert_eq!(each(&table, component, ENDPOINTS), VERBS.map(|_| vec!["endpoints"]));
    }
    assert_eq!(lists(&table, "kube-proxy", ENDPOINTS), ["servicetopology", "endpoints"]);
    assert_eq!(each(&table, "haproxy", ENDPOINTS).map(|names| names.len()), [1, 0, 0]);
    assert_eq!(each(&table, "cilium", SLICES).map(|names| names.len()), [1, 0, 1]);
    assert_eq!(faults(&table), []);
}

#[test]
fn default_is_removed_or_narrowed_and_a_filter_that_is_off_is_bound() {
    let table = table(&[
        ("masterservice", "-Kubelet"),
        ("servicetopology", "-kube-proxy, kube-proxy/endpoints#list;watch"),
        ("hostnetworkpropagation", "kubelet"),
    ]);
    assert!(lists(&table, "kubelet", SERVICES).is_empty());
    assert_eq!(lists(&table, "kube-proxy", ENDPOINTS), ["servicetopology"]);
    assert!(lists(&table, "kube-proxy", SLICES).is_empty());
    assert_eq!(lists(&table, "coredns", SLICES), ["servicetopology"]);
    assert_eq!(lists(&table, "kubelet", ("", "pods")), ["hostnetworkpropagation"]);
    assert_eq!(faults(&table), []);
}

#[test]
fn service_account_stands_in_the_place_of_a_component() {
    let (agent, other) = ("system:serviceaccount:kube-system:agent", "system:serviceaccount:a.b:c");
    let exact = format!("{agent}/endpointslices#list;watch, {other}");
    let table = table(&[
        ("filter_servicetopology", &exact),
        ("masterservice", "System:ServiceAccount:Shop:web"),
    ]);
    assert_eq!(faults(&table), []);
    assert_eq!(each(&table, agent, SLICES), VERBS.map(|_| vec!["servicetopology"]));
    assert!(lists(&table, agent, ENDPOINTS).is_empty());
    assert_eq!(lists(&table, other, ENDPOINTS), ["servicetopology"]);
    let web = "system:serviceaccount:shop:web";
    assert_eq!(lists(&table, web, SERVICES), ["masterservice"]);
    assert_eq!(table.accounts().iter().collect::<Vec<_>>(), [other, agent, web]);
    assert!(defaults().accounts().is_empty());
    // With any resource: its callers read as their components before.
    let changed = defaults().changes(&table);
    assert_eq!(changed, table.changes(&defaults()));
    for (group, resource) in [SERVICES, ENDPOINTS, SLICES, ("", "pods")] {
        for account in [agent, other, web] {
            assert!(changed.contains(&(account.to_owned(), GroupResource::new(group, resource))));
        }
    }
    assert_eq!(changed.len(), 3 * 4);
}

#[test]
fn entry_that_is_not_applied_is_reported_and_costs_no_other() {
    let long = "x".repeat(64);
    let cases = [
        "*",
        "kube-proxy/1.2",
        "a/services#list",
        "a/endpoints#",
        "a/endpoints#list;patch",
        "a/endpoints.apps#list",
        "-nobody",
        "-",
        "-coredns/endpoints#list",
        "ä",
        "a b",
        "YurtHub",
        "/endpoints#list",
        "system:serviceaccount:a",
        "system:serviceaccount:a:",
        "system:serviceaccount:a:b:c",
        "system:node:n1",
        "-system:serviceaccount:a:b",
        "system:serviceaccount:a:b/endpointslices",
        &long,
    ];
    for case in cases {
        let table = table(&[("servicetopology", &format!("one,{case},two"))]);
        assert_eq!(faults(&table), [("servicetopology", case)]);
        assert!(!table.faults()[0].reason.is_empty());
        for component in ["one", "two", "kube-proxy", "coredns"] {
            assert_eq!(lists(&table, component, SLICES), ["servicetopology"], "{case}");
        }
    }
    for empty in ["", ",", " , ", " "] {
        assert_eq!(table(&[("masterservice", empty)]).fault_count(), 0);
    }
    let both = table(&[("masterservice", "-kubelet"), ("filter_masterservice", "kubelet")]);
    assert_eq!(faults(&both), [("masterservice", "-kubelet")]);
    assert_eq!(
        lists(&both, "kubelet", SERVICES),
        ["masterservice"],
        "the one that filters wins"
    );
}

#[test]
fn flags_switch_filters_off_whatever_the_configuration_says() {
    let data = BTreeMap::from([("discardcloudservice".to_owned(), "a".to_owned())]);
    let with = |switches: Switches| Table::new(&UPSTREAM, &switches).with(&data);
    let is_filterable = |table: &Table, resource: &str| {
        table.is_filterable(&RequestInfo::parse("GET", &format!("/api/v1/{resource}"), None).unwrap())
    };
    let services = |table: &Table| lists(table, "kube-proxy", SERVICES).len() + lists(table, "a", SERVICES).len();
    let all = |names: &[&str]| Switches {
        disabled: disabled(names, &UPSTREAM).unwrap(),
        ..Switches::default()
    };
    assert_eq!(services(&with(Switches::default())), 3);
    assert_eq!(services(&with(all(&["discardcloudservice"]))), 1);
    let in_cloud = Switches {
        in_cloud: true,
        ..Switches::default()
    };
    assert_eq!(services(&with(in_cloud)), 1);
    let off = Switches {
        all_off: true,
        ..Switches::default()
    };
    for table in [with(off), with(all(&["*"]))] {
        assert_eq!(services(&table), 0);
        assert!(!is_filterable(&table, "services"));
        assert_eq!(table.fault_count(), 0, "an entry of a filter that is off is no fault");
    }
    assert!(is_filterable(&with(all(&["discardcloudservice"])), "services"));
    assert!(!is_filterable(&defaults(), "deployments"));
    assert_eq!(all(&["ingresscontroller"]).disabled, BTreeSet::from(["endpoints"]));
    for unknown in [&["*", "masterservice"][..], &["nosuch"]] {
        assert!(disabled(unknown, &UPSTREAM).is_err_and(|why| why.contains("masterservice")));
    }
}

#[test]
fn what_is_read_is_bounded() {
    let many = |count: usize| (0..count).map(|n| format!("c{n}")).collect::<Vec<_>>().join(",");
    let most = table(&[("masterservice", &many(ENTRIES_MAX))]);
    assert_eq!((most.rows()[1].bound.len(), most.fault_count()), (ENTRIES_MAX + 1, 0));
    let more = table(&[
        ("discardcloudservice", &many(600)),
        ("masterservice", &many(ENTRIES_MAX)),
    ]);
    assert_eq!(more.rows()[1].bound.len(), 1 + 400);
    assert_eq!(faults(&more), [("masterservice", "")]);
    let wrong = table(&[("masterservice", &"ä,".repeat(300))]);
    assert_eq!((wrong.faults().len(), wrong.fault_count()), (FAULTS_MAX, 300));
    let long = table(&[("masterservice", &"ä".repeat(5000))]);
    assert!(long.faults()[0].entry.chars().count() <= QUOTE_MAX && long.faults()[0].reason.len() < 1000);
}

/// Texts near the syntax, and any others.
fn value() -> impl Strategy<Value = String> {
    let entry = prop_oneof![
        "[-]?(kube-proxy|kubelet|coredns|a|B|\\*|yurthub|system:serviceaccount:[a-c:]{0,4})",
        "[-]?(a|kube-proxy)/(endpoints|endpointslices|services|pods)?#?(get|list|watch|put|;){0,4}",
        ".{0,12}",
    ];
    prop_oneof![
        prop::collection::vec(entry, 0..6).prop_map(|entries| entries.join(",")),
        ".{0,200}",
    ]
}

fn key() -> impl Strategy<Value = String> {
    let known = prop::sample::select(UPSTREAM.iter().map(|one| one.filter.name()).collect::<Vec<_>>());
    prop_oneof![
        (any::<bool>(), known).prop_map(|(is_old, name)| if is_old {
            format!("filter_{name}")
        } else {
            name.to_owned()
        }),
        ".{0,20}",
    ]
}

proptest! {
    #[test]
    fn any_text_is_survived_and_each_entry_is_applied_or_reported(
        data in prop::collection::btree_map(key(), value(), 0..4)
    ) {
        let table = defaults().with(&data);
        prop_assert!(table.fault_count() <= FAULTS_MAX, "few entries");
        let is_reported = |key: &str, entry: &str| {
            let quote = |text: &str| text.chars().take(QUOTE_MAX).collect::<String>();
            table.faults().iter().any(|fault| fault.key == quote(key) && fault.entry == quote(entry))
        };
        for (key, value) in &data {
            let name = key.trim();
            let name = name.strip_prefix(KEY_PREFIX).unwrap_or(name);
            let Some(row) = table.rows().iter().find(|row| row.registration.is_named(name)) else {
                prop_assert!(is_reported(key, "") || OTHER_KEYS.contains(&name));
                continue;
            };
            for text in entry::split(value) {
                let is_applied = match entry::parse(text, row.registration) {
                    Err(_) => false,
                    Ok(Entry::Bind(component)) => {
                        row.bound.get(&component).is_some_and(|one| one.verbs.iter().all(|verbs| *verbs == Verbs::ALL))
                    }
                    Ok(Entry::BindExactly(component, place, verbs)) => row.bound.get(&component).is_some_and(|one| {
                        VERBS.into_iter().all(|verb| !verbs.has(verb) || one.verbs[place].has(verb))
                    }),
                    Ok(Entry::Remove(component)) => {
                        row.bound.get(&component).is_none_or(|one| one.origin == Origin::ConfigMap)
                            && row.registration.defaults().contains_key(&component)
                    }
                };
                prop_assert!(is_applied != is_reported(key, text), "{key:?}: {text:?}");
            }
        }
    }
}
