//! The cloud of the hub's rows: kube-apiserver with etcd, Services, EndpointSlices, and a pod's service account.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use yurt_testbed::Setup;
use yurt_testbed::api::Api;
use yurt_testbed::cloud::{Choice, Cloud};
use yurt_testbed::sample::NODES;

use super::upstream_rights;
use crate::load::{Connector, Session};
use crate::samples::{self, SLICES};
use crate::system_under_test::Environment;

/// Services, each with one EndpointSlice.
pub(super) const SERVICES: usize = 1_000;
/// Endpoints of each slice, all on the hub's node: the topology filter keeps them.
const ENDPOINTS: usize = 100;
/// Services with a topology annotation, in the rows that do not vary it. The slice that changes belongs to the first.
pub(super) const ANNOTATED: usize = 100;
/// Objects written at a time.
const WRITES: usize = 8;
/// Time for hubs to follow a change of many objects.
const SETTLE: Duration = Duration::from_secs(5);

pub(super) const ALL_SERVICES: &str = "/api/v1/services";
pub(super) const SERVICE_PATH: &str = "/api/v1/namespaces/default/services";
/// An object that no hub copies: reading it needs the cloud.
pub(super) const UNCOPIED: &str = "/api/v1/namespaces/default/configmaps/bench";
/// Annotation with the number of the change.
pub(super) const TURN: &str = "bench/turn";
/// User agent of kube-proxy, whose reads hubs filter.
pub(super) const KUBE_PROXY: &str = "kube-proxy/v1.36.3 (linux/amd64) kubernetes/bench";
/// Validity of the pods' token in seconds: longer than a run.
const TOKEN_SECONDS: u32 = 86_400;
pub(super) const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
pub(super) const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";

/// The running cloud.
pub(super) struct World {
    pub(super) setup: Setup,
    pub(super) cloud: Cloud,
    /// Token of the pods' service account.
    pub(super) token: String,
    /// Number of changes so far.
    turns: usize,
}

// === impl World ===

impl World {
    /// Starts the cloud and loads the data.
    pub(super) async fn start(environment: &Environment) -> Result<Self> {
        let setup = environment.setup()?;
        let cloud = Cloud::start(&setup, &Choice::Real).await?;
        upstream_rights::apply(&cloud.api)
            .await
            .context("rights of OpenYurt's hubs")?;
        load(&cloud.api).await?;
        let token = token(&cloud.api).await.context("the pods' service account")?;
        let world = Self {
            setup,
            cloud,
            token,
            turns: 0,
        };
        world.annotate(ANNOTATED).await?;
        Ok(world)
    }

    /// A pod with a connection of its own to the server on this port.
    pub(super) fn pod(&self, port: u16, user_agent: &'static str) -> Result<Session> {
        Connector::of_pod(port, &self.setup.identities, &self.token, user_agent).session()
    }

    /// The current resourceVersion.
    pub(super) async fn resource_version(&self) -> Result<u64> {
        let listing = self.cloud.api.list(&format!("{SERVICE_PATH}?limit=1")).await?;
        Ok(listing.resource_version)
    }

    /// Changes the first slice.
    pub(super) async fn touch_slice(&mut self) -> Result<usize> {
        self.touch(&format!("{SLICES}/{}", name(0))).await
    }

    /// Changes the first Service; returns the number of the change.
    pub(super) async fn touch_service(&mut self) -> Result<usize> {
        self.touch(&format!("{SERVICE_PATH}/{}", name(0))).await
    }

    async fn touch(&mut self, path: &str) -> Result<usize> {
        self.turns += 1;
        let patch = json!({"metadata": {"annotations": {TURN: self.turns.to_string()}}});
        self.cloud.api.merge(path, &patch).await?;
        Ok(self.turns)
    }

    /// Keeps the endpoints of the first `count` Services on their node, and of no others. Waits until hubs follow.
    pub(super) async fn annotate(&self, count: usize) -> Result<()> {
        let patch = |is_local: bool| {
            let keys = is_local.then_some("kubernetes.io/hostname");
            json!({"metadata": {"annotations": {"openyurt.io/topologyKeys": keys}}})
        };
        let change = async |number: usize| {
            let path = format!("{SERVICE_PATH}/{}", name(number));
            self.cloud.api.merge(&path, &patch(number < count)).await
        };
        for some in (0..SERVICES).collect::<Vec<_>>().chunks(WRITES) {
            futures_util::future::try_join_all(some.iter().map(|number| change(*number))).await?;
        }
        tokio::time::sleep(SETTLE).await;
        Ok(())
    }
}

/// Name of a Service and of its slice.
pub(super) fn name(number: usize) -> String {
    format!("bench-{number:04}")
}

async fn load(api: &Api) -> Result<()> {
    let create = async |number: usize| {
        let name = name(number);
        let ports = json!([{"name": "http", "port": 8080, "protocol": "TCP"}]);
        let service =
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": {"ports": ports}});
        api.create(SERVICE_PATH, &service).await?;
        let mut slice = samples::slice(&name, ENDPOINTS);
        slice["metadata"]["labels"]["kubernetes.io/service-name"] = json!(name);
        for endpoint in slice["endpoints"].as_array_mut().into_iter().flatten() {
            endpoint["nodeName"] = json!(NODES[0]);
        }
        api.create(SLICES, &slice).await
    };
    for some in (0..SERVICES).collect::<Vec<_>>().chunks(WRITES) {
        futures_util::future::try_join_all(some.iter().map(|number| create(*number))).await?;
    }
    api.create(samples::CONFIG_MAPS, &samples::config_map("bench", 400))
        .await?;
    Ok(())
}

/// Makes a service account that may read what the benchmark reads; returns a token of it.
async fn token(api: &Api) -> Result<String> {
    let metadata = json!({"name": "bench"});
    api.create(samples::ACCOUNTS, &json!({"metadata": metadata})).await?;
    let rule = |group: &str, resources: &[&str]| json!({"apiGroups": [group], "resources": resources, "verbs": ["get", "list", "watch"]});
    let rules = [
        rule("", &["services", "configmaps"]),
        rule("discovery.k8s.io", &["endpointslices"]),
    ];
    api.create(ROLES, &json!({"metadata": metadata, "rules": rules}))
        .await?;
    let subjects = json!([{"kind": "ServiceAccount", "name": "bench", "namespace": "default"}]);
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "bench"});
    let binding = json!({"metadata": metadata, "subjects": subjects, "roleRef": role});
    api.create(BINDINGS, &binding).await?;
    let path = format!("{}/bench/token", samples::ACCOUNTS);
    let request: Value = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": TOKEN_SECONDS},
    });
    let answer = api.create(&path, &request).await?;
    let token = answer["status"]["token"].as_str();
    Ok(token.context("the answer has no token")?.to_owned())
}
