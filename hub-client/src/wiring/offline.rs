//! Starts the parts that answer while the cloud is away.

use std::sync::Arc;

use tokio::sync::mpsc;
use yurt_apimachinery::{ObjectKey, RequestInfo};

use super::Wiring;
use crate::cache::key::Key;
use crate::cache::limits::SELECTIONS;
use crate::cache::store::UNREAD;
use crate::config::WorkingMode;
use crate::offline::answers::{self, Answers};
use crate::offline::autonomy::Autonomy;
use crate::offline::events;
use crate::offline::events::Events;
use crate::offline::own::deleted_pods::{forget_deleted, is_deleted};
use crate::offline::own::pending::{self, Pending};
use crate::offline::own::sender::Sender;
use crate::offline::own::write::OwnKey;
use crate::offline::own::{Cached, OwnWrites};
use crate::offline::tokens::{self, Tokens};
use crate::proxy::authorize::{self, Authorizer};
use crate::proxy::offline::Offline;
use crate::replicas::budget;
use crate::replicas::disk::{COPY, STORING};

/// Maximum number of requests that wait for an earlier local write.
const COMMANDS_MAX: usize = 16;

/// Folders, and a file, of a cluster below `--disk-cache-path`, apart from the durable copy.
pub(crate) const KEPT: [&str; 5] = [
    answers::FOLDER,
    tokens::FOLDER,
    pending::FOLDER,
    events::sender::FOLDER,
    authorize::FILE,
];

/// Names of the failures that make the data of `node` incomplete after a restart.
fn incomplete(node: &str) -> Vec<String> {
    let all = [COPY, STORING, UNREAD, SELECTIONS, answers::DISK, pending::DISK];
    // The others are left to the cloud above the limit, as the flag's help says.
    let sizes = [Key::node(node), Key::pods_of(node)].map(|key| budget::failure(&key.text()));
    all.map(str::to_owned).into_iter().chain(sizes).collect()
}

// === impl Wiring ===

impl Wiring {
    /// Opens the kept answers and starts their writer.
    pub(super) fn offline(&self, authorizer: Authorizer, tokens: Tokens) -> Arc<Offline> {
        let (token, is_foreign) = (self.tasks.token(), self.data.copy().is_foreign().clone());
        let (clock, failures) = (self.clock.clone(), self.data.failures().clone());
        let (answers, writer) = Answers::open(&self.config.cache_dir, clock, failures);
        let writing = writer.run(self.cloud.0.subscribe(), token, is_foreign);
        self.tasks.spawn_critical("keep-answers", writing);
        let agents = self.agents.clone();
        let own = self.own_writes(&answers);
        let events = self.events();
        Arc::new(Offline {
            answers,
            own,
            tokens,
            events,
            authorizer,
            reach: self.cloud.0.subscribe(),
            accepts: self.config.mode == WorkingMode::Edge,
            kept_as: match self.config.mode {
                WorkingMode::Edge => Arc::new(move |caller, headers| {
                    let name = caller.cached_as(&agents);
                    let is_kept = !name.is_empty() && agents.caches(&name, headers);
                    is_kept.then(|| name.into_owned())
                }),
                WorkingMode::Cloud => Arc::new(|_, _| None),
            },
        })
    }

    /// Opens the kept events and starts their sender.
    fn events(&self) -> Events {
        let (cache, cloud) = (&self.config.cache_dir, self.upstreams.cloud.clone());
        let history = self.data.history().clone();
        let (events, sender) = events::sender::open(cache, cloud, history, self.clock.clone());
        let (token, is_foreign) = (self.tasks.token(), self.data.copy().is_foreign().clone());
        let sending = sender.run(self.cloud.0.subscribe(), token, is_foreign);
        self.tasks.spawn_critical("send-events", sending);
        events
    }

    /// Opens the kept tokens and starts their writer.
    pub(super) fn tokens(&self) -> Tokens {
        let tokens = Tokens::open(&self.config.cache_dir, self.clock.clone());
        let (token, is_foreign) = (self.tasks.token(), self.data.copy().is_foreign().clone());
        self.tasks.spawn_critical(
            "keep-tokens",
            tokens.clone().run(self.cloud.0.subscribe(), token, is_foreign),
        );
        tokens
    }

    /// Opens the local writes and starts their sender.
    fn own_writes(&self, answers: &Answers) -> OwnWrites {
        let node = self.config.node.clone();
        let pending = Arc::new(Pending::open(&self.config.cache_dir, self.data.failures().clone()));
        let (commands, received) = mpsc::channel(COMMANDS_MAX);
        let (cache, of_node) = (self.cache.clone(), node.clone());
        let sender = Sender {
            node: node.clone(),
            pending: pending.clone(),
            cloud: self.upstreams.cloud.clone(),
            answers: answers.clone(),
            is_deleted: Arc::new(move |key, pod| is_deleted(&cache, &of_node, key, pod)),
            metrics: self.metrics.clone(),
            clock: self.clock.clone(),
        };
        let (token, is_foreign) = (self.tasks.token(), self.data.copy().is_foreign().clone());
        let (pods, reach, end) = (pending.clone(), self.cloud.0.subscribe(), token.clone());
        let expiring = async move { pods.expire_local_pods(reach, end).await };
        self.tasks.spawn_critical("expire-local-pods", expiring);
        let forgetting = forget_deleted(self.cache.clone(), node.clone(), answers.clone(), token.clone());
        self.tasks.spawn_critical("forget-deleted-pods", forgetting);
        let sending = sender.run(received, self.cloud.0.subscribe(), token, is_foreign);
        self.tasks.spawn_critical("send-local-writes", sending);
        let cache = self.cache.clone();
        let cached = move |key: &OwnKey| {
            let info = RequestInfo::parse("GET", &key.path(), None).ok()?;
            let entry = cache.covering(&info, &key.name, true)?;
            let at = ObjectKey::new(key.namespace.as_deref(), &key.name);
            let held = entry.replica().collection().read(|held| held.object(&at).cloned());
            held.map(|object| object.to_value())
        };
        let cached: Cached = Arc::new(cached);
        if self.config.mode == WorkingMode::Edge {
            let autonomy = Autonomy {
                node: node.clone(),
                pending: pending.clone(),
                cached: cached.clone(),
                failures: self.data.failures().clone(),
                disk: incomplete(&node),
                clock: self.clock.clone(),
            };
            self.tasks
                .spawn_critical("keep-autonomy-condition", autonomy.run(self.tasks.token()));
        }
        OwnWrites {
            accepts: self.config.mode == WorkingMode::Edge,
            node,
            pending,
            commands,
            answers: answers.clone(),
            cached,
            reach: self.cloud.0.subscribe(),
            clock: self.clock.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_and_pods_above_the_limit_of_the_cache_make_the_nodes_data_incomplete() {
        let incomplete = incomplete("n1");
        for selection in [
            "/api/v1/nodes?fieldSelector=metadata.name%3Dn1",
            "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1",
        ] {
            assert!(incomplete.contains(&format!("size of {selection}")), "{incomplete:?}");
        }
    }
}
