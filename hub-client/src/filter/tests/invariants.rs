//! Rules of all filters, of filters together, and of the three representations of endpoints.

use proptest::prelude::*;

use super::*;
use crate::filter::near::{Near, Shape};

const SLICES: (&str, &str) = ("discovery.k8s.io", "endpointslices");

fn chain(names: &[&str]) -> Chain {
    Chain::new(names.iter().map(|name| registered(name).filter).collect())
}

/// OpenYurt calls the filters of a request in random order.
#[test]
fn filters_are_called_in_the_order_of_the_table() {
    let names: Vec<&str> = FILTERS.iter().map(|registered| registered.filter.name()).collect();
    assert_eq!(
        names,
        [
            "servicetopology",
            "endpoints",
            "localendpoints",
            "masterservice",
            "discardcloudservice",
            "inclusterconfig",
            "nodeportisolation",
            "hostnetworkpropagation",
            "forwardkubesvctraffic",
            "serviceenvupdater",
        ]
    );
    assert!(FILTERS.iter().all(|registered| !registered.resources.is_empty()));
    assert!(registered("endpoints").is_named("ingresscontroller"));
    let off: Vec<&str> = FILTERS
        .iter()
        .filter(|known| known.is_off)
        .map(|known| known.filter.name())
        .collect();
    assert_eq!(off, ["hostnetworkpropagation"]);
}

#[test]
fn names_are_distinct() {
    let names = FILTERS
        .iter()
        .flat_map(|known| known.aliases.iter().copied().chain([known.filter.name()]));
    let names: Vec<&str> = names.collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
}

#[test]
fn objects_of_other_kinds_are_kept() {
    let text = r#"{"metadata":{"namespace":"default","name":"kubernetes","labels":{"kubernetes.io/service-name":"web"}},"spec":{"type":"LoadBalancer"},"data":{"config.conf":"kubeconfig: a"}}"#;
    let kind = kind("", "secrets");
    for registered in &FILTERS {
        let verdict = registered
            .filter
            .filter(kind, &object(kind, text), &World::default().context());
        assert!(matches!(verdict, Verdict::Keep), "{}", registered.filter.name());
    }
}

/// The invented endpoint names no node, so the other order would remove it (OpenYurt 1.5 to 1.7.0: end its process).
#[test]
fn annotated_kubernetes_service_ends_at_the_hub() {
    let kind = kind(SLICES.0, SLICES.1);
    let slice = r#"{"metadata":{"namespace":"default","name":"kubernetes","labels":{"kubernetes.io/service-name":"kubernetes"}},"addressType":"IPv4","endpoints":[{"addresses":["192.0.2.10"]}],"ports":[{"name":"https","port":6443}]}"#;
    struct Annotated;
    impl ServiceLookup for Annotated {
        fn service(&self, _: &ObjectKey) -> Option<Object> {
            World::default().service(&ObjectKey::new(Some("shop"), "web"))
        }
    }
    let world = World::default();
    let context = FilterContext {
        services: &Annotated,
        ..world.context()
    };
    let table = binding::Table::new(&FILTERS, &binding::Switches::default());
    let (group, plural) = SLICES;
    let chain = table.chain("kube-proxy", group, plural, yurt_apimachinery::Verb::List);
    assert_eq!(
        chain.names(),
        ["servicetopology", "localendpoints", "forwardkubesvctraffic"]
    );
    let seen = chain.view_of(kind, &object(kind, slice), &context).unwrap().to_value();
    assert_eq!(
        seen["endpoints"],
        json!([{"addresses": ["169.254.2.1"], "conditions": {"ready": true}}])
    );
    assert_eq!(seen["ports"][0]["port"], 10268);
}

/// OpenYurt runs the second filter of a Service on nothing after the first one dropped it.
#[test]
fn service_that_one_filter_drops_reaches_no_other() {
    let (kind, object) = service(
        r#"{"metadata":{"namespace":"shop","name":"web","annotations":{"nodeport.openyurt.io/listen":"east"}},"spec":{"type":"LoadBalancer"}}"#,
    );
    for names in [
        ["discardcloudservice", "nodeportisolation"],
        ["nodeportisolation", "discardcloudservice"],
    ] {
        let verdict = chain(&names).filter(kind, &object, &World::default().context());
        assert!(matches!(verdict, Verdict::Drop), "{names:?}");
    }
}

/// OpenYurt 1.6 changes the cached object for every other client.
#[test]
fn shared_object_is_not_changed() {
    let text = r#"{"apiVersion":"v1","kind":"Service","metadata":{"namespace":"default","name":"kubernetes"},"spec":{"ports":[{"name":"https","port":443}]}}"#;
    let (kind, object) = service(text);
    let seen = chain(&["masterservice"])
        .view_of(kind, &object, &World::default().context())
        .unwrap();
    assert_ne!(seen, object);
    assert_eq!(object.bytes(), text);
}

/// OpenYurt gives pods 127.0.0.1, which is the pod itself, if the hub has no address for them.
#[test]
fn no_filter_leads_pods_to_an_address_that_they_cannot_reach_or_trust() {
    let kubernetes = r#""metadata":{"namespace":"default","name":"kubernetes"}"#;
    let env = r#"[{"name":"KUBERNETES_SERVICE_HOST","value":"api.example.com"}]"#;
    let pod = format!(r#"{{"metadata":{{"namespace":"shop","name":"p"}},"spec":{{"containers":[{{"env":{env}}}]}}}}"#);
    let proxy =
        r#"{"metadata":{"namespace":"kube-system","name":"kube-proxy"},"data":{"config.conf":"kubeconfig: /a"}}"#;
    let is_kept = |host: &str, is_trusted: bool| {
        let (family, address) = match host.contains(':') {
            true => ("IPv6", "fd01::1"),
            false => ("IPv4", "10.96.0.1"),
        };
        let spec = format!(r#"{{"clusterIP":"{address}","ports":[{{"name":"https","port":443}}]}}"#);
        let service = format!(r#"{{{kubernetes},"spec":{spec}}}"#);
        let slice = format!(r#"{{{kubernetes},"addressType":"{family}","endpoints":[],"ports":[]}}"#);
        let world = World::of(&json!({ "host": host, "trusted": is_trusted }));
        [
            ("masterservice", kind("", "services"), service.as_str()),
            ("serviceenvupdater", kind("", "pods"), &pod),
            ("forwardkubesvctraffic", kind(SLICES.0, SLICES.1), &slice),
            ("inclusterconfig", kind("", "configmaps"), proxy),
        ]
        .map(|(name, kind, text)| {
            let verdict = chain(&[name]).filter(kind, &object(kind, text), &world.context());
            matches!(verdict, Verdict::Keep)
        })
    };
    for host in ["127.0.0.1", "127.9.9.9", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1"] {
        assert_eq!(is_kept(host, true), [true; 4], "{host}");
    }
    for host in ["169.254.2.1", "192.0.2.1", "fd00::2:1"] {
        assert_eq!(is_kept(host, true), [false; 4], "{host}");
        assert_eq!(is_kept(host, false), [true; 4], "{host}");
    }
}

#[test]
fn inputs_of_a_chain_are_those_of_its_filters() {
    let inputs = |names: &[&str]| chain(names).inputs();
    let members = Inputs {
        members: true,
        ..Inputs::NONE
    };
    for led in ["masterservice", "forwardkubesvctraffic", "serviceenvupdater"] {
        assert_eq!(inputs(&[led]), Inputs::TRUST);
    }
    assert_eq!(inputs(&["discardcloudservice", "nodeportisolation"]), Inputs::NONE);
    assert_eq!(
        inputs(&["servicetopology", "forwardkubesvctraffic"]),
        Inputs {
            services: true,
            trust: true,
            ..members
        }
    );
}

#[test]
fn service_of_an_object_is_named_for_the_filters_that_read_it() {
    let slices = kind(SLICES.0, SLICES.1);
    let slice = object(
        slices,
        r#"{"metadata":{"namespace":"shop","name":"x","labels":{"kubernetes.io/service-name":"web"}}}"#,
    );
    let endpoints = object(
        kind("", "endpoints"),
        r#"{"metadata":{"namespace":"shop","name":"loc"}}"#,
    );
    let keys = |names: &[&str], kind, object| -> Vec<String> {
        chain(names)
            .services_of(kind, object)
            .map(|key| key.to_string())
            .collect()
    };
    assert_eq!(
        keys(&["servicetopology", "forwardkubesvctraffic"], slices, &slice),
        ["shop/web"]
    );
    assert_eq!(keys(&["endpoints"], kind("", "endpoints"), &endpoints), ["shop/loc"]);
    assert_eq!(keys(&["endpoints"], slices, &slice), Vec::<String>::new());
}

/// The same Pods in the three representations: addresses with their nodes, in subsets of ports.
fn representations(pods: &[(u8, Option<&str>, bool)]) -> [(ResourceKind, Object); 3] {
    let address = |id: &u8| format!("10.9.0.{id}");
    let labels = json!({"kubernetes.io/service-name": "web"});
    let metadata = json!({"namespace": "shop", "name": "web", "labels": labels});
    let slice = |endpoint: &dyn Fn(&str) -> Value| {
        let endpoints = pods.iter().map(|(id, node, is_ready)| {
            let mut value = node.map_or(json!({}), endpoint);
            value["addresses"] = json!([address(id)]);
            value["conditions"] = json!({"ready": is_ready});
            value
        });
        json!({"metadata": metadata, "endpoints": endpoints.collect::<Vec<_>>()})
    };
    let addresses = |ready: bool| -> Vec<Value> {
        let chosen = pods.iter().filter(|(_, _, is_ready)| *is_ready == ready);
        chosen
            .map(|(id, node, _)| json!({"ip": address(id), "nodeName": node}))
            .collect()
    };
    let subset = json!({"addresses": addresses(true), "notReadyAddresses": addresses(false), "ports": [{"port": 80}]});
    let slices = kind(SLICES.0, SLICES.1);
    let beta = ResourceKind {
        version: "v1beta1".into(),
        ..slices.clone()
    };
    [
        (slices.clone(), slice(&|node| json!({"nodeName": node}))),
        (
            beta,
            slice(&|node| json!({"topology": {"kubernetes.io/hostname": node}})),
        ),
        (
            kind("", "endpoints").clone(),
            json!({"metadata": metadata, "subsets": [subset]}),
        ),
    ]
    .map(|(kind, value)| {
        let object = Object::from_value(value, &kind).unwrap();
        (kind, object)
    })
}

/// Addresses that a client sees; `None` if the object is hidden.
fn addresses(seen: Option<Object>) -> Option<BTreeSet<String>> {
    fn collect(value: &Value, into: &mut BTreeSet<String>) {
        match value {
            Value::String(text) if text.starts_with("10.9.") => drop(into.insert(text.clone())),
            Value::Array(items) => items.iter().for_each(|item| collect(item, into)),
            Value::Object(members) => members.values().for_each(|member| collect(member, into)),
            _ => {}
        }
    }
    let mut found = BTreeSet::new();
    collect(&seen?.to_value(), &mut found);
    Some(found)
}

fn any_world() -> impl Strategy<Value = World> {
    let pools = [
        json!({"name": "east", "members": ["e1", "e2"]}),
        json!({"name": "void", "members": []}),
        json!({"name": "east", "members": "unknown"}),
        json!("none"),
        json!("unknown"),
    ];
    let keys = [
        None,
        Some("kubernetes.io/hostname"),
        Some("openyurt.io/nodepool"),
        Some("kubernetes.io/zone"),
        Some("?"),
    ];
    let services = prop::option::weighted(0.9, prop::sample::select(keys.to_vec()));
    (prop::sample::select(pools.to_vec()), services).prop_map(|(pool, service)| World {
        services: service.map(|keys| ("web", keys)).into_iter().collect(),
        ..World::of(&json!({ "pool": pool }))
    })
}

fn any_pods() -> impl Strategy<Value = Vec<(u8, Option<&'static str>, bool)>> {
    let nodes = prop::sample::select(vec![None, Some("e1"), Some("e2"), Some("w1"), Some("")]);
    prop::collection::vec((0..9_u8, nodes, any::<bool>()), 0..6)
}

proptest! {
    /// Clients of different versions on one node reach the same Pods.
    #[test]
    fn slices_of_both_versions_and_endpoints_show_the_same_addresses(world in any_world(), pods in any_pods()) {
        let topology = registered("servicetopology").filter;
        let seen = representations(&pods).map(|(kind, object)| {
            addresses(topology.filter(&kind, &object, &world.context()).view_of(&object))
        });
        prop_assert_eq!(&seen[0], &seen[1]);
        prop_assert_eq!(&seen[0], &seen[2]);
    }

    /// The rule written down a second time, over the Pods instead of the bytes.
    #[test]
    fn topology_shows_exactly_what_the_service_asks_for(world in any_world(), pods in any_pods()) {
        let (kind, object) = &representations(&pods)[0];
        let context = world.context();
        let all = |is_near: &dyn Fn(&str) -> bool| {
            let near = pods.iter().filter(|(_, node, _)| node.is_some_and(is_near));
            Some(near.map(|(id, _, _)| format!("10.9.0.{id}")).collect::<BTreeSet<_>>())
        };
        let hidden = if pods.is_empty() { Some(BTreeSet::new()) } else { None };
        let everything = Some(pods.iter().map(|(id, _, _)| format!("10.9.0.{id}")).collect());
        let is_here = |node: &str| node == "e1";
        let expected = match (world.services.get("web"), context.pool) {
            (None, _) => hidden,
            (Some(Some("kubernetes.io/hostname")), _) => all(&is_here),
            (Some(Some("openyurt.io/nodepool" | "kubernetes.io/zone")), pool) => match pool {
                Pool::NoPool => all(&is_here),
                Pool::Named(NodePool { members: Members::Names(names), .. }) => all(&|node| names.contains(node)),
                _ => hidden,
            },
            _ => everything,
        };
        let seen = registered("servicetopology").filter.filter(kind, object, &context).view_of(object);
        prop_assert_eq!(addresses(seen), expected);
    }

    /// Any other JSON in place of the lists: no panic, and nothing that is far gets through.
    #[test]
    fn what_cannot_be_read_is_not_shown(value in any_json()) {
        for (shape, field, kind) in [
            (Shape::Slice, "endpoints", kind(SLICES.0, SLICES.1)),
            (Shape::Endpoints, "subsets", kind("", "endpoints")),
        ] {
            let labels = json!({"kubernetes.io/service-name": "web"});
            let whole = json!({"metadata": {"namespace": "shop", "name": "web", "labels": labels}, field: value});
            let object = Object::from_value(whole, kind).unwrap();
            let text = object.bytes();
            let json = json::Json::of(&text);
            if let Ok(edited) = shape.retain(json, Near::Node("e1")) {
                let left = edited.map_or(object.to_value(), |text| serde_json::from_slice(&text).unwrap());
                let lists = match shape {
                    Shape::Endpoints => left[field].as_array().into_iter().flatten().collect(),
                    _ => vec![&left],
                };
                let lists = lists.into_iter().flat_map(|holder| ["endpoints", "addresses", "notReadyAddresses"].map(|list| &holder[list]));
                for list in lists {
                    prop_assert!(list.is_null() || list.is_array(), "{}", left);
                    let mut items = list.as_array().into_iter().flatten();
                    prop_assert!(items.all(|item| item["nodeName"] == "e1"), "{}", left);
                }
            }
        }
    }
}

/// JSON of the words that the filters look for, in any place.
fn any_json() -> impl Strategy<Value = Value> {
    let words = ["nodeName", "addresses", "notReadyAddresses", "ports"];
    let node = prop::sample::select(vec![json!("w1"), json!("e1"), json!(null), json!(1)]);
    let leaf = prop_oneof![
        Just(json!(null)),
        Just(json!([])),
        Just(json!("x")),
        node.prop_map(|node| json!({"nodeName": node}))
    ];
    leaf.prop_recursive(4, 24, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(prop::sample::select(words[1..3].to_vec()), inner, 0..3).prop_map(|members| {
                members
                    .into_iter()
                    .map(|(name, value)| (name.to_owned(), value))
                    .collect()
            }),
        ]
    })
}
