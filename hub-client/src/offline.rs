//! Reads and writes while the cloud is away, other than those of replicas.
//!
//! | request | answer without the cloud |
//! |---|---|
//! | discovery documents; objects that a cacheable component read by name | the cloud's last answer ([`answers`], [`kept_read`]) |
//! | everything else | 503 with `Retry-After` |
//!
//! Records on the disk have one format ([`record`], [`shelf`]). The proxy asks this module after it found the cloud
//! away; requests that the cloud answers pass unchanged.

pub mod answers;
mod copied;
pub mod kept_read;
pub mod record;
pub mod shelf;

use std::sync::Arc;

use http::{HeaderMap, Request, Response, StatusCode};
use serde_json::{Value, json};
use tokio::sync::watch;
use yurt_apimachinery::{RequestInfo, Status};
use yurt_runtime::http::Body;

use crate::health::CloudReach;
use crate::metrics::offline::OfflineMetrics;
use crate::proxy::authorize::Authorizer;
use crate::proxy::caller::{Caller, Credential};
use crate::proxy::pass_through::PassThrough;
use crate::proxy::screen::is_impersonating;
use answers::Answers;
use kept_read::KeptRead;

/// Consecutive failed probes after which the cloud is not asked before a kept answer is returned.
const LOST: u32 = 2;
/// Decides if answers for a component are kept.
pub type IsCacheable = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// Answers without the cloud.
pub struct Offline {
    /// Kept answers.
    pub answers: Answers,
    /// Authorizer of reads.
    pub authorizer: Authorizer,
    /// Reachability of the cloud.
    pub reach: watch::Receiver<CloudReach>,
    /// Components whose answers are kept.
    pub is_cacheable: IsCacheable,
}

/// True if requests to the cloud are futile at present.
fn is_lost(reach: CloudReach) -> bool {
    reach.failed_probes.is_some_and(|failed| failed >= LOST)
}

/// True for the answer of a proxy in front of a cloud that does not answer.
fn is_of_gateway(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT
    )
}

// === impl Offline ===

impl Offline {
    /// Passes a request on to the cloud. Keeps the answer of a read, and returns the kept one while the cloud is away.
    ///
    /// # Errors
    /// As [`PassThrough::send`]; those of the authorizer for a kept object.
    pub async fn read(
        &self,
        cloud: &PassThrough,
        request: Request<Body>,
        info: &RequestInfo,
        caller: &Caller,
    ) -> Result<Response<Body>, Status> {
        let Some(read) = self.kept_read(&request, info, caller) else {
            return cloud.send(request, info, caller).await;
        };
        let headers = request.headers().clone();
        let reach = *self.reach.borrow();
        if is_lost(reach)
            && let Some(answer) = self.kept(&read, &headers, info, caller).await?
        {
            return Ok(answer);
        }
        match cloud.send(request, info, caller).await {
            Ok(response) if is_of_gateway(response.status()) && !self.reach.borrow().is_up() => {
                Ok(self.kept(&read, &headers, info, caller).await?.unwrap_or(response))
            }
            Ok(response) => {
                if response.status() == StatusCode::OK {
                    self.authorizer.learn_allowed(caller, info);
                }
                Ok(self.answers.keeping(&read, response))
            }
            Err(status) if status.code() == StatusCode::SERVICE_UNAVAILABLE.as_u16() => {
                self.kept(&read, &headers, info, caller).await?.ok_or(status)
            }
            Err(status) => Err(status),
        }
    }

    /// State for the operator.
    pub(crate) fn describe(&self) -> Value {
        let answers = self.answers.totals();
        json!({"answers": {"records": answers.records, "bytes": answers.bytes}})
    }

    /// Sets the gauges.
    pub(crate) fn set_metrics(&self, metrics: &OfflineMetrics) {
        let gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let answers = self.answers.totals();
        metrics.answers.set(gauge(answers.records as u64));
        metrics.answer_bytes.set(gauge(answers.bytes));
    }

    /// Returns the key of a read that is kept. Another user's answers are not: only the cloud knows that user's rights.
    fn kept_read(&self, request: &Request<Body>, info: &RequestInfo, caller: &Caller) -> Option<KeptRead> {
        if matches!(caller.credential, Credential::Certificate { .. }) || is_impersonating(request.headers()) {
            return None;
        }
        let component = Some(caller.component.as_str()).filter(|name| (self.is_cacheable)(name));
        KeptRead::of(request.method(), request.uri(), request.headers(), info, component)
    }

    /// Returns the kept answer; `None` if there is none.
    async fn kept(
        &self,
        read: &KeptRead,
        headers: &HeaderMap,
        info: &RequestInfo,
        caller: &Caller,
    ) -> Result<Option<Response<Body>>, Status> {
        // A token counts as authenticated if the cloud once answered it.
        if read.is_discovery() && !self.authorizer.remembers(caller, info) {
            return Ok(None);
        }
        let Some(record) = self.answers.find(read).await else {
            return Ok(None);
        };
        if !read.is_discovery() {
            self.authorizer.check(caller, info).await?;
        }
        Ok(Some(answers::answer(&record, headers)))
    }
}
