//! Objects that the hub's filters judge.

use yurt_apimachinery::{Object, ObjectKey, kind};
use yurt_hub_client::filter::context::{FilterOptions, LocalPod};
use yurt_hub_client::filter::{
    FILTERS, FilterContext, HubAddress, LocalPods, Members, NodePool, PodTrust, Pool, ServiceLookup,
};

/// One Service for every key, or none.
struct Same(Option<Object>);

impl ServiceLookup for Same {
    fn service(&self, _: &ObjectKey) -> Option<Object> {
        self.0.clone()
    }
}

/// The first byte chooses a filter, the rest is an object. A second run of the filter changes nothing.
pub(crate) fn filters(data: &[u8]) {
    let Some((choice, text)) = data.split_first() else {
        return;
    };
    let registered = &FILTERS[usize::from(*choice) % FILTERS.len()];
    let services = kind::find_kind("", "services").expect("services must be built in");
    let near = r#"{"metadata":{"namespace":"a","name":"a","annotations":{"openyurt.io/topologyKeys":"openyurt.io/nodepool"}}}"#;
    let near = Object::parse(near.into(), services).expect("the text is a Service");
    let members = ["n".to_owned()].into();
    let named = |members, host_network| {
        Pool::Named(NodePool {
            name: "p",
            members,
            host_network,
        })
    };
    let pools = [
        named(Members::Names(&members), Some(true)),
        named(Members::Unknown, Some(false)),
        Pool::NoPool,
        Pool::Unknown,
    ];
    let worlds = pools
        .into_iter()
        .flat_map(|pool| [(pool, Same(Some(near.clone()))), (pool, Same(None))]);
    let worlds: Vec<_> = worlds.collect();
    let pod = LocalPod {
        addresses: vec![[10, 0, 0, 1].into()],
        is_ready: false,
        is_terminating: false,
        known_at: None,
    };
    let local_pods = LocalPods::from([("u".to_owned(), pod)]);
    for (group, plural) in registered.resources {
        let kind = kind::find_kind(group, plural).expect("filters judge built-in kinds");
        let Ok(object) = Object::parse(text.to_vec().into(), kind) else {
            continue;
        };
        for (pool, services) in &worlds {
            let context = FilterContext {
                hub: HubAddress {
                    host: [169, 254, 2, 1].into(),
                    secure_port: 10268,
                },
                trust: PodTrust::Given,
                node_name: "n",
                pool: *pool,
                services,
                local_pods: &local_pods,
                options: FilterOptions::default(),
            };
            let view = |object: &Object| registered.filter.filter(kind, object, &context).view_of(object);
            if let Some(seen) = view(&object) {
                assert_eq!(seen.key(), object.key());
                assert_eq!(view(&seen).as_ref(), Some(&seen), "{}", registered.filter.name());
            }
        }
    }
}
