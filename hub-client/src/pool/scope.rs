//! Shares further resources with the pool, as the cloud's ConfigMap `yurt-hub-cfg` lists them.
//!
//! The leader sends the list to the coordinator. All hubs read it there, and copy the resources that the ConfigMap
//! lists for them, too ([`agreed`]). A hub without a coordinator uses the ConfigMap alone. Every hub follows the
//! ConfigMap ([`hub_config`](crate::hub_config)); `discover` looks up a listed resource. An unusable entry is reported
//! and does not affect the other entries. An unreadable list, or an entry whose lookup is late, leaves the shared
//! resources unchanged.

pub mod agreed;
pub(crate) mod discover;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::GroupVersionResource;
use yurt_pool_protocol::feed::VERSION;
use yurt_pool_protocol::names::{FEED_PATH, SCOPE_CALL};
use yurt_pool_protocol::pool_scope::{self, CONFIG_KEY, Problem, SharedResource};
use yurt_runtime::http::client::HttpClient;

use super::election::driver::Leadership;
use crate::hub_config::HubConfig;
use crate::replicas::scope::SHARE_AGAIN;
use crate::replicas::{POOL_SCOPE, PoolData};
use crate::upstream::Cloud;

/// Maximum wait for the coordinator's answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Pause before a list is sent again that the coordinator refused or did not answer.
const TELL_AGAIN: Duration = Duration::from_secs(1);
/// Interval between lookups of unusable entries: a kind may be defined, or a right granted, later.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// Looks up the listed resources and sends them to the coordinator.
pub struct ScopeSender {
    /// The cloud, which defines the resources.
    pub cloud: Arc<Cloud>,
    /// The ConfigMap, which has the list.
    pub config: watch::Receiver<Arc<HubConfig>>,
    /// Pool data: the resources shared now, and the report of problems.
    pub data: Arc<PoolData>,
    /// Receiver of the list; `None` if this hub has no coordinator.
    pub coordinator: Option<ScopeReceiver>,
}

/// The coordinator, with the right of its leader to write to it.
pub struct ScopeReceiver {
    /// Client of the coordinator.
    pub client: HttpClient,
    /// Leadership that permits the write.
    pub leadership: Arc<Leadership>,
    /// Wakes the coordinator's prober: this hub learns the shared resources from its answer, like all hubs.
    pub wake: Arc<Notify>,
}

/// Result of evaluating the list.
#[derive(Debug, Default)]
struct Found {
    /// Resources to share; `None` while they are unknown.
    resources: Option<Vec<SharedResource>>,
    problems: Vec<Problem>,
    /// True if an unusable entry may become usable later.
    look_again: bool,
}

#[derive(Deserialize)]
struct SentScope {
    #[serde(default)]
    refused: Vec<Problem>,
}

// === impl ScopeSender ===

impl ScopeSender {
    /// Runs until `token` is cancelled.
    pub async fn run(self, token: CancellationToken) {
        token.run_until_cancelled(self.tell_changes()).await;
        // A write that lands later would outlive what a stop deletes of another cluster.
        self.data.shared_is_settled().await;
    }

    async fn tell_changes(&self) {
        let mut config = self.config.clone();
        let mut verified = BTreeSet::new();
        let mut told: Option<(Vec<SharedResource>, Vec<Problem>)> = None;
        loop {
            let read = config.borrow_and_update().clone();
            let mut found = self.look_up(&read, &mut verified).await;
            let mut pause = if found.look_again { LOOK_AGAIN } else { Duration::MAX };
            if let Some(resources) = found.resources.take() {
                // Without a coordinator the disk may not have let all of them begin.
                let is_told = |(before, _): &(Vec<_>, _)| self.coordinator.is_some() && *before == resources;
                let known = told.take().filter(is_told);
                let answer = match known {
                    Some((_, refused)) => Ok(refused),
                    None => self.tell(&resources).await,
                };
                match answer {
                    Ok(refused) => {
                        if self.coordinator.is_none() && !refused.is_empty() {
                            pause = SHARE_AGAIN;
                        }
                        found.problems.extend(refused.iter().cloned());
                        told = Some((resources, refused));
                    }
                    Err(why) => {
                        tracing::debug!(why, "Failed to send pool-scope resources");
                        pause = TELL_AGAIN;
                    }
                }
            }
            self.data.report_problems(found.problems);
            tokio::select! {
                Ok(()) = config.changed() => {}
                () = tokio::time::sleep(pause.min(Duration::from_secs(24 * 3600))) => {}
            }
        }
    }

    /// Looks up the listed resources. A known one is looked up once per leadership, and stays shared if that fails. An
    /// old list removes none: it is used only while the cloud confirms it.
    async fn look_up(&self, read: &HubConfig, verified: &mut BTreeSet<GroupVersionResource>) -> Found {
        let list_problem = |why: String| Found {
            problems: vec![Problem {
                entry: CONFIG_KEY.to_owned(),
                why,
            }],
            ..Found::default()
        };
        if let Some(why) = &read.refused {
            return list_problem(why.clone());
        }
        if !read.current {
            return Found::default();
        }
        let wanted = match pool_scope::parse(read.value(CONFIG_KEY)) {
            Ok(wanted) => wanted,
            Err(why) => return list_problem(why),
        };
        let held = self.data.shared();
        let (mut resources, mut problems, mut look_again) = (Vec::new(), wanted.problems, false);
        for asked in wanted.resources {
            let entry = asked.to_string();
            if POOL_SCOPE.contains(&&*entry) {
                continue;
            }
            let known = held.iter().find(|one| one.gvr() == asked);
            if let Some(known) = known.filter(|_| verified.contains(&asked)) {
                resources.push(known.clone());
                continue;
            }
            match discover::resource(&self.cloud.server().streams, &asked).await {
                Ok(found) => {
                    verified.insert(asked);
                    resources.push(found);
                }
                Err(why) => {
                    look_again = true;
                    resources.extend(known.cloned());
                    problems.push(Problem { entry, why });
                }
            }
        }
        Found {
            resources: Some(resources),
            problems,
            look_again,
        }
    }

    /// Sends the resources to the coordinator. Returns the entries that it refused, or without one those that this hub
    /// could not begin or end to copy.
    async fn tell(&self, resources: &[SharedResource]) -> Result<Vec<Problem>, String> {
        let Some(coordinator) = &self.coordinator else {
            return Ok(self.data.share(resources).await);
        };
        if !coordinator.leadership.may_act() {
            return Err("leadership is uncertain".to_owned());
        }
        let fence = &coordinator.leadership.fence;
        let body = json!({ "store": fence.store, "epoch": fence.epoch, "resources": resources });
        let path = format!("{FEED_PATH}/{SCOPE_CALL}?version={VERSION}");
        let answer = coordinator
            .client
            .request_json(Method::POST, &path, Some(&body), TIMEOUT)
            .await;
        let (status, _, body) = answer.map_err(|error| error.to_string())?;
        if status != StatusCode::OK {
            return Err(format!("{status}: {}", String::from_utf8_lossy(&body).trim()));
        }
        coordinator.wake.notify_one();
        let told: SentScope = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
        Ok(told.refused)
    }
}
