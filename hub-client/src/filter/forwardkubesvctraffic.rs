//! `forwardkubesvctraffic`: kube-proxy sees the hub as the only endpoint of Service `default/kubernetes`.
//!
//! So traffic to its cluster IP reaches the hub, and Pods continue while the cloud is away. The slice of that name, v1
//! or v1beta1, is changed if it has the hub's address family. Its port named `https` gets the hub's number.
//!
//! Hides nothing: a slice that cannot be read is kept. So is everything while Pods cannot reach the hub's address or do
//! not trust its certificate.

use yurt_apimachinery::json_text::quote;
use yurt_apimachinery::{Object, ResourceKind};

use super::json::{self, Json};
use super::masterservice::{is_kubernetes, with_port};
use super::near::Shape;
use super::{FilterContext, Inputs, ObjectFilter, Verdict};

/// The filter; see the module.
#[derive(Clone, Copy, Debug)]
pub struct ForwardKubeServiceTraffic;

impl ObjectFilter for ForwardKubeServiceTraffic {
    fn name(&self) -> &'static str {
        "forwardkubesvctraffic"
    }

    fn inputs(&self) -> Inputs {
        Inputs::TRUST
    }

    fn filter(&self, kind: &ResourceKind, object: &Object, context: &FilterContext<'_>) -> Verdict {
        let is_slice = matches!(Shape::of(kind), Some(Shape::Slice | Shape::SliceBeta));
        if !is_slice || !is_kubernetes(object) || !context.is_for_pods() {
            return Verdict::Keep;
        }
        let text = object.bytes();
        let json = Json::of(&text);
        let host = context.hub.host;
        let family = if host.is_ipv6() { "IPv6" } else { "IPv4" };
        if json.text_at(&["addressType"]).as_deref() != Ok(family) {
            return Verdict::Keep;
        }
        let endpoints = format!(
            r#"[{{"addresses":[{}],"conditions":{{"ready":true}}}}]"#,
            quote(&host.to_string())
        );
        let ports = json
            .member("ports")
            .and_then(|ports| with_port(ports, context.hub.secure_port));
        let mut members = vec![("endpoints", endpoints.as_bytes())];
        members.extend(ports.as_deref().map(|ports| ("ports", ports)));
        json::verdict(kind, json.with(&members))
    }
}
