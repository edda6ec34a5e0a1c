//! Reports of forged pool data, and what follows once they are confirmed.
//!
//! A confirmed collection is voided. Where a single node fed it, that node is barred from the election lease.

use std::sync::Arc;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use serde_json::{Value, json};
use tracing::{error, info, warn};
use yurt_apimachinery::status::reason;
use yurt_apimachinery::time::{BootTime, Time};
use yurt_apimachinery::{ObjectKey, Status};
use yurt_pool_protocol::feed::report::{Report, ReportVerdict};
use yurt_pool_protocol::feed::status::Bar;
use yurt_pool_protocol::feed::{OpenReport, PoolStatus};
use yurt_pool_protocol::guard::{Caller, node_of};
use yurt_pool_protocol::names::ELECTION_KEY;
use yurt_pool_protocol::penalties::Penalty;

use crate::app::App;
use crate::authn::User;
use crate::forgery::reports::{Finding, ReportDecision, ReportRefusal, Vote};
use crate::lease_objects;
use crate::registry::own::{Change, Current, Intent};
use yurt_pool_protocol::members;

/// Maximum bytes of a report.
const REPORT_BYTES_MAX: usize = 4096;
/// Maximum bytes of an object's key: two DNS names of 253 bytes and a slash.
const KEY_BYTES_MAX: usize = 507;
/// Maximum bytes of the reason in a report.
const REASON_BYTES_MAX: usize = 256;

// === impl Vote ===

impl Vote {
    fn read(body: &[u8]) -> Result<Self, Status> {
        let report: Report =
            serde_json::from_slice(body).map_err(|error| Status::bad_request(format!("not a report: {error}")))?;
        let is_plain =
            |text: &str, limit| text.len() <= limit && text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        for (field, text, limit) in [
            ("key", &report.key, KEY_BYTES_MAX),
            ("reason", &report.reason, REASON_BYTES_MAX),
            ("accuser", &report.accuser, KEY_BYTES_MAX),
        ] {
            if !is_plain(text, limit) {
                let message = format!("{field} of a report: must be printable ASCII of at most {limit} bytes");
                return Err(Status::bad_request(message));
            }
        }
        let finding = Finding {
            collection: report.collection,
            generation: report.generation,
            key: report.key,
            version: report.resource_version,
            reason: report.reason,
        };
        Ok(match report.verdict {
            ReportVerdict::Forged => Self::Forged(finding),
            ReportVerdict::Honest => Self::Honest {
                accuser: report.accuser,
                finding,
            },
        })
    }
}

// === impl App ===

impl App {
    /// `GET` of the feed: its state, the open reports, and the nodes that may not lead. Every member polls it, so the
    /// call also shows that the member is there.
    pub(crate) fn pool_state(&self, user: &User) -> PoolStatus {
        let now = self.clock.boot();
        let mut state = self.feed.state();
        state.holder_silent_since = self.leader_silent_since().map(|since| self.on_wall_clock(since));
        state.barred = self.barred();
        let member = user.node_name().filter(|node| self.feed.members().contains(node));
        // A leader that knew of a report could take its forgery back before the others have checked it.
        let is_leader = self.feed.fence().leads(user.node_name());
        let report = |(accuser, finding): (&str, &Finding)| OpenReport {
            accuser: accuser.to_owned(),
            collection: finding.collection.clone(),
            generation: finding.generation,
            key: finding.key.clone(),
            resource_version: finding.version.to_string(),
            reason: finding.reason.clone(),
        };
        let mut reports = self.reports.lock();
        member.into_iter().for_each(|node| reports.heard(node, now));
        state.reports = reports.open(now).filter(|_| !is_leader).map(report).collect();
        state
    }

    /// Nodes that may not hold the election lease.
    pub(crate) fn barred(&self) -> Vec<Bar> {
        let now = self.clock.boot();
        let bars = self.own.guard().bars.lock();
        let bar = |(node, penalty): (&str, Penalty)| Bar {
            node: node.to_owned(),
            until: self.on_wall_clock(penalty.until),
            count: penalty.count,
        };
        bars.present(now).map(bar).collect()
    }

    /// `at` in RFC 3339, rounded, so that it is the same in every answer.
    fn on_wall_clock(&self, at: BootTime) -> String {
        let (now, unix) = (self.clock.boot(), self.clock.unix());
        let ahead = at.since(now).as_secs_f64() - now.since(at).as_secs_f64() + f64::from(unix.nanos) / 1e9;
        Time::from_unix(unix.secs.saturating_add(ahead.round() as i64)).to_string()
    }

    /// `POST` of a report: counts it, and carries out what it decides. A call that has begun finishes even when its
    /// caller disconnects.
    ///
    /// # Errors
    /// 400 for a malformed body; 403 for a node without a vote; 404 for an unknown collection or report; 409 for void
    /// data; 429 for a node that has to wait.
    pub(crate) async fn take_report(
        self: &Arc<Self>,
        user: &User,
        request: Request<Incoming>,
    ) -> Result<Value, Status> {
        let node = user.node_name();
        let node = node.ok_or_else(|| Status::bad_request("reports are taken from the nodes of the pool only"))?;
        let bodies = &self.filters.bodies;
        let body = bodies.read(&user.name, request.into_body(), REPORT_BYTES_MAX).await?;
        let vote = Vote::read(&body)?;
        let finding = vote.finding().clone();
        self.check_collection(&finding)?;
        let members = self.feed.members().names();
        let members =
            members.ok_or_else(|| conflict("no reports are taken before the members of the pool are known"))?;
        let leader = self.leader();
        let decision = {
            let now = self.clock.boot();
            let mut reports = self.reports.lock();
            reports.vote(node, vote, &members, leader.as_deref(), now)
        };
        match decision.map_err(|refusal| refused(node, refusal))? {
            ReportDecision::Open => {
                info!(
                    node,
                    collection = finding.collection,
                    key = finding.key,
                    "Report about pool data counted"
                );
                Ok(json!({ "decision": "open" }))
            }
            ReportDecision::Denied(time) => {
                warn!(
                    collection = finding.collection,
                    key = finding.key,
                    seconds = time.as_secs(),
                    "Report about pool data is not true, its accuser is ignored"
                );
                Ok(json!({ "decision": "denied" }))
            }
            ReportDecision::Confirmed { findings, is_first } => {
                let app = self.clone();
                let call = async move { app.convict(&findings, is_first, leader.as_deref()).await };
                let done = self.writes.detached("void forged data", call).await;
                done.map_err(|lost| Status::internal(&lost.to_string()))??;
                Ok(json!({ "decision": "confirmed" }))
            }
        }
    }

    /// `DELETE` of a bar: `node` may hold the election lease again, or every node.
    ///
    /// # Errors
    /// 404 for a node that is not barred.
    pub(crate) fn lift_bars(&self, user: &User, node: Option<&str>) -> Result<(), Status> {
        if !self.own.guard().bars.lock().lift(node) && node.is_some() {
            let message = format!(
                "node {:?} is not barred from the election lease",
                node.unwrap_or_default()
            );
            return Err(Status::failure(404, reason::NOT_FOUND, message));
        }
        info!(user = user.name, node, "Bar from the election lease lifted");
        Ok(())
    }

    /// Voids the collection of confirmed reports, and bars the node that forged it where that is certain. Only the void
    /// is repeated if it failed before (`is_first` is false): it is one forgery.
    async fn convict(
        self: &Arc<Self>,
        findings: &[(String, Finding)],
        is_first: bool,
        leader: Option<&str>,
    ) -> Result<(), Status> {
        let Some((_, finding)) = findings.first() else {
            return Ok(());
        };
        let name = finding.collection.as_str();
        let accusers: Vec<&str> = findings.iter().map(|(accuser, _)| accuser.as_str()).collect();
        let forger = self.feed.sole_feeder(name);
        error!(
            collection = name,
            key = finding.key,
            resource_version = %finding.version,
            reason = finding.reason,
            leader,
            forger,
            accusers = accusers.join(","),
            "Pool data is forged: voiding the collection"
        );
        if is_first {
            self.metrics.forgery_confirmed(name);
            if let Some(forger) = forger {
                self.bar(&forger).await;
            }
        }
        self.void(name).await
    }

    /// Bars `node` from the election lease, and ends its term.
    async fn bar(&self, node: &str) {
        let time = self.own.guard().bars.lock().add(node, self.clock.boot());
        error!(
            node,
            seconds = time.as_secs(),
            "Node is barred from the election lease: it fed forged pool data"
        );
        if self.leader().as_deref() == Some(node)
            && let Err(error) = self.end_term(node).await
        {
            // Its renewals are refused: the lease becomes free once it was silent for its duration.
            error!(node, %error, "Failed to end the term of a barred node");
        }
    }

    /// Makes the election lease free, if `node` holds it.
    async fn end_term(&self, node: &str) -> Result<(), Status> {
        let (group, resource) = lease_objects::RESOURCE;
        let served = self.served();
        let resource = served
            .registry
            .find(group, resource)
            .ok_or_else(Status::unknown_resource)?;
        let intent = Intent {
            caller: Caller::Administrator,
            ..Intent::of_coordinator()
        };
        let release = |current: &Current| {
            let mut new = current.stored().clone();
            let holder = new["spec"]["holderIdentity"].as_str().unwrap_or_default();
            if node_of(holder) != Some(node) {
                return Ok(Change::Keep);
            }
            new["spec"]["holderIdentity"] = json!("");
            Ok(Change::Put {
                new,
                is_conditional: false,
            })
        };
        let key = ObjectKey::parse(ELECTION_KEY);
        self.own.update(resource, &key, &intent, release).await.map(drop)
    }

    /// Node of the present leader.
    fn leader(&self) -> Option<String> {
        let holder = self.feed.fence().election().holder;
        node_of(&holder).map(str::to_owned)
    }

    fn check_collection(&self, finding: &Finding) -> Result<(), Status> {
        let name = &finding.collection;
        let required = self
            .feed
            .required_generation(name)
            .filter(|_| name != members::COLLECTION);
        let missing = || {
            Status::failure(
                404,
                reason::NOT_FOUND,
                format!("{name:?} is not a collection of the feed"),
            )
        };
        if finding.generation < required.ok_or_else(missing)? {
            let generation = finding.generation;
            return Err(conflict(&format!("generation {generation} of {name} is void already")));
        }
        Ok(())
    }
}

fn conflict(message: &str) -> Status {
    Status::failure(409, reason::CONFLICT, message)
}

fn refused(node: &str, refusal: ReportRefusal) -> Status {
    match refusal {
        ReportRefusal::NoVoter => {
            let message =
                format!("node {node:?} does not vote about pool data: it leads the pool, or is no member of it");
            Status::failure(403, reason::FORBIDDEN, message)
        }
        ReportRefusal::Unknown => Status::failure(404, reason::NOT_FOUND, "there is no such report"),
        ReportRefusal::Wait(left) => {
            let seconds = whole_seconds(left);
            let message =
                format!("the last report of node {node:?} was not confirmed; it may report again in {seconds} s");
            Status::too_many_requests(message, seconds)
        }
    }
}

/// Seconds of `left`, rounded up.
pub(crate) fn whole_seconds(left: Duration) -> u32 {
    u32::try_from(left.as_secs()).unwrap_or(u32::MAX).saturating_add(1)
}
