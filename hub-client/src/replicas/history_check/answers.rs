//! Requests to a server of the cloud whose answers show whether it still has the replicas' history.

use serde_json::Value;
use yurt_apimachinery::kind::find_kind;
use yurt_apimachinery::{ObjectKey, ResourceKind, ResourceVersion};
use yurt_pool_protocol::history::{Answers, HistoryVerdict, KnownHistory, ObjectRef, Verdicts};

use super::evidence::Known;
use super::lease::{lease_version, version_of};
use super::{HistoryVerifier, Opened};
use crate::replicas::listing::escaped;
use crate::replicas::questions::{first, get, get_object, head_of};
use crate::upstream::CloudServer;

/// Answers of one server about both kinds of evidence.
pub(super) struct Found {
    /// About the selections.
    selections: Answers,
    /// About the pool data.
    pool: Answers,
}

// === impl Found ===

impl Found {
    /// Judges the answers. `others` is true if further servers were not queried yet.
    pub(super) fn judge(&self, known: &Known, others: bool) -> Verdicts {
        Verdicts {
            selections: known.selections.judge(&self.selections, others),
            pool: known.pool.judge(&self.pool, others),
        }
    }
}

/// Judges the first server that has the selections' history, else the first one. All of them are behind, and no server
/// that answers is ahead: none may reach a position that a leader fed.
pub(super) fn judge_behind(servers: Vec<(Found, Opened)>, known: &Known) -> Option<(Verdicts, Opened)> {
    let lags = |(found, _): &(Found, Opened)| found.judge(known, true).selections == HistoryVerdict::Lagging;
    let (found, over) = servers.into_iter().min_by_key(lags)?;
    Some((found.judge(known, false), over))
}

// === impl HistoryVerifier ===

impl HistoryVerifier {
    /// Reads without resourceVersion, so that the answer has everything acknowledged before. Also returns the
    /// data connections that were open before the first read.
    pub(super) async fn ask(&self, place: usize, known: &Known, is_thorough: bool) -> Result<(Found, Opened), String> {
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
        if known.selections.lease.is_some() {
            answers.lease = get(server, &self.lease_path, "")
                .await?
                .and_then(|lease| lease_version(&lease));
        }
        let pool = self.about(server, &known.pool, answers.clone(), is_thorough).await?;
        if answers.head < known.selections.position
            && let Some(name) = &known.highest
        {
            // It may be of another etcd.
            answers.head = answers.head.max(self.head_of_selection(server, name).await?);
        }
        let selections = self.about(server, &known.selections, answers, is_thorough).await?;
        Ok((Found { selections, pool }, over))
    }

    /// Adds the answers about objects to `answers`, which has the head and the lease.
    async fn about(
        &self,
        server: &CloudServer,
        known: &KnownHistory,
        mut answers: Answers,
        is_thorough: bool,
    ) -> Result<Answers, String> {
        if answers.head < known.position {
            // The head decides; the server cannot return the state at our `C` yet.
            return Ok(answers);
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
        Ok(answers)
    }

    /// Returns the RV of a list of the selection; zero if the server refuses it.
    async fn head_of_selection(&self, server: &CloudServer, name: &str) -> Result<ResourceVersion, String> {
        let Some(replica) = self.data.replicas().named(name) else {
            return Ok(ResourceVersion::ZERO);
        };
        let separator = if name.contains('?') { '&' } else { '?' };
        let list = get(
            server,
            &format!("{name}{separator}limit=1"),
            "PartialObjectMetadataList",
        )
        .await?;
        let head = list.map(|list| head_of(list, replica.collection().kind()));
        Ok(head.transpose()?.unwrap_or_default())
    }

    /// Returns the metadata of the object that is there now.
    async fn at_place(&self, server: &CloudServer, (name, key): &ObjectRef) -> Result<Option<Value>, String> {
        let Some(replica) = self.data.replicas().named(name) else {
            return Ok(None);
        };
        let path = path_of(replica.collection().kind(), key);
        let object = get_object(server, &path, "PartialObjectMetadata").await?;
        Ok(object.and_then(|object| serde_json::from_slice(&object).ok()))
    }

    /// Returns the RV of the object at `at`; the outer `None` if the server has compacted that RV or does not return
    /// it.
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
            "{}?{}&limit=1&resourceVersion={at}&resourceVersionMatch=Exact",
            collection_of(kind, key),
            selectors_of(name, key.name())
        );
        let Some(list) = get_object(server, &path, "PartialObjectMetadataList").await? else {
            return Ok(None);
        };
        let list: Value = serde_json::from_slice(&list).map_err(|error| error.to_string())?;
        // A server that does not support the parameter returns the current object.
        let is_then = version_of(&list) == Some(at);
        Ok(is_then.then(|| version_of(&list["items"][0])))
    }
}

/// Selectors of one object of replica `name`. A node may read some objects, its pods, only by the selectors of its
/// selection.
fn selectors_of(name: &str, object: &str) -> String {
    let by_name = format!("metadata.name%3D{}", escaped(object));
    match name.split_once('?') {
        // The field selector is the last of its parameters.
        Some((_, query)) if query.contains("fieldSelector=") => format!("{query}%2C{by_name}"),
        Some((_, query)) => format!("{query}&fieldSelector={by_name}"),
        None => format!("fieldSelector={by_name}"),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// No cloud has the position of the pool data: a leader forged it.
    #[test]
    fn among_servers_that_are_behind_the_one_with_the_selections_history_counts() {
        let known_to = |position| KnownHistory {
            position: ResourceVersion(position),
            ..KnownHistory::default()
        };
        let known = Known {
            selections: known_to(10),
            pool: known_to(1000),
            ..Known::default()
        };
        let judged = |heads: &[u64]| {
            let servers = heads.iter().enumerate().map(|(server, head)| {
                let answers = Answers {
                    head: ResourceVersion(*head),
                    ..Answers::default()
                };
                let found = Found {
                    selections: answers.clone(),
                    pool: answers,
                };
                let over = Opened {
                    server,
                    ..Opened::default()
                };
                (found, over)
            });
            let (verdicts, over) = judge_behind(servers.collect(), &known)?;
            Some((verdicts.selections == HistoryVerdict::Same, over.server))
        };
        assert_eq!(judged(&[5, 20, 30]), Some((true, 1)));
        assert_eq!(judged(&[20, 5]), Some((true, 0)));
        assert_eq!(judged(&[5, 6]), Some((false, 0)), "no server has it");
        assert_eq!(judged(&[]), None);
    }

    #[test]
    fn object_of_a_selection_is_read_by_the_selectors_of_its_selection() {
        for (name, expected) in [
            ("services", "fieldSelector=metadata.name%3Dweb"),
            ("/api/v1/nodes", "fieldSelector=metadata.name%3Dweb"),
            (
                "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1",
                "fieldSelector=spec.nodeName%3Dn1%2Cmetadata.name%3Dweb",
            ),
            (
                "/api/v1/pods?labelSelector=app",
                "labelSelector=app&fieldSelector=metadata.name%3Dweb",
            ),
        ] {
            assert_eq!(selectors_of(name, "web"), expected, "{name}");
        }
    }
}
