//! `inclusterconfig`: the kubelet sees ConfigMap `kube-system/kube-proxy` without the path of a kubeconfig.
//!
//! A kube-proxy without that line uses the in-cluster configuration, hence the hub. In `config.conf` each line of key
//! `kubeconfig` becomes a comment; a line counts if it has exactly one colon.
//!
//! Hides nothing: a ConfigMap that cannot be read is kept. So is everything while `masterservice` keeps Service
//! `default/kubernetes`: its address works only once kube-proxy runs. The registration requires `masterservice`, so
//! that the same holds on a node that does not run it, and for a component that it is not bound to.

use yurt_apimachinery::json_text::quote;
use yurt_apimachinery::{Object, ObjectKey, ResourceKind};

use super::json::{self, Json};
use super::masterservice::{kubernetes, leads_to};
use super::{FilterContext, Inputs, ObjectFilter, Verdict};

const NAMESPACE: &str = "kube-system";
const NAME: &str = "kube-proxy";
const FILE: &str = "config.conf";
const KEY: &str = "kubeconfig";

/// The filter; see the module.
#[derive(Clone, Copy, Debug)]
pub struct InClusterConfig;

impl ObjectFilter for InClusterConfig {
    fn name(&self) -> &'static str {
        "inclusterconfig"
    }

    fn concerns(&self, namespace: Option<&str>, name: Option<&str>) -> bool {
        namespace.is_none_or(|namespace| namespace == NAMESPACE) && name.is_none_or(|name| name == NAME)
    }

    fn inputs(&self) -> Inputs {
        Inputs {
            services: true,
            ..Inputs::TRUST
        }
    }

    fn service_of(&self, kind: &ResourceKind, object: &Object) -> Option<ObjectKey> {
        is_of_kube_proxy(kind, object).then(kubernetes)
    }

    fn filter(&self, kind: &ResourceKind, object: &Object, context: &FilterContext<'_>) -> Verdict {
        if !is_of_kube_proxy(kind, object) || !context.is_for_pods() {
            return Verdict::Keep;
        }
        let service = context.services.service(&kubernetes());
        if service.is_some_and(|service| !leads_to(context.hub, &service)) {
            return Verdict::Keep;
        }
        let edited = Json::of(&object.bytes()).edit_at(&["data", FILE], &|file| {
            let file = file.text()?;
            Some(quote(&without_kubeconfig(&file)).into_bytes()).filter(|_| file.split('\n').any(is_kubeconfig))
        });
        json::verdict(kind, edited)
    }
}

fn is_of_kube_proxy(kind: &ResourceKind, object: &Object) -> bool {
    let is_config_map = kind.group.is_empty() && kind.plural == "configmaps";
    is_config_map && object.namespace() == Some(NAMESPACE) && object.name() == NAME
}

fn without_kubeconfig(file: &str) -> String {
    let lines = file.split('\n').map(|line| match is_kubeconfig(line) {
        true => line.replacen(KEY, "#kubeconfig", 1),
        false => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// True if a line is `kubeconfig: …` after its indentation of spaces.
fn is_kubeconfig(line: &str) -> bool {
    let mut parts = line.trim_matches(' ').split(':');
    parts.next() == Some(KEY) && parts.next().is_some() && parts.next().is_none()
}
