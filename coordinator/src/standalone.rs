//! Kinds and requests that only `--profile standalone` has: a control plane for a few nodes, without a pool.
//!
//! Rules of kinds: [`pods`], [`services`], [`endpoints`], [`endpointslices`], [`nodes`], [`secrets`],
//! [`serviceaccounts`]; [`ports`] is common to three of them. Requests: bindings and evictions
//! ([`pods::subresources`]), [`token_request`], and what kube-apiserver proxies to other programs
//! ([`unsupported_proxy`]). NodeRestriction is in `admission`, the Node authorizer and the bootstrap roles are in
//! `authz`.

use crate::registry::strategy::Strategy;

mod endpoints;
mod endpointslices;
mod nodes;
pub(crate) mod pods;
mod ports;
mod secrets;
mod serviceaccounts;
mod services;
pub(crate) mod token_request;
pub(crate) mod unsupported_proxy;
#[cfg(test)]
mod wide;

/// The rules of these kinds, by the name of their collection.
pub(crate) fn strategy_of(name: &str) -> Option<&'static dyn Strategy> {
    Some(match name {
        "endpoints" => &endpoints::Endpoints,
        "endpointslices.discovery.k8s.io" => &endpointslices::EndpointSlices,
        "nodes" => &nodes::Nodes,
        "pods" => &pods::Pods,
        "secrets" => &secrets::Secrets,
        "serviceaccounts" => &serviceaccounts::ServiceAccounts,
        "services" => &services::Services,
        _ => return None,
    })
}
