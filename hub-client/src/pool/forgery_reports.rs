//! Reports forged data to the coordinator, and checks what other members report.
//!
//! A check compares one object at the coordinator with the cloud, under this node's own identity: over its own link, or
//! through the relay of a peer while it has none. [`warnings`](crate::replicas::warnings) (pure) decides what is
//! checked when.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use yurt_apimachinery::list::ParsedList;
use yurt_apimachinery::{ObjectKey, ResourceKind, ResourceVersion};
use yurt_pool_protocol::feed::OpenReport;
use yurt_pool_protocol::feed::report::{Report, ReportVerdict};
use yurt_pool_protocol::members;
use yurt_pool_protocol::names::{GENERATION_HEADER, REPORTS_PATH};
use yurt_runtime::http::client::HttpClient;

use super::relay::client::RelayClient;
use crate::health::CloudReach;
use crate::replicas::alarm::{Alarm, Finding};
use crate::replicas::is_cached;
use crate::replicas::questions;
use crate::replicas::truth::{HeldObject, ObjectState, Truth, TruthVerdict, judge};
use crate::replicas::warnings::{Suspects, Warnings};
use crate::upstream::Cloud;

/// Longest wait for an answer of the coordinator; the relay has the same time for all peers.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Time between looks at the open reports.
const TICK: Duration = Duration::from_secs(5);
/// Name of the failure while reports are open.
const FAILURE: &str = "reports of forged data";

/// Reports and checks.
pub struct Reporter {
    /// Name of this node.
    pub node: String,
    /// Leaves the coordinator.
    pub alarm: Alarm,
    /// Findings of the samples.
    pub findings: mpsc::Receiver<Finding>,
    /// Client of the coordinator.
    pub client: HttpClient,
    /// The cloud, which is authoritative.
    pub cloud: Arc<Cloud>,
    /// Reachability of the cloud.
    pub reach: watch::Receiver<CloudReach>,
    /// Way to the cloud while there is no link; `None` if relaying is off.
    pub relay: Option<Arc<RelayClient>>,
}

// === impl Reporter ===

impl Reporter {
    /// Runs until `token` is cancelled.
    pub async fn run(mut self, token: CancellationToken) {
        token.run_until_cancelled(self.keep_reporting()).await;
    }

    async fn keep_reporting(&mut self) {
        let (mut warnings, mut suspects) = (Warnings::default(), Suspects::default());
        loop {
            tokio::select! {
                Some(finding) = self.findings.recv() => self.accuse(&finding, &mut suspects).await,
                Ok(()) = self.alarm.coordinator.changed() => {}
                () = tokio::time::sleep(TICK) => {}
            }
            let status = self.alarm.coordinator.borrow_and_update().status.clone();
            let open = status.map(|status| status.reports.clone()).unwrap_or_default();
            self.tell(&open);
            if let Some(report) = warnings.next(&open, &self.node, self.alarm.clock.boot()) {
                match self.examine(&report, &mut suspects).await {
                    Ok(true) => warnings.answered(&report),
                    Ok(false) => {}
                    Err(why) => tracing::debug!(?report, why, "Report not checked"),
                }
            }
            self.follow_up(&mut suspects).await;
        }
    }

    /// Warns the operator of this node.
    fn tell(&self, open: &[OpenReport]) {
        let Some(first) = open.first() else {
            return self.alarm.data.failures().works(FAILURE);
        };
        let OpenReport {
            accuser,
            collection,
            key,
            ..
        } = first;
        let why = format!(
            "{accuser} reports that {collection} {key} of the coordinator is forged ({} open)",
            open.len()
        );
        self.alarm.data.failures().unanswered(FAILURE, &why);
    }

    /// Checks what another member reported. Returns true if no further check is needed.
    async fn examine(&self, report: &OpenReport, suspects: &mut Suspects) -> Result<bool, String> {
        let key = ObjectKey::parse(&report.key);
        let (finding, verdict) = self.check(&report.collection, &key).await?;
        if let TruthVerdict::Forged(_) = verdict {
            self.found(&finding, suspects).await;
            return Ok(true);
        }
        // Only this very state can be denied: what was reported may have been replaced since.
        let is_same = finding.generation == report.generation
            && !finding.version.is_zero()
            && finding.version.to_string() == report.resource_version;
        if verdict == TruthVerdict::Honest && is_same {
            self.post(&finding, Some(&report.accuser)).await;
        }
        Ok(verdict == TruthVerdict::Honest)
    }

    /// Checks the objects again that this hub found forged.
    async fn follow_up(&self, suspects: &mut Suspects) {
        let Some((collection, key)) = suspects.next(self.alarm.clock.boot()) else {
            return;
        };
        match self.check(&collection, &key).await {
            Ok((finding, TruthVerdict::Forged(_))) => self.post(&finding, None).await,
            Ok(_) => {}
            Err(why) => tracing::debug!(collection, why, "Forged object not checked again"),
        }
    }

    /// The object is forged, as a check here shows.
    async fn found(&self, finding: &Finding, suspects: &mut Suspects) {
        if self.reach.borrow().is_up() {
            self.alarm.leave(finding);
        }
        self.accuse(finding, suspects).await;
    }

    async fn accuse(&self, finding: &Finding, suspects: &mut Suspects) {
        suspects.found(&finding.collection, &finding.key, self.alarm.clock.boot());
        self.post(finding, None).await;
    }

    /// Posts the finding, or denies it if `accuser` has reported it.
    async fn post(&self, finding: &Finding, accuser: Option<&str>) {
        let report = Report {
            collection: finding.collection.clone(),
            generation: finding.generation,
            key: finding.key.to_string(),
            resource_version: finding.version,
            reason: finding.reason.clone(),
            verdict: if accuser.is_some() {
                ReportVerdict::Honest
            } else {
                ReportVerdict::Forged
            },
            accuser: accuser.unwrap_or_default().to_owned(),
        };
        let body = json!(report);
        let answer = self
            .client
            .request_json(Method::POST, REPORTS_PATH, Some(&body), TIMEOUT)
            .await;
        let why = match answer {
            Ok((StatusCode::OK, ..)) => return,
            Ok((status, _, body)) => format!("{status}: {}", String::from_utf8_lossy(&body).trim()),
            Err(error) => error.to_string(),
        };
        tracing::debug!(?finding, why, "Report not taken");
    }

    /// Compares the object `key` at the coordinator with the cloud.
    async fn check(&self, collection: &str, key: &ObjectKey) -> Result<(Finding, TruthVerdict), String> {
        let replica = self.alarm.data.replicas().named(collection);
        let replica = replica.filter(|_| collection != members::COLLECTION && !is_cached(collection));
        let replica = replica.ok_or_else(|| format!("{collection:?} is not shared here"))?;
        let kind = replica.collection().kind();
        if kind.namespaced != key.namespace().is_some() {
            return Err(format!("{key} is no key of {collection}"));
        }
        let path = questions::one(kind, key);
        // The coordinator first: its state is then not after the head of the cloud.
        let (headers, list) = ask(&self.client, &path, TIMEOUT).await?;
        let generation = headers
            .get(GENERATION_HEADER)
            .and_then(|text| text.to_str().ok()?.parse().ok());
        let (position, ours) = state_of(list, kind, key)?;
        let (head, theirs) = state_of(self.ask_cloud(&path).await?, kind, key)?;
        let held = HeldObject {
            position,
            state: ours,
            is_before: true,
        };
        let version = held.version();
        let verdict = judge(&held, &Truth { head, state: theirs });
        let reason = match verdict {
            TruthVerdict::Forged(why) => why,
            TruthVerdict::Honest | TruthVerdict::Behind => "",
        };
        let finding = Finding {
            collection: collection.to_owned(),
            generation: generation.unwrap_or_default(),
            key: key.clone(),
            version,
            reason: reason.to_owned(),
        };
        Ok((finding, verdict))
    }

    /// Asks the cloud, through a peer while this node has no link.
    async fn ask_cloud(&self, path: &str) -> Result<Bytes, String> {
        if self.reach.borrow().is_up() {
            return Ok(ask(&self.cloud.server().beats, path, TIMEOUT).await?.1);
        }
        let relay = self.relay.as_ref().ok_or("there is no way to the cloud")?;
        let mut why = "no peer has a way to the cloud".to_owned();
        for way in relay.begin(TIMEOUT).await {
            match ask(&way.client, path, way.timeout).await {
                Ok((_, body)) => return Ok(body),
                Err(error) => why = format!("through {}: {error}", way.peer),
            }
        }
        Err(why)
    }
}

async fn ask(client: &HttpClient, path: &str, timeout: Duration) -> Result<(HeaderMap, Bytes), String> {
    match questions::ask(client, path, "", timeout).await? {
        (StatusCode::OK, headers, body) => Ok((headers, body)),
        (status, ..) => Err(format!("{}{path}: {status}", client.server())),
    }
}

/// Returns the RV of the list and the state of the object `key`.
fn state_of(
    list: Bytes,
    kind: &ResourceKind,
    key: &ObjectKey,
) -> Result<(ResourceVersion, Option<ObjectState>), String> {
    let list = ParsedList::parse(list, kind).map_err(|error| error.to_string())?;
    let item = list.items.iter().find(|item| item.key() == key);
    Ok((list.meta.resource_version, item.map(|item| ObjectState::of(item, true))))
}
