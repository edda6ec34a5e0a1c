//! Verifies the identity of the cluster before the hub applies or verifies anything of the cloud.

use serde_json::Value;

use super::HistoryVerifier;
use crate::replicas::origin::{IDENTITY_PATH, OriginVerdict};
use crate::replicas::questions::get;
use crate::upstream::CloudServer;

/// Name of the failure while the cloud does not return its identity.
const CLUSTER: &str = "identity of the cluster";

// === impl HistoryVerifier ===

impl HistoryVerifier {
    /// Compares the cloud's cluster with the cluster of the replicas. A cloud that does not return its identity counts as the
    /// same cluster.
    ///
    /// # Errors
    /// No server answers, or it is another cluster and the replicas are dropped.
    pub(super) async fn check_cluster(&mut self) -> Result<(), String> {
        let failures = self.data.failures();
        let Some(uid) = self.ask_identity().await? else {
            let why = format!("GET {IDENTITY_PATH} is refused; apply manifests/pool-rbac.yaml in the cloud");
            failures.refused(CLUSTER, &why);
            return Ok(());
        };
        let (data, found) = (self.data.clone(), uid.clone());
        // It may write the record.
        let judged = tokio::task::spawn_blocking(move || data.copy().origin().judge(&found)).await;
        if judged.map_err(|error| error.to_string())? == OriginVerdict::Same {
            failures.works(CLUSTER);
            return Ok(());
        }
        let why = "the copies on this node are of another cluster";
        self.data.copy().remove().inspect_err(|error| {
            failures.refused(CLUSTER, &format!("{why} and cannot be deleted: {error}"));
        })?;
        tracing::error!(
            cluster = uid,
            "{why}: they are dropped, and the hub restarts without them"
        );
        self.is_other_cluster = true;
        Err(why.to_owned())
    }

    /// Returns the uid of the cluster from the first server that answers; `None` if the hub may not read it there.
    async fn ask_identity(&self) -> Result<Option<String>, String> {
        let mut failure = String::new();
        for _ in 0..self.cloud.len() {
            match identity_of(self.cloud.server()).await {
                Ok(uid) => return Ok(uid),
                Err(why) => failure = why,
            }
            self.cloud.try_next();
        }
        Err(failure)
    }
}

async fn identity_of(server: &CloudServer) -> Result<Option<String>, String> {
    let namespace = get(server, IDENTITY_PATH, "PartialObjectMetadata").await?;
    let namespace: Option<Value> = namespace.and_then(|body| serde_json::from_slice(&body).ok());
    Ok(namespace.and_then(|namespace| Some(namespace["metadata"]["uid"].as_str()?.to_owned())))
}
