//! Reads the pool's membership from `status.nodes` of its NodePool object, if the cloud serves one that names nodes.
//!
//! yurt-manager derives it from the Nodes' labels, in one object of which a node may read no more than names. So it
//! takes precedence over the labels as a whole: a node in only one of the two is a member if the NodePool names it. The
//! labels decide if there is no NodePool API, no such NodePool, or it names no nodes.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};
use tokio::time::Instant;
use yurt_apimachinery::kind::find_kind;
use yurt_apimachinery::watch::{EventType, WatchDecoder};
use yurt_apimachinery::{Object, ObjectKey, ResourceVersion, Status};
use yurt_pool_protocol::members::{COLLECTION, kind, names};
use yurt_runtime::http::client::HttpClient;
use yurt_storage::Replica;

use super::reflector::{Reflector, StreamEnd, read_all};
use super::{PoolData, questions};
use crate::upstream::CloudServer;
use crate::upstream::json_watch::JsonWatch;
use crate::upstream::watch_body::WatchBody;

/// Versions of the NodePool API, the newest first; `status.nodes` is the same in both.
pub(super) const VERSIONS: [&str; 2] = ["v1beta2", "v1beta1"];

/// The fields of a NodePool that the hub uses.
struct NodePool {
    /// Names of its nodes; empty if the NodePool does not exist.
    nodes: BTreeSet<String>,
    /// RV of the list that returned it, later of the object.
    version: ResourceVersion,
}

/// A NodePool that names no nodes yet.
pub(super) struct Awaited {
    client: HttpClient,
    /// Path and query of its watch.
    path: String,
    /// Duration of the watch.
    lasts: Duration,
}

// === impl Reflector ===

impl Reflector {
    /// Follows the NodePool as long as it names nodes. Returns when the labels of the Nodes decide, with the NodePool
    /// that may replace them later.
    ///
    /// # Errors
    /// The end of the stream.
    pub(super) async fn follow_node_pool(&mut self) -> Result<Option<Awaited>, StreamEnd> {
        for version in VERSIONS {
            let path = path_of(version, &self.pool);
            let Some(mut pool) = self.list_node_pool(&path).await? else {
                continue;
            };
            if pool.nodes.is_empty() {
                let path = self.node_pool_watch(&path, &pool);
                let client = self.client.clone();
                let lasts = self.lasts();
                return Ok(Some(Awaited { client, path, lasts }));
            }
            self.take_node_pool(&pool).await?;
            self.confirm();
            self.watch_node_pool(&path, &mut pool).await?;
            return Err(StreamEnd::Closed);
        }
        Ok(None)
    }

    /// Returns the NodePool; `None` if the cloud has no NodePools in this version or the hub may not read them.
    async fn list_node_pool(&self, path: &str) -> Result<Option<NodePool>, StreamEnd> {
        let response = self.open(path, "application/json", Vec::new()).await?;
        match response.status() {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND | StatusCode::FORBIDDEN => return Ok(None),
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => return Err(StreamEnd::NotReady(None)),
            status => return Err(StreamEnd::Refused(format!("NodePool: {status}"))),
        }
        let body = read_all(response).await?;
        let list: Value = serde_json::from_slice(&body).map_err(|error| StreamEnd::Unreadable(error.to_string()))?;
        let version = version_of(&list)?;
        let nodes = nodes_of(&list["items"][0]);
        Ok(Some(NodePool { nodes, version }))
    }

    /// Path and query of a watch on the pool listed at `path`.
    fn node_pool_watch(&self, path: &str, pool: &NodePool) -> String {
        let seconds = self.lasts().as_secs();
        let version = pool.version;
        format!("{path}&watch=1&allowWatchBookmarks=true&resourceVersion={version}&timeoutSeconds={seconds}")
    }

    /// Replaces the members with those of the pool, in one step.
    async fn take_node_pool(&mut self, pool: &NodePool) -> Result<(), StreamEnd> {
        let is_gone = self.is_gone();
        let members = self.change(pool.version, |held| {
            let is_same = names(held.objects()) == pool.nodes && held.objects().all(is_named);
            if !is_gone && held.is_complete() && is_same {
                held.advance(pool.version);
                return None;
            }
            let member = |name: &String| {
                let known = held.object(&ObjectKey::new(None, name));
                // In a cloud that was rolled back a known member may be above the list.
                let known = known.filter(|held| !is_gone && is_named(held) && held.resource_version() <= pool.version);
                known.cloned().or_else(|| member(name, pool.version))
            };
            Some(pool.nodes.iter().filter_map(member).collect())
        });
        let members = members.await?;
        self.data.sources().heard(self.replica.name(), self.source, None);
        match members {
            Some(members) => self.take_list(members, pool.version, None).await,
            None => Ok(()),
        }
    }

    /// Applies every further state of the pool.
    async fn watch_node_pool(&mut self, path: &str, pool: &mut NodePool) -> Result<(), StreamEnd> {
        let query = self.node_pool_watch(path, pool);
        let response = self.open(&query, "application/json", Vec::new()).await?;
        let response = self.require_ok(response).await?;
        self.opened = Some(Instant::now());
        let mut body = WatchBody::of(&self.client, response, self.lasts());
        let mut decoder = WatchDecoder::new();
        while let Ok(Some(data)) = body.next().await {
            decoder.push(&data);
            for event in decoder.by_ref() {
                let event = event.map_err(|error| StreamEnd::Unreadable(error.to_string()))?;
                let object: Value =
                    serde_json::from_slice(&event.object).map_err(|error| StreamEnd::Unreadable(error.to_string()))?;
                match event.event_type {
                    EventType::Error => {
                        let status = Status::from_json(&event.object);
                        let why = status.map_or_else(String::new, |status| status.message().to_owned());
                        return Err(StreamEnd::Failed(why));
                    }
                    EventType::Bookmark => body.has_bookmark(),
                    EventType::Added | EventType::Modified => pool.nodes = nodes_of(&object),
                    EventType::Deleted => pool.nodes.clear(),
                }
                if pool.nodes.is_empty() {
                    // The next stream determines again whether the NodePool or the labels decide.
                    return Err(StreamEnd::Closed);
                }
                pool.version = version_of(&object)?;
                self.take_node_pool(pool).await?;
            }
        }
        Ok(())
    }
}

// === impl Awaited ===

impl Awaited {
    /// Resolves once the NodePool names nodes. A watch that ends earlier is not reopened here: the watch on the Nodes
    /// ends at about the same time, and the next stream opens both.
    pub(super) async fn decides(self) {
        if let Ok(mut events) = JsonWatch::open(&self.client, &self.path, self.lasts).await {
            while let Ok(Some((_, pool))) = events.next().await {
                if !nodes_of(&pool).is_empty() {
                    return;
                }
            }
        }
        std::future::pending().await
    }
}

fn version_of(object: &Value) -> Result<ResourceVersion, StreamEnd> {
    let version = object["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    ResourceVersion::parse(version)
        .map_err(|_| StreamEnd::Unreadable(format!("NodePool has resourceVersion {version:?}")))
}

pub(super) fn nodes_of(pool: &Value) -> BTreeSet<String> {
    let nodes = pool["status"]["nodes"].as_array().into_iter().flatten();
    nodes.filter_map(|node| node.as_str().map(str::to_owned)).collect()
}

/// Path of a list of the NodePool `pool` alone.
pub(super) fn path_of(version: &str, pool: &str) -> String {
    format!("/apis/apps.openyurt.io/{version}/nodepools?fieldSelector=metadata.name%3D{pool}")
}

// === impl PoolData ===

impl PoolData {
    /// Head of the resource in the cloud from which `replica` is read. Resources may have an etcd each, so no head of
    /// another resource compares with its RVs. The members come from the NodePool, or from Nodes.
    ///
    /// # Errors
    /// The reason, for the log.
    pub(crate) async fn head_of(&self, replica: &Replica, server: &CloudServer) -> Result<ResourceVersion, String> {
        let collection = replica.collection();
        if replica.name() != COLLECTION {
            return questions::head(server, collection.kind()).await;
        }
        if !collection.read(|held| held.objects().any(is_named)) {
            let nodes = find_kind("", "nodes").ok_or("Nodes are not a known kind")?;
            return questions::head(server, nodes).await;
        }
        for version in VERSIONS {
            let path = path_of(version, &self.pool);
            if let Some(list) = questions::get(server, &path, "").await? {
                let list: Value = serde_json::from_slice(&list).map_err(|error| error.to_string())?;
                return version_of(&list).map_err(|_| format!("{path} has no resourceVersion"));
            }
        }
        Err(format!("NodePool {} cannot be read", self.pool))
    }
}

/// True if the NodePool alone names this member: no Node object was read for it.
pub(super) fn is_named(member: &Object) -> bool {
    member.uid().is_empty()
}

/// Returns a member known only by its name; `None` only for a name that no apiserver accepts.
fn member(name: &str, version: ResourceVersion) -> Option<Object> {
    let member = json!({
        "apiVersion": kind().api_version(),
        "kind": kind().kind,
        "metadata": { "name": name, "resourceVersion": version.to_string() },
    });
    Object::parse(Bytes::from(member.to_string()), kind()).ok()
}
