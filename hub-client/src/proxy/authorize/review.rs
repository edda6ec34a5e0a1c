//! Reviews at the cloud. A token and the node are reviewed with their own credential (SelfSubjectAccessReview), a
//! client certificate through the node's right to create SubjectAccessReviews.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, StatusCode};
use serde_json::{Value, json};
use yurt_apimachinery::RequestInfo;
use yurt_runtime::http::{APPLICATION_JSON, full};

use super::decision::AccessVerdict;
use crate::proxy::caller::Credential;
use crate::upstream::{Cloud, describe_answer};

/// Maximum wait for the cloud's answer.
pub const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of an answer, bytes.
const ANSWER_BYTES: usize = 1 << 20;

/// Reason for a missing verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoVerdict {
    /// The hub does not ask the cloud now. An older verdict does not count: the cloud may have another one.
    NotAsked {
        /// Reason.
        why: String,
        /// Time after which the caller may try again, s.
        retry_after: u32,
    },
    /// The cloud does not answer, or fails.
    Unanswered(String),
    /// The cloud answers, but may not review this, or cannot decide: one of its authorizers fails.
    Undecided(String),
}

/// Source of verdicts.
pub trait Reviews: Send + Sync {
    /// Reviews whether `credential` may do what `attributes` describe. Ends by itself.
    fn ask(&self, credential: Credential, attributes: Value) -> BoxFuture<'static, Result<AccessVerdict, NoVerdict>>;
}

// === impl Cloud ===

impl Reviews for Arc<Cloud> {
    fn ask(&self, credential: Credential, attributes: Value) -> BoxFuture<'static, Result<AccessVerdict, NoVerdict>> {
        let cloud = self.clone();
        let reviewing = async move {
            let (status, body) = review(&cloud, &credential, attributes).await?;
            verdict(status, &body)
        };
        reviewing.boxed()
    }
}

// === impl NoVerdict ===

impl From<String> for NoVerdict {
    fn from(why: String) -> Self {
        Self::Unanswered(why)
    }
}

/// Returns the cloud's answer to a review.
async fn review(cloud: &Cloud, credential: &Credential, attributes: Value) -> Result<(StatusCode, Bytes), String> {
    let server = cloud.server();
    let (client, kind, mut spec) = match credential {
        Credential::Token(_) => (&server.token.single, "SelfSubjectAccessReview", json!({})),
        Credential::Certificate { user, groups } => {
            // kube-apiserver adds this group to every authenticated user.
            let groups: Vec<&str> = groups
                .iter()
                .map(String::as_str)
                .chain(["system:authenticated"])
                .collect();
            let spec = json!({"user": user, "groups": groups});
            (&server.beats, "SubjectAccessReview", spec)
        }
        Credential::Node => (&server.beats, "SelfSubjectAccessReview", json!({})),
    };
    spec["resourceAttributes"] = attributes;
    let body = json!({"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec});
    let mut request = Request::new(full(body.to_string()));
    *request.method_mut() = Method::POST;
    let path = format!("/apis/authorization.k8s.io/v1/{}s", kind.to_lowercase());
    *request.uri_mut() = path.parse().map_err(|error| format!("{path}: {error}"))?;
    request.headers_mut().insert(CONTENT_TYPE, APPLICATION_JSON);
    request.headers_mut().insert(ACCEPT, APPLICATION_JSON);
    if let Credential::Token(token) = credential {
        // A token that does not fit into a header came from none.
        let value = HeaderValue::try_from(format!("Bearer {token}")).map_err(|error| error.to_string())?;
        request.headers_mut().insert(AUTHORIZATION, value);
    }
    let answer = client.request_bytes(request, TIMEOUT, ANSWER_BYTES).await;
    let (status, _, body) = answer.map_err(|error| error.to_string())?;
    Ok((status, body))
}

/// Returns the verdict in the answer to a review. A refusal of the review itself is none, and neither is one by
/// authorizers of which some failed: kube-apiserver answers a request in that case with 500, not with 403.
fn verdict(status: StatusCode, body: &[u8]) -> Result<AccessVerdict, NoVerdict> {
    match status {
        StatusCode::CREATED | StatusCode::OK => {
            let review: Value = serde_json::from_slice(body).map_err(|error| error.to_string())?;
            let status = &review["status"];
            let error = status["evaluationError"].as_str().unwrap_or_default();
            match status["allowed"] == true {
                true => Ok(AccessVerdict::Allowed),
                false if error.is_empty() => Ok(AccessVerdict::Denied),
                false => Err(NoVerdict::Undecided(error.to_owned())),
            }
        }
        StatusCode::UNAUTHORIZED => Ok(AccessVerdict::Unauthorized),
        StatusCode::FORBIDDEN => Err(NoVerdict::Undecided(describe_answer(status, body))),
        _ => Err(NoVerdict::Unanswered(describe_answer(status, body))),
    }
}

/// Returns the attributes of a request, as reviews name them.
#[must_use]
pub fn attributes(info: &RequestInfo) -> Value {
    let mut attributes = json!({
        "verb": info.verb.as_str(),
        "group": info.group,
        "version": info.version,
        "resource": info.resource,
    });
    for (name, value) in [
        ("namespace", &info.namespace),
        ("subresource", &info.subresource),
        ("name", &info.name),
    ] {
        if let Some(value) = value {
            attributes[name] = value.as_str().into();
        }
    }
    attributes
}
