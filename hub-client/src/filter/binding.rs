//! Binds filters to requests by component, resource and verb. The table consists of the filters' own defaults.

use yurt_apimachinery::Verb;

use super::{Chain, FILTERS};

/// Verbs whose responses can be filtered. A get is filtered like a list: a client has one view of an object.
const VERBS: [Verb; 3] = [Verb::Get, Verb::List, Verb::Watch];

/// Returns the filters for a request of `component` (lower case), in call order.
#[must_use]
pub fn chain(component: &str, resource: &str, verb: Verb) -> Chain {
    let bound = FILTERS.iter().filter(|registered| {
        VERBS.contains(&verb)
            && !registered.is_off
            && registered.components.contains(&component)
            && registered.resources.iter().any(|(_, plural)| *plural == resource)
    });
    Chain::new(bound.map(|registered| registered.filter).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the filters of each verb (get, list, watch) for one component and resource.
    fn bound(component: &str, resource: &str) -> [Vec<&'static str>; 3] {
        VERBS.map(|verb| chain(component, resource, verb).names())
    }

    #[test]
    fn defaults_are_upstreams_and_a_get_is_filtered_like_a_list() {
        assert_eq!(bound("kubelet", "services"), VERBS.map(|_| vec!["masterservice"]));
        assert_eq!(bound("kubelet", "configmaps"), VERBS.map(|_| vec!["inclusterconfig"]));
        assert_eq!(bound("kubelet", "pods"), VERBS.map(|_| vec!["serviceenvupdater"]));
        for component in ["kube-proxy", "coredns", "nginx-ingress-controller"] {
            assert_eq!(bound(component, "endpoints"), VERBS.map(|_| vec!["servicetopology"]));
        }
        for component in ["coredns", "nginx-ingress-controller"] {
            assert_eq!(
                bound(component, "endpointslices"),
                VERBS.map(|_| vec!["servicetopology"])
            );
        }
        let of_kube_proxy = [
            ("endpointslices", ["servicetopology", "forwardkubesvctraffic"]),
            ("services", ["discardcloudservice", "nodeportisolation"]),
        ];
        for (resource, filters) in of_kube_proxy {
            assert_eq!(bound("kube-proxy", resource), VERBS.map(|_| filters.to_vec()));
        }
    }

    #[test]
    fn nothing_else_is_bound() {
        let others = [
            ("kubelet", "endpoints"),
            ("kube-proxy", "pods"),
            ("yurthub", "services"),
            ("", "services"),
        ];
        for (component, resource) in others {
            assert_eq!(bound(component, resource), VERBS.map(|_| Vec::<&str>::new()));
        }
        assert!(chain("kubelet", "services", Verb::Update).is_empty());
        assert!(chain("kubelet", "services", Verb::Other).is_empty());
    }
}
