//! Requests to a server of the cloud whose answers show whether it still has the replicas' history.

use serde_json::Value;
use yurt_apimachinery::kind::find_kind;
use yurt_apimachinery::{ObjectKey, ResourceKind, ResourceVersion};
use yurt_pool_protocol::history::{Answers, KnownHistory, ObjectRef};

use super::lease::{lease_version, version_of};
use super::{HistoryVerifier, Opened};
use crate::replicas::questions::{first, get, head_of};
use crate::upstream::CloudServer;

// === impl HistoryVerifier ===

impl HistoryVerifier {
    /// Reads without resourceVersion, so that the answer has everything acknowledged before. Also returns the data connections
    /// that were open before the first read.
    pub(super) async fn ask(
        &self,
        place: usize,
        known: &KnownHistory,
        is_thorough: bool,
    ) -> Result<(Answers, Opened), String> {
        let server = self.cloud.at(place);
        let services = find_kind("", "services").ok_or("services are not built in")?;
        let path = format!("{}?limit=1", services.collection_path());
        let before = self.opened(place);
        // Uses the connection that will carry the pool's data, or opens it. It may be busy with a list.
        let (over, list) = match first(server, &path).await {
            Some((pool, list)) => (Opened { pool, ..before }, Some(list)),
            None => {
                let over = self.opened(place);
                (over, get(server, &path, "PartialObjectMetadataList").await?)
            }
        };
        let list = list.ok_or("services cannot be listed")?;
        let mut answers = Answers {
            head: head_of(list, services)?,
            ..Answers::default()
        };
        if answers.head < known.position {
            // The head decides; the server cannot return the state at our `C` yet.
            return Ok((answers, over));
        }
        if known.lease.is_some() {
            answers.lease = get(server, &self.lease_path, "")
                .await?
                .and_then(|lease| lease_version(&lease));
        }
        for (place, held) in &known.newest {
            let now = self.at_place(server, place).await?;
            let now = now.and_then(|now| version_of(&now));
            answers.newest.extend(now.map(|now| (place.clone(), now)));
            if is_thorough
                && !answers.settles(place, *held)
                && let Some(then) = self.at_place_then(server, place, held.at).await?
            {
                answers.then.insert(place.clone(), then);
            }
        }
        for (place, uid) in &known.deleted {
            let now = self.at_place(server, place).await?;
            if now.is_some_and(|now| now["metadata"]["uid"] == **uid) {
                answers.back.insert(place.clone());
            }
        }
        Ok((answers, over))
    }

    /// Returns the metadata of the object that is there now.
    async fn at_place(&self, server: &CloudServer, (name, key): &ObjectRef) -> Result<Option<Value>, String> {
        let Some(replica) = self.data.replicas().named(name) else {
            return Ok(None);
        };
        let path = path_of(replica.collection().kind(), key);
        let object = get(server, &path, "PartialObjectMetadata").await?;
        Ok(object.and_then(|object| serde_json::from_slice(&object).ok()))
    }

    /// Returns the RV of the object at `at`; the outer `None` if the server has compacted that RV or does not return it.
    async fn at_place_then(
        &self,
        server: &CloudServer,
        (name, key): &ObjectRef,
        at: ResourceVersion,
    ) -> Result<Option<Option<ResourceVersion>>, String> {
        let Some(replica) = self.data.replicas().named(name) else {
            return Ok(None);
        };
        let kind = replica.collection().kind();
        let path = format!(
            "{}?fieldSelector=metadata.name%3D{}&limit=1&resourceVersion={at}&resourceVersionMatch=Exact",
            collection_of(kind, key),
            key.name()
        );
        let Some(list) = get(server, &path, "PartialObjectMetadataList").await? else {
            return Ok(None);
        };
        let list: Value = serde_json::from_slice(&list).map_err(|error| error.to_string())?;
        // A server that does not support the parameter returns the current object.
        let is_then = version_of(&list) == Some(at);
        Ok(is_then.then(|| version_of(&list["items"][0])))
    }
}

fn collection_of(kind: &ResourceKind, key: &ObjectKey) -> String {
    match key.namespace() {
        Some(namespace) => kind.namespaced_path(namespace),
        None => kind.collection_path(),
    }
}

fn path_of(kind: &ResourceKind, key: &ObjectKey) -> String {
    format!("{}/{}", collection_of(kind, key), key.name())
}
