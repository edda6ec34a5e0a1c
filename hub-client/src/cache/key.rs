//! Key of a cached selection: group, version, resource, namespace, label selector and field selector. Pure.
//!
//! The name of its replica is the path and query of its own list, escaped. The names of a kind that is not built in
//! follow, then a mark if it is filled with the rights of tokens. So the names on the disk are the record of what is
//! cached, and with whose rights.

use yurt_apimachinery::kind::find_kind;
use yurt_apimachinery::query::Query;
use yurt_apimachinery::{FieldSelector, GroupVersionResource, LabelSelector, RequestInfo, ResourceKind, Verb};
use yurt_pool_protocol::pool_scope::SharedResource;

use crate::replicas::listing::escaped;
use crate::replicas::{OF_TOKENS, is_of_tokens};

/// Maximum length of a replica's name, bytes. Longer selections are not cached.
pub const NAME_MAX: usize = 1024;
/// Separates the selection from the names of its kind; selections have it escaped.
const KIND: char = '#';
/// Field with the node of a pod.
const NODE_NAME: &str = "spec.nodeName";
/// Groups whose resources are answers rather than state.
const ANSWERS: [&str; 5] = [
    "authentication.k8s.io",
    "authorization.k8s.io",
    "metrics.k8s.io",
    "custom.metrics.k8s.io",
    "external.metrics.k8s.io",
];
/// Resources that every node writes, or that are of no use without the cloud.
const NEVER: [(&str, &str); 6] = [
    ("", "events"),
    ("events.k8s.io", "events"),
    ("coordination.k8s.io", "leases"),
    ("certificates.k8s.io", "certificatesigningrequests"),
    ("", "componentstatuses"),
    ("", "bindings"),
];

/// A selection of objects.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    gvr: GroupVersionResource,
    namespace: Option<String>,
    labels: LabelSelector,
    fields: FieldSelector,
}

/// Knowledge of a selection about a single object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cover {
    /// Nothing.
    No,
    /// The object if it is in the selection; its absence means nothing.
    IfHeld,
    /// The object, or its absence.
    Whole,
}

// === impl Key ===

impl Key {
    /// Returns the selection of a list or watch; `None` if it cannot be cached.
    #[must_use]
    pub fn of(info: &RequestInfo, query: Option<&str>) -> Option<Self> {
        let is_read = matches!(info.verb, Verb::List | Verb::Watch);
        if !info.is_resource || !is_read || info.subresource.is_some() || !is_cacheable(info) {
            return None;
        }
        let query = Query::parse(query);
        let text = |name| query.get(name).unwrap_or_default();
        let labels = LabelSelector::parse(text("labelSelector")).ok()?;
        let mut fields = FieldSelector::parse(text("fieldSelector")).ok()?;
        // A legacy watch path may name one object.
        if let Some(name) = &info.name {
            if fields.is_everything() {
                fields = FieldSelector::equal("metadata.name", name);
            } else if fields.requires("metadata.name") != Some(name) {
                return None;
            }
        }
        let is_namespaces = info.group.is_empty() && info.resource == "namespaces";
        let key = Self {
            gvr: info.gvr(),
            namespace: info.namespace.clone().filter(|_| !is_namespaces),
            labels,
            fields,
        };
        (key.text().len() <= NAME_MAX).then_some(key)
    }

    /// The pods that are bound to `node`.
    #[must_use]
    pub fn pods_of(node: &str) -> Self {
        Self {
            gvr: GroupVersionResource {
                version: "v1".to_owned(),
                resource: "pods".to_owned(),
                ..GroupVersionResource::default()
            },
            namespace: None,
            labels: LabelSelector::default(),
            fields: FieldSelector::equal(NODE_NAME, node),
        }
    }

    /// The Node of this name, as its kubelet lists it.
    #[must_use]
    pub fn node(name: &str) -> Self {
        Self {
            gvr: GroupVersionResource {
                version: "v1".to_owned(),
                resource: "nodes".to_owned(),
                ..GroupVersionResource::default()
            },
            namespace: None,
            labels: LabelSelector::default(),
            fields: FieldSelector::equal("metadata.name", name),
        }
    }

    /// Path of its list, escaped.
    #[must_use]
    pub fn path(&self) -> String {
        let GroupVersionResource {
            group,
            version,
            resource,
        } = &self.gvr;
        let mut path = match group.as_str() {
            "" => format!("/api/{}", escaped(version)),
            group => format!("/apis/{}/{}", escaped(group), escaped(version)),
        };
        if let Some(namespace) = &self.namespace {
            path.push_str("/namespaces/");
            path.push_str(&escaped(namespace));
        }
        path + "/" + &escaped(resource)
    }

    /// Parameters of its selectors, escaped; empty without selectors.
    #[must_use]
    pub fn query(&self) -> String {
        let selectors = [
            ("labelSelector", self.labels.to_string()),
            ("fieldSelector", self.fields.to_string()),
        ];
        let given = selectors.iter().filter(|(_, text)| !text.is_empty());
        let pairs: Vec<_> = given.map(|(name, text)| format!("{name}={}", escaped(text))).collect();
        pairs.join("&")
    }

    /// Its canonical text: equal for equal selections.
    #[must_use]
    pub fn text(&self) -> String {
        match self.query().as_str() {
            "" => self.path(),
            query => format!("{}?{query}", self.path()),
        }
    }

    /// Group, version and resource.
    #[must_use]
    pub fn gvr(&self) -> &GroupVersionResource {
        &self.gvr
    }

    /// Its built-in kind, if there is one of this version.
    #[must_use]
    pub fn built_in(&self) -> Option<&'static ResourceKind> {
        find_kind(&self.gvr.group, &self.gvr.resource).filter(|kind| kind.version == self.gvr.version)
    }

    /// Name of its replica; `about` describes a kind that is not built in. A replica that `is_of_node` is filled with
    /// the node's rights, any other one with those of tokens. `None` if the name would be too long.
    #[must_use]
    pub fn name(&self, about: Option<&SharedResource>, is_of_node: bool) -> Option<String> {
        let mut name = self.text();
        if let Some(about) = about {
            let scope = if about.namespaced { "namespaced" } else { "cluster" };
            for part in [&about.kind, &about.list_kind, &about.singular, scope] {
                name.push(KIND);
                name.push_str(&escaped(part));
            }
        }
        if !is_of_node {
            name.push_str(OF_TOKENS);
        }
        (name.len() <= NAME_MAX).then_some(name)
    }

    /// True if the replica of this name is filled with the node's rights.
    #[must_use]
    pub fn is_of_node(name: &str) -> bool {
        !is_of_tokens(name)
    }

    /// Reads a name; `None` for a text that names nothing.
    #[must_use]
    pub fn parse(name: &str) -> Option<(Self, Option<SharedResource>)> {
        let name = name.strip_suffix(OF_TOKENS).unwrap_or(name);
        let mut parts = name.split(KIND);
        let text = parts.next()?;
        let (path, query) = text
            .split_once('?')
            .map_or((text, None), |(path, query)| (path, Some(query)));
        let info = RequestInfo::parse("GET", path, query).ok()?;
        let key = Self::of(&info, query).filter(|key| key.text() == text)?;
        let parts: Vec<_> = parts.map(unescaped).collect::<Option<_>>()?;
        let about = match parts.as_slice() {
            [] => None,
            [kind, list_kind, singular, scope] => Some(SharedResource {
                group: key.gvr.group.clone(),
                version: key.gvr.version.clone(),
                resource: key.gvr.resource.clone(),
                singular: singular.clone(),
                kind: kind.clone(),
                list_kind: list_kind.clone(),
                namespaced: scope == "namespaced",
            }),
            _ => return None,
        };
        (about.is_some() || key.built_in().is_some()).then_some((key, about))
    }

    /// True if these objects keep `node` itself running: its Node, and the pods that are bound to it.
    #[must_use]
    pub fn is_essential(&self, node: &str) -> bool {
        let field = match (self.gvr.group.as_str(), self.gvr.resource.as_str()) {
            ("", "pods") => NODE_NAME,
            ("", "nodes") => "metadata.name",
            _ => return false,
        };
        self.namespace.is_none() && self.labels.is_everything() && self.fields == FieldSelector::equal(field, node)
    }

    /// Namespace and name if this is a single Secret or ConfigMap, as the kubelet reads each one that a pod references.
    #[must_use]
    pub fn pod_reference(&self) -> Option<(&str, &str)> {
        let is_referable = self.gvr.group.is_empty() && matches!(self.gvr.resource.as_str(), "secrets" | "configmaps");
        let is_single = self.labels.is_everything() && self.fields.requirements().len() == 1;
        let name = self.object_name()?;
        let namespace = self.namespace.as_deref()?;
        (is_referable && is_single).then_some((namespace, name))
    }

    /// Name of its objects, if it selects one.
    #[must_use]
    pub fn object_name(&self) -> Option<&str> {
        self.fields.requires("metadata.name")
    }

    /// True if objects of this resource in `namespace` may be in the selection.
    #[must_use]
    pub fn reaches(&self, gvr: &GroupVersionResource, namespace: Option<&str>) -> bool {
        self.gvr == *gvr && self.namespace.as_deref().is_none_or(|of| Some(of) == namespace)
    }

    /// Returns what it says about the object `name` of this resource in `namespace`.
    #[must_use]
    pub fn cover(&self, gvr: &GroupVersionResource, namespace: Option<&str>, name: &str) -> Cover {
        if !self.reaches(gvr, namespace) {
            return Cover::No;
        }
        match self.object_name() {
            Some(required) if required != name => Cover::No,
            _ if !self.labels.is_everything() => Cover::IfHeld,
            None if self.fields.is_everything() => Cover::Whole,
            Some(_) if self.fields.requirements().len() == 1 => Cover::Whole,
            _ => Cover::IfHeld,
        }
    }
}

fn is_cacheable(info: &RequestInfo) -> bool {
    let name = (info.group.as_str(), info.resource.as_str());
    !info.resource.is_empty() && !ANSWERS.contains(&name.0) && !NEVER.contains(&name)
}

fn unescaped(text: &str) -> Option<String> {
    let decoded = Query::parse(Some(&format!("x={text}")));
    decoded.get("x").map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(uri: &str) -> Option<Key> {
        let (path, query) = uri
            .split_once('?')
            .map_or((uri, None), |(path, query)| (path, Some(query)));
        Key::of(&RequestInfo::parse("GET", path, query).unwrap(), query)
    }

    fn text(uri: &str) -> String {
        key(uri).unwrap_or_else(|| panic!("{uri} has a key")).text()
    }

    #[test]
    fn equal_selections_have_one_key() {
        let pods = "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1";
        for same in [
            "/api/v1/pods?watch=1&fieldSelector=spec.nodeName%3D%3Dn1&resourceVersion=7",
            "/api/v1/pods?limit=500&resourceVersion=0&fieldSelector=spec.nodeName=n1",
        ] {
            assert_eq!(text(same), pods, "{same}");
        }
        let by_name = "/api/v1/namespaces/shop/secrets?fieldSelector=metadata.name%3Ddb";
        assert_eq!(text(by_name), by_name);
        assert_eq!(text("/api/v1/watch/namespaces/shop/secrets/db"), by_name);
        assert_eq!(
            text("/api/v1/services?labelSelector=b%3D1,a"),
            text("/api/v1/services?labelSelector=a,b%3D1")
        );
        assert_eq!(
            text("/api/v1/watch/namespaces/shop"),
            "/api/v1/namespaces?fieldSelector=metadata.name%3Dshop"
        );
    }

    /// Two selectors of one resource once mixed in one folder.
    #[test]
    fn other_selections_have_other_keys() {
        let all = [
            "/api/v1/pods",
            "/api/v1/namespaces/a/pods",
            "/api/v1/namespaces/a/pods?labelSelector=x",
            "/api/v1/namespaces/a/pods?fieldSelector=metadata.name%3Dx",
            "/api/v1/namespaces/ab/pods",
            "/apis/example.com/v1/pods",
            "/apis/example.com/v2/pods",
        ];
        let texts: std::collections::BTreeSet<_> = all.iter().map(|uri| text(uri)).collect();
        assert_eq!(texts.len(), all.len(), "{texts:?}");
    }

    #[test]
    fn what_is_no_state_of_the_cluster_is_not_cached() {
        for uri in [
            "/api/v1/events",
            "/apis/events.k8s.io/v1/namespaces/a/events",
            "/apis/coordination.k8s.io/v1/leases",
            "/apis/certificates.k8s.io/v1/certificatesigningrequests",
            "/apis/metrics.k8s.io/v1beta1/nodes",
            "/api/v1/namespaces/a/pods/p",
            "/api/v1/namespaces/a/pods/p/log",
            "/healthz",
            "/api/v1/pods?labelSelector=((",
            "/api/v1/pods?fieldSelector=x",
        ] {
            assert_eq!(key(uri), None, "{uri}");
        }
        let many: Vec<_> = (0..400).map(|n| format!("v{n}")).collect();
        let long = format!("/api/v1/pods?labelSelector=a+in+({})", many.join(","));
        assert_eq!(key(&long), None, "too long");
    }

    #[test]
    fn hostile_texts_stay_inside_of_their_part_of_a_name() {
        let uri = "/api/v1/namespaces/a%23b%3Fc%26d/pods?labelSelector=x+in+(a,b)&fieldSelector=spec.nodeName%3D..%2F%23%00%26watch";
        let hostile = key(uri).expect("a key");
        let name = hostile.name(None, true).expect("a name");
        assert!(
            name.bytes().all(|byte| byte.is_ascii_graphic()) && !name.contains('#'),
            "{name}"
        );
        assert_eq!(name.matches('?').count(), 1, "{name}");
        assert_eq!(name.matches('&').count(), 1, "{name}");
        assert_eq!(Key::parse(&name), Some((hostile, None)));
    }

    #[test]
    fn name_carries_what_a_start_without_the_cloud_has_to_know_of_a_kind() {
        let widgets = key("/apis/example.com/v1/namespaces/shop/widgets?labelSelector=a").expect("a key");
        let about = SharedResource {
            group: "example.com".into(),
            version: "v1".into(),
            resource: "widgets".into(),
            singular: String::new(),
            kind: "Wid#get".into(),
            list_kind: "WidgetList".into(),
            namespaced: true,
        };
        let name = widgets.name(Some(&about), true).expect("a name");
        assert_eq!(Key::parse(&name), Some((widgets.clone(), Some(about.clone()))));
        let of_tokens = widgets.name(Some(&about), false).expect("a name");
        assert_eq!(Key::parse(&of_tokens), Some((widgets.clone(), Some(about))));
        assert!(Key::is_of_node(&name) && !Key::is_of_node(&of_tokens));
        assert_eq!(Key::parse(&widgets.text()), None, "its kind is unknown");
        for nonsense in [
            "",
            "/",
            "services",
            "/api/v1/pods#",
            "/api/v1/pods?x=1",
            "/api/v1/../pods",
            "/api/v1/pods#a#b",
        ] {
            assert_eq!(Key::parse(nonsense), None, "{nonsense:?}");
        }
    }

    #[test]
    fn selection_speaks_of_single_objects_as_far_as_it_reaches() {
        let cover = |uri: &str, namespace: &str, name: &str| {
            let key = key(uri).expect("a key");
            key.cover(&key.gvr().clone(), Some(namespace), name)
        };
        assert_eq!(cover("/api/v1/pods", "a", "p"), Cover::Whole);
        assert_eq!(cover("/api/v1/namespaces/a/pods", "a", "p"), Cover::Whole);
        assert_eq!(cover("/api/v1/namespaces/a/pods", "b", "p"), Cover::No);
        assert_eq!(
            cover("/api/v1/pods?fieldSelector=spec.nodeName=n1", "a", "p"),
            Cover::IfHeld
        );
        assert_eq!(cover("/api/v1/pods?labelSelector=x", "a", "p"), Cover::IfHeld);
        let one = "/api/v1/namespaces/a/secrets?fieldSelector=metadata.name=s";
        assert_eq!((cover(one, "a", "s"), cover(one, "a", "t")), (Cover::Whole, Cover::No));
        let pods = key("/api/v1/pods").expect("a key");
        assert_eq!(
            pods.cover(&GroupVersionResource::new("", "v1", "secrets"), Some("a"), "p"),
            Cover::No
        );
    }

    #[test]
    fn essentials_of_a_node_are_its_node_and_its_pods() {
        let is_essential = |uri: &str| key(uri).expect("a key").is_essential("n1");
        assert!(is_essential("/api/v1/pods?fieldSelector=spec.nodeName=n1"));
        assert!(is_essential("/api/v1/nodes?fieldSelector=metadata.name=n1"));
        for other in [
            "/api/v1/pods?fieldSelector=spec.nodeName=n2",
            "/api/v1/pods",
            "/api/v1/namespaces/a/secrets?fieldSelector=metadata.name=n1",
            "/api/v1/nodes?fieldSelector=metadata.name=n1&labelSelector=a",
        ] {
            assert!(!is_essential(other), "{other}");
        }
    }

    #[test]
    fn kubelet_reads_each_secret_and_config_map_of_a_pod_by_its_name() {
        for resource in ["secrets", "configmaps"] {
            let uri = format!("/api/v1/namespaces/a/{resource}?fieldSelector=metadata.name=s");
            assert_eq!(key(&uri).expect("a key").pod_reference(), Some(("a", "s")));
        }
        for other in [
            "/api/v1/namespaces/a/secrets",
            "/api/v1/secrets?fieldSelector=metadata.name=s",
            "/api/v1/namespaces/a/secrets?fieldSelector=metadata.name!=s",
            "/api/v1/namespaces/a/secrets?fieldSelector=metadata.name=s,type=b",
            "/api/v1/namespaces/a/secrets?fieldSelector=metadata.name=s&labelSelector=b",
            "/api/v1/namespaces/a/pods?fieldSelector=metadata.name=s",
            "/apis/example.com/v1/namespaces/a/secrets?fieldSelector=metadata.name=s",
        ] {
            assert_eq!(key(other).expect("a key").pod_reference(), None, "{other}");
        }
    }
}
