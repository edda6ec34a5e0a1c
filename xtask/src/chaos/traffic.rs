//! Changes in the cloud while faults strike: Services and EndpointSlices that come, change and go, at a steady pace.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use super::history::MARK;
use crate::lab::api::{Api, refusal};
use crate::lab::sample::NAMESPACE;

/// Pause between two writes.
const PACE: Duration = Duration::from_millis(25);
/// Pause after a write that got no answer: the cloud is away.
const AWAY: Duration = Duration::from_millis(200);
/// Objects of each kind that come and go.
const NAMES: u64 = 12;

/// What the traffic did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) created: u64,
    pub(super) changed: u64,
    pub(super) deleted: u64,
    /// Writes that the cloud did not answer.
    pub(super) failed: u64,
}

/// What one write of the traffic is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Service,
    Slice,
}

// === impl Written ===

impl Written {
    /// Writes that arrived.
    pub(super) fn total(self) -> u64 {
        self.created + self.changed + self.deleted
    }
}

/// Writes until dropped; `told` hears of the totals after each write.
pub(super) async fn write(cloud: Api, seed: u64, told: impl Fn(Written)) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut written = Written::default();
    for mark in 1_u64.. {
        let pause = match one(&cloud, &mut random, mark, &mut written).await {
            Ok(()) => PACE,
            Err(_) => {
                written.failed += 1;
                AWAY
            }
        };
        told(written);
        tokio::time::sleep(pause).await;
    }
}

/// Creates what is not there; changes, and now and then deletes, what is.
async fn one(cloud: &Api, random: &mut fastrand::Rng, mark: u64, written: &mut Written) -> Result<()> {
    let kind = if random.bool() { Kind::Service } else { Kind::Slice };
    let name = format!("chaos-{:02}", random.u64(..NAMES));
    let collection = kind.collection();
    let path = format!("{collection}/{name}");
    let delete = random.u8(..5) == 0;
    let outcome = if delete {
        cloud.delete(&path).await
    } else {
        let patch = json!({"metadata": {"annotations": {MARK: mark.to_string()}}});
        cloud.merge(&path, &patch).await.map(drop)
    };
    match outcome {
        Ok(()) if delete => written.deleted += 1,
        Ok(()) => written.changed += 1,
        Err(error) if refusal(&error) == Some(404) => {
            cloud.create(&collection, &kind.object(&name, mark)).await?;
            written.created += 1;
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

// === impl Kind ===

impl Kind {
    fn collection(self) -> String {
        match self {
            Self::Service => format!("/api/v1/namespaces/{NAMESPACE}/services"),
            Self::Slice => format!("/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"),
        }
    }

    fn object(self, name: &str, mark: u64) -> Value {
        let annotations = json!({MARK: mark.to_string()});
        match self {
            // Without a cluster IP: a real cloud would hand out one of its own.
            Self::Service => json!({
                "apiVersion": "v1", "kind": "Service",
                "metadata": {"name": name, "annotations": annotations},
                "spec": {"clusterIP": "None", "ports": [{"name": "http", "port": 80}]},
            }),
            Self::Slice => json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {"name": name, "annotations": annotations,
                    "labels": {"kubernetes.io/service-name": "app-01"}},
                "addressType": "IPv4",
                "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
                "endpoints": [{"addresses": ["10.244.99.1"], "conditions": {"ready": true}}],
            }),
        }
    }
}
