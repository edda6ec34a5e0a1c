//! World of the filters' examples and rules.

use core::net::IpAddr;
use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use serde_json::{Value, json};
use yurt_apimachinery::ResourceVersion;
use yurt_apimachinery::kind::find_kind;

use super::context::{DiscardCloudService, FilterOptions, LocalPod};
use super::*;

mod examples;
mod invariants;
mod sample;

/// World of the tests. This node is e1; pool east has e1 and e2; each Service of namespace shop requests a topology.
#[derive(Debug)]
pub(super) struct World {
    host: IpAddr,
    trust: PodTrust,
    node: String,
    pool: WorldPool,
    services: BTreeMap<&'static str, Option<&'static str>>,
    /// Addresses of Service `default/kubernetes`; null while it is unknown.
    kubernetes: Value,
    options: FilterOptions,
    local_pods: LocalPods,
}

/// [`Pool`] without the borrow.
#[derive(Clone, Debug)]
enum WorldPool {
    Unknown,
    NoPool,
    Named {
        name: String,
        members: WorldMembers,
        host_network: Option<bool>,
    },
}

/// [`Members`] without the borrow.
#[derive(Clone, Debug)]
enum WorldMembers {
    Unknown,
    Names(BTreeSet<String>),
}

impl Default for World {
    fn default() -> Self {
        Self::of(&Value::Null)
    }
}

impl World {
    /// The world of an example: members of `context` replace the defaults.
    pub(super) fn of(context: &Value) -> Self {
        let services = [
            ("web", Some("openyurt.io/nodepool")),
            ("loc", Some("kubernetes.io/hostname")),
            ("zon", Some("kubernetes.io/zone")),
            ("odd", Some("openyurt.io/nodePool")),
            ("plain", None),
            ("early", None),
        ];
        let discard_cloud_service = match context["discard"].as_str() {
            Some("opt-in") => DiscardCloudService::OptIn,
            _ => DiscardCloudService::OptOut,
        };
        let east = json!({"name": "east", "members": ["e1", "e2"]});
        World {
            host: context["host"].as_str().unwrap_or("169.254.2.1").parse().unwrap(),
            trust: match context["trusted"] == false {
                true => PodTrust::Missing,
                false => PodTrust::Given,
            },
            node: context["node"].as_str().unwrap_or("e1").to_owned(),
            pool: WorldPool::of(context.get("pool").unwrap_or(&east)),
            services: services.into_iter().collect(),
            kubernetes: context["kubernetes"].clone(),
            options: FilterOptions { discard_cloud_service },
            local_pods: local_pods(&context["localPods"]),
        }
    }

    pub(super) fn context(&self) -> FilterContext<'_> {
        let pool = match &self.pool {
            WorldPool::Unknown => Pool::Unknown,
            WorldPool::NoPool => Pool::NoPool,
            WorldPool::Named {
                name,
                members,
                host_network,
            } => Pool::Named(NodePool {
                name,
                members: match members {
                    WorldMembers::Unknown => Members::Unknown,
                    WorldMembers::Names(names) => Members::Names(names),
                },
                host_network: *host_network,
            }),
        };
        let hub = HubAddress {
            host: self.host,
            secure_port: 10268,
        };
        FilterContext {
            hub,
            trust: self.trust,
            node_name: &self.node,
            pool,
            services: self,
            local_pods: &self.local_pods,
            options: self.options,
        }
    }
}

impl WorldPool {
    fn of(pool: &Value) -> Self {
        match pool.as_str() {
            Some("unknown") => WorldPool::Unknown,
            Some("none") => WorldPool::NoPool,
            _ => WorldPool::Named {
                name: pool["name"].as_str().unwrap().to_owned(),
                members: match &pool["members"] {
                    Value::Array(names) => {
                        WorldMembers::Names(names.iter().map(|name| name.as_str().unwrap().to_owned()).collect())
                    }
                    _ => WorldMembers::Unknown,
                },
                host_network: pool["hostNetwork"].as_bool(),
            },
        }
    }
}

/// Reads pods by uid: addresses, `ready`, `terminating`, `knownAt`.
fn local_pods(pods: &Value) -> LocalPods {
    let pod = |pod: &Value| LocalPod {
        addresses: pod["ips"]
            .as_array()
            .unwrap()
            .iter()
            .map(|ip| ip.as_str().unwrap().parse().unwrap())
            .collect(),
        is_ready: pod["ready"] == true,
        is_terminating: pod["terminating"] == true,
        known_at: pod["knownAt"].as_u64().map(ResourceVersion),
    };
    let pods = pods.as_object().into_iter().flatten();
    pods.map(|(uid, value)| (uid.clone(), pod(value))).collect()
}

impl ServiceLookup for World {
    fn service(&self, key: &ObjectKey) -> Option<Object> {
        if key.namespace() == Some("default") && key.name() == "kubernetes" {
            let addresses = self.kubernetes.as_array()?;
            let metadata = json!({"namespace": "default", "name": "kubernetes"});
            let spec = json!({"clusterIP": addresses[0], "clusterIPs": addresses});
            let value = json!({ "metadata": metadata, "spec": spec });
            return Some(Object::from_value(value, kind("", "services")).unwrap());
        }
        let keys = self
            .services
            .get(key.name())
            .filter(|_| key.namespace() == Some("shop"))?;
        let annotations = keys.map(|keys| json!({ servicetopology::TOPOLOGY_KEYS_ANNOTATION: keys }));
        let metadata = json!({"namespace": "shop", "name": key.name(), "annotations": annotations});
        let spec = json!({"publishNotReadyAddresses": key.name() == "early"});
        Some(Object::from_value(json!({ "metadata": metadata, "spec": spec }), kind("", "services")).unwrap())
    }
}

pub(super) fn slice(text: &str) -> (&'static ResourceKind, Object) {
    let kind = kind("discovery.k8s.io", "endpointslices");
    (kind, object(kind, text))
}

fn object(kind: &ResourceKind, text: &str) -> Object {
    Object::parse(Bytes::copy_from_slice(text.as_bytes()), kind).unwrap()
}

fn kind(group: &str, resource: &str) -> &'static ResourceKind {
    find_kind(group, resource).unwrap()
}

pub(super) fn service(text: &str) -> (&'static ResourceKind, Object) {
    let kind = kind("", "services");
    (kind, object(kind, text))
}

fn registered(name: &str) -> &'static Registration {
    FILTERS.iter().find(|registered| registered.is_named(name)).unwrap()
}
