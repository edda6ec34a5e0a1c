//! Clients behind every hub that record all events, changes at a steady pace, and the check of every history against
//! that of the cloud.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;
use yurt_chaos_validate::history::{self, CheckResult, History, HistoryItem, Truth};
use yurt_runtime::TaskGroup;
use yurt_testbed::api::Api;
use yurt_testbed::client::{Client, WATCH_SECONDS};
use yurt_testbed::hub::COLLECTIONS;
use yurt_testbed::pool::TestPool;
use yurt_testbed::sample::NAMESPACE;
use yurt_testbed::wait_for::wait_for;

use crate::processes::history::{MARK, seen};

/// All recorded clients of a run.
pub(super) struct Histories {
    /// One per collection, at the cloud and over no virtual link.
    reference_clients: Vec<Recorded>,
    clients: Vec<Recorded>,
    changes: TaskGroup,
}

struct Recorded {
    /// `shore-1, /api/v1/services`
    name: String,
    client: Client,
    history: Arc<Mutex<History>>,
}

/// These clients resume all the time; a watch ends with a bookmark, and there whole states are compared.
const SHORT_WATCH: u32 = 3;
/// Pause between two changes.
const PACE: Duration = Duration::from_millis(100);
/// Objects of each collection that change.
const CHANGED: u64 = 10;
/// Time the last change has to reach the cloud.
const STOP_LIMIT: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(90);

// === impl Histories ===

impl Histories {
    /// Starts the clients, the reference clients first, then the changes.
    pub(super) async fn begin(pool: &TestPool, seed: u64) -> Result<Self> {
        let record = |who: &str, api: &Api, seconds| {
            COLLECTIONS
                .map(|collection| Recorded::start(pool, format!("{who}, {collection}"), api, collection, seconds))
        };
        let reference_clients: Vec<_> = record("cloud", &pool.cloud.api, WATCH_SECONDS).into();
        for reference_client in &reference_clients {
            reference_client.client.sees(|view| view.watching).await?;
        }
        let hubs = pool.hubs.iter();
        let clients = hubs.flat_map(|hub| record(hub.node, &hub.proxy, SHORT_WATCH)).collect();
        let changes = pool.setup.tasks.child();
        let (cloud, token) = (pool.cloud.api.clone(), changes.token());
        changes.spawn("changes", async move {
            let _ = token.run_until_cancelled(change(cloud, seed)).await;
        });
        Ok(Self {
            reference_clients,
            clients,
            changes,
        })
    }

    /// Ends the changes, waits until every client has the last one, and checks their histories.
    pub(super) async fn check(&self) -> Result<CheckResult> {
        let _ = self.changes.shutdown(STOP_LIMIT).await;
        let mut verdict = CheckResult::default();
        for (index, client) in self.clients.iter().enumerate() {
            let reference_client = &self.reference_clients[index % self.reference_clients.len()];
            let what = format!("{} has everything and gets a bookmark", client.name);
            let at_rest = async || {
                ensure!(
                    client.client.view().objects == reference_client.client.view().objects,
                    "something is missing"
                );
                let told = client.told();
                ensure!(
                    matches!(history::last_received(&told), Some(HistoryItem::Bookmark(_))),
                    "no bookmark after the last change"
                );
                Ok(told)
            };
            let (told, _) = wait_for(PATIENCE, &what, at_rest).await?;
            let found = history::check(&told, &Truth::of(&reference_client.told()), 1);
            verdict.checked += found.checked;
            verdict.bookmarks += found.bookmarks;
            let named = found
                .violations
                .into_iter()
                .map(|why| format!("{}: {why}", client.name));
            verdict.violations.extend(named);
        }
        Ok(verdict)
    }
}

/// Changes Services and slices of the sample until dropped.
async fn change(cloud: Api, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    for mark in 1_u64.. {
        let collection = match random.bool() {
            true => format!("/api/v1/namespaces/{NAMESPACE}/services"),
            false => format!("/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"),
        };
        let path = format!("{collection}/app-{:02}", random.u64(2..2 + CHANGED));
        // A change that the cloud does not answer is skipped.
        let _ = cloud
            .merge(&path, &json!({"metadata": {"annotations": {MARK: mark.to_string()}}}))
            .await;
        tokio::time::sleep(PACE).await;
    }
}

// === impl Recorded ===

impl Recorded {
    fn start(pool: &TestPool, name: String, api: &Api, collection: &'static str, seconds: u32) -> Self {
        let history = Arc::new(Mutex::new(History::new()));
        let kept = Arc::clone(&history);
        let client = Client::recording(&pool.setup.tasks, api.clone(), collection, seconds, move |told| {
            kept.lock().unwrap_or_else(PoisonError::into_inner).push(seen(&told));
        });
        Self { name, client, history }
    }

    fn told(&self) -> History {
        self.history.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
