//! The table of built-in kinds.

use std::borrow::Cow::Borrowed;
use std::sync::LazyLock;

use super::{NameRule, ResourceKind, SelectableField};

const fn field(label: &'static str, path: &'static [&'static str], default: &'static str) -> SelectableField {
    SelectableField {
        label,
        path,
        alternative: &[],
        default,
    }
}

/// A namespaced kind of the core group that behaves as most do.
fn core(
    plural: &'static str,
    singular: &'static str,
    kind: &'static str,
    list_kind: &'static str,
    short_names: &'static [&'static str],
) -> ResourceKind {
    ResourceKind {
        group: Borrowed(""),
        version: Borrowed("v1"),
        plural: Borrowed(plural),
        singular: Borrowed(singular),
        kind: Borrowed(kind),
        list_kind: Borrowed(list_kind),
        namespaced: true,
        short_names,
        categories: &[],
        fields: &[],
        columns: &[],
        has_status: false,
        unconditional_update: true,
        create_on_update: false,
        delete_returns_object: false,
        name_rule: NameRule::DnsSubdomain,
    }
}

pub(super) static KINDS: LazyLock<Vec<ResourceKind>> = LazyLock::new(|| {
    vec![
        ResourceKind {
            categories: &["all"],
            fields: SERVICE_FIELDS,
            has_status: true,
            create_on_update: true,
            delete_returns_object: true,
            name_rule: NameRule::DnsLabel,
            ..core("services", "service", "Service", "ServiceList", &["svc"])
        },
        ResourceKind {
            create_on_update: true,
            ..core("endpoints", "endpoints", "Endpoints", "EndpointsList", &["ep"])
        },
        ResourceKind {
            group: Borrowed("discovery.k8s.io"),
            ..core(
                "endpointslices",
                "endpointslice",
                "EndpointSlice",
                "EndpointSliceList",
                &[],
            )
        },
        ResourceKind {
            namespaced: false,
            fields: NODE_FIELDS,
            has_status: true,
            ..core("nodes", "node", "Node", "NodeList", &["no"])
        },
        ResourceKind {
            categories: &["all"],
            fields: POD_FIELDS,
            has_status: true,
            delete_returns_object: true,
            ..core("pods", "pod", "Pod", "PodList", &["po"])
        },
        core("configmaps", "configmap", "ConfigMap", "ConfigMapList", &["cm"]),
        ResourceKind {
            fields: SECRET_FIELDS,
            ..core("secrets", "secret", "Secret", "SecretList", &[])
        },
        ResourceKind {
            fields: EVENT_FIELDS,
            create_on_update: true,
            name_rule: NameRule::PathSegment,
            ..core("events", "event", "Event", "EventList", &["ev"])
        },
        // Core events under other names of fields; see [`crate::event`].
        ResourceKind {
            group: Borrowed("events.k8s.io"),
            fields: NEW_EVENT_FIELDS,
            create_on_update: true,
            ..core("events", "event", "Event", "EventList", &["ev"])
        },
        ResourceKind {
            namespaced: false,
            fields: NAMESPACE_FIELDS,
            has_status: true,
            delete_returns_object: true,
            name_rule: NameRule::DnsLabel,
            ..core("namespaces", "namespace", "Namespace", "NamespaceList", &["ns"])
        },
        ResourceKind {
            delete_returns_object: true,
            ..core(
                "serviceaccounts",
                "serviceaccount",
                "ServiceAccount",
                "ServiceAccountList",
                &["sa"],
            )
        },
        ResourceKind {
            group: Borrowed("coordination.k8s.io"),
            unconditional_update: false,
            create_on_update: true,
            ..core("leases", "lease", "Lease", "LeaseList", &[])
        },
    ]
});

const SERVICE_FIELDS: &[SelectableField] = &[
    field("spec.clusterIP", &["spec", "clusterIP"], ""),
    field("spec.type", &["spec", "type"], "ClusterIP"),
];

const NODE_FIELDS: &[SelectableField] = &[field("spec.unschedulable", &["spec", "unschedulable"], "false")];

const POD_FIELDS: &[SelectableField] = &[
    field("spec.nodeName", &["spec", "nodeName"], ""),
    // An alias that old kubelets use.
    field("spec.host", &["spec", "nodeName"], ""),
    field("spec.restartPolicy", &["spec", "restartPolicy"], "Always"),
    field("spec.schedulerName", &["spec", "schedulerName"], "default-scheduler"),
    field("spec.serviceAccountName", &["spec", "serviceAccountName"], ""),
    field("spec.hostNetwork", &["spec", "hostNetwork"], "false"),
    field("status.phase", &["status", "phase"], ""),
    field("status.podIP", &["status", "podIP"], ""),
    // Accepted, but never equal to anything but "": kube-apiserver does not fill it either.
    field("status.podIPs", &["status", "podIPs"], ""),
    field("status.nominatedNodeName", &["status", "nominatedNodeName"], ""),
];

const SECRET_FIELDS: &[SelectableField] = &[field("type", &["type"], "Opaque")];

const NAMESPACE_FIELDS: &[SelectableField] = &[field("status.phase", &["status", "phase"], "Active")];

const EVENT_FIELDS: &[SelectableField] = &[
    field("involvedObject.kind", &["involvedObject", "kind"], ""),
    field("involvedObject.namespace", &["involvedObject", "namespace"], ""),
    field("involvedObject.name", &["involvedObject", "name"], ""),
    field("involvedObject.uid", &["involvedObject", "uid"], ""),
    field("involvedObject.apiVersion", &["involvedObject", "apiVersion"], ""),
    field(
        "involvedObject.resourceVersion",
        &["involvedObject", "resourceVersion"],
        "",
    ),
    field("involvedObject.fieldPath", &["involvedObject", "fieldPath"], ""),
    field("reason", &["reason"], ""),
    field("reportingComponent", &["reportingComponent"], ""),
    SelectableField {
        label: "source",
        path: &["source", "component"],
        alternative: &["reportingComponent"],
        default: "",
    },
    field("type", &["type"], ""),
];

const NEW_EVENT_FIELDS: &[SelectableField] = &[
    field("regarding.kind", &["regarding", "kind"], ""),
    field("regarding.namespace", &["regarding", "namespace"], ""),
    field("regarding.name", &["regarding", "name"], ""),
    field("regarding.uid", &["regarding", "uid"], ""),
    field("regarding.apiVersion", &["regarding", "apiVersion"], ""),
    field("regarding.resourceVersion", &["regarding", "resourceVersion"], ""),
    field("regarding.fieldPath", &["regarding", "fieldPath"], ""),
    field("reason", &["reason"], ""),
    field("reportingController", &["reportingController"], ""),
    SelectableField {
        label: "source",
        path: &["deprecatedSource", "component"],
        alternative: &["reportingController"],
        default: "",
    },
    field("type", &["type"], ""),
];
